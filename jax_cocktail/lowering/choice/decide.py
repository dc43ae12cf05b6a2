"""Decides for a call of which nothing is known: surveys the candidates, and times the best ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from jax_cocktail import config
from jax_cocktail.device import processor
from jax_cocktail.device.tuning import MODEL
from jax_cocktail.lowering.choice import decisions, plan_cache, stock_forms, stock_xla
from jax_cocktail.lowering.choice.decisions import STOCK, Decision, Plan, known_why, why_of
from jax_cocktail.lowering.choice.plan_cache import Survey
from jax_cocktail.lowering.choice.request import Request, known_survey
from jax_cocktail.lowering.choice.variants import building, possible, rewritten
from jax_cocktail.lowering.edge import custom_call
from jax_cocktail.lowering.edge.adapter import acts, primitive_name
from jax_cocktail.lowering.edge.arguments import compiler_options
from jax_cocktail.lowering.run import stopwatch
from jax_cocktail.lowering.state import STATE, alone
from jax_cocktail.primitives.jaxprs import equations_in, equations_inside, open_jaxpr
from jax_cocktail.schedule.policy import shortlist
from jax_cocktail.schedule.unit_count import needs_measurement
from jax_cocktail.utask.ir import UProgram
from jax_cocktail.warning import warn

DOUBTFUL = (
    f"a gain of less than {MODEL.stitched_gain:g} times does not count for what has no control flow, since"
    " the model may be as wrong"
)


def decide(request: Request) -> Decision:
    """Returns a measured decision, else that of the cost model. A known decision is to be measured again.

    Without concrete arguments nothing is measured.
    """
    prepared, mark, known = request.prepared, request.mark, request.known
    arguments, obstacle = _arguments(request)
    if known is not None and obstacle:
        return replace(known, why=known_why(known))
    thorough = mark.options.profile == "full"
    found = known_survey(prepared, request.units, mark, thorough)
    if found.comparison.hopeless() and not thorough and known is None:
        decision = Decision("stock", found.best, why=f"not measured: {found.comparison}")
        if not mark.options.reproducible:
            decisions.store(request.key, decision)
        return decision
    checks = [item for item in prepared.exits(found.best) if item.check]
    if checks and not obstacle and _leaves(request, found.best, arguments or []):
        why = f"not measured, since every run would call Python: the program leaves at {checks[0].where}"
        return Decision("stock", found.best, why=why)
    if STATE.beside and known is None and plan_cache.is_built(request.call_key(None)):
        # If this process ends early as well, the next one should know enough to run the program.
        stock_xla.comparison(prepared, found, found.assumed, mark, compiler_options(mark))
    if not obstacle:
        try:
            return _measure(request, found, arguments or [])
        except stopwatch.CallFails:  # the caller will see the error; other arguments may not fail
            obstacle = "the call fails on these arguments"
    decision = _unmeasured(request, found, obstacle)
    return decision if decision.choice == "stock" else _tried(request, decision, arguments)


def _unmeasured(request: Request, found: Survey, obstacle: str) -> Decision:
    """The decision of the cost model. `obstacle`: the reason why nothing is measured."""
    prepared, mark, plan = request.prepared, request.mark, found.assumed
    comparison = stock_xla.comparison(prepared, found, plan, mark, compiler_options(mark))
    choice = "stock" if comparison.favours_stock() else "cocktail"
    why = f"not measured ({obstacle}): the model says {comparison}"
    if comparison != found.comparison:
        why += ", which compiles loops to one kernel"
    why += stock_forms.unmeasured_advice(prepared.programs, prepared.machine.spec)
    if found.trusted is None:
        choice, why = "stock", f"{why}; {DOUBTFUL}"
    return Decision(choice, plan, why=why)


def assume(request: Request) -> tuple[Decision, bool]:
    """Returns the decision of the cost model for a call that the background is offered, and True if it may
    find another one. The programs are built, and nothing that takes long is done here: stock XLA runs what
    is doubtful."""
    prepared, mark = request.prepared, request.mark
    found = known_survey(prepared, request.units, mark, mark.options.profile == "full")
    _, obstacle = _arguments(request)
    unknown = stock_xla.has_to_ask(prepared, found, found.assumed, mark, compiler_options(mark))
    leaves = [item for item in prepared.exits(found.assumed) if not item.check]
    if unknown or leaves:
        why = "it is unknown yet how stock XLA runs it" if unknown else "it may leave by a side exit"
        return Decision("stock", found.assumed, why=why), True
    return _unmeasured(request, found, obstacle or "it is measured in the background"), not obstacle


def _tried(request: Request, decision: Decision, arguments: list[Any] | None) -> Decision:
    """Checks a decision for our program that is not measured: the program should not leave by a side exit.

    A side exit that only calls Python without side effects is a check that raises an error, thus rare. Others
    need a run of the program alone, which has no side effects. Without arguments stock XLA runs the call,
    unless the program leaves only if its log of messages is full.
    """
    exits = [item for item in request.prepared.exits(decision.plan) if not item.check]
    if not exits or (arguments is None and all(item.full for item in exits)):
        return decision
    reason = f"it is unknown how often the program leaves at {exits[0].where}"
    if arguments is not None:
        leaves = _leaves(request, decision.plan, arguments)
        if leaves is not None:
            reason = f"the program leaves at {exits[0].where} on these arguments" if leaves else ""
            why = f"{reason}, and stock XLA would run it again" if leaves else decision.why
            decision = replace(decision, choice="stock" if leaves else "cocktail", why=why)
            decisions.store(request.key, decision)
            return decision
    return replace(decision, choice="stock", why=reason)


def _leaves(request: Request, plan: Plan, arguments: list[Any]) -> bool | None:
    """True if our program leaves by a side exit on these arguments; None if it cannot run alone."""
    program = rewritten(request.prepared, plan, request.mark).only_flags()
    if program is None or request.mapped is not None:
        return None
    # If the call fails, the caller will see it.
    with alone(), config.options(max_seconds=math.inf), suppress(jax.errors.JaxRuntimeError):
        return any(stopwatch.runner(program, arguments)())
    return None


def _measure(request: Request, found: Survey, arguments: list[Any]) -> Decision:
    """Times the best plans of a survey and the forms of stock XLA, and stores the decision."""
    prepared, mark, key = request.prepared, request.mark, request.key
    thorough, xla = mark.options.profile == "full", compiler_options(mark)
    with decisions.exclusive(key):
        first = decisions.load(key)
        if first is not None and not possible(prepared, first.plan, request.units):
            first = None
        if first is not None and first != request.known and (first.thorough or not thorough):
            return replace(first, why=known_why(first))  # just now, by another
        if not thorough and first is None and (near := _near(request)) is not None:
            decisions.store(key, near)
            return near
        plans = list(worth_building(found, prepared.programs, thorough))
        with alone(), config.options(max_seconds=math.inf):  # the caller's limit is for the call itself
            with building(prepared, plans, mark):  # XLA's compiler and the host's run in parallel
                whole = request.timed(request.closed)
                stock = stock_forms.runners(whole, arguments, xla, prepared.machine.is_gpu)
            plans = [plan for plan in plans if plan in prepared.built]
            jaxprs = [request.timed(rewritten(prepared, plan, mark).jaxpr) for plan in plans]
            ours = [stopwatch.runner(jaxpr, arguments, xla) for jaxpr in jaxprs]
            effort = stopwatch.THOROUGH if thorough else stopwatch.QUICK
            times = stopwatch.race([*stock.values(), *ours], effort, range(1, len(stock)))
        heavy = found.comparison.heavy()
        cores = 0 if prepared.machine.is_gpu else processor.cores()  # thread blocks never wait for cores
        prices = [found.seconds[found.plans.index(plan)] for plan in plans]
        decision = decisions.choose(plans, times, heavy, cores, tuple(stock), prices)
        compiled = ours[plans.index(decision.plan)].seconds
        decision = replace(
            decision,
            thorough=thorough,
            stock_compile_seconds=stock[STOCK].seconds,
            our_compile_seconds=compiled + request.seconds,
        )
        if first is not None and first.provisional and not thorough:
            decision = decisions.settle(first, decision, exact=not _computes_floats(request.closed))
        decisions.store(key, decision)
        if request.near_key and not thorough and not decision.provisional:
            decisions.store(request.near_key, decision)
    if decision.advice:
        warn((decision.advice, mark.function), f"{mark.function}: {decision.advice}")
    return replace(decision, why=why_of(decision, "measured now, on these arguments"))


def _near(request: Request) -> Decision | None:
    """The decision for sizes near those of the call, if one of these was measured: batches of a server differ
    from call to call, and each would be measured."""
    found = decisions.load(request.near_key) if request.near_key else None
    if found is None or not possible(request.prepared, found.plan, request.units):
        return None
    return Decision(found.choice, found.plan, why="measured before on this machine, for sizes near these")


def worth_building(found: Survey, programs: Sequence[UProgram], thorough: bool) -> tuple[Plan, ...]:
    """The plans of a survey that are to be timed: those that may be best."""
    every = thorough or any(map(needs_measurement, programs))
    plans = [found.plans[i] for i in shortlist(found.seconds, every)]
    return tuple(dict.fromkeys((*plans, found.assumed)))


def _arguments(request: Request) -> tuple[list[Any] | None, str]:
    """The arguments, if known, and the reason why nothing can be measured on them, or ""."""
    if request.mark.options.reproducible:
        return None, "the option reproducible is set"
    if request.mark.options.profile == "off":
        return None, 'the option profile is "off"'
    if jax.config.jax_debug_nans or jax.config.jax_debug_infs:
        return None, "a NaN or an infinity would stop the measurement"
    if not custom_call.present(request.platform):
        return None, f"this process has no {request.platform} device"
    if STATE.too_long:
        return None, STATE.too_long
    if STATE.beside and request.place.devices > 1 and request.prepared.machine.is_gpu:
        return None, "on several GPUs, what is timed and the caller could wait for each other"
    arguments = request.arguments
    if acts(open_jaxpr(request.whole).effects):
        return arguments, "the call has side effects"
    if _calls_python(request):
        return arguments, "every run would call Python"
    return arguments, "" if arguments is not None else "no concrete arguments"


def _calls_python(request: Request) -> bool:
    """True if a callback stays outside of our regions. Inside, it is a side exit (see `decide`)."""
    captured = request.prepared.captured
    ours = {member for region in captured.regions for member in region.members}
    rest = [each for place, each in enumerate(captured.flat.equations) if place not in ours]
    names = {primitive_name(each) for outer in rest for each in (outer, *equations_inside(outer))}
    return "pure_callback" in names


def _computes_floats(jaxpr: Any) -> bool:
    """True if a jaxpr has a floating-point value that is not an input, at any depth."""
    made = (var.aval for equation in equations_in(jaxpr) for var in equation.outvars)
    return any(np.issubdtype(getattr(aval, "dtype", np.bool_), np.inexact) for aval in made)
