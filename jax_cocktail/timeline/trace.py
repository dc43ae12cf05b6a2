"""What `trace` returns."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jax_cocktail.timeline import table
from jax_cocktail.timeline.perfetto import events
from jax_cocktail.timeline.values import Timeline


@dataclass(frozen=True, slots=True)
class Trace:
    """The results of a call, and its timeline. `print` shows a table of the latter.

    Attributes:
      function: its name.
      results: what it returned.
      regions: the timeline of each custom call, in order.
      notes: what is not recorded and why, one sentence each.

    Examples:
      >>> @jax_cocktail.jit(options={"force": "cocktail"})
      ... def eighth(x):
      ...     return lax.fori_loop(0, 3, lambda _, c: c / 2, x)
      >>> print(jax_cocktail.trace(eighth)(8.0))
      eighth: 1 custom call recorded
      ...
    """

    function: str
    results: Any = field(repr=False)
    regions: tuple[Timeline, ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        number = len(self.regions)
        made = [f"{self.function}: {number or 'no'} custom call{'' if number == 1 else 's'} recorded"]
        made += (f"  {note}" for note in self.notes)
        made += (f"  {line}" for region in self.regions for line in table.lines(region))
        return "\n".join(made)

    def perfetto(self, path: str | os.PathLike[str]) -> None:
        """Writes the timelines to a file that https://ui.perfetto.dev and chrome://tracing open.

        A unit is a process, with loops, stages and crossings as slices and the lines of your program beside
        them. Arrows lead from the unit that arrives last at a crossing to those that it releases. The
        critical path is a process of its own.
        """
        text = json.dumps({"displayTimeUnit": "ns", "traceEvents": events(self.regions)}, indent=0)
        Path(path).write_text(text + "\n", encoding="utf-8")
