"""Records the calls of the picture that `docs.timeline` draws: `python -m docs.record_timeline`.

The program is one LSTM layer, on two threads of this machine and on four emulated thread blocks. What is
drawn is in docs/pictures/timeline.json.
"""

from __future__ import annotations

import json
from typing import Any

from docs.timeline import RECORDED, ROWS_OF, SIZE
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.codegen.stamps import STAGES, Stamp
from jax_cocktail.compiler import emit
from jax_cocktail.device.nvidia import H100
from jax_cocktail.timeline.values import Timeline, Track
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail.utask.operators import HALVES
from tests.cpu.traced import on_blocks, on_threads, timeline_of
from tests.null.programs import arguments
from tests.null.wavefronts import stacked_lstm

STEPS, CALLS = 40, 200


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


if __name__ == "__main__":
    record()
