"""Chooses what runs a marked call: our program, or stock XLA.

The option ``force`` says it, or it is stored, or `decide` finds it out.
"""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from jax_cocktail import warning
from jax_cocktail.config import BACKGROUND, FRESH, MEMORY_BOUND
from jax_cocktail.lowering.choice import decisions, leaving, plan_cache
from jax_cocktail.lowering.choice.decisions import Decision
from jax_cocktail.lowering.choice.request import Request, insisted, known_survey
from jax_cocktail.lowering.choice.variants import program_keys, rewritten
from jax_cocktail.lowering.edge import notices
from jax_cocktail.lowering.edge import recursion_strategies as recursions
from jax_cocktail.lowering.edge.arguments import concrete_arguments
from jax_cocktail.lowering.edge.capture import untaken
from jax_cocktail.lowering.edge.intercept import Outcome
from jax_cocktail.lowering.run import background
from jax_cocktail.lowering.run.first_call import Divided, is_large
from jax_cocktail.lowering.run.tickets import Transformed
from jax_cocktail.lowering.state import STATE
from jax_cocktail.report import Report

LONG_SECONDS = 2.0  # a longer wait is told
_LOG = logging.getLogger("jax_cocktail")
_ANEW = (
    "it was jitted anew: XLA compiles it in {0.our_compile_seconds:.1f} s instead of"
    " {0.stock_compile_seconds:.1f} s, more than the calls lose"
)


@dataclass(frozen=True, slots=True)
class Choice(Outcome):
    """The jaxpr that runs a marked call, and the report on it."""

    report: Report


def choose(request: Request) -> Choice:
    """Our program for a call, or the call as it came, for stock XLA."""
    start = time.perf_counter()
    choice = _chosen(request)
    _tell_wait(request, time.perf_counter() - start)
    return choice


def _chosen(request: Request) -> Choice:
    if request.needs_measured_card:
        background.start(request.mark, runs_ours=False)
        return _stock(request)
    if not request.pays_anew and (request.is_settled or _waits(request)):
        return _stock(request)
    captured = request.prepared.captured
    if request.force != "stock":
        notices.complain(captured.left, request.mark)
    report = _report(request)
    if not captured.regions:
        report = replace(report, choice="stock", why="nothing was captured")
        return Choice(request.closed, STATE.stock, report)
    with _left_to_others(request):
        decision = decided(request)
        _dump(request, decision)
        if request.force == "auto" and decision.choice == "stock" and not decision.measured:
            left = (*report.left, *untaken(captured.regions, decision.why))
            return _stock(request, replace(report, left=left, why=decision.why))  # it builds nothing
        return _built(request, decision, report)


def _tell_wait(request: Request, seconds: float) -> None:
    """Tells a caller who did not expect it that he has waited."""
    asked = STATE.beside or STATE.reports is not None or STATE.recordings is not None
    if seconds >= LONG_SECONDS and request.mark.options.compile == BACKGROUND and not asked:
        file, line = warning.line() or ("an unknown file", 0)
        _LOG.warning(
            "jax_cocktail: %s:%d: %s waited %.1f s for its compilation, as calls inside of another compiled"
            " function do, once; a jax_cocktail.jit of the outer function waits for nothing",
            *(file, line, request.mark.function, seconds),
        )


def _left_to_others(request: Request) -> AbstractContextManager[None]:
    """Another process does what is done in the block if this one ends and nobody waits."""
    if not STATE.beside:
        return nullcontext()
    from jax_cocktail.lowering.choice import unfinished  # and what plans and measures

    return unfinished.remembered(request)


def _stock(request: Request, report: Report | None = None) -> Choice:
    """The call as it came. Stock XLA runs the marked calls inside as well."""
    return Choice(request.closed, True, report or Report(request.mark.function))


def _report(request: Request) -> Report:
    """The report with what stock XLA runs in any case."""
    captured, mark = request.prepared.captured, request.mark
    name, asked = mark.function, mark.options.scope == MEMORY_BOUND
    left = (*captured.left, *(captured.declined if asked else ()))
    return Report(name, left=left, beside=captured.beside, recursions=recursions.on_stock(request.closed))


def _waits(request: Request) -> bool:
    """True if stock XLA runs a call that the background was offered, because our program is not ready. In
    strict mode, errors must not come later, so the call is captured at once."""
    mark = request.mark
    if request.mapped is not None or request.place.processes > 1:  # what is around it waits, or nobody does
        return False
    if not (request.key and (request.offered or background.transforms(mark))):
        return False
    most_seconds = inf if background.is_settled(mark) else plan_cache.MOST_SECONDS
    ready = mark.options.plans != FRESH and plan_cache.at_hand(request.stored_call_key, most_seconds)
    if not ready and mark.options.strict:
        notices.complain(request.prepared.captured.left, mark)
    if not request.offered and not ready:
        raise Transformed
    if mark.ticket and not ready:
        _build_beside(request)
    if not mark.ticket and request.offered and (request.is_stale or not ready) and not STATE.divided:
        background.start(mark, request.is_stale, runs_ours=ready)
        if not ready and is_large(request.closed):
            raise Divided
    return not ready


def _build_beside(request: Request) -> None:
    """Lets the background build what was lowered for a ticket."""
    plain = Request(request.closed, replace(request.mark, ticket=0), request.platform)
    background.build(request.mark, request.key, partial(choose, plain))


def decided(request: Request) -> Decision:
    """The decision for a call that has something for us to compile."""
    return _decide(request) if request.force == "auto" else _forced(request)


def _decide(request: Request) -> Decision:
    """The stored decision, else one that is made now. What the background was offered, it measures."""
    known = request.known
    if known is not None and request.pays_anew:
        background.tell(request.mark, f"our program runs it, since {_ANEW.format(known)}")
        return replace(known, choice="cocktail", why=_ANEW.format(known))
    if known is not None and not (request.is_stale and not request.offered):
        return replace(known, why=decisions.known_why(known))
    from jax_cocktail.lowering.choice import decide

    if not request.offered:
        return decide.decide(request)
    decision, may_change = decide.assume(request)  # an earlier process has built the program
    if may_change and request.mark.ticket:
        _build_beside(request)
    elif may_change:
        background.start(request.mark, runs_ours=decision.choice == "cocktail")
    return decision


def _forced(request: Request) -> Decision:
    """The decision of the option `force`, for the best plan that is known."""
    force, known, prepared = request.force, request.known, request.prepared
    if known is None:
        found = known_survey(prepared, request.units, request.mark)
        plan = insisted(prepared, request.units, request.mark, found).best
    else:
        plan = known.plan
    decision = replace(known or Decision(force), choice=force, plan=prepared.forced(plan))
    return replace(decision, why=f'the option force is "{force}"')


def _built(request: Request, decision: Decision, report: Report) -> Choice:
    """Builds the plan of a decision, also one for stock XLA: it was timed, or is to be reported."""
    program = rewritten(request.prepared, decision.plan, request.mark)
    if STATE.reports is not None:
        from jax_cocktail.lowering.choice.describe import described

        report = described(report, request.prepared, decision, request.mark)
    if decision.choice != "cocktail":
        return Choice(request.closed, request.force == "auto" or STATE.stock, report)
    STATE.ours += 1
    if STATE.recordings == [] and request.mapped is None:
        _record(request, decision.plan)
    elif request.mark.options.plans != FRESH and not request.mark.options.reproducible:
        stored = decisions.load(request.key)
        known = stored if stored is not None and stored.plan == decision.plan else None
        if known is None or known.choice == decision.choice or request.force != "auto":
            programs = program_keys(request.prepared, decision.plan)
            plan_cache.add_call(request.call_key(known), programs, request.seconds)
    if request.force == "auto" and not request.mark.options.reproducible:
        leaving.watch(request.key, decision, request.prepared.leaving(decision.plan))
    return Choice(program.jaxpr, STATE.stock, report)


def _record(request: Request, plan: decisions.Plan) -> None:
    """Traces the call, if its arguments are known: it is not one inside the call that `trace` makes."""
    arguments = concrete_arguments(request.closed, request.mark)
    if arguments is not None and STATE.recordings is not None:
        from jax_cocktail.lowering.choice.tracing import record

        STATE.recordings.append(record(request.prepared, plan, request.mark, arguments))


def _dump(request: Request, decision: Decision) -> None:
    if folder := request.mark.options.dump_to:
        from jax_cocktail.dump import dump_decision

        dump_decision(folder, request.mark.function, request.key, decision.text)
