"""Lowers one marked call: capture, translate, build, decide. Stock XLA runs the call if any step fails."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax

from jax_cocktail import cells
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.config import FRESH, MEMORY_BOUND
from jax_cocktail.device.tuning import MODEL
from jax_cocktail.dump import dump_decision
from jax_cocktail.errors import BuildError, CocktailWarning, StalePlanError, StrictModeError, UnsupportedError
from jax_cocktail.lowering import (
    background,
    custom_call,
    decisions,
    gpu_call,
    leaving,
    plan_cache,
    stock_forms,
    stock_xla,
    stopwatch,
)
from jax_cocktail.lowering import recursion_strategies as recursions
from jax_cocktail.lowering.adapter import (
    computes_floats,
    control_flow_in,
    holds_control_flow,
    primitive_name,
    source_of,
)
from jax_cocktail.lowering.arguments import concrete_arguments, donated
from jax_cocktail.lowering.capture import ASKED_FOR, Region, subgraph
from jax_cocktail.lowering.choices import element_branch_in
from jax_cocktail.lowering.describe import described, finished
from jax_cocktail.lowering.plan_cache import Survey
from jax_cocktail.lowering.recent import keep
from jax_cocktail.lowering.record import record
from jax_cocktail.lowering.state import STATE, Mark, alone, go_on
from jax_cocktail.lowering.survey import known_survey, possible
from jax_cocktail.lowering.variants import (
    Prepared,
    artifact,
    building,
    device_of,
    prepare,
    program_keys,
    rewritten,
    spec_of,
    units_of,
)
from jax_cocktail.portable import name_of
from jax_cocktail.primitives import CONTROL_FLOW
from jax_cocktail.primitives.jaxprs import open_jaxpr
from jax_cocktail.primitives.side_exit import ALONE
from jax_cocktail.report import Left, Report
from jax_cocktail.schedule.policy import shortlist
from jax_cocktail.schedule.unit_count import no_price_tells

_DOUBTFUL = (
    f"a gain of less than {MODEL.stitched_gain:g} times does not count for what has no control flow, since"
    " the model may be as wrong"
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The jaxpr for the stock rule, and True if stock XLA runs marked calls inside it (see `state`)."""

    jaxpr: Any
    stock: bool


_warned: dict[tuple[str, str], None] = {}
MARK_LOST = "the call does not reach jax_cocktail: it does not support how this version of jax lowers calls"


def lower(closed: Any, mark: Mark, obstacle: str, platform: str = "cpu") -> Outcome:
    """Lowers a marked call; called by the lowering rule.

    Args:
      closed: the jaxpr of the call.
      mark: its function name and options.
      obstacle: a reason why nothing in the module can be compiled, or "".
      platform: jax's name, one of `custom_call.PLATFORMS`.

    Raises:
      StrictModeError: the option ``strict`` is set and control flow would run on stock XLA.
      StalePlanError: the option ``plans`` is "checked" and the plan cache has something else than planning.
    """
    force, report = mark.options.force, Report(mark.function)
    background.note(mark)
    stock = Outcome(closed, STATE.stock)
    if force == "stock" and STATE.reports is None:
        return stock
    try:
        if force == "auto" and STATE.stock:
            report, outcome = replace(report, why="stock XLA runs the code around it"), stock
        elif not (_memory_bound(mark) or control_flow_in(closed) or element_branch_in(closed)):
            report, outcome = replace(report, why="it contains no loop or branch"), stock
        elif reason := obstacle or (gpu_call.doubt(platform) if force == "auto" else ""):
            report, outcome = refuse(closed, mark, reason, quiet=force == "stock"), stock
        else:
            report, outcome = _compile(report, closed, mark, force, platform)
    except (StalePlanError, StrictModeError):
        raise
    except Exception as error:  # a bug of ours must not stop the user's program
        go_on()  # what fails because the process ends is no matter
        if mark.options.strict:
            raise
        report, outcome = _failed(report, closed, error), stock
    if STATE.reports is not None:
        STATE.reports.append(finished(report, platform, mark.options.gpu_arch))
    return outcome


def _memory_bound(mark: Mark) -> bool:
    """True if subgraphs without control flow become custom calls as well."""
    return mark.options.scope == MEMORY_BOUND


def refuse(closed: Any, mark: Mark, reason: str, quiet: bool) -> Report:
    """Leaves the whole call to stock XLA. Unless `quiet`, it warns once, or raises in strict mode."""
    left = _control_flow(closed, reason)
    if left and not quiet:
        text = f"{mark.function}: {reason}; {left[0].placed}"
        if mark.options.strict:
            raise StrictModeError(f"{text} would run on stock XLA")
        _warn((reason, left[0].where), f"{text} runs on stock XLA; {_ALL_STOCK}")
    return Report(mark.function, left=left, choice="stock", why=reason)


def _control_flow(closed: Any, reason: str) -> tuple[Left, ...]:
    """All control flow of a jaxpr, left to stock XLA for one reason."""
    return tuple(
        Left(primitive_name(equation), reason, str(source_of(equation)))
        for equation in open_jaxpr(closed).eqns
        if holds_control_flow(equation)
    )


def _compile(report: Report, closed: Any, mark: Mark, force: str, platform: str) -> tuple[Report, Outcome]:
    on_gpu = platform in gpu_call.PLATFORMS
    if on_gpu and background.offered(mark) and not gpu_call.is_measured(mark.options.gpu_arch, platform):
        background.start()
        return report, Outcome(closed, True)
    machine = machine_of(spec_of(mark, platform))
    units, light = units_of(mark, machine), _memory_bound(mark)
    device, xla = device_of(mark, machine), _compiler_options(mark)
    card = custom_call.device(platform, mark.options.gpu_arch)
    key = decisions.key_of(closed, units, device, xla, light, card) if force != "stock" else ""
    here = decisions.used_here(key)
    leaving.remember(key)
    known = decisions.load(key) if key else None
    again = known is not None and _again(known, mark, here)
    settled = known is not None and known.choice == "stock" and not again
    if force == "auto" and settled and STATE.reports is None and not mark.options.strict:
        return report, Outcome(closed, True)
    given_away = donated(closed, mark) if light else frozenset()
    prepared_now = partial(prepare, closed, mark.function, machine, light, given_away)
    if key and background.offered(mark):
        if _meanwhile_stock(mark, _call_key(key, force, known), again, prepared_now):
            return report, Outcome(closed, True)
        again = False
    start = time.thread_time()
    prepared = prepared_now()
    seconds = time.thread_time() - start
    captured = prepared.captured
    if known is not None and not possible(prepared, known.plan, units):  # somebody has changed the file
        known, again = None, False
    left = (*captured.left, *captured.declined)
    report = replace(report, left=left, beside=captured.beside, recursions=recursions.on_stock(closed))
    if force != "stock":
        _complain(captured.left, mark)
    if not captured.regions:
        return replace(report, choice="stock", why="nothing was captured"), Outcome(closed, STATE.stock)
    if force == "auto":
        decision = _decide(prepared, mark, key, known, again)
    else:
        decision = _forced(prepared, mark, force, known)
    if mark.options.dump_to:
        dump_decision(mark.options.dump_to, mark.function, key, decision.text)
    if force == "auto" and decision.choice == "stock" and not decision.measured:
        left = (*left, *_untaken(captured.regions, decision.why))
        report = replace(report, left=left, why=decision.why)
        return report, Outcome(closed, True)  # a report alone is no reason to build anything
    rewritten_jaxpr = rewritten(prepared, decision.plan, mark).jaxpr
    if STATE.reports is not None:
        report = _described(report, prepared, decision, mark)
    if decision.choice != "cocktail":
        return report, Outcome(closed, force == "auto" or STATE.stock)
    STATE.ours += 1
    if STATE.recordings == []:
        _record(prepared, decision.plan, mark)
    elif mark.options.plans != FRESH:
        call_key = _call_key(key, force, decision if force == "auto" else known)
        plan_cache.add_call(call_key, program_keys(prepared, decision.plan), seconds)
    if force == "auto":
        leaving.watch(key, decision, prepared.leaving(decision.plan))
    return report, Outcome(rewritten_jaxpr, STATE.stock)


def _meanwhile_stock(mark: Mark, key: str, again: bool, prepared: Callable[[], Prepared]) -> bool:
    """True if stock XLA runs a call that the background was offered, because our program is not ready. In
    strict mode, errors must not come later, so the call is captured at once."""
    ready = mark.options.plans != FRESH and plan_cache.at_hand(key)
    if not ready and mark.options.strict:
        _complain(prepared().captured.left, mark)
    if again or not ready:
        background.start(again)
    return not ready


def _forced(
    prepared: Prepared, mark: Mark, force: str, known: decisions.Decision | None
) -> decisions.Decision:
    """The decision of the option `force`, for the best plan that is known."""
    units = units_of(mark, prepared.machine)
    plan = prepared.forced(known.plan if known is not None else known_survey(prepared, units, mark).best)
    decision = replace(known or decisions.Decision(force), choice=force, plan=plan)
    return replace(decision, why=f'the option force is "{force}"')


def _call_key(key: str, force: str, known: decisions.Decision | None) -> str:
    """The key of what was built for a call, in the plan cache."""
    what, _, machine = key.partition("-")
    return name_of((what, force, "" if known is None else str(known.plan)), (machine,))


def _record(prepared: Prepared, plan: decisions.Plan, mark: Mark) -> None:
    """Traces the call, if its arguments are known: it is not one inside the call that `trace` makes."""
    arguments = concrete_arguments(prepared.closed, mark)
    if arguments is not None and STATE.recordings is not None:
        STATE.recordings.append(record(prepared, plan, mark, arguments))


def _again(known: decisions.Decision, mark: Mark, here: bool) -> bool:
    """True to measure again: the user wants all candidates, and only the best few were timed; or the machine
    was busy then and is idle now, which the background finds out for itself. A process that ran the function
    (`here`) stays with what it ran."""
    if mark.options.profile == "full" and not known.thorough:
        return True
    if not known.provisional or (here and not STATE.again) or mark.options.profile == "off":
        return False
    return background.offered(mark) or stopwatch.idle()


def _decide(
    prepared: Prepared, mark: Mark, key: str, known: decisions.Decision | None, again: bool
) -> decisions.Decision:
    """Returns the stored decision, else a measured one, else that of the cost model.

    Without concrete arguments nothing is measured. `again`: the stored decision is to be measured again.
    """
    before = None if known is None else replace(known, why=_why(known, "measured before on this machine"))
    if before is not None and not again:
        return before
    arguments, obstacle = _arguments(prepared.closed, mark, prepared.machine.platform)
    if before is not None and obstacle:
        return before
    thorough = mark.options.profile == "full"
    found = known_survey(prepared, units_of(mark, prepared.machine), mark, thorough)
    if found.comparison.hopeless() and not thorough and known is None:
        decision = decisions.Decision("stock", found.best, why=f"not measured: {found.comparison}")
        decisions.store(key, decision)
        return decision
    checks = [item for item in prepared.exits(found.best) if item.check]
    if checks and not obstacle and _leaves(prepared, found.best, mark, arguments or []):
        why = f"not measured, since every run would call Python: the program leaves at {checks[0].where}"
        return decisions.Decision("stock", found.best, why=why)
    if not obstacle:
        try:
            return _measure(prepared, mark, key, found, arguments or [], known)
        except stopwatch.CallFails:  # the caller will see the error; other arguments may not fail
            obstacle = "the call fails on these arguments"
    plan = found.trusted or found.best
    comparison = stock_xla.comparison(prepared, found, plan, mark, _compiler_options(mark))
    choice = "stock" if comparison.favours_stock() else "cocktail"
    why = f"not measured ({obstacle}): the model says {comparison}"
    if comparison != found.comparison:
        why += ", which compiles loops to one kernel"
    why += stock_forms.unmeasured_advice(prepared.programs, prepared.machine.spec)
    if found.trusted is None:
        choice, why = "stock", f"{why}; {_DOUBTFUL}"
    decision = decisions.Decision(choice, plan, why=why)
    return decision if choice == "stock" else _tried(prepared, mark, key, decision, arguments)


def _tried(
    prepared: Prepared, mark: Mark, key: str, decision: decisions.Decision, arguments: list[Any] | None
) -> decisions.Decision:
    """Checks a decision for our program that is not measured: the program should not leave by a side exit.

    A side exit that only calls Python without side effects is a check that raises an error, thus rare. Others
    need a run of the program alone, which has no side effects. Without arguments stock XLA runs the call,
    unless the program leaves only if its log of messages is full.
    """
    exits = [item for item in prepared.exits(decision.plan) if not item.check]
    if not exits or (arguments is None and all(item.full for item in exits)):
        return decision
    reason = f"it is unknown how often the program leaves at {exits[0].where}"
    if arguments is not None:
        leaves = _leaves(prepared, decision.plan, mark, arguments)
        if leaves is not None:
            reason = f"the program leaves at {exits[0].where} on these arguments" if leaves else ""
            why = f"{reason}, and stock XLA would run it again" if leaves else decision.why
            decision = replace(decision, choice="stock" if leaves else "cocktail", why=why)
            decisions.store(key, decision)
            return decision
    return replace(decision, choice="stock", why=reason)


def _leaves(prepared: Prepared, plan: decisions.Plan, mark: Mark, arguments: list[Any]) -> bool | None:
    """True if our program leaves by a side exit on these arguments; None if it cannot run alone."""
    program = rewritten(prepared, plan, mark).only_flags()
    if program is None:
        return None
    with alone(), suppress(jax.errors.JaxRuntimeError):  # the call fails, which the caller will see
        return any(stopwatch.runner(program, arguments)())
    return None


def _measure(
    prepared: Prepared,
    mark: Mark,
    key: str,
    found: Survey,
    arguments: list[Any],
    known: decisions.Decision | None,
) -> decisions.Decision:
    thorough, xla = mark.options.profile == "full", _compiler_options(mark)
    with decisions.exclusive(key):
        first = decisions.load(key)
        if first is not None and not possible(prepared, first.plan, units_of(mark, prepared.machine)):
            first = None
        if first is not None and first != known and (first.thorough or not thorough):
            return replace(first, why=_why(first, "measured before on this machine"))  # just now, by another
        every = thorough or any(map(no_price_tells, prepared.programs))
        plans = [found.plans[i] for i in shortlist(found.seconds, every)]
        plans += [found.trusted] if found.trusted and found.trusted not in plans else []
        with alone():
            with building(prepared, plans, mark):  # XLA's compiler and the host's run in parallel
                stock = stock_forms.runners(prepared.closed, arguments, xla, prepared.machine.is_gpu)
            plans = [plan for plan in plans if plan in prepared.built]
            ours = [stopwatch.runner(rewritten(prepared, plan, mark).jaxpr, arguments, xla) for plan in plans]
            effort = stopwatch.THOROUGH if thorough else stopwatch.QUICK
            times = stopwatch.race([*stock.values(), *ours], effort, range(1, len(stock)))
        heavy = found.comparison.heavy()
        cores = 0 if prepared.machine.is_gpu else decisions.cores()  # thread blocks never wait for cores
        prices = [found.seconds[found.plans.index(plan)] for plan in plans]
        decision = decisions.choose(plans, times, heavy, cores, tuple(stock), prices)
        decision = replace(decision, thorough=thorough)
        if first is not None and first.provisional and not thorough:
            decision = decisions.settle(first, decision, exact=not computes_floats(prepared.closed))
        decisions.store(key, decision)
    if decision.advice:
        _warn((decision.advice, mark.function), f"{mark.function}: {decision.advice}")
    return replace(decision, why=_why(decision, "measured now, on these arguments"))


def _why(decision: decisions.Decision, otherwise: str) -> str:
    return "; ".join(filter(None, (decision.why or otherwise, decision.kept, decision.advice)))


def _compiler_options(mark: Mark) -> Mapping[str, Any]:
    """The options for XLA's compiler if the wrapper's call is the whole module."""
    wrapper = STATE.arguments[0] if STATE.arguments else None
    return wrapper.compiler_options if wrapper and wrapper.function_name == mark.function else {}


def _untaken(regions: Sequence[Region], why: str) -> tuple[Left, ...]:
    """What stock XLA runs of regions that we could compile: control flow, and memory-bound subgraphs."""
    whole = (
        Left(subgraph(region.operators), why, region.source) for region in regions if region.memory_bound
    )
    return *whole, *(
        Left(equation.primitive, why, str(equation.source) if equation.source.file else "")
        for region in regions
        for equation in region.program.equations
        if equation.primitive in CONTROL_FLOW
    )


def _arguments(closed: Any, mark: Mark, platform: str) -> tuple[list[Any] | None, str]:
    """The arguments, if known, and the reason why nothing can be measured on them, or ""."""
    if mark.options.profile == "off":
        return None, 'the option profile is "off"'
    if jax.config.jax_debug_nans or jax.config.jax_debug_infs:
        return None, "a NaN or an infinity would stop the measurement"
    if not custom_call.present(platform):
        return None, f"this process has no {platform} device"
    arguments = concrete_arguments(closed, mark)
    if open_jaxpr(closed).effects:
        return arguments, "the call has side effects"
    return arguments, "" if arguments is not None else "no concrete arguments"


def _described(report: Report, prepared: Prepared, decision: decisions.Decision, mark: Mark) -> Report:
    plan, regions = decision.plan, prepared.captured.regions
    built = {n: artifact(prepared, (plan.candidate, n), mark) for n in prepared.taken(plan)}
    skipped: tuple[Left, ...] = ()
    for region in (regions[n] for n in plan.skip):
        doubtful = region.memory_bound and not decision.measured
        why = _DOUBTFUL if doubtful else "stock XLA is faster at it than a call of its own"
        skipped += _untaken([region], why)
    trials = tuple(
        replace(t, chosen=t.name == (plan.name if decision.choice == "cocktail" else decisions.STOCK))
        for t in decision.trials
    )
    if decision.choice == "cocktail":
        ours = {position for n in prepared.taken(plan) for position in regions[n].members}
        report = replace(report, recursions=recursions.with_ours(prepared.captured.flat, ours))
    return replace(
        report,
        captured=tuple(described(prepared, n, built[n], mark) for n in prepared.taken(plan)),
        left=(*report.left, *skipped),
        choice=decision.choice,
        why=decision.why,
        stock_seconds=decision.stock_seconds,
        cocktail_seconds=decision.cocktail_seconds,
        trials=trials,
        others=decision.others,
        pressure="" if prepared.machine.is_gpu or plan.candidate.units == 1 else custom_call.pressure(),
    )


# ---- failures and warnings ---------------------------------------------------------------------------------

_ALL_STOCK = 'jit(..., options={"force": "stock"}) silences this warning'
_ONE_LOOP = (
    "to compile the loop, move this out of it or into a branch that is rarely taken; to silence the warning,"
    " ignore jax_cocktail.CocktailWarning"
)


def _complain(left: tuple[Left, ...], mark: Mark) -> None:
    """Warns once about control flow that we cannot compile, or raises in strict mode."""
    function = mark.function
    left = tuple(item for item in left if item.reason != ASKED_FOR)
    if left and mark.options.strict:
        raise StrictModeError(
            "; ".join(f"{function}: {item.placed} would run on stock XLA: {item.because}" for item in left)
        )
    for item in (item for item in left if not item.reason.startswith(ALONE)):
        _warn(
            (item.reason, item.culprit or item.where),
            f"{function}: {item.placed} runs on stock XLA: {item.because}; {_ONE_LOOP}",
        )


def _failed(report: Report, closed: Any, error: Exception) -> Report:
    """Warns about an unexpected error and reports that stock XLA runs the call."""
    cause = str(error) or type(error).__name__
    expected = isinstance(error, BuildError | UnsupportedError | OSError)
    if not expected:
        cause = f"{type(error).__name__}: {cause}; this is a bug, please report it with your program"
    why = cause.splitlines()[0]
    left = _control_flow(closed, why)
    where = left[0].where if left else ""
    place = f" (control flow at {where})" if where else ""
    _warn((cause, ""), f"{report.function}: runs on stock XLA{place}: {cause}", where)
    return replace(report, captured=(), left=left, choice="stock", why=why)


def _warn(cause: tuple[str, str], text: str, where: str = "") -> None:
    """Warns once per cause, at the user's line if known (`where`, else the second part of the cause)."""
    if cause in _warned:
        return
    keep(_warned, cause, None)
    place = re.match(r"(.+):(\d+)(?: \(|$)", where or cause[1])
    if place is None:
        warnings.warn(text, CocktailWarning, stacklevel=2)
    else:
        warnings.warn_explicit(text, CocktailWarning, cells.file_of(place[1]), int(place[2]))
