"""Element operators move to merged axes: which, and with the same results."""

from __future__ import annotations

import numpy as np
import pytest

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.compiler import transform
from jax_cocktail.device.nvidia import H200
from jax_cocktail.device.tuning import COLLAPSE
from jax_cocktail.passes import passes
from jax_cocktail.stitch.collapse_axes import collapse_axes
from jax_cocktail.utask.candidate import SINGLE
from jax_cocktail.utask.ir import StitchedUTask, UProgram, operators_in, walk
from jax_cocktail.utask.operators import ELEMENTWISE
from tests.null.programs import Body, arguments, build, counted, elementwise, matmul
from tests.oracle.interpreter.run import run

ROWS, GROUPS, LENGTH = 48, 4, 6
WIDE, DEEP = (ROWS, GROUPS * LENGTH), (ROWS, GROUPS, LENGTH)
X, GROUPED, VECTOR = "float32[48,24]", "float32[48,4,6]", "float32[4]"


def grouped(b, x):
    return b.reshape(x, DEEP)


def merged(b, x):
    return b.reshape(x, WIDE)


def reduced(b, x, axes=(0, 2), op="sum"):
    kept = [n for d, n in enumerate(x.type.shape) if d not in axes]
    return b.emit("reduce", (x,), x.type.dtype, kept, axes=axes, op=op)


def centred(b, g):
    return b.binary("sub", g, b.broadcast(reduced(b, g), DEEP, (1,)))


def group_norm(b, x, scale):
    distance = centred(b, grouped(b, x))
    deviation = elementwise(b, "sqrt", reduced(b, b.binary("mul", distance, distance)))
    normal = b.binary("div", distance, b.broadcast(deviation, DEEP, (1,)))
    return (b.binary("mul", merged(b, normal), b.broadcast(scale, WIDE, (1,))),)


def elements(program: UProgram) -> set[tuple[int, ...]]:
    """The shapes of arrays that element-wise operators compute, but for small ones."""
    shapes = (o.output.type for o in operators_in(program.entry) if o.kind in ELEMENTWISE)
    return {type_.shape for type_ in shapes if type_.size >= ROWS * GROUPS}


def reductions(program: UProgram) -> list[tuple[int, ...]]:
    """The shape of the operand of each reduction."""
    return [o.inputs[0].type.shape for o in operators_in(program.entry) if o.kind == "reduce"]


def same_results(program: UProgram, found: UProgram) -> None:
    verify(found)
    values = arguments(program)
    for expected, result in zip(run(program, values), run(found, values), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_a_group_norm_is_computed_on_rows():
    program = build([X, "float32[24]"], group_norm)
    found = collapse_axes(program)
    same_results(program, found)
    assert elements(found) == {WIDE}
    assert reductions(found) == [WIDE, (GROUPS, LENGTH)] * 2
    groups = [s for s in walk(transform(found).entry) if isinstance(s, StitchedUTask)]
    assert sum(_is_large(group) for group in groups) == 3  # passes: two reductions, and the result


def _is_large(group: StitchedUTask) -> bool:
    return any(value.type.shape == WIDE for value in (*group.inputs, *group.outputs))


def test_cores_alone_gain():
    names = {name for name, _ in passes(SINGLE, machine=machine_of(H200))}
    assert "collapse_axes" not in names and "collapse_axes" in {name for name, _ in passes(SINGLE)}


# -- what moves ----------------------------------------------------------------------------------------------
def table(b, x, v):
    return (merged(b, b.binary("add", grouped(b, x), b.broadcast(v, DEEP, (1,)))),)


def inner_table(b, x, v):
    spread = b.broadcast(b.slice(v, (0,), (1,)), (LENGTH,), (0,))
    return (merged(b, b.binary("add", grouped(b, x), b.broadcast(spread, DEEP, (2,)))),)


def of_each_row(b, x, v):
    row = reduced(b, grouped(b, x), (1, 2), "max")
    return (merged(b, b.binary("add", grouped(b, x), b.broadcast(row, DEEP, (0,)))),)


def flat(b, x, v):
    stored = b.reshape(reduced(b, x, (1,)), (ROWS // 8, 2, 4))
    return (b.reshape(b.binary("mul", stored, stored), (ROWS // 8, 8)),)


def whole_groups(b, x, v):
    all_of_them = b.broadcast(reduced(b, grouped(b, x), (0,), "max"), DEEP, (1, 2))
    return (merged(b, b.binary("add", grouped(b, x), all_of_them)),)


def chain(b, x, v):
    y = elementwise(b, "tanh", centred(b, grouped(b, x)))
    y = b.select(b.compare("lt", y, b.full(0.5, "float32", DEEP)), b.binary("mul", y, y), y)
    return (merged(b, elementwise(b, "convert", y, dtype="float64")),)


def all_users_move(b, x, v):
    y = elementwise(b, "exp", grouped(b, x))
    return merged(b, b.binary("mul", y, y)), reduced(b, y)


def unit_axes(b, x, v):
    g = b.reshape(x, (1, ROWS, 1, GROUPS, 1, LENGTH))
    y = elementwise(b, "exp", b.binary("mul", g, g))
    return b.reshape(y, (ROWS, 1, GROUPS * LENGTH)), reduced(b, g, (1, 5), "max")


def test_the_axes_of_a_broadcast_may_change_places():
    def body(b, x, v):
        turned = b.broadcast(b.reshape(v, (4, 4, 1)), (4, 4, 16), (1, 0, 2))
        return (b.reshape(b.binary("add", b.reshape(x, (4, 4, 16)), turned), (16, 16)),)

    program = build(["float32[16,16]", "float32[16]"], body)
    same_results(program, collapse_axes(program))


MOVES = {
    "table": table,
    "inner_table": inner_table,
    "of_each_row": of_each_row,
    "whole_groups": whole_groups,
    "chain": chain,
    "all_users_move": all_users_move,
}


@pytest.mark.parametrize("name", MOVES)
def test_element_operators_move(name):
    program = build([X, VECTOR], MOVES[name])
    found = collapse_axes(program)
    same_results(program, found)
    assert elements(found) == {WIDE}
    assert collapse_axes(found) is found


def test_an_array_in_memory_has_any_shape():
    program = build([X, VECTOR], flat)
    found = collapse_axes(program)
    same_results(program, found)
    assert [o.output.type.shape for o in operators_in(found.entry) if o.kind == "mul"] == [(ROWS // 8, 8)]


def test_a_reshape_may_also_divide():
    def body(b, x):
        y = elementwise(b, "exp", b.reshape(x, DEEP))
        return b.reshape(y, (6, 8, GROUPS * LENGTH)), reduced(b, y)

    program = build(["float32[8,6,24]"], body)
    found = collapse_axes(program)
    same_results(program, found)
    assert elements(found) == {WIDE}


def test_unit_axes_do_not_count():
    program = build([X, VECTOR], unit_axes)
    found = collapse_axes(program)
    same_results(program, found)
    assert {tuple(n for n in shape if n != 1) for shape in elements(found)} == {WIDE}


def test_long_chains_are_followed_at_once():
    def body(b, x):
        first = x = b.binary("mul", x, x)
        for _ in range(3000):
            x = b.binary("mul", x, x)
        return merged(b, first), reduced(b, x)

    program = build([GROUPED], body)
    assert collapse_axes(program) is program


def test_it_moves_in_a_loop():
    def body(b, x, v):
        return counted(b, 3, [x], lambda _, carried: table(b, carried, v))

    program = build([X, VECTOR], body)
    found = collapse_axes(program)
    same_results(program, found)
    assert elements(found) == {WIDE}


OPS = {"sum": "float32", "prod": "float64", "max": "float16", "min": "int32", "or": "uint8", "xor": "int64"}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("shape", "axes"), [((40, 3, 7), (0, 2)), ((3, 5, 16, 9, 2, 2), (1, 2, 4, 5)), ((17, 2, 4, 6), (0, 3))]
)
def test_reductions_of_groups_give_the_same(op, shape, axes):
    text = f"{OPS[op]}[{','.join(map(str, shape))}]"
    program = build([text], lambda b, x: (reduced(b, x, axes, op),))
    found = collapse_axes(program)
    assert found is not program
    verify(found)
    (x,) = arguments(program)
    x = (1 + x / 10000).astype(x.dtype) if op == "prod" else x
    for expected, result in zip(run(program, [x]), run(found, [x]), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_sums_are_rounded_once(dtype):
    program = build([f"{dtype}[48,4,6]"], lambda b, x: (reduced(b, x),))
    found = [o for o in operators_in(collapse_axes(program).entry) if o.kind == "reduce"]
    assert [o.output.type.dtype for o in found] == ["float32", "float64"]


# -- random programs -----------------------------------------------------------------------------------------
def operand(b, random, x, v, w):
    """On divided axes."""
    deep, choice = x.type.shape, random.integers(5)
    if choice == 0:
        return b.full(0.5, "float32", deep)
    if choice == 1:
        return b.broadcast(b.reshape(v, (deep[1], 1)), deep, (1, 3))
    if choice == 2:
        return b.broadcast(w, deep, tuple(int(d) for d in random.permutation([1, 2])))
    if choice == 3:
        axes = tuple(sorted(int(d) for d in random.choice(4, random.integers(1, 4), replace=False)))
        y = reduced(b, b.binary("mul", x, x), axes, "max")
        return b.broadcast(y, deep, tuple(d for d in range(4) if d not in axes))
    return x


def random_groups(seed):
    """A chain of element operators on groups, which reshapes and reductions read at several places."""
    random = np.random.default_rng(seed)
    rows, groups, length = 16 * int(random.integers(1, 3)), int(random.integers(2, 5)), 6

    def body(b, x, v, w):
        y = z = b.reshape(x, (rows, groups, groups, length))
        results = []
        for _ in range(int(random.integers(2, 7))):
            kind = random.choice(["add", "sub", "max", "min", "mul"])
            other = z if random.integers(3) == 0 else operand(b, random, z, v, w)
            y, z = b.binary(str(kind), y, other), y
            if random.integers(4) == 0:
                y = elementwise(b, "tanh", y)
            if random.integers(4) == 0:
                axes = tuple(sorted(int(d) for d in random.choice(4, random.integers(1, 4), replace=False)))
                results.append(reduced(b, y, axes))
        shapes = [(rows, groups * groups * length), (rows * groups, 1, groups * length)]
        shapes += [(rows, groups, groups * length), (4, rows // 4 * groups, groups, length)]
        return [*results, b.reshape(y, shapes[random.integers(4)])]

    elements = rows * groups * groups * length
    return build([f"float32[{elements}]", f"float32[{groups}]", f"float32[{groups},{groups}]"], body)


@pytest.mark.parametrize("seed", range(40))
def test_random_groups_give_the_same(seed):
    program = random_groups(seed)
    same_results(program, collapse_axes(program))


# -- what stays ----------------------------------------------------------------------------------------------
def large_table(b, x):
    row = reduced(b, x, (2,), "max")
    return (merged(b, b.binary("sub", x, b.broadcast(row, DEEP, (0, 1)))),)


def computed_by_a_view(b, x):
    y = b.transpose(b.reshape(x, (GROUPS, ROWS, LENGTH)), (1, 0, 2))
    return (merged(b, b.binary("mul", y, y)),)


def no_arithmetic(b, x):
    return (merged(b, x),)


def also_a_result(b, x):
    y = elementwise(b, "exp", x)
    return y, merged(b, y), reduced(b, y)


def also_a_row(b, x):
    """A reduction along rows shares its pass with what is stored."""
    y = elementwise(b, "exp", x)
    return reduced(b, y, (2,)), merged(b, b.binary("mul", y, y))


def a_product_reads_it(b, x):
    """It has to be stored before the reshape or behind it."""
    y = merged(b, elementwise(b, "exp", x))
    return (matmul(b, y, b.reshape(y, (GROUPS * LENGTH, ROWS))),)


def long_chain(b, x):
    for _ in range(3000):
        x = b.binary("mul", x, x)
    return (merged(b, x),)


def other_axes(b, x):
    return reduced(b, x, (2,)), reduced(b, x, (0,)), reduced(b, x, (0, 1, 2)), reduced(b, x, (0, 1))


STAYS: dict[str, Body] = {
    "large_table": large_table,
    "computed_by_a_view": computed_by_a_view,
    "no_arithmetic": no_arithmetic,
    "also_a_result": also_a_result,
    "also_a_row": also_a_row,
    "a_product_reads_it": a_product_reads_it,
    "long_chain": long_chain,
    "other_axes": other_axes,
}


@pytest.mark.parametrize("name", STAYS)
def test_the_rest_stays(name):
    program = build([GROUPED], STAYS[name])
    assert collapse_axes(program) is program


@pytest.mark.parametrize(
    "shape",
    [
        (COLLAPSE.rows - 1, GROUPS, LENGTH),  # few rows
        (ROWS, GROUPS, COLLAPSE.group + 1),  # long groups
        (ROWS, 1, LENGTH),  # no other axis to merge with
        (ROWS, 2, COLLAPSE.width // 2 - 1),  # short rows
        (ROWS, GROUPS, 0),
    ],
)
def test_reductions_of_other_groups_stay(shape):
    program = build([f"float32[{','.join(map(str, shape))}]"], lambda b, x: (reduced(b, x),))
    assert collapse_axes(program) is program


def test_reductions_of_bools_stay():
    program = build(["bool[48,4,6]"], lambda b, x: (reduced(b, x, op="or"),))
    assert collapse_axes(program) is program
