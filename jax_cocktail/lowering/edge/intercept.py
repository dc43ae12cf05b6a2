"""Replaces the lowering rule of `jit_p`, which still gets unmarked calls.

It relies on what JAX does not document: the rule itself (`adapter.lowering_rule`), the fields of the lowering
context with the devices and platforms of a module, and the names of the effects. If a new release of JAX
moves them, a test (tests/api/test_api.py) fails, stock XLA runs, and the user gets a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jax.extend.core.primitives import jit_p
from jax.interpreters import mlir

from jax_cocktail.lowering.edge.adapter import ORDERED, lowering_rule
from jax_cocktail.lowering.edge.custom_call import PLATFORMS
from jax_cocktail.lowering.edge.meshes import ALONE, Place, automatic, place_of, place_of_parts
from jax_cocktail.lowering.state import STATE, Mark, in_state, read_mark

if TYPE_CHECKING:
    from jax_cocktail.lowering.edge.shardings import Typed


@dataclass(frozen=True, slots=True)
class Outcome:
    """The jaxpr for the stock rule, and True if stock XLA runs marked calls inside it (see `state`)."""

    jaxpr: Any
    stock: bool


# A jaxpr, its mark, an obstacle or "", the platform, and where it runs.
Lower = Callable[[Any, Mark, str, str, Place], Outcome]

_stock: Any = None
_lower: Lower | None = None
# Equations with these effects may be reordered. Those with the effects `adapter.ORDERED` keep their order.
_UNORDERED = frozenset({"DebugEffect", "IOEffect", "NamedAxisEffect", "NoDCEEffect"})


def available() -> bool:
    """True if our lowering rule is installed."""
    return _stock is not None


def reaches(name: str) -> bool:
    """True if our lowering rule will see a call of a `jit` with this name."""
    return available() and read_mark(name) is not None


def install(lower: Lower) -> None:
    """Replaces the default lowering rule of `jit_p`, once. `lower` lowers the marked calls."""
    global _stock, _lower
    if _stock is not None:
        return
    _stock, _lower = lowering_rule(jit_p), lower
    if _stock is not None:
        mlir.register_lowering(jit_p, _rule, cacheable=False)


def _rule(ctx: Any, *operands: Any, name: str, jaxpr: Any, **params: Any) -> Any:
    mark, shardings = read_mark(name), _shardings(ctx, operands)
    if mark is None or _lower is None:
        with in_state(shardings=shardings):
            return _stock(ctx, *operands, name=name, jaxpr=jaxpr, **params)
    platform = ctx.module_context.platforms[0]
    outcome = _lower(jaxpr, mark, _obstacle(ctx, jaxpr), platform, _place(ctx, shardings))
    with in_state(stock=outcome.stock, shardings=shardings):
        return _stock(ctx, *operands, name=mark.function, jaxpr=outcome.jaxpr, **params)


def _obstacle(ctx: Any, jaxpr: Any) -> str:
    """The reason why we cannot compile anything in this module, or ""."""
    unknown = sorted({type(effect).__name__ for effect in jaxpr.effects} - _UNORDERED - ORDERED)
    if unknown:
        return f"the function has side effects of an unknown kind ({', '.join(unknown)})"
    module = ctx.module_context
    platforms = tuple(module.platforms)
    if len(platforms) > 1:
        return f"the module is lowered for several platforms ({', '.join(platforms)})"
    if platforms[0] not in PLATFORMS:
        return f"only the platforms {', '.join(PLATFORMS)} are supported, not {platforms[0]}"
    axes = module.axis_context
    manual = getattr(axes, "manual_axes", None)
    return "" if manual is None else automatic(axes.mesh, manual)


def _shardings(ctx: Any, operands: Sequence[Any]) -> tuple[Typed, ...]:
    """The shardings of the operands of a call that XLA divides over several devices."""
    if _devices(ctx) == 1:
        return ()
    from jax_cocktail.lowering.edge.shardings import shardings_of  # few calls are divided

    return shardings_of(operands, STATE.shardings)


def _devices(ctx: Any) -> int:
    """The number of devices over which XLA divides the module."""
    return getattr(ctx.module_context.axis_context, "num_devices", 1) or 1


def _place(ctx: Any, shardings: Sequence[Typed]) -> Place:
    """The place of what is lowered: each device of a mesh, or all devices of the module together."""
    axes = ctx.module_context.axis_context
    if getattr(axes, "manual_axes", None) is not None:
        return place_of(axes.mesh)
    devices = _devices(ctx)
    if devices == 1:
        return ALONE
    from jax_cocktail.lowering.edge.shardings import spread_of  # few calls are divided

    return place_of_parts(devices, spread_of(shardings, devices))
