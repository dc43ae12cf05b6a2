"""Writes the tables of measured figures into README.md and docs/gpu.md, from the JSON files in `results`.

    python benchmarks/results_table.py            write them
    python benchmarks/results_table.py --check    status 1 if a committed table is not what this script writes

A table stands between ``<!-- begin results: NAME -->`` and ``<!-- end results: NAME -->``. The files of runs
without a card hold predictions, not measurements, and are left out.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.gpu import targets  # noqa: E402
from benchmarks.gpu.fit import Fitted, fitted, tau  # noqa: E402
from benchmarks.gpu.kernels import path_of  # noqa: E402
from benchmarks.gpu.results import FOLDER as RESULTS  # noqa: E402
from benchmarks.gpu.results import newest  # noqa: E402
from benchmarks.gpu.roofline import limit_seconds  # noqa: E402
from benchmarks.gpu.ways import Ways, compared  # noqa: E402
from jax_cocktail_tools.commands import result  # noqa: E402

MARKED = re.compile(r"(<!-- begin results: (\w+) -->\n).*?(<!-- end results: \2 -->)", re.DOTALL)
NONE = "-"

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of `gpu_check.py` on a card."""

    figures: Record
    path: Path

    def section(self, name: str) -> dict[str, Record]:
        found: dict[str, Record] = self.figures["sections"].get(name, {})
        return found

    @property
    def versions(self) -> Record:
        return self.section("versions")["all"]

    @property
    def card(self) -> str:
        return str(self.versions["card"]["name"])

    @property
    def rows(self) -> tuple[str, ...]:
        """Those of a pack, and those of the other sections."""
        return tuple(dict.fromkeys((*self.section("kernels"), *self.section("reference"))))

    def seconds(self, row: str, form: str) -> float | None:
        """The median time of a call in one form; None if it was not taken."""
        return self.section("times").get(row, {}).get("seconds", {}).get(form)

    def kernel(self, row: str) -> Record:
        """Our kernels alone; see `targets.kernel`."""
        return dict(targets.kernel(self.figures["sections"], row))

    def packed(self, row: str) -> str:
        """The name of the best plan of a pack, "" without one."""
        found = self.section("kernels").get(row, {})
        return next((name for name, record in found.items() if record.get("phase") == "best"), "")

    def goal(self, row: str) -> float | None:
        """The ratio of stock XLA to ours that the project aims at on an H200."""
        wanted = f"{row}: stock / ours"
        return next((t["limit"] for t in self.figures["targets"] if t["target"] == wanted), None)


def runs() -> tuple[Run, ...]:
    """The latest run on each card, by the card's name."""
    paths = (path for _, path in sorted(newest(RESULTS).items()))
    return tuple(Run(json.loads(path.read_text(encoding="utf-8")), path) for path in paths)


# The models of the first page: loops, branches, and trees as loops and by recursion.
SHOWN = (
    "lstm",
    "nasrnn",
    "attention",
    "seq2seq",
    "blockdrop",
    "skipnet",
    "rae",
    "rae_recursive",
    "tree_lstm",
)


def hosts() -> tuple[result.Result, ...]:
    """Every result of the command `bench`: the times of a CPU, by file name."""
    return tuple(map(result.read, sorted(RESULTS.glob("bench_*.json"))))


def host_times(found: result.Result) -> dict[str, tuple[float, float]]:
    """Median seconds of a call under stock XLA, and of ours if it is forced, of each model with its batch."""
    return {row.name: (row.stock.median.middle, row.ours.median.middle) for row in found.rows}


def time(seconds: float | None) -> str:
    """Microseconds with three digits, for a cell."""
    if seconds is None:
        return NONE
    return "< 0.01" if seconds < 1e-8 else f"{float(f'{seconds * 1e6:.3g}'):,.10g}"


def ratio(above: float | None, below: float | None) -> str:
    """Two digits; three from 100 on."""
    if above is None or not below:
        return NONE
    value = above / below
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# The forms of stock XLA of which a table shows the fastest, and their headings.
STOCK = {"stock": "stock", "graphs": "captured", "graphs_unrolled": "captured, unrolled"}


def best(run: Run, row: str) -> float | None:
    """Stock XLA in the fastest of its forms."""
    return min((s for form in STOCK if (s := run.seconds(row, form)) is not None), default=None)


def _call(run: Run, row: str, forms: Sequence[str]) -> Sequence[str]:
    ours, goal = run.seconds(row, "ours"), run.goal(row)
    aim = NONE if goal is None else f"{goal:g}"
    ratios = ratio(run.seconds(row, "stock"), ours), ratio(best(run, row), ours)
    return row, time(ours), *(time(run.seconds(row, form)) for form in forms), *ratios, aim


def timed(run: Run) -> Iterator[str]:
    """The rows that have a time of a call."""
    return (row for row in run.rows if run.seconds(row, "ours") is not None)


def calls(run: Run) -> str:
    """Whole calls, of all rows that were timed, in the forms that one of them was timed in."""
    rows = tuple(timed(run))
    forms = [form for form in STOCK if any(run.seconds(row, form) is not None for row in rows)]
    head = ("program", "ours", *(STOCK[form] for form in forms), "stock / ours", "best / ours", "goal")
    return table(head, (_call(run, row, forms) for row in rows))


def short(run: Run) -> str:
    """For the README: a CPU beside a card, with stock XLA in the fastest of its forms there."""
    names = tuple(timed(run))
    both = {name: (run.seconds(name, "ours"), best(run, name)) for name in names}
    slower = [name for name, (ours, stock) in both.items() if ours and stock and stock < ours]
    text = f"On the GPU ({run.card}), {answers(run)[:-1]}\n"
    text += f"There, {len(names) - len(slower)} of {len(names)} timed programs are"
    text += f" faster than stock XLA; slower: {', '.join(slower) or 'none'}.\n\n"
    host = host_times(hosts()[0])
    rows = [name for name in host if name.partition("/")[0] in SHOWN]

    def cells(name: str) -> Sequence[str]:
        (there, here), (ours, stock) = host.get(name, (None, None)), both.get(name, (None, None))
        return name, time(there), time(here), ratio(there, here), time(stock), time(ours), ratio(stock, ours)

    head = ("model / batch", "CPU: stock XLA, us", "ours", "ratio", "GPU: stock XLA, us", "ours", "ratio")
    return text + table(head, (cells(name) for name in dict.fromkeys((*rows, *names))))


def kernels(run: Run) -> str:
    """Our kernels alone beside what the model says, of all rows."""
    spec = targets.measured_card(run.figures["sections"])

    def cells(row: str) -> Sequence[str]:
        plan, kernel = run.section("plan").get(f"{row}@card", {}), run.kernel(row)
        took, said = kernel.get("seconds"), kernel.get("predicted_seconds", plan.get("seconds"))
        barriers = NONE if "barriers" not in plan else f"{plan['barriers']:g}"
        limit = time(limit_seconds(row, spec) if spec else None)
        name = plan.get("plan") or run.packed(row) or NONE
        return row, name, barriers, time(took), time(said), limit, ratio(took, said)

    head = ("program", "plan", "barriers", "measured", "model", "limit", "measured / model")
    rows = [cells(row) for row in run.rows]
    off = sorted(float(row[-1]) for row in rows if row[-1] != NONE)
    text = f"Kernels took {off[0]:g} to {off[-1]:g} times the model's prediction.\n\n" if off else ""
    return text + table(head, rows)


def elements(run: Run) -> str:
    """Batches of loops: the price of each way to run them, beside what it took."""
    found = tuple(compared(run.figures["sections"]))
    if not found:
        return f"No batch of loops has run on {run.card} yet.\n"

    def cells(row: Ways) -> Sequence[str]:
        pairs = row.threads, row.together, row.stock
        times = (word for p in pairs for word in (time(p.measured), time(p.predicted)))
        return row.row, *times, ratio(row.stock.measured, row.ours), RANKED[row.ranked]

    ways = ("by threads", "batch together", "stock XLA")
    heads = (word for way in ways for word in (way, "predicted"))
    return table(("program", *heads, "stock / ours", "the model takes"), map(cells, found))


RANKED = {True: "the faster way", False: "the slower way", None: NONE}


def fit(run: Run) -> str:
    """Predictions of today's cost model for everything of ours that was measured."""
    if not path_of(run.path).exists():
        return f"`python benchmarks/gpu_check.py --fit benchmarks/results/{run.path.name}` has not run yet.\n"
    found = fitted(run.path, run.figures)

    def cells(each: Fitted) -> Sequence[str]:
        what = each.measured
        times = time(each.predicted), time(what.seconds), f"{each.ratio:.2f}"
        return what.row, what.plan, *times, "kernel" if what.alone else "call"

    text = f"Kendall's tau of all {len(found)}: {tau(each.pair for each in found):.2f}.\n\n"
    return text + table(
        ("program", "plan", "predicted", "measured", "predicted / measured", "timed"), map(cells, found)
    )


def goals(run: Run) -> str:
    """Every target of the project for an H200, and whether this card reaches it, as it is judged today."""
    rows = (
        (t["target"], f"{'>=' if t['least'] else '<='} {t['limit']:g} {t['unit']}", _found(t), t["state"])
        for t in targets.judge_all(run.figures["sections"])
    )
    return table(("target for an H200", "limit", "found", "state"), rows)


def _found(target: Record) -> str:
    return f"{target['value']:.3g} {target['unit']}" if "value" in target else NONE


def decided(run: Run) -> str:
    """Choices of `jit` when nothing was forced."""
    rows = []
    for row, record in run.section("auto").items():
        if "choice" in record:
            trials = "; ".join(f"{name}: {time(seconds)}" for name, seconds in record["trials"].items())
            rows.append((row, "ours" if record["choice"] == "cocktail" else "stock XLA", trials))
    return table(("program", "chosen", "timed, microseconds"), rows)


def answers(run: Run) -> str:
    """The number of rows that agree with float64, and those not checked: calls, or programs of a pack."""
    checked = run.section("correct") or {row: run.kernel(row) for row in run.section("kernels")}
    right = [row for row, record in checked.items() if record.get("ok")]
    wrong = [row for row, record in checked.items() if record.get("ok") is False]
    stopped = [row for row in run.rows if row not in right and row not in wrong]
    text = f"{len(right)} of {len(run.rows)} programs agree with a float64 reference within their limits"
    text += f"; wrong: {', '.join(wrong)}" if wrong else "; none is wrong"
    return text + (f"; not checked: {', '.join(stopped)}.\n" if stopped else ".\n")


def card(run: Run) -> str:
    """The card and its software, and the figures that plans depend on."""
    versions, measured = run.versions, run.section("measure")["card"]
    packages, spec = versions["packages"], {**measured["spec"], **dict.fromkeys(measured["kept_from_table"])}
    rates = (NONE if spec[k] is None else f"{spec[k] / 1e12:.3g}" for k in (*_RATES, "flops"))
    shared, l2, memory, flops = rates
    said = (
        ("card", run.card),
        ("software", f"jax {packages.get('jax', NONE)}, {versions['compiler']}"),
        ("multiprocessors", str(spec["units"])),
        ("launch in a graph", f"{time(spec['launch_seconds'])} us"),
        ("barrier between all units", f"{time(spec['barrier_seconds'])} us"),
        ("hop by a flag", f"{time(spec['hop_seconds'])} us"),
        ("shared memory, L2, memory", f"{shared} / {l2} / {memory} TB/s"),
        ("float32 multiply-add", f"{flops} TFLOP/s"),
    )
    return table(("figure", "value"), said)


_RATES = ("shared_rate", "l2_rate", "memory_rate")
TABLES: dict[str, Callable[[Run], str]] = {
    "answers": answers,
    "calls": calls,
    "card": card,
    "decided": decided,
    "elements": elements,
    "fit": fit,
    "goals": goals,
    "kernels": kernels,
    "short": short,
}
PAGES = ("README.md", "docs/gpu.md")


def written(text: str, found: Sequence[Run]) -> str:
    """The page with every marked table as this script writes it."""

    def fill(match: re.Match[str]) -> str:
        return match[1] + "\n" + "\n".join(TABLES[match[2]](run) for run in found) + "\n" + match[3]

    return MARKED.sub(fill, text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if something differs")
    arguments = parser.parse_args()
    found, stale = runs(), []
    for name in PAGES:
        page = ROOT / name
        before = page.read_text(encoding="utf-8")
        after = written(before, found)
        if after != before:
            stale.append(name)
            if not arguments.check:
                page.write_text(after, encoding="utf-8")
    print("changed:" if stale else "nothing changed", *stale)
    return int(arguments.check and bool(stale))


if __name__ == "__main__":
    raise SystemExit(main())
