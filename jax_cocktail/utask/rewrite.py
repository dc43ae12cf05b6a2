"""One way to rewrite programs, and one to read them: a pass supplies a function per statement or region.

Scope: the entry of a program, every region of a loop (its condition first, then its body) and of a branch;
`rewrite` and `fold` visit the members of stitched groups as well. A pass that must skip one of these does so
itself; nothing is left out by accident, and a new kind of statement is added here.

Identity: everything that a pass does not change stays the same object, from the statement up to the program.
So a pass that has nothing to do returns its argument, and `is` detects changes.

How to write a pass, from the simplest form to the most general one:

- A statement is replaced regardless of its context: ``rewrite(program, change)``, where `change` returns the
  statement itself, another one, or several (none: it is removed). Nested statements come first.
- The context of a statement matters: a recursive function on regions made of `map_body` (each statement of a
  region) and `map_regions` (each region of a statement or program), with the context as arguments.
- A loop or branch loses values: `LoopUTask.keep(positions)`, `BranchUTask.keep(positions)`.
- New operators: `builder.Builder`, which gives them fresh results, sorted attributes and a source position.
- Other operands: `substitute.with_reads`; copies under fresh names: `copies.copied`.
- Reading: `ir.walk`, `ir.operators_in` and `ir.regions_in` if all statements or regions are alike; `fold` if
  loops multiply and branches choose.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
    UProgram,
    regions_of,
)
from jax_cocktail.utask.types import Value

T = TypeVar("T")
Inside = Sequence[Sequence[T]]
Holder = TypeVar("Holder", UProgram, UOperator, LoopUTask, BranchUTask, StitchedUTask, Statement)
Change = Callable[[Statement], Statement | Sequence[Statement]]


def with_body(region: Region, body: Iterable[Statement], results: tuple[Value, ...] | None = None) -> Region:
    """The region with other statements; the same object if its statements and results do not change."""
    body, results = tuple(body), region.results if results is None else results
    same = len(body) == len(region.body) and all(a is b for a, b in zip(body, region.body, strict=True))
    return region if same and results == region.results else Region(region.parameters, body, results)


def map_body(region: Region, change: Change) -> Region:
    """The region with each of its statements replaced, from first to last; nested ones are not visited."""
    body: list[Statement] = []
    for statement in region.body:
        found = change(statement)
        if found is statement:  # mostly; the test for a sequence takes long
            body.append(statement)
        else:
            body += found if isinstance(found, Sequence) else (found,)
    return with_body(region, body)


def map_regions(holder: Holder, change: Callable[[Region], Region]) -> Holder:
    """A program or statement with each of its regions replaced, a loop's condition before its body."""
    if isinstance(holder, UOperator):
        return holder
    if isinstance(holder, UProgram):
        entry = change(holder.entry)
        return holder if entry is holder.entry else replace(holder, entry=entry)
    if isinstance(holder, LoopUTask):
        condition = None if holder.condition is None else change(holder.condition)
        body = change(holder.body)
        same = condition is holder.condition and body is holder.body
        return holder if same else replace(holder, condition=condition, body=body)
    if isinstance(holder, BranchUTask):
        branches = tuple(map(change, holder.branches))
        return holder if all(map(_is, branches, holder.branches)) else replace(holder, branches=branches)
    return holder


def rewrite(program: UProgram, change: Change) -> UProgram:
    """The program with every statement replaced, nested ones first. Members of a stitched group are operators
    like others, and stay operators."""
    return map_regions(program, lambda region: rewrite_region(region, change))


def rewrite_region(region: Region, change: Change) -> Region:
    """One region of a program, rewritten as by `rewrite`."""

    def inside_out(statement: Statement) -> Statement | Sequence[Statement]:
        if isinstance(statement, UOperator):
            return change(statement)
        if isinstance(statement, StitchedUTask):
            return change(map_members(statement, change))
        return change(map_regions(statement, lambda inner: rewrite_region(inner, change)))

    return map_body(region, inside_out)


def map_members(group: StitchedUTask, change: Change) -> StitchedUTask:
    """The group with each of its members replaced. Its inputs follow from them."""
    changed = map_body(Region((), group.members, ()), change).body
    members = tuple(member for member in changed if isinstance(member, UOperator))
    assert len(members) == len(changed), "a member of a stitched group becomes operators"
    if len(members) == len(group.members) and all(map(_is, members, group.members)):
        return group
    return replace(group, members=members, inputs=operands_of(members))


def operands_of(members: Collection[UOperator]) -> tuple[Value, ...]:
    """The values that operators read and none of them defines."""
    made = {v for member in members for v in member.outputs}
    return tuple(dict.fromkeys(v for member in members for v in member.inputs if v not in made))


def fold(statement: Statement, each: Callable[[Statement, Inside[T]], T]) -> T:
    """Folds a statement bottom up: ``each(statement, inside)``, where `inside` holds the results for the
    statements of each of its regions (for a stitched group: for its members, as one region)."""
    return each(statement, [[fold(inner, each) for inner in body] for body in bodies(statement)])


def bodies(statement: Statement) -> tuple[tuple[Statement, ...], ...]:
    """The statements in each region of a statement; of a stitched group, its members."""
    if isinstance(statement, StitchedUTask):
        return (statement.members,)
    return tuple(region.body for region in regions_of(statement))


def _is(a: object, b: object) -> bool:
    return a is b
