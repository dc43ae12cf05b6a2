"""Decides which selects of a region become branches or masked work (see `selects`, `masked`)."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field

from jax_cocktail.cost.work import total
from jax_cocktail.device.tuning import BatchTuning
from jax_cocktail.schedule.vmap.cut import Cut, Place, Uncuttable
from jax_cocktail.schedule.vmap.emit import Emitter
from jax_cocktail.schedule.vmap.masked import Condition, Sinking, Sunk
from jax_cocktail.schedule.vmap.selects import Choices, Group, in_order
from jax_cocktail.utask.ir import Statement, UOperator
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import Source, Value


@dataclass(frozen=True, slots=True)
class _Part:
    """A side worth sinking: the statements that move, and their cut (None: the predicate is one element)."""

    positions: frozenset[int]
    sunk: Sunk | None = None


@dataclass(slots=True)
class Chooser:
    """`units` may divide work that is sunk outside of loops over batch elements; `say` takes remarks;
    `one_by_one` emits such a loop for some places; `indexed`: predicates from the index of a branch."""

    fresh: FreshValues
    units: int
    limits: BatchTuning
    say: Callable[[bool, str, Source], None]
    one_by_one: Callable[[Cut, Sequence[Place], Emitter, bool], None]
    indexed: set[Value] = field(default_factory=set)
    #: values made here
    _done: set[Value] = field(default_factory=set)
    #: selects whose result only matters under these conditions, and their batch axis
    _within: dict[Value, tuple[int, tuple[Condition, ...]]] = field(default_factory=dict)

    def run(
        self,
        body: Sequence[Statement],
        results: Sequence[Value],
        made: MutableMapping[Value, UOperator],
        inside: bool,
        depth: int,
    ) -> Sequence[Statement]:
        """The statements after every group of selects worth sinking is sunk. `made`: operators in scope;
        `inside` a loop over batch elements; `depth`: number of enclosing loops."""
        while True:
            choices = Choices(body, results, made)
            groups = tuple(choices.groups(self.limits.branch_flops))
            for group in groups:
                # a select by a user's mask stays in a loop: loops of products distribute better whole
                if depth and not inside and group.root not in self.indexed:
                    continue
                found = self._group(choices, group, groups, inside)
                if found is not None:
                    body = found
                    break
            else:
                return body

    def _group(
        self, choices: Choices, group: Group, groups: Sequence[Group], inside: bool
    ) -> list[Statement] | None:
        if not group.has_one_axis:
            return self._outermost(choices, group, inside)
        parts = self._parts(choices, group, groups)
        return self._sunk(choices, group, parts, inside) if any(parts) else None

    # -- worth -----------------------------------------------------------------------------------------
    def _parts(self, choices: Choices, group: Group, groups: Sequence[Group]) -> tuple[_Part | None, ...]:
        """The false and true sides, None if not worth sinking."""
        if group.root.type.size == 1:  # a branch, in which branches inside of a side stay
            return tuple(_Part(side.positions) for side in group.sides)
        found: list[_Part | None] = []
        for wanted in (False, True):
            side = group.sides[wanted]
            own = choices.own_flops(side, groups, self.limits.branch_flops, self._done)
            worth = own >= self.limits.branch_flops * group.root.type.size
            found.append(self._cut(choices, group, wanted) if worth else None)
        return tuple(found)

    def _cut(self, choices: Choices, group: Group, wanted: bool) -> _Part | None:
        operands = choices.operands(group, wanted)
        places = tuple(dict.fromkeys(zip(operands, group.axes, strict=True)))
        positions = sorted(group.sides[wanted].positions)
        source = choices.body[group.positions[-1]].source
        if group.elements > self.limits.most:
            self.say(False, f"both sides run for all batch elements: {group.elements} are too many", source)
            return None
        cut = self._tried([choices.body[p] for p in positions], places, group, 1, source)
        if cut is None:
            return None
        common = cut.common
        kept = [p for k, p in enumerate(positions) if k not in common]
        width = self._width(cut, group, places)
        cut = self._tried([choices.body[p] for p in kept], places, group, width, source)
        if cut is None or self._repeats(cut):
            return None
        return _Part(
            frozenset(kept), Sunk(cut, operands, (*self._conditions(group, choices), (group.root, wanted)))
        )

    def _tried(
        self, body: Sequence[Statement], places: Sequence[Place], group: Group, width: int, source: Source
    ) -> Cut | None:
        try:
            return Cut(body, places, group.elements, width)
        except Uncuttable as why:
            self.say(False, f"both sides run for all batch elements: {why}", source)
            return None

    def _repeats(self, cut: Cut) -> bool:
        """True if much of the work is repeated for every few batch elements: a loop that ends for all of them
        at once needs them all."""
        whole = total(cut.statements).flops
        if cut.flops <= self.limits.most_repeated * whole:
            return False
        source = cut.statements[-1].source
        self.say(False, "both sides run for all batch elements: a part of one needs all of them", source)
        return True

    def _width(self, cut: Cut, group: Group, places: Sequence[Place]) -> int:
        """Number of batch elements computed together: several if they share weights or are small."""
        touched = sum(v.type.nbytes for v, _ in (*cut.needs, *places)) // group.elements
        if cut.has_shared_weights:
            return self.limits.rows if group.elements > self.limits.rows else 1
        return max(self.limits.width(group.elements), 1) if touched < self.limits.element_bytes else 1

    def _conditions(self, group: Group, choices: Choices) -> tuple[Condition, ...]:
        """The conditions that must hold for any of the selects to matter."""
        kept: tuple[Condition, ...] | None = None
        for position, axis in zip(group.positions, group.axes, strict=True):
            place, conditions = self._within.get(choices.body[position].outputs[0], (axis, ()))
            known = conditions if place == axis else ()
            kept = known if kept is None else tuple(c for c in kept if c in known)
        return kept or ()

    # -- sinking -----------------------------------------------------------------------------------------
    def _sunk(
        self, choices: Choices, group: Group, parts: Sequence[_Part | None], inside: bool
    ) -> list[Statement]:
        body = choices.body
        moved = frozenset[int]().union(*(p.positions for p in parts if p is not None))
        self._note(choices, group, moved)
        last = group.positions[-1]
        out = Emitter(self.fresh, body[last].source)
        outputs = tuple(body[p].outputs[0] for p in group.positions)
        sides = [choices.operands(group, wanted) for wanted in (False, True)]
        if group.elements == 1:
            bodies = [[body[p] for p in sorted(part.positions)] if part else [] for part in parts]
            out.branch(group.root, outputs, list(zip(bodies, sides, strict=True)))
        else:
            bases = next((operands for operands, p in zip(sides, parts, strict=True) if p is None), None)
            sunk = [p.sunk for p in parts if p is not None and p.sunk is not None]
            places = tuple(zip(outputs, group.axes, strict=True))
            Sinking(places, bases, sunk, out).statements(self._divided(group, sunk, inside))
        where = (
            "under its predicate"
            if group.elements == 1
            else f"for those of {group.elements} batch elements that take it"
        )
        self.say(True, f"the work of one side is done {where}", body[last].source)
        return self._placed(choices, group, moved, out)

    def _outermost(self, choices: Choices, group: Group, inside: bool) -> list[Statement] | None:
        """Runs the elements of the shortest of several batch axes one by one, which leaves one axis less."""
        flops = sum(side.flops for side in group.sides)
        if flops < self.limits.branch_flops * group.root.type.size:
            return None
        moved = group.sides[0].positions | group.sides[1].positions
        everything = sorted((*moved, *group.positions))
        statements = (*choices.chain(group), *(choices.body[p] for p in everything))
        source = choices.body[group.positions[-1]].source
        outputs = (choices.body[p].outputs[0] for p in group.positions)
        places = tuple(zip(outputs, group.axes, strict=True))
        cut = self._tried(statements, places, group, 1, source)
        if cut is None or self._repeats(cut):
            return None
        out = Emitter(self.fresh, source)
        self.one_by_one(cut, places, out, inside)
        return self._placed(choices, group, moved, out)

    def _placed(self, choices: Choices, group: Group, moved: frozenset[int], out: Emitter) -> list[Statement]:
        """The region with the emitted statements in place of the selects and the moved statements."""
        body, last = choices.body, group.positions[-1]
        self._done.update(v for s in out.out for v in s.outputs)
        units: list[Sequence[Statement]] = []
        for position, statement in enumerate(body):
            if position == last:
                units.append(out.out)
            elif position not in moved and position not in group.positions:
                units.append((statement,))
        return in_order(units)

    def _note(self, choices: Choices, group: Group, moved: frozenset[int]) -> None:
        """Records the selects that stay and matter to one side of these alone."""
        outer = self._conditions(group, choices)
        for wanted in (False, True):
            inner = {v for p in group.sides[wanted].positions - moved for v in choices.body[p].outputs}
            inner = {v for v in inner if set(choices.readers.get(v, ())) <= set(group.positions)}
            for value, axis in zip(choices.operands(group, wanted), group.axes, strict=True):
                if value in inner:
                    self._within[value] = (axis, (*outer, (group.root, wanted)))

    def _divided(self, group: Group, sunk: Sequence[Sunk], inside: bool) -> int:
        """The number of parts that units may run in parallel."""
        flops = sum(group.sides[s.conditions[-1][1]].flops for s in sunk)
        if inside or flops < self.limits.parallel_flops:
            return 1
        width = max(s.cut.width for s in sunk)
        fitting = (
            n for n in range(self.units, 0, -1) if group.elements % n == 0 and group.elements // n >= width
        )
        return next(fitting, 1)
