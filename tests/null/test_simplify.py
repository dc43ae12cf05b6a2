"""Simplification: every rewrite on the smallest program that shows it; random programs before and after."""

from __future__ import annotations

import numpy as np
import pytest

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.schedule.simplify.peephole import is_lossless
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.utask.arrays import numpy_dtype
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, StitchedUTask, UOperator, UProgram
from jax_cocktail.utask.types import FLOATS, ITEM_SIZE
from tests.null.programs import (
    branch,
    build,
    counted,
    elementwise,
    kinds,
    random_program,
    same_results,
    while_loop,
)

V = "float32[3]"


def check(parameters, body, expected: list[str]) -> UProgram:
    """Builds, simplifies, compares results and the operators that are left."""
    program = build(parameters, body)
    smaller = simplify(program)
    verify(smaller)
    same_results(program, smaller)
    assert kinds(smaller) == expected
    assert simplify(smaller) is smaller
    return smaller


def add(b, x, y):
    return elementwise(b, "add", x, y)


def test_returns_its_argument_when_nothing_changes():
    program = build([V, V], lambda b, x, y: [add(b, x, y)])
    assert simplify(program) is program


@pytest.mark.parametrize("seed", range(150))
def test_random_programs_keep_their_results(seed):
    program = random_program(seed)
    smaller = simplify(program)
    verify(smaller)
    assert smaller.entry.parameters == program.entry.parameters
    assert len(kinds(smaller)) <= len(kinds(program))
    for arguments in range(2):
        same_results(program, smaller, arguments)
    assert simplify(smaller) is smaller


# -- operators -----------------------------------------------------------------------------------------------
def test_dead_operators_go():
    check([V], lambda b, x: [add(b, x, add(b, x, x))] if add(b, x, x) is None else [x], [])


def test_equal_operators_are_shared_but_empty_arrays_are_not():
    def body(b, x):
        return [add(b, add(b, x, x), elementwise(b, "neg", add(b, x, x)))]

    check([V], body, ["add", "neg", "add"])
    program = build([], lambda b: [b.emit("empty", (), "float32", (3,)) for _ in range(2)])
    assert simplify(program) is program


def test_nested_regions_share_what_enclosing_ones_have():
    def body(b, x):
        outer = add(b, x, x)
        return [outer, *counted(b, 3, [x], lambda i, c: [add(b, c, add(b, x, x))])]

    check([V], body, ["add", "loop", "add"])


def test_siblings_do_not_share():
    def body(b, s, x):
        return branch(b, s, lambda: [add(b, x, x)], lambda: [elementwise(b, "neg", add(b, x, x))])

    check(["int32[]", V], body, ["branch", "add", "add", "neg"])


def test_constants_that_differ_in_sign_only_stay_apart():
    def body(b, x):
        return [elementwise(b, "atan2", b.full(0.0, "float32", (3,)), b.full(-0.0, "float32", (3,))), x]

    check([V], body, ["constant", "broadcast", "constant", "broadcast", "atan2"])


IDENTITIES = {
    "broadcast": ("float32[2,3]", {"dimensions": (0, 1)}),
    "reshape": ("float32[2,3]", {}),
    "transpose": ("float32[2,3]", {"permutation": (0, 1)}),
    "convert": ("float32[2,3]", {}),
    "slice": ("float32[2,3]", {"starts": (0, 0), "strides": (1, 1)}),
    "reverse": ("float32[1,3]", {"dimensions": (0,)}),
    "concatenate": ("float32[2,3]", {"dimension": 0}),
}


@pytest.mark.parametrize("kind", IDENTITIES)
def test_operators_without_effect_go(kind):
    text, attributes = IDENTITIES[kind]
    check([text], lambda b, x: [b.emit(kind, (x,), "float32", x.type.shape, **attributes)], [])


def test_pad_dynamic_slice_and_update_of_everything_go():
    def pad(b, x, fill):
        return [b.emit("pad", (x, fill), "float32", (3,), low=(0,), interior=(0,))]

    check([V, "float32[]"], pad, [])
    check([V, "int32[]"], lambda b, x, i: [b.emit("dynamic_slice", (x, i), "float32", (3,))], [])
    check(
        [V, V, "int32[]"], lambda b, x, u, i: [b.emit("dynamic_update_slice", (x, u, i), "float32", (3,))], []
    )
    nothing = ["float32[3]", "float32[0]", "int32[]"]
    check(nothing, lambda b, x, u, i: [b.emit("dynamic_update_slice", (x, u, i), "float32", (3,))], [])


def test_zeros_that_are_added_go():
    """Only zeros of the positive sign: XLA drops them, and with them the change of -0 to 0."""

    def zero(b, dtype="float32"):
        return b.full(0, dtype, (3,))

    check([V], lambda b, x: [add(b, x, zero(b))], [])
    check([V], lambda b, x: [add(b, zero(b), x)], [])
    check([V], lambda b, x: [elementwise(b, "sub", x, zero(b))], [])
    check(["int32[3]"], lambda b, x: [add(b, x, zero(b, "int32"))], [])
    check([V], lambda b, x: [elementwise(b, "sub", zero(b), x)], ["constant", "broadcast", "sub"])
    check([V], lambda b, x: [add(b, x, b.full(1, "float32", (3,)))], ["constant", "broadcast", "add"])


def test_transpose_that_moves_something_stays():
    def body(b, x):
        return [b.emit("transpose", (x,), "float32", (3, 3), permutation=(1, 0))]

    check(["float32[3,3]"], body, ["transpose"])
    check(
        ["float32[3,3]"],
        lambda b, x: [b.emit("broadcast", (x,), "float32", (3, 3), dimensions=(1, 0))],
        ["broadcast"],
    )


def test_pairs_of_movements_become_one():
    def reshapes(b, x):
        return [b.reshape(b.reshape(x, (3, 2)), (1, 6))]

    def transposes(b, x):
        y = b.emit("transpose", (x,), "float32", (4, 2, 3), permutation=(2, 0, 1))
        return [b.emit("transpose", (y,), "float32", (3, 4, 2), permutation=(2, 0, 1))]

    def slices(b, x):
        y = b.emit("slice", (x,), "float32", (4,), starts=(1,), strides=(2,))
        return [b.emit("slice", (y,), "float32", (2,), starts=(1,), strides=(2,))]

    def broadcasts(b, x):
        return [b.broadcast(b.broadcast(x, (2, 3), (1,)), (2, 4, 3), (0, 2))]

    check(["float32[6]"], reshapes, ["reshape"])
    check(["float32[2,3,4]"], transposes, ["transpose"])
    check(["float32[9]"], slices, ["slice"])
    check([V], broadcasts, ["broadcast"])
    check(["float32[2,3]"], lambda b, x: [b.reshape(b.reshape(x, (6,)), (2, 3))], [])


def test_reshaped_constants_are_constants():
    check([], lambda b: [b.reshape(b.constant([1, 2, 3, 4], "int32"), (2, 2))], ["constant"])


@pytest.mark.parametrize(
    "path",
    [
        ("int8", "int32", "int64", 1),
        ("int8", "int32", "uint8", 1),
        ("uint8", "float32", "float64", 1),
        ("int8", "float32", "uint8", 2),
        ("int8", "float32", "int16", 1),
        ("int32", "int8", "int32", 2),
        ("bfloat16", "float32", "bfloat16", 0),
        ("float32", "bfloat16", "float32", 2),
        ("bool", "int32", "bool", 0),
        ("float16", "float64", "int32", 1),
        ("int32", "float32", "float64", 2),
        ("uint8", "int8", "uint8", 2),
        ("bfloat16", "float16", "float32", 2),
        ("bool", "float32", "uint8", 1),
    ],
)
def test_conversions_in_a_row(path):
    source, middle, target, left = path
    check([f"{source}[4]"], lambda b, x: [b.convert(b.convert(x, middle), target)], ["convert"] * left)


def test_lossless_conversions_round_trip():
    """Against NumPy: extremes of the source survive the target exactly when `is_lossless` says so."""
    for source in ITEM_SIZE:
        for target in ITEM_SIZE:
            a, b = numpy_dtype(source), numpy_dtype(target)
            if "bool" in (source, target) or (source in FLOATS and target not in FLOATS):
                continue
            if source in FLOATS:
                values = np.array([1 + 2.0**-k for k in range(53)] + [2.0**k for k in range(-14, 127)])
                with np.errstate(all="ignore"):
                    values = values.astype(a)
            else:
                limits = np.iinfo(source)
                values = np.array([limits.min, limits.max, limits.max - 1, limits.max // 2 + 2], source)
            with np.errstate(all="ignore"):
                back = values.astype(b)
                pairs = zip(values, back, strict=True)
                kept = all(np.isfinite(float(y)) and int(x) == int(y) for x, y in pairs)
                if source in FLOATS:
                    kept = bool(np.array_equal(back.astype(np.float64), values.astype(np.float64)))
            assert kept == is_lossless(source, target), (source, target)


def test_slice_of_concatenate_inside_one_operand():
    def inside(b, x, y):
        pair = b.emit("concatenate", (x, y), "float32", (6,), dimension=0)
        return [b.emit("slice", (pair,), "float32", (2,), starts=(3,), strides=(2,))]

    def whole(b, x, y):
        pair = b.emit("concatenate", (x, y), "float32", (6,), dimension=0)
        return [b.emit("slice", (pair,), "float32", (3,), starts=(3,), strides=(1,))]

    def across(b, x, y):
        pair = b.emit("concatenate", (x, y), "float32", (6,), dimension=0)
        return [b.emit("slice", (pair,), "float32", (3,), starts=(2,), strides=(1,))]

    check([V, V], inside, ["slice"])
    check([V, V], whole, [])
    check([V, V], across, ["concatenate", "slice"])


def test_concatenate_drops_empty_operands():
    def body(b, x, y):
        return [b.emit("concatenate", (x, y, x), "float32", (6,), dimension=0)]

    smaller = check([V, "float32[0]"], body, ["concatenate"])
    assert len(smaller.entry.body[0].inputs) == 2


@pytest.mark.parametrize("flag", [True, False])
def test_select_by_a_constant(flag):
    def body(b, x, y):
        return [elementwise(b, "select", b.full(flag, "bool", (3,)), x, y)]

    smaller = check([V, V], body, [])
    assert smaller.entry.results == (smaller.entry.parameters[0 if flag else 1],)
    mixed = build(
        [V, V], lambda b, x, y: [elementwise(b, "select", b.constant([True, False, flag], "bool"), x, y)]
    )
    assert kinds(simplify(mixed)) == ["constant", "select"]


def test_select_between_equal_values():
    check(["bool[3]", V], lambda b, p, x: [elementwise(b, "select", p, x, x)], [])


def test_integer_constants_fold_and_float_ones_do_not():
    def integers(b):
        two = b.constant(2, "int32")
        return [elementwise(b, "sub", elementwise(b, "mul", two, two), b.constant(7, "int32"))]

    smaller = check([], integers, ["constant"])
    assert smaller.entry.body[0]["data"] == np.int32(-3).tobytes()
    check([], lambda b: [elementwise(b, "exp", b.constant(1.0, "float32"))], ["constant", "exp"])


# -- loops ---------------------------------------------------------------------------------------------------
def test_loop_of_no_trips_is_its_initial_value():
    check([V], lambda b, x: counted(b, 0, [x], lambda i, c: [add(b, c, c)]), [])


def test_loop_of_one_trip_is_its_body():
    def body(b, x):
        def step(i, c):
            return [elementwise(b, "mul", c, b.broadcast(b.convert(i, "float32"), (3,), ()))]

        return counted(b, 1, [x], step)

    check([V], body, ["constant", "convert", "broadcast", "mul"])


def test_nested_loops_of_one_trip():
    def body(b, x):
        return counted(b, 1, [x], lambda i, c: counted(b, 1, [c], lambda j, d: [add(b, d, x)]))

    check([V], body, ["add"])


def test_carries_that_never_change_become_the_outer_value():
    def body(b, x, w):
        return counted(b, 3, [x, w], lambda i, c, v: [add(b, c, v), v])

    smaller = check([V, V], body, ["loop", "add"])
    (loop,) = smaller.entry.body
    assert isinstance(loop, LoopUTask) and len(loop.initial) == 1
    assert smaller.entry.results[1] == smaller.entry.parameters[1]


def test_carry_that_is_set_to_its_initial_value_never_changes():
    check([V, V], lambda b, x, w: counted(b, 3, [x, w], lambda i, c, v: [add(b, c, v), w]), ["loop", "add"])


def test_invariant_carries_of_a_while_loop():
    def body(b, x, limit):
        def condition(n, c, top):
            return elementwise(b, "lt", n, top, dtype="bool")

        def step(n, c, top):
            return [add(b, n, b.constant(1, "int32")), add(b, c, c), top]

        return while_loop(b, [b.constant(0, "int32"), x, limit], condition, step)[1:2]

    smaller = check([V, "int32[]"], body, ["constant", "loop", "lt", "constant", "add", "add"])
    loop = smaller.entry.body[1]
    assert len(loop.initial) == 2 and len(loop.condition.parameters) == 2


def test_arrays_that_no_trip_reads_need_no_initial_value():
    def body(b, x, w):
        return counted(b, 3, [x, w], lambda i, c, d: [add(b, c, c), elementwise(b, "neg", c)])

    check([V, V], body, ["empty", "loop", "add", "neg"])


def test_what_every_trip_gives_to_a_carry_that_none_reads_is_the_outer_value():
    def body(b, x, w):
        outer = elementwise(b, "neg", w)
        return counted(b, 3, [x, x], lambda i, c, d: [add(b, c, w), outer])

    check([V, V], body, ["neg", "loop", "add"])


def test_carries_that_another_one_takes_keep_their_initial_value():
    check([V, V], lambda b, x, w: counted(b, 3, [x, w], lambda i, c, d: [d, add(b, c, c)]), ["loop", "add"])


def test_a_loop_that_may_have_no_trip_keeps_its_initial_values():
    def body(b, x, w):
        zero, one = b.constant(0, "int32"), b.constant(1, "int32")
        return while_loop(
            b,
            [zero, x, w],
            lambda n, c, d: elementwise(b, "lt", n, b.constant(3, "int32"), dtype="bool"),
            lambda n, c, d: [add(b, n, one), add(b, c, c), elementwise(b, "neg", c)],
        )[1:]

    smaller = simplify(build([V, V], body))
    assert "empty" not in kinds(smaller)


def test_dead_carries_go_even_when_they_feed_themselves():
    def body(b, x, y):
        return counted(b, 3, [x, y], lambda i, c, d: [add(b, c, c), add(b, d, c)])[:1]

    check([V, V], body, ["loop", "add"])

    def needed(b, x, y):
        return counted(b, 3, [x, y], lambda i, c, d: [add(b, c, c), add(b, d, c)])[1:]

    check([V, V], needed, ["loop", "add", "add"])


def test_carries_that_only_the_condition_reads_stay():
    def body(b, x):
        zero = b.constant(0, "int32")
        return while_loop(
            b,
            [zero, x],
            lambda n, c: elementwise(b, "lt", n, b.constant(4, "int32"), dtype="bool"),
            lambda n, c: [add(b, n, b.constant(1, "int32")), add(b, c, c)],
        )[1:]

    check([V], body, ["constant", "loop", "constant", "lt", "constant", "add", "add"])


def test_loop_without_live_output_goes():
    check([V], lambda b, x: [x] if counted(b, 3, [x], lambda i, c: [add(b, c, c)]) else [], [])


def test_equal_carries_merge():
    def body(b, x, w):
        return counted(b, 3, [x, x, w], lambda i, c, d, e: [add(b, c, w), add(b, d, w), add(b, e, d)])

    check([V, V], body, ["loop", "add", "add"])


def test_equal_carries_merge_in_a_while_loop():
    def body(b, x):
        one = b.constant(1, "int32")
        return while_loop(
            b,
            [b.constant(0, "int32"), b.constant(0, "int32"), x],
            lambda n, m, c: elementwise(b, "lt", m, b.constant(3, "int32"), dtype="bool"),
            lambda n, m, c: [add(b, n, one), add(b, m, one), add(b, c, c)],
        )

    smaller = check([V], body, ["constant", "constant", "loop", "constant", "lt", "add", "add"])
    assert len(smaller.entry.body[2].initial) == 2


def test_carries_that_start_alike_but_part_do_not_merge():
    def body(b, x, w):
        return counted(b, 3, [x, x], lambda i, c, d: [add(b, c, w), add(b, d, d)])

    check([V, V], body, ["loop", "add", "add"])


def test_carries_that_swap_merge_only_if_they_are_equal():
    check([V, V], lambda b, x, y: counted(b, 3, [x, y], lambda i, c, d: [d, c]), ["loop"])
    check([V], lambda b, x: counted(b, 3, [x, x], lambda i, c, d: [d, c]), [])


def test_two_arrays_that_start_empty_stay_two():
    def body(b, x):
        empties = [b.emit("empty", (), "float32", (4, 3)) for _ in range(2)]

        def step(i, *whole):
            zero = b.constant(0, "int64")
            row = b.reshape(x, (1, 3))
            return [b.emit("dynamic_update_slice", (w, row, i, zero), "float32", (4, 3)) for w in whole]

        return counted(b, 4, empties, step)

    program = build([V], body)
    (loop,) = [s for s in simplify(program).entry.body if isinstance(s, LoopUTask)]
    assert len(loop.initial) == 2


# -- branches ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("selector", [-5, 0, 1, 9])
def test_branch_by_a_constant_is_inlined_and_clamps(selector):
    def body(b, x):
        s = b.constant(selector, "int32")
        return branch(b, s, lambda: [elementwise(b, "neg", x)], lambda: [add(b, x, x)])

    check([V], body, ["neg" if selector <= 0 else "add"])


def test_branch_by_a_converted_constant_is_inlined():
    def body(b, x):
        s = b.convert(b.constant(True, "bool"), "int32")
        return branch(b, s, lambda: [elementwise(b, "neg", x)], lambda: [x])

    check([V], body, [])


def test_branch_with_one_region_is_inlined():
    check(["int32[]", V], lambda b, s, x: branch(b, s, lambda: [add(b, x, x)]), ["add"])


def test_branch_outputs_that_are_one_outer_value():
    def body(b, s, x):
        return branch(b, s, lambda: [x, add(b, x, x)], lambda: [x, elementwise(b, "neg", x)])

    smaller = check(["int32[]", V], body, ["branch", "add", "neg"])
    assert isinstance(smaller.entry.body[0], BranchUTask) and len(smaller.entry.body[0].outputs) == 1
    check(["int32[]", V], lambda b, s, x: branch(b, s, lambda: [x], lambda: [x]), [])


def test_equal_branch_outputs_merge_and_dead_ones_go():
    def double(b, x):
        y = add(b, x, x)
        return [y, y, elementwise(b, "neg", y)]

    def body(b, s, x):
        return branch(b, s, lambda: double(b, x), lambda: [x, x, add(b, x, x)])[:2]

    smaller = check(["int32[]", V], body, ["branch", "add"])
    assert len(smaller.entry.body[0].outputs) == 1


def test_groups_are_handed_on_with_their_new_operands():
    def body(b, x):
        copy = b.emit("reshape", (x,), "float32", (3,))
        return [copy]

    program = build([V], body)
    (x,), (copy,) = program.entry.parameters, program.entry.results
    result = type(x)(77, x.type)
    member = UOperator("neg", (copy,), (result,))
    group = StitchedUTask((member,), (copy,), (result,))
    entry = type(program.entry)((x,), (*program.entry.body, group), (result,))
    smaller = simplify(UProgram("groups", entry))
    verify(smaller)
    (only,) = smaller.entry.body
    assert only.inputs == (x,) and only.members[0].inputs == (x,)
