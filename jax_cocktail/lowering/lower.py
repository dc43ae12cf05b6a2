"""Lowers one marked call. Stock XLA runs the call if any step fails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jax_cocktail.errors import EXPECTED, ChoiceError, StalePlanError, StrictModeError
from jax_cocktail.lowering.choice.choose import Choice, choose
from jax_cocktail.lowering.choice.request import Request
from jax_cocktail.lowering.edge import gpu_call, notices
from jax_cocktail.lowering.edge.intercept import Outcome
from jax_cocktail.lowering.edge.meshes import ALONE, Place, agreed, parts_in
from jax_cocktail.lowering.run import background
from jax_cocktail.lowering.state import STATE, Mark, call, calling, go_on, in_callback, in_state
from jax_cocktail.primitives.jaxprs import equations_in, has_symbolic_sizes, names_axes
from jax_cocktail.report import Report
from jax_cocktail.warning import warn


def lower(closed: Any, mark: Mark, obstacle: str, platform: str = "cpu", place: Place = ALONE) -> Outcome:
    """Lowers a marked call; called by the lowering rule.

    Args:
      closed: the jaxpr of the call.
      mark: its function name and options.
      obstacle: a reason why nothing in the module can be compiled, or "".
      platform: jax's name, one of `custom_call.PLATFORMS`.
      place: where it runs.

    Raises:
      StrictModeError: the option ``strict`` is set and control flow would run on stock XLA.
      ChoiceError: the options name what is no choice of the function.
      StalePlanError: the option ``plans`` is "checked" and the plan cache has something else than planning.
    """
    mark = agreed(mark, place)
    if call() is not None and not STATE.beside and in_callback():
        with calling(None), in_state(devices=place.devices):
            return _lowered(Request(closed, mark, platform, place), obstacle)
    with in_state(devices=place.devices):
        return _lowered(Request(closed, mark, platform, place), obstacle)


def _lowered(request: Request, obstacle: str) -> Outcome:
    closed, mark, platform = request.closed, request.mark, request.platform
    try:
        background.note(mark)
        if request.force == "stock" and STATE.reports is None:
            return Outcome(closed, STATE.stock)
        if not obstacle:
            request = _with_less_communication(request)
        choice = None if obstacle or has_symbolic_sizes(request.closed) else _in_parts(request)
        if choice is None:
            refusal = _refusal(request, obstacle or request.place.obstacle)
            choice = _whole(request) if refusal is None else Choice(closed, STATE.stock, refusal)
        if choice.jaxpr is request.closed and request.force != "auto":  # else what was timed runs
            choice = replace(choice, jaxpr=closed)
    except (ChoiceError, StalePlanError, StrictModeError):
        raise
    except Exception as error:  # a bug of ours must not stop the user's program
        go_on()  # what fails because the process ends is no matter
        if mark.options.strict:
            raise
        choice = Choice(closed, STATE.stock, _failed(request, error))
    if STATE.reports is not None:
        from jax_cocktail.lowering.choice.describe import finished

        STATE.reports.append(finished(choice.report, platform, mark.options.gpu_arch))
    return choice


def _whole(request: Request) -> Choice:
    """The choice for a call without parts."""
    if not has_symbolic_sizes(request.closed):
        return choose(request)
    from jax_cocktail.lowering.choice.symbolic import choose_symbolic  # few calls are exported for any size

    return choose_symbolic(request)


def _with_less_communication(request: Request) -> Request:
    """The request for the same call, without communication that its loops need not repeat."""
    if not any(map(names_axes, equations_in(request.closed))):
        return request
    from jax_cocktail.lowering.edge.hoists import moved_out  # few calls communicate

    return replace(request, closed=moved_out(request.closed))


def _in_parts(request: Request) -> Choice | None:
    """The choice for a call with parts, such as the body of a `shard_map`, that have something for us to
    compile; None for another call."""
    if not any(True for _ in parts_in(request.closed)):
        return None
    from jax_cocktail.lowering.choice.maps import choose_parts  # few calls are divided

    return choose_parts(request)


def _refusal(request: Request, obstacle: str) -> Report | None:
    """The report on a call that has nothing for us to compile, or that cannot be compiled; else None."""
    closed, mark, force = request.closed, request.mark, request.force
    if force == "auto" and STATE.stock:
        return Report(mark.function, why="stock XLA runs the code around it")
    if not request.has_work(closed):
        return Report(mark.function, why="it contains no loop or branch")
    if reason := obstacle or (gpu_call.doubt(request.platform) if force == "auto" else ""):
        return notices.refuse(closed, mark, reason, quiet=force == "stock")
    return None


def _failed(request: Request, error: Exception) -> Report:
    """Warns about an unexpected error and reports that stock XLA runs the call."""
    name, cause = request.mark.function, str(error) or type(error).__name__
    if not isinstance(error, EXPECTED):
        cause = f"{type(error).__name__}: {cause}; this is a bug, please report it with your program"
    why = cause.splitlines()[0]
    if STATE.beside:
        STATE.failure = why
    left = notices.control_flow(request.closed, why)
    where = left[0].where if left else ""
    place = f" (control flow at {where})" if where else ""
    warn((cause, ""), f"{name}: runs on stock XLA{place}: {cause}", where)
    return Report(name, left=left, choice="stock", why=why)
