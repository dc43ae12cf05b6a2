"""Chooses for a function with parts, each of which is compiled for itself.

The body of a `shard_map` is a program for one device, of which there is one choice for all devices. A loop
in it that communicates with other devices stays with XLA, and its body is a part as well. A part is measured
with the function around it, on all devices at once, as it will run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jax_cocktail.config import FRESH
from jax_cocktail.lowering.choice import plan_cache
from jax_cocktail.lowering.choice.choose import Choice, choose
from jax_cocktail.lowering.choice.request import Mapped, Request
from jax_cocktail.lowering.edge import gpu_call, notices
from jax_cocktail.lowering.edge.capture import DIVIDED
from jax_cocktail.lowering.edge.meshes import EACH, Part, agreed, emptied, parts_in, with_parts
from jax_cocktail.lowering.run import background
from jax_cocktail.lowering.state import STATE, in_state
from jax_cocktail.report import Report

_LOOPS = "XLA runs the loops that communicate, and our programs in them"


def choose_parts(request: Request) -> Choice | None:
    """The call with our programs in its parts; None if there is nothing for us to compile in them."""
    mark, force = request.mark, request.force
    if force == "stock" or (force == "auto" and (STATE.stock or gpu_call.doubt(request.platform))):
        return None
    found = (each for each in parts_in(request.closed) if each.repeats or request.has_work(each.closed))
    parts = {each.key: each for each in found}
    if not parts:
        return None
    together = all(each.place is None or each.place.processes == 1 for each in parts.values())
    offered = request.offered and together and not mark.ticket and not mark.options.strict
    chosen: dict[int, Any] = {}
    reports: list[Report] = []
    for key, part in parts.items():
        inner = _request(request, part, chosen)
        if offered and not part.obstacle and not _is_at_hand(inner, chosen):
            background.start(mark, runs_ours=False)
            return Choice(request.closed, True, Report(mark.function))
        choice = _part(inner, part)
        if part.repeats and choice.jaxpr is inner.closed and not request.has_work(part.closed):
            continue  # it has no loop, and nothing else that gains
        chosen[key] = choice.jaxpr
        reports.insert(0, choice.report)
    if not chosen:
        return None
    around = _around(request, parts, with_parts(request.closed, chosen))
    nothing_else = around.report.choice != "cocktail" and not around.report.left
    recorded = STATE.recordings is not None and any(each.choice == "cocktail" for each in reports)
    if nothing_else and not recorded and sum(each.mapped for each in parts.values()) == 1:
        first, *reports = reports  # that of the only `shard_map`
        around = Choice(around.jaxpr, around.stock, first)
    return _together(around, reports)


def _request(request: Request, part: Part, chosen: dict[int, Any]) -> Request:
    """The request for a part. `chosen`: for those inside of it."""
    place = request.place if part.place is None else part.place
    mark = agreed(replace(request.mark, ticket=0), place)
    mapped = Mapped(request.closed, part.key, dict(chosen), part.repeats)
    return Request(with_parts(part.closed, chosen), mark, request.platform, place, mapped)


def _is_at_hand(inner: Request, inside: Mapping[int, Any]) -> bool:
    """True if an earlier process has decided on a part, and what it has built for it is there; or if nothing
    of it is ours but the parts `inside`, which are at hand."""
    with in_state(devices=inner.place.devices):
        if inner.mark.options.plans == FRESH:
            return False
        if inner.is_decided:
            ready = plan_cache.at_hand(inner.stored_call_key, plan_cache.MOST_SECONDS)
            if inner.is_settled or (ready and not inner.is_stale):
                return True
        is_simple = bool(inside) or not inner.has_control_flow(inner.closed)
        return is_simple and not inner.prepared.captured.regions


def _part(inner: Request, part: Part) -> Choice:
    """The choice for a part."""
    if part.obstacle:
        report = notices.refuse(inner.closed, inner.mark, part.obstacle, quiet=False)
        return Choice(inner.closed, STATE.stock, report)
    with in_state(devices=inner.place.devices):
        choice = choose(inner)
    left = choice.report.left
    if left and choice.report.choice == "stock" and all(each.reason == DIVIDED for each in left):
        return replace(choice, report=replace(choice.report, choice="cocktail", why=_LOOPS))
    return choice


def _around(request: Request, parts: dict[int, Part], closed: Any) -> Choice:
    """The choice for what is outside of the parts. `closed`: the call with what is chosen for these."""
    rest = with_parts(request.closed, {key: emptied(each.jaxpr) for key, each in parts.items()})
    if not request.has_work(rest):
        return Choice(closed, STATE.stock, Report(request.mark.function, choice="stock"))
    if request.place.obstacle:
        report = notices.refuse(rest, request.mark, request.place.obstacle, quiet=False)
        return Choice(closed, STATE.stock, report)
    return choose(Request(closed, request.mark, request.platform, request.place))


def _together(around: Choice, reports: list[Report]) -> Choice:
    """The choice with one report on all parts."""
    if STATE.reports is None:
        return around
    from jax_cocktail.report.code import code_of

    report, ours = around.report, any(each.choice == "cocktail" for each in reports)
    if ours and report.choice != "cocktail":
        report = replace(report, choice="cocktail", why=EACH)
    inner = tuple(replace(each, code=code_of(each)) for each in reports)
    return replace(around, report=replace(report, inner=inner))
