"""While loops that count: counted where all is known, by chunks where the bound is not."""

from __future__ import annotations

import numpy as np
import pytest

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.device.tuning import LoopTuning
from jax_cocktail.schedule.loops.distribution.distribute import distribute
from jax_cocktail.schedule.simplify.hoist import hoist
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.simplify.trip_counts import count_loops
from jax_cocktail.utask.arrays import numpy_dtype
from jax_cocktail.utask.ir import LoopUTask, UOperator, walk
from tests.null.programs import build, counted, elementwise, while_loop
from tests.oracle.interpreter.run import run

ALWAYS = LoopTuning(flops=0, trips=2, chunk=4)
ROWS = 9


def _dot(b, x, w):
    axes = {"lhs_batch": (), "lhs_contract": (0,), "rhs_batch": (), "rhs_contract": (0,)}
    return b.emit("dot", (x, w), "float32", (4,), **axes)


def recurrence(dtype="int32", test="lt", step=1, start=None, bound=None, swapped=False):
    """while test(i, n): h = tanh(xs[i] @ w + h @ r); i += step."""

    def body(b, xs, w, r, first, last):
        i0 = first if start is None else b.constant(start, dtype)
        n0 = last if bound is None else b.constant(bound, dtype)
        zero = b.constant(0, dtype)

        def condition(i, h, n):
            mirrored = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}[test]
            if swapped:
                return b.emit(mirrored, (n, i), "bool", ())
            return b.emit(test, (i, n), "bool", ())

        def trip(i, h, n):
            row = b.emit("dynamic_slice", (xs, i, zero), "float32", (1, 4))
            z = elementwise(b, "add", _dot(b, b.reshape(row, (4,)), w), _dot(b, h, r))
            kind, size = ("add", step) if step > 0 and not swapped else ("sub", -step)
            return b.emit(kind, (i, b.constant(size, dtype)), dtype, ()), elementwise(b, "tanh", z), n

        return while_loop(b, (i0, b.full(0.0, "float32", (4,)), n0), condition, trip)[:2]

    return build([f"float32[{ROWS},4]", "float32[4,4]", "float32[4,4]", f"{dtype}[]", f"{dtype}[]"], body)


def check(program, *bounds, limits=ALWAYS):
    """The distributed program, compared on the given (start, bound) pairs."""
    after = distribute(hoist(simplify(program)), limits)
    verify(after)
    random = np.random.default_rng(0)
    arrays = [random.normal(size=v.type.shape).astype(np.float32) for v in program.entry.parameters[:3]]
    dtype = numpy_dtype(program.entry.parameters[3].type.dtype)
    for first, last in bounds:
        inputs = [*arrays, dtype.type(first), dtype.type(last)]
        for x, y in zip(run(after, inputs), run(program, inputs), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    return after


def loops(program):
    return [s for s in program.entry.body if isinstance(s, LoopUTask)]


def products(program):
    """Leading sizes of products over several steps."""
    dots = (s for s in walk(program.entry) if isinstance(s, UOperator) and s.kind == "dot")
    return [s.output.type.shape[0] for s in dots if s.output.type.rank == 2]


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "int8"])
def test_unknown_bound(dtype):
    pairs = [(0, n) for n in (0, 1, 3, 4, 5, 8, 9, 13)] + [(3, 11), (6, 2)]
    after = check(recurrence(dtype), *pairs)
    whole, rest = loops(after)
    assert whole.condition is not None and rest.condition is not None
    assert products(after) == [4]


@pytest.mark.parametrize("test", ["le", "gt", "ge"])
@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("swapped", [False, True])
def test_directions_and_steps(test, step, swapped):
    step = step if test == "le" else -step
    pairs = [(0, n) for n in (0, 1, 4, 7, 12, 25)] if step > 0 else [(n, 0) for n in (0, 1, 5, 9, 26)]
    assert products(check(recurrence(test=test, step=step, swapped=swapped), *pairs)) == [4]


def test_bounds_near_the_ends_of_the_type():
    top, bottom = np.iinfo(np.int32).max, np.iinfo(np.int32).min
    check(recurrence(), (top - 6, top), (top, bottom), (bottom, bottom + 6), (-3, 5))
    high, low = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    check(recurrence("int64"), (high - 6, high), (high, low), (low, low + 6))


def test_counter_that_runs_away_from_its_bound():
    """It wraps around in the end; chunks are not told from it, but its products run ahead."""
    after = check(recurrence("int8", step=-1), (2, 1), (0, 1), (1, 100))
    assert len(loops(after)) == 2 and products(after) == [4]


# -- ends that depend on the data ----------------------------------------------------------------------------
def until_small(recurrent_input=False):
    """while i < n and |h| > tolerance; the bound comes closer with every trip."""

    def body(b, xs, w, r, first, n):
        zero, one = b.constant(0, "int32"), b.constant(1, "int32")

        def condition(i, h, m):
            inside = b.emit("lt", (i, m), "bool", ())
            norm = b.emit("reduce", (elementwise(b, "abs", h),), "float32", (), axes=(0,), op="max")
            large = b.emit("gt", (norm, b.constant(0.3, "float32")), "bool", ())
            return b.emit("and", (inside, large), "bool", ())

        def trip(i, h, m):
            start = b.convert(b.emit("reduce", (h,), "float32", (), axes=(0,), op="sum"), "int32")
            at = start if recurrent_input else i
            row = b.emit("dynamic_slice", (xs, at, zero), "float32", (1, 4))
            z = elementwise(b, "add", _dot(b, b.reshape(row, (4,)), w), _dot(b, h, r))
            less = b.emit("sub", (m, b.emit("rem", (i, b.constant(2, "int32")), "int32", ())), "int32", ())
            return b.emit("add", (i, one), "int32", ()), elementwise(b, "tanh", z), less

        return while_loop(b, (first, b.full(1.0, "float32", (4,)), n), condition, trip)

    return build(["float32[9,4]", "float32[4,4]", "float32[4,4]", "int32[]", "int32[]"], body)


def test_products_run_ahead_of_an_unknown_end():
    after = check(until_small(), *((0, n) for n in (0, 1, 3, 4, 5, 8, 9, 12, 20, 40)), (5, 30), (-4, 9))
    assert len(loops(after)) == 2 and products(after) == [4]
    first, chunks = loops(after)
    inner = [s for s in chunks.body.body if isinstance(s, LoopUTask) and s.condition is not None]
    assert len(inner) == 1 and chunks.condition is not None and first.condition is not None


def test_products_of_the_recurrence_do_not_run_ahead():
    program = hoist(simplify(until_small(recurrent_input=True)))
    heard = []
    assert distribute(program, ALWAYS, heard.append) is program
    assert [r.fired for r in heard] == [False]


def test_nested_in_a_counted_loop():
    def body(b, xs, w, r, n):
        zero = b.constant(0, "int32")

        def trip(i, h):
            row = b.emit("dynamic_slice", (xs, i, zero), "float32", (1, 4))
            z = elementwise(b, "add", _dot(b, b.reshape(row, (4,)), w), _dot(b, h, r))
            return b.emit("add", (i, b.constant(1, "int32")), "int32", ()), elementwise(b, "tanh", z)

        def outer(_, h):
            test = lambda i, h: b.emit("lt", (i, n), "bool", ())  # noqa: E731
            return while_loop(b, (zero, h), test, trip)[1:]

        return counted(b, 3, [b.full(0.0, "float32", (4,))], outer)

    program = build(["float32[9,4]", "float32[4,4]", "float32[4,4]", "int32[]"], body)
    after = distribute(hoist(simplify(program)), ALWAYS)
    verify(after)
    assert products(after) == [4]
    random = np.random.default_rng(1)
    arrays = [random.normal(size=s).astype(np.float32) for s in ((9, 4), (4, 4), (4, 4))]
    for n in (0, 3, 9):
        inputs = [*arrays, np.int32(n)]
        np.testing.assert_allclose(run(after, inputs)[0], run(program, inputs)[0], rtol=1e-5, atol=1e-6)


# -- known trip counts ---------------------------------------------------------------------------------------
KNOWN = [
    ("lt", 1, 0, 7, 7),
    ("lt", 3, 0, 7, 3),
    ("le", 1, 0, 7, 8),
    ("le", 2, 1, 7, 4),
    ("gt", -1, 8, 0, 8),
    ("ge", -2, 8, 0, 5),
    ("lt", 1, 5, 2, 0),
]


@pytest.mark.parametrize(("test", "step", "start", "bound", "trips"), KNOWN)
def test_constant_bounds_are_counted(test, step, start, bound, trips):
    program = simplify(recurrence(test=test, step=step, start=start, bound=bound))
    after = count_loops(program)
    verify(after)
    assert [loop.trip_count for loop in loops(after)] == [trips]
    check(after, (0, 0))
    random = np.random.default_rng(0)
    inputs = [random.normal(size=v.type.shape).astype(v.type.dtype) for v in program.entry.parameters]
    for x, y in zip(run(after, inputs), run(program, inputs), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(("test", "step", "bound"), [("le", 1, 127), ("lt", 2, 127), ("lt", -1, 5)])
def test_counters_that_wrap_around_are_not_counted(test, step, bound):
    program = simplify(recurrence("int8", test=test, step=step, start=100 if step > 0 else 0, bound=bound))
    assert count_loops(program) is program
