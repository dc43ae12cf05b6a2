"""The picture of two recorded calls in docs/pictures/timeline.json; `docs.record_timeline` records them."""

from __future__ import annotations

import json
from pathlib import Path

from jax_cocktail.svg import FAINT, Picture

RECORDED = Path(__file__).parent / "pictures" / "timeline.json"
# How many units run it, what they are, and how many iterations are shown.
ROWS_OF = {"threads": (2, "thread", 3), "blocks": (4, "block", 2)}
SIZE = 512
COLORS = {
    "product": ("#2f6db5", "matrix product"),
    "stage": ("#d9822b", "gates"),
    "other": ("#9fb3c8", "rest"),
    "arrive": ("#a05195", "tells the others"),
    "wait": ("#eceff2", "waits"),
}
CRITICAL = "#b3261e"


def draw_timeline() -> str:
    """Units as rows, with the critical path in a line above them."""
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    picture, left, width, row = Picture(1080), 96.0, 956.0, 26.0
    picture.title(
        f"One LSTM layer of {SIZE} features, batch 1, as recorded by jax_cocktail.trace",
        "Two threads of a processor, and four thread blocks that the emulation runs in turn on one thread.",
    )
    y = 96.0
    for name, (units, what, iterations) in ROWS_OF.items():
        found = recorded[name]
        scale = width / found["nanoseconds"]
        picture.text(
            left,
            y - 8,
            f"{iterations} iterations on {units} {what}s, {found['nanoseconds'] / 1e3:.1f} \u00b5s",
            14,
            style=' font-weight="bold"',
        )
        for unit, kind, begin, end in found["slices"]:
            place = left + begin * scale, y + unit * row + 2
            picture.box(*place, (end - begin) * scale, row - 4, COLORS[kind][0])
        for unit in range(units):
            picture.text(left - 10, y + unit * row + 17, f"{what} {unit}", 12, anchor="end")
        for unit, _, begin, end in found["critical"]:
            at = y + unit * row + row - 2
            picture.line(left + begin * scale, at, left + end * scale, at, CRITICAL, 2.4)
        for released in found["released"]:
            x = left + released * scale
            picture.line(x, y - 2, x, y + units * row + 2, FAINT, 1)
        y += units * row + 44
    picture.key(left, y - 14, [*COLORS.values(), (CRITICAL, "critical path"), (FAINT, "all are released")])
    return picture.svg()
