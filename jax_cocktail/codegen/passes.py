"""Passes over the kernel IR of lane loops: hoisting, batching, unrolling, copies, early loads. All are
functions of nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from jax_cocktail.codegen.kernel import (
    Assign,
    Call,
    Compound,
    Declaration,
    Expression,
    Load,
    Loop,
    Name,
    Node,
    Pointer,
    Select,
    Store,
    declared_in,
    length,
    names_in,
    nodes_in,
)
from jax_cocktail.device.tuning import BLOCK

_RESIDENT = "RESIDENT"  # whether the kernel is the resident one


def hoisted(loop: Loop) -> list[Node]:
    """Hoists the invariants of a loop with independent iterations, but for totals. The compiler cannot hoist
    a load, and emits gathers: it must assume that the stores of the loop change the loaded element.
    """
    totals = {name for node in _straight(loop) if isinstance(node, Assign) for name in names_in(node.name)}
    inside, before, body = {loop.name, *totals}, list[Node](), list[Node]()
    for node in loop.body:
        if isinstance(node, Declaration):
            if node.const and inside.isdisjoint(names_in(node.value)):
                before.append(node)
                continue
            inside.add(node.name)
        elif not all(isinstance(each, Declaration | Store | Assign | Loop) for each in _straight(node)):
            return [loop]
        body.append(node)
    return [*before, replace(loop, body=tuple(body))]


def _straight(node: Node) -> Iterator[Node]:
    """A statement, or a loop and the statements in it."""
    yield node
    if isinstance(node, Loop):
        for each in node.body:
            yield from _straight(each)


def unrolled(loop: Loop, trips: int, most: int) -> list[Node]:
    """Limits how far the compiler unrolls a loop of more than `most` iterations (0: no limit). Without one it
    unrolls hundreds of short iterations, whose loads then take all registers."""
    if not most or trips <= most:
        return [loop]
    return [replace(loop, pragma=f"#pragma unroll {_together(length(loop), most)}")]


def batch(body: Sequence[Node], trips: int, most: int) -> int:
    """The number of iterations, up to `most`, that a thread takes at a time: 1 if the body loads nothing, or
    is too long."""
    if not any(isinstance(node, Load) for node in nodes_in(*body)):
        return 1
    calls = sum(any(isinstance(part, Call) for part in nodes_in(node)) for node in body)
    return _together(len(body) + (BLOCK.call_lines - 1) * calls, min(trips, most))


def _together(lines: int, most: int) -> int:
    together = 1
    while 2 * together <= most and 2 * together * lines <= BLOCK.batch_lines:
        together *= 2
    return together


@dataclass(frozen=True, slots=True)
class Copy:
    """Statements that copy an element, or zero if it is not `valid`. `places`: those that its places take."""

    places: tuple[Node, ...]
    to: Load
    element: Load
    valid: Expression


def copy_in(nodes: Sequence[Node], zero: str) -> Copy | None:
    """The load that the body of a lane loop copies; None if it does anything else. Its places take no other
    load."""
    *before, store = nodes
    values = {node.name: node.value for node in before if isinstance(node, Declaration) and node.const}
    if not isinstance(store, Store) or store.condition != "" or len(values) < len(before):
        return None
    value: Expression = store.value
    valid: Expression = "true"
    taken = set[Name]()
    while not isinstance(value, Load):
        match value:
            case Name() if value in values:
                taken.add(value)
                value = values[value]
            case Select(condition, inner, other) if other == zero and valid == "true":
                value, valid = inner, condition
            case _:
                return None
    places = tuple(n for n in before if isinstance(n, Declaration) and n.name not in taken)
    needed = (*places, store.element.place, value.place, valid)
    plain = taken.isdisjoint(names_in(*needed)) and not any(isinstance(n, Load) for n in nodes_in(*needed))
    return Copy(places, store.element, value, valid) if plain else None


@dataclass(frozen=True, slots=True)
class Divided:
    """A statement in two: loads that set variables, and the rest, which reads them. The portable kernel has
    more to keep in registers, so it loads in the rest."""

    results: tuple[Declaration, ...]
    early: Node
    late: Node


def divided(
    node: Node, kept: Collection[Pointer], changed: Collection[Name], fresh: Callable[[], Name]
) -> Divided | None:
    """Takes the loads out of a lane loop in braces, so that they can be done earlier: those from the pointers
    `kept` whose places take neither a name of `changed` nor another load. None if there are none."""
    if not isinstance(node, Compound) or not node.body:
        return None
    *before, last = node.body
    if isinstance(last, Loop) and all(isinstance(each, Declaration) for each in before):
        return _divided_loop(node, last, kept, changed, fresh)
    found = None if before else divided(last, kept, changed, fresh)
    if found is None:
        return None
    return Divided(found.results, replace(node, body=(found.early,)), replace(node, body=(found.late,)))


def _divided_loop(
    block: Compound,
    loop: Loop,
    kept: Collection[Pointer],
    changed: Collection[Name],
    fresh: Callable[[], Name],
) -> Divided | None:
    before, late, early, results = block.body[:-1], list[Node](), list[Node](), list[Declaration]()
    local, takes = declared_in(block.body), {loop.name: list[Node]()}  # name -> the declarations of its value
    for position, node in enumerate((*before, *loop.body)):
        if isinstance(node, Declaration) and node.const and not _is_early(node.value):
            names, loads = names_in(node.value), [n for n in nodes_in(node.value) if isinstance(n, Load)]
            free = all(name not in changed and (name in takes or name not in local) for name in names)
            needed = [each for name in names for each in takes.get(name, ())]
            if free and not loads:
                takes[node.name] = [*needed, node]
            elif free and position >= len(before) and all(load.pointer in kept for load in loads):
                results.append(Declaration(node.type, fresh(), const=False))
                early += [*needed, Assign(results[-1].name, node.value)]
                node = replace(node, value=Select(_RESIDENT, results[-1].name, node.value))
        late.append(node)
    first = replace(loop, body=tuple(dict.fromkeys(early)))
    rest = replace(loop, body=tuple(late[len(before) :]))
    resident = Compound(f"if constexpr ({_RESIDENT})", (first,))
    halves = replace(block, body=(resident,)), replace(block, body=(*late[: len(before)], rest))
    return Divided(tuple(results), *halves) if results else None


def _is_early(value: Expression) -> bool:
    return isinstance(value, Select) and value.condition == _RESIDENT
