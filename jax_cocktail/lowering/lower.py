"""What happens to one marked call: capture, translate, build, decide; stock XLA if anything is in the way."""

from __future__ import annotations

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
from jax_cocktail.primitives import translate
from jax_cocktail.report import Captured, Left, Report
from jax_cocktail.schedule.price import HEAVY_CONVOLUTION_FLOPS, convolution_flops
from jax_cocktail.utask.ir import UProgram
from jax_cocktail.utask.printer import fingerprint

LEVEL = "unit (L1): one core runs the whole region"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The jaxpr to give to the stock rule, and what marked calls inside it shall do (see `state`)."""

    jaxpr: Any
    mode: str


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
_warned: set[tuple[str, str]] = set()


def lower(closed: Any, mark: Mark, obstacle: str) -> Outcome:
    """Called by the lowering rule for every marked call."""
    force = mark.options.force
    if force == "auto" and STATE.mode == "stock":
        force = "stock"
    if force == "stock" and STATE.reports is None:
        return Outcome(closed, STATE.mode)
    report = Report(mark.function)
    try:
        if obstacle:
            report, outcome = _refuse(report, closed, obstacle, mark.options), Outcome(closed, STATE.mode)
        else:
            report, outcome = _compile(report, closed, mark, force)
    except StrictModeError:
        raise
    except Exception as error:  # a fault of ours must not stop the user's program
        if mark.options.strict:
            raise
        report, outcome = _failed(report, closed, error), Outcome(closed, STATE.mode)
    if STATE.reports is not None:
        STATE.reports.append(report)
    return outcome


def forget_warnings() -> None:
    """Every cause is told again."""
    _warned.clear()


def _refuse(report: Report, closed: Any, reason: str, options: Options) -> Report:
    """The whole call goes to stock XLA."""
    left = tuple(
        Left(primitive_name(equation), reason, str(source_of(equation)))
        for equation in open_jaxpr(closed).eqns
        if holds_control_flow(equation)
    )
    if left and options.strict:
        raise StrictModeError(f"{report.function}: {reason}; {left[0].what} at {left[0].where}")
    return replace(report, left=left, choice="stock", why=reason)


def _compile(report: Report, closed: Any, mark: Mark, force: str) -> tuple[Report, Outcome]:
    stock = Outcome(closed, STATE.mode)
    if not control_flow_in(closed):
        return replace(report, choice="stock", why="nothing to compile"), stock
    key = decisions.key_of(closed) if force == "auto" else ""
    known = decisions.load(key) if key else None
    if known is not None and known.choice == "stock" and STATE.reports is None and not mark.options.strict:
        return report, Outcome(closed, "stock")
    prepared = _prepare(closed, mark.function)
    captured = prepared.captured
    report = replace(report, left=captured.left, beside=captured.beside)
    _complain(captured.left, mark.options, mark.function)
    if not captured.regions:
        return replace(report, choice="stock", why="nothing was captured"), stock
    if force == "auto" and known is None and (heavy := _convolutions(prepared)):
        decision = decisions.Decision("stock")
        decisions.store(key, decision)
        return replace(report, choice="stock", why=heavy), Outcome(closed, "stock")
    custom_call.register()
    if prepared.rewritten is None:
        prepared.artifacts = tuple(_build(prepared, mark))
        prepared.rewritten = custom_call.rewrite(captured, prepared.artifacts)
    report = replace(report, captured=tuple(map(_describe, captured.regions, prepared.artifacts)))
    if force != "auto":
        decision, why = decisions.Decision(force), f'the option force is "{force}"'
    else:
        decision, why = _decide(prepared, mark, key, known)
    report = replace(
        report,
        choice=decision.choice,
        why=why,
        stock_seconds=decision.stock_seconds,
        cocktail_seconds=decision.cocktail_seconds,
    )
    if decision.choice == "cocktail":
        return report, Outcome(prepared.rewritten, STATE.mode)
    return report, Outcome(closed, "stock" if force == "auto" else STATE.mode)


def _convolutions(prepared: Prepared) -> str:
    """Why the price alone decides for stock XLA, or ""."""
    flops = sum(map(convolution_flops, prepared.programs))
    if flops < HEAVY_CONVOLUTION_FLOPS:
        return ""
    return f"not measured: {flops / 1e9:.1f} GFLOP of convolutions are the business of XLA's library"


def _prepare(closed: Any, name: str) -> Prepared:
    known = _recent.get(id(closed))
    if known is not None and known.closed is closed:
        return known
    captured = capture(closed)
    programs = tuple(
        translate(region.program, name, tuple(range(len(region.operands)))) for region in captured.regions
    )
    fingerprints = tuple(map(fingerprint, programs))
    prepared = _recent[id(closed)] = Prepared(closed, captured, programs, fingerprints)
    while len(_recent) > _RECENT:
        _recent.popitem(last=False)
    return prepared


def _build(prepared: Prepared, mark: Mark) -> list[Artifact]:
    """All regions; the host compiler runs for several of them at once."""

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
        return [build(0)]
    with ThreadPoolExecutor(max_workers=min(len(numbers), 4)) as pool:
        return list(pool.map(build, numbers))


def _decide(
    prepared: Prepared, mark: Mark, key: str, known: decisions.Decision | None
) -> tuple[decisions.Decision, str]:
    if known is not None:
        return known, "measured before on this machine"
    if mark.options.profile == "off":
        return decisions.Decision("cocktail"), 'not measured: the option profile is "off"'
    arguments = _concrete_arguments(prepared.closed, mark)
    if STATE.mode == "model" or arguments is None:
        return decisions.Decision("cocktail"), "not measured: no concrete arguments at hand"
    with decisions.exclusive(key):
        known = decisions.load(key)
        if known is not None:
            return known, "measured before on this machine"
        # Under "stock", marked calls inside go to stock as well, for both candidates.
        with alone("stock"):
            decision = decisions.measure(prepared.closed, prepared.rewritten, arguments)
        decisions.store(key, decision)
    return decision, "measured now, on these arguments"


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
            f"{function}: {item.what} runs on stock XLA: {_at(item)}; jax_cocktail.explain shows what is"
            ' captured, and jit(..., options={"force": "stock"}) silences this',
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
    _warn((cause, ""), f"{report.function}: runs on stock XLA{place}: {cause}")
    left = tuple(Left(primitive_name(e), cause.splitlines()[0], str(source_of(e))) for e in equations)
    return replace(report, captured=(), left=left, choice="stock", why=cause.splitlines()[0])


def _warn(cause: tuple[str, str], text: str) -> None:
    if cause not in _warned:
        _warned.add(cause)
        warnings.warn(text, CocktailWarning, stacklevel=2)
