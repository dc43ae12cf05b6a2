"""The interpreter: movement, reductions, contractions against loops over single elements."""

from __future__ import annotations

import math
from functools import reduce as fold
from itertools import product

import ml_dtypes
import numpy as np
import pytest

from jax_cocktail.utask.infer.anchors import window_count
from tests.null.programs import apply, apply_many, shape_text

INF, NAN = math.inf, math.nan
RANDOM = np.random.default_rng(0)
A = RANDOM.normal(size=(3, 4, 5)).astype(np.float32)


def expect(kind, operands, expected, **attributes):
    expected = np.asarray(expected)
    got = apply(kind, operands, shape_text(expected), **attributes)
    np.testing.assert_array_equal(got, expected)


# -- movement ------------------------------------------------------------------------------------------------
def test_constants_and_empty_arrays():
    expect("constant", [], np.int16([[1, -2]]), data=np.array([1, -2], "<i2").tobytes())
    expect("constant", [], np.array([True, False]), data=b"\1\0")
    expect("constant", [], np.array(1.5, ml_dtypes.bfloat16), data=b"\xc0\x3f")
    assert np.isnan(apply("empty", [], "float32[2]")).all()  # poison
    assert apply("empty", [], "int8[1]") == 127 and apply("empty", [], "bool[1]").all()


def test_iota():
    expect("iota", [], np.float32([[0, 1, 2], [0, 1, 2]]), dimension=1)
    expect("iota", [], np.int8([[0, 0, 0], [1, 1, 1]]), dimension=0)
    assert apply("iota", [], "uint8[300]", dimension=0)[-1] == 299 - 256


def test_broadcast():
    result = np.empty((2, 3, 4, 5), np.float32)
    for place in np.ndindex(*result.shape):
        result[place] = A[place[1:]]
    expect("broadcast", [A], result, dimensions=(1, 2, 3))
    expect("broadcast", [np.float32(3)], np.full((2, 2), 3, np.float32), dimensions=())
    expect("broadcast", [A[:1, 0]], np.stack([A[0, 0]] * 3), dimensions=(0, 1))
    expect("broadcast", [A[:, :, 0]], np.repeat(A[:, :, 0].T[:, None], 2, 1), dimensions=(2, 0))


def test_reshape_transpose_reverse():
    rows = np.float32([[A.flat[12 * i + j] for j in range(12)] for i in range(5)])
    expect("reshape", [A], rows)
    moved = np.float32([[[A[i, j, k] for j in range(4)] for i in range(3)] for k in range(5)])
    expect("transpose", [A], moved, permutation=(2, 0, 1))
    expect("reverse", [A], A[::-1, :, ::-1], dimensions=(0, 2))
    expect("transpose", [np.float32(1)], np.float32(1), permutation=())


def test_slices():
    expect("slice", [A], A[1:3, 0:4:3, 4:5], starts=(1, 0, 4), strides=(1, 3, 1))
    expect("slice", [A], A[:, :0], starts=(0, 4, 0), strides=(1, 1, 1))
    expect("concatenate", [A, A[:, :1]], [[*x, x[0]] for x in A], dimension=1)


@pytest.mark.parametrize(
    "config", [((1, 0), (2, 1)), ((-1, 1), (3, -2)), ((-2, 2), (-3, 0)), ((0, 1), (0, 0))]
)
def test_pad(config):
    """Element i lands on low + i * (interior + 1), if that is inside."""
    (low, interior), (high, _) = config
    x = np.arange(5, dtype=np.int32)
    size = low + 5 + 4 * interior + high
    expected = np.full(size, 99, np.int32)
    for i in range(5):
        if 0 <= low + i * (interior + 1) < size:
            expected[low + i * (interior + 1)] = i
    expect("pad", [x, np.int32(99)], expected, low=(low,), interior=(interior,))
    both = np.full((size, 2), 99, np.int32)
    both[:, 0] = expected
    expect("pad", [x[:, None], np.int32(99)], both, low=(low, 0), interior=(interior, 0))


def test_pad_of_scalars_and_nothing():
    expect("pad", [np.float32(2), np.float32(9)], np.float32(2), low=(), interior=())
    expect("pad", [np.zeros(0, np.float32), np.float32(9)], np.float32([9, 9]), low=(1,), interior=(3,))


@pytest.mark.parametrize("start", [-9, 0, 1, 2, 3, 100])
def test_dynamic_slices_are_clamped(start):
    inside = min(max(start, 0), 1)
    starts = [np.int32(start), np.int64(2), np.int8(-start)]
    last = min(max(-start, 0), 2)
    part = A[inside : inside + 2, 2:4, last : last + 3]
    expect("dynamic_slice", [A, *starts], part)
    changed = A.copy()
    changed[inside : inside + 2, 2:4, last : last + 3] = 7
    expect("dynamic_update_slice", [A, np.full(part.shape, 7, np.float32), *starts], changed)


def test_dynamic_slice_starts_of_every_width():
    expect("dynamic_slice", [A[0, 0], np.uint64(2**64 - 1)], A[0, 0, 3:])
    expect("dynamic_slice", [A[0, 0], np.uint8(255)], A[0, 0, 3:])


@pytest.mark.parametrize(
    ("op", "expected"), [("max", [0.0, 0.0, -0.0, 1]), ("min", [-0.0, -0.0, -0.0, -0.0])]
)
def test_extremes_of_zeros_of_both_signs(op, expected):
    """+0 is above -0 in every way to take a maximum."""
    x = np.array([[0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0], [-0.0, 1]], np.float32)
    plain = {
        "base_dilation": (1, 1),
        "strides": (1, 1),
        "window_dilation": (1, 1),
        "padding": ((0, 0), (0, 0)),
    }
    results = (
        apply(op, list(x.T), "float32[4]"),
        apply("reduce", [x], "float32[4]", axes=(1,), op=op),
        apply("cumulative", [x], "float32[4,2]", axis=1, op=op, reverse=False)[:, 1],
        apply("reduce_window", [x], "float32[4,1]", op=op, window=(1, 2), **plain)[:, 0],
    )
    for result in results:
        np.testing.assert_array_equal(result, expected)
        np.testing.assert_array_equal(np.signbit(result), np.signbit(expected))


# -- reductions ----------------------------------------------------------------------------------------------
REDUCE = {
    "sum": (lambda a, b: a + b, 0),
    "prod": (lambda a, b: a * b, 1),
    "max": (max, None),
    "min": (min, None),
    "and": (lambda a, b: a & b, -1),
    "or": (lambda a, b: a | b, 0),
    "xor": (lambda a, b: a ^ b, 0),
}


@pytest.mark.parametrize("op", REDUCE)
def test_reduce_integers(op):
    function, _ = REDUCE[op]
    x = RANDOM.integers(-9, 9, (3, 4, 2)).astype(np.int32)
    expected = [fold(function, (int(x[i, j, k]) for i, k in product(range(3), range(2)))) for j in range(4)]
    expect("reduce", [x], np.int64(expected).astype(np.int32), axes=(0, 2), op=op)


def test_reduce_nothing_gives_the_identity():
    nothing = {"int8": {"max": -128, "min": 127, "sum": 0, "prod": 1, "and": -1, "or": 0, "xor": 0}}
    nothing["float32"] = {"max": -INF, "min": INF, "sum": 0, "prod": 1}
    nothing["uint8"] = {"max": 0, "min": 255, "and": 255}
    nothing["bool"] = {"and": True, "or": False, "xor": False}
    for dtype, table in nothing.items():
        for op, value in table.items():
            expect("reduce", [np.zeros((0, 2), dtype)], np.array([value] * 2, dtype), axes=(0,), op=op)


def test_reduce_floats():
    for op in ("max", "min"):
        assert np.isnan(apply("reduce", [np.float32([1, NAN, 2])], "float32[]", axes=(0,), op=op))
    many = np.full(100_000, 0.1, np.float32)
    assert apply("reduce", [many], "float32[]", axes=(0,), op="sum") == np.float32(math.fsum(many.tolist()))
    ones = np.ones(1000, ml_dtypes.bfloat16)
    assert apply("reduce", [ones], "bfloat16[]", axes=(0,), op="sum") == 1000
    expect("reduce", [np.array([True, False, True])], np.array(False), axes=(0,), op="xor")
    expect("reduce", [np.uint8([200, 100])], np.uint8(44), axes=(0,), op="sum")


def test_arg_reduce():
    expect("arg_reduce", [np.int32([[1, 3, 3], [2, 0, 0]])], np.int32([1, 0]), axis=1, op="max")
    expect("arg_reduce", [np.int32([[1, 3, 3], [2, 0, 0]])], np.int64([0, 1]), axis=1, op="min")
    for op in ("max", "min"):
        expect("arg_reduce", [np.float32([1, NAN, 9, NAN, -9])], np.int32(1), axis=0, op=op)
    expect("arg_reduce", [np.array([-1, 5, 5], ml_dtypes.bfloat16)], np.uint8(1), axis=0, op="max")


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "logsumexp"])
@pytest.mark.parametrize("reverse", [False, True])
def test_cumulative(op, reverse):
    functions = {**REDUCE, "logsumexp": (lambda a, b: math.log(math.exp(a) + math.exp(b)), None)}
    function = functions[op][0]
    row = [0.5, -1.25, 2.0, 0.75]
    order = row[::-1] if reverse else row
    expected = [fold(function, order[: i + 1]) for i in range(4)]
    got = apply("cumulative", [np.float64([row] * 2)], "float64[2,4]", axis=1, op=op, reverse=reverse)
    np.testing.assert_allclose(got, [expected[::-1] if reverse else expected] * 2, rtol=1e-15)


def test_cumulative_integers_wrap():
    expect("cumulative", [np.uint8([200, 100])], np.uint8([200, 44]), axis=0, op="sum", reverse=False)


# -- sorting -------------------------------------------------------------------------------------------------
def test_sort_is_stable_and_knows_zeros_and_nan():
    keys = np.float32([3, NAN, -0.0, 0.0, -INF, NAN, 0.0, INF])
    places = np.arange(8, dtype=np.int32)
    values, order = apply_many("sort", [keys, places], ["float32[8]", "int32[8]"], dimension=0, num_keys=1)
    assert order.tolist() == [4, 2, 3, 6, 0, 7, 1, 5]
    assert np.signbit(values[1]) and not np.signbit(values[2])


def test_sort_by_two_keys_along_an_axis():
    first, second = RANDOM.integers(0, 3, (2, 6, 40))
    first, second, place = (
        np.asarray(x, np.int32) for x in (first, second, np.broadcast_to(np.arange(6)[:, None], (6, 40)))
    )
    text = ["int32[6,40]"] * 3
    got = apply_many("sort", [first, second, place], text, dimension=0, num_keys=2)
    for column in range(40):
        rows = sorted(zip(first[:, column], second[:, column], place[:, column], strict=True))
        assert [tuple(x[:, column]) for x in got] == list(zip(*rows, strict=True))


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_, ml_dtypes.bfloat16, np.float16])
def test_sort_other_types(dtype):
    x = np.array([3, 0, 2, 1], dtype)
    expect("sort", [x], np.array(sorted(x.tolist()), dtype), dimension=0, num_keys=1)


def test_top_k():
    x = np.float32([[1, 5, 5, -2, 3], [0, -0.0, 0, -1, -5]])
    values, where = apply_many("top_k", [x], ["float32[2,3]", "int32[2,3]"], axis=1, k=3)
    assert values.tolist() == [[5, 5, 3], [0, 0, 0]]
    assert where.tolist() == [[1, 2, 4], [0, 2, 1]]  # ties: first; -0 below 0
    values, where = apply_many("top_k", [np.float32([1, INF, NAN])], ["float32[2]", "int32[2]"], axis=0, k=2)
    assert where.tolist() == [2, 1]
    values, where = apply_many(
        "top_k", [np.uint8([[0], [255], [7]])], ["uint8[2,1]", "int32[2,1]"], axis=0, k=2
    )
    assert values.tolist() == [[255], [7]] and where.tolist() == [[1], [2]]


# -- contractions --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "dtypes", [("float32", "float32"), ("int8", "int32"), ("uint8", "uint8"), ("bool", "bool")]
)
def test_dot(dtypes):
    operand, result = dtypes
    x = RANDOM.integers(0, 2 if operand == "bool" else 100, (2, 3, 4)).astype(operand)
    y = RANDOM.integers(0, 2 if operand == "bool" else 100, (5, 4, 2)).astype(operand)
    exact = np.zeros((2, 3, 5), np.int64)
    for b, i, j, k in product(range(2), range(3), range(5), range(4)):
        exact[b, i, j] += int(x[b, i, k]) * int(y[j, k, b])
    expected = exact.astype(result) if result != "bool" else exact > 0
    numbers = {"lhs_batch": (0,), "lhs_contract": (2,), "rhs_batch": (2,), "rhs_contract": (1,)}
    expect("dot", [x, y], expected, **numbers)


def test_dot_of_nothing_and_of_two_axes():
    numbers = {"lhs_batch": (), "lhs_contract": (1,), "rhs_batch": (), "rhs_contract": (0,)}
    expect(
        "dot",
        [np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32)],
        np.zeros((2, 3), np.float32),
        **numbers,
    )
    y = np.float32([[[1, 2], [3, 4], [5, 6]]] * 4)
    expected = [sum(A[i, j, k] * y[j, i, 0] for i, j in product(range(3), range(4))) for k in range(5)]
    numbers = {"lhs_batch": (), "lhs_contract": (0, 1), "rhs_batch": (), "rhs_contract": (1, 0)}
    got = apply("dot", [A, y], "float32[5,2]", **numbers)
    np.testing.assert_allclose(got[:, 0], expected, rtol=1e-5)


CONVS = [
    {},
    {"padding": ((1, 2), (0, -1))},
    {"window_strides": (2, 3)},
    {"lhs_dilation": (2, 3), "padding": ((3, 1), (1, 1))},
    {"rhs_dilation": (2, 1)},
    {"feature_group_count": 2},
    {"batch_group_count": 2},
    {"lhs_spec": (0, 3, 1, 2), "rhs_spec": (3, 2, 0, 1), "out_spec": (0, 3, 1, 2)},
]


@pytest.mark.parametrize("changes", CONVS)
def test_conv(changes):
    attributes = {
        "batch_group_count": 1,
        "feature_group_count": 1,
        "lhs_dilation": (1, 1),
        "lhs_spec": (0, 1, 2, 3),
        "out_spec": (0, 1, 2, 3),
        "padding": ((0, 0), (0, 0)),
        "rhs_dilation": (1, 1),
        "rhs_spec": (0, 1, 2, 3),
        "window_strides": (1, 1),
        **changes,
    }
    groups, batch_groups = attributes["feature_group_count"], attributes["batch_group_count"]
    x = RANDOM.integers(-4, 4, (4, 4, 6, 7)).astype(np.float32)
    w = RANDOM.integers(-4, 4, (6, 4 // groups, 3, 2)).astype(np.float32)
    sizes = [
        window_count(*part)
        for part in zip(
            x.shape[2:],
            attributes["lhs_dilation"],
            attributes["padding"],
            w.shape[2:],
            attributes["rhs_dilation"],
            attributes["window_strides"],
            strict=True,
        )
    ]
    batches = 4 // batch_groups
    expected = np.zeros((batches, 6, *sizes), np.float32)
    for n, o, *place in np.ndindex(*expected.shape):
        source = n + batches * (o // (6 // batch_groups))
        for c, *tap in np.ndindex(*w.shape[1:]):
            at = [
                p * s + t * r - low
                for p, s, t, r, (low, _) in zip(
                    place,
                    attributes["window_strides"],
                    tap,
                    attributes["rhs_dilation"],
                    attributes["padding"],
                    strict=True,
                )
            ]
            inner = [divmod(a, d) for a, d in zip(at, attributes["lhs_dilation"], strict=True)]
            if all(rest == 0 and 0 <= q < size for (q, rest), size in zip(inner, x.shape[2:], strict=True)):
                feature = c + (o // (6 // groups)) * (4 // groups)
                expected[(n, o, *place)] += x[(source, feature, *(q for q, _ in inner))] * w[(o, c, *tap)]

    def laid_out(array, spec):
        return array.transpose(np.argsort(attributes[spec]))

    operands = [laid_out(x, "lhs_spec"), laid_out(w, "rhs_spec")]
    expect("conv", operands, laid_out(expected, "out_spec"), **attributes)


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize(
    "shape",
    [
        ((1, 1), (0, 0), 1, 2, 1),
        ((2, 1), (1, 2), 2, 3, 1),
        ((1, 2), (3, -1), 1, 2, 2),
        ((3, 1), (0, 0), 3, 2, 1),
    ],
)
def test_reduce_window(op, shape):
    """Along one axis of two: identity elements pad and fill the gaps."""
    (dilation, spread), (low, high), stride, window, _ = shape
    x = RANDOM.integers(1, 9, (2, 6)).astype(np.int32)
    limits = np.iinfo(np.int32)
    identity = {"sum": 0, "prod": 1, "max": limits.min, "min": limits.max}[op]
    count = window_count(6, dilation, (low, high), window, spread, stride)
    expected = np.full((2, count), identity, np.int64)
    for row, place, tap in product(range(2), range(count), range(window)):
        at, rest = divmod(place * stride + tap * spread - low, dilation)
        if rest == 0 and 0 <= at < 6:
            expected[row, place] = REDUCE[op][0](expected[row, place], int(x[row, at]))
    expect(
        "reduce_window",
        [x],
        expected.astype(np.int32),
        base_dilation=(1, dilation),
        op=op,
        strides=(1, stride),
        padding=((0, 0), (low, high)),
        window=(1, window),
        window_dilation=(1, spread),
    )


def test_reduce_window_of_padding_only():
    attributes = {
        "base_dilation": (1,),
        "strides": (1,),
        "padding": ((2, 0),),
        "window": (2,),
        "window_dilation": (1,),
    }
    expect("reduce_window", [np.float32([5])], np.float32([-INF, 5]), op="max", **attributes)


@pytest.mark.parametrize("select", ["ge", "le"])
@pytest.mark.parametrize("padding", [(0, 0), (1, 1)])
def test_select_and_scatter_add(select, padding):
    x = RANDOM.integers(0, 3, (2, 7)).astype(np.float32)
    count = window_count(7, 1, padding, 3, 1, 2)
    source = RANDOM.integers(1, 9, (2, count)).astype(np.float32)
    expected = np.zeros((2, 7), np.float32)
    for row, place in product(range(2), range(count)):
        inside = [i for i in range(place * 2 - padding[0], place * 2 - padding[0] + 3) if 0 <= i < 7]
        best = (max if select == "ge" else min)(inside, key=lambda i: x[row, i])  # the first of equals
        expected[row, best] += source[row, place]
    attributes = {"padding": ((0, 0), padding), "select": select, "strides": (1, 2), "window": (1, 3)}
    expect("select_and_scatter_add", [source, x], expected, **attributes)
