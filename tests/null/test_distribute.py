"""Hoisting and loop distribution: what moves, and that no meaning changes."""

from __future__ import annotations

import numpy as np
import pytest

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.device.tuning import LOOPS, LoopTuning
from jax_cocktail.schedule.loops.distribution.distribute import distribute
from jax_cocktail.schedule.loops.distribution.fission import analyse
from jax_cocktail.schedule.simplify.hoist import hoist
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.utask.ir import LoopUTask, UOperator, walk
from tests.null.programs import arguments, build, counted, elementwise
from tests.oracle.interpreter.run import run

ALWAYS = LoopTuning(flops=0, trips=2)


def _dot(b, x, w):
    n = w.type.shape[1]
    return b.emit(
        "dot", (x, w), "float32", (n,), lhs_batch=(), lhs_contract=(0,), rhs_batch=(), rhs_contract=(0,)
    )


def _row(b, xs, i):
    zero = b.constant(0, "int64")
    n = xs.type.shape[1]
    return b.reshape(b.emit("dynamic_slice", (xs, i, zero), "float32", (1, n)), (n,))


def loops(program):
    return [s for s in program.entry.body if isinstance(s, LoopUTask)]


def dots(region):
    return [s for s in region.body if isinstance(s, UOperator) and s.kind == "dot"]


def divided(parameters, body, limits=ALWAYS, seed=0):
    """The distributed program, whose results are those of the original."""
    program = build(parameters, body)
    after = distribute(hoist(simplify(program)), limits)
    verify(after)
    inputs = arguments(program, seed)
    for x, y in zip(run(after, inputs), run(program, inputs), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
    return after


def _layers(depth, trips=6):
    """`depth` recurrent layers inside one loop over time."""

    def body(b, xs, *weights):
        inputs, recurrent = weights[:depth], weights[depth:]
        zero = b.full(0.0, "float32", (4,))

        def step(i, *state):
            x, new = _row(b, xs, i), []
            for h, w, r in zip(state, inputs, recurrent, strict=True):
                x = elementwise(b, "tanh", elementwise(b, "add", _dot(b, x, w), _dot(b, h, r)))
                new.append(x)
            return new

        return counted(b, trips, [zero] * depth, step)

    return [f"float32[{trips},4]"] + ["float32[4,4]"] * (2 * depth), body


def test_input_projection_is_one_product():
    after = divided(*_layers(1))
    assert [d.output.type.shape for d in dots(after.entry)] == [(6, 4)]
    (loop,) = loops(after)
    assert len(dots(loop.body)) == 1


def test_layers_become_loops():
    after = divided(*_layers(3))
    assert len(loops(after)) == 3
    assert len(dots(after.entry)) == 3
    assert all(len(dots(loop.body)) == 1 for loop in loops(after))


@pytest.mark.parametrize("depth", [1, 3])
def test_strips(depth):
    parameters, body = _layers(depth, trips=12)
    after = divided(parameters, body, LoopTuning(flops=0, trips=2, strip_bytes=16 * 4 * depth * 2))
    (outer,) = loops(after)
    inner = [s for s in outer.body.body if isinstance(s, LoopUTask)]
    assert outer.trip_count is not None and outer.trip_count > 1 and len(inner) == depth
    assert outer.trip_count * inner[0].trip_count == 12


@pytest.mark.parametrize(("trips", "most"), [(7, 3), (13, 6), (1009, 300), (11, 5)])
def test_remainder_is_a_loop_of_its_own(trips, most):
    parameters, body = _layers(2, trips=trips)
    after = divided(parameters, body, LoopTuning(flops=0, trips=2, strip_bytes=32 * most))
    strips, *rest = loops(after)
    inner = [s for s in strips.body.body if isinstance(s, LoopUTask)]
    assert len(inner) == 2 and inner[0].trip_count <= most
    assert strips.trip_count * inner[0].trip_count + rest[-1].trip_count == trips
    if rest[-1].trip_count > 1:
        assert len(rest) == 2 and len(dots(after.entry)) == 2


def test_strips_are_not_shorter_than_they_must_be():
    """19 is prime but 18 steps would do: two strips of 10 and 9, not 19 of one."""
    parameters, body = _layers(1, trips=19)
    after = divided(parameters, body, LoopTuning(flops=0, trips=2, strip_bytes=16 * 18))
    assert [loop.trip_count for loop in loops(simplify(after))] == [10, 9]


def test_what_is_kept_counts_only_while_it_is_alive():
    """Ten layers keep no more at a time than two: product, input and output of one layer."""
    sizes = []
    for depth in (2, 3, 10):
        parameters, body = _layers(depth)
        loop = next(s for s in simplify(build(parameters, body)).entry.body if isinstance(s, LoopUTask))
        fission = analyse(loop, 0)
        assert fission is not None and len(fission.products) == depth
        sizes.append(fission.bytes_per_step)
    assert sizes == [32, 48, 48]


def test_keeping_too_much_per_step_is_refused():
    parameters, body = _layers(1, trips=7)
    program = hoist(simplify(build(parameters, body)))
    heard = []
    assert distribute(program, LoopTuning(flops=0, trips=2, strip_bytes=20), heard.append) is program
    assert "16 bytes would have to be kept" in heard[0].text


def _joined_cells(dtype="float32", swapped=False, both=False):
    """tanh(concatenate(x, h) @ W): one matrix for input and state."""

    def body(b, xs, w):
        def step(i, h):
            x = (
                _row(b, xs, i)
                if dtype == "float32"
                else b.convert(_row(b, b.convert(xs, "float32"), i), dtype)
            )
            parts = (h, x) if swapped else (h, h) if both else (x, h)
            pair = b.emit("concatenate", parts, dtype, (8,), dimension=0)
            axes = {"lhs_batch": (), "lhs_contract": (0,), "rhs_batch": (), "rhs_contract": (0,)}
            return (elementwise(b, "tanh", b.emit("dot", (pair, w), dtype, (4,), **axes)),)

        return counted(b, 6, (b.full(0.0, dtype, (4,)),), step)

    return [f"{dtype}[6,4]", f"{dtype}[8,4]"], body


@pytest.mark.parametrize("swapped", [False, True])
def test_products_of_concatenations_are_taken_apart(swapped):
    after = divided(*_joined_cells(swapped=swapped))
    assert [d.output.type.shape for d in dots(after.entry)] == [(6, 4)]
    (loop,) = loops(after)
    assert len(dots(loop.body)) == 1


def test_products_of_recurrent_parts_stay_whole():
    program = hoist(simplify(build(*_joined_cells(both=True))))
    assert distribute(program, ALWAYS) is program


def test_narrow_products_are_summed_wide():
    parameters, body = _joined_cells("bfloat16")
    program = build(parameters, body)
    after = distribute(hoist(simplify(program)), ALWAYS)
    verify(after)
    kinds = {s.output.type.dtype for s in walk(after.entry) if isinstance(s, UOperator) and s.kind == "dot"}
    assert kinds == {"float32"}
    inputs = arguments(program, 0)
    for x, y in zip(run(after, inputs), run(program, inputs), strict=True):
        np.testing.assert_allclose(x.astype(np.float32), y.astype(np.float32), rtol=0.02, atol=0.02)


def test_reasons():
    def reason(parameters, body, limits=ALWAYS):
        heard = []
        distribute(hoist(simplify(build(parameters, body))), limits, heard.append)
        return [r.text.partition(": ")[2] for r in heard]

    state = "float32[4,4]"
    assert reason(*_layers(1), LoopTuning(trips=9)) == ["6 trips are too few"]
    assert reason(*_layers(1)[:2], LOOPS) == ["its matrix products have fewer than 8192 operations a step"]

    def own(b, w):
        return counted(b, 6, (b.full(1.0, "float32", (4,)),), lambda _, h: (_dot(b, h, w),))

    assert reason([state], own) == ["every matrix product depends on its own result of the step before"]
    square = lambda b, w: counted(b, 6, (w,), lambda _, h: (_square(b, h),))  # noqa: E731
    assert reason([state], square) == ["both operands of every matrix product change from step to step"]


def _square(b, x):
    axes = {"lhs_batch": (), "lhs_contract": (1,), "rhs_batch": (), "rhs_contract": (0,)}
    return b.emit("dot", (x, x), "float32", (4, 4), **axes)


def test_counter_is_kept_in_every_loop():
    """A counter in the carry is computed again where it is needed, and gives one result."""

    def body(b, xs, w, r):
        zero, one = b.constant(0, "int32"), b.constant(1, "int32")

        def step(i, count, h):
            x = _row(b, xs, i)
            scale = b.broadcast(b.convert(count, "float32"), (4,), ())
            z = elementwise(b, "add", _dot(b, x, w), _dot(b, h, r))
            y = _dot(b, elementwise(b, "tanh", elementwise(b, "add", z, scale)), w)
            return elementwise(b, "add", count, one), elementwise(b, "tanh", y)

        return counted(b, 6, (zero, b.full(0.0, "float32", (4,))), step)

    divided(["float32[6,4]", "float32[4,4]", "float32[4,4]"], body)


def test_backwards_rows_are_collected():
    def body(b, xs, w, r):
        last = b.constant(5, "int64")

        def step(i, h):
            x = _row(b, xs, b.emit("sub", (last, i), "int64", ()))
            return (elementwise(b, "tanh", elementwise(b, "add", _dot(b, x, w), _dot(b, h, r))),)

        return counted(b, 6, (b.full(0.0, "float32", (4,)),), step)

    after = divided(["float32[6,4]", "float32[4,4]", "float32[4,4]"], body)
    assert [d.output.type.shape for d in dots(after.entry)] == [(6, 4)]


def test_weights_on_the_left():
    def body(b, xs, w, r):
        def step(i, h):
            x = _row(b, xs, i)
            axes = {"lhs_batch": (), "lhs_contract": (1,), "rhs_batch": (), "rhs_contract": (0,)}
            left = b.emit("dot", (w, x), "float32", (4,), **axes)
            return (elementwise(b, "tanh", elementwise(b, "add", left, _dot(b, h, r))),)

        return counted(b, 6, (b.full(0.0, "float32", (4,)),), step)

    after = divided(["float32[6,4]", "float32[4,4]", "float32[4,4]"], body)
    assert len(dots(after.entry)) == 1


def test_product_on_the_cycle_stays():
    def body(b, w):
        return counted(b, 6, (b.full(1.0, "float32", (4,)),), lambda _, h: (_dot(b, h, w),))

    program = build(["float32[4,4]"], body)
    assert distribute(program, ALWAYS) is program


def test_large_values_are_not_kept_per_step():
    """The product reads a whole carry that changes every step: keeping it would cost more than it saves."""

    def body(b, w):
        def step(_, cache):
            row = b.reshape(b.emit("slice", (cache,), "float32", (1, 4), starts=(0, 0), strides=(1, 1)), (4,))
            y = b.reshape(_dot(b, row, w), (1, 4))
            zero = b.constant(0, "int64")
            return (b.emit("dynamic_update_slice", (cache, y, zero, zero), "float32", (64, 4)),)

        return counted(b, 6, (b.full(1.0, "float32", (64, 4)),), step)

    program = build(["float32[4,4]"], body)
    assert distribute(program, LoopTuning(flops=0, trips=2, strip_bytes=64)) is program


def test_invariant_product_is_hoisted():
    def body(b, x, w):
        return counted(
            b, 6, (b.full(0.0, "float32", (4,)),), lambda _, h: (elementwise(b, "add", h, _dot(b, x, w)),)
        )

    program = simplify(build(["float32[4]", "float32[4,4]"], body))
    after = hoist(program)
    verify(after)
    assert len(dots(after.entry)) == 1
    assert hoist(after) is after


def test_transposed_weights_are_one_view_outside():
    def body(b, w):
        def step(_, h):
            t = b.emit("transpose", (w,), "float32", (4, 4), permutation=(1, 0))
            return (_dot(b, h, t),)

        return counted(b, 6, (b.full(1.0, "float32", (4,)),), step)

    after = hoist(build(["float32[4,4]"], body))
    inside = [s.kind for loop in loops(after) for s in walk(loop.body) if isinstance(s, UOperator)]
    assert inside == ["dot"]


def test_cheap_invariants_stay():
    def body(b, x):
        def step(_, h):
            return (elementwise(b, "add", h, b.broadcast(elementwise(b, "neg", x), (4,), ())),)

        return counted(b, 6, (b.full(1.0, "float32", (4,)),), step)

    program = build(["float32[]"], body)
    assert hoist(program) is program
