"""Sums and sums of squared deviations of one large array become those of parts that stay in a cache.

The deviations are from a mean, which needs the whole sum first. So an array that leaves the cache would come
from memory twice:

    s = sum(x)                              s_p, c_p = sum(part), s_p / length             # of each part
    q = sum((x - c)^2)          ->          r_p, q_p = sum(part - c_p), sum((part - c_p)^2)
                                            s = sum(s_p)
                                            q = sum(q_p + (c_p - c) (2 r_p + length (c_p - c)))

The last line is exact for any c, which need not be the mean. No large terms of it cancel (Chan, Golub and
LeVeque, Algorithms for computing the sample variance, 1983): r_p is nearly zero, the error of c_p as a mean.
The numbers of the parts are combined in f64, in a fixed order.

A part is read twice while it is in the cache of a core: placement takes tiles that fit (`cost.reuse`). These
arrays stay as they are:

- smaller ones, and those with kept axes that placement would divide: all but a few columns;
- those whose deviations have other sums, too, for which the array is read again anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, prod

from jax_cocktail.device.host import SERVER
from jax_cocktail.device.tuning import CORE_PARTIALS, DivisionTuning
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.split_reductions import Axes, Division, division, reduction
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import Region, Statement, UOperator, UProgram, is_a
from jax_cocktail.utask.layout import divisors
from jax_cocktail.utask.rewrite import map_body, map_regions
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import ITEM_SIZE, TensorType, Value

Definitions = Mapping[Value, UOperator]


def split_moments(program: UProgram) -> UProgram:
    """Returns its argument if no large array has both sums."""
    found = map_regions(program, partial(_region, fresh=FreshValues(program)))
    return program if found is program else simplify(found)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of an array, and the number of tiles. A tile is some parts that one unit computes together:
    all of an index of the outermost axis, or equally many parts of that axis."""

    division: Division
    tiles: int


def _parts(x: TensorType, axes: Axes) -> _Parts | None:
    """None if the array stays as it is. Every tile fits into the second level of cache, and less than one run
    of the axis is left over."""
    limits, near = DivisionTuning(), SERVER.shared.near
    kept = [d for d, n in enumerate(x.shape) if n != 1 and d not in axes]
    run = prod(x.shape[kept[0] :]) * ITEM_SIZE[x.dtype] if kept else 0
    if x.dtype not in ("float32", "float64") or x.nbytes <= near or run > limits.piece_bytes:
        return None
    wanted = max(CORE_PARTIALS.parts, -(-x.nbytes // CORE_PARTIALS.moment_bytes))
    found = division(x, axes, replace(CORE_PARTIALS, parts=wanted))
    if found is None:
        return None
    if found.axis is not None:
        found = replace(found, parts=x.shape[found.axis] // found.length)
    least = ceil(x.nbytes / (limits.kept * near))
    even = [n for n in divisors(found.parts) if n >= least]
    tiles = x.shape[found.whole[0]] if found.whole else min(even, default=0)
    cache, _ = SERVER.levels[1]
    totals = 8 * tiles * prod(x.shape[d] for d in kept)
    # `split_reductions` would cut longer totals without regard to tiles
    return _Parts(found, tiles) if x.nbytes <= tiles * cache and totals < CORE_PARTIALS.bytes else None


# -- what is there -------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Pair:
    """The two reductions. `centre`: the broadcast of what is subtracted from each element."""

    total: UOperator
    squares: UOperator
    centre: UOperator
    parts: _Parts


def _pairs(region: Region) -> Iterator[_Pair]:
    """Each second reduction with the first one of the same array and axes."""
    definitions: dict[Value, UOperator] = {}
    totals: dict[tuple[Value, Axes], UOperator] = {}
    for statement in region.body:
        if isinstance(statement, UOperator):
            definitions.update(dict.fromkeys(statement.outputs, statement))
        if is_a(statement, "reduce") and statement.text("op") == "sum":
            pair = _pair(statement, definitions, totals)
            if pair is not None:
                yield pair
            totals.setdefault((statement.inputs[0], statement.ints("axes")), statement)


def _pair(
    squares: UOperator, definitions: Definitions, totals: Mapping[tuple[Value, Axes], UOperator]
) -> _Pair | None:
    axes = squares.ints("axes")
    for x, centre in _deviations(squares.inputs[0], definitions):
        total = totals.get((x, axes))
        if total is None or not _is_constant(centre, axes) or not _depends(centre, total, definitions):
            continue
        found = _parts(x.type, axes)
        if found is not None:
            return _Pair(total, squares, centre, found)
    return None


def _has_company(body: Sequence[Statement], pair: _Pair) -> bool:
    """True if another reduction can share the pass of the squares. The array is then read again anyway."""
    (x,), axes = pair.total.inputs, pair.total.ints("axes")
    early, late = set(pair.total.outputs), set(pair.squares.outputs)  # values that need these
    for statement in body:
        if not isinstance(statement, UOperator) or statement is pair.squares:
            continue
        if not late.isdisjoint(statement.inputs):
            late.update(statement.outputs)
        elif not early.isdisjoint(statement.inputs):
            early.update(statement.outputs)
            shape = statement.inputs[0].type.shape
            if is_a(statement, "reduce") and shape == x.type.shape and statement.ints("axes") == axes:
                return True
    return False


def _deviations(operand: Value, definitions: Definitions) -> Iterator[tuple[Value, UOperator]]:
    """The array and the broadcast whose difference is squared; both ways if both are broadcasts."""
    square = definitions.get(operand)
    power = is_a(square, "integer_pow") and square.number("exponent") == 2
    if square is None or not (power or is_a(square, "mul") and square.inputs[0] == square.inputs[1]):
        return
    difference = definitions.get(square.inputs[0])
    if is_a(difference, "sub"):
        x, y = difference.inputs
        for array, other in ((x, y), (y, x)):
            if is_a(centre := definitions.get(other), "broadcast"):
                yield array, centre


def _is_constant(broadcast: UOperator, axes: Axes) -> bool:
    """True if its elements are equal along these axes."""
    shape, dimensions = broadcast.inputs[0].type.shape, broadcast.ints("dimensions")
    return all(n == 1 or d not in axes for n, d in zip(shape, dimensions, strict=True))


def _depends(centre: UOperator, total: UOperator, definitions: Definitions) -> bool:
    """True if small operators compute the centre from the sum."""
    seen, waiting = set[Value](), list(centre.inputs)
    while waiting:
        value = waiting.pop()
        if value == total.output:
            return True
        maker = definitions.get(value)
        if maker is not None and value not in seen and value.type.size < total.inputs[0].type.size:
            waiting += maker.inputs
        seen.add(value)
    return False


# -- what it becomes -----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Moments:
    """Of equal parts, or of what they leave over.

    `parts`: the axes of the parts in the values; `tiles`: the number of tiles; `length`: the elements of a
    part; `totals`, `pivots`, `residuals`, `squares`: s_p, c_p, r_p and q_p, in f64.
    """

    parts: Axes
    tiles: int
    length: int
    totals: Value
    pivots: Value
    residuals: Value
    squares: Value


def _region(region: Region, fresh: FreshValues) -> Region:
    inner = map_body(region, lambda s: map_regions(s, partial(_region, fresh=fresh)))
    pairs = [pair for pair in _pairs(inner) if not _has_company(inner.body, pair)]
    first, second = {p.total: p for p in pairs}, {p.squares: p for p in pairs}
    made: dict[UOperator, tuple[_Moments, ...]] = {}

    def change(statement: Statement) -> Statement | list[Statement]:
        if not isinstance(statement, UOperator):
            return statement
        b = Builder(fresh, statement.source)
        if statement in first:
            made[statement] = _of_parts(b, first[statement])
            sums = [_combined(b, m.totals, m) for m in made[statement]]
        elif statement in second:
            pair = second[statement]
            sums = [_about(b, pair, m) for m in made[pair.total]]
        else:
            return statement
        b.define(statement.outputs, "convert", (sums[0] if len(sums) == 1 else b.binary("add", *sums),))
        return b.out

    return map_body(inner, change) if pairs else inner


def _of_parts(b: Builder, pair: _Pair) -> tuple[_Moments, ...]:
    (x,), axes, parts = pair.total.inputs, pair.total.ints("axes"), pair.parts
    found = _moments(b, *parts.division.parted(b, x, axes), parts.tiles)
    rest = parts.division.rest(b, x)
    return (found,) if rest is None else (found, _moments(b, rest, axes, (), 1))


def _moments(b: Builder, x: Value, inner: Axes, parts: Axes, tiles: int) -> _Moments:
    kept = [d for d in range(x.type.rank) if d not in inner]
    length = prod(x.type.shape[d] for d in inner)
    totals = reduction(b, x, inner, "sum")
    scale = b.full(1 / length, x.type.dtype, totals.type.shape)
    pivots = b.binary("mul", totals, scale)
    deviations = b.binary("sub", x, b.broadcast(pivots, x.type.shape, kept))
    residuals = reduction(b, deviations, inner, "sum")
    squares = reduction(b, b.binary("mul", deviations, deviations), inner, "sum")
    wide = (b.convert(value, "float64") for value in (totals, pivots, residuals, squares))
    return _Moments(parts, tiles, length, *wide)


def _about(b: Builder, pair: _Pair, m: _Moments) -> Value:
    """The sum of squared deviations from the centre of the pair."""
    shift = b.binary("sub", m.pivots, _centre(b, pair, m))
    twice = b.binary("add", m.residuals, m.residuals)
    length = b.full(float(m.length), "float64", shift.type.shape)
    slope = b.binary("add", twice, b.binary("mul", length, shift))
    return _combined(b, b.binary("add", m.squares, b.binary("mul", shift, slope)), m)


def _centre(b: Builder, pair: _Pair, m: _Moments) -> Value:
    """The centre, without reduced axes, for each part."""
    (centre,), shape = pair.centre.inputs, m.pivots.type.shape
    reduced, rank = pair.total.ints("axes"), pair.centre.output.type.rank
    places = (d for d in range(len(shape)) if d not in m.parts)
    place_of = dict(zip((d for d in range(rank) if d not in reduced), places, strict=True))
    sizes = zip(centre.type.shape, pair.centre.ints("dimensions"), strict=True)
    kept = [(n, place_of[d]) for n, d in sizes if d in place_of]
    narrow = b.convert(b.reshape(centre, [n for n, _ in kept]), "float64")
    return b.broadcast(narrow, shape, [place for _, place in kept])


def _combined(b: Builder, values: Value, m: _Moments) -> Value:
    """The sum of the values of all parts. If they are many, those of a tile are added first, since
    `split_reductions` would cut them without regard to tiles."""
    if not m.parts:
        return values
    outer, *inner = m.parts
    if values.type.nbytes >= CORE_PARTIALS.bytes:
        if not inner:
            shape = list(values.type.shape)
            shape[outer : outer + 1] = [m.tiles, shape[outer] // m.tiles]
            values, inner = b.reshape(values, shape), [outer + 1]
        values, inner = reduction(b, values, tuple(inner), "sum"), []
    return reduction(b, values, (outer, *inner), "sum")
