"""Describes a call and its built regions for `explain`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax

from jax_cocktail.analysis.scopes import Scope, program_scope
from jax_cocktail.codegen.traffic import moved_per_call
from jax_cocktail.compiler import Artifact, Emitted
from jax_cocktail.config import VERSION
from jax_cocktail.cost.price import barriers_per_call, barriers_per_iteration
from jax_cocktail.cost.work import total
from jax_cocktail.lowering.choice import decisions
from jax_cocktail.lowering.choice.decide import DOUBTFUL
from jax_cocktail.lowering.choice.stock_xla import stock_module
from jax_cocktail.lowering.choice.survey import worth
from jax_cocktail.lowering.choice.variants import Prepared, artifact, units_of
from jax_cocktail.lowering.choice.variants import emitted as planned
from jax_cocktail.lowering.edge import custom_call
from jax_cocktail.lowering.edge import recursion_strategies as recursions
from jax_cocktail.lowering.edge.capture import MEMORY_BOUND_SUBGRAPH, Region, untaken
from jax_cocktail.lowering.state import STATE, Mark
from jax_cocktail.report import Captured, Edge, Left, Memory, Report, Setting, Stock
from jax_cocktail.report.code import code_of
from jax_cocktail.report.tree import operator_name, tree_of
from jax_cocktail.stitch import edges as values
from jax_cocktail.stitch.edges import edges
from jax_cocktail.utask.ir import LoopUTask, UOperator, walk
from jax_cocktail.utask.sizes import Parameter, Size, value_of

SCOPES = {
    Scope.LANE: "lane (L0): one {unit} runs the whole region, in registers",
    Scope.UNIT: "unit (L1): one {unit} runs the whole region",
    Scope.DEVICE: "device (L2): units share the region",
}


def described(report: Report, prepared: Prepared, decision: decisions.Decision, mark: Mark) -> Report:
    """The report with the regions of a plan, which are built, and with what was timed."""
    plan, regions = decision.plan, prepared.captured.regions
    built = {n: artifact(prepared, (plan.candidate, n), mark) for n in prepared.taken(plan)}
    skipped: tuple[Left, ...] = ()
    for region in (regions[n] for n in plan.skip):
        doubtful = region.memory_bound and not decision.measured
        why = DOUBTFUL if doubtful else "stock XLA is faster at it than a call of its own"
        skipped += untaken([region], why)
    trials = tuple(
        replace(t, chosen=t.name == (plan.name if decision.choice == "cocktail" else decisions.STOCK))
        for t in decision.trials
    )
    if decision.choice == "cocktail":
        ours = {position for n in prepared.taken(plan) for position in regions[n].members}
        report = replace(report, recursions=recursions.with_ours(prepared.captured.flat, ours))
    return replace(
        report,
        captured=tuple(_captured(prepared, n, built[n], mark) for n in prepared.taken(plan)),
        left=(*report.left, *skipped),
        choice=decision.choice,
        why=decision.why,
        stock_seconds=decision.stock_seconds,
        cocktail_seconds=decision.cocktail_seconds,
        trials=trials,
        others=decision.others,
        pressure="" if prepared.machine.is_gpu or plan.candidate.units == 1 else custom_call.pressure(),
    )


def _captured(prepared: Prepared, number: int, artifact: Artifact, mark: Mark) -> Captured:
    """One region that became a custom call."""
    region = prepared.captured.regions[number]
    log = None if region.log is None else (region.log.words, "")
    emitted = planned(prepared, artifact.emitted.candidate, number)  # for the numbers of this call
    units = emitted.mesh.units
    grown = worth(prepared, number, units_of(mark, prepared.machine))[1]
    light = f"{MEMORY_BOUND_SUBGRAPH} at {region.source}" if region.source else MEMORY_BOUND_SUBGRAPH
    moved = moved_per_call(emitted.program, emitted.plan, units, emitted.machine)
    found = edges(emitted.program, emitted.plan, "shared memory" if emitted.machine.is_gpu else "")
    tree, flows = tree_of(emitted.program, units, emitted.machine, found)
    return Captured(
        control_flow=(light,) if region.memory_bound else region.control_flow,
        operators=region.operators,
        scope=SCOPES[program_scope(emitted.program)].format(
            unit="block of threads" if emitted.machine.is_gpu else "core"
        ),
        workspace_bytes=artifact.workspace_bytes,
        fingerprint=artifact.fingerprint,
        memory=tuple(
            Memory(space, used.peak, used.bound, used.total) for space, used in emitted.plan.usage.items()
        ),
        path=artifact.path,
        seconds=artifact.seconds,
        cached=artifact.cached,
        units=units,
        waits=barriers_per_call(emitted.program),
        loaded_bytes=moved.loaded,
        stored_bytes=moved.stored,
        flops=float(total(emitted.program.entry.body).flops),
        barriers=tuple(
            (None if loop.trip_count is None else int(loop.trip_count), str(loop.source), waits)
            for loop, waits in barriers_per_iteration(emitted.program)
        ),
        fired=emitted.fired,
        remarks=(
            *(() if region.division is None else region.division.remarks),
            *map(str, emitted.remarks),
            *map(str, grown),
        ),
        choices=tuple(map(str, emitted.choices)),
        messages=() if region.log is None else tuple(map(str, region.log.messages)),
        exits=tuple(f"{item.where}: {item.reason}" for item in region.exits),
        exited=custom_call.exits(artifact.digest) if region.exits else (0, 0),
        edges=_edges(found),
        lengths=tuple(each for each in _lengths(artifact.emitted) if each != log),
        stock=_stock(prepared, region) if STATE.counts_stock else None,
        tree=tree,
        flows=flows,
    )


def finished(report: Report, platform: str, arch: str) -> Report:
    """The report with what is known of the place where it is made. `arch`: the option gpu_arch."""
    _, processor, cores = decisions.machine_facts()
    card = custom_call.device(platform, arch) if platform in custom_call.PLATFORMS else platform
    device = card or processor.rpartition(":")[2].strip() or platform
    made = Setting(VERSION, jax.__version__, device, int(cores))
    return replace(report, made=made, code=code_of(report))


def _lengths(emitted: Emitted) -> tuple[tuple[int, str], ...]:
    """The lengths that are launch parameters, each with the line of a loop whose trips follow from it."""
    places = dict[Parameter, str]()
    for loop in walk(emitted.program.entry):
        if isinstance(loop, LoopUTask) and loop.source.file and isinstance(loop.trip_count, Size):
            places = dict.fromkeys(loop.trip_count.parameters, str(loop.source)) | places
    lengths = (each for each in emitted.parameters if not each.role)
    return tuple((value_of(each, emitted.given), places.get(each, "")) for each in lengths)


def _edges(all_edges: Sequence[values.Edge]) -> tuple[Edge, ...]:
    """The edges of a region. Those from the same lines, for the same reason, are one."""
    found: dict[tuple[str, str, str, str], Edge] = {}
    for each in all_edges:
        key = _named(each.made), _named(each.read), each.scheme, each.why
        known = found.get(key, Edge(*key, bytes=0.0, saved_bytes=0.0, times=0))
        found[key] = Edge(
            *key,
            bytes=known.bytes + each.bytes,
            saved_bytes=known.saved_bytes + each.saved_bytes,
            times=known.times + 1,
        )
    return tuple(sorted(found.values(), key=lambda e: (-e.saved_bytes, -e.bytes)))


def _named(operator: UOperator) -> str:
    """``operator at file:line (function)``."""
    kind = operator_name(operator)
    return f"{kind} at {operator.source}" if operator.source.file else kind


def _stock(prepared: Prepared, region: Region) -> Stock:
    """The kernels and bytes of the region alone under stock XLA, for the device in use."""
    cost = stock_module(prepared.captured.flat, region).cost
    return Stock(kernels=cost.kernels, bytes=cost.bytes)
