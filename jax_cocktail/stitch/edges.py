"""The edges of a planned program, by stitching scheme (AStitch, ASPLOS'22, section 3.1).

An edge leads from an operator that computes a value to one that computes with it. Operators that only move
elements, and the joins of loops and branches, are a part of it.

    local      in a register: one lane loop computes and reads each element
    regional   in memory: the unit that stores an element reads it
    global     in memory: other units read it, behind a barrier of all units or in tagged words

Independent operators of one lane loop have no edge. The scheme follows from the plan: from the members of
the lane loops, from the memory of what they read, and from the accesses from which barriers are derived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from jax_cocktail.cost.work import runs
from jax_cocktail.schedule.sync.barriers import Crossings
from jax_cocktail.stitch.residence import Residences, survey
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
    UProgram,
    is_parallel,
    operators_of,
)
from jax_cocktail.utask.operators import COPIES, MOVEMENT, NO_RESULTS
from jax_cocktail.utask.plan import MemoryPlan
from jax_cocktail.utask.rewrite import map_body, map_regions
from jax_cocktail.utask.types import INTEGERS, Value

LOCAL, REGIONAL, GLOBAL = "local", "regional", "global"
_MOVING = MOVEMENT | COPIES - {"scatter"}  # which may compute


@dataclass(frozen=True, slots=True)
class Edge:
    """`made`, `read`: the operators; `scheme`, and `why` it is this one; `bytes`: of the value, in one call;
    `saved_bytes`: loads and stores that one call is spared, compared with a
    value that is stored and read again; `in_memory`: the value is in the memory in which it would then be;
    `maker`, `reader`: the statements that run both, two lane loops or one."""

    made: UOperator
    read: UOperator
    scheme: str
    why: str
    bytes: float
    saved_bytes: float = 0.0
    in_memory: bool = False
    maker: Statement | None = None
    reader: Statement | None = None


@dataclass(frozen=True, slots=True)
class _Site:
    """The place of an operator. `statement`: the lane loop, or the operator; `performer`: the outermost
    parallel loop around it, else the statement; `times`: executions in one call."""

    statement: UOperator | StitchedUTask
    performer: Statement
    times: float


def edges(program: UProgram, plan: MemoryPlan, near: str = "") -> tuple[Edge, ...]:
    """The edges, those that save most first. `near`: what memory of a unit is called that is smaller and
    closer than the common one; "": all memory is alike. A loop of unknown length has as many iterations as
    prices assume, and a branch takes each side equally often. Positions are left out, which integers without
    axes compute from such integers."""
    found = _Edges(program, plan, near)
    pairs = list(found.all())
    stored = {value for value, edge in pairs if edge.in_memory}
    whole = []
    for value, edge in pairs:
        spared = 0.0 if value in stored else edge.bytes  # the store counts once, with the first edge
        stored.add(value)
        whole.append(replace(edge, saved_bytes=edge.saved_bytes + spared))
    return tuple(sorted(whole, key=lambda e: (-e.saved_bytes, -e.bytes)))


class _Edges:
    def __init__(self, program: UProgram, plan: MemoryPlan, near: str) -> None:
        self.program, self.plan, self.near = program, plan, near
        self.crossings = Crossings(program, plan)
        self.made: dict[Value, tuple[UOperator, _Site]] = {}
        self.loops: Counter[Value] = Counter()  # lane loops that compute a value
        self.sources: dict[Value, tuple[Value, ...]] = {}
        self.sent: set[Value] = set()  # in tagged words
        self.sites: list[_Site] = []
        self._region(program.entry, None, 1.0)

    # -- the program -------------------------------------------------------------------------------------
    def _region(self, region: Region, around: LoopUTask | None, times: float) -> None:
        for statement in region.body:
            if isinstance(statement, LoopUTask):
                self._loop(statement, around, times)
            elif isinstance(statement, BranchUTask):
                for side in statement.branches:
                    self._region(side, around, times / len(statement.branches))
                    self._join(statement.outputs, side.results)
            else:
                self._statement(_Site(statement, around or statement, times))

    def _loop(self, loop: LoopUTask, around: LoopUTask | None, times: float) -> None:
        inside = loop if around is None and is_parallel(loop) else around
        self._join(loop.carried, loop.initial)
        self._join(loop.carried, loop.body.results)
        self._join(loop.outputs, loop.body.results)
        if loop.condition is not None:
            self._join(loop.outputs, loop.initial)
            self._join(loop.condition.parameters, loop.carried)
            self._region(loop.condition, around, times * (runs(loop) + 1))
        self._region(loop.body, inside, times * runs(loop))

    def _join(self, targets: tuple[Value, ...], sources: tuple[Value, ...]) -> None:
        for target, source in zip(targets, sources, strict=True):
            self.sources[target] = (*self.sources.get(target, ()), source)

    def _statement(self, site: _Site) -> None:
        self.sites.append(site)
        for operator in operators_of(site.statement):
            if operator.kind == "exchange":
                self._join(operator.outputs, operator.inputs)
                self.sent.update(operator.outputs)
            elif _moves(operator):
                self.sources[operator.output] = _moved(operator)
            else:
                for value in operator.outputs:
                    self.made.setdefault(value, (operator, site))
                    self.loops[value] += 1

    # -- edges -------------------------------------------------------------------------------------------
    def all(self) -> Iterator[tuple[Value, Edge]]:
        """Every edge with its value, without the store that is spared."""
        for site in self.sites:
            for operator in operators_of(site.statement):
                if not (_moves(operator) or operator.kind in NO_RESULTS or operator.kind == "exchange"):
                    for value in dict.fromkeys(operator.inputs):
                        yield from self._into(operator, value, site)

    def _into(self, read: UOperator, operand: Value, site: _Site) -> Iterator[tuple[Value, Edge]]:
        """The edges to an operator through one operand."""
        group = isinstance(site.statement, StitchedUTask)
        members = {v: m for m in operators_of(site.statement) for v in m.outputs} if group else {}
        todo, seen = [operand], {operand}
        while todo:
            value = todo.pop()
            member = members.get(value)
            if member is not None and _moves(member):
                fresh = [v for v in _moved(member) if v not in seen]
                todo += fresh
                seen.update(fresh)
            elif member is not None and not (_counts(member) and _counts(read)):
                edge = self._inside(read, member, value, site)
                yield value, replace(edge, maker=site.statement, reader=site.statement)
            elif member is None:
                for source, sent in self._origins(value):
                    if not (_counts(self.made[source][0]) and _counts(read)):
                        edge, origin = self._through(read, value, source, sent, site), self.made[source][1]
                        yield source, replace(edge, maker=origin.statement, reader=site.statement)

    def _origins(self, value: Value) -> list[tuple[Value, bool]]:
        """The computed values behind one that is moved or joined; with each, True if it was sent."""
        found: dict[Value, bool] = {}
        todo, seen = [(value, False)], set[Value]()
        while todo:
            here, sent = todo.pop()
            if here in seen:
                continue
            seen.add(here)
            if here in self.made:
                found[here] = sent
            else:
                todo += ((v, sent or here in self.sent) for v in self.sources.get(here, ()))
        return list(found.items())

    def _inside(self, read: UOperator, made: UOperator, value: Value, site: _Site) -> Edge:
        """An edge inside one lane loop."""
        size = value.type.nbytes * site.times
        if value in site.statement.outputs and not value.type.is_scalar:
            why = f"the loop that computes an element reads it; it is stored as well: {self._reason(value)}"
            return Edge(made, read, LOCAL, why, size, size)
        why = "the loop that computes an element reads it"
        if self.loops[value] > 1:
            flops = made.facts.cost + sum(self.facts.cost.get(v, 0) for v in made.inputs)
            why = f"{self.loops[value]} loops compute it again, at {_flops(flops)} an element"
        return Edge(made, read, LOCAL, why, size, size)

    def _through(self, read: UOperator, seen: Value, value: Value, sent: bool, site: _Site) -> Edge:
        """An edge to a lane loop or anchor, which reads `seen`."""
        made, origin = self.made[value]
        size, layouts = value.type.nbytes * origin.times, self.plan.layouts
        if seen not in layouts and (seen.type.is_scalar or value.type.is_scalar):
            loaded = seen.type.nbytes * site.times
            return Edge(made, read, LOCAL, "it is one element: a variable", size, loaded)
        held = seen if seen in layouts else value
        slot, why = self.plan.slot(held), self._reason(value)
        if sent:
            return Edge(made, read, GLOBAL, f"{why}; every unit is sent all of it", size, in_memory=True)
        if self.crossings.between(origin.performer, site.performer, held):
            why = "a reduction over a divided axis" if read.kind == "reduce" else why
            return Edge(made, read, GLOBAL, f"{why}; other units read it", size, in_memory=True)
        if self.near and (slot.space == "own" or slot in self.plan.parts):
            loaded = min(seen.type.nbytes, layouts[held].root.type.nbytes) * site.times
            return Edge(made, read, REGIONAL, f"{why}; it fits in {self.near}", size, loaded)
        place = "units read what they stored" if self.plan.most_units > 1 else "one unit runs everything"
        place = f"too large for {self.near}" if self.near and slot.space == "private" else place
        return Edge(made, read, REGIONAL, f"{why}; {place}", size, in_memory=True)

    # -- reasons -----------------------------------------------------------------------------------------
    @cached_property
    def facts(self) -> Residences:
        """The decisions of stitching, taken once more on the operators of the program."""
        flat = map_regions(self.program, lambda region: _flat(region, set()))
        facts = survey(flat)
        _decide(flat.entry, facts)
        return facts

    def _reason(self, value: Value) -> str:
        """The reason why a value is in memory."""
        made, origin = self.made[value]
        if made.kind == "reduce":
            return "a reduction has no element before its pass ends"
        if not made.is_element:
            return f"the template of {made.kind} stores an array"
        obstacle = self.facts.obstacle(made)
        if obstacle is None:
            parallel = is_parallel(origin.performer)
            return "units store its parts" if parallel else "an array is updated with it"
        if obstacle.what == "flops":
            return f"consumers would compute it again, at {_flops(obstacle.flops)} an element"
        if obstacle.what == "deep":
            return "a lane loop holds no more operators"
        if isinstance(obstacle.reader, UOperator):
            return f"{obstacle.reader.kind} reads an array"
        return "it leaves its loop, branch or program"


def _flat(region: Region, known: set[Value]) -> Region:
    """The region without lane loops, every operator once."""

    def change(statement: Statement) -> Statement | tuple[Statement, ...]:
        if not isinstance(statement, StitchedUTask):
            fresh = set(statement.outputs) - known if isinstance(statement, UOperator) else True
            known.update(statement.outputs)
            return map_regions(statement, lambda inner: _flat(inner, set(known))) if fresh else ()
        members = tuple(m for m in statement.members if known.isdisjoint(m.outputs))
        known.update(v for m in members for v in m.outputs)
        return members

    return map_body(region, change)


def _decide(region: Region, facts: Residences) -> None:
    for statement in region.body:
        if isinstance(statement, UOperator) and statement.is_element:
            facts.decide(statement)
            continue
        for inner in () if isinstance(statement, UOperator) else statement.regions:
            _decide(inner, facts)
        for value in statement.outputs:
            facts.place_in_memory(value)


def _moves(operator: UOperator) -> bool:
    return operator.kind in _MOVING


def _moved(operator: UOperator) -> tuple[Value, ...]:
    """The operands of a movement whose elements the result has."""
    if operator.kind in ("concatenate", "pad"):
        return operator.inputs
    return operator.inputs[: operator.facts.updates + 1]


def _counts(operator: UOperator) -> bool:
    """True for integers without axes, computed from such integers."""
    values = (*operator.inputs, *operator.outputs)
    return all(v.type.is_scalar and v.type.dtype in {*INTEGERS, "bool"} for v in values)


def _flops(number: int) -> str:
    return f"{number} flop{'s' if number != 1 else ''}"
