"""The picture of two recorded calls: `python -m docs.timeline` records them again, `docs.draw` draws them.

The program is one LSTM layer, on two threads of this machine and on four emulated thread blocks. What is
drawn is in docs/pictures/timeline.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docs.svg import FAINT, Picture
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.codegen.stamps import STAGES, Stamp
from jax_cocktail.compiler import emit
from jax_cocktail.device.spec import H100
from jax_cocktail.timeline.values import Timeline, Track
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail.utask.operators import HALVES
from tests.cpu.traced import on_blocks, on_threads, timeline_of
from tests.null.programs import arguments
from tests.null.wavefronts import stacked_lstm

RECORDED = Path(__file__).parent / "pictures" / "timeline.json"
# How many units run it, what they are, and how many iterations are shown.
ROWS_OF = {"threads": (2, "thread", 3), "blocks": (4, "block", 2)}
SIZE, STEPS, CALLS = 512, 40, 200
COLORS = {
    "product": ("#2f6db5", "matrix product"),
    "stage": ("#d9822b", "gates"),
    "other": ("#9fb3c8", "rest"),
    "arrive": ("#a05195", "tells the others"),
    "wait": ("#eceff2", "waits"),
}
CRITICAL = "#b3261e"


def record() -> None:
    """Records both calls. Of many calls on the threads, the fastest one is kept."""
    program = stacked_lstm(1, STEPS, 1, SIZE)
    values = arguments(program)
    host = emit(program, candidate=Candidate(2), trace=STAGES)
    call = on_threads(host, values, 2)
    calls = (timeline_of(host, call()[-1].copy()) for _ in range(CALLS))
    threads = min(calls, key=lambda timeline: timeline.end - timeline.start)
    gpu = emit(program, machine_of(H100), candidate=Candidate(4), trace=STAGES)
    blocks = timeline_of(gpu, on_blocks(gpu, values)[-1])
    found = {"threads": _shown("threads", threads), "blocks": _shown("blocks", blocks)}
    RECORDED.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")


def _shown(name: str, timeline: Timeline) -> dict[str, Any]:
    """A few iterations from the middle: slices of units and of the critical path, by kind."""
    _, _, iterations = ROWS_OF[name]
    middle = len(timeline.crossings) // 2
    begin = max(timeline.crossings[middle].released)
    end = max(timeline.crossings[middle + iterations].released)

    def pieces(track: Track) -> list[list[Any]]:
        cut = ((s, max(s.begin, begin) - begin, min(s.end, end) - begin) for s in track)
        return [[s.unit, _kind(s.stamp), round(a), round(b)] for s, a, b in cut if a < b]

    ends = (max(crossing.released) for crossing in timeline.crossings)
    return {
        "nanoseconds": round(end - begin),
        "slices": [piece for track in timeline.tracks for piece in pieces(track)],
        "critical": pieces(timeline.critical),
        "released": [round(at - begin) for at in ends if begin < at <= end],
    }


def _kind(stamp: Stamp) -> str:
    if stamp.kind in HALVES:
        return stamp.kind
    if stamp.kind == "stage":
        return "product" if "dot" in stamp.what else "stage"
    return "other"


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


if __name__ == "__main__":
    record()
