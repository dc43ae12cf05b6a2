"""Seconds of a program's first call: stock XLA, ours in a process that builds it, and ours in the next one.

Each call is the first one of a process of its own, and JAX has run another program before. The runtime
library is built beforehand. The first column is the import of jax_cocktail after that of JAX. Those after the
totals tell where our seconds go:

- plan: capture, translation, all passes and prices (Python);
- compile: the host compiler, from its start to the last binary;
- XLA: the rest, which is mostly JAX's tracing and lowering and XLA's compiler.

    python -m benchmarks.first_call                        all models, small programs, patterns, gradients
    python -m benchmarks.first_call --only lstm softmax    rows with these in their names
    python -m benchmarks.first_call --how auto             timed decisions in place of forced programs
    python -m benchmarks.first_call --how background       the same, beside the caller: "compile" is then the
                                                           time until the program is ready
    python -m benchmarks.first_call --out FILE             the same figures as JSON
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HOW = ("forced", "auto", "background")
FIGURES = ("import", "first", "plan", "compile", "XLA")
Figures = dict[str, float]


def cases() -> dict[str, tuple[Callable[[], Any], bool]]:
    """By name: what makes the function and its arguments, and whether memory-bound subgraphs are captured."""
    from benchmarks.rank.cases import CASES
    from jax_cocktail_tools.models.gradients import GRADIENTS

    found = {case.name: (case.make, case.memory_bound) for case in CASES}
    for model in GRADIENTS.values():
        (batch,) = model.batches
        found[f"{model.name}/{batch}"] = (partial(model.make, batch), False)
    return found


class Watch:
    """Wall time by phase. Spans of one phase may overlap, if threads share it."""

    def __init__(self) -> None:
        self.spans: dict[str, list[tuple[float, float]]] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.spans.setdefault(phase, []).append((start, time.perf_counter()))

    def around(self, place: Any, name: str, phase: str) -> None:
        """Counts the calls of a function of a module as a phase."""
        function = getattr(place, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            with self(phase):
                return function(*args, **kwargs)

        setattr(place, name, watched)

    def seconds(self, phase: str) -> float:
        """The length of the union of the phase's spans."""
        total, end = 0.0, 0.0
        for first, last in sorted(self.spans.get(phase, ())):
            total += max(0.0, last - max(first, end))
            end = max(end, last)
        return total


def serve(side: str, name: str, how: str) -> Figures:
    """The first call, in this process."""
    import jax
    import jax.numpy as jnp

    start = time.perf_counter()
    import jax_cocktail.api  # `jax_cocktail.jit` imports it on first use

    imported = time.perf_counter() - start
    from jax_cocktail.build import job
    from jax_cocktail.lowering.choice import choose, decide, request, variants

    make, memory_bound = cases()[name]
    function, arguments = make()
    arguments = jax.block_until_ready(jax.device_put(arguments))
    jax.block_until_ready(jax.jit(lambda x: x + 1)(jnp.ones(3)))
    options = {"scope": "memory_bound" if memory_bound else "control_flow"}
    options["compile"] = "background" if how == "background" else "now"
    watch = Watch()
    surveys = (choose, "known_survey"), (decide, "known_survey")
    for place, phase in ((request, "prepare"), *surveys, (variants, "emit")):
        watch.around(place, phase, "plan")
    watch.around(job, "_compile", "compile")
    if how == "forced":
        options["force"] = "cocktail"
    jitted = jax.jit(function) if side == "stock" else jax_cocktail.jit(function, options=options)
    with watch("first"):
        jax.block_until_ready(jitted(*arguments))
    if how == "background":
        first = watch.seconds("first")
        with watch("ready"):
            jax_cocktail.wait()
        ready = watch.seconds("ready")
        return {"import": imported, "first": first, "plan": 0.0, "compile": ready, "XLA": first}
    found = {phase: watch.seconds(phase) for phase in ("first", "plan", "compile")}
    return {**found, "import": imported, "XLA": found["first"] - found["plan"] - found["compile"]}


def measure(side: str, name: str, how: str, cache: str) -> Figures:
    """The same, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.first_call", "--serve", side, name, "--how", how]
    environment = {**os.environ, "JAX_COCKTAIL_CACHE_DIR": cache, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=ROOT, env=environment, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def row(name: str, how: str, prepared: str, rounds: int) -> dict[str, Any]:
    """The medians of a few first calls of each kind. `prepared`: a cache that has the runtime library."""
    found: dict[str, list[Figures]] = {"stock": [], "first": [], "next": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            cache = shutil.copytree(prepared, Path(folder) / "cache")
            found["stock"].append(measure("stock", name, how, str(cache)))
            found["first"].append(measure("ours", name, how, str(cache)))
            found["next"].append(measure("ours", name, how, str(cache)))
    middle = {
        side: {figure: statistics.median(each[figure] for each in runs) for figure in FIGURES}
        for side, runs in found.items()
    }
    return {"row": name, **middle}


def printed(found: dict[str, Any]) -> str:
    """One line of the table."""
    stock, first, after = (found[side] for side in ("stock", "first", "next"))
    totals = (after["import"], stock["first"], first["first"], first["first"] - stock["first"])
    parts = (first["plan"], first["compile"], first["XLA"])
    late = (after["first"], after["first"] - stock["first"], after["plan"])
    return f"{found['row']:32}" + "".join(f"{value:9.2f}" for value in (*totals, *parts, *late))


def main() -> None:
    """Prints one line for every program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_call")
    parser.add_argument("--only", nargs="+", default=[""], help="rows with one of these in their names")
    parser.add_argument("--how", choices=HOW, default="forced")
    parser.add_argument("--rounds", type=int, default=1, help="first calls of each kind; the median counts")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        print(json.dumps(serve(*options.serve, options.how)))
        return
    names = ("import", "stock", "ours", "- stock", "plan", "compile", "XLA", "next", "- stock", "plan")
    print(f"{'seconds':32}" + "".join(f"{name:>9}" for name in names))
    found = []
    with tempfile.TemporaryDirectory() as prepared:
        environment = {**os.environ, "JAX_COCKTAIL_CACHE_DIR": prepared}
        subprocess.run([sys.executable, "-c", "import jax_cocktail"], check=True, cwd=ROOT, env=environment)
        for name in (n for n in cases() if any(part in n for part in options.only)):
            found.append(row(name, options.how, prepared, options.rounds))
            print(printed(found[-1]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
