"""Selects the equations that become regions, by graph rules on plain numbers.

A region is outermost control flow plus the cheap equations beside it. The depth of an equation is the maximum
number of times that a path to it leaves a region for stock XLA. The equations of one depth that we compile
form one convex region: a path that leaves it never comes back.

On request the cheap equations that no such region takes form regions of their own (AStitch, Zheng et al.,
ASPLOS'22, section 4.1): expensive equations and regions with control flow are walls between them. Those of
one depth are one region, whether connected or not, which is the paper's remote stitching. Depths take the
place of its cycle check.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jax_cocktail.device.tuning import MODEL


@dataclass(frozen=True, slots=True)
class Node:
    """One equation.

    Attributes:
      producers: the positions of the equations that it reads, or whose side effects precede its own; all are
        smaller than its own.
      supported: we can compile it.
      control_flow: it is a loop or branch.
      expensive: XLA has library code for it that is worth its launch.
      reads, writes: bytes of its array operands and results; 0 if nothing needs the results.
      computes: it does more than move or repeat elements.
      stops_fusion: XLA ends a kernel at it: a reduction, for example, and nothing that is element-wise.
      returned: a result of it is one of the program.
    """

    producers: tuple[int, ...]
    supported: bool
    control_flow: bool
    expensive: bool
    reads: int = 0
    writes: int = 0
    computes: bool = True
    stops_fusion: bool = False
    returned: bool = False


@dataclass(frozen=True, slots=True)
class Partition:
    """The result of `partition`.

    Attributes:
      regions: the positions in each region, in execution order.
      order: all steps of the rewritten program in a valid order. An int is an equation of stock XLA, a
        1-tuple the number of a region.
      memory_bound: the numbers of the regions without control flow.
      declined: the positions in each memory-bound subgraph that is no region, and why not.
    """

    regions: tuple[tuple[int, ...], ...]
    order: tuple[int | tuple[int], ...]
    memory_bound: frozenset[int] = frozenset()
    declined: tuple[tuple[tuple[int, ...], str], ...] = ()


def partition(nodes: Sequence[Node], memory_bound: bool = False) -> Partition:
    """Divides a program into regions and equations for stock XLA. `memory_bound`: cheap equations that no
    region with control flow takes become regions, too, where there is something to gain."""
    found = _around_control_flow(nodes)
    return _with_memory_bound(nodes, found) if memory_bound else found


def _around_control_flow(nodes: Sequence[Node]) -> Partition:
    chosen = [node.supported for node in nodes]
    chosen = _peel(nodes, chosen, _depths(nodes, chosen))
    depths = _sink(nodes, chosen, _depths(nodes, chosen))
    groups = _groups(chosen, depths)
    kept = {depth for depth, group in groups.items() if any(nodes[p].control_flow for p in group)}
    order: list[int | tuple[int]] = []
    numbers = {depth: number for number, depth in enumerate(sorted(kept))}
    for depth in range(max(depths, default=0) + 1):
        order += [p for p in range(len(nodes)) if not chosen[p] and depths[p] == depth]
        order += [(numbers[depth],)] if depth in kept else groups.get(depth, [])
    return Partition(tuple(groups[depth] for depth in numbers), tuple(order))


def _groups(chosen: Sequence[bool], depths: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """The chosen positions by depth."""
    groups: dict[int, list[int]] = {}
    for position, depth in enumerate(depths):
        if chosen[position]:
            groups.setdefault(depth, []).append(position)
    return {depth: tuple(group) for depth, group in groups.items()}


def _depths(nodes: Sequence[Node], chosen: Sequence[bool]) -> list[int]:
    depths: list[int] = []
    for position, node in enumerate(nodes):
        leaves = not chosen[position]
        steps = (depths[p] + (leaves and chosen[p]) for p in node.producers)
        depths.append(max(steps, default=0))
    return depths


def _peel(nodes: Sequence[Node], chosen: Sequence[bool], depths: Sequence[int]) -> list[bool]:
    """Removes equations from each group that stock XLA should compile.

    These are equations that neither feed nor follow the group's control flow; expensive ones that only feed
    it, with their producers; and expensive ones that only follow it, with their consumers.
    """
    before, after = _ancestry(nodes, chosen, depths)
    result = []
    follows_expensive = [False] * len(nodes)
    for position, node in enumerate(nodes):
        alone = not node.control_flow and not before[position] and not after[position]
        tail = after[position] and not before[position] and not node.control_flow
        follows_expensive[position] = tail and (
            node.expensive or any(follows_expensive[p] for p in _members(node, position, chosen, depths))
        )
        result.append(chosen[position] and not alone and not follows_expensive[position])
    leads_to_expensive = [False] * len(nodes)
    for position in reversed(range(len(nodes))):
        head = before[position] and not after[position] and not nodes[position].control_flow
        if not result[position] or not head:
            continue
        if nodes[position].expensive or leads_to_expensive[position]:
            result[position] = False
            for p in _members(nodes[position], position, chosen, depths):
                leads_to_expensive[p] = True
    return result


def _members(node: Node, position: int, chosen: Sequence[bool], depths: Sequence[int]) -> list[int]:
    """The producers in the same group."""
    return [p for p in node.producers if chosen[p] and chosen[position] and depths[p] == depths[position]]


def _ancestry(
    nodes: Sequence[Node], chosen: Sequence[bool], depths: Sequence[int]
) -> tuple[list[bool], list[bool]]:
    """For each equation, True if it feeds, and True if it follows, control flow of its own group."""
    before, after = [False] * len(nodes), [False] * len(nodes)
    for position, node in enumerate(nodes):
        members = _members(node, position, chosen, depths)
        after[position] = any(nodes[p].control_flow or after[p] for p in members)
    for position in reversed(range(len(nodes))):
        if nodes[position].control_flow or before[position]:
            for p in _members(nodes[position], position, chosen, depths):
                before[p] = True
    return before, after


def _sink(nodes: Sequence[Node], chosen: Sequence[bool], depths: Sequence[int]) -> list[int]:
    """Moves cheap equations that only feed a later region into that region."""
    before, after = _ancestry(nodes, chosen, depths)
    result = list(depths)
    consumers = _users(nodes)
    for position in reversed(range(len(nodes))):
        fixed = nodes[position].control_flow or after[position] or not chosen[position]
        users = consumers[position]
        if not fixed and users and all(chosen[u] for u in users):
            result[position] = min(result[u] for u in users)
    return result


# ---- memory-bound subgraphs --------------------------------------------------------------------------------


def _with_memory_bound(nodes: Sequence[Node], found: Partition) -> Partition:
    """Adds regions without control flow, in the graph whose nodes are the steps of `found`."""
    inside = [(step,) if isinstance(step, int) else found.regions[step[0]] for step in found.order]
    step_of = {position: number for number, members in enumerate(inside) for position in members}
    steps = []
    for number, members in enumerate(inside):
        producers = {step_of[p] for position in members for p in nodes[position].producers} - {number}
        node, wall = nodes[members[0]], not isinstance(found.order[number], int)
        supported = node.supported and not node.expensive and not wall
        steps.append(replace(node, producers=tuple(sorted(producers)), supported=supported))
    chosen = _without_views(steps)
    depths = _sink_without_cost(steps, chosen, _depths(steps, chosen))
    groups = _groups(chosen, depths)
    reasons = {depth: _nothing_to_gain(steps, group) for depth, group in groups.items()}
    regions: list[tuple[int, ...]] = []
    order: list[int | tuple[int]] = []
    new: list[int] = []

    def take(members: Sequence[int]) -> None:
        order.append((len(regions),))
        regions.append(tuple(sorted(members)))

    for depth in range(max(depths, default=0) + 1):
        for number, step in enumerate(found.order):
            if depths[number] != depth or chosen[number]:
                continue
            if isinstance(step, int):
                order.append(step)
            else:
                take(inside[number])
        light = [inside[number][0] for number in groups.get(depth, ())]
        if light and not reasons[depth]:
            new.append(len(regions))
            take(light)
        else:
            order += light
    declined = tuple(
        (tuple(inside[number][0] for number in groups[depth]), reason)
        for depth, reason in sorted(reasons.items())
        if reason
    )
    return Partition(tuple(regions), tuple(order), frozenset(new), declined)


def _without_views(nodes: Sequence[Node]) -> list[bool]:
    """Chooses what is supported, but not what moves the operands of stock XLA alone, which may read them in
    any layout."""
    chosen = [node.supported for node in nodes]
    users = _users(nodes)
    for position in reversed(range(len(nodes))):
        node, mine = nodes[position], users[position]
        if not (node.computes or node.returned) and mine and not any(chosen[user] for user in mine):
            chosen[position] = False
    return chosen


def _users(nodes: Sequence[Node]) -> list[list[int]]:
    """The positions that read each node's results."""
    users: list[list[int]] = [[] for _ in nodes]
    for position, node in enumerate(nodes):
        for p in node.producers:
            users[p].append(position)
    return users


def _nothing_to_gain(nodes: Sequence[Node], members: Sequence[int]) -> str:
    """The reason why a subgraph should stay with stock XLA, or "".

    XLA makes one kernel of element-wise operators and what they move, for each result that leaves them. So
    there is something to gain only if XLA would store a value that one program need not store.
    """
    inside = set(members)
    read_outside = {
        p for number, node in enumerate(nodes) if number not in inside for p in node.producers if p in inside
    }
    touching = [nodes[p] for p in members if nodes[p].reads + nodes[p].writes]
    if sum(node.computes for node in touching) < 2:
        return "fewer than two of its operators compute with arrays"
    touched = sum(node.reads + node.writes for node in touching)
    if touched < MODEL.stitched_bytes:
        return f"its operators touch {touched} bytes, less than {MODEL.stitched_bytes}"
    results = sum(nodes[p].returned or p in read_outside for p in members)
    if results < 2 and not any(node.stops_fusion for node in touching):
        return "stock XLA makes one kernel of it, too: it is element-wise and has one result"
    return ""


def _sink_without_cost(nodes: Sequence[Node], chosen: Sequence[bool], depths: Sequence[int]) -> list[int]:
    """Moves equations that only feed a later region into that region, if it then reads no more."""
    result, users = list(depths), _users(nodes)
    for position in reversed(range(len(nodes))):
        node, mine = nodes[position], users[position]
        free = chosen[position] and not node.returned and node.reads <= node.writes
        if free and mine and all(chosen[user] for user in mine):
            result[position] = min(result[user] for user in mine)
    return result
