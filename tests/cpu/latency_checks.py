"""Latency checks: cycles that a step of the benchmark's kernels takes in the emulator of machine code.

    python -m tests.cpu.latency_checks                 every row that is recorded, held to the record
    python -m tests.cpu.latency_checks sm_90 lstm/1    only these architectures, only these rows
    python -m tests.cpu.latency_checks --update        records what was found

The plans are those of `static_checks`, so a binary is compiled once for both. Recorded numbers belong to one
release of nvcc and lie in tests/golden/gpu_cycles.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from benchmarks.gpu.sass.report import MEASURED, estimate
from jax_cocktail.build.device import device_toolchain
from tests.cpu import static_checks

RECORDED = static_checks.RECORDED.parent / "gpu_cycles.json"
TOLERANCE = 0.1  # of cycles
ARCHES = ("sm_90", "sm_80", "sm_100")


def found(row: str, arch: str) -> dict[str, Any]:
    """Cycles of a step, and the crossings of a launch."""
    result, _ = estimate(row, static_checks.CARDS[arch], iterations=2)
    return {"cycles": round(result.step_cycles), "crossings": dict(sorted(result.crossings.items()))}


def recorded(arch: str, release: str) -> dict[str, Any]:
    """By row; empty if there is nothing for this release of nvcc."""
    everything = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.is_file() else {}
    return dict(everything.get(release, {}).get(arch, {}))


def record(arch: str, release: str, rows: dict[str, Any]) -> None:
    """Keeps the numbers of some rows; those of other rows, architectures and releases stay."""
    everything = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.is_file() else {}
    kept = everything.setdefault(release, {}).setdefault(arch, {})
    everything[release][arch] = dict(sorted({**kept, **rows}.items()))
    text = json.dumps({key: dict(sorted(each.items())) for key, each in sorted(everything.items())}, indent=1)
    RECORDED.write_text(text + "\n", encoding="utf-8")


def problem(here: dict[str, Any], there: dict[str, Any]) -> str:
    """Where a row differs from the record, or ""."""
    mine, known = here["cycles"], there["cycles"]
    if abs(mine - known) > TOLERANCE * known:
        how = "slower" if mine > known else "faster"
        return f"a step takes {mine} cycles, {abs(mine / known - 1):.0%} {how} than the {known} recorded"
    if here["crossings"] != there["crossings"]:
        return f"crossings: {here['crossings']}, recorded {there['crossings']}"
    return ""


def main(arguments: list[str]) -> int:
    """Prints a line for every row; 1 if one differs from its record."""
    parser = argparse.ArgumentParser(prog="python -m tests.cpu.latency_checks")
    parser.add_argument("only", nargs="*", help=f"of {', '.join(ARCHES)}, {', '.join(MEASURED)}")
    parser.add_argument("--update", action="store_true", help="record what is found")
    asked = parser.parse_intermixed_args(arguments)
    if unknown := set(asked.only) - {*ARCHES, *MEASURED}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    release, failed = device_toolchain().release, False
    for arch in [each for each in ARCHES if each in asked.only] or ARCHES:
        known = recorded(arch, release)
        rows = [row for row in MEASURED if row in asked.only] or [row for row in MEASURED if row in known]
        for row in rows:
            start = time.perf_counter()
            here = found(row, arch)
            said = "" if asked.update or row not in known else problem(here, known[row])
            failed |= bool(said)
            if asked.update:
                record(arch, release, {row: here})
            print(f"{arch:7}{row:14}{time.perf_counter() - start:7.1f} s {here}  {said or 'ok'}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
