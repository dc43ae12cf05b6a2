"""The picture of two recorded calls in docs/pictures/timeline.json; `docs.record_timeline` records them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jax_cocktail_tools.svg import Picture
from jax_cocktail_tools.timeline.picture import Panel, Span, draw_key, draw_panel

RECORDED = Path(__file__).parent / "pictures" / "timeline.json"
# How many units run it, what they are, and how many iterations are shown.
ROWS_OF = {"threads": (2, "thread", 3), "blocks": (4, "block", 2)}
SIZE = 512


def draw_timeline() -> str:
    """Units as rows, with the critical path in one of its own."""
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    picture = Picture(1080)
    picture.title(
        f"One LSTM layer of {SIZE} features, batch 1, as recorded by jax_cocktail.trace",
        "Two threads of a processor, and four thread blocks that the emulation runs in turn on one thread.",
    )
    panels, y = [_panel(name, recorded[name]) for name in ROWS_OF], 96.0
    for panel in panels:
        y = draw_panel(picture, panel, y) + 44
    draw_key(picture, panels, y - 10)
    return picture.svg()


def _panel(name: str, found: dict[str, Any]) -> Panel:
    units, what, iterations = ROWS_OF[name]
    return Panel(
        f"{iterations} iterations on {units} {what}s, {found['nanoseconds'] / 1e3:.1f} \u00b5s",
        {unit: f"{what} {unit}" for unit in range(units)},
        0.0,
        found["nanoseconds"],
        tuple(Span(*slice_) for slice_ in found["slices"]),
        tuple(Span(*slice_) for slice_ in found["critical"]),
        tuple(found["released"]),
    )
