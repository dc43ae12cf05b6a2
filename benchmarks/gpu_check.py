"""Checks one GPU in one command: correctness, speed, and the limits of the hardware.

    python benchmarks/gpu_check.py                 all of it, in less than 8 minutes
    python benchmarks/gpu_check.py --quick         90 seconds: few rows
    python benchmarks/gpu_check.py --only lstm/1   some rows (names as printed)
    python benchmarks/gpu_check.py --sanitize      small sizes under compute-sanitizer, if installed
    python benchmarks/gpu_check.py --ncu           and our kernels under Nsight Compute
    python benchmarks/gpu_check.py --pack FOLDER   compile all rows, for a card that is elsewhere
    python benchmarks/gpu_check.py --run FOLDER    on that card: check and time them first, within 90 seconds
    python benchmarks/gpu_check.py --fit FILE      the cost model against a JSON file of such a run; no GPU

Phases: versions; microbenchmarks through the driver; building, on all cores; correctness against float64 and
stock XLA, with a limit on waiting; stock XLA's loops; timing, alone on the card; the policy's automatic
decisions. The cost model's predictions for this card are printed next to the measured times. Each item runs
in a process of its own. A failure becomes a record in the JSON file, which is rewritten after every section;
an item without time left is recorded as skipped. The measured figures of the card are stored for the policy.

`--run` completes the JSON file: what it holds of the same binaries, or of the same source, is not measured
again. Status 75 says that another call would go on. After the packed programs, the phases above follow, as
far as `--budget` allows.

On a machine with AMD cards, jax describes the card. Microbenchmarks, packs and the times of kernels alone
need CUDA's driver, so they are left out there.

Without a GPU the command compiles every row for three architectures, runs small sizes in the emulation of the
tests, and prints predictions of the cost model in place of times, marked as such. In both cases the exit
status is 0.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.gpu.packed import ORDER, Pack, source_digest, write  # noqa: E402
from benchmarks.gpu.pool import Record, Task, run_all, tell  # noqa: E402

ARCHES = ("sm_90", "sm_80", "sm_100")  # the table uses the first
BUDGET, QUICK_BUDGET = 460.0, 88.0
UNFINISHED = 75  # exit status of a run that another one would complete (EX_TEMPFAIL)
LEAST_BUDGET = 60.0  # with less time left after a pack, the other phases are not begun
ALWAYS = ("versions", "measure")  # sections that other processes depend on
CAP, STATIC_CAP = 60.0, 150.0  # seconds per item; a machine without a card may be slow
COMPILERS = 4  # concurrent XLA compilers, which tune matrix products on the card
# The latest end of each phase as a fraction of the budget. Unused time goes to the next phases.
SHARES = {
    "measure": 0.1,
    "prepare": 0.28,
    "correct": 0.42,
    "captured": 0.45,
    "stock_loops": 0.5,
    "times": 0.85,
    "auto": 1.0,
}
QUICK_SHARES = {
    "measure": 0.3,
    "prepare": 0.55,
    "correct": 0.72,
    "captured": 0.78,
    "times": 0.95,
    "auto": 1.0,
}
WITHOUT_CARD = {"plan": 0.3, "stock_for_card": 0.4, "emulate": 0.6}
LOOPS = ("while, empty body", "while, 5 products", "scan, empty body", "scan, 5 products", "while with cond")


@dataclass
class Check:
    """A run: its settings, its clock, and its results so far."""

    options: argparse.Namespace
    rows: list[str]
    work: Path
    start: float = field(default_factory=time.monotonic)
    sections: dict[str, dict[str, Record]] = field(default_factory=dict)
    writing: threading.Lock = field(default_factory=threading.Lock)
    code: str = field(default_factory=source_digest)

    @property
    def deadline(self) -> float:
        """The budget of the whole run, in seconds."""
        return self.start + self.options.budget

    def until(self, share: float) -> float:
        """The moment at which a fraction of the budget is spent."""
        return self.start + share * self.options.budget

    def task(self, phase: str, name: str, prefix: Sequence[str] = (), **environment: str) -> Task:
        """An item as a process."""
        cap = CAP if self.sections.get("versions", {}).get("all", {}).get("card") else STATIC_CAP
        command = [*prefix, sys.executable, str(Path(__file__).resolve()), "--item", phase, name]
        command += ["--work", str(self.work), "--seconds", str(self.options.seconds)]
        command += ["--small"] if self.options.small or prefix else []
        return Task(name, command, {**self.environment(), **environment}, cap, log=bool(prefix))

    def environment(self) -> dict[str, str]:
        """The environment of every item: no memory is preallocated, and items share compiled programs."""
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            "PYTHONPATH": os.pathsep.join(paths),
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "JAX_COMPILATION_CACHE_DIR": str(self.work / "xla"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }

    def dumping(self, phase: str, name: str) -> dict[str, str]:
        """An environment in which XLA dumps its compilations and the item reads them."""
        folder = self.work / "dumps" / f"{phase}-{name}".replace("/", "-").replace(" ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
        return {
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip(),
            "GPU_CHECK_DUMP": str(folder),
        }

    def section(self, name: str, tasks: Sequence[Task], workers: int, deadline: float) -> dict[str, Record]:
        """Runs tasks and keeps their records. Those that an earlier run finished are not repeated."""
        known = {} if name in ALWAYS else self.sections.get(name, {})
        tasks = [task for task in tasks if not self._finished(known.get(task.name, {}))]
        print(f"{time.monotonic() - self.start:6.1f} s  {name}: {len(tasks)} item(s)", flush=True)
        records = run_all(tasks, workers, min(deadline, self.deadline), self._said)
        kept = self.sections.setdefault(name, {})
        for key, record in records.items():
            if "skipped" not in record or key not in kept:
                kept[key] = {**_with_packed(record, kept.get(key, {})), "code": self.code}
        self.write()
        return records

    def _finished(self, record: Record) -> bool:
        return record.get("code") == self.code and not {"error", "skipped"} & set(record)

    def _said(self, name: str, record: Record) -> None:
        words = next((f"{k}: {record[k]}" for k in ("error", "skipped") if k in record), "")
        if words:
            print(f"          {name}: {words.splitlines()[0][:120]}", flush=True)

    def results(self) -> dict[str, Any]:
        """All results so far, as plain data."""
        found: dict[str, Any] = {
            "quick": self.options.quick,
            "small": self.options.small,
            "seconds": round(time.monotonic() - self.start, 1),
            "sections": self.sections,
        }
        return found

    @property
    def path(self) -> Path:
        """The path of the JSON file, one for each kind of card."""
        card = self.sections.get("versions", {}).get("all", {}).get("card")
        name = card["name"].lower().replace(" ", "_") if card else "no_card"
        return Path(self.options.out) / f"gpu_check_{name}.json"

    def write(self) -> None:
        """Writes the JSON file atomically."""
        from benchmarks.gpu import report  # imported only after the measuring processes have run

        with self.writing:
            results = self.results()
            results["targets"] = list(report.targets(results))
            write(self.path, results)


def _with_packed(record: Record, before: Record) -> Record:
    """A record of the card with the figures that a pack measured, which are more."""
    found = {name: figure for name, figure in before.get("figures", {}).items() if "digest" in figure}
    return {**record, "figures": record["figures"] | found} if "figures" in record else record


# ---- phases ------------------------------------------------------------------------------------------------


def with_card(check: Check, jax_works: bool) -> None:
    """Runs all phases; if jax has no GPU, only the driver's measurements and the static part."""
    rows, shares = check.rows, QUICK_SHARES if check.options.quick else SHARES
    until = {phase: check.until(share) for phase, share in shares.items()}
    check.section("measure", [check.task("measure", "card")], 1, until["measure"])  # plans depend on it
    if not jax_works:
        without_card(check)
        return
    prepare(check, until["prepare"])
    check.section("correct", [check.task("correct", row) for row in rows], COMPILERS, until["correct"])
    inside = [row for row in ("lstm/1", "rae/1", "scalar_scan") if row in rows]
    tasks = [check.task("captured", row, **check.dumping("captured", row)) for row in inside]
    check.section("captured", tasks, 1, until["captured"])
    if not check.options.quick:
        tasks = [check.task("stock_loops", name, **check.dumping("loops", name)) for name in LOOPS]
        check.section("stock_loops", tasks, 1, until["stock_loops"])
    check.section("times", [check.task("times", row) for row in rows], 1, until["times"])
    check.section("auto", [check.task("auto", row) for row in rows], 1, until["auto"])  # compiles candidates


def prepare(check: Check, deadline: float) -> None:
    """Compiles everything, and computes reference results on the host, in parallel."""
    cores = os.cpu_count() or 1
    host = {"JAX_PLATFORMS": "cpu"}
    wide = {**host, "JAX_ENABLE_X64": "1"}
    groups = {
        "build": [check.task("build", row, **check.dumping("build", row)) for row in check.rows],
        "reference": [check.task("reference", row, **wide) for row in check.rows],
        "plan": [check.task("plan", f"{row}@card", **host) for row in check.rows],
        "unroll": []
        if check.options.quick or check.options.run
        else [check.task("unroll", row) for row in check.rows],
    }
    part = max(cores // 4, 1)
    workers = {"build": min(COMPILERS, cores)}
    with ThreadPoolExecutor(len(groups)) as threads:
        for name, tasks in groups.items():
            threads.submit(check.section, name, tasks, workers.get(name, part), deadline)


def without_card(check: Check) -> None:
    """Runs the phases that need no GPU. The table's architecture comes first; the others get the remaining
    time."""
    cores = os.cpu_count() or 1
    host = {"JAX_PLATFORMS": "cpu"}
    until = {phase: check.until(share) for phase, share in WITHOUT_CARD.items()}

    def section(name: str, items: Sequence[str]) -> None:
        tasks = [check.task(name, item, **host) for item in items]
        check.section(name, tasks, cores, until.get(name, check.deadline))

    section("plan", [f"{row}@{ARCHES[0]}" for row in check.rows])
    section("stock_for_card", check.rows)
    section("emulate", ["microbenchmarks", *check.rows])
    for arch in ARCHES[:1] if check.options.quick else ARCHES:
        section("code", [f"{row}@{arch}" for row in check.rows])


TOOLS: Mapping[str, tuple[str, ...]] = {
    "sanitize": ("compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9"),
    "ncu": ("ncu", "--kernel-name", "regex:ck_", "--set", "basic"),
}


def tools(check: Check) -> None:
    """Runs small sizes under the requested tools."""
    for name, (program, *arguments) in TOOLS.items():
        if not getattr(check.options, name):
            continue
        path = shutil.which(program)
        if path is None:
            check.sections[name] = {"all": {"none": f"{program} is not installed"}}
            continue
        tasks = [check.task("profile", row, prefix=(path, *arguments)) for row in check.rows]
        check.section(name, tasks, 1, check.deadline)


# ---- the command -------------------------------------------------------------------------------------------


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few rows, 90 seconds")
    parser.add_argument("--only", nargs="+", metavar="ROW", help="rows to run")
    default = os.environ.get("OUT") or str(ROOT / "benchmarks" / "results")
    parser.add_argument("--out", default=default, metavar="DIR", help="where the JSON file goes")
    parser.add_argument("--budget", type=float, help=f"seconds in all (default {BUDGET:g})")
    parser.add_argument("--seconds", type=float, help="of timing for a row (default 2.5, quick 1)")
    parser.add_argument("--sanitize", action="store_true", help="small sizes under compute-sanitizer")
    parser.add_argument("--ncu", action="store_true", help="small sizes under Nsight Compute")
    parser.add_argument("--small", action="store_true", help="the sizes of the tests: does it run at all?")
    parser.add_argument("--pack", type=Path, metavar="FOLDER", help="make a pack of programs for a card")
    default = str(ROOT / "benchmarks" / "results" / "gpu_check_nvidia_h100_80gb_hbm3.json")
    parser.add_argument("--card", type=Path, default=default, metavar="FILE", help="its results file")
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="run a pack on the card that is here")
    parser.add_argument("--fit", type=Path, metavar="FILE", help="compare the cost model with a run")
    parser.add_argument("--item", nargs=2, metavar=("PHASE", "NAME"), help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.budget = options.budget or (QUICK_BUDGET if options.quick else BUDGET)
    options.seconds = options.seconds or (1.0 if options.quick else 2.5)
    return options


def item(options: argparse.Namespace) -> None:
    """One item, in this process."""
    from benchmarks.gpu.items import ITEMS, Settings  # imports jax

    phase, name = options.item
    dump = os.environ.get("GPU_CHECK_DUMP", "")
    tell(ITEMS[phase](name, Settings(options.work, options.small, options.seconds, dump)))


def check_all(options: argparse.Namespace, work: Path, sections: Mapping[str, Any]) -> Check:
    """A whole run; `sections`: what is known already."""
    from benchmarks.gpu.rows import QUICK, ROWS

    unknown = set(options.only or ()) - set(ROWS)
    if unknown:
        sys.exit(f"no row {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    rows = options.only or list(QUICK if options.quick else ORDER)
    check = Check(options, rows, work)
    check.sections = dict(sections)
    found = check.section("versions", [check.task("versions", "all")], 1, check.deadline)["all"]
    if "card" in found:
        with_card(check, found.get("backend") == "gpu")
        tools(check)
    else:
        print(f"There is no GPU here: {found.get('no_card', found.get('error'))}")
        print(
            "Checks without a GPU follow: code for three architectures, emulation, predictions.", flush=True
        )
        without_card(check)
    check.write()
    return check


def run_pack(options: argparse.Namespace) -> Mapping[str, Any]:
    """Runs a pack, and returns the sections of the results file. Exits if no time is left for more."""
    from benchmarks.gpu.run_pack import PackRun

    start = time.monotonic()
    run = PackRun(Pack(options.run), Path(options.out), options.budget, options.only or ())
    finished = run.run()
    print(f"{run.path}: {'complete' if finished else 'not complete'}", flush=True)
    options.budget -= time.monotonic() - start
    if not finished or options.budget < LEAST_BUDGET:
        sys.exit(0 if finished else UNFINISHED)
    found: Mapping[str, Any] = run.data["sections"]
    return found


def main() -> None:
    """Runs the checks, prints the report, and exits with status 0 whatever the results; `--fit` may say 1."""
    options = parse()
    if options.item:
        item(options)
        return
    if options.pack:
        from benchmarks.gpu import pack  # imports jax

        sys.exit(pack.make(options.pack, pack.measured_spec(options.card), options.only or (), options.small))
    if options.fit:
        from benchmarks.gpu.fit import fit

        sys.exit(fit(options.fit))
    sections = run_pack(options) if options.run else {}
    from benchmarks.gpu import report  # imports jax

    with tempfile.TemporaryDirectory(prefix="gpu_check-") as folder:
        check = check_all(options, Path(folder), sections)
    print("\n" + report.text(check.results()))
    print(f"\n{check.path}: written after {check.results()['seconds']:.0f} s")


if __name__ == "__main__":
    main()
