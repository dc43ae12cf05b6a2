"""What stock XLA and jax_cocktail make of patterns without control flow, one line each.

    python -m benchmarks.census                               all patterns, straight-line and in a loop
    python -m benchmarks.census --only softmax "group norm"   those whose names contain one of these
    python -m benchmarks.census --forms straight --seconds 3 --units 1 --no-traffic --out FILE

Ours is forced (scope="memory_bound"). Columns:

    stock, ours   kernels: instructions that one call runs, our custom calls included; bytes: moved, over
                  those of inputs and outputs; ms: of the fastest call. Stock's bytes are operands and results
                  of its kernels. Ours are counted loads and stores of operands, results and workspace.
    far           our bytes that move in and out of the cores' caches, as simulated: what a row loads again
                  while it is in a cache is among the bytes, but not here
    ratio         stock / ours, of the fastest calls; (median): of the median ones
    model         the same ratio as the cost model predicts it
    first s       our first call, compilers included, with an empty cache
    H200          stock XLA for that card, compiled without one; needs jax's CUDA plugin

DIFFERS: our results are farther from float64 than twice stock's. NOT TAKEN: stock XLA runs it all. A loop
runs the pattern three times; its bytes are those of one trip.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.census.measure import FORMS, Row, Side, measure
from benchmarks.census.patterns import PATTERNS

SIDES = (
    f"|{'stock: kernels':>15}{'bytes':>7}{'ms':>9} |{'ours: kernels':>14}{'bytes':>7}{'far':>6}{'ms':>9} |"
)
HEAD = f"{'pattern':24}{'form':9}{SIDES}{'ratio':>7}{'(median)':>9}{'model':>7}{'first s':>9}"
ON_CARD = f" |{'H200: kernels':>14}{'bytes':>7}"


def line(row: Row) -> str:
    """A row of the table."""
    ours, ratio = row.ours, row.ratio
    text = f"{row.pattern:24}{row.form:9}|{_side(row.stock, 15)} |{_side(ours, 14, far=True)} |"
    middle = _ratio(row.stock.median, ours.median) if ours else None
    text += _number(ratio, 7) + f"{f'({_number(middle, 1)})':>9}" + _number(row.predicted, 7)
    text += _number(ours and ours.first, 9)
    if row.h200:
        text += f" |{row.h200.kernels:14.0f}{_number(row.h200.traffic, 7)}"
    return f"{text}  {row.problem}".rstrip()


def summary(rows: Sequence[Row]) -> list[str]:
    """Geometric means by form, the error of the cost model, and the rows with problems."""
    lines = []
    for form in dict.fromkeys(row.form for row in rows):
        ratios = [row.ratio for row in rows if row.form == form and row.ratio]
        if ratios:
            best = _mean([max(ratio, 1.0) for ratio in ratios])
            lines.append(
                f"{form}: geometric mean of {len(ratios)}: {_mean(ratios):.2f};"
                f" {best:.2f} if stock XLA runs what it is faster at"
            )
    told = [row for row in rows if row.ratio and row.predicted]
    if told:
        worst = max(told, key=_overestimate)
        lines.append(
            f"the model overestimates a speedup by up to {_overestimate(worst):.1f} times"
            f" ({worst.pattern}, {worst.form})"
        )
    bad = [f"{row.pattern} ({row.form})" for row in rows if row.problem]
    return [*lines, *([f"look at: {', '.join(bad)}"] if bad else [])]


def _overestimate(row: Row) -> float:
    """The predicted speedup over the measured one."""
    return row.predicted / row.ratio if row.predicted and row.ratio else 0.0


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def _ratio(theirs: float | None, ours: float | None) -> float | None:
    return theirs / ours if theirs and ours else None


def _side(side: Side | None, width: int, far: bool = False) -> str:
    if side is None:
        return f"{'-':>{width}}{'-':>7}" + (f"{'-':>6}" if far else "") + f"{'-':>9}"
    milliseconds = None if side.seconds is None else side.seconds * 1e3
    moved = _number(side.traffic, 7) + (_number(side.far, 6) if far else "")
    return f"{side.kernels:{width}.0f}{moved}{_number(milliseconds, 9)}"


def _number(number: float | None, width: int) -> str:
    return f"{'-' if number is None else f'{number:.2f}':>{width}}"


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.census",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="parts of names")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--seconds", type=float, default=1.0, help="how long each row is timed")
    parser.add_argument("--units", type=int, default=0, help="threads of our programs; 0: one per core")
    parser.add_argument("--small", action="store_true", help="small operands, whose times say nothing")
    parser.add_argument("--no-traffic", action="store_true", help="our bytes are not counted")
    parser.add_argument("--out", type=Path, help="the same figures as JSON")
    options = parser.parse_args(arguments)
    chosen = [p for name, p in PATTERNS.items() if any(text in name for text in options.only)]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="census-") as folder:
        os.environ["JAX_COCKTAIL_CACHE_DIR"] = folder
        for pattern in chosen:
            for form in options.forms:
                row = measure(
                    pattern, form, options.seconds, options.units, options.small, not options.no_traffic
                )
                if not rows:
                    print(HEAD + (ON_CARD if row.h200 else ""))
                rows.append(row)
                print(line(row), flush=True)
    if rows and not rows[0].h200:
        print("no columns for an H200: jax's CUDA plugin is not installed")
    print("\n".join(summary(rows)))
    if options.out:
        facts: list[dict[str, Any]] = [dataclasses.asdict(row) for row in rows]
        options.out.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return rows


if __name__ == "__main__":
    main()
