"""Checks one GPU in one command: correctness, speed, and the limits of the hardware.

    python benchmarks/gpu_check.py                 all of it, in less than 8 minutes
    python benchmarks/gpu_check.py --quick         90 seconds: few rows
    python benchmarks/gpu_check.py --only lstm/1   some rows (names as printed)
    python benchmarks/gpu_check.py --sanitize      small sizes under compute-sanitizer, if installed
    python benchmarks/gpu_check.py --ncu           and our kernels under Nsight Compute
    python benchmarks/gpu_check.py --pack FOLDER   compile all rows, for a card that is elsewhere
    python benchmarks/gpu_check.py --run FOLDER    on that card: measure it, check and time the rows
                                   --resume FILE   go on with what is missing in the file of such a run
    python benchmarks/gpu_check.py --fit FILE      the cost model against a JSON file of such a run; no GPU
    python benchmarks/gpu_check.py --report FILE   the tables of such a file; no GPU

Phases: versions; microbenchmarks through the driver; building, on all cores; correctness against float64 and
stock XLA, with a limit on waiting; stock XLA's loops; timing, alone on the card; the policy's automatic
decisions. The cost model's predictions for this card are printed next to the measured times. Each item runs
in a process of its own. A failure becomes a record in the JSON file, which is rewritten after every item; an
item without time left is recorded as skipped. The measured figures of the card are stored for the policy.

`--run` begins with what counts most: figures of the card and litmus tests, the main rows, the other ones,
other plans, latencies; then what only jax can tell, with the programs that the pack brings along. A run that
is cut off has everything until then. `--resume` takes over what is of the same sources, or of programs whose
machine code is still the same. With `--only`, figures, litmus tests and latencies are left out. The exit
status is 75 if there was no time for all of it, else 1 if something failed.

On a machine with AMD cards, jax describes the card. Microbenchmarks, packs and the times of kernels alone
need CUDA's driver, so they are left out there.

Without a GPU the command compiles every row for three architectures, runs small sizes in the emulation of the
tests, and prints predictions of the cost model in place of times, marked as such. The exit status of a run
without a pack is 0 whatever was found.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.gpu.check import COMPILERS, Check  # noqa: E402
from benchmarks.gpu.packed import MEASURES, ORDER, Pack, source_digest  # noqa: E402
from benchmarks.gpu.pool import Stuck, end_all, end_with_parent, tell  # noqa: E402
from benchmarks.gpu.pool import run as run_one  # noqa: E402
from benchmarks.gpu.results import NO_CARD, Results  # noqa: E402
from benchmarks.gpu.results import tell as say  # noqa: E402

ARCHES = ("sm_90", "sm_80", "sm_100")  # the table uses the first
BUDGET, QUICK_BUDGET = 460.0, 88.0
UNFINISHED = 75  # exit status of a run that another one would complete (EX_TEMPFAIL)
CARD = "NVIDIA H100 80GB HBM3"  # whose measured figures packs are planned with
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
        "unroll": [] if check.options.quick else [check.task("unroll", row) for row in check.rows],
    }
    part = max(cores // 4, 1)
    workers = {"build": min(COMPILERS, cores)}
    with ThreadPoolExecutor(len(groups)) as threads:
        begun = [
            threads.submit(check.section, name, tasks, workers.get(name, part), deadline)
            for name, tasks in groups.items()
        ]
    for section in begun:
        section.result()


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
            check.results.keep({"none": f"{program} is not installed"}, name, "all")
            continue
        tasks = [check.task("profile", row, prefix=(path, *arguments)) for row in check.rows]
        check.section(name, tasks, 1, check.deadline)


# ---- the command -------------------------------------------------------------------------------------------


def positive(text: str) -> float:
    """Seconds on the command line. Raises ValueError."""
    if not 0 < (value := float(text)) < 1e6:
        raise ValueError(text)
    return value


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few rows, 90 seconds")
    parser.add_argument("--only", nargs="+", metavar="ROW", help="rows to run")
    default = os.environ.get("OUT") or str(ROOT / "benchmarks" / "results")
    parser.add_argument("--out", default=default, metavar="DIR", help="where the JSON file goes")
    parser.add_argument("--budget", type=positive, help=f"seconds in all (default {BUDGET:g})")
    parser.add_argument("--seconds", type=float, help="of timing for a row (default 2.5, quick 1)")
    parser.add_argument("--sanitize", action="store_true", help="small sizes under compute-sanitizer")
    parser.add_argument("--ncu", action="store_true", help="small sizes under Nsight Compute")
    parser.add_argument("--small", action="store_true", help="the sizes of the tests: does it run at all?")
    parser.add_argument("--pack", type=Path, metavar="FOLDER", help="make a pack of programs for a card")
    parser.add_argument("--card", default=CARD, metavar="NAME", help=f"for such a card (default {CARD})")
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="run a pack on the card that is here")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="go on with what this run left")
    parser.add_argument("--fit", type=Path, metavar="FILE", help="compare the cost model with a run")
    parser.add_argument("--report", type=Path, metavar="FILE", help="print the tables of a run")
    parser.add_argument("--item", nargs=2, metavar=("PHASE", "NAME"), help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--of", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--without-ours", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.resume and not options.run:
        parser.error("--resume goes with --run")
    options.budget = options.budget or (QUICK_BUDGET if options.quick else BUDGET)
    options.seconds = options.seconds or (1.0 if options.quick else 2.5)
    return options


def item(options: argparse.Namespace) -> None:
    """One item, in this process."""
    end_with_parent()
    problem = Pack(options.of).load_bundle() if options.of else ""
    from benchmarks.gpu.items import ITEMS, Settings  # imports jax

    phase, name = options.item
    dump = os.environ.get("GPU_CHECK_DUMP", "")
    settings = Settings(
        options.work, options.small, options.seconds, dump, options.of, not options.without_ours
    )
    tell({**ITEMS[phase](name, settings), **({"no_bundle": problem} if problem else {})})


def check_all(options: argparse.Namespace, work: Path, results: Results) -> None:
    """A whole run without a pack."""
    from benchmarks.gpu.rows import QUICK, ROWS

    unknown = set(options.only or ()) - set(ROWS)
    if unknown:
        sys.exit(f"no row {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    check = Check(options, options.only or list(QUICK if options.quick else ORDER), work, results)
    found = run_one(check.task("versions", "all"), check.deadline)
    if "card" in found:
        results.found_on(found["card"]["name"])
    results.keep(found, "versions", "all")
    if "card" in found:
        with_card(check, found.get("backend") == "gpu")
        tools(check)
    else:
        print(f"There is no GPU here: {found.get('no_card', found.get('error'))}")
        print(
            "Checks without a GPU follow: code for three architectures, emulation, predictions.", flush=True
        )
        without_card(check)
    results.ended = "all phases had their turn"


def opened(options: argparse.Namespace) -> Results:
    """The file of this run, with what it takes over from another one."""
    small, digests = options.small, frozenset[str]()
    if options.run:
        pack = Pack(options.run)
        if not (options.run / "pack.json").exists():
            sys.exit(f"there is no pack in {options.run}: make card-pack makes one in build/card/pack")
        try:
            facts, rows = pack.facts, {row.name for row in pack.rows()}
            small, digests = facts["small"], pack.digests() | {facts[name] for name in MEASURES}
        except (OSError, ValueError, KeyError, TypeError) as error:
            sys.exit(f"the pack in {options.run} is damaged, copy it again: {type(error).__name__}: {error}")
        if unknown := set(options.only or ()) - rows:
            sys.exit(f"the pack has no row {', '.join(sorted(unknown))}")
    found = Results(Path(options.out), source_digest(), small, options.quick)
    if options.resume:
        try:
            found.resume(options.resume, lambda record: record.get("digest") in digests)
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            sys.exit(f"{options.resume} cannot be resumed, pass a file that --run wrote: {error}")
    found.reserve()
    return found


def run(options: argparse.Namespace, results: Results) -> bool:
    """A run with or without a pack, whatever ends it; True if there was time for all of it."""
    from benchmarks.gpu import pack_jax

    try:
        with tempfile.TemporaryDirectory(prefix="gpu_check-", ignore_cleanup_errors=True) as folder:
            if options.run:
                return pack_jax.run(options, Path(folder), results)
            check_all(options, Path(folder), results)
            return True
    except Stuck as error:
        end_all(for_good=True)
        results.ended = f"{error}: the machine has to be started again"
    except KeyboardInterrupt:
        end_all(for_good=True)
        results.ended = "it was interrupted"
    except Exception as error:  # what was found stays
        traceback.print_exc()
        results.ended = f"{type(error).__name__}: {error}"
    return False


def interrupted(*_: object) -> None:
    """Ends everything that was started, as Ctrl-C does."""
    raise KeyboardInterrupt


def main() -> None:
    """Runs the checks and prints the report."""
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
    if options.report:
        from benchmarks.gpu import report  # imports jax

        print(report.text(json.loads(options.report.read_text(encoding="utf-8"))))
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, interrupted)
    results = opened(options)
    finished = run(options, results)
    results.release()
    if not results.write():
        results.folder = Path(tempfile.gettempdir())
        results.write()
    sys.exit(said(options, results, finished))


def said(options: argparse.Namespace, results: Results, finished: bool) -> int:
    """Prints the report, and how to go on. Returns the exit status."""
    from benchmarks.gpu import report  # imports jax

    try:
        say("\n" + report.text(results.data))
    except Exception as error:  # the file counts
        say(f"no report can be made of this: {type(error).__name__}: {error}")
    say(f"\n{results.path}: written after {results.seconds:.0f} s; {results.ended}")
    if not options.run:
        return 0
    hopeless, failures = results.card == NO_CARD, results.failures()
    if failures:
        listed = f"{', '.join(failures[:6])}{', ...' if len(failures) > 6 else ''}"
        say(f"{len(failures)} items failed, are wrong or were skipped: {listed}")
    if finished or hopeless:
        return int(hopeless or bool(failures))
    rest = [f"--budget {options.budget:g}", *([f"--only {' '.join(options.only)}"] if options.only else [])]
    command = f"python3 benchmarks/gpu_check.py --run {options.run} --resume {results.path}"
    say(f"to go on: {' '.join([command, *rest])}")
    return UNFINISHED


if __name__ == "__main__":
    main()
