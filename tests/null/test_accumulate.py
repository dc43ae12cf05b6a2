"""Sums over the steps of a loop become one product: what leaves, what stays, and that results keep."""

from __future__ import annotations

import numpy as np
import pytest

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.device.tuning import LoopTuning
from jax_cocktail.schedule.loops.concat_gates import concat_gates
from jax_cocktail.schedule.loops.distribution.distribute import distribute
from jax_cocktail.schedule.simplify.canonicalise import canonicalise
from jax_cocktail.schedule.simplify.hoist import hoist
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.utask.ir import LoopUTask, UOperator, walk
from tests.null.programs import arguments, build, counted, elementwise, matmul, while_loop
from tests.oracle.interpreter.run import run

ALWAYS = LoopTuning(flops=0, trips=2)
STEPS, BATCH, WIDE, OUT = 6, 3, 8, 4
PARAMETERS = [f"float32[{STEPS},{BATCH},{WIDE}]", f"float32[{STEPS},{BATCH},{OUT}]", f"float32[{WIDE},{OUT}]"]


def operators(region, kind):
    return [s for s in walk(region) if isinstance(s, UOperator) and s.kind == kind]


def loops(program):
    return [s for s in program.entry.body if isinstance(s, LoopUTask)]


def row(b, array, index):
    zero = b.constant(0, "int64")
    shape = (1, *array.type.shape[1:])
    starts = (index, *(zero for _ in shape[1:]))
    return b.reshape(b.emit("dynamic_slice", (array, *starts), array.type.dtype, shape), shape[1:])


def add(b, x, y):
    return elementwise(b, "add", x, y)


def outer(b, x, g, dtype=""):
    """x^T g, summed over the first axis."""
    shape = (*x.type.shape[1:], *g.type.shape[1:])
    axes = {"lhs_batch": (), "lhs_contract": (0,), "rhs_batch": (), "rhs_contract": (0,)}
    return b.emit("dot", (x, g), dtype or x.type.dtype, shape, **axes)


def total(b, x, axis=0):
    shape = tuple(n for d, n in enumerate(x.type.shape) if d != axis)
    return b.emit("reduce", (x,), x.type.dtype, shape, axes=(axis,), op="sum")


def place(b, index, backward, steps=STEPS):
    return elementwise(b, "sub", b.constant(steps - 1, "int64"), index) if backward else index


def divided(parameters, body, limits=ALWAYS, exact=False):
    """The distributed program, whose results are those of the original."""
    program = build(parameters, body)
    after = simplify(distribute(hoist(simplify(program)), limits))
    verify(after)
    inputs = arguments(program)
    for x, y in zip(run(after, inputs), run(program, inputs), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(
            np.float64(x), np.float64(y), rtol=0 if exact else 1e-4, atol=0 if exact else 1e-4
        )
    return after


def backward_pass(backward=True, steps=STEPS, bias=True, start=None):
    """The gradient of a layer: a recurrence on dh, whose g the gradients of weights and bias take up."""

    def body(b, xs, gs, w, *rest):
        zero = b.full(0.0, "float32", (WIDE, OUT))
        first = [rest[0] if rest else zero, b.full(0.0, "float32", (BATCH, WIDE))]
        first += [b.full(0.0, "float32", (OUT,))] if bias else []

        def step(i, dw, h, *db):
            t = place(b, i, backward, steps)
            x, y = row(b, xs, t), row(b, gs, t)
            g = elementwise(b, "tanh", add(b, y, matmul(b, h, w)))
            axes = {"lhs_batch": (), "lhs_contract": (1,), "rhs_batch": (), "rhs_contract": (1,)}
            back = b.emit("dot", (g, w), "float32", (BATCH, WIDE), **axes)
            return (add(b, dw, outer(b, x, g)), back, *(add(b, old, total(b, g)) for old in db))

        return counted(b, steps, first, step)

    shapes = [f"float32[{steps},{BATCH},{WIDE}]", f"float32[{steps},{BATCH},{OUT}]", PARAMETERS[2]]
    return [*shapes, *([start] if start else [])], body


@pytest.mark.parametrize("backward", [False, True])
def test_one_product_behind_the_loop(backward):
    after = divided(*backward_pass(backward))
    (loop,) = loops(after)
    assert [v.type.shape for v in loop.carried] == [(BATCH, WIDE), (STEPS, BATCH, OUT)]
    behind = [s for s in after.entry.body if isinstance(s, UOperator) and s.kind == "dot"]
    (dot,) = behind
    assert dot.inputs[0] == after.entry.parameters[0]  # rows of an array are the array: no copy
    assert dot.ints("lhs_contract") == dot.ints("rhs_contract") == (0, 1)
    assert len(operators(loop.body, "dot")) == 2
    assert not operators(loop.body, "reduce")


def test_zeros_are_not_added_and_other_beginnings_are():
    parameters, body = backward_pass(bias=False)
    count = len(operators(divided(parameters, body).entry, "add"))
    parameters, body = backward_pass(bias=False, start=PARAMETERS[2])
    assert len(operators(divided(parameters, body).entry, "add")) == count + 1


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("steps", "most"), [(12, 4), (13, 5), (11, 5)])
def test_strips(backward, steps, most):
    kept = BATCH * OUT * 4 * most
    parameters, body = backward_pass(backward, steps=steps)
    after = divided(parameters, body, LoopTuning(flops=0, trips=2, strip_bytes=kept))
    strips = loops(after)[0]
    (inner,) = (s for s in strips.body.body if isinstance(s, LoopUTask))
    assert inner.trip_count <= most
    assert not any(v.type.shape == (WIDE, OUT) for v in inner.carried)
    assert any(v.type.shape == (WIDE, OUT) for v in strips.carried)


def sums(term, result=f"float32[{WIDE},{OUT}]", dtype="float32"):
    """Adds up a term of two rows per step."""

    def body(b, xs, gs, *rest):
        shape = tuple(int(n) for n in result.partition("[")[2].rstrip("]").split(",") if n)
        first = b.full(0, result.partition("[")[0], shape)
        return counted(b, STEPS, [first], lambda i, c: (add(b, c, term(b, row(b, xs, i), row(b, gs, i))),))

    return [p.replace("float32", dtype) for p in PARAMETERS[:2]], body


def turned(b, x, shape, *order):
    return b.emit("transpose", (x,), x.type.dtype, shape, permutation=order)


def padded(b, x, fill):
    shape = (x.type.shape[0] + 2, x.type.shape[1])
    zero = b.constant(fill, x.type.dtype)
    return b.emit("pad", (x, zero), x.type.dtype, shape, low=(1, 0), interior=(0, 0))


LINEAR = {
    "product": sums(outer),
    "transposed": sums(lambda b, x, g: turned(b, outer(b, g, x), (WIDE, OUT), 1, 0)),
    "reshaped": sums(lambda b, x, g: b.reshape(outer(b, x, g), (OUT, WIDE)), f"float32[{OUT},{WIDE}]"),
    "padded": sums(lambda b, x, g: padded(b, outer(b, x, g), 0.0), f"float32[{WIDE + 2},{OUT}]"),
    "twice": sums(lambda b, x, g: add(b, outer(b, x, g), turned(b, outer(b, g, x), (WIDE, OUT), 1, 0))),
    "reduced": sums(lambda b, x, g: total(b, outer(b, x, g)), f"float32[{OUT}]"),
    "negative": sums(lambda b, x, g: elementwise(b, "neg", outer(b, x, g))),
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_functions_of_products_leave(name):
    after = divided(*LINEAR[name])
    assert not loops(after)
    assert len(operators(after.entry, "dot")) == 1
    assert not operators(after.entry, "transpose")


def _read_by_the_body(b, xs, gs):
    def step(i, c, seen):
        c = add(b, c, outer(b, row(b, xs, i), row(b, gs, i)))
        return c, add(b, seen, total(b, c))

    first = [b.full(0.0, "float32", (WIDE, OUT)), b.full(0.0, "float32", (OUT,))]
    return counted(b, STEPS, first, step)


STAYS = {
    "not linear": sums(lambda b, x, g: elementwise(b, "tanh", outer(b, x, g))),
    "padded with ones": sums(lambda b, x, g: padded(b, outer(b, x, g), 1.0), f"float32[{WIDE + 2},{OUT}]"),
    "read by the body": (PARAMETERS[:2], _read_by_the_body),
    "elements": sums(lambda b, x, g: g, f"float32[{BATCH},{OUT}]"),
    "reduction alone": sums(lambda b, x, g: total(b, g), f"float32[{OUT}]"),
    "integers made wider": sums(
        lambda b, x, g: b.convert(outer(b, x, g), "int32"), f"int32[{WIDE},{OUT}]", "int8"
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_is_no_sum_of_products_stays(name):
    parameters, body = STAYS[name]
    program = hoist(simplify(build(parameters, body)))
    assert distribute(program, ALWAYS) is program


def test_products_of_few_operations_stay():
    program = hoist(simplify(build(*LINEAR["product"])))
    flops = 2 * BATCH * WIDE * OUT
    assert distribute(program, LoopTuning(flops=flops + 1, trips=2)) is program
    assert distribute(program, LoopTuning(flops=flops, trips=2)) is not program


@pytest.mark.parametrize(("rows", "leaves"), [(WIDE, True), (WIDE + 1, False)])
def test_no_more_is_kept_than_the_sum_holds(rows, leaves):
    """What a step would have to keep for the product, `rows` of OUT numbers, against the sum of WIDE rows."""

    def body(b, xs, gs, w):
        def step(i, c, h):
            g = elementwise(b, "tanh", matmul(b, h, w))
            return add(b, c, outer(b, row(b, xs, i), g)), add(b, row(b, gs, i), g)

        return counted(
            b, STEPS, [b.full(0.0, "float32", (WIDE, OUT)), b.full(0.0, "float32", (rows, OUT))], step
        )

    shapes = [f"float32[{STEPS},{rows},{WIDE}]", f"float32[{STEPS},{rows},{OUT}]", f"float32[{OUT},{OUT}]"]
    program = hoist(simplify(build(shapes, body)))
    assert (distribute(program, ALWAYS) is not program) == leaves
    divided(shapes, body)


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint16", "int64"])
def test_integers_are_exact(dtype):
    parameters, body = sums(outer, f"{dtype}[{WIDE},{OUT}]", dtype)
    assert not loops(divided(parameters, body, exact=True))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_floats_are_summed_as_wide_ones(dtype):
    parameters, body = sums(outer, f"{dtype}[{WIDE},{OUT}]", dtype)
    program = build(parameters, body)
    after = simplify(distribute(hoist(simplify(program)), ALWAYS))
    (dot,) = operators(after.entry, "dot")
    assert dot.output.type.dtype == "float32" and len(operators(after.entry, "convert")) == 1
    inputs = arguments(program)
    exact = np.einsum("tbi,tbj->ij", *(np.float64(x) for x in inputs))
    mine, other = (np.abs(np.float64(run(p, inputs)[0]) - exact).max() for p in (after, program))
    assert mine <= other


def test_a_product_of_narrow_floats_that_is_made_wider_is_not_rounded():
    parameters, body = sums(
        lambda b, x, g: b.convert(outer(b, x, g), "float32"), f"float32[{WIDE},{OUT}]", "bfloat16"
    )
    after = simplify(distribute(hoist(simplify(build(parameters, body))), ALWAYS))
    (dot,) = operators(after.entry, "dot")
    assert dot.output.type.dtype == "float32" and not operators(after.entry, "convert")


def test_a_while_loop_adds_chunk_by_chunk():
    def body(b, xs, gs, n):
        def step(i, c):
            t = b.convert(i, "int64")
            one = b.constant(1, "int32")
            return elementwise(b, "add", i, one), add(b, c, outer(b, row(b, xs, t), row(b, gs, t)))

        first = [b.constant(0, "int32"), b.full(0.0, "float32", (WIDE, OUT))]
        return while_loop(b, first, lambda i, c: elementwise(b, "lt", i, n, dtype="bool"), step)

    parameters = [f"float32[20,1,{WIDE}]", f"float32[20,1,{OUT}]", "int32[]"]
    program = build(parameters, body)
    after = simplify(distribute(hoist(simplify(program)), LoopTuning(flops=0, trips=2, chunk=4)))
    verify(after)
    chunks, rest = loops(after)
    (dot,) = (s for s in chunks.body.body if isinstance(s, UOperator) and s.kind == "dot")
    assert dot.inputs[0].type.shape == (4, 1, WIDE)
    for n in (0, 3, 4, 18):
        inputs = [*arguments(program)[:2], np.int32(n)]
        for x, y in zip(run(after, inputs), run(program, inputs), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backward", [False, True])
def test_rows_of_a_product_are_not_copied(backward):
    """The result that takes up a batched product row by row is that product."""

    def body(b, xs, w):
        first = b.emit("empty", (), "float32", (STEPS, BATCH, OUT))

        def step(i, ys):
            t, zero = place(b, i, backward), b.constant(0, "int64")
            y = b.reshape(matmul(b, row(b, xs, t), w), (1, BATCH, OUT))
            return (b.emit("dynamic_update_slice", (ys, y, t, zero, zero), "float32", (STEPS, BATCH, OUT)),)

        return counted(b, STEPS, [first], step)

    after = divided([PARAMETERS[0], PARAMETERS[2]], body)
    assert [s.kind for s in after.entry.body] == ["dot"]
    limits = LoopTuning(flops=0, trips=2, strip_bytes=2 * BATCH * OUT * 4)
    divided([PARAMETERS[0], PARAMETERS[2]], body, limits)


# -- canonical products --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("lhs", "rhs", "attributes", "moves"),
    [
        ((6, 3, 8), (6, 3, 4), ((), (0, 1), (), (0, 1)), 0),
        ((6, 3, 8), (6, 3, 4), ((), (1, 0), (), (1, 0)), 0),
        ((6, 1, 8), (6, 1, 4), ((), (0, 1), (), (0, 1)), 0),
        ((8, 6, 3), (6, 3, 4), ((), (1, 2), (), (0, 1)), 0),
        ((6, 2, 3, 8), (6, 2, 3, 4), ((1,), (0, 2), (1,), (0, 2)), 2),
        ((6, 3, 8), (3, 6, 4), ((), (0, 1), (), (1, 0)), 1),
        ((6, 3, 2, 8), (2, 6, 3, 4), ((2,), (0, 1), (0,), (1, 2)), 0),
    ],
)
def test_neighbouring_axes_are_summed_without_moving(lhs, rhs, attributes, moves):
    names = ("lhs_batch", "lhs_contract", "rhs_batch", "rhs_contract")
    axes = dict(zip(names, attributes, strict=True))
    taken = {side: {*axes[f"{side}_batch"], *axes[f"{side}_contract"]} for side in ("lhs", "rhs")}
    shape = [lhs[d] for d in axes["lhs_batch"]]
    shape += [n for d, n in enumerate(lhs) if d not in taken["lhs"]]
    shape += [n for d, n in enumerate(rhs) if d not in taken["rhs"]]
    types = [f"float32[{','.join(map(str, s))}]" for s in (lhs, rhs)]
    program = build(types, lambda b, x, y: (b.emit("dot", (x, y), "float32", tuple(shape), **axes),))
    after = canonicalise(program)
    verify(after)
    (dot,) = operators(after.entry, "dot")
    assert len(dot.ints("lhs_contract")) == 1
    assert len(operators(after.entry, "transpose")) == moves
    inputs = arguments(program)
    np.testing.assert_allclose(run(after, inputs)[0], run(program, inputs)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("lhs", "rhs", "result", "attributes"),
    [
        ((3, 1), (1, 4), (3, 4), ((), (1,), (), (0,))),
        ((1,), (1,), (), ((), (0,), (), (0,))),
        ((3,), (4,), (3, 4), ((), (), (), ())),
        ((4, 1, 5), (5, 3, 1), (5, 4, 3), ((2,), (1,), (0,), (2,))),
        ((3, 1, 1), (1, 3, 4, 1), (3, 4), ((0,), (1, 2), (1,), (3, 0))),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_a_product_of_one_term_is_a_multiplication(lhs, rhs, result, attributes, dtype):
    """It keeps a negative zero, which a sum that starts at zero would not."""
    names = ("lhs_batch", "lhs_contract", "rhs_batch", "rhs_contract")
    axes = dict(zip(names, attributes, strict=True))
    types = [f"{dtype}[{','.join(map(str, s))}]" for s in (lhs, rhs)]
    program = build(types, lambda b, x, y: (b.emit("dot", (x, y), dtype, result, **axes),))
    after = canonicalise(program)
    verify(after)
    assert operators(after.entry, "mul") and not operators(after.entry, "dot")
    inputs = arguments(program)
    np.testing.assert_array_equal(run(after, inputs)[0], run(program, inputs)[0])
    if dtype == "float32":
        zeros = [np.zeros(lhs, np.float32), -np.ones(rhs, np.float32)]
        assert np.signbit(run(after, zeros)[0]).all()


@pytest.mark.parametrize(
    ("dtypes", "lhs", "rhs", "order", "kind"),
    [
        (("float32", "float32"), (6, 40), (6, 40), (0, 1), "reduce"),
        (("float64", "float64"), (40,), (40,), (0,), "reduce"),
        (("float32", "float32"), (40, 40), (40, 40), (1, 0), "dot"),  # a transposed array is read in tiles
        (("bfloat16", "float32"), (40,), (40,), (0,), "dot"),
        (("int32", "int32"), (40,), (40,), (0,), "dot"),
    ],
)
def test_an_inner_product_is_a_reduction(dtypes, lhs, rhs, order, kind):
    axes = {"lhs_contract": tuple(range(len(lhs))), "rhs_contract": order, "lhs_batch": (), "rhs_batch": ()}
    types = [f"{dtypes[0]}[{','.join(map(str, s))}]" for s in (lhs, rhs)]
    program = build(types, lambda b, x, y: (b.emit("dot", (x, y), dtypes[1], (), **axes),))
    after = canonicalise(program)
    verify(after)
    assert after.entry.body[-1].kind == kind
    inputs = arguments(program)
    np.testing.assert_allclose(run(after, inputs)[0], run(program, inputs)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("axes", "shape", "kind"), [((1,), (3,), "reshape"), ((0,), (1,), "reduce"), ((0, 1), (), "reduce")]
)
def test_a_reduction_of_one_element_is_a_reshape(axes, shape, kind):
    program = build(
        ["float32[3,1]"], lambda b, x: (b.emit("reduce", (x,), "float32", shape, axes=axes, op="sum"),)
    )
    after = canonicalise(program)
    verify(after)
    assert [s.kind for s in after.entry.body] == [kind]


def test_an_element_of_a_reshaped_array_is_one_of_the_array():
    def body(b, x):
        flat = b.reshape(elementwise(b, "exp", x), (105,))
        return b.reshape(b.slice(flat, (53,), (1,)), ()), b.slice(flat, (53,), (2,))

    program = build(["float32[3,5,7]"], body)
    after = canonicalise(program)
    verify(after)
    slices = operators(after.entry, "slice")
    assert [s.inputs[0].type.shape for s in slices] == [(3, 5, 7), (105,)]
    inputs = arguments(program)
    for x, y in zip(run(after, inputs), run(program, inputs), strict=True):
        np.testing.assert_array_equal(x, y)


# -- gates ---------------------------------------------------------------------------------------------------
def _joined(size):
    """Two gates side by side, for a product with weights that gives the next state."""

    def body(b, h, w):
        def step(i, h):
            other = elementwise(b, "neg", h)
            both = b.emit("concatenate", (h, other), "float32", (BATCH, 2 * size), dimension=1)
            return (elementwise(b, "tanh", matmul(b, both, w)),)

        return counted(b, STEPS, [h], step)

    return build([f"float32[{BATCH},{size}]", f"float32[{2 * size},{size}]"], body)


def test_gates_get_an_axis():
    program = _joined(2048)
    after = concat_gates(program)
    verify(after)
    (join,) = operators(after.entry, "concatenate")
    assert join.output.type.shape == (BATCH, 2, 2048)
    inputs = [x / 64 for x in arguments(program)]
    np.testing.assert_array_equal(run(after, inputs)[0], run(program, inputs)[0])


def test_what_every_unit_makes_for_itself_stays():
    program = _joined(16)
    assert concat_gates(program) is program
