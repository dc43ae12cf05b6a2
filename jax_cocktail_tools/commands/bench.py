"""Times models under stock XLA and under jax_cocktail, and writes what it finds as text, JSON and a page."""

from __future__ import annotations

import argparse
import datetime
import functools
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jax_cocktail import api, config
from jax_cocktail.build.device import device_toolchain
from jax_cocktail.build.host import host_toolchain
from jax_cocktail.errors import BuildError
from jax_cocktail.lowering.edge import gpu_call
from jax_cocktail.lowering.run.stopwatch import Watch
from jax_cocktail_tools import ceilings
from jax_cocktail_tools.commands import compare as compare_command
from jax_cocktail_tools.commands import page, result
from jax_cocktail_tools.commands.intervals import median_interval, ratio_interval
from jax_cocktail_tools.commands.machine import this_machine, versions
from jax_cocktail_tools.commands.problem import Problem
from jax_cocktail_tools.commands.progress import Bar, line
from jax_cocktail_tools.commands.result import Ceilings, Curve, Result, Row, Step, Timing
from jax_cocktail_tools.models import MODELS, RECURSIVE, Model
from jax_cocktail_tools.models.by_hand import BY_HAND
from jax_cocktail_tools.models.compare import COCKTAIL, STEPS, Comparison, compare
from jax_cocktail_tools.models.gradients import GRADIENTS
from jax_cocktail_tools.models.measure import interleaved_samples
from jax_cocktail_tools.models.programs import PROGRAMS
from jax_cocktail_tools.report.text import NOTABLE

ALL = MODELS | RECURSIVE | PROGRAMS | GRADIENTS
QUICK = ("lstm", "seq2seq", "blockdrop")  # a loop, a data-dependent loop, and branches
SETS = {
    "quick": "three models at their first batch size",
    "models": "all models at their first batch size",
    "programs": "small programs that isolate one cost each, and gradients of recursive programs",
    "all": "all these and recursive programs, at all batch sizes",
}
PATIENCE = 3.0  # measure longer by this factor if other processes hold the cores
BATCHES = (1, 4, 16, 64)
_HEADINGS = ("program", "captured", "stock ms", "ours ms", "ratio", "95 % interval", "jit", "jit uses")
_MORE = ("first calls s", "difference", "load")
_WIDTHS, _LEFT = (31, 8, 10, 10, 6, 14, 6, 8, 14, 10, 5), (0, 7)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    sets = "; ".join(f"{name}: {about}" for name, about in SETS.items())
    command.add_argument("--set", choices=SETS, default="quick", help=f"what is timed. {sets}")
    command.add_argument(
        "--model", nargs="+", choices=ALL, metavar="NAME", help=f"these instead: {', '.join(ALL)}"
    )
    command.add_argument("--batch", nargs="+", type=int, metavar="N", help="these batch sizes instead")
    command.add_argument("--small", action="store_true", help="tiny sizes: a check, not a benchmark")
    command.add_argument(
        "--seconds",
        type=_seconds,
        default=2.0,
        help="time spent timing each row (default 2); up to three times as long on a busy machine",
    )
    command.add_argument(
        "--scaling",
        action="store_true",
        help="time each model with growing batch sizes and numbers of units, too; every point is compiled",
    )
    command.add_argument(
        "--by-hand",
        action="store_true",
        help=f"time code that was written by hand for stock XLA, too; there is some for {', '.join(BY_HAND)}",
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="write the result, for bench compare")
    command.add_argument("--html", type=Path, metavar="FILE", help="write a page with charts")
    commands = command.add_subparsers(dest="action", metavar="compare", title="commands")
    about = compare_command.ABOUT
    compare_command.add_arguments(commands.add_parser("compare", help=about, description=about))


def main(options: argparse.Namespace) -> int:
    """Runs the command. Returns 1 if a result differs from stock XLA's by more than its model's tolerance.
    Raises Problem."""
    if options.action == "compare":
        return compare_command.main(options)
    rows = chosen(options.set, options.model, options.batch)
    _writable(options.json, options.html)
    print(
        f"jax {jax.__version__} on {jax.default_backend()}; ratio = stock / ours, ours forced; jit: as it is"
    )
    print(line((*_HEADINGS, *_MORE), _WIDTHS, _LEFT))
    found, curves = _measured(rows, options)
    made = Result(
        made=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        versions=all_versions(),
        machine=this_machine(),
        devices=tuple(f"{each.platform}: {each.device_kind}" for each in jax.devices()),
        settings=settings(options),
        rows=tuple(found),
        curves=tuple(curves),
        ceilings=_ceilings(options.small) if found and (options.json or options.html) else None,
    )
    for text in result.remarks(made):
        print(text)
    for path, written in ((options.json, result.to_json), (options.html, page.page)):
        if path is not None:
            path.write_text(written(made), encoding="utf-8")
            print(f"wrote {path}")
    wrong = [row for row in found if row.wrong]
    for row in wrong:
        print(
            f"WRONG RESULT: {row.name}: difference {row.difference:.1e} > {row.tolerance:.1e}",
            file=sys.stderr,
        )
    return 1 if wrong else 0


def _seconds(text: str) -> float:
    """A time to spend. Raises ArgumentTypeError."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no time in seconds above 0")
    return seconds


def chosen(which: str, names: Sequence[str] | None, batches: Sequence[int] | None) -> list[tuple[Model, int]]:
    """The models with their batch sizes. Raises Problem if there is none."""
    sets: dict[str, Sequence[str]] = {
        "quick": QUICK,
        "models": tuple(MODELS),
        "programs": (*PROGRAMS, *GRADIENTS),
        "all": tuple(ALL),
    }
    models = [ALL[name] for name in names or sets[which]]
    every = which == "all" and not names
    rows = []
    for model in models:
        asked = batches or (model.batches if every else model.batches[:1])
        rows += [(model, batch) for batch in asked if batch in model.batches]
    if not rows:
        known = "; ".join(f"{model.name}: {', '.join(map(str, model.batches))}" for model in models)
        raise Problem("no chosen model has this batch size", f"one of these: {known}")
    for model in models:
        for batch in batches or ():
            if batch not in model.batches:
                known = ", ".join(map(str, model.batches))
                print(f"{model.name}: no batch {batch}; defined for {known}", file=sys.stderr)
    return rows


def settings(options: argparse.Namespace) -> dict[str, str]:
    """Settings on which the figures of a run depend: sizes, and the environment. Raises Problem."""
    found = {"sizes": "small" if options.small else "full"}
    try:
        values = config.resolve({}, scopes=())
    except (TypeError, ValueError) as error:
        raise Problem(str(error), "correct or unset the variable") from error
    defaults, skipped = config.Options(), ("compile", "force")  # the comparison sets them
    for option in config.REGISTRY:
        value = getattr(values, option.name)
        if value != getattr(defaults, option.name) and option.name not in skipped:
            found[option.variable] = str(value)
    if flags := os.environ.get("XLA_FLAGS"):
        found["XLA_FLAGS"] = flags
    return found


def all_versions() -> dict[str, str]:
    """The versions of all that has a part in the figures."""
    found = {"jax_cocktail": config.VERSION, **versions()}
    finders: dict[str, Callable[[], Any]] = {"C++ compiler": host_toolchain}
    if (platform := _platform()) != "cpu":
        finders[f"compiler for {platform}"] = lambda: device_toolchain(platform=platform)
    for name, find in finders.items():
        try:
            found[name] = str(find()).splitlines()[0]
        except BuildError:
            found[name] = "none"
    return found


# ---- measuring ---------------------------------------------------------------------------------------------


def _measured(
    rows: Sequence[tuple[Model, int]], options: argparse.Namespace
) -> tuple[list[Row], list[Curve]]:
    """All rows and curves; those so far if the user interrupts."""
    plans = [plan for model in dict.fromkeys(m for m, _ in rows) for plan in _curves(model, options)]
    bar = Bar(len(rows) * len(STEPS) + sum(len(points) for *_, points in plans))
    found: list[Row] = []
    curves: list[Curve] = []
    try:
        for model, batch in rows:
            function, arguments = model.make(batch, small=options.small)
            by_hand = BY_HAND.get(model.name, {}) if options.by_hand else {}
            compared = compare(
                function,
                arguments,
                seconds=options.seconds,
                patience=PATIENCE,
                others=tuple(by_hand.values()),
                progress=functools.partial(bar.show, f"{model.name} batch {batch}"),
            )
            found.append(row_of(model, batch, compared, tuple(by_hand)))
            bar.hide()
            print(line(cells(found[-1]), _WIDTHS, _LEFT), flush=True)
            for text in result.by_hand(found[-1]):
                print(f"  {text}")
        for model, axis, points in plans:
            steps = [_step(model, axis, at, options, bar) for at in points]
            curves.append(Curve(model.name, axis, tuple(steps)))
    except KeyboardInterrupt:
        print("stopped; this is the result so far", file=sys.stderr)
    bar.hide()
    return found, curves


def row_of(model: Model, batch: int, found: Comparison, by_hand: tuple[str, ...] = ()) -> Row:
    """The row of a comparison. `by_hand`: names of the others in it."""
    stock, ours, auto, *others = found.timed.samples
    regions = found.report.captured
    firsts = (found.first_stock, found.first_ours, found.first_auto)
    timings = map(_timing, others, found.first_others)
    return Row(
        model=model.name,
        batch=batch,
        description=model.description,
        captured=found.captured,
        choice=found.choice,
        difference=found.difference,
        tolerance=model.tolerance,
        stock=_timing(stock, firsts[0]),
        ours=_timing(ours, firsts[1]),
        auto=_timing(auto, firsts[2]),
        ratio=ratio_interval(stock, ours),
        auto_ratio=ratio_interval(stock, auto),
        rounds=len(stock),
        others=found.timed.others,
        units=max((region.units for region in regions), default=1),
        flops=sum(region.flops for region in regions),
        bytes=sum(region.loaded_bytes + region.stored_bytes for region in regions),
        plan=next((trial.name for trial in found.report.trials if trial.chosen), found.choice),
        by_hand=dict(zip(by_hand, timings, strict=True)),
    )


def _timing(samples: Sequence[float], first: float) -> Timing:
    low, high = np.quantile(samples, (0.25, 0.75))
    return Timing(median_interval(samples), (float(low), float(high)), first)


def cells(row: Row) -> tuple[str, ...]:
    """The texts of one table row."""
    busy = f"{row.others:.0%}" if row.others >= NOTABLE else ""
    return (
        row.name,
        row.captured,
        f"{row.stock.median.middle * 1e3:.3f}",
        f"{row.ours.median.middle * 1e3:.3f}",
        f"{row.ratio.middle:.2f}",
        f"{row.ratio.low:.2f} to {row.ratio.high:.2f}",
        f"{row.auto_ratio.middle:.2f}",
        row.choice,
        f"{row.stock.first:.2f} {row.ours.first:.2f}",
        f"{row.difference:.1e}",
        busy,
    )


def _curves(model: Model, options: argparse.Namespace) -> Iterator[tuple[Model, str, tuple[int, ...]]]:
    """The curves to measure of a model, each with its points."""
    if not options.scaling:
        return
    if len(model.batches) > 1:
        yield model, "batch", BATCHES[: 2 if options.small else None]
    most = this_machine().cores if _platform() == "cpu" else _units()
    units = [2**power for power in range(most.bit_length()) if 2**power < most]
    if units:
        yield model, "units", (*units, most)


def _step(model: Model, axis: str, at: int, options: argparse.Namespace, bar: Bar) -> Step:
    """A point of a curve: stock XLA and ours in turn."""
    bar.show(model.name, f"{axis} {at}")
    function, arguments = model.build(at if axis == "batch" else model.batches[0], options.small)
    forced = {**COCKTAIL, "units": at} if axis == "units" else COCKTAIL
    pair = jax.jit(function), api.jit(function, options=forced)
    runs = [lambda f=f: f(*arguments) for f in pair]
    stock, ours = interleaved_samples(runs, seconds=options.seconds / 2, patience=PATIENCE).samples
    return Step(at, median_interval(stock), median_interval(ours))


# ---- the machine -------------------------------------------------------------------------------------------


def _platform() -> str:
    """The platform by jax's name for lowering: "cpu", "cuda" or "rocm"."""
    backend = jax.default_backend()
    if backend != "gpu":
        return str(backend)
    return "rocm" if "rocm" in jax.devices()[0].client.platform_version.lower() else "cuda"


def _units() -> int:
    """The units of this GPU; 1 if it is not known."""
    try:
        return gpu_call.spec_of("", _platform()).units
    except BuildError:
        return 1


def _ceilings(small: bool) -> Ceilings | None:
    """The rates of this machine; None if they cannot be measured."""
    if (platform := _platform()) != "cpu":
        try:
            spec = gpu_call.spec_of("", platform)
        except BuildError:
            return None
        return Ceilings(spec.flops, {"memory": spec.memory_rate}, "data sheet or measured before")
    watch = Watch()
    try:
        found = ceilings.measure(samples=2 if small else ceilings.SAMPLES)
    except BuildError:
        return None
    levels = {"L2 cache": found.l2, "L3 cache": found.l3, "memory": found.memory}
    return Ceilings(found.flops, levels, "measured", watch.others())


def _writable(*paths: Path | None) -> None:
    """Raises Problem if a file cannot be written: before the work, not after it."""
    for path in filter(None, paths):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            existed = path.exists()
            with path.open("a", encoding="utf-8"):
                pass
            if not existed:
                path.unlink()
        except OSError as error:
            raise Problem(f"{path} cannot be written ({error.strerror})", "another file") from error
