"""Dense linear algebra of small matrices (jax.lax.linalg). JAX lowers `qr` by way of `geqrf`."""

from __future__ import annotations

from collections.abc import Sequence

from jax_cocktail.errors import UnsupportedError
from jax_cocktail.primitives.equation import Equation
from jax_cocktail.primitives.rule import output_type, physical_type, rule
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import LoopUTask, Region
from jax_cocktail.utask.types import TensorType, Value

LARGEST, LARGEST_LU = 128, 64  # rows and columns: LAPACK is faster with larger matrices


@rule("cholesky", library=True)
def cholesky(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    _check(equation, inputs)
    return builder.emit("cholesky", inputs, inputs[0].type)


@rule("triangular_solve", library=True)
def triangular_solve(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    """Transposes a system whose matrix stands on the right: (X A)^T = A^T X^T."""
    _check(equation, inputs)
    params, (a, b) = equation.params, inputs
    right, lower = not params["left_side"], bool(params["lower"])
    if right:
        b = _transposed(builder, b)
    if right != bool(params["transpose_a"]):
        a, lower = _transposed(builder, a), not lower
    unit = bool(params["unit_diagonal"])
    x = builder.emit("triangular_solve", (a, b), b.type, lower=lower, unit_diagonal=unit)
    return _transposed(builder, x) if right else x


@rule("lu", library=True)
def lu(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Sequence[Value]:
    _check(equation, inputs, LARGEST_LU)
    types = [physical_type(output) for output in equation.outputs]
    factors, pivots = builder.emit_many("lu", inputs, [(t.dtype, t.shape) for t in types[:2]])
    return factors, pivots, _permutation(builder, pivots, types[2])


@rule("geqrf", library=True)
def geqrf(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Sequence[Value]:
    _check(equation, inputs)
    types = [physical_type(output) for output in equation.outputs]
    return builder.emit_many("geqrf", inputs, [(t.dtype, t.shape) for t in types])


@rule("householder_product", library=True)
def householder_product(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    _check(equation, inputs)
    return builder.emit("householder_product", inputs, inputs[0].type)


@rule("lu_pivots_to_permutation")
def lu_pivots_to_permutation(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    return _permutation(builder, inputs[0], output_type(equation))


def _permutation(builder: Builder, pivots: Value, result: TensorType) -> Value:
    """The rows after exchanges of row k and row pivots[k], k = 0, 1 ... Each place is followed back to where
    its row comes from, so that no element waits for another."""
    count, last = pivots.type.shape[-1], pivots.type.rank - 1
    rows = builder.emit("iota", (), result, dimension=last)
    if not count:
        return rows
    index, (place,) = builder.value("int64"), builder.like((rows,))
    with builder.region() as body:
        step = builder.binary("sub", builder.constant(count - 1), index)
        starts = [*[builder.constant(0)] * last, step]
        shape = (*pivots.type.shape[:-1], 1)
        pivot = builder.emit("dynamic_slice", (pivots, *starts), pivots.type.dtype, shape)
        pivot = builder.broadcast(pivot, result.shape, range(result.rank))
        own = builder.broadcast(builder.convert(step, result.dtype), result.shape, ())
        moved = builder.select(builder.compare("eq", place, pivot), own, place)
        before = builder.select(builder.compare("eq", place, own), pivot, moved)
    outputs = builder.like((rows,))
    region = Region((index, place), tuple(body), (before,))
    builder.out.append(LoopUTask((rows,), outputs, region, trip_count=count, source=builder.source))
    return outputs[0]


def _transposed(builder: Builder, x: Value) -> Value:
    rank = x.type.rank
    return builder.transpose(x, (*range(rank - 2), rank - 1, rank - 2))


def _check(equation: Equation, inputs: Sequence[Value], largest: int = LARGEST) -> None:
    """Raises UnsupportedError unless there are templates for these matrices."""
    if inputs[0].type.dtype not in ("float32", "float64"):
        raise UnsupportedError(f"{equation.primitive} of {inputs[0].type.dtype}")
    *_, rows, columns = inputs[0].type.shape
    if max(rows, columns) > largest:
        size = f"{rows} x {columns}; the limit is {largest} x {largest}"
        raise UnsupportedError(f"{equation.primitive} of a matrix of {size}")
