"""Times the models as `jit` decided on an idle machine while other processes take its cores.

Each model is a process of its own. It decides while the machine is idle and is then measured under every
load, in short turns with stock XLA. A cell is stock over ours, of the medians and of the 90th percentiles.

    python -m benchmarks.busy                     every model under every load
    python -m benchmarks.busy --rows lstm rae     some models
    python -m benchmarks.busy --loads idle 2      some loads
    python -m benchmarks.busy --units 2           on two units, whatever is fastest
    python -m benchmarks.busy --out FILE          the same figures as JSON

Loads: a number of busy processes, ``quota`` (a control group with the quota of one core; needs the right to
make one) and ``pinned`` (to one core, after the decision).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
LOADS = ("idle", "1", "2", "8", "quota", "pinned")
TURN_SECONDS = 0.2
GROUPS = Path("/sys/fs/cgroup")
BURN = "while True: pass"
SETTLE_SECONDS = 0.5  # until the scheduler has placed what has just started


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Other processes that never sleep."""
    others = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(count)]
    try:
        time.sleep(SETTLE_SECONDS if count else 0)
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


@contextmanager
def quota(process: int) -> Iterator[None]:
    """A control group with the quota of one core. Raises OSError if this user may not make one."""
    unified = (GROUPS / "cgroup.controllers").exists()
    parent = GROUPS if unified else GROUPS / "cpu"
    group = parent / f"busy-{os.getpid()}"
    group.mkdir()
    try:
        if unified:
            (group / "cpu.max").write_text("100000 100000")
        else:
            (group / "cpu.cfs_quota_us").write_text("100000")
        (group / "cgroup.procs").write_text(str(process))
        yield
    finally:
        (parent / "cgroup.procs").write_text(str(process))
        group.rmdir()


@contextmanager
def pinned(process: int) -> Iterator[None]:
    """All threads of a process on one of its cores."""
    cores = os.sched_getaffinity(process)
    for thread in os.listdir(f"/proc/{process}/task"):
        os.sched_setaffinity(int(thread), {min(cores)})
    try:
        yield
    finally:
        for thread in os.listdir(f"/proc/{process}/task"):
            os.sched_setaffinity(int(thread), cores)


def load(name: str, process: int) -> AbstractContextManager[None]:
    named: dict[str, Callable[[int], AbstractContextManager[None]]] = {"quota": quota, "pinned": pinned}
    return named[name](process) if name in named else busy(0 if name == "idle" else int(name))


def serve(row: str, units: int, quick: bool) -> None:
    """The measured process: answers every line of its input with the times of both."""
    import jax

    import jax_cocktail
    from jax_cocktail_tools.models import MODELS

    name, _, batch = row.partition("/")
    function, arguments = MODELS[name].make(int(batch), small=quick)
    options: dict[str, Any] = {"units": units, "force": "cocktail"} if units else {}
    ours = jax_cocktail.jit(function, options=options)
    runs = {"stock": jax.jit(function), "ours": ours}
    for run in runs.values():
        jax.block_until_ready(run(*arguments))
    report = jax_cocktail.explain(ours)(*arguments)
    print(json.dumps({"decision": str(report).splitlines()[0]}), flush=True)
    for line in sys.stdin:
        times: dict[str, list[float]] = {key: [] for key in runs}
        end = time.perf_counter() + float(line)
        while time.perf_counter() < end:
            for key, run in runs.items():
                stop = time.perf_counter() + TURN_SECONDS
                while (start := time.perf_counter()) < stop:
                    jax.block_until_ready(run(*arguments))
                    times[key].append(time.perf_counter() - start)
        print(json.dumps({k: [*np.percentile(t, [50, 90]), len(t)] for k, t in times.items()}), flush=True)


def measure(
    row: str, loads: Sequence[str], seconds: float, units: int = 0, quick: bool = False
) -> dict[str, Any]:
    """The figures of a model under every load, measured for so long: for both, the median and the 90th
    percentile in seconds, and the number of calls."""
    command = [sys.executable, "-m", "benchmarks.busy", "--serve", row, "--units", str(units)]
    command += ["--quick"] if quick else []
    found: dict[str, Any] = {}
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, cwd=ROOT) as child:
        assert child.stdin and child.stdout
        found["decision"] = json.loads(child.stdout.readline())["decision"]
        for name in loads:
            try:
                with load(name, child.pid):
                    child.stdin.write(f"{seconds}\n")
                    child.stdin.flush()
                    found[name] = json.loads(child.stdout.readline())
            except OSError as error:
                found[name] = {"skipped": str(error)}
        child.stdin.close()
    return found


def cell(found: dict[str, Any]) -> str:
    """Stock over ours, and our median."""
    if "skipped" in found:
        return "-"
    (median, late, _), (our_median, our_late, _) = found["stock"], found["ours"]
    return f"{median / our_median:.2f} {late / our_late:.2f} {our_median * 1e3:8.3f}"


def main() -> None:
    """Prints one line a model."""
    from jax_cocktail_tools.models import MODELS

    rows = [f"{m.name}/{batch}" for m in MODELS.values() for batch in m.batches]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.busy")
    parser.add_argument("--rows", nargs="+", default=[""], help="those whose names begin with one of these")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--seconds", type=float, default=4.0, help="for each load")
    parser.add_argument("--units", type=int, default=0, help="0: as `jit` decides")
    parser.add_argument("--quick", action="store_true", help="small models")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.units, options.quick)
        return
    print(f"{'stock / ours: median, p90, ms':30}" + "".join(f"{name:>22}" for name in options.loads))
    figures = {}
    for row in (r for r in rows if r.startswith(tuple(options.rows))):
        figures[row] = measure(row, options.loads, options.seconds, options.units, options.quick)
        print(f"{row:30}" + "".join(f"{cell(figures[row][n]):>22}" for n in options.loads), flush=True)
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
