"""Removes statements, carries and branch outputs that tiles have made superfluous."""

from __future__ import annotations

from collections.abc import Collection

from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, Statement, reads
from jax_cocktail.utask.rewrite import map_body, map_regions, with_body
from jax_cocktail.utask.types import Value


def prune(region: Region) -> Region:
    """The region without dead statements, nested regions included; carries and branch outputs stay."""
    live: set[Value] = set(region.results)
    kept: list[Statement] = []
    for statement in reversed(region.body):
        if not statement.outputs or not live.isdisjoint(statement.outputs):
            kept.append(map_regions(statement, prune))
            live.update(reads(kept[-1]))
    return with_body(region, reversed(kept))


def skeleton(statement: Statement, cut: Collection[Value]) -> tuple[Statement, ...]:
    """The statement without the values in `cut`; nothing if it makes no others.

    Tiles compute counters, scalar state and flags again for themselves. If outside statements need them too,
    this copy stays at device scope. It reads no value that is cut: an operator that did so, and whose result
    is not cut, would have consumed the class.
    """
    kept = [k for k, v in enumerate(statement.outputs) if v not in cut]
    if not kept:
        return ()
    if isinstance(statement, LoopUTask | BranchUTask):
        statement = statement.keep(kept)
    return (map_regions(statement, lambda region: map_body(region, lambda s: skeleton(s, cut))),)
