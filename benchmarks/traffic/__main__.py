"""Predicted and counted loads and stores of programs on the host, by memory.

    python -m benchmarks.traffic                 all programs, on one unit and on two
    python -m benchmarks.traffic softmax_rows    one of them
    python -m benchmarks.traffic --update        records what is counted, for the tests

A cell is "predicted | counted | ratio" in bytes; the last column is what is counted over the bytes of the
operands and results.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.traffic.programs import CASES
from benchmarks.traffic.table import COMPARABLE, MEMORIES, Row, row

RECORD = Path(__file__).parents[2] / "tests" / "golden" / "cpu_traffic.json"
UNITS = (1, 2)
Recorded = dict[str, dict[str, dict[str, list[int]]]]  # program -> units -> memory -> loaded, stored


def recorded() -> Recorded:
    """What was counted when somebody last looked."""
    found: Recorded = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}
    return found


def counts(found: Row) -> dict[str, list[int]]:
    """The record of a row."""
    return {name: [int(m.loaded), int(m.stored)] for name, m in found.counted.items() if m.bytes}


def told(name: str, found: Row) -> str:
    """A line of the table."""
    cells = []
    for memory in MEMORIES:
        predicted, counted = found.predicted[memory].bytes, found.counted[memory].bytes
        cell = f"{predicted:.0f} | {counted:.0f} | {predicted / counted:.2f}" if counted else "-"
        cells.append(f"{cell:>28}")
    return f"{name:26}{found.units:6}{''.join(cells)}{found.factor:9.1f}"


def main(arguments: list[str]) -> int:
    """Prints what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.traffic")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=", ".join(CASES))
    parser.add_argument("--update", action="store_true", help=f"record the counts in {RECORD.name}")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.programs) - CASES.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if not COMPARABLE:
        parser.error("counts are those of programs for x86-64")
    known = recorded()
    print(f"{'program':26}{'units':>6}{''.join(f'{name:>28}' for name in MEMORIES)}{'factor':>9}")
    for name in asked.programs or CASES:
        for units in UNITS:
            found = row(CASES[name], units)
            print(told(name, found), flush=True)
            known.setdefault(name, {})[str(units)] = counts(found)
    if asked.update:
        kept = {name: known[name] for name in CASES if name in known}
        RECORD.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
