"""Runs a marked call with traced programs, and reads its timeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jax_cocktail.lowering.choice.decisions import Plan
from jax_cocktail.lowering.choice.variants import Prepared, traced
from jax_cocktail.lowering.edge.adapter import acts
from jax_cocktail.lowering.edge.meshes import EACH
from jax_cocktail.lowering.run.stopwatch import runner
from jax_cocktail.lowering.state import Mark, Recording, alone
from jax_cocktail.primitives.jaxprs import open_jaxpr
from jax_cocktail.report import Report
from jax_cocktail.timeline.rings import begin_of, read

DEFAULT_LEVEL = 2


def record(prepared: Prepared, plan: Plan, mark: Mark, arguments: Sequence[Any]) -> Recording:
    """One recorded run, after one that warms caches up, unless the call has side effects."""
    rewritten, built = traced(prepared, plan, mark, mark.options.trace or DEFAULT_LEVEL)
    with alone():
        run = runner(rewritten.with_rings(), arguments)
        if not acts(open_jaxpr(prepared.closed).effects):
            jax.block_until_ready(run())
        found = jax.block_until_ready(run())
    count = len(found) - len(rewritten.rings)
    rings = [np.asarray(halves).view(np.uint64) for halves in found[count:]]
    origin = min(map(begin_of, rings), default=0)
    tables = (executable.stamps for executable in built.values())
    regions = (
        read(number, words, table.rows, table.level, origin)
        for number, (words, table) in enumerate(zip(rings, tables, strict=True))
        if table is not None
    )
    return Recording(list(found[:count]), tuple(regions))


def unrecorded(report: Report, recorded: bool) -> tuple[str, ...]:
    """Notes on what has no timeline in a call with this report, and why; `recorded`: something has one."""
    notes = [f"stock XLA runs {left.placed}: {left.because}" for left in report.left]
    if report.choice == "stock" and report.captured:
        remedy = 'options={"force": "cocktail"} records the program of jax_cocktail'
        notes.append(f"stock XLA runs the call ({report.why}): {remedy}")
    elif report.choice == "stock" and not notes:
        notes.append(f"nothing to record: {report.why}")
    elif report.choice == "cocktail" and not recorded:
        mapped = f"{EACH}; trace the function of one device on its shard"
        notes.append(f"nothing to record: {mapped if report.why == EACH else 'the arguments are not values'}")
    return tuple(notes)
