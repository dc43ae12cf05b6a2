"""The verifier: every rule has a program that breaks it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.errors import VerificationError
from jax_cocktail.utask.infer.infer import RULES
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, Stage, StitchedUTask, UOperator, UProgram
from jax_cocktail.utask.operators import KINDS
from jax_cocktail.utask.types import Source, TensorType, Value
from tests.null.programs import build, random_program, tensor, unverified

F = TensorType("float32", (3,))
X, Y, Z, W = (Value(i, F) for i in range(4))
INDEX, COUNT, FLAG = Value(10, tensor("int64")), Value(11, tensor("int32")), Value(12, tensor("bool"))


def neg(x: Value, y: Value) -> UOperator:
    return UOperator("neg", (x,), (y,))


def program(body, results, parameters=(X,), donated=()) -> UProgram:
    return UProgram("p", Region(tuple(parameters), tuple(body), tuple(results)), donated)


def refuses(broken: UProgram, message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        verify(broken)


def test_every_kind_has_a_type_rule():
    assert set(RULES) == set(KINDS)


@pytest.mark.parametrize("seed", range(20))
def test_accepts_random_programs(seed):
    verify(random_program(seed))


# -- scopes --------------------------------------------------------------------------------------------------
def test_use_before_definition():
    refuses(program([neg(Y, Z), neg(X, Y)], [Z]), "%1 is used before its definition")
    refuses(program([], [Y]), "%1 is used before its definition")


def test_use_outside_of_the_scope():
    inner = Region((), (neg(X, Y),), (Y,))
    other = Region((), (), (X,))
    refuses(
        program([BranchUTask(COUNT, (inner, other), (Z,))], [Y], (X, COUNT)), "%1 is used outside its scope"
    )
    sibling = Region((), (neg(Y, W),), (W,))
    refuses(
        program([BranchUTask(COUNT, (inner, sibling), (Z,))], [Z], (X, COUNT)), "%1 is used outside its scope"
    )


def test_nested_regions_see_enclosing_ones():
    inner = Region((), (neg(Y, Z),), (Z,))
    verify(program([neg(X, Y), BranchUTask(COUNT, (inner,), (W,))], [W], (X, COUNT)))


def test_double_definition():
    refuses(program([neg(X, Y), neg(X, Y)], [Y]), "%1 is defined twice")
    refuses(program([neg(X, X)], [X]), "%0 is defined twice")
    refuses(program([], [X], (X, X)), "%0 is defined twice")
    inner = Region((), (neg(X, Y),), (Y,))
    refuses(program([BranchUTask(COUNT, (inner, inner), (Z,))], [Z], (X, COUNT)), "%1 is defined twice")


def test_one_type_for_one_number():
    twin = Value(1, TensorType("float32", (4,)))
    refuses(
        program([neg(X, Y), neg(twin, Value(5, twin.type))], [Y]), "%1 is float32.4. here and float32.3. else"
    )


def test_donated_indices():
    refuses(program([], [X], donated=(0, 0)), "donated twice")
    refuses(program([], [X], donated=(1,)), "donated indices")
    refuses(program([], [X], donated=(True,)), "donated indices")
    verify(program([], [X], donated=(0,)))


# -- loops and branches --------------------------------------------------------------------------------------
def loop(body: Region, **rest) -> LoopUTask:
    return LoopUTask((X,), (Z,), body, **rest)


def test_loop_parameters():
    verify(program([loop(Region((INDEX, Y), (), (Y,)), trip_count=3)], [Z]))
    wrong = loop(Region((COUNT, Y), (), (Y,)), trip_count=3)
    refuses(program([wrong], [Z]), r"loop index is int32\[\], not int64\[\]")
    extra = LoopUTask((X,), (Z,), Region((INDEX, Y), (), (Y,)), trip_count=3)
    object.__setattr__(extra.body, "parameters", (INDEX, FLAG, Y))
    refuses(program([extra], [Z]), "body parameters are not the index")


def test_trip_counts():
    refuses(program([loop(Region((INDEX, Y), (), (Y,)), trip_count=-1)], [Z]), "trip count -1")
    refuses(program([loop(Region((INDEX, Y), (), (Y,)), trip_count=True)], [Z]), "trip count True")


def test_conditions():
    body, tested = Region((Y,), (), (Y,)), Value(20, F)
    verify(program([loop(body, condition=Region((tested,), (), (FLAG,)))], [Z], (X, FLAG)))
    number = loop(body, condition=Region((tested,), (), (COUNT,)))
    refuses(program([number], [Z], (X, COUNT)), r"condition gives not one bool\[\]")
    two = loop(body, condition=Region((tested,), (), (FLAG, FLAG)))
    refuses(program([two], [Z], (X, FLAG)), "condition gives not one")
    leaking = loop(Region((Y,), (), (tested,)), condition=Region((tested,), (), (FLAG,)))
    refuses(program([leaking], [Z], (X, FLAG)), "%20 is used outside its scope")


def test_selectors():
    region = Region((), (), (X,))
    refuses(
        program([BranchUTask(INDEX, (region,), (Z,))], [Z], (X, INDEX)), r"selector is int64\[\], not int32"
    )


def test_stages_of_one_region_are_of_one_wavefront():
    region = Region((), (), (X,))
    stages = [
        BranchUTask(COUNT, (region,), (value,), stage=Stage(number, count))
        for value, number, count in ((Y, 0, 2), (Z, 1, 2), (W, 1, 3))
    ]
    verify(program(stages[:2], [Z], (X, COUNT)))
    refuses(program(stages, [Z], (X, COUNT)), "stages of wavefronts of different length")


def test_ir_that_is_wrong_at_birth():
    with pytest.raises(ValueError, match="carried types"):
        LoopUTask((X,), (COUNT,), Region((INDEX, Y), (), (Y,)), trip_count=1)
    with pytest.raises(ValueError, match="either a condition or a trip count"):
        LoopUTask((X,), (Z,), Region((INDEX, Y), (), (Y,)))
    with pytest.raises(ValueError, match="at least one region"):
        BranchUTask(COUNT, (), ())
    with pytest.raises(ValueError, match="branch results"):
        BranchUTask(COUNT, (Region((), (), (X,)),), (FLAG,))
    with pytest.raises(ValueError, match="takes 1 operands"):
        UOperator("neg", (X, X), (Y,))
    with pytest.raises(ValueError, match="unknown operator"):
        UOperator("frobnicate", (X,), (Y,))
    with pytest.raises(ValueError, match="has attributes"):
        UOperator("iota", (), (Y,))


# -- groups --------------------------------------------------------------------------------------------------
def group(members, inputs, outputs) -> StitchedUTask:
    return StitchedUTask(tuple(members), tuple(inputs), tuple(outputs))


def test_groups():
    verify(program([group([neg(X, Y), neg(Y, Z)], [X], [Z])], [Z]))
    refuses(program([group([], [], [])], [X]), "without members")
    refuses(program([group([neg(X, Y)], [X], [Z])], [X]), "made by none of its members")
    refuses(program([group([neg(X, Y)], [], [Y])], [Y]), "neither an input of its group")
    refuses(program([group([neg(Y, Z), neg(X, Y)], [X], [Z])], [Z]), "neither an input of its group")
    refuses(program([group([neg(X, Y)], [X, X], [Y])], [Y]), "lists an input twice")
    refuses(program([group([neg(X, Y), neg(X, Y)], [X], [Y])], [Y]), "%1 is defined twice")
    refuses(
        program([neg(X, Y), group([neg(X, Y), neg(Y, Z)], [X, Y], [Z])], [Z]), "input and member of one group"
    )
    refuses(program([group([neg(X, Y), neg(Y, Z)], [X], [Z])], [Y]), "%1 is used before its definition")
    refuses(program([group([neg(Y, Z)], [Y], [Z])], [Z]), "%1 is used before its definition")


def test_recomputed_members_are_the_same_operator():
    first, second = group([neg(X, Y), neg(Y, Z)], [X], [Z]), group([neg(X, Y), neg(Y, W)], [X], [W])
    verify(program([first, second], [Z, W]))
    verify(program([neg(X, Y), second], [Y, W]))
    other = group([UOperator("exp", (X,), (Y,)), neg(Y, W)], [X], [W])
    refuses(program([first, other], [Z, W]), "recomputed by another operator")
    refuses(program([neg(X, Y), other], [Y, W]), "recomputed by another operator")
    refuses(program([other], [W], (X, Y)), "recomputed by another operator")


def test_anchors_close_their_group():
    total = Value(20, TensorType("float32"))
    reduce = UOperator("reduce", (X,), (total,), (("axes", (0,)), ("op", "sum")))
    verify(program([group([neg(X, Y), replace(reduce, inputs=(Y,))], [X], [total])], [total]))
    refuses(program([group([reduce, neg(X, Y)], [X], [Y, total])], [Y]), "reduce does not close its group")


def test_reductions_close_their_group_together():
    x, y = Value(20, TensorType("float32", (4, 3))), Value(21, TensorType("float32", (4, 3)))
    a, b = (Value(number, TensorType("float32", (4,))) for number in (22, 23))
    c, d = Value(24, TensorType("float32", (3,))), Value(25, TensorType("float32"))

    def reduce(operand, result, axis):
        return UOperator("reduce", (operand,), (result,), (("axes", (axis,)), ("op", "sum")))

    def check(members, outputs, message=""):
        broken = UProgram("p", Region((x,), (group(members, [x], outputs),), tuple(outputs)))
        refuses(broken, message) if message else verify(broken)

    check([neg(x, y), reduce(x, a, 1), reduce(y, b, 1)], [y, a, b])
    check([reduce(x, a, 1), reduce(x, c, 0)], [a, c], "differ in shape or axes")
    check([reduce(x, a, 1), reduce(a, d, 0)], [a, d], "reads a reduction of its own group")
    check([reduce(x, a, 1), neg(x, y), reduce(y, b, 1)], [a, b], "reduce does not close its group")


def test_faults_say_what_where_and_what_to_try():
    broken = UOperator("exp", (COUNT,), (Value(20, COUNT.type),), source=Source("model.py", 7, "step"))
    with pytest.raises(VerificationError) as error:
        verify(program([broken], [X], (X, COUNT)))
    text = str(error.value)
    assert text.startswith("program p: exp: does not take int32 in\ntemporary %20: int32[] = exp(%11)\n")
    assert "from model.py:7 (step)" in text and "try: print the program" in text


# -- types of operators --------------------------------------------------------------------------------------
DOT = {"lhs_batch": (), "lhs_contract": (1,), "rhs_batch": (), "rhs_contract": (0,)}
CONV = {
    "batch_group_count": 1,
    "feature_group_count": 1,
    "lhs_dilation": (1,),
    "lhs_spec": (0, 1, 2),
    "out_spec": (0, 1, 2),
    "padding": ((0, 0),),
    "rhs_dilation": (1,),
    "rhs_spec": (0, 1, 2),
    "window_strides": (1,),
}
WINDOW = {
    "base_dilation": (1,),
    "op": "sum",
    "padding": ((0, 0),),
    "strides": (1,),
    "window": (2,),
    "window_dilation": (1,),
}
SCATTER_MAX = {"padding": ((0, 0),), "select": "ge", "strides": (2,), "window": (2,)}
GATHER = {
    "collapsed_slice_dims": (0,),
    "fill_value": bytes(4),
    "mode": "clip",
    "offset_dims": (1,),
    "operand_batching_dims": (),
    "slice_sizes": (1, 4),
    "start_index_map": (0,),
    "start_indices_batching_dims": (),
}
SCATTER = {
    "inserted_window_dims": (0,),
    "mode": "clip",
    "op": "add",
    "operand_batching_dims": (),
    "scatter_dims_to_operand_dims": (0,),
    "scatter_indices_batching_dims": (),
    "update_window_dims": (1,),
}

GOOD = {
    "unary": ("exp", ["float32[3]"], ["float32[3]"], {}),
    "binary": ("add", ["int8[3]", "int8[3]"], ["int8[3]"], {}),
    "compare": ("lt", ["bool[3]", "bool[3]"], ["bool[3]"], {}),
    "not": ("not", ["bool[3]"], ["bool[3]"], {}),
    "select": ("select", ["bool[3]", "int8[3]", "int8[3]"], ["int8[3]"], {}),
    "clamp": ("clamp", ["int8[3]", "int8[3]", "int8[3]"], ["int8[3]"], {}),
    "is_finite": ("is_finite", ["float32[3]"], ["bool[3]"], {}),
    "integer_pow": ("integer_pow", ["int8[3]"], ["int8[3]"], {"exponent": 2}),
    "convert": ("convert", ["int8[3]"], ["float32[3]"], {}),
    "bitcast": ("bitcast", ["int32[3]"], ["float32[3]"], {}),
    "reduce_precision": (
        "reduce_precision",
        ["float32[3]"],
        ["float32[3]"],
        {"exponent_bits": 5, "mantissa_bits": 0},
    ),
    "threefry2x32": ("threefry2x32", ["uint32[3]"] * 4, ["uint32[3]"], {"word": 1}),
    "constant": ("constant", [], ["bool[2]"], {"data": b"\0\1"}),
    "empty": ("empty", [], ["bool[2]"], {}),
    "iota": ("iota", [], ["int8[2,3]"], {"dimension": 1}),
    "broadcast": ("broadcast", ["int8[1,3]"], ["int8[3,2,4]"], {"dimensions": (1, 0)}),
    "reshape": ("reshape", ["int8[2,3]"], ["int8[6]"], {}),
    "transpose": ("transpose", ["int8[2,3]"], ["int8[3,2]"], {"permutation": (1, 0)}),
    "slice": ("slice", ["int8[5]"], ["int8[2]"], {"starts": (1,), "strides": (3,)}),
    "reverse": ("reverse", ["int8[5]"], ["int8[5]"], {"dimensions": (0,)}),
    "pad": ("pad", ["int8[5]", "int8[]"], ["int8[9]"], {"low": (-1,), "interior": (1,)}),
    "concatenate": ("concatenate", ["int8[2,1]", "int8[2,3]"], ["int8[2,4]"], {"dimension": 1}),
    "dynamic_slice": ("dynamic_slice", ["int8[5,2]", "int32[]", "int64[]"], ["int8[3,2]"], {}),
    "update": ("dynamic_update_slice", ["int8[5]", "int8[3]", "uint8[]"], ["int8[5]"], {}),
    "gather": ("gather", ["float32[6,4]", "int32[5,1]"], ["float32[5,4]"], GATHER),
    "scatter": ("scatter", ["float32[6,4]", "int32[5,1]", "float32[5,4]"], ["float32[6,4]"], SCATTER),
    "dot": ("dot", ["int8[2,3]", "int8[3,4]"], ["int32[2,4]"], DOT),
    "conv": ("conv", ["float32[2,3,8]", "float32[4,3,3]"], ["float32[2,4,6]"], CONV),
    "reduce": ("reduce", ["int8[2,3]"], ["int8[3]"], {"axes": (0,), "op": "and"}),
    "arg_reduce": ("arg_reduce", ["float32[2,3]"], ["int64[2]"], {"axis": 1, "op": "max"}),
    "cumulative": (
        "cumulative",
        ["float32[2,3]"],
        ["float32[2,3]"],
        {"axis": 1, "op": "logsumexp", "reverse": True},
    ),
    "sort": ("sort", ["float32[3]", "int8[3]"], ["float32[3]", "int8[3]"], {"dimension": 0, "num_keys": 1}),
    "top_k": ("top_k", ["float32[3]"], ["float32[2]", "int32[2]"], {"axis": 0, "k": 2}),
    "reduce_window": ("reduce_window", ["float32[5]"], ["float32[4]"], WINDOW),
    "select_and_scatter_add": (
        "select_and_scatter_add",
        ["float32[2]", "float32[5]"],
        ["float32[5]"],
        SCATTER_MAX,
    ),
}


def one_operator(kind, operands, results, attributes):
    outputs = [(t.dtype, t.shape) for t in map(tensor, results)]
    return unverified(operands, lambda b, *values: b.emit_many(kind, values, outputs, **attributes))


@pytest.mark.parametrize("name", GOOD)
def test_right_types(name):
    verify(one_operator(*GOOD[name]))


# name in GOOD, what changes (operands, results or attributes), message
BAD = [
    ("unary", {"operands": ["int32[3]"], "results": ["int32[3]"]}, "does not take int32"),
    ("unary", {"results": ["float32[4]"]}, "result is"),
    ("unary", {"results": ["float32[3]", "float32[3]"]}, "has 2 results, not 1"),
    ("binary", {"operands": ["int8[3]", "int16[3]"]}, "operands differ"),
    ("binary", {"operands": ["int8[3]", "int8[1]"]}, "operands differ"),
    ("binary", {"operands": ["bool[3]"] * 2, "results": ["bool[3]"]}, "does not take bool"),
    ("compare", {"results": ["int8[3]"]}, "result is"),
    ("not", {"operands": ["float32[3]"], "results": ["float32[3]"]}, "does not take float32"),
    ("select", {"operands": ["bool[]", "int8[3]", "int8[3]"]}, "predicate is"),
    ("select", {"operands": ["bool[3]", "int8[3]", "int16[3]"]}, "operands differ"),
    ("select", {"results": ["int16[3]"]}, "result is"),
    ("clamp", {"operands": ["int8[]", "int8[3]", "int8[]"]}, "operands differ"),
    ("is_finite", {"operands": ["int8[3]"]}, "does not take int8"),
    ("integer_pow", {"exponent": -1}, "negative power"),
    ("integer_pow", {"exponent": 2.0}, "exponent is not an integer"),
    ("convert", {"results": ["float32[4]"]}, "expected shape"),
    ("bitcast", {"results": ["float64[3]"]}, "differ in width"),
    ("bitcast", {"operands": ["bool[3]"], "results": ["int8[3]"]}, "no other bit pattern"),
    ("reduce_precision", {"exponent_bits": 0}, "exponent bit"),
    ("reduce_precision", {"mantissa_bits": -1}, "mantissa bits"),
    ("threefry2x32", {"word": 2}, "word is 0 or 1"),
    ("threefry2x32", {"operands": ["int32[3]"] * 4}, "does not take int32"),
    ("constant", {"data": b"\0"}, "data has 1 bytes"),
    ("constant", {"data": b"\0\2"}, "neither 0 nor 1"),
    ("constant", {"data": 3}, "not bytes"),
    ("iota", {"dimension": 2}, "no axis"),
    ("iota", {"results": ["bool[2,3]"]}, "does not take bool"),
    ("broadcast", {"dimensions": (0, 1)}, "does not spread"),
    ("broadcast", {"dimensions": (0,)}, "one dimension per operand axis"),
    ("broadcast", {"dimensions": (0, 0)}, "repeats an axis"),
    ("broadcast", {"dimensions": (0, 3)}, "no axes of rank"),
    ("broadcast", {"dimensions": [1, 0]}, "not a tuple of integers"),
    ("broadcast", {"results": ["int16[3,2,4]"]}, "result is"),
    ("reshape", {"results": ["int8[5]"]}, "differ in size"),
    ("transpose", {"permutation": (0, 1)}, "expected shape"),
    ("transpose", {"permutation": (0,)}, "names every axis"),
    ("slice", {"starts": (2,)}, "reads past"),
    ("slice", {"starts": (-1,)}, "start is negative"),
    ("slice", {"strides": (0,)}, "stride below 1"),
    ("slice", {"starts": (1, 1)}, "2 entries"),
    ("slice", {"results": ["int8[2,1]"]}, "result is"),
    ("reverse", {"dimensions": (1,)}, "no axes"),
    ("reverse", {"results": ["int8[4]"]}, "result is"),
    ("pad", {"operands": ["int8[5]", "int8[1]"]}, "filler is"),
    ("pad", {"interior": (-1,)}, "interior padding is negative"),
    ("pad", {"low": ()}, "0 entries"),
    ("pad", {"results": ["int8[9,1]"]}, "result is"),
    ("concatenate", {"operands": [], "results": ["int8[2,4]"]}, "no operands"),
    ("concatenate", {"operands": ["int8[2,1]", "int8[3,3]"]}, "do not join"),
    ("concatenate", {"operands": ["int8[2,1]", "int16[2,3]"]}, "do not join"),
    ("concatenate", {"results": ["int8[2,5]"]}, "expected shape"),
    ("dynamic_slice", {"operands": []}, "no operands"),
    ("dynamic_slice", {"operands": ["int8[5,2]", "int32[]"]}, "1 start indices"),
    ("dynamic_slice", {"operands": ["int8[5,2]", "int32[]", "float32[]"]}, "start index"),
    ("dynamic_slice", {"results": ["int8[6,2]"]}, "does not fit"),
    ("dynamic_slice", {"results": ["int8[3]"]}, "no part of"),
    ("update", {"operands": ["int8[5]"]}, "no update"),
    ("update", {"operands": ["int8[5]", "int8[6]", "int32[]"]}, "does not fit"),
    ("update", {"results": ["int8[3]"]}, "result is"),
    ("gather", {"mode": "wrap"}, "mode is one of"),
    ("gather", {"fill_value": b""}, "not one element"),
    ("gather", {"operands": ["float32[6,4]", "float32[5,1]"]}, "indices are"),
    ("gather", {"slice_sizes": (1, 5)}, "do not fit"),
    ("gather", {"slice_sizes": (2, 4)}, "dropped dimension"),
    ("gather", {"start_index_map": (0, 1)}, "per index component"),
    ("gather", {"start_indices_batching_dims": (0,)}, "pairs with"),
    ("gather", {"offset_dims": ()}, "is not in"),
    ("gather", {"results": ["float32[6,4]"]}, "batch axes"),
    (
        "gather",
        {"operand_batching_dims": (0,), "start_indices_batching_dims": (0,)},
        "collapsed and batching",
    ),
    ("scatter", {"mode": "fill"}, "mode is one of"),
    ("scatter", {"op": "div"}, "op is one of"),
    ("scatter", {"operands": ["float32[6,4]", "int32[5,1]", "int32[5,4]"]}, "updates are"),
    ("scatter", {"operands": ["float32[6,4]", "int32[5,1]", "float32[5,5]"]}, "do not fit"),
    ("scatter", {"operands": ["float32[6,4]", "int32[4,1]", "float32[5,4]"]}, "batch axes"),
    ("scatter", {"operands": ["float32[6,4]", "bool[5,1]", "float32[5,4]"]}, "indices are"),
    ("scatter", {"inserted_window_dims": ()}, "do not match"),
    (
        "scatter",
        {"operand_batching_dims": (0,), "scatter_indices_batching_dims": (0,)},
        "inserted and batching",
    ),
    ("scatter", {"results": ["float32[6,5]"]}, "result is"),
    ("dot", {"operands": ["int8[2,3]", "int16[3,4]"]}, "operands are"),
    ("dot", {"operands": ["int64[2,3]", "int64[3,4]"]}, "narrower"),
    ("dot", {"results": ["float32[2,4]"]}, "the result is"),
    ("dot", {"operands": ["int8[2,3]", "int8[2,4]"]}, "contracted axes"),
    ("dot", {"lhs_batch": (1,)}, "batch and contracted"),
    ("dot", {"lhs_batch": (0,), "rhs_batch": (1,)}, "batch axes"),
    ("dot", {"results": ["int32[4,2]"]}, "expected shape"),
    ("conv", {"operands": ["float32[2,3,8]", "float32[4,3]"]}, "operands are"),
    ("conv", {"operands": ["float32[2,3,8]", "float32[4,2,3]"]}, "input features"),
    ("conv", {"feature_group_count": 0}, "at least 1"),
    ("conv", {"feature_group_count": 3, "batch_group_count": 2}, "either"),
    ("conv", {"operands": ["float32[2,9,8]", "float32[4,3,3]"], "feature_group_count": 3}, "output features"),
    (
        "conv",
        {"operands": ["float32[3,3,8]", "float32[4,3,3]"], "batch_group_count": 2},
        "batch is not divided",
    ),
    ("conv", {"lhs_spec": (0, 1)}, "every axis"),
    ("conv", {"padding": ((0, 1),)}, "expected"),
    ("conv", {"padding": ((0, 1, 2),)}, "integer pairs"),
    ("conv", {"padding": ()}, "has not 1 entries"),
    ("conv", {"window_strides": (0,)}, "below 1"),
    ("conv", {"results": ["float32[2,4]"]}, "result is"),
    ("reduce", {"op": "mean"}, "op is one of"),
    ("reduce", {"axes": ()}, "no axes"),
    ("reduce", {"op": "sum", "operands": ["bool[2,3]"], "results": ["bool[3]"]}, "does not take bool"),
    ("reduce", {"operands": ["float32[2,3]"], "results": ["float32[3]"]}, "does not take float32"),
    ("reduce", {"results": ["int8[2]"]}, "result is"),
    ("arg_reduce", {"op": "sum"}, "op is max or min"),
    ("arg_reduce", {"results": ["float32[2]"]}, "expected integers"),
    ("arg_reduce", {"operands": ["float32[2,0]"]}, "is empty"),
    ("arg_reduce", {"axis": 0}, "expected shape"),
    ("arg_reduce", {"operands": ["bool[2,3]"]}, "does not take bool"),
    ("cumulative", {"op": "and"}, "op is one of"),
    ("cumulative", {"reverse": 1}, "reverse is not a bool"),
    ("cumulative", {"axis": 2}, "no axis"),
    ("cumulative", {"operands": ["int8[2,3]"], "results": ["int8[2,3]"]}, "does not take int8"),
    ("sort", {"num_keys": 3}, "num_keys 3 of 2"),
    ("sort", {"operands": ["float32[3]", "int8[4]"]}, "differ in shape"),
    ("sort", {"results": ["float32[3]", "int16[3]"]}, "result is"),
    ("sort", {"results": ["float32[3]"]}, "has 1 results, not 2"),
    ("sort", {"operands": [], "results": []}, "no operands"),
    ("top_k", {"k": 4}, "k 4 of 3"),
    ("top_k", {"results": ["float32[2]", "int64[2]"]}, "result is"),
    ("top_k", {"results": ["float32[3]", "int32[2]"]}, "result is"),
    ("reduce_window", {"op": "and"}, "op is one of"),
    ("reduce_window", {"window": (0,)}, "below 1"),
    ("reduce_window", {"padding": ((1, 0),)}, "result is"),
    ("select_and_scatter_add", {"select": "gt"}, "select is ge or le"),
    ("select_and_scatter_add", {"operands": ["float32[3]", "float32[5]"]}, "source is"),
    ("select_and_scatter_add", {"results": ["float32[2]"]}, "result is"),
]


@pytest.mark.parametrize("case", BAD, ids=lambda case: f"{case[0]}-{case[2]}".replace(" ", "_"))
def test_wrong_types(case):
    name, changes, message = case
    kind, operands, results, attributes = GOOD[name]
    rest = {key: value for key, value in changes.items() if key not in ("operands", "results")}
    broken = one_operator(
        kind, changes.get("operands", operands), changes.get("results", results), attributes | rest
    )
    refuses(broken, f"{kind}: .*{message}")


def test_batching_dimensions_agree():
    numbers = {
        **GATHER,
        "collapsed_slice_dims": (),
        "operand_batching_dims": (0,),
        "offset_dims": (1,),
        "start_index_map": (),
        "start_indices_batching_dims": (0,),
    }
    verify(one_operator("gather", ["float32[6,4]", "int32[6,0]"], ["float32[6,4]"], numbers))
    broken = one_operator("gather", ["float32[6,4]", "int32[5,0]"], ["float32[5,4]"], numbers)
    refuses(broken, "batching dimensions differ in size")


def test_unsorted_window_dimensions():
    numbers = {**GATHER, "collapsed_slice_dims": (), "offset_dims": (2, 1)}
    refuses(one_operator("gather", ["float32[6,4]", "int32[5,1]"], ["float32[5,4,1]"], numbers), "not sorted")


def test_helpers_build_verified_programs():
    with pytest.raises(VerificationError):
        build(["int32[]"], lambda b, x: [b.emit("exp", (x,), "int32", ())])
