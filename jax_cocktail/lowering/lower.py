"""What happens to one marked call: capture, translate, build, decide; stock XLA if anything is in the way."""

from __future__ import annotations

import re
import threading
import warnings
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from jax_cocktail.compiler import Artifact, compile_program
from jax_cocktail.config import Options
from jax_cocktail.errors import BuildError, CocktailWarning, StrictModeError, UnsupportedError
from jax_cocktail.lowering import custom_call, decisions
from jax_cocktail.lowering.adapter import (
    control_flow_in,
    holds_control_flow,
    open_jaxpr,
    primitive_name,
    source_of,
)
from jax_cocktail.lowering.capture import ASKED_FOR, Capture, capture
from jax_cocktail.lowering.dump import Dump
from jax_cocktail.lowering.state import STATE, Mark, alone
from jax_cocktail.primitives import CONTROL_FLOW, translate
from jax_cocktail.report import Captured, Left, Report
from jax_cocktail.schedule.price import Price, price
from jax_cocktail.utask.ir import UProgram
from jax_cocktail.utask.printer import fingerprint

LEVEL = "unit (L1): one core runs the whole region"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The jaxpr to give to the stock rule, and whether marked calls inside it go to stock (see `state`)."""

    jaxpr: Any
    stock: bool


@dataclass(eq=False, slots=True)
class Prepared:
    """Captured and translated; once built, also the artifacts and the rewritten jaxpr."""

    closed: Any
    captured: Capture
    programs: tuple[UProgram, ...]
    fingerprints: tuple[str, ...]
    artifacts: tuple[Artifact, ...] = ()
    rewritten: Any = None


_RECENT = 32
_recent: OrderedDict[int, Prepared] = OrderedDict()  # by id of the jaxpr, which the entry keeps alive
_recent_lock = threading.Lock()
_warned: set[tuple[str, str]] = set()
MARK_LOST = "the call does not reach jax_cocktail: this version of jax lowers it in a way we do not know"


def lower(closed: Any, mark: Mark, obstacle: str) -> Outcome:
    """Called by the lowering rule for every marked call."""
    force = mark.options.force
    if force == "auto" and STATE.stock:
        force = "stock"
    stock = Outcome(closed, STATE.stock)
    if force == "stock" and STATE.reports is None:
        return stock
    report = Report(mark.function)
    try:
        if not control_flow_in(closed):
            report, outcome = replace(report, why="there is no loop or branch in it"), stock
        elif obstacle:
            report, outcome = refuse(closed, mark, obstacle, quiet=force == "stock"), stock
        else:
            report, outcome = _compile(report, closed, mark, force)
    except StrictModeError:
        raise
    except Exception as error:  # a fault of ours must not stop the user's program
        if mark.options.strict:
            raise
        report, outcome = _failed(report, closed, error), stock
    if STATE.reports is not None:
        STATE.reports.append(report)
    return outcome


def refuse(closed: Any, mark: Mark, reason: str, quiet: bool) -> Report:
    """The whole call goes to stock XLA. Told once, or an error in strict mode, unless `quiet`."""
    left = tuple(
        Left(primitive_name(equation), reason, str(source_of(equation)))
        for equation in open_jaxpr(closed).eqns
        if holds_control_flow(equation)
    )
    if left and not quiet:
        text = f"{mark.function}: {reason}; {left[0].what} at {left[0].where}"
        if mark.options.strict:
            raise StrictModeError(f"{text} would run on stock XLA")
        _warn((reason, left[0].where), f"{text} runs on stock XLA; {_SILENCE}")
    return Report(mark.function, left=left, choice="stock", why=reason)


def _compile(report: Report, closed: Any, mark: Mark, force: str) -> tuple[Report, Outcome]:
    key = decisions.key_of(closed) if force == "auto" else ""
    known = decisions.load(key) if key else None
    if known is not None and known.choice == "stock" and STATE.reports is None and not mark.options.strict:
        return report, Outcome(closed, True)
    prepared = _prepare(closed, mark.function)
    captured = prepared.captured
    report = replace(report, left=captured.left, beside=captured.beside)
    if force != "stock":
        _complain(captured.left, mark.options, mark.function)
    if not captured.regions:
        return replace(report, choice="stock", why="nothing was captured"), Outcome(closed, STATE.stock)
    arguments: list[Any] | None = None
    if force != "auto":
        known = decisions.Decision(force, why=f'the option force is "{force}"')
    elif known is None:
        arguments, obstacle = _arguments(closed, mark)
        known = _by_price(prepared, key, obstacle)
    if force == "auto" and known is not None and known.choice == "stock" and not known.measured:
        report = replace(report, left=(*captured.left, *_untaken(captured, known.why)), why=known.why)
        return report, Outcome(closed, True)  # nothing is built to say so
    _build(prepared, mark)
    decision = known if known is not None else _measure(prepared, key, arguments or [])
    report = replace(
        report,
        captured=tuple(map(_describe, captured.regions, prepared.artifacts)),
        choice=decision.choice,
        why=decision.why or "measured before on this machine",
        stock_seconds=decision.stock_seconds,
        cocktail_seconds=decision.cocktail_seconds,
    )
    if decision.choice == "cocktail":
        return report, Outcome(prepared.rewritten, STATE.stock)
    return report, Outcome(closed, force == "auto" or STATE.stock)


def _price(prepared: Prepared) -> Price:
    cores = decisions.cores()
    return sum((price(program, cores) for program in prepared.programs), Price())


def _by_price(prepared: Prepared, key: str, obstacle: str) -> decisions.Decision | None:
    """What the model says, where that is clear or where nothing can be measured (`obstacle` says why)."""
    total = _price(prepared)
    if total.hopeless():
        decision = decisions.Decision("stock", why=f"not measured: {total}")
        decisions.store(key, decision)
        return decision
    if not obstacle:
        return None
    choice = "stock" if total.favours_stock() else "cocktail"
    return decisions.Decision(choice, why=f"not measured ({obstacle}): the model says {total}")


def _untaken(captured: Capture, why: str) -> tuple[Left, ...]:
    """The control flow of the regions, which stock XLA runs after all."""
    return tuple(
        Left(equation.primitive, why, str(equation.source) if equation.source.file else "")
        for region in captured.regions
        for equation in region.program.equations
        if equation.primitive in CONTROL_FLOW
    )


def _prepare(closed: Any, name: str) -> Prepared:
    with _recent_lock:
        known = _recent.get(id(closed))
    if known is not None and known.closed is closed:
        return known
    captured = capture(closed)
    programs = tuple(
        translate(region.program, name, tuple(range(len(region.operands)))) for region in captured.regions
    )
    prepared = Prepared(closed, captured, programs, tuple(map(fingerprint, programs)))
    with _recent_lock:
        _recent[id(closed)] = prepared
        while len(_recent) > _RECENT:
            _recent.popitem(last=False)
    return prepared


def _build(prepared: Prepared, mark: Mark) -> None:
    """All regions, unless that is done; the host compiler runs for several of them at once."""
    custom_call.register()
    if prepared.rewritten is not None:
        return

    def build(number: int) -> Artifact:
        program = prepared.programs[number]
        limit = mark.options.cache_limit_bytes
        if not mark.options.dump_to:
            return compile_program(program, cache_limit_bytes=limit)
        dump = Dump(mark.options.dump_to, mark.function, number, prepared.fingerprints[number])
        dump.write("jaxpr.txt", str(prepared.closed))
        dump.program("translate", program)
        artifact = compile_program(program, (dump.observe,), cache_limit_bytes=limit)
        dump.finish(artifact)
        return artifact

    numbers = range(len(prepared.programs))
    if len(numbers) == 1:
        artifacts: tuple[Artifact, ...] = (build(0),)
    else:
        with ThreadPoolExecutor(max_workers=min(len(numbers), 4)) as pool:
            artifacts = tuple(pool.map(build, numbers))
    # Artifacts first: another thread that sees the rewritten jaxpr reads them.
    prepared.artifacts = artifacts
    prepared.rewritten = custom_call.rewrite(prepared.captured, artifacts)


def _measure(prepared: Prepared, key: str, arguments: list[Any]) -> decisions.Decision:
    with decisions.exclusive(key):
        known = decisions.load(key)
        if known is not None:
            return known
        heavy = _price(prepared).favours_stock()
        margin = decisions.WIDE_MARGIN if heavy else decisions.MARGIN
        with alone():
            decision = decisions.measure(prepared.closed, prepared.rewritten, arguments, margin)
        decisions.store(key, decision)
    return replace(decision, why="measured now, on these arguments")


def _arguments(closed: Any, mark: Mark) -> tuple[list[Any] | None, str]:
    """What to measure on, or why nothing can be measured."""
    if mark.options.profile == "off":
        return None, 'the option profile is "off"'
    if open_jaxpr(closed).effects:
        return None, "running it has side effects"
    if jax.config.jax_debug_nans or jax.config.jax_debug_infs:
        return None, "a NaN or an infinity would stop the measurement"
    arguments = _concrete_arguments(closed, mark)
    return arguments, "" if arguments is not None else "no concrete arguments"


def _concrete_arguments(closed: Any, mark: Mark) -> list[Any] | None:
    """The arguments of the wrapper's call, if they are values and this is the call's own jaxpr."""
    if STATE.arguments is None:
        return None
    wrapper, positional, keyword = STATE.arguments
    leaves = wrapper.dynamic_leaves(positional, keyword)
    if leaves is None or wrapper.function_name != mark.function:
        return None
    leaves = _used(leaves, closed, wrapper)
    avals = closed.in_avals
    if len(leaves) != len(avals) or not all(map(_is_value, leaves)):
        return None
    for leaf, aval in zip(leaves, avals, strict=True):
        found = jax.typeof(leaf)
        same_kind = getattr(found, "weak_type", False) == getattr(aval, "weak_type", False)
        if found.shape != aval.shape or found.dtype != aval.dtype or not same_kind:
            return None
    return list(leaves)


def _used(leaves: list[Any], closed: Any, wrapper: Any) -> list[Any]:
    """Without the arguments that JAX dropped as unused; it keeps the variables of the rest."""
    kept = set(open_jaxpr(closed).invars)
    invars = next((wrapper.inputs_with(var) for var in kept), ())
    if len(leaves) != len(invars):
        return leaves
    return [leaf for leaf, var in zip(leaves, invars, strict=True) if var in kept]


def _is_value(leaf: Any) -> bool:
    kinds = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)
    return isinstance(leaf, kinds) and not isinstance(leaf, jax.core.Tracer)


def _describe(region: Any, artifact: Artifact) -> Captured:
    return Captured(
        control_flow=region.control_flow,
        operators=region.operators,
        level=LEVEL,
        workspace_bytes=artifact.workspace_bytes,
        fingerprint=artifact.fingerprint,
        path=artifact.path,
        seconds=artifact.seconds,
        cached=artifact.cached,
    )


# ---- what goes wrong ---------------------------------------------------------------------------------------

_SILENCE = (
    'jax_cocktail.explain shows what is captured, and jit(..., options={"force": "stock"}) silences this'
)


def _complain(left: tuple[Left, ...], options: Options, function: str) -> None:
    """Control flow that we do not understand: told once, or an error in strict mode."""
    left = tuple(item for item in left if item.reason != ASKED_FOR)
    if left and options.strict:
        raise StrictModeError(
            "; ".join(f"{function}: {item.what} would run on stock XLA: {_at(item)}" for item in left)
        )
    for item in left:
        _warn(
            (item.reason, item.where),
            f"{function}: {item.what} runs on stock XLA: {_at(item)}; {_SILENCE}",
        )


def _at(item: Left) -> str:
    return item.reason + (f" at {item.where}" if item.where else "")


def _failed(report: Report, closed: Any, error: Exception) -> Report:
    """Stock runs because something broke."""
    cause = str(error) or type(error).__name__
    expected = isinstance(error, BuildError | UnsupportedError | OSError)
    if not expected:
        cause = f"{type(error).__name__}: {cause}; please report this with the program that causes it"
    equations = [e for e in open_jaxpr(closed).eqns if holds_control_flow(e)]
    where = str(source_of(equations[0])) if equations else ""
    place = f" (control flow at {where})" if where else ""
    _warn((cause, ""), f"{report.function}: runs on stock XLA{place}: {cause}", where)
    left = tuple(Left(primitive_name(e), cause.splitlines()[0], str(source_of(e))) for e in equations)
    return replace(report, captured=(), left=left, choice="stock", why=cause.splitlines()[0])


def _warn(cause: tuple[str, str], text: str, where: str = "") -> None:
    """Once per cause, and at the user's line if it is known (`where`, else the second part of the cause)."""
    if cause in _warned:
        return
    _warned.add(cause)
    place = re.match(r"(.+):(\d+)(?: \(|$)", where or cause[1])
    if place is None:
        warnings.warn(text, CocktailWarning, stacklevel=2)
    else:
        warnings.warn_explicit(text, CocktailWarning, place[1], int(place[2]))
