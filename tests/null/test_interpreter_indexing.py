"""The interpreter: gather and scatter, one element at a time, as StableHLO words them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.null.programs import apply, shape_text

RANDOM = np.random.default_rng(0)


def expect(kind, operands, expected, **attributes):
    expected = np.asarray(expected)
    np.testing.assert_array_equal(apply(kind, operands, shape_text(expected), **attributes), expected)


GATHERS = [
    # operand, indices, slice_sizes, collapsed, offset_dims, index map, operand batching, indices batching
    ((6, 4), (2, 3, 1), (1, 4), (0,), (2,), (0,), (), ()),
    ((6, 4), (5, 1), (2, 3), (), (0, 2), (1,), (), ()),
    ((6, 4), (5, 2), (1, 1), (0, 1), (), (1, 0), (), ()),
    ((3, 6, 4), (3, 5, 1), (1, 1, 2), (1,), (2,), (1,), (0,), (0,)),
    ((3, 6), (2, 3, 1), (1, 2), (), (1,), (1,), (0,), (1,)),
    ((6,), (4, 0), (1,), (0,), (), (), (), ()),
]


@pytest.mark.parametrize("case", GATHERS)
@pytest.mark.parametrize("mode", ["clip", "fill", "promise_in_bounds"])
def test_gather(case, mode):
    shape, index_shape, sizes, collapsed, offsets, mapped, batching, index_batching = case
    x = RANDOM.integers(0, 100, shape).astype(np.int32)
    high = 3 if mode == "promise_in_bounds" else 8
    indices = RANDOM.integers(0 if high == 3 else -4, high, index_shape).astype(np.int64)
    window = [sizes[d] for d in range(x.ndim) if d not in collapsed and d not in batching]
    rank = len(index_shape) - 1 + len(window)
    batch_axes = [d for d in range(rank) if d not in offsets]
    result_shape = [0] * rank
    for d, n in [*zip(batch_axes, index_shape, strict=False), *zip(offsets, window, strict=True)]:
        result_shape[d] = n
    expected = np.empty(result_shape, np.int32)
    for place in np.ndindex(*result_shape):
        batch = [place[d] for d in batch_axes]
        inside = iter([place[d] for d in offsets])
        at = [0 if d in collapsed or d in batching else next(inside) for d in range(x.ndim)]
        for d, b in zip(batching, index_batching, strict=True):
            at[d] += batch[b]
        starts = indices[tuple(batch)]
        bounds = [(d, int(s), shape[d] - sizes[d]) for d, s in zip(mapped, starts, strict=True)]
        for d, start, limit in bounds:
            at[d] += min(max(start, 0), limit)
        missed = mode == "fill" and any(not 0 <= start <= limit for _, start, limit in bounds)
        expected[place] = -1 if missed else x[tuple(at)]
    expect(
        "gather",
        [x, indices],
        expected,
        collapsed_slice_dims=collapsed,
        fill_value=np.int32(-1).tobytes(),
        mode=mode,
        offset_dims=offsets,
        operand_batching_dims=batching,
        slice_sizes=sizes,
        start_index_map=mapped,
        start_indices_batching_dims=index_batching,
    )


def test_gather_from_nothing():
    numbers = {
        "collapsed_slice_dims": (),
        "fill_value": np.float32(7).tobytes(),
        "mode": "fill",
        "offset_dims": (1,),
        "operand_batching_dims": (),
        "slice_sizes": (0,),
        "start_index_map": (0,),
        "start_indices_batching_dims": (),
    }
    expect(
        "gather",
        [np.zeros(0, np.float32), np.zeros((3, 1), np.int32)],
        np.zeros((3, 0), np.float32),
        **numbers,
    )


SCATTERS = [
    # operand, indices shape, inserted, window dims of updates, window, index map, operand batching, batching
    ((6, 4), (5, 1), (0,), (1,), (4,), (0,), (), ()),
    ((6, 4), (5, 1), (), (0, 2), (2, 3), (1,), (), ()),
    ((6, 4), (3, 5, 2), (0, 1), (), (), (1, 0), (), ()),
    ((3, 6, 4), (3, 5, 1), (1,), (2,), (2,), (1,), (0,), (0,)),
    ((6,), (7, 1), (), (0,), (3,), (0,), (), ()),
]
COMBINE = {
    "set": lambda a, b: b,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "min": min,
    "max": max,
}


@pytest.mark.parametrize("case", SCATTERS)
@pytest.mark.parametrize("mode", ["clip", "fill_or_drop"])
@pytest.mark.parametrize("op", COMBINE)
def test_scatter(case, mode, op):
    shape, index_shape, inserted, window_dims, window, mapped, batching, index_batching = case
    x = RANDOM.integers(-5, 5, shape).astype(np.int64)
    indices = RANDOM.integers(-2, 7, index_shape).astype(np.int32)
    rank = len(index_shape) - 1 + len(window)
    scatter_dims = [d for d in range(rank) if d not in window_dims]
    update_shape = [0] * rank
    for d, n in [*zip(scatter_dims, index_shape, strict=False), *zip(window_dims, window, strict=True)]:
        update_shape[d] = n
    updates = RANDOM.integers(-5, 5, update_shape).astype(np.int64)
    kept = [d for d in range(len(shape)) if d not in inserted and d not in batching]
    expected = x.copy()
    for batch in np.ndindex(*index_shape[:-1]):
        origin = [0] * len(shape)
        for d, b in zip(batching, index_batching, strict=True):
            origin[d] = batch[b]
        dropped = False
        for d, start in zip(mapped, indices[batch], strict=True):
            limit = shape[d] - (window[kept.index(d)] if d in kept else 1)
            dropped |= not 0 <= start <= limit
            origin[d] += min(max(int(start), 0), limit)
        if dropped and mode != "clip":
            continue
        for offset in np.ndindex(*window):
            source, target = [0] * rank, list(origin)
            for d, i in [*zip(scatter_dims, batch, strict=True), *zip(window_dims, offset, strict=True)]:
                source[d] = i
            for d, i in zip(kept, offset, strict=True):
                target[d] += i
            expected[tuple(target)] = COMBINE[op](expected[tuple(target)], updates[tuple(source)])
    expect(
        "scatter",
        [x, indices, updates],
        expected,
        inserted_window_dims=inserted,
        mode=mode,
        op=op,
        operand_batching_dims=batching,
        scatter_dims_to_operand_dims=mapped,
        scatter_indices_batching_dims=index_batching,
        update_window_dims=window_dims,
    )


def test_scatter_of_16_bit_floats_rounds_at_every_addition():
    numbers = {
        "inserted_window_dims": (0,),
        "mode": "clip",
        "op": "add",
        "operand_batching_dims": (),
        "scatter_dims_to_operand_dims": (0,),
        "scatter_indices_batching_dims": (),
        "update_window_dims": (),
    }
    x = np.array([256], ml_dtypes.bfloat16)
    ones = np.ones(4, ml_dtypes.bfloat16)
    assert apply("scatter", [x, np.zeros((4, 1), np.int32), ones], "bfloat16[1]", **numbers) == 256
