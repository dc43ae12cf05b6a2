"""Stacks of layers: loops over layers unrolled, stacked state taken apart, and only where that helps."""

from __future__ import annotations

import numpy as np
import pytest

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.device.tuning import LoopTuning
from jax_cocktail.schedule.loops.distribution.distribute import distribute
from jax_cocktail.schedule.loops.layers import layers, unroll_layers
from jax_cocktail.schedule.loops.scalar_replacement import split_stacked
from jax_cocktail.schedule.simplify.hoist import hoist
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.utask.ir import LoopUTask, UOperator, walk
from tests.distribution import explain_distribution
from tests.null.programs import arguments, branch, build, counted, elementwise, same_results, while_loop
from tests.oracle.interpreter.run import run

ALWAYS = LoopTuning(flops=0, trips=2)
DEPTH, STEPS, WIDTH = 3, 6, 4


def _dot(b, x, w):
    axes = {"lhs_batch": (), "lhs_contract": (0,), "rhs_batch": (), "rhs_contract": (0,)}
    return b.emit("dot", (x, w), "float32", (WIDTH,), **axes)


def _row(b, xs, i):
    zeros = [b.constant(0, "int64")] * (xs.type.rank - 1)
    rest = xs.type.shape[1:]
    return b.reshape(b.emit("dynamic_slice", (xs, i, *zeros), "float32", (1, *rest)), rest)


def _fixed(b, xs, row):
    rest = xs.type.shape[1:]
    starts, ones = (row, *(0 for _ in rest)), (1,) * xs.type.rank
    return b.reshape(b.emit("slice", (xs,), "float32", (1, *rest), starts=starts, strides=ones), rest)


def _put(b, whole, row, i):
    zeros = [b.constant(0, "int64")] * (whole.type.rank - 1)
    new = b.reshape(row, (1, *row.type.shape))
    return b.emit("dynamic_update_slice", (whole, new, i, *zeros), "float32", whole.type.shape)


def _cell(b, x, h, w, r):
    return elementwise(b, "tanh", elementwise(b, "add", _dot(b, x, w), _dot(b, h, r)))


def _stack(b, depth=DEPTH):
    return b.full(0.0, "float32", (depth, WIDTH))


def inner_loop(depth=DEPTH, write_to_state=True):
    """Time outside; a loop over layers inside, with stacked weights and stacked state."""

    def body(b, xs, w, r):
        def step(t, h):
            def layer(i, x, state):
                new = _cell(
                    b, x, _row(b, h if not write_to_state else state, i), _row(b, w, i), _row(b, r, i)
                )
                return new, _put(b, state, new, i)

            target = h if write_to_state else b.emit("empty", (), "float32", (depth, WIDTH))
            return counted(b, depth, (_row(b, xs, t), target), layer)[1:]

        return counted(b, STEPS, [_stack(b, depth)], step)

    shape = f"float32[{depth},{WIDTH},{WIDTH}]"
    return build([f"float32[{STEPS},{WIDTH}]", shape, shape], body)


def pipeline(program):
    separated = layers(simplify(program), ALWAYS)
    verify(separated)
    after = simplify(distribute(hoist(separated), ALWAYS))
    verify(after)
    inputs = arguments(program)
    for x, y in zip(run(after, inputs), run(program, inputs), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
    return after


def loops(program):
    return [s for s in program.entry.body if isinstance(s, LoopUTask)]


def dots(region):
    return [s for s in region.body if isinstance(s, UOperator) and s.kind == "dot"]


@pytest.mark.parametrize("write_to_state", [True, False])
def test_inner_loop_over_layers(write_to_state):
    after = pipeline(inner_loop(write_to_state=write_to_state))
    assert len(loops(after)) == DEPTH and len(dots(after.entry)) == DEPTH
    assert all(len(dots(loop.body)) == 1 for loop in loops(after))


def test_too_many_layers_stay_a_loop():
    program = simplify(inner_loop(33))
    assert unroll_layers(program) is program
    assert layers(program, ALWAYS) is program


def test_steps_in_a_loop_are_not_layers():
    """A short loop over time in a loop: its weights do not change with its index."""

    def body(b, xs, w, r):
        def step(_, h):
            return counted(b, STEPS, [h], lambda t, h: [_cell(b, _row(b, xs, t), h, w, r)])

        return counted(b, 3, [b.full(0.0, "float32", (WIDTH,))], step)

    program = simplify(build([f"float32[{STEPS},{WIDTH}]", "float32[4,4]", "float32[4,4]"], body))
    assert unroll_layers(program) is program


def test_unrolling_that_helps_nothing_is_not_done():
    """Every layer reads the last layer's state: one recurrence through all of them."""

    def body(b, w):
        def step(_, h):
            return counted(b, DEPTH, [h], lambda i, x: [elementwise(b, "tanh", _dot(b, x, _row(b, w, i)))])

        return counted(b, STEPS, [b.full(1.0, "float32", (WIDTH,))], step)

    program = simplify(build([f"float32[{DEPTH},4,4]"], body))
    assert unroll_layers(program) is not program
    heard = []
    assert layers(program, ALWAYS, heard.append) is program
    assert [r.fired for r in heard] == [False]


# -- stacked state -------------------------------------------------------------------------------------------
def stacked(step, trips=4, results=slice(None), extra=()):
    """A loop whose only carry is [3, 4]; `step(b, i, h, *extra)` gives its next value."""

    def body(b, h, *rest):
        return counted(b, trips, [h], lambda i, c: [step(b, i, c, *rest)])[results]

    return simplify(build(["float32[3,4]", *extra], body))


def rotated(b, i, h):
    rows = [b.reshape(_fixed(b, h, k), (1, WIDTH)) for k in (1, 2, 0)]
    return b.emit("concatenate", rows, "float32", (3, WIDTH), dimension=0)


def one_updated(b, i, h):
    new = elementwise(b, "add", _fixed(b, h, 0), _fixed(b, h, 2))
    return _put(b, h, new, b.constant(1, "int64"))


def read_after_write(b, i, h):
    first = _put(b, h, elementwise(b, "neg", _fixed(b, h, 1)), b.constant(0, "int64"))
    return _put(
        b, first, elementwise(b, "add", _fixed(b, first, 0), _fixed(b, first, 2)), b.constant(2, "int64")
    )


def in_a_branch(b, i, h):
    pick = b.convert(i, "int32")
    (new,) = branch(b, pick, lambda: [_fixed(b, h, 0)], lambda: [elementwise(b, "neg", _fixed(b, h, 2))])
    return _put(b, h, new, b.constant(1, "int64"))


def into_empty(b, i, h):
    out = b.emit("empty", (), "float32", (3, WIDTH))
    for k in range(3):
        out = _put(
            b, out, elementwise(b, "add", _fixed(b, h, k), _fixed(b, h, (k + 1) % 3)), b.constant(k, "int64")
        )
    return out


def part_of_a_row(b, i, h):
    part = b.emit("slice", (h,), "float32", (1, 2), starts=(1, 2), strides=(1, 1))
    row = b.emit("concatenate", (part, part), "float32", (1, 4), dimension=1)
    return _put(b, h, b.reshape(row, (4,)), b.constant(7, "int64"))  # clamped to the last row


SPLIT = [rotated, one_updated, read_after_write, in_a_branch, into_empty, part_of_a_row]


@pytest.mark.parametrize("step", SPLIT, ids=lambda f: f.__name__)
def test_rows_become_carries(step):
    program = stacked(step)
    after = split_stacked(program)
    verify(after)
    (loop,) = loops(after)
    assert [c.type.shape for c in loop.carried] == [(1, WIDTH)] * 3
    same_results(program, after)
    same_results(program, simplify(after))


def whole_read(b, i, h):
    return _put(b, h, b.emit("reduce", (h,), "float32", (4,), axes=(0,), op="sum"), b.constant(0, "int64"))


def moving_row(b, i, h):
    return _put(b, h, elementwise(b, "neg", _fixed(b, h, 0)), i)


def computed_as_a_whole(b, i, h):
    row = b.reshape(_fixed(b, h, 0), (1, WIDTH))
    return b.broadcast(row, (3, WIDTH), (0, 1))


def not_all_written(b, i, h):
    out = _put(b, b.emit("empty", (), "float32", (3, WIDTH)), _fixed(b, h, 0), b.constant(0, "int64"))
    return _put(b, out, _fixed(b, h, 1), b.constant(1, "int64"))


def handed_to_a_loop(b, i, h):
    (out,) = counted(b, 2, [h], lambda j, c: [_put(b, c, _row(b, c, j), b.constant(1, "int64"))])
    return out


@pytest.mark.parametrize(
    "step",
    [whole_read, moving_row, computed_as_a_whole, not_all_written, handed_to_a_loop],
    ids=lambda f: f.__name__,
)
def test_arrays_that_are_needed_as_a_whole_stay(step):
    program = stacked(step)
    assert split_stacked(program) is program


def test_state_of_a_while_loop():
    def body(b, h, limit):
        def condition(h):
            first = b.emit("slice", (h,), "float32", (1, 1), starts=(0, 0), strides=(1, 1))
            return b.emit("lt", (b.reshape(first, ()), limit), "bool", ())

        def step(h):
            one = b.full(1.0, "float32", (WIDTH,))
            new = _put(b, h, elementwise(b, "add", _fixed(b, h, 0), one), b.constant(0, "int64"))
            return [_put(b, new, _fixed(b, new, 0), b.constant(2, "int64"))]

        return while_loop(b, [h], condition, step)

    program = simplify(build(["float32[3,4]", "float32[]"], body))
    after = split_stacked(program)
    verify(after)
    assert len(loops(after)[0].carried) == 3
    for limit in (-9.0, 0.5, 7.0):
        inputs = [arguments(program)[0], np.float32(limit)]
        np.testing.assert_array_equal(run(after, inputs)[0], run(program, inputs)[0])


def test_two_stacks_that_swap():
    def body(b, h, c):
        def step(_, h, c):
            return _put(b, c, _fixed(b, h, 1), b.constant(0, "int64")), h

        return counted(b, 5, [h, c], step)

    program = simplify(build(["float32[3,4]"] * 2, body))
    after = split_stacked(program)
    verify(after)
    assert len(loops(after)[0].carried) == 6
    same_results(program, after)


# -- explanation ---------------------------------------------------------------------------------------------
def test_explanation_names_what_fired():
    lines = explain_distribution(inner_loop(), ALWAYS)
    assert any(line.startswith("unroll:") and "3 layers" in line for line in lines)
    assert any(line.startswith("split:") for line in lines)
    assert any(line.startswith("distribute:") and "3 products" in line for line in lines)


def test_explanation_gives_reasons():
    lines = explain_distribution(inner_loop(), LoopTuning(flops=1 << 20))
    assert any(line.startswith("unroll not:") for line in lines)
    assert all(not line.startswith("distribute:") for line in lines)
    plain = build(["float32[4]"], lambda b, x: counted(b, 9, [x], lambda i, c: [elementwise(b, "neg", c)]))
    assert explain_distribution(plain) == ["distribute not: a loop of 9 trips: no matrix product in its body"]


def test_operators_of_one_program_only():
    """Slices of what was just written read the update; the rest of the array is left where it is."""
    program = simplify(stacked(read_after_write))
    kinds = [s.kind for s in walk(program.entry) if isinstance(s, UOperator)]
    assert kinds.count("slice") == 2
