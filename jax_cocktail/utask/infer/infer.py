"""Type rules of the operator kinds, for operands, attributes and results.

`fault` describes an invalid operator; the verifier adds its location.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax_cocktail.utask.infer.anchors import ANCHORS
from jax_cocktail.utask.infer.common import (
    Fault,
    Rule,
    axes,
    axis,
    dtype_in,
    equal_types,
    index_scalars,
    integer,
    integers,
    require,
    result_is,
    result_shape,
)
from jax_cocktail.utask.ir import UOperator, once
from jax_cocktail.utask.operators import KINDS
from jax_cocktail.utask.types import FLOATS, INTEGERS, ITEM_SIZE, TensorType

_NUMBERS = FLOATS | INTEGERS
_BITS = INTEGERS | {"bool"}
_TAKEN = {"floats": FLOATS, "integers": INTEGERS, "numbers": _NUMBERS, "bits": _BITS, "any": _NUMBERS | _BITS}
_MODES = ("clip", "fill", "promise_in_bounds")


@once
def fault(operator: UOperator) -> str:
    """The error in the types or attributes of `operator`, or "" if they are valid."""
    try:
        results = operator.facts.results
        count = len(operator.inputs) if results is None else results
        require(len(operator.outputs) == count, f"has {len(operator.outputs)} results, not {count}")
        RULES[operator.kind](operator)
    except Fault as found:
        return str(found)
    return ""


# -- elementwise ---------------------------------------------------------------------------------------------
def _elementwise(allowed: frozenset[str], result: str = "") -> Rule:
    """A rule for operands of one type with an allowed dtype. `result`: the result's dtype if it differs."""

    def check(operator: UOperator) -> None:
        x = operator.inputs[0].type
        equal_types(operator, operator.inputs)
        dtype_in(operator, x.dtype, allowed)
        result_is(operator, TensorType(result or x.dtype, x.shape))

    return check


def _integer_pow(operator: UOperator) -> None:
    _elementwise(_NUMBERS)(operator)
    exponent = integer(operator, "exponent")
    require(exponent >= 0 or operator.output.type.dtype in FLOATS, "negative power of integers")


def _convert(operator: UOperator) -> None:
    result_shape(operator, operator.inputs[0].type.shape)


def _bitcast(operator: UOperator) -> None:
    source, target = operator.inputs[0].type.dtype, operator.output.type.dtype
    _convert(operator)
    require(ITEM_SIZE[source] == ITEM_SIZE[target], f"{source} and {target} differ in width")
    require((source == "bool") == (target == "bool"), "bool has no other bit pattern")


def _reduce_precision(operator: UOperator) -> None:
    _elementwise(FLOATS)(operator)
    require(integer(operator, "exponent_bits") >= 1, "at least one exponent bit")
    require(integer(operator, "mantissa_bits") >= 0, "mantissa bits are not negative")


def _select(operator: UOperator) -> None:
    predicate, *values = operator.inputs
    equal_types(operator, values)
    require(predicate.type == TensorType("bool", values[0].type.shape), f"predicate is {predicate.type}")
    result_is(operator, values[0].type)


def _threefry(operator: UOperator) -> None:
    _elementwise(frozenset({"uint32"}))(operator)
    require(integer(operator, "word") in (0, 1), "word is 0 or 1")


# -- movement ------------------------------------------------------------------------------------------------
def _constant(operator: UOperator) -> None:
    data = operator["data"]
    require(isinstance(data, bytes), "data is not bytes")
    assert isinstance(data, bytes)
    nbytes = operator.output.type.nbytes
    require(len(data) == nbytes, f"data has {len(data)} bytes, the result {nbytes}")
    if operator.output.type.dtype == "bool":
        require(set(data) <= {0, 1}, "a bool byte is neither 0 nor 1")


def _empty(operator: UOperator) -> None:
    """Allows any result."""


def _iota(operator: UOperator) -> None:
    axis(operator, "dimension", operator.output.type.rank)
    dtype_in(operator, operator.output.type.dtype, _NUMBERS)


def _same_dtype(operator: UOperator) -> TensorType:
    """Checks that the result has the first operand's dtype, and returns the operand's type."""
    x = operator.inputs[0].type
    require(operator.output.type.dtype == x.dtype, f"result is {operator.output.type}, operand {x}")
    return x


def _broadcast(operator: UOperator) -> None:
    x, result = _same_dtype(operator), operator.output.type
    targets = axes(operator, "dimensions", result.rank)
    require(len(targets) == x.rank, "one dimension per operand axis")
    for size, target in zip(x.shape, targets, strict=True):
        require(size in (1, result.shape[target]), f"axis of size {size} does not spread to {result}")


def _reshape(operator: UOperator) -> None:
    x = _same_dtype(operator)
    require(x.size == operator.output.type.size, f"{x} and {operator.output.type} differ in size")


def _transpose(operator: UOperator) -> None:
    x = _same_dtype(operator)
    permutation = axes(operator, "permutation", x.rank)
    require(len(permutation) == x.rank, "permutation names every axis")
    result_shape(operator, tuple(x.shape[d] for d in permutation))


def _slice(operator: UOperator) -> None:
    x, result = _same_dtype(operator), operator.output.type
    starts, strides = integers(operator, "starts", x.rank), integers(operator, "strides", x.rank)
    require(result.rank == x.rank, f"result is {result}, operand {x}")
    for start, stride, size, whole in zip(starts, strides, result.shape, x.shape, strict=True):
        require(start >= 0 and stride >= 1, "a start is negative or a stride below 1")
        require(not size or start + (size - 1) * stride < whole, f"reads past {x}")


def _reverse(operator: UOperator) -> None:
    axes(operator, "dimensions", operator.inputs[0].type.rank)
    result_is(operator, operator.inputs[0].type)


def _pad(operator: UOperator) -> None:
    x, result = _same_dtype(operator), operator.output.type
    require(operator.inputs[1].type == TensorType(x.dtype), f"filler is {operator.inputs[1].type}")
    require(result.rank == x.rank, f"result is {result}, operand {x}")
    integers(operator, "low", x.rank)
    require(all(n >= 0 for n in integers(operator, "interior", x.rank)), "interior padding is negative")


def _concatenate(operator: UOperator) -> None:
    require(bool(operator.inputs), "no operands")
    x = _same_dtype(operator)
    along = axis(operator, "dimension", x.rank)
    for operand in operator.inputs:
        other = operand.type
        across = (*other.shape[:along], *x.shape[along : along + 1], *other.shape[along + 1 :])
        require(other.dtype == x.dtype and across == x.shape, f"operands {x} and {other} do not join")
    total = sum(operand.type.shape[along] for operand in operator.inputs)
    result_shape(operator, (*x.shape[:along], total, *x.shape[along + 1 :]))


def _part(operator: UOperator, whole: TensorType, part: TensorType) -> None:
    require(part.dtype == whole.dtype and part.rank == whole.rank, f"{part} is no part of {whole}")
    fits = all(n <= size for n, size in zip(part.shape, whole.shape, strict=True))
    require(fits, f"{part} does not fit into {whole}")


def _dynamic_slice(operator: UOperator) -> None:
    require(bool(operator.inputs), "no operands")
    whole = operator.inputs[0].type
    index_scalars(operator, operator.inputs[1:], whole.rank)
    _part(operator, whole, operator.output.type)


def _dynamic_update_slice(operator: UOperator) -> None:
    require(len(operator.inputs) >= 2, "no update")
    whole = operator.inputs[0].type
    index_scalars(operator, operator.inputs[2:], whole.rank)
    _part(operator, whole, operator.inputs[1].type)
    result_is(operator, whole)


def _gather(operator: UOperator) -> None:
    x, indices = (value.type for value in operator.inputs)
    result = operator.output.type
    _same_dtype(operator)
    require(operator["mode"] in _MODES, f"mode is one of {_MODES}")
    fill = operator["fill_value"]
    require(isinstance(fill, bytes) and len(fill) == ITEM_SIZE[x.dtype], "fill_value is not one element")
    require(indices.dtype in INTEGERS and indices.rank >= 1, f"indices are {indices}")
    sizes = integers(operator, "slice_sizes", x.rank)
    fit = all(0 <= n <= size for n, size in zip(sizes, x.shape, strict=True))
    require(fit or not result.size, "slice_sizes do not fit")  # without any row, slices still have one
    batching = axes(operator, "operand_batching_dims", x.rank)
    collapsed = axes(operator, "collapsed_slice_dims", x.rank)
    require(not set(batching) & set(collapsed), "a dimension is collapsed and batching")
    require(all(sizes[d] <= 1 for d in (*batching, *collapsed)), "a dropped dimension has a size above 1")
    _index_map(operator, "start_index_map", indices, x.rank)
    _batching_pairs(operator, "start_indices_batching_dims", batching, x, indices)
    window = [sizes[d] for d in range(x.rank) if d not in batching and d not in collapsed]
    _batch_and_window(operator, "offset_dims", result, indices, window)


def _index_map(operator: UOperator, name: str, indices: TensorType, rank: int) -> None:
    mapped = axes(operator, name, rank)
    require(len(mapped) == indices.shape[-1], f"{name} names one dimension per index component")


def _batching_pairs(
    operator: UOperator, name: str, batching: Sequence[int], x: TensorType, indices: TensorType
) -> None:
    others = axes(operator, name, indices.rank - 1)
    require(len(others) == len(batching), f"{name} pairs with operand_batching_dims")
    for d, b in zip(batching, others, strict=True):
        require(x.shape[d] == indices.shape[b], "batching dimensions differ in size")


def _batch_and_window(
    operator: UOperator, name: str, whole: TensorType, indices: TensorType, window: Sequence[int]
) -> None:
    """Checks that `whole` has the batch axes of `indices`, and the window at the axes in attribute `name`."""
    places = axes(operator, name, whole.rank)
    require(list(places) == sorted(places), f"{name} is not sorted")
    require([whole.shape[d] for d in places] == list(window), f"window {list(window)} is not in {whole}")
    batch = [whole.shape[d] for d in range(whole.rank) if d not in places]
    require(batch == list(indices.shape[:-1]), f"batch axes of {whole} are not those of {indices}")


def _scatter(operator: UOperator) -> None:
    x, indices, updates = (value.type for value in operator.inputs)
    result_is(operator, x)
    require(updates.dtype == x.dtype, f"updates are {updates}")
    modes, ops = ("clip", "fill_or_drop", "promise_in_bounds"), ("set", "add", "sub", "mul", "min", "max")
    require(operator["mode"] in modes, f"mode is one of {modes}")
    require(operator["op"] in ops, f"op is one of {ops}")
    require(indices.dtype in INTEGERS and indices.rank >= 1, f"indices are {indices}")
    batching = axes(operator, "operand_batching_dims", x.rank)
    inserted = axes(operator, "inserted_window_dims", x.rank)
    require(not set(batching) & set(inserted), "a dimension is inserted and batching")
    _index_map(operator, "scatter_dims_to_operand_dims", indices, x.rank)
    _batching_pairs(operator, "scatter_indices_batching_dims", batching, x, indices)
    places = axes(operator, "update_window_dims", updates.rank)
    window = [updates.shape[d] for d in places]
    kept = [x.shape[d] for d in range(x.rank) if d not in batching and d not in inserted]
    require(len(window) == len(kept), "update_window_dims do not match the operand's window")
    require(all(n <= size for n, size in zip(window, kept, strict=True)), f"{updates} do not fit into {x}")
    _batch_and_window(operator, "update_window_dims", updates, indices, window)


def _rules() -> dict[str, Rule]:
    plain = (kind for kind in KINDS.values() if kind.takes)
    rules = {kind.name: _elementwise(_TAKEN[kind.takes], kind.gives) for kind in plain}
    rules.update(
        integer_pow=_integer_pow,
        convert=_convert,
        bitcast=_bitcast,
        reduce_precision=_reduce_precision,
        select=_select,
        threefry2x32=_threefry,
        constant=_constant,
        empty=_empty,
        iota=_iota,
        broadcast=_broadcast,
        reshape=_reshape,
        transpose=_transpose,
        slice=_slice,
        reverse=_reverse,
        pad=_pad,
        concatenate=_concatenate,
        dynamic_slice=_dynamic_slice,
        dynamic_update_slice=_dynamic_update_slice,
        gather=_gather,
        scatter=_scatter,
    )
    return rules | ANCHORS


RULES: dict[str, Rule] = _rules()
