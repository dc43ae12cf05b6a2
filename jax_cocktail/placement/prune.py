"""Removes statements whose results nothing uses: what parts compute again is often not needed whole."""

from __future__ import annotations

from dataclasses import replace

from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, Statement, reads
from jax_cocktail.utask.types import Value


def prune(region: Region) -> Region:
    """The region without dead statements, nested regions included."""
    live: set[Value] = set(region.results)
    kept: list[Statement] = []
    for statement in reversed(region.body):
        if statement.outputs and live.isdisjoint(statement.outputs):
            continue
        if isinstance(statement, LoopUTask):
            condition = statement.condition and prune(statement.condition)
            statement = replace(statement, condition=condition, body=prune(statement.body))
        elif isinstance(statement, BranchUTask):
            statement = replace(statement, branches=tuple(map(prune, statement.branches)))
        live.update(reads(statement))
        kept.append(statement)
    return Region(region.parameters, tuple(reversed(kept)), region.results)
