"""A report as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from jax_cocktail.report.values import SCHEMES, Captured, Contents, Edge, Memory, Trial, place
from jax_cocktail_tools.words import counted, counts, duration, size

_SAVING_EDGES, _GLOBAL_EDGES = 3, 2  # edges that the text shows; all are in the data
NOTABLE = 0.1  # reports mention other processes from this fraction of the cores upwards


def text(report: Contents) -> str:
    """The whole report. Lines of reports inside are indented."""
    lines = [f"{report.function}: {runs_on(report)}"]
    lines += (f"  {line}" for line in measured(report))
    lines += _trial_lines(report.trials, report.others)
    lines += [f"  now: {report.now}"] if report.now else []
    lines += [f"  {report.pressure}"] if report.pressure else []
    lines += (f"  recursion {sentence}" for sentence in dict.fromkeys(report.recursions))
    for number, region in enumerate(report.captured):
        lines += _captured_lines(number, region)
    for item, same in groupby(report.left):
        lines.append(f"  left to stock XLA: {place(item.what, item.where, len(tuple(same)))}")
        lines.append(f"    because: {item.because}")
    if report.beside:
        lines.append(f"  also compiled by stock XLA: {counts(report.beside)}")
    for inner in report.inner:
        lines += ["  " + line for line in text(inner).splitlines()]
    return "\n".join(lines)


def runs_on(report: Contents) -> str:
    """Says what runs the function, and why."""
    names = {"cocktail": "jax_cocktail", "stock": "stock XLA"}
    return f"runs on {names.get(report.choice, report.choice)} ({report.why})"


def measured(report: Contents) -> list[str]:
    """The times, in a line; none if nothing was measured."""
    if report.stock_seconds is None or report.cocktail_seconds is None:
        return []
    ours = f"jax_cocktail {duration(report.cocktail_seconds)} per call"
    busy = ", on a busy machine" if report.others >= NOTABLE else ""
    return [f"measured: stock XLA {duration(report.stock_seconds)}, {ours}{busy}"]


def speedup(trial: Trial, stock: Trial, others: float) -> str:
    """The time of stock XLA over that of a candidate; none if luck decides on both, on a busy machine."""
    return "busy" if others >= NOTABLE else f"{stock.seconds / trial.seconds:.2f}"


def _trial_lines(trials: Sequence[Trial], others: float) -> list[str]:
    """A table, fastest first. The first trial is that of stock XLA."""
    if not trials:
        return []
    width = max(len(trial.name) for trial in trials)
    lines = [f"  {'candidate':{width}}  {'us per call':>12}  {'speedup':>10}"]
    for trial in sorted(trials, key=lambda t: t.seconds):
        ratio = speedup(trial, trials[0], others)
        line = f"  {trial.name:{width}}  {trial.seconds * 1e6:12.1f}  {ratio:>10}"
        lines.append(line + ("  chosen" if trial.chosen else ""))
    if others >= NOTABLE:
        lines.append(
            f"  other processes held {others:.0%} of the cores during the measurement; the next process that"
            " starts on an idle machine measures again"
        )
    return lines


def _captured_lines(number: int, region: Captured) -> list[str]:
    built = "from the cache" if region.cached else "built"
    lines = [f"  custom call {number}: {counts(region.operators)}"]
    for each, same in groupby(region.control_flow):
        what, _, where = each.partition(" at ")
        lines.append(f"    {place(what, where, len(tuple(same)))}")
    units = f"{region.units} units; " if region.units > 1 else ""
    lines.append(f"    scope: {region.scope}; {units}workspace: {size(region.workspace_bytes)}")
    lines += [f"    memory: {'; '.join(map(_packed, region.memory))}"] if region.memory else []
    lines.append(f"    {_moved(region)}")
    if region.stock is not None:
        kernels = counted(round(region.stock.kernels), "kernel")
        lines.append(f"    under stock XLA: {kernels}; loads and stores {size(region.stock.bytes)}")
    lines += _edge_lines(region.edges)
    for (trips, loop, waits), alike in groupby(region.barriers):
        kind = "a while loop" if trips is None else f"a loop of {trips} trips"
        what = f"{counted(waits, 'barrier')} per iteration of {kind}"
        lines.append(f"    {place(what, loop, len(tuple(alike)))}")
    for length, loop in region.lengths:
        lines.append(f"    {place(f'launch parameter: the length {length}', loop)}")
    lines += (f"    {line}" for line in kept_messages(region.messages))
    lines += (f"    side exit at {each}" for each in dict.fromkeys(region.exits))
    if region.exits:
        lines.append("    a call that comes to a side exit runs again on stock XLA, which compiles it, too")
    if region.exited[0]:
        lines.append("    {} of {} calls so far left by a side exit".format(*region.exited))
    if region.fired:
        lines.append(f"    changed by the passes: {', '.join(region.fired)}")
    lines += (f"      {remark}" for remark in region.remarks)
    lines += (f"    choice {choice}" for choice in region.choices)
    lines.append(f"    {built} in {duration(region.seconds)}; fingerprint {region.fingerprint[:16]}")
    if region.path:
        lines.append(f"    files: {region.path}")
    return lines


def kept_messages(messages: Sequence[str]) -> list[str]:
    """The number of prints and debug callbacks that are made after the call, and their places."""
    if not messages:
        return []
    prints = sum(each.startswith("debug_print") for each in messages)
    numbers = ((prints, "print"), (len(messages) - prints, "debug callback"))
    told = " and ".join(counted(number, what) for number, what in numbers if number)
    lines = [f"{told} {'is' if len(messages) == 1 else 'are'} kept, and made after the call"]
    for each, same in groupby(messages):
        what, _, where = each.partition(" at ")
        lines.append(f"  {place(what, where, len(tuple(same)))}")
    return lines


def _edge_lines(edges: Sequence[Edge]) -> list[str]:
    """The numbers of edges by scheme, then those that save most and the largest ones through memory of all
    units."""
    if not edges:
        return []
    numbers = ((scheme, sum(e.times for e in edges if e.scheme == scheme)) for scheme in SCHEMES)
    told = ", ".join(f"{number:,} {scheme}" for scheme, number in numbers if number)
    lines = [f"    edges: {told}; they save {size(sum(e.saved_bytes for e in edges))}"]
    shown = [e for e in edges if e.saved_bytes][:_SAVING_EDGES]
    shown += sorted((e for e in edges if e.scheme == SCHEMES[-1]), key=lambda e: -e.bytes)[:_GLOBAL_EDGES]
    for edge in shown:
        saved = f"saves {size(edge.saved_bytes)}" if edge.saved_bytes else size(edge.bytes)
        times = f" x{edge.times}" if edge.times > 1 else ""
        lines.append(f"      {edge.made} -> {edge.read}{times}")
        lines.append(f"        {edge.scheme}, {saved}: {edge.why}")
    rest = [e for e in edges if e not in shown]
    if rest:
        saved = size(sum(e.saved_bytes for e in rest))
        lines.append(f"      {counted(sum(e.times for e in rest), 'more edge')}: {saved}")
    return lines


def _moved(region: Captured) -> str:
    """Says what one call runs and moves."""
    waits = f", {counted(round(region.waits), 'barrier')}" if region.waits else ", no barrier"
    moved = f"loads {size(region.loaded_bytes)}, stores {size(region.stored_bytes)} (predicted)"
    return f"a call: {counted(region.kernels, 'kernel')}{waits}; {moved}"


def _packed(memory: Memory) -> str:
    """A space, and what it could be at best and at worst."""
    sizes = f"lower bound {size(memory.bound_bytes)}, without reuse {size(memory.separate_bytes)}"
    return f"{memory.space} {size(memory.bytes)} ({sizes})"
