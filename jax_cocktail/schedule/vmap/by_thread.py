"""Builds the parallel loop in which each thread runs some statements for one batch element, in registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from jax_cocktail.cost.work import total
from jax_cocktail.device.tuning import ElementTuning
from jax_cocktail.schedule.vmap.cut import Cut, Uncuttable
from jax_cocktail.schedule.vmap.cut import Place as CutPlace
from jax_cocktail.schedule.vmap.emit import Emitter
from jax_cocktail.schedule.vmap.held import Memory, Place, single
from jax_cocktail.schedule.vmap.recover import branches_inside
from jax_cocktail.schedule.vmap.register_forms import FORMS
from jax_cocktail.schedule.vmap.register_places import store
from jax_cocktail.schedule.vmap.registers import Apart
from jax_cocktail.utask.builder import INDEX
from jax_cocktail.utask.ir import LoopUTask, Region, Statement
from jax_cocktail.utask.types import Value


@dataclass(frozen=True, slots=True)
class Batch:
    """The lengths of the axes of a batch, and these axes of each result that has them."""

    sizes: tuple[int, ...]
    axes: dict[Value, tuple[int, ...]]

    @property
    def count(self) -> int:
        """The number of batch elements."""
        return prod(self.sizes)


def check_count(count: int, limits: ElementTuning) -> None:
    """Raises Uncuttable if so many batch elements are too few or too many for threads."""
    if not limits.fewest <= count <= limits.most:
        raise Uncuttable(f"{count} are too {'few' if count < limits.fewest else 'many'}")


class ByThread:
    """The statements of one batch element: one cut for each axis of the batch. Raises Uncuttable.

    `statements`: of the whole batch; they make the results that `batch` names. `large`: arrays that are too
    large for registers, under the names that the statements have for them; each becomes the result with a
    number, in its place. `most_flops`: of the statements for all elements, one by one.
    """

    def __init__(
        self,
        statements: Sequence[Statement],
        batch: Batch,
        out: Emitter,
        limits: ElementTuning,
        large: Mapping[Value, tuple[Value, int]] | None = None,
        most_flops: float = float("inf"),
    ) -> None:
        self.statements, self.batch, self.out, self.limits = tuple(statements), batch, out, limits
        self.results, self.most_flops = tuple(batch.axes), most_flops
        self.large = {name: k for name, (_, k) in (large or {}).items()}
        self.given = {k: array for array, k in (large or {}).values()}

    def emit(self) -> None:
        """Appends the parallel loop to `out`."""
        out, given, count = self.out, self.given, self.batch.count
        index, carried, source = out.fresh.make(INDEX), out.like(self.results), out.source
        written, body = self._body(index, carried)
        wholes = [
            given[k] if k in given else out.emit("empty", (), v.type) for k, v in enumerate(self.results)
        ]
        region = Region((index, *carried), tuple(body), tuple(written))
        ends = tuple(wholes), self.results
        out.out.append(LoopUTask(*ends, region, None, count, source, parallel=True, level="thread"))

    def _body(self, index: Value, carried: Sequence[Value]) -> tuple[Sequence[Value], Sequence[Statement]]:
        limits, fresh = self.limits, self.out.fresh
        apart = Apart(fresh, FORMS, limits, carried)
        digits = self._digits(apart, index)
        statements, parts = self.statements, self.results
        for number, digit in enumerate(digits):
            axes = [self.batch.axes[v][number] for v in self.results]
            statements, parts = self._cut(apart, statements, parts, axes, digit, self.batch.sizes[number])
        if total(statements).flops * self.batch.count > self.most_flops:
            raise Uncuttable("a part of one needs all of them")
        region = branches_inside(Region((), statements, parts), fresh, limits.branch_flops)
        apart.statements(region.body, region.results)
        apart.build.source = self.out.source
        for k, (value, part) in enumerate(zip(self.results, region.results, strict=True)):
            held, own = apart.of(part), dict(zip(self.batch.axes[value], digits, strict=True))
            is_place = isinstance(held, Place) and apart.latest(held).number == k
            if (k in self.large.values()) != is_place:
                raise Uncuttable("a large array of an element is not updated in place")
            if not is_place:
                starts = tuple(own.get(d, 0) for d in range(part.type.rank))
                few = part.type.size <= limits.numbers
                store(apart, Place(k, starts, part.type.shape), apart.registers(part) if few else held)
        return apart.results[: len(carried)], apart.build.out

    def _digits(self, apart: Apart, index: Value) -> list[Value]:
        """The position along each axis of the batch."""
        apart.held[index], found, rest = single(index), list[Value](), index
        for size in self.batch.sizes[:0:-1]:
            by = apart.number(size, INDEX.dtype)
            found.append(apart.build.binary("rem", rest, by))
            rest = apart.build.binary("div", rest, by)
        digits = [rest, *found[::-1]]
        apart.inside.update(zip(digits, self.batch.sizes, strict=True))
        return digits

    def _cut(
        self,
        apart: Apart,
        statements: Sequence[Statement],
        results: Sequence[Value],
        axes: Sequence[int],
        digit: Value,
        size: int,
    ) -> tuple[tuple[Statement, ...], tuple[Value, ...]]:
        """The statements for one position along an axis, and the parts of the results there."""
        cut = Cut(statements, zip(results, axes, strict=True), size, 1)
        leaves, inside, known = self.out.leaves(cut), self.out.inside(), dict[CutPlace, Value]()
        for value, axis in cut.needs:
            known[value, axis] = part = apart.build.fresh.make(value.type.resized(axis, 1))
            none, every = (0,) * part.type.rank, tuple(range(part.type.rank))
            held = apart.held.get(value, Memory(leaves.get(value, value), none, every, ()))
            if value in self.large:
                held = Place(self.large[value], none, ())
            assert isinstance(held, Memory | Place)
            starts = tuple(digit if d == axis else s for d, s in enumerate(held.starts))
            apart.held[part] = replace(held, starts=starts, shape=part.type.shape)
        parts = cut.emit(known, inside).parts_of(results, axes)
        return tuple(inside.out), parts
