"""Records the calls of the picture that `docs.timeline` draws: `python -m docs.record_timeline`.

The program is one LSTM layer, on two threads of this machine and on four emulated thread blocks. What is
drawn is in docs/pictures/timeline.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from docs.timeline import RECORDED, ROWS_OF, SIZE
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.codegen.stamps import STAGES
from jax_cocktail.compiler import emit
from jax_cocktail.device.nvidia import H100
from jax_cocktail.timeline.values import Timeline
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail_tools.timeline.picture import Span, panel_of
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

    panel = panel_of(timeline, (begin, end))

    def pieces(spans: Iterable[Span]) -> list[list[Any]]:
        return [[s.unit, s.kind, round(s.begin - begin), round(s.end - begin)] for s in spans]

    return {
        "nanoseconds": round(end - begin),
        "slices": pieces(panel.spans),
        "critical": pieces(panel.critical),
        "released": [round(at - begin) for at in panel.released],
    }


if __name__ == "__main__":
    record()
