"""What stock XLA makes of a captured region: its compiler is asked, where the cost model cannot know.

On a CPU, XLA compiles some loops to one kernel. The runtime steps through the iterations of all others, which
costs a dispatch for every operator. Which loops these are depends on the version of XLA.
"""

from __future__ import annotations

import jax
import jax.extend.core as jex

from jax_cocktail.cost.hlo import Module
from jax_cocktail.cost.price import Comparison, Price, one_kernel_price, stock_price
from jax_cocktail.lowering import plan_cache
from jax_cocktail.lowering.capture import Region
from jax_cocktail.lowering.decisions import Plan, cores, machine_facts, versions
from jax_cocktail.lowering.flatten import Flat
from jax_cocktail.lowering.plan_cache import Survey
from jax_cocktail.lowering.state import alone
from jax_cocktail.lowering.variants import Prepared, whole_identity
from jax_cocktail.portable import name_of
from jax_cocktail.schedule.unit_count import know_units
from jax_cocktail.utask.ir import LoopUTask, walk


def stock_module(flat: Flat, region: Region) -> Module:
    """What stock XLA makes of the region alone, for the device in use."""
    constants = set(flat.constvars)
    operands = [v for v in region.operands if v not in constants]
    jaxpr = flat.template.replace(
        constvars=list(flat.constvars),
        invars=operands,
        eqns=[flat.equations[member] for member in region.members],
        outvars=list(region.results),
    )
    function = jex.jaxpr_as_fun(jex.ClosedJaxpr(jaxpr, list(flat.consts)))
    shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in operands]
    with alone():
        text = jax.jit(function).lower(*shapes).compile().as_text()
    return Module(str(text))


def comparison(prepared: Prepared, found: Survey, plan: Plan) -> Comparison:
    """The comparison of a survey, for a plan that nobody measures.

    Stock XLA's price is that of loops whose iterations are dispatched. Where ours is better only for this
    reason, XLA compiles the regions, some ten milliseconds each, to see which of them are one kernel.
    """
    ours, stock = found.comparison.ours, found.comparison.stock
    if prepared.machine.is_gpu or found.comparison.favours_stock():
        return found.comparison
    saved = {number: _saved(prepared, number) for number in prepared.taken(plan)}
    least = Comparison(ours, Price(stock.seconds - sum(saved.values()), stock.heavy))
    if not least.favours_stock():
        return found.comparison
    seconds = sum(spared for number, spared in saved.items() if spared and _is_one_kernel(prepared, number))
    return Comparison(ours, Price(stock.seconds - seconds, stock.heavy)) if seconds else found.comparison


def _saved(prepared: Prepared, number: int) -> float:
    """Seconds that a region with loops takes less under stock XLA if it is one kernel."""
    program = know_units(prepared.programs[number], 1)
    if not any(isinstance(s, LoopUTask) for s in walk(program.entry)):
        return 0.0
    stepped = stock_price(program, cores(), prepared.machine)
    return max(stepped.seconds - one_kernel_price(program).seconds, 0.0)


def _is_one_kernel(prepared: Prepared, number: int) -> bool:
    what = whole_identity(prepared.programs[number]), *versions()
    region, flat = prepared.captured.regions[number], prepared.captured.flat

    def ask() -> bool:
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            return not stock_module(flat, region).steps

    return plan_cache.one_kernel(name_of(what, machine_facts()), ask)
