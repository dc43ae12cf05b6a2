"""Dense linear algebra of small matrices (jax.lax.linalg). JAX lowers `qr` by way of `geqrf`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from jax_cocktail.errors import UnsupportedError
from jax_cocktail.primitives.control import Scan
from jax_cocktail.primitives.equation import Equation
from jax_cocktail.primitives.rule import output_type, physical_type, rule, spread
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import LoopUTask, Region
from jax_cocktail.utask.lapack import LARGEST
from jax_cocktail.utask.operators import KINDS
from jax_cocktail.utask.types import TensorType, Value


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
    _check(equation, inputs)
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


@rule("ormqr", library=True)
def ormqr(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    """Applies one reflector after the other: the square factor is never formed. It needs no template."""
    a, taus, c = inputs
    if a.type.dtype not in ("float32", "float64"):
        raise UnsupportedError(f"ormqr of {a.type.dtype}")
    rank, (*batch, rows, _), count = a.type.rank, a.type.shape, taus.type.shape[-1]
    left = bool(equation.params["left"])
    below = builder.slice(a, (0,) * rank, (*batch, rows, count))
    row, column = (builder.emit("iota", (), "int32", below.type.shape, dimension=rank - k) for k in (2, 1))
    fill = [builder.full(x, a.type.dtype, below.type.shape) for x in (1, 0)]
    rest = builder.select(builder.compare("eq", row, column), *fill)
    vectors = builder.select(builder.compare("gt", row, column), below, rest)
    vectors = builder.transpose(vectors, (rank - 1, *range(rank - 1)))
    taus = builder.transpose(taus, (rank - 2, *range(rank - 2)))
    axes, free = tuple(range(rank - 2)), rank - 1 if left else rank - 2
    shape, along = (*batch, c.type.shape[free]), (*axes, rank - 2 if left else rank - 1)

    def reflect(carried: Sequence[Value], reflector: Sequence[Value]) -> Sequence[Value]:
        (x,), (vector, tau) = carried, reflector
        operands, contracted = (x, vector), {"lhs_contract": (along[-1],), "rhs_contract": (rank - 2,)}
        product = builder.emit(
            "dot", operands, x.type.dtype, shape, lhs_batch=axes, rhs_batch=axes, **contracted
        )
        product = builder.binary("mul", spread(builder, tau, shape), product)
        across = builder.broadcast(product, x.type.shape, (*axes, free))
        update = builder.binary("mul", across, builder.broadcast(vector, x.type.shape, along))
        return (builder.binary("sub", x, update),)

    scan = Scan(count, reverse=left != bool(equation.params["transpose"]), stacked=())
    return scan.emit(builder, (c,), (vectors, taus), reflect)[0]


@rule("eigh", library=True)
def eigh(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Sequence[Value]:
    _check_spectrum(equation, inputs)
    algorithm = equation.params.get("algorithm")
    if algorithm is not None and algorithm.name != "QR":
        raise UnsupportedError(f"eigh by the algorithm {algorithm.name}")
    types = [physical_type(output) for output in equation.outputs]
    results = [(t.dtype, t.shape) for t in types]
    return builder.emit_many("eigh", inputs, results, lower=bool(equation.params["lower"]))


@rule("svd", library=True)
def svd(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Sequence[Value]:
    _check_spectrum(equation, inputs)
    algorithm = equation.params.get("algorithm")
    if algorithm is not None and algorithm.name not in ("DEFAULT", "DIVIDE_AND_CONQUER"):
        raise UnsupportedError(f"svd by the algorithm {algorithm.name}")
    types = [physical_type(output) for output in equation.outputs]
    kind = "svd" if equation.params["compute_uv"] else "singular_values"
    return builder.emit_many(kind, inputs, [(t.dtype, t.shape) for t in types])


def _check_spectrum(equation: Equation, inputs: Sequence[Value]) -> None:
    """Raises UnsupportedError unless LAPACK is called for these matrices."""
    _check(equation, inputs)
    subset, least = equation.params.get("subset_by_index"), min(inputs[0].type.shape[-2:])
    if subset not in (None, (0, least)) or not least:
        raise UnsupportedError(f"{equation.primitive} of an empty matrix, or of part of the spectrum")


@rule("tridiagonal_solve", library=True)
def tridiagonal_solve(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    """Gaussian elimination with exchanges of neighbouring rows, as LAPACK's `gtsv`. It needs no template: a
    loop down the rows, and one up."""
    if inputs[0].type.dtype not in ("float32", "float64"):
        raise UnsupportedError(f"tridiagonal_solve of {inputs[0].type.dtype}")
    if equation.params.get("perturb_singular"):
        raise UnsupportedError("tridiagonal_solve with perturb_singular=True")
    b = inputs[-1]
    rank, count = b.type.rank, b.type.shape[-2]
    if not b.type.size:
        return b
    # The rows come first. What is right of the last row, or below it, is zero.
    columns = [builder.transpose(x, (rank - 2, *range(rank - 2))) for x in inputs[:3]]
    rows = [*columns, builder.transpose(b, (rank - 2, *range(rank - 2), rank - 1))]
    rows[2] = _moved_up(builder, rows[2], 0, count - 1)
    below = [_moved_up(builder, x, 1, count) for x in rows]
    singular = builder.full(False, "bool", rows[0].type.shape[1:])
    first = [builder.reshape(builder.slice(x, (0,), (1, *x.type.shape[1:])), x.type.shape[1:]) for x in rows]
    one, many = rows[0].type, rows[3].type
    down = Scan(count, reverse=False, stacked=(one, one, one, many))
    start = (*first[1:], singular)
    *_, singular, pivots, right, second, left = down.emit(builder, start, below, partial(_eliminate, builder))
    zero = builder.full(0, many.dtype, many.shape[1:])
    up = Scan(count, reverse=True, stacked=(many,))
    *_, x = up.emit(builder, (zero, zero), (pivots, right, second, left), partial(_substitute, builder))
    x = builder.transpose(x, (*range(1, rank - 1), 0, rank - 1))
    failed = builder.broadcast(singular, x.type.shape, range(rank - 2))
    return builder.select(failed, builder.full(np.nan, x.type.dtype, x.type.shape), x)


def _moved_up(builder: Builder, x: Value, rows: int, end: int) -> Value:
    """The rows of an array up to `end`, moved up by some; zeros below."""
    shape = x.type.shape[1:]
    kept = builder.slice(x, (rows,), (end - rows, *shape))
    none, zero = (0,) * x.type.rank, builder.constant(0, x.type.dtype)
    return builder.emit("pad", (kept, zero), x.type, low=none, interior=none)


def _eliminate(builder: Builder, carried: Sequence[Value], below: Sequence[Value]) -> Sequence[Value]:
    """Eliminates the first element of the next row. That of the larger magnitude becomes the pivot.

    The row so far has a diagonal element, one right of it, and a right-hand side.
    """
    diagonal, upper, side, singular = carried
    next_lower, next_diagonal, next_upper, next_side = below
    larger = builder.compare("ge", *(builder.emit("abs", (x,), x.type) for x in (diagonal, next_lower)))

    def pair(kept: Value, other: Value) -> tuple[Value, Value]:
        """An element of the pivot's row, and of the other one."""
        keeps = spread(builder, larger, kept.type.shape)
        return builder.select(keeps, kept, other), builder.select(keeps, other, kept)

    zero = builder.full(0, upper.type.dtype, upper.type.shape)
    (pivot, rest), (right, a), (second, b) = (
        pair(diagonal, next_lower),
        pair(upper, next_diagonal),
        pair(zero, next_upper),
    )
    left, c = pair(side, next_side)
    factor = builder.binary("div", rest, pivot)

    def reduced(x: Value, by: Value) -> Value:
        scaled = builder.binary("mul", spread(builder, factor, by.type.shape), by)
        return builder.binary("sub", x, scaled)

    singular = builder.binary("or", singular, builder.compare("eq", pivot, zero))
    following = reduced(a, right), reduced(b, second), reduced(c, left), singular
    return *following, pivot, right, second, left


def _substitute(builder: Builder, below: Sequence[Value], row: Sequence[Value]) -> Sequence[Value]:
    """Solves a row for its unknown. `below`: the next two."""
    pivot, right, second, left = row
    for factor, x in zip((right, second), below, strict=True):
        left = builder.binary("sub", left, builder.binary("mul", spread(builder, factor, x.type.shape), x))
    x = builder.binary("div", left, spread(builder, pivot, left.type.shape))
    return x, below[0], x


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


def _check(equation: Equation, inputs: Sequence[Value]) -> None:
    """Raises UnsupportedError unless these matrices have a template, or LAPACK takes them."""
    name, a = equation.primitive, inputs[0].type
    if a.dtype not in ("float32", "float64"):
        raise UnsupportedError(f"{name} of {a.dtype}")
    largest = LARGEST if equation.params["platform"] == "cpu" else KINDS[name].largest
    if not largest:
        raise UnsupportedError(f"{name} on a GPU")
    *_, rows, columns = a.shape
    if max(rows, columns) > largest:
        size = f"{rows} x {columns}; the limit is {largest} x {largest}"
        raise UnsupportedError(f"{name} of a matrix of {size}")
