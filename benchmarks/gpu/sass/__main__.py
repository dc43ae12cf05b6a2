"""The latency laboratory: cycles of a step of the rows' kernels, without a card.

python -m benchmarks.gpu.sass lstm/1      cycles, times, and the dearest source lines
python -m benchmarks.gpu.sass nasrnn/64 --plan "132 units, loops undivided"
python -m benchmarks.gpu.sass --all       the rows that were measured on a card, as a table
python -m benchmarks.gpu.sass --probes    the probes of single latencies
python -m benchmarks.gpu.sass --traffic lstm/1    bytes of a launch by memory, predicted and counted
python -m benchmarks.gpu.sass --sizes attention/1    with other numbers of threads per block
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from benchmarks.gpu.rows import ROWS
from benchmarks.gpu.sass.grid import MEMORIES, GridTraffic, grid_traffic
from benchmarks.gpu.sass.machine import machine_for
from benchmarks.gpu.sass.probes import table
from benchmarks.gpu.sass.programs import CARDS, card_of, record
from benchmarks.gpu.sass.report import MEASURED, Estimate, estimate, measured_seconds, told_lines
from benchmarks.gpu.sass.sizes import sizes_of, told_sizes

HEAD = (
    f"{'row':18}{'plan':28}{'steps':>6}{'cycles a step':>15}{'crossings':>28}"
    f"{'us':>9}{'measured':>10}{'ratio':>7}"
)

SIZES = (128, 256, 512)
SIZES_HEAD = f"{'row':16}{'threads':>8}{'predicted':>12}{'rank':>6}{'emulated':>12}{'rank':>6}{'cycles':>12}"


def told(row: str, found: Estimate) -> str:
    """A line of the table."""
    crossings = ", ".join(f"{count} {kind}" for kind, count in sorted(found.crossings.items())) or "-"
    known = measured_seconds(row, found.plan)
    beside = f"{1e6 * known:10.1f}{found.seconds / known:7.2f}" if known else f"{'-':>10}{'-':>7}"
    return (
        f"{row:18}{found.plan:28}{found.steps:6}{found.step_cycles:15.0f}{crossings:>28}"
        f"{1e6 * found.seconds:9.1f}{beside}"
    )


def told_traffic(row: str, found: GridTraffic) -> Iterator[str]:
    """The lines of a table in KiB."""
    yield f"{row}, {found.plan}; blocks of each kind: {', '.join(map(str, found.kinds))}"
    head = ("predicted", "counted", "ratio")
    yield f"{'':12}" + "".join(f"{side + ' ' + name:>20}" for side in ("loaded", "stored") for name in head)
    for memory in MEMORIES:
        predicted, counted = found.predicted[memory], found.counted[memory]
        cells = ""
        for mine, theirs in ((predicted.loaded, counted.loaded), (predicted.stored, counted.stored)):
            ratio = f"{mine / theirs:.2f}" if theirs else "-"
            cells += f"{mine / 1024:20.1f}{theirs / 1024:20.1f}{ratio:>20}"
        yield f"{memory:12}{cells}"


def main(arguments: list[str]) -> int:
    """Prints what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.sass")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument(
        "--all", action="store_true", help="the rows that were measured, without source lines"
    )
    parser.add_argument("--probes", action="store_true", help="emulate the probes of single latencies")
    parser.add_argument("--traffic", action="store_true", help="bytes of a launch, in place of cycles")
    parser.add_argument("--sizes", action="store_true", help="128, 256 and 512 threads per block")
    parser.add_argument("--plan", default="", help="the name of another plan than the cheapest by the model")
    parser.add_argument("--arch", default="sm_90", choices=sorted(CARDS))
    parser.add_argument("--steps", type=int, default=3, help="iterations of the outermost loop to emulate")
    parser.add_argument("--lines", type=int, default=25, help="source lines to print")
    asked = parser.parse_args(arguments)
    unknown = set(asked.rows) - ROWS.keys()
    if unknown or not (asked.rows or asked.all or asked.probes):
        parser.error(f"unknown rows: {', '.join(sorted(unknown))}" if unknown else "which row?")
    spec = card_of(asked.arch)
    print(f"# {spec.name}, {machine_for(asked.arch, record()).told()}")
    if asked.probes:
        figures = record()["measure"]["card"]["figures"]
        print(*table(machine_for(asked.arch, record()), spec.l2_bytes, figures), sep="\n")
        return 0
    if asked.traffic:
        for row in MEASURED if asked.all else asked.rows:
            print(*told_traffic(row, grid_traffic(row, spec, asked.plan)), sep="\n", flush=True)
        return 0
    if asked.sizes:
        print(SIZES_HEAD)
        for row in MEASURED if asked.all else asked.rows:
            print(*told_sizes(row, sizes_of(row, spec, SIZES)), sep="\n", flush=True)
        return 0
    print(HEAD)
    for row in MEASURED if asked.all else asked.rows:
        found, programs = estimate(row, spec, asked.plan, iterations=asked.steps, lines=not asked.all)
        print(told(row, found), flush=True)
        for _, program, block in () if asked.all else programs:
            print(*told_lines(program, block, asked.lines), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
