"""Type rules of the anchor operators: contractions, reductions, sorting, windows."""

from __future__ import annotations

from functools import partial
from typing import cast

from jax_cocktail.utask.exchange import WORDS
from jax_cocktail.utask.infer.common import (
    Rule,
    axes,
    axis,
    dtype_in,
    integer,
    pairs,
    positive,
    require,
    result_is,
    result_shape,
)
from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.sizes import is_integer
from jax_cocktail.utask.types import FLOATS, INTEGERS, ITEM_SIZE, TensorType

_NUMBERS = FLOATS | INTEGERS
_REDUCTIONS = ("sum", "prod", "max", "min", "and", "or", "xor")
_SELECTS = ("ge", "le")  # the element that a window keeps


def _accumulates(operator: UOperator) -> None:
    """Checks that the operands have one dtype, and that the result has the same kind and is not narrower."""
    x, y = (value.type for value in operator.inputs[:2])
    result = operator.output.type
    require(x.dtype == y.dtype, f"operands are {x} and {y}")
    require(ITEM_SIZE[result.dtype] >= ITEM_SIZE[x.dtype], f"result {result} is narrower than {x}")
    sorts = [_sort(t.dtype) for t in (x, result)]
    require(sorts[0] == sorts[1], f"operands are {x}, the result is {result}")


def _sort(dtype: str) -> str:
    return "float" if dtype in FLOATS else "integer" if dtype in INTEGERS else dtype


def _dot(operator: UOperator) -> None:
    operands = [value.type for value in operator.inputs]
    alike = len(operands) >= 2 and operands == operands[:2] * (len(operands) // 2)
    require(alike, f"operands are {', '.join(map(str, operands))}")
    _accumulates(operator)
    x, y = operands[:2]
    sides = []
    for side, type_ in (("lhs", x), ("rhs", y)):
        batch = axes(operator, f"{side}_batch", type_.rank)
        contract = axes(operator, f"{side}_contract", type_.rank)
        require(not set(batch) & set(contract), f"{side}: an axis is batch and contracted")
        free = [type_.shape[d] for d in range(type_.rank) if d not in batch and d not in contract]
        sides.append(([type_.shape[d] for d in batch], [type_.shape[d] for d in contract], free))
    (batch_x, contract_x, free_x), (batch_y, contract_y, free_y) = sides
    require(batch_x == batch_y, f"batch axes {batch_x} and {batch_y} differ")
    require(contract_x == contract_y, f"contracted axes {contract_x} and {contract_y} differ")
    result_shape(operator, (*batch_x, *free_x, *free_y))


def window_count(
    size: int, dilation: int, pad: tuple[int, int], window: int, spread: int, stride: int
) -> int:
    """The number of windows of `window` elements, `spread` apart, that fit along an axis."""
    whole = ((size - 1) * dilation + 1 if size else 0) + sum(pad)
    reach = (window - 1) * spread + 1 if window else 0
    return max((whole - reach) // stride + 1, 0) if whole >= reach else 0


def _conv(operator: UOperator) -> None:
    _accumulates(operator)
    x, w = (value.type for value in operator.inputs)
    rank = x.rank
    require(rank >= 2 and w.rank == rank, f"operands are {x} and {w}")
    specs = [axes(operator, f"{side}_spec", rank) for side in ("lhs", "rhs", "out")]
    require(all(len(spec) == rank for spec in specs), "a spec does not name every axis")
    require(operator.output.type.rank == rank, f"result is {operator.output.type}")
    lhs = [x.shape[d] for d in specs[0]]
    rhs = [w.shape[d] for d in specs[1]]
    groups, batch_groups = integer(operator, "feature_group_count"), integer(operator, "batch_group_count")
    require(groups >= 1 and batch_groups >= 1, "group counts are at least 1")
    require(groups == 1 or batch_groups == 1, "either feature groups or batch groups")
    require(rhs[1] * groups == lhs[1], f"kernel has {rhs[1]} input features, operand {lhs[1]}")
    require(rhs[0] % (groups * batch_groups) == 0, "output features are not divided by the groups")
    require(lhs[0] % batch_groups == 0, "batch is not divided by batch_group_count")
    spatial = rank - 2
    parts = zip(
        lhs[2:],
        positive(operator, "lhs_dilation", spatial),
        pairs(operator, "padding", spatial),
        rhs[2:],
        positive(operator, "rhs_dilation", spatial),
        positive(operator, "window_strides", spatial),
        strict=True,
    )
    expected = [lhs[0] // batch_groups, rhs[0], *(window_count(*part) for part in parts)]
    found = [operator.output.type.shape[d] for d in specs[2]]
    require(found == expected, f"result is {found} (batch, feature, spatial...), expected {expected}")


def _matrix(operator: UOperator) -> TensorType:
    """The type of the first operand: a batch of matrices."""
    a = operator.inputs[0].type
    dtype_in(operator, a.dtype, ("float32", "float64"))
    require(a.rank >= 2, f"{a} is no matrix")
    return a


def _square(operator: UOperator) -> TensorType:
    a = _matrix(operator)
    require(a.shape[-1] == a.shape[-2], f"{a} is not square")
    return a


def _cholesky(operator: UOperator) -> None:
    result_is(operator, _square(operator))


def _factors(operator: UOperator, dtype: str = "") -> None:
    """Factors in one matrix, and a vector."""
    a = _matrix(operator)
    result_is(operator, a)
    result_is(operator, TensorType(dtype or a.dtype, (*a.shape[:-2], min(a.shape[-2:]))), 1)


def _householder_product(operator: UOperator) -> None:
    a, taus = _matrix(operator), operator.inputs[1].type
    require(a.shape[-2] >= a.shape[-1], f"{a} has more columns than rows")
    fits = taus.dtype == a.dtype and taus.rank == a.rank - 1 and taus.shape[:-1] == a.shape[:-2]
    require(fits and taus.shape[-1] <= a.shape[-1], f"the vectors are {a}, the factors {taus}")
    result_is(operator, a)


def _eigh(operator: UOperator) -> None:
    a = _square(operator)
    require(isinstance(operator["lower"], bool), "lower is not a bool")
    result_is(operator, a)
    result_is(operator, TensorType(a.dtype, a.shape[:-1]), 1)


def _singular_values(operator: UOperator) -> None:
    a = _matrix(operator)
    result_is(operator, TensorType(a.dtype, (*a.shape[:-2], min(a.shape[-2:]))))


def _svd(operator: UOperator) -> None:
    """There are as many vectors as singular values, or all."""
    _singular_values(operator)
    a, left = _matrix(operator), operator.outputs[1].type
    *batch, rows, columns = a.shape
    least = min(rows, columns)
    some = left.shape[-1] == least and operator.outputs[2].type.shape[-2] == least
    result_is(operator, TensorType(a.dtype, (*batch, rows, least if some else rows)), 1)
    result_is(operator, TensorType(a.dtype, (*batch, least if some else columns, columns)), 2)


def _triangular_solve(operator: UOperator) -> None:
    a, b = _square(operator), operator.inputs[1].type
    fits = b.dtype == a.dtype and b.rank == a.rank and b.shape[:-1] == a.shape[:-1]
    require(fits, f"the matrix is {a}, the right-hand side {b}")
    for name in ("lower", "unit_diagonal"):
        require(isinstance(operator[name], bool), f"{name} is not a bool")
    result_is(operator, b)


def _reduce(operator: UOperator) -> None:
    x = operator.inputs[0].type
    require(operator["op"] in _REDUCTIONS, f"op is one of {_REDUCTIONS}")
    bitwise = operator["op"] in ("and", "or", "xor")
    dtype_in(operator, x.dtype, INTEGERS | {"bool"} if bitwise else _NUMBERS)
    reduced = axes(operator, "axes", x.rank)
    require(bool(reduced), "no axes")
    result_is(operator, TensorType(x.dtype, tuple(n for d, n in enumerate(x.shape) if d not in reduced)))


def _arg_reduce(operator: UOperator) -> None:
    x, result = operator.inputs[0].type, operator.output.type
    require(operator["op"] in ("max", "min"), "op is max or min")
    dtype_in(operator, x.dtype, _NUMBERS)
    require(result.dtype in INTEGERS, f"result is {result}, expected integers")
    along = axis(operator, "axis", x.rank)
    require(x.shape[along] > 0, "the reduced axis is empty")
    result_shape(operator, tuple(n for d, n in enumerate(x.shape) if d != along))


def _cumulative(operator: UOperator) -> None:
    x = operator.inputs[0].type
    ops = ("sum", "prod", "max", "min", "logsumexp")
    require(operator["op"] in ops, f"op is one of {ops}")
    dtype_in(operator, x.dtype, FLOATS if operator["op"] == "logsumexp" else _NUMBERS)
    axis(operator, "axis", x.rank)
    require(isinstance(operator["reverse"], bool), "reverse is not a bool")
    result_is(operator, x)


def _sorted(operator: UOperator) -> None:
    require(bool(operator.inputs), "no operands")
    shape = operator.inputs[0].type.shape
    axis(operator, "dimension", len(shape))
    keys = integer(operator, "num_keys")
    require(1 <= keys <= len(operator.inputs), f"num_keys {keys} of {len(operator.inputs)} operands")
    for index, value in enumerate(operator.inputs):
        require(value.type.shape == shape, "operands differ in shape")
        result_is(operator, value.type, index)


def _top_k(operator: UOperator) -> None:
    x = operator.inputs[0].type
    dtype_in(operator, x.dtype, _NUMBERS)
    along, k = axis(operator, "axis", x.rank), integer(operator, "k")
    require(0 <= k <= x.shape[along], f"k {k} of {x.shape[along]} elements")
    shape = (*x.shape[:along], k, *x.shape[along + 1 :])
    result_is(operator, TensorType(x.dtype, shape))
    result_is(operator, TensorType("int32", shape), 1)


def _reduce_window(operator: UOperator) -> None:
    x = operator.inputs[0].type
    require(operator["op"] in _REDUCTIONS[:4], f"op is one of {_REDUCTIONS[:4]}")
    dtype_in(operator, x.dtype, _NUMBERS)
    parts = zip(
        x.shape,
        positive(operator, "base_dilation", x.rank),
        pairs(operator, "padding", x.rank),
        positive(operator, "window", x.rank),
        positive(operator, "window_dilation", x.rank),
        positive(operator, "strides", x.rank),
        strict=True,
    )
    result_is(operator, TensorType(x.dtype, tuple(window_count(*part) for part in parts)))


def _select_and_scatter_add(operator: UOperator) -> None:
    source, x = (value.type for value in operator.inputs)
    require(operator["select"] in _SELECTS, "select is ge or le")
    dtype_in(operator, x.dtype, _NUMBERS)
    ones = (1,) * x.rank
    padding = pairs(operator, "padding", x.rank)
    window, strides = positive(operator, "window", x.rank), positive(operator, "strides", x.rank)
    parts = zip(x.shape, ones, padding, window, ones, strides, strict=True)
    expected = TensorType(x.dtype, tuple(window_count(*part) for part in parts))
    require(source == expected, f"source is {source}, expected {expected}")
    result_is(operator, x)


def _copy(operator: UOperator) -> None:
    result_is(operator, operator.inputs[0].type)


def _exchange(operator: UOperator) -> None:
    blocks, count = operator["blocks"], len(operator.inputs)
    require(count > 0, "an exchange has operands")
    require(isinstance(blocks, tuple) and len(blocks) == count, "an exchange has a block for each operand")
    assert isinstance(blocks, tuple)
    for position, (value, block) in enumerate(zip(operator.inputs, blocks, strict=True)):
        fits = isinstance(block, tuple) and len(block) == 4 and all(map(is_integer, block))
        require(fits, "a block is not (axis, size, parts, first)")
        axis_, size, parts, first = numbers = cast(tuple[int, int, int, int], block)
        require(0 <= axis_ < value.type.rank, f"axis {axis_} is no axis of {value.type}")
        some = min(size, parts) > 0 and first >= 0
        require(some, f"block {numbers} has no size, no parts or no first unit")
        room = size * parts <= value.type.shape[axis_]
        require(room, f"{parts} blocks of {size} are more than axis {axis_} of {value.type}")
        dtype_in(operator, value.type.dtype, WORDS)
        result_is(operator, value.type, position)


def _barrier(operator: UOperator) -> None:
    require(not operator.outputs, "a barrier has no results")


def _fail(operator: UOperator) -> None:
    status, text = operator.inputs[0].type, operator["text"]
    require(status == TensorType("int32"), f"a status is int32[], not {status}")
    require(isinstance(text, str) and bool(text.strip()), "text is empty")
    result_is(operator, status)


def _units(operator: UOperator) -> None:
    result_is(operator, TensorType("int32"))


ANCHORS: dict[str, Rule] = {
    "units": _units,
    "fail": _fail,
    "copy": _copy,
    "arrive": _barrier,
    "wait": _barrier,
    "block_barrier": _barrier,
    "exchange": _exchange,
    "dot": _dot,
    "conv": _conv,
    "cholesky": _cholesky,
    "geqrf": _factors,
    "eigh": _eigh,
    "householder_product": _householder_product,
    "lu": partial(_factors, dtype="int32"),
    "singular_values": _singular_values,
    "svd": _svd,
    "triangular_solve": _triangular_solve,
    "reduce": _reduce,
    "arg_reduce": _arg_reduce,
    "cumulative": _cumulative,
    "sort": _sorted,
    "top_k": _top_k,
    "reduce_window": _reduce_window,
    "select_and_scatter_add": _select_and_scatter_add,
}
