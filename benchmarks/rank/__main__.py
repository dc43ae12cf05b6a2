"""Do the cost models of the host rank programs as measured times do?

    python -m benchmarks.rank                          measures the census and the models, and compares
    python -m benchmarks.rank --out FILE               records the times too; a record of this machine that
                                                       is there keeps the shorter time of both
    python -m benchmarks.rank --fit FILE               the same tables from a record, without measuring
    python -m benchmarks.rank --only softmax lstm/1    cases whose names contain one of these

One line for each case and choice: stock XLA, and ours for one unit and for all cores; "loops undivided"
where that is another program. Milliseconds of the fastest call, and the time that each model says over it:

    SOL         bytes over bandwidth or flops over peak, whichever is longer, plus launches
    projected   the price by which `jit` chooses what to build and time

Below are Kendall's tau over all choices of ours, over stock XLA's rows, and over the choices within each case
that differ by more than a tenth; and by how much a speedup over stock XLA is overestimated at worst.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.rank.cases import CASES
from benchmarks.rank.predict import MODELS, Entry, entries, ranks
from benchmarks.rank.record import Record, measure, merged, new, read


def table(found: Sequence[Entry]) -> list[str]:
    lines = [f"{'case':34}{'choice':26}{'ms':>10}" + "".join(f"{model:>11}" for model in MODELS)]
    for each in found:
        ratios = "".join(f"{each.predicted[model] / each.measured:11.2f}" for model in MODELS)
        lines.append(f"{each.case:34}{each.choice:26}{each.measured * 1e3:10.3f}{ratios}")
    lines.append(
        f"\n{'Kendall tau':14}{'ours':>8}{'stock':>8}{'choices':>9}   speedup overestimated by up to"
    )
    for model in MODELS:
        rank = ranks(found, model)
        taus = f"{rank.ours:8.2f}{rank.stock:8.2f}{rank.choices:9.2f}"
        lines.append(f"{model:14}{taus}   {rank.overestimate:.1f} times ({rank.at})")
    return lines


def record_of(only: Sequence[str], seconds: float, out: Path | None) -> Record:
    """Measures, and writes after each case."""
    rows, before = [], read(out) if out is not None and out.exists() else None
    for case in CASES:
        if any(text in case.name for text in only):
            rows.append(measure(case, seconds))
            print(rows[-1].case, flush=True)
            if out is not None:
                merged(before, new(rows)).write(out)
    return merged(before, new(rows))


def main(arguments: Sequence[str] | None = None) -> list[Entry]:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rank",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="parts of names")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each case is timed")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the times as JSON")
    parser.add_argument("--fit", type=Path, metavar="FILE", help="compare with the times of a record")
    options = parser.parse_args(arguments)
    record = read(options.fit) if options.fit else record_of(options.only, options.seconds, options.out)
    found = list(entries(record))
    print(f"{record.cpu}, {record.cores} cores, jax {record.jax}, {record.date}\n")
    print("\n".join(table(found)))
    return found


if __name__ == "__main__":
    main()
