"""Tells why stock XLA runs something, in warnings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jax_cocktail.errors import StrictModeError
from jax_cocktail.lowering.edge.adapter import (
    Calls,
    hides_control_flow,
    is_control_flow,
    primitive_name,
    source_of,
)
from jax_cocktail.lowering.edge.capture import ASKED_FOR, COMMUNICATES, TOGETHER
from jax_cocktail.lowering.state import Mark, read_mark
from jax_cocktail.primitives.jaxprs import nested_jaxprs, open_jaxpr
from jax_cocktail.primitives.side_exit import ALONE
from jax_cocktail.report import Left, Report
from jax_cocktail.warning import warn

_EXPECTED = (ALONE, COMMUNICATES, TOGETHER)  # reasons that cause no warning
MARK_LOST = "the call does not reach jax_cocktail: it does not support how this version of jax lowers calls"
_ALL_STOCK = 'jit(..., options={"force": "stock"}) silences this warning'
_ONE_LOOP = (
    "to compile the loop, move this out of it or into a branch that is rarely taken; to silence the warning,"
    " ignore jax_cocktail.CocktailWarning"
)


def refuse(closed: Any, mark: Mark, reason: str, quiet: bool) -> Report:
    """Leaves the whole call to stock XLA. Unless `quiet`, it warns once, or raises in strict mode."""
    left = control_flow(closed, reason)
    if left and not quiet:
        text = f"{mark.function}: {reason}; {left[0].placed}"
        if mark.options.strict:
            raise StrictModeError(f"{text} would run on stock XLA")
        warn((reason, left[0].where), f"{text} runs on stock XLA; {_ALL_STOCK}")
    return Report(mark.function, left=left, choice="stock", why=reason)


def control_flow(closed: Any, reason: str) -> tuple[Left, ...]:
    """All control flow of a jaxpr but that in marked calls, left to stock XLA for one reason."""
    found, calls = [], Calls()
    for equation in open_jaxpr(closed).eqns:
        if inside := list(_control_flow(equation, calls)):
            places = (str(source_of(each)) for each in (equation, *inside))
            found.append(Left(primitive_name(equation), reason, next(filter(None, places), "")))
    return tuple(found)


def _control_flow(equation: Any, calls: Calls) -> Iterator[Any]:
    """The control flow in an equation, itself included, but not that in marked calls."""
    if is_control_flow(equation) or hides_control_flow(equation, calls):
        yield equation
    elif read_mark(equation.params.get("name")) is None:
        for jaxpr in nested_jaxprs(equation):
            for inner in open_jaxpr(jaxpr).eqns:
                yield from _control_flow(inner, calls)


def complain(left: tuple[Left, ...], mark: Mark, advice: str = _ONE_LOOP) -> None:
    """Warns once about control flow that we cannot compile, or raises in strict mode."""
    function = mark.function
    left = tuple(item for item in left if item.reason != ASKED_FOR)
    if left and mark.options.strict:
        raise StrictModeError(
            "; ".join(f"{function}: {item.placed} would run on stock XLA: {item.because}" for item in left)
        )
    for item in (item for item in left if not item.reason.startswith(_EXPECTED)):
        warn(
            (item.reason, item.culprit or item.where),
            f"{function}: {item.placed} runs on stock XLA: {item.because}; {advice}",
        )
