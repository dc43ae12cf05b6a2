"""A run of a pack: its programs by the driver, and then what only jax can tell, with the same programs."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu.check import COMPILERS, Check
from benchmarks.gpu.packed import ANSWERED, AUTO, TIMED, Pack
from benchmarks.gpu.pool import Task
from benchmarks.gpu.results import Results, is_good
from benchmarks.gpu.run_pack import PackRun
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.device.store import Measured, store_measured
from jax_cocktail.plain import from_plain

HOST = ("calls", "branch")


def run(options: argparse.Namespace, work: Path, results: Results) -> bool:
    """Runs a pack, then jax with its programs, then what failed in the run that this one resumes; True if
    there was time for all of it."""
    pack, start = Pack(options.run), time.monotonic()
    if not PackRun(pack, results, options.budget, options.only or ()).run():
        return False
    rows = options.only or [row.name for row in pack.rows()]
    check = Check(options, rows, work, results, options.run.absolute(), start)
    plan_as_packed(check, pack)
    if not with_pack(check):
        results.ended = "there was no time for all of jax's items"
        return False
    left = check.deadline - time.monotonic()
    if options.resume and not PackRun(pack, results, left, options.only or (), again=True).run():
        return False
    results.ended = "every item had its turn"
    return True


def plan_as_packed(check: Check, pack: Pack) -> None:
    """Lets jax's processes plan for the card as the pack was planned, unless the card has other units."""
    facts = check.results.known("versions", "all", "card") or {}
    spec = replace(from_plain(DeviceSpec, pack.facts["spec"], "a device"), name=facts["name"])
    units = facts["attributes"]["units"]
    os.environ.update(check.environment())
    if spec.units != units:
        why = f"this card has {units} multiprocessors, and the pack is for {spec.units}"
        check.results.say(f"{why}: jax compiles our programs anew, which needs nvcc or NVRTC")
    elif store_measured(Measured(spec, facts["driver"])) is None:
        check.results.say(f"{check.work} cannot be written: jax plans and compiles our programs anew")


def with_pack(check: Check) -> bool:
    """Runs what needs jax, with the programs of the pack, the most important first. True if there was time
    for all of it."""
    for _ in range(2):  # a cold machine loads jax and CUDA
        found = check.section("jax", [check.task("jax", "all")], 1, check.deadline)["all"]
        if "backend" in found:
            break
    else:
        return "error" in found and not found["error"].startswith("stopped")
    if found["backend"] != "gpu":
        why = found.get("why", f"its backend is {found['backend']}; is jax-cuda13-plugin installed?")
        check.results.keep({**found, "error": f"jax has no GPU here: {why}"}, "jax", "all")
        return True
    finished = True
    for name, tasks, workers in jax_stages(check):
        records = check.section(name, tasks, workers, check.deadline)
        finished &= not any("skipped" in record for record in records.values())
    return finished


def jax_stages(check: Check) -> Iterator[tuple[str, list[Task], int]]:
    """Sections, their tasks, and how many run at a time. Of rows whose best program has failed only stock
    XLA is timed: ours would fail again."""
    rows = [row for row in TIMED if row in check.rows]
    good = {row for row in rows if is_usable(check.results, row)}
    forget_without_ours(check.results, good)
    fresh = {"JAX_ENABLE_COMPILATION_CACHE": "false"}  # `build` dumps what XLA does not take from its cache
    torch = [f"{row}{kind}" for kind in ("", ", compiled") for row in rows if row.startswith("lstm/")]
    untimed = [row for row in rows if not check.finished("times", row)]
    yield "host", [check.task("host", name, **fresh) for name in HOST if "attention/1" in good], 1
    yield "answers", [check.task("answers", row, **fresh) for row in ANSWERED if row in good], len(ANSWERED)
    for row in untimed:  # what was compiled before a resumed run is gone
        check.results.sections.get("build", {}).pop(row, None)
    yield "build", [check.task("build", row, **check.dumping("build", row)) for row in untimed], COMPILERS
    yield "times", [check.task("times", row, ours=row in good) for row in rows], 1
    yield "auto", [check.task("auto", row) for row in AUTO if row in good], 1
    yield "torch", [check.task("torch", name, ours=name.partition(",")[0] in good) for name in torch], 1


def forget_without_ours(results: Results, good: set[str]) -> None:
    """Drops times without ours of rows whose programs have become good since."""
    for section in ("times", "torch"):
        for name, record in list(results.sections.get(section, {}).items()):
            tried = {*record.get("seconds", {}), *record.get("missing", {})}
            if name.partition(",")[0] in good and tried and "ours" not in tried:
                results.drop(section, name)


def is_usable(results: Results, row: str) -> bool:
    """False if a program of the row hung, or the best one failed, is wrong or was skipped."""
    records = (results.known("kernels", row) or {}).values()
    best = [record for record in records if record.get("phase") == "best"]
    return not any(record.get("hung") for record in records) and all(map(is_good, best))
