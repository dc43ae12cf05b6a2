"""Lanes: control flow under `jax.vmap` runs lane by lane again (design, section 2).

A vmapped `while` arrives as a loop in lock-step: all lanes run until the last one is done. Here every lane
runs its own trips: one lane at a time if a lane is work enough for vector registers, otherwise a few at a
time in slots that are filled again (`slots`). A vmapped `cond` arrives as a select between both sides,
computed for all lanes; a side that is worth it is computed for the lanes that take it (`choose`).
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from dataclasses import replace

from jax_cocktail.schedule.simplify.dead_code import remove_dead_code
from jax_cocktail.schedule.vmap.choose import Chooser
from jax_cocktail.schedule.vmap.cut import Cut, Uncuttable
from jax_cocktail.schedule.vmap.emit import Emitter, one_by_one
from jax_cocktail.schedule.vmap.limits import DEFAULTS, Limits
from jax_cocktail.schedule.vmap.lockstep import LaneLoop, lane_loop
from jax_cocktail.schedule.vmap.narrow import Narrowing
from jax_cocktail.schedule.vmap.slots import SlotLoop, Slots
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, Statement, UOperator, UProgram
from jax_cocktail.utask.remarks import Listener, Remark, nobody
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import Source, Value


def recover_lanes(
    program: UProgram, units: int = 1, remark: Listener = nobody, limits: Limits = DEFAULTS
) -> UProgram:
    """Returns its argument if there are no lanes. `units`: more than one run parts of the lanes at once."""
    recovery = _Recovery(program, units, remark, limits)
    shared = remove_dead_code(replace(program, entry=recovery.narrowed(program.entry)))
    entry = recovery.region(shared.entry)
    return program if entry == program.entry else replace(program, entry=entry)


class _Recovery:
    def __init__(self, program: UProgram, units: int, remark: Listener, limits: Limits) -> None:
        self.fresh = FreshValues(program)
        self.units, self.remark, self.limits = units, remark, limits
        self.chooser = Chooser(self.fresh, units, limits, remark, self._one_by_one)
        self.made: ChainMap[Value, UOperator] = ChainMap()  # operators by what they make, in scope
        self.depth = 0  # loops around

    def narrowed(self, region: Region) -> Region:
        """See `narrow`. The same is done to a loop's condition and body, so that they still compare."""
        outer, self.made = self.made, self.made.new_child()
        narrowing = Narrowing(self.fresh, self.made, self.chooser.indexed)
        for statement in region.body:
            if isinstance(statement, LoopUTask):
                condition = statement.condition and self.narrowed(statement.condition)
                statement = replace(statement, condition=condition, body=self.narrowed(statement.body))
            elif isinstance(statement, BranchUTask):
                statement = replace(statement, branches=tuple(map(self.narrowed, statement.branches)))
            narrowing.add(statement)
        self.made = outer
        return Region(region.parameters, tuple(narrowing.out), region.results)

    def region(self, region: Region, inside: bool = False) -> Region:
        """`inside`: of a lane already: what is found runs in the same unit."""
        outer, self.made = self.made, self.made.new_child()
        self.made.update((v, s) for s in region.body if isinstance(s, UOperator) for v in s.outputs)
        chosen = self.chooser.run(region.body, region.results, self.made, inside, self.depth)
        body = self._statements(chosen, inside)
        self.made = outer
        return Region(region.parameters, tuple(body), region.results)

    def _statements(self, statements: Sequence[Statement], inside: bool) -> list[Statement]:
        body: list[Statement] = []
        for statement in statements:
            if isinstance(statement, LoopUTask):
                body += self._loop(statement, inside)
            elif isinstance(statement, BranchUTask):
                branches = tuple(self.region(r, inside) for r in statement.branches)
                body.append(replace(statement, branches=branches))
            else:
                body.append(statement)
        return body

    def _loop(self, loop: LoopUTask, inside: bool) -> Sequence[Statement]:
        lanes = lane_loop(loop)
        sizes = () if lanes is None else lanes.predicate.type.shape
        wide = sorted((n, j) for j, n in enumerate(sizes) if n > 1)
        if lanes is not None and wide and 0 not in sizes:
            try:
                return self._lane_by_lane(loop, lanes, wide[0][1], len(wide) == 1, inside)
            except Uncuttable as found:
                self._say(False, f"all lanes of a vmapped while loop run in lock-step: {found}", loop.source)
        self.depth += 1
        condition = loop.condition and self.region(loop.condition, inside)
        loop = replace(loop, condition=condition, body=self.region(loop.body, inside))
        self.depth -= 1
        return (loop,)

    def _lane_by_lane(
        self, loop: LoopUTask, lanes: LaneLoop, along: int, last: bool, inside: bool
    ) -> Sequence[Statement]:
        count = lanes.predicate.type.shape[along]
        axes = tuple(place[along] for place in lanes.axes)
        places = tuple(zip(loop.outputs, axes, strict=True))
        single = Cut((loop,), places, count, 1)
        out = Emitter(self.fresh, loop.source)
        carried = sum(v.type.nbytes for v in loop.initial) // count
        largest = max(v.type.nbytes for v in loop.initial) // count
        if last and (largest < self.limits.lane_bytes or single.has_shared_weights):
            width = max(min(self.limits.slots, self.limits.slot_bytes // max(carried, 1)), 2)
            if count <= width:
                raise Uncuttable(f"there are only {count} of them")
            parts = 1 if inside or self.units == 1 else -(-count // (width * self.limits.rounds))
            idle = max(width // 4, 1)
            slots = Slots(width, parts, idle, idle if single.has_shared_weights else 1)
            SlotLoop(loop, axes, count, slots, out).statements()
            self._say(True, f"{count} lanes of a vmapped while loop take turns in {width} slots", loop.source)
            return out.out
        self._one_by_one(single, places, out, inside)
        self._say(True, f"{count} lanes of a vmapped while loop run one by one", loop.source)
        return out.out

    def _one_by_one(self, cut: Cut, results: Sequence[tuple[Value, int]], out: Emitter, inside: bool) -> None:
        """A loop over lanes that makes `results`, each with its lane axis."""
        loop = one_by_one(cut, results, out, parallel=not inside and self.units > 1)
        out.out.append(replace(loop, body=self.region(loop.body, inside=True)))

    def _say(self, fired: bool, text: str, source: Source) -> None:
        self.remark(Remark("lanes", fired, text, source))
