"""Programs for a part of the batch, as each of several devices runs it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from jax_cocktail.schedule.simplify.dead_code import remove_dead_code
from jax_cocktail.schedule.vmap.cut import SUM, Cut
from jax_cocktail.schedule.vmap.emit import Emitter
from jax_cocktail.schedule.vmap.spread import Axis, Preferred, Spread
from jax_cocktail.utask.ir import Region, UProgram
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import TensorType, Value

NUMBER = TensorType("int32")


@dataclass(frozen=True, slots=True)
class Shard:
    """A program for one of several equal parts.

    `operands`: the axis along which it takes a part of each operand, None if all of it. `results`: the same
    for its results; SUM: its result is a term of the sum. `numbered`: its last operand, one more than the
    program had, is the number of its part (int32).
    """

    program: UProgram
    operands: tuple[Axis, ...]
    results: tuple[Axis, ...]
    numbered: bool


def followed(
    program: UProgram, axes: Mapping[int, int], parts: int, zeros: Collection[int] = ()
) -> tuple[Axis, ...]:
    """The axes along which the results of a program are divided, as in a `Shard`. Raises Uncuttable."""
    spread = _spread(program, axes, parts, zeros)
    return tuple(spread.axis.get(v) for v in program.entry.results)


def preferred(program: UProgram, axes: Mapping[int, int], parts: int) -> tuple[Axis, ...]:
    """The axes along which a partitioner divides the results of a program that communicates."""
    spread = _spread(program, axes, parts, (), Preferred)
    return tuple(spread.axis.get(v) for v in program.entry.results)


def _spread(
    program: UProgram,
    axes: Mapping[int, int],
    parts: int,
    zeros: Collection[int],
    kind: type[Spread] = Spread,
) -> Spread:
    parameters = program.entry.parameters
    divided = {parameters[n]: axis for n, axis in axes.items()}
    return kind(program.entry.body, divided, parts, {parameters[n] for n in zeros})


def shard(program: UProgram, axes: Mapping[int, int], parts: int, zeros: Collection[int] = ()) -> Shard:
    """The program of each part, if operands are divided along `axes`. `zeros`: the operands that are known to
    be arrays of zeros. Raises Uncuttable."""
    program = remove_dead_code(program)
    entry = program.entry
    spread = _spread(program, axes, parts, zeros)
    results = tuple(spread.axis.get(v) for v in entry.results)
    if parts == 1:
        return Shard(program, tuple(axes.get(n) for n in range(len(entry.parameters))), results, False)
    cut = Cut(entry.body, zip(entry.results, results, strict=True), parts, 1, spread.sums)
    operands = tuple(_only(cut, v) for v in entry.parameters)
    out = Emitter(FreshValues(program))
    places = [*zip(entry.parameters, operands, strict=True)]
    parameters = [v if d is None else out.fresh.make(_part(v, d, parts)) for v, d in places]
    own = {(v, d): part for (v, d), part in zip(places, parameters, strict=True) if d is not None}
    rest = [place for place in cut.needs if place not in own]
    number = out.fresh.make(NUMBER)
    leaves = out.leaves(cut)
    for value, axis in rest:
        size = value.type.shape[axis] // parts
        start = out.binary("mul", out.convert(number, "int64"), out.constant(size))
        own[value, axis] = out.run(leaves.get(value, value), axis, start, size)
    made = cut.emit(own, out).parts_of(entry.results, results)
    region = Region((*parameters, *([number] if rest else [])), tuple(out.out), made)
    return Shard(replace(program, entry=region), operands, results, bool(rest))


def _only(cut: Cut, value: Value) -> Axis:
    """The axis along which alone a value is wanted."""
    found = cut.wanted.get(value, set())
    return next(iter(found)) if len(found) == 1 and SUM not in found else None


def _part(value: Value, axis: int, parts: int) -> TensorType:
    return value.type.resized(axis, value.type.shape[axis] // parts)
