"""Roles: the shares that groups of units have in a loop, such as the stages of a wavefront.

    for d: wait; if (unit < 7) stage 0; else if ...    ->    if (unit < 7) for d: wait; stage 0; else ...

A unit has the same parallel loops in every iteration. So the loop is emitted once for each role: with its
stage in line, and nothing of the others, so that its matrices stay in registers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from jax_cocktail.device.tuning import BLOCK
from jax_cocktail.utask.ir import LoopUTask, Statement, StitchedUTask, UOperator, is_a, is_parallel, reads
from jax_cocktail.utask.operators import HALVES
from jax_cocktail.utask.plan import MemoryPlan
from jax_cocktail.utask.rewrite import operands_of
from jax_cocktail.utask.types import Value


@dataclass(frozen=True, slots=True)
class Role:
    """The part of a loop that the units from `first` up to `end` execute.

    Attributes:
      loop: the loop, with their statements only.
      positions: of the statements of its body among those of the whole loop.
      constants: those that its scalars take, one for each use. They come before the loop, since roles that
        are equal otherwise differ in them.
    """

    first: int
    end: int
    loop: LoopUTask
    positions: tuple[int, ...]
    constants: tuple[UOperator, ...]


def roles_of(loop: LoopUTask, plan: MemoryPlan) -> list[Role]:
    """The roles of a loop, by their units; none if units have the same work, or work outside of parallel
    loops. Every unit that the program is planned for must be there."""
    brief = loop.trip_count is None or loop.trip_count < BLOCK.held_trips
    if loop.parallel or brief or plan.resident_units != plan.most_units or not _stays(loop, plan):
        return []
    if not all(is_parallel(s) or _is_common(s) for s in loop.body.body):
        return []
    return [_role(loop, first, end) for first, end in _ranges(loop, plan.most_units)]


def _stays(loop: LoopUTask, plan: MemoryPlan) -> bool:
    """True if everything that a loop carries is an array that stays where it is."""
    sides = zip(loop.initial, loop.carried, loop.body.results, strict=True)
    return all(not c.type.is_scalar and all(plan.same_place(v, c) for v in (a, b)) for a, c, b in sides)


def _is_common(statement: Statement) -> bool:
    """True if all units may execute a statement in each role that needs it: it writes no memory."""
    if isinstance(statement, StitchedUTask):
        return all(v.type.is_scalar for v in (*statement.inputs, *statement.outputs))
    if is_a(statement, "block_barrier", *HALVES):
        return True
    return isinstance(statement, UOperator) and statement.is_element


def _ranges(loop: LoopUTask, units: int) -> list[tuple[int, int]]:
    """First unit and end of every role; units without a parallel loop have one, too."""
    loops = (s for s in loop.body.body if is_parallel(s))
    used = sorted({(s.first, s.first + (s.trip_count or 0)) for s in loops})
    found, at = list[tuple[int, int]](), 0
    for first, end in [*used, (units, units)]:
        if first < at:
            return []
        found += [(at, first)] * (at < first) + [(first, end)] * (first < end)
        at = end
    return found if len(used) > 1 else []


def _role(loop: LoopUTask, first: int, end: int) -> Role:
    wanted, kept = set[Value](), list[tuple[int, Statement]]()
    for position, statement in [*enumerate(loop.body.body)][::-1]:
        found = _share(statement, first, wanted)
        if found is not None:
            wanted.update(reads(found))
            kept.insert(0, (position, found))
    constants = {s.output: s for _, s in kept if is_a(s, "constant")}
    uses = list[UOperator]()
    kept = [(position, _with_uses(statement, constants, uses)) for position, statement in kept]
    body = replace(loop.body, body=tuple(statement for _, statement in kept))
    return Role(first, end, replace(loop, body=body), tuple(p for p, _ in kept), tuple(uses))


def _with_uses(
    statement: Statement, constants: Mapping[Value, UOperator], uses: list[UOperator]
) -> Statement:
    """A group of scalars whose every use of a constant is a constant of its own, added to `uses`."""
    if not isinstance(statement, StitchedUTask):
        return statement
    members = []
    for member in statement.members:
        inputs = []
        for value in member.inputs:
            if value in constants:
                use = replace(value, id=-1 - len(uses))  # as no other value has
                uses.append(replace(constants[value], outputs=(use,)))
                value = use
            inputs.append(value)
        members.append(replace(member, inputs=tuple(inputs)))
    return _group(statement, members)


def _share(statement: Statement, first: int, wanted: Collection[Value]) -> Statement | None:
    """The part of a statement that the role of unit `first` executes. `wanted`: what it reads later on."""
    if is_parallel(statement):
        return statement if statement.first == first else None
    if isinstance(statement, StitchedUTask):
        return _members(statement, wanted)
    return statement if not statement.outputs or any(v in wanted for v in statement.outputs) else None


def _members(group: StitchedUTask, wanted: Collection[Value]) -> StitchedUTask | None:
    """The members of a group of scalars that wanted ones take."""
    needed, members = set(wanted), list[UOperator]()
    for member in reversed(group.members):
        if not needed.isdisjoint(member.outputs):
            needed.update(member.inputs)
            members.insert(0, member)
    return _group(group, members) if members else None


def _group(group: StitchedUTask, members: Sequence[UOperator]) -> StitchedUTask:
    """A group with these members in the place of its own."""
    made = {v for member in members for v in member.outputs}
    outputs = tuple(v for v in group.outputs if v in made)
    return replace(group, members=tuple(members), inputs=operands_of(members), outputs=outputs)
