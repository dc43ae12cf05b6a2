"""Selects the equations that become regions, by graph rules on plain numbers.

A region is outermost control flow plus the cheap equations beside it. The depth of an equation is the maximum
number of times that a path to it leaves a region for stock XLA. The equations of one depth that we compile
form one convex region: a path that leaves it never comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """One equation. `producers`: the positions of the equations that it reads, or whose side effects precede
    its own; all are smaller than its own."""

    producers: tuple[int, ...]
    supported: bool
    control_flow: bool
    expensive: bool


@dataclass(frozen=True, slots=True)
class Partition:
    """The result of `partition`.

    Attributes:
      regions: the positions in each region, in execution order.
      order: all steps of the rewritten program in a valid order. An int is an equation of stock XLA, a
        1-tuple the number of a region.
    """

    regions: tuple[tuple[int, ...], ...]
    order: tuple[int | tuple[int], ...]


def partition(nodes: Sequence[Node]) -> Partition:
    """Divides a program into regions and equations for stock XLA."""
    chosen = [node.supported for node in nodes]
    chosen = _peel(nodes, chosen, _depths(nodes, chosen))
    depths = _sink(nodes, chosen, _depths(nodes, chosen))
    groups: dict[int, list[int]] = {}
    for position in range(len(nodes)):
        if chosen[position]:
            groups.setdefault(depths[position], []).append(position)
    kept = {d: tuple(g) for d, g in groups.items() if any(nodes[p].control_flow for p in g)}
    regions: list[tuple[int, ...]] = []
    order: list[int | tuple[int]] = []
    for depth in range(max(depths, default=0) + 1):
        order += [p for p in range(len(nodes)) if not chosen[p] and depths[p] == depth]
        if depth in kept:
            order.append((len(regions),))
            regions.append(kept[depth])
        else:
            order += groups.get(depth, [])
    return Partition(tuple(regions), tuple(order))


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
    consumers: list[list[int]] = [[] for _ in nodes]
    for position, node in enumerate(nodes):
        for p in node.producers:
            consumers[p].append(position)
    for position in reversed(range(len(nodes))):
        fixed = nodes[position].control_flow or after[position] or not chosen[position]
        users = consumers[position]
        if not fixed and users and all(chosen[u] for u in users):
            result[position] = min(result[u] for u in users)
    return result
