"""The cost of a captured region under stock XLA: its compiler is asked, where the model cannot know.

On a CPU, XLA compiles some loops to one kernel. The runtime steps through the iterations of all others, which
costs a dispatch for every operator. Which loops these are depends on the version of XLA.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import jax
import jax.extend.core as jex

from jax_cocktail.config import CACHED, CHECKED, FRESH
from jax_cocktail.cost.hlo import Module
from jax_cocktail.cost.vector import Comparison, Price
from jax_cocktail.device.host import SERVER
from jax_cocktail.lowering.choice import plan_cache
from jax_cocktail.lowering.choice.checked import check_kernels
from jax_cocktail.lowering.choice.decisions import Plan, machine_facts, versions
from jax_cocktail.lowering.choice.plan_cache import StockKernels, Survey
from jax_cocktail.lowering.choice.variants import Prepared, whole_identity
from jax_cocktail.lowering.edge.capture import Region
from jax_cocktail.lowering.edge.flatten import Flat
from jax_cocktail.lowering.state import Mark, alone
from jax_cocktail.portable import name_of

_WIDE = frozenset({"float64", "int64", "uint64", "complex128"})


def stock_module(flat: Flat, region: Region, options: Mapping[str, Any] | None = None) -> Module:
    """The module of the region alone under stock XLA, for the device in use. `options`: of XLA's compiler."""
    given = set(region.operands)
    inside = [pair for pair in zip(flat.constvars, flat.consts, strict=True) if pair[0] not in given]
    jaxpr = flat.template.replace(
        constvars=[var for var, _ in inside],
        invars=list(region.operands),
        eqns=[flat.equations[member] for member in region.members],
        outvars=list(region.results),
    )
    function = jex.jaxpr_as_fun(jex.ClosedJaxpr(jaxpr, [value for _, value in inside]))
    wide = jax.config.jax_enable_x64 or any(str(v.aval.dtype) in _WIDE for v in region.operands)
    with alone(), jax.enable_x64(wide):  # the types belong to the program, whatever the setting is now
        shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in region.operands]
        lowered = jax.jit(function).lower(*shapes)
        text = lowered.compile(compiler_options=dict(options) if options else None).as_text()
    return Module(str(text))


def comparison(
    prepared: Prepared, found: Survey, plan: Plan, mark: Mark, options: Mapping[str, Any]
) -> Comparison:
    """The comparison of a survey, for a plan that nobody measures.

    Stock XLA's price is that of loops whose iterations are dispatched. Where ours is better only for this
    reason, XLA compiles the regions with its `options`, to see whether it makes kernels of their loops.
    """
    numbers = _doubtful(prepared, found, plan)
    ours, stock, saved = found.comparison.ours, found.comparison.stock, 0.0
    for number in numbers:
        kernels = _kernels(prepared, number, mark, options)
        if kernels is not None and not kernels.steps:
            saved += max(found.dispatched[number] - kernels.number * SERVER.stock.dispatch, 0.0)
    return Comparison(ours, Price(stock.seconds - saved, stock.heavy)) if saved else found.comparison


def has_to_ask(
    prepared: Prepared, found: Survey, plan: Plan, mark: Mark, options: Mapping[str, Any]
) -> bool:
    """True if `comparison` lets XLA compile something."""
    numbers = _doubtful(prepared, found, plan)
    if mark.options.plans != CACHED:
        return bool(numbers)
    keys = (_key(prepared, number, options) for number in numbers)
    return not all(map(plan_cache.knows_stock_kernels, keys))


def _doubtful(prepared: Prepared, found: Survey, plan: Plan) -> tuple[int, ...]:
    """The regions of a plan of which XLA is asked; none if the comparison does not depend on the answer."""
    ours, stock = found.comparison.ours, found.comparison.stock
    most = {number: found.dispatched[number] for number in prepared.taken(plan)}
    least = Comparison(ours, Price(stock.seconds - sum(most.values()), stock.heavy))
    if found.comparison.favours_stock() or not least.favours_stock():
        return ()
    return tuple(number for number, seconds in most.items() if seconds)


def _key(prepared: Prepared, number: int, options: Mapping[str, Any]) -> str:
    """The key of the kernels of a region in the plan cache."""
    flags = os.environ.get("XLA_FLAGS", ""), *(f"{name}={value}" for name, value in sorted(options.items()))
    what = whole_identity(prepared.programs[number]), *versions(), *flags
    return name_of(what, machine_facts())


def _kernels(prepared: Prepared, number: int, mark: Mark, options: Mapping[str, Any]) -> StockKernels | None:
    """The kernels of a region in stock XLA, cached or asked; None if unknown."""
    region, flat = prepared.captured.regions[number], prepared.captured.flat

    def ask() -> StockKernels | None:
        try:
            with jax.default_device(jax.local_devices(backend="cpu")[0]):
                module = stock_module(flat, region, options)
        except Exception:  # the region may make no sense alone: its values vary over the axes of a mesh, say
            return None
        return StockKernels(module.cost.kernels, module.steps)

    if mark.options.plans == FRESH:
        return ask()
    known = plan_cache.stock_kernels(_key(prepared, number, options), ask)
    if mark.options.plans == CHECKED:
        check_kernels(known, ask(), mark)
    return known
