"""Times all models, and programs that isolate one cost each, under stock XLA and under jax_cocktail.

Rows give medians of interleaved runs. `ratio` is stock / ours with our calls forced, `auto` is stock over
`jax_cocktail.jit` without options. A second table has times of whole processes: the import of jax_cocktail
(after that of jax), a first call with an empty cache, and the first call of a second process. A third one has
the ratios to stock XLA at its best (ratios.py: other settings, code hoisted by hand as an expert would, and
loops for recursion), with required and desired ratios, and the machine's peak rates (ceilings.py). The last
one lists the project's targets and whether they are met (targets.py).

    python benchmarks/run.py                    everything
    python benchmarks/run.py --quick            tiny models, less time per row: does it run at all?
    python benchmarks/run.py --only lstm/1      some rows (names as printed)
    python benchmarks/run.py --stock-variants   stock XLA with other XLA flags too (see STOCK_VARIANTS)
    python benchmarks/run.py --out FILE         the same figures as JSON
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import jax  # noqa: E402
import programs  # noqa: E402
import recursion  # noqa: E402
from ratios import ROWS, Rates, table  # noqa: E402
from targets import judge_all  # noqa: E402

_START = time.perf_counter()
import jax_cocktail  # noqa: E402
import jax_cocktail.api  # noqa: E402  # `jax_cocktail.jit` imports it on first use

IMPORT_SECONDS = time.perf_counter() - _START

from jax_cocktail.models import MODELS, interleaved_times, largest_difference  # noqa: E402
from jax_cocktail.models.compare import COCKTAIL, compare  # noqa: E402

# A while that touches fewer bytes than this is compiled as one kernel (by default 1024).
WHILE_THRESHOLD = "xla_cpu_small_while_loop_byte_threshold"

# Stock XLA with other settings. Elsewhere, `stock` means the defaults.
RAISED = "any while as one kernel"
STOCK_VARIANTS = {
    "default": "",
    RAISED: f"--xla_backend_extra_options={WHILE_THRESHOLD}=1000000000",
    "no intra-op threads": "--xla_cpu_multi_thread_eigen=false",
}

PROCESS_ROWS = (*(f"{name}/1" for name in MODELS), "tiny_conds")

FIGURES = ("captured", "choice", "difference", "stock", "ours", "auto", "first_stock", "first_ours")

CALLS = 2000


def cases(quick: bool) -> dict[str, Callable[[], programs.Program]]:
    """Row name -> function and arguments, built on demand."""
    found: dict[str, Callable[[], programs.Program]] = {
        f"{model.name}/{batch}": lambda model=model, batch=batch: model.make(batch, small=quick)
        for model in MODELS.values()
        for batch in model.batches
    }
    return found | programs.PROGRAMS | recursion.rows(quick)


def compare_all(names: list[str], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measures and prints one row per program."""
    print(
        f"{'program':24}{'captured':>9}{'stock us':>12}{'ours us':>12}{'ratio':>8}{'auto':>8}"
        "  jit uses  difference"
    )
    for name in names:
        function, arguments = cases(options.quick)[name]()
        jax_cocktail.jit(function)(*arguments)  # measures which of our programs to force
        found = compare(function, arguments, seconds=options.seconds)
        auto_ratio = found.stock / found.auto
        print(
            f"{name:24}{found.captured:>9}{found.stock * 1e6:12.1f}{found.ours * 1e6:12.1f}{found.ratio:8.2f}"
            f"{auto_ratio:8.2f}  {found.choice:8}  {found.difference:10.1e}",
            flush=True,
        )
        row = {name: getattr(found, name) for name in FIGURES}
        yield {"program": name, **row, "ratio": found.ratio, "auto_ratio": auto_ratio}


def call_overhead(seconds: float) -> Iterator[dict[str, Any]]:
    """The overhead of a call through ``jax_cocktail.jit`` over plain ``jax.jit``, in seconds per call.

    Both run stock XLA's program, so only the call differs.
    """
    loop, operands = programs.empty_call()
    vector = (jax.numpy.zeros(8),)
    scope = lambda: jax_cocktail.options(force="stock")  # noqa: E731
    print(f"\n{'call, us':32}{'jax.jit':>10}{'ours':>10}{'overhead':>10}")
    for name, function, arguments, scoped in (
        ("without control flow", lambda x: x + 1, vector, contextlib.nullcontext),
        ("with a loop", loop, operands, contextlib.nullcontext),
        ("with a loop, in options(...)", loop, operands, scope),
    ):
        forced = None if scoped is scope else {"force": "stock"}
        pair = jax.jit(function), jax_cocktail.jit(function, options=forced)
        runs = [
            lambda f=f, a=arguments, s=s: _many(f, a, s)
            for f, s in zip(pair, (contextlib.nullcontext, scoped), strict=True)
        ]
        plain, ours = (time / CALLS for time in interleaved_times(runs, seconds=seconds))
        row = {"call": name, "plain": plain, "ours": ours, "overhead": ours - plain}
        columns = (row[key] * 1e6 for key in ("plain", "ours", "overhead"))
        print(f"{name:32}" + "".join(f"{value:10.2f}" for value in columns), flush=True)
        yield row


def _many(function: Callable[..., Any], arguments: tuple[Any, ...], scope: Callable[[], Any]) -> Any:
    with scope():
        for _ in range(CALLS):
            result = function(*arguments)
    return result


def probe(name: str, compiler: str, quick: bool, seconds: float) -> None:
    """Prints the first call and the steady time of one program as JSON. It runs in a process of its own."""
    function, arguments = cases(quick)[name]()
    jax.block_until_ready(arguments)
    options = {"auto": None, "cocktail": COCKTAIL}
    jitted = (
        jax.jit(function) if compiler == "stock" else jax_cocktail.jit(function, options=options[compiler])
    )
    start = time.perf_counter()
    jax.block_until_ready(jitted(*arguments))
    first = time.perf_counter() - start
    (steady,) = interleaved_times([lambda: jitted(*arguments)], seconds=seconds)
    print(json.dumps({"import": IMPORT_SECONDS, "first": first, "steady": steady}))


def race(name: str, quick: bool, seconds: float) -> None:
    """Times ours, stock, and hand-written variants under stock, in turn. It runs in a process of its own."""
    function, arguments = cases(quick)[name]()
    model = name.partition("/")[0]
    functions = {"ours": jax_cocktail.jit(function), "stock": jax.jit(function)}
    for how, rewritten in (
        ("hoisted", programs.HOISTED),
        ("loop", recursion.LOOPS),
        ("distributed", programs.DISTRIBUTED),
    ):
        if model in rewritten:
            functions[how] = jax.jit(rewritten[model])
    results = {how: jitted(*arguments) for how, jitted in functions.items()}
    for how, result in results.items():
        difference = largest_difference(result, results["stock"])
        if difference > 1e-3:
            raise SystemExit(f"{name}, {how}: results differ from those of stock by {difference}")
    runs = [lambda f=f: f(*arguments) for f in functions.values()]
    times = dict(zip(functions, interleaved_times(runs, seconds=seconds), strict=True))
    report = jax_cocktail.explain(functions["ours"])(*arguments)
    plan = next((trial.name for trial in report.trials if trial.chosen), report.choice)
    print(json.dumps({**times, "choice": report.choice, "plan": plan}))


def in_process(
    name: str, compiler: str, quick: bool, seconds: float = 0.0, **environment: str
) -> dict[str, Any]:
    """Runs `probe`, or `race` if no compiler is named, in a fresh process."""
    which = ["--probe", name, compiler] if compiler else ["--race", name]
    command = [sys.executable, __file__, *which, f"--seconds={seconds}"]
    done = subprocess.run(
        command + (["--quick"] if quick else []),
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def process_times(names: list[str], quick: bool) -> Iterator[dict[str, Any]]:
    """Times a first call with an empty cache, that of a second process, and stock XLA's first call."""
    headings = ("import", "stock", "ours", "auto", "2nd ours", "2nd auto")
    print(f"\n{'first call, seconds':24}" + "".join(f"{heading:>10}" for heading in headings))
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            row: dict[str, Any] = {"program": name, "stock": in_process(name, "stock", quick)["first"]}
            for compiler in ("cocktail", "auto"):
                cache = {"JAX_COCKTAIL_CACHE_DIR": os.path.join(folder, compiler)}
                row[compiler] = in_process(name, compiler, quick, **cache)["first"]
                second = in_process(name, compiler, quick, **cache)
                row |= {f"second {compiler}": second["first"], "import": second["import"]}
        columns = ("import", "stock", "cocktail", "auto", "second cocktail", "second auto")
        print(f"{name:24}" + "".join(f"{row[key]:10.3f}" for key in columns), flush=True)
        yield row


def stock_variants(names: list[str], quick: bool, seconds: float) -> Iterator[dict[str, Any]]:
    """Times stock XLA under each setting of `STOCK_VARIANTS`."""
    print(f"\n{'stock XLA, us':24}" + "".join(f"{name:>26}" for name in STOCK_VARIANTS))
    for name in names:
        row: dict[str, Any] = {"program": name}
        for variant, flags in STOCK_VARIANTS.items():
            combined = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
            row[variant] = in_process(name, "stock", quick, seconds, XLA_FLAGS=combined)["steady"]
        print(f"{name:24}" + "".join(f"{row[variant] * 1e6:26.1f}" for variant in STOCK_VARIANTS), flush=True)
        yield row


def ratios(names: list[str], quick: bool, seconds: float) -> dict[str, Any]:
    """Runs the rows of `ratios.ROWS` under each setting that may be the best for stock XLA."""

    def raced(name: str) -> list[Rates]:
        found = []
        for variant in ("default", RAISED):
            combined = f"{os.environ.get('XLA_FLAGS', '')} {STOCK_VARIANTS[variant]}".strip()
            row = in_process(name, "", quick, seconds, XLA_FLAGS=combined)
            mark = "" if variant == "default" else f", {variant}"
            stock = {how + mark: row[how] for how in ("stock", "hoisted", "loop") if how in row}
            found.append(Rates(row["ours"], stock, row.get("distributed"), row["choice"], row["plan"]))
        return found

    return table([name for name in names if name in ROWS], raced, full_size=not quick)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="tiny models and little time per row")
    parser.add_argument("--only", nargs="+", metavar="ROW", help="rows to run")
    parser.add_argument("--seconds", type=float, help="time per row (default 4, quick 0.3)")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--stock-variants", action="store_true", help="time stock XLA with other flags too")
    parser.add_argument("--no-processes", action="store_true", help="omit the table of whole processes")
    parser.add_argument("--no-ratios", action="store_true", help="omit the table of ratios")
    parser.add_argument("--race", metavar="ROW", help=argparse.SUPPRESS)
    parser.add_argument("--probe", nargs=2, metavar=("ROW", "COMPILER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.seconds is None:
        options.seconds = 0.3 if options.quick else 4.0
    unknown = set(options.only or ()) - set(cases(options.quick))
    if unknown:
        parser.error(f"no row {', '.join(sorted(unknown))}; there are {', '.join(cases(options.quick))}")
    return options


def main() -> None:
    """Measures, prints and writes the figures."""
    options = parse()
    if options.probe:
        probe(*options.probe, options.quick, options.seconds)
        return
    if options.race:
        race(options.race, options.quick, options.seconds)
        return
    names = options.only or list(cases(options.quick))
    print(
        f"jax {jax.__version__}, jax_cocktail {jax_cocktail.__version__}, {jax.default_backend()}, "
        f"{os.cpu_count()} cores, {platform.machine()}\n"
    )
    found: dict[str, Any] = {
        "jax": jax.__version__,
        "jax_cocktail": jax_cocktail.__version__,
        "backend": jax.default_backend(),
        "cores": os.cpu_count(),
        "quick": options.quick,
        "programs": list(compare_all(names, options)),
        "calls": list(call_overhead(min(options.seconds, 2.0))),
    }
    if not options.no_processes:
        found["processes"] = list(process_times([n for n in PROCESS_ROWS if n in names], options.quick))
    if not options.no_ratios:
        found["ratios"] = ratios(names, options.quick, options.seconds)
    if options.stock_variants:
        found["stock variants"] = list(stock_variants(names, options.quick, options.seconds))
    found["targets"] = judge_all(found)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
