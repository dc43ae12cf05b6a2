"""Timing of the forms of a row: compiled first, three warm calls each, then turns of asynchronous calls."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

import jax_cocktail
from benchmarks.gpu import clock, here, launching
from benchmarks.gpu.packed import file_name
from benchmarks.gpu.peers import FORMS, Form, NoPeer, auto
from benchmarks.gpu.pool import tell
from benchmarks.gpu.recorded import Recording, recording
from benchmarks.gpu.rows import Row
from jax_cocktail.runtime.cuda import card as gpu_card
from jax_cocktail.runtime.cuda import measure as gpu_measure

WARM = 3  # the first call runs plainly, the second captures
TURN_SECONDS = 5e-3  # calls of one turn go out together, with one wait at the end
MOST_CALLS = 200
LEAST_TURNS = 5

Key = TypeVar("Key", bound=Hashable)


def interleaved(
    runs: Mapping[Key, Callable[[], Any]], seconds: float, most_calls: int = MOST_CALLS
) -> dict[Key, float]:
    """Median seconds of one call of each; they take turns for about so long. `most_calls`: of one turn, which
    are waited for together."""
    calls = {key: min(_calls(run), most_calls) for key, run in runs.items()}
    samples: dict[Key, list[float]] = {key: [] for key in runs}
    end = time.perf_counter() + seconds
    turn = 0
    while turn < LEAST_TURNS or time.perf_counter() < end:
        keys = list(runs)
        for key in keys[turn % len(keys) :] + keys[: turn % len(keys)]:
            samples[key].append(_turn(runs[key], calls[key]))
        turn += 1
        if turn >= 2 and time.perf_counter() > end + 4 * seconds:
            break
    return {key: float(np.median(found)) for key, found in samples.items()}


def _calls(run: Callable[[], Any]) -> int:
    for _ in range(WARM):
        jax.block_until_ready(run())
    return min(max(math.ceil(TURN_SECONDS / max(_turn(run, 1), 1e-9)), 1), MOST_CALLS)


def _turn(run: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        last = run()
    jax.block_until_ready(last)
    return (time.perf_counter() - start) / calls


def unrolled_mark(work: Path, name: str) -> Path:
    """A file that says that the row without loops is in XLA's cache."""
    return work / f"unrolled-{file_name(name)}"


def row(
    row: Row, work: Path, small: bool, seconds: float, forms: Mapping[str, Form] = FORMS, kernel: bool = True
) -> dict[str, Any]:
    """Every form of a row that there is; what keeps the others from being. `kernel`: and our kernels."""
    function, arguments = row.make(small)
    jax.block_until_ready(arguments)
    runs: dict[str, Callable[[], Any]] = {}
    found: dict[str, Any] = {"missing": {}, "first_seconds": {}, "differences": {}}
    for form, make in forms.items():
        start = time.perf_counter()
        try:
            if form == "unrolled" and not unrolled_mark(work, row.name).exists():
                raise NoPeer("not compiled: see the section unroll")
            run = make(row.name, function, arguments)
            result = jax.block_until_ready(run())
        except NoPeer as error:
            found["missing"][form] = str(error)
            continue
        except Exception as error:  # one form less
            found["missing"][form] = f"{type(error).__name__}: {error}"[:1000]
            continue
        found["first_seconds"][form] = time.perf_counter() - start
        found["differences"][form] = _hosted(result)
        runs[form] = run
    expected = found["differences"].get("stock")
    found["differences"] = {
        form: row.difference(result, expected)
        for form, result in found["differences"].items()
        if expected is not None
    }
    found["seconds"] = interleaved(runs, seconds)
    tell(found)
    return {**found, "kernel": _kernel(row, small)} if kernel else found


def unforced(row: Row, small: bool, seconds: float) -> dict[str, Any]:
    """The decision on the first call, the seconds that it takes, and the times of the calls that follow."""
    function, arguments = row.make(small)
    jax.block_until_ready(arguments)
    start = time.perf_counter()
    run = auto(row.name, function, arguments)
    jax.block_until_ready(run())
    first = time.perf_counter() - start
    report = jax_cocktail.explain(function)(*arguments)
    runs = {"auto": run, "stock": FORMS["stock"](row.name, function, arguments)}
    return {
        "choice": report.choice,
        "why": report.why,
        "trials": {trial.name: trial.seconds for trial in report.trials},
        "first_seconds": first,
        "seconds": interleaved(runs, seconds / 2),
    }


def _hosted(result: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(result)]


def _kernel(row: Row, small: bool) -> dict[str, Any]:
    """Our kernels through the driver, on the operands that a call gave them."""
    number, why = gpu_card.count()
    if not number:
        return {"none": here.UNMEASURED if here.is_amd() else why}
    try:
        with gpu_card.Card() as card:
            return on_card(card, recorded(row, small))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:1000]}


def recorded(row: Row, small: bool) -> Recording:
    """One call of ours, written down."""
    function, arguments = row.make(small)

    def fresh(*given: Any) -> Any:  # not the function that was compiled before
        return function(*given)

    with recording() as seen:
        jitted = jax_cocktail.jit(fresh, options={"force": "cocktail", "strict": True})
        jax.block_until_ready(jitted(*arguments))
    return seen


def on_card(card: gpu_card.Card, seen: Recording) -> dict[str, Any]:
    """Times of what was written down, all calls together, and the model's at this card's figures."""
    spec = gpu_measure.kept(card.facts.name, card.facts.arch)
    table, times = gpu_card.spec_of(card.facts), []
    binary = clock.program(card.facts.arch)
    with gpu_card.Card() as beside:
        for call in seen.calls:
            loaded = launching.load(card, call)
            times.append(clock.awake(beside, binary, lambda loaded=loaded: asdict(loaded.time())))
            card.release()
    return {
        "seconds": sum(t["seconds"] for t in times),
        "calls": times,
        "predicted_seconds": seen.predicted_seconds(spec or table),
        "measured_spec": spec is not None,
    }
