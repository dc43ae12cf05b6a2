"""What `trace` returns."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from html import escape
from math import inf
from pathlib import Path
from typing import Any

from jax_cocktail.timeline import table
from jax_cocktail.timeline.perfetto import events
from jax_cocktail.timeline.picture import Panel, panel_of
from jax_cocktail.timeline.picture import draw as picture_of
from jax_cocktail.timeline.values import Timeline


@dataclass(frozen=True, slots=True)
class Trace:
    """The results of a call, and its timeline. `print` shows a table of the latter, and a notebook a picture.

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
        made = [self._title]
        made += (f"  {note}" for note in self.notes)
        made += (f"  {line}" for region in self.regions for line in table.lines(region))
        return "\n".join(made)

    def _repr_html_(self) -> str:
        table = f"<pre>{escape(str(self))}</pre>"
        if not self.regions:
            return table
        picture = picture_of(self._title, self._below, self._panels(None), inside=True)
        return f"<div>{picture}<details><summary>as a table</summary>{table}</details></div>"

    def to_svg(self, window: tuple[float, float] | None = None) -> str:
        """A picture of the timelines, as the text of an SVG file: a row for each unit, with slices coloured
        by kind, a row for the critical path, and an axis in microseconds. Point at a slice to read its stage
        and your line.

        Args:
          window: begin and end of what is shown, in microseconds from the begin of the first custom call.
            None: each call as a whole, or iterations from its middle if it is long.

        Raises:
          ValueError: the window ends before it begins.
        """
        if window is not None:
            begin, end = window
            if not -inf < begin < end < inf:
                raise ValueError(f"a window has a begin and a later end, in microseconds; not {window!r}")
        return picture_of(self._title, self._below, self._panels(window))

    @property
    def _title(self) -> str:
        number = len(self.regions)
        return f"{self.function}: {number or 'no'} custom call{'' if number == 1 else 's'} recorded"

    @property
    def _below(self) -> str:
        return "; ".join(self.notes) or "Time from the begin of the first custom call."

    def _panels(self, window: tuple[float, float] | None) -> list[Panel]:
        if window is None:
            return [panel_of(region) for region in self.regions]
        begin, end = (at * 1e3 for at in window)
        inside = (region for region in self.regions if region.start < end and begin < region.end)
        return [panel_of(region, (begin, end)) for region in inside]

    def perfetto(self, path: str | os.PathLike[str]) -> None:
        """Writes the timelines to a file that https://ui.perfetto.dev and chrome://tracing open.

        A unit is a process, with loops, stages and crossings as slices and the lines of your program beside
        them. Arrows lead from the unit that arrives last at a crossing to those that it releases. The
        critical path is a process of its own.
        """
        text = json.dumps({"displayTimeUnit": "ns", "traceEvents": events(self.regions)}, indent=0)
        Path(path).write_text(text + "\n", encoding="utf-8")
