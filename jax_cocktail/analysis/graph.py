"""Dependences among the statements of a region: other operands, and which cycles there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, Statement, UOperator, UTaskRef
from jax_cocktail.utask.substitute import replaced, with_group_operands, with_operands
from jax_cocktail.utask.types import Value


def with_reads(statement: Statement, mapping: Mapping[Value, Value]) -> Statement:
    """The statement with other operands, nested regions included; what it defines stays."""
    if not mapping:
        return statement
    if isinstance(statement, UOperator):
        return with_operands(statement, mapping)
    if isinstance(statement, LoopUTask):
        condition = statement.condition and _region(statement.condition, mapping)
        return replace(
            statement,
            initial=replaced(statement.initial, mapping),
            condition=condition,
            body=_region(statement.body, mapping),
        )
    if isinstance(statement, BranchUTask):
        return replace(
            statement,
            selector=mapping.get(statement.selector, statement.selector),
            branches=tuple(_region(r, mapping) for r in statement.branches),
        )
    if isinstance(statement, UTaskRef):
        return replace(statement, arguments=replaced(statement.arguments, mapping))
    return with_group_operands(statement, mapping)


def _region(region: Region, mapping: Mapping[Value, Value]) -> Region:
    body = tuple(with_reads(s, mapping) for s in region.body)
    return Region(region.parameters, body, replaced(region.results, mapping))


def strong_components(successors: Sequence[Sequence[int]]) -> list[list[int]]:
    """Strongly connected components in topological order (Tarjan 1972, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    waiting: set[int] = set()
    found: list[list[int]] = []
    for start in range(len(successors)):
        if start in index:
            continue
        work = [(start, iter(successors[start]))]
        index[start] = low[start] = len(index)
        stack.append(start)
        waiting.add(start)
        while work:
            node, rest = work[-1]
            step = next(rest, None)
            if step is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    cut = stack.index(node)
                    component, stack[cut:] = stack[cut:], []
                    waiting.difference_update(component)
                    found.append(sorted(component))
            elif step not in index:
                index[step] = low[step] = len(index)
                stack.append(step)
                waiting.add(step)
                work.append((step, iter(successors[step])))
            elif step in waiting:
                low[node] = min(low[node], index[step])
    return found[::-1]
