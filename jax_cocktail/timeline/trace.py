"""The value that `trace` returns."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from html import escape
from math import inf
from pathlib import Path
from typing import Any

from jax_cocktail.timeline.values import Timeline


@dataclass(frozen=True, slots=True, repr=False)
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
    results: Any
    regions: tuple[Timeline, ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """As `print` shows it: a prompt shows what `trace` returns."""
        return str(self)

    def __str__(self) -> str:
        from jax_cocktail_tools.timeline.table import lines

        made = [self._title]
        made += (f"  {note}" for note in self.notes)
        made += (f"  {line}" for region in self.regions for line in lines(region))
        return "\n".join(made)

    def _repr_html_(self) -> str:
        table = f"<pre>{escape(str(self))}</pre>"
        if not self.regions:
            return table
        picture = self._drawn(None, inside=True)
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
        return self._drawn(window)

    @property
    def _title(self) -> str:
        number = len(self.regions)
        return f"{self.function}: {number or 'no'} custom call{'' if number == 1 else 's'} recorded"

    @property
    def _below(self) -> str:
        return "; ".join(self.notes) or "Time from the begin of the first custom call."

    def _drawn(self, window: tuple[float, float] | None, inside: bool = False) -> str:
        """The picture. `inside`: as a part of a page."""
        from jax_cocktail_tools.timeline.picture import draw, panels

        return draw(self._title, self._below, panels(self.regions, window), inside=inside)

    def perfetto(self, path: str | os.PathLike[str]) -> None:
        """Writes the timelines to a file that https://ui.perfetto.dev and chrome://tracing open.

        A unit is a process, with loops, stages and crossings as slices and the lines of your program beside
        them. Arrows lead from the unit that arrives last at a crossing to those that it releases. The
        critical path is a process of its own.
        """
        from jax_cocktail_tools.timeline.perfetto import events

        text = json.dumps({"displayTimeUnit": "ns", "traceEvents": events(self.regions)}, indent=0)
        Path(path).write_text(text + "\n", encoding="utf-8")
