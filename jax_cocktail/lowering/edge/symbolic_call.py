"""Custom calls for symbolic sizes: of the programs for several ranges of sizes, a call takes one that suits.

What a size is in a call, XLA knows when it compiles the module for it. The choice is a branch on constants
then, of which one side is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from jax_cocktail.build.executable import Executable
from jax_cocktail.errors import UnsupportedError
from jax_cocktail.lowering.edge.adapter import at_source_of
from jax_cocktail.lowering.edge.capture import Capture, Region
from jax_cocktail.lowering.edge.custom_call import call_of, on_cpu
from jax_cocktail.lowering.edge.flatten import Flat
from jax_cocktail.lowering.edge.rerun import Side, branch
from jax_cocktail.primitives.jaxprs import open_jaxpr
from jax_cocktail.utask.forms import Place
from jax_cocktail.utask.sizes import Decision, Parameter


@dataclass(frozen=True, slots=True)
class AnySize:
    """A program for a range of sizes: it suits a call if all `guards` come out as they did. `places`: for
    each parameter of these, an operand's axis that is as long; `loops`: a line for each loop in which a call
    can be stopped."""

    executable: Executable
    guards: tuple[Decision, ...]
    places: Mapping[Parameter, Place]
    loops: tuple[str, ...]


def rewrite_any_size(
    flat: Flat,
    captured: Capture,
    programs: Mapping[int, Sequence[AnySize]],
    name: str,
) -> Any:
    """The symbolic jaxpr with custom calls.

    Args:
      flat: the symbolic jaxpr.
      captured: a sample of it, with its regions.
      programs: by region number.
      name: the function's, for error messages.
    """
    names = _names(captured.flat, flat)
    equations: list[Any] = []
    for step in captured.order:
        members = [step] if isinstance(step, int) else captured.regions[step[0]].members
        stock = [flat.equations[member] for member in members]
        if isinstance(step, int) or not programs.get(step[0]):
            equations += stock
            continue
        found = captured.regions[step[0]]
        operands, results = (tuple(names[v] for v in of) for of in (found.operands, found.results))
        region = replace(found, operands=operands, results=results)
        calls = _calls(region, programs[step[0]], stock, name)
        equations += [at_source_of(each, stock[0]) for each in calls]
    return flat.close(equations)


def _names(sample: Flat, symbolic: Flat) -> dict[Any, Any]:
    """The variables of a symbolic jaxpr by those of its sample."""
    given, own = ((*f.template.invars, *f.constvars) for f in (sample, symbolic))
    names = dict(zip(given, own, strict=True))
    for mine, other in zip(sample.equations, symbolic.equations, strict=True):
        names.update(zip(mine.outvars, other.outvars, strict=True))
    if any(_kind(mine) != _kind(other) for mine, other in names.items()):
        raise UnsupportedError("other values are made for numbers than for symbolic sizes")
    return names


def _kind(var: Any) -> tuple[Any, int]:
    return getattr(var.aval, "dtype", None), len(getattr(var.aval, "shape", ()))


def _calls(region: Region, programs: Sequence[AnySize], stock: Sequence[Any], name: str) -> list[Any]:
    """The equations that define the results of a region: by the first program that suits, else as stock."""
    new = jex.gensym()
    sides = [Side(tuple(stock), region.results)]
    for each in programs:
        own = replace(region, results=tuple(new(v.aval) for v in region.results))
        call, _, _ = call_of(own, each.executable, on_cpu(each.executable, own, "", each.loops), stock, name)
        sides.append(Side(tuple(call), own.results))
    places = tuple(dict.fromkeys(place for each in programs for place in each.places.values()))
    # XLA's own type of sizes, which depends on the setting that is in force
    sizes = [region.operands[k].aval.shape[d] for k, d in places]
    opened = open_jaxpr(jax.make_jaxpr(lambda: [jnp.asarray(size) for size in sizes])())
    with jax.enable_x64(True):
        choice = branch(_choice(programs, places), opened.outvars, sides, region.results)
    return [*opened.eqns, *choice]


def _choice(programs: Sequence[AnySize], places: Sequence[Place]) -> Callable[..., Any]:
    """The number of the side that suits: 0 if no program does."""

    def choice(*lengths: Any) -> Any:
        known = dict(zip(places, (jnp.asarray(n, jnp.int64) for n in lengths), strict=True))
        index = jnp.int32(0)
        for number, each in reversed([*enumerate(programs, 1)]):
            given = {parameter: known[place] for parameter, place in each.places.items()}
            tests = [guard.tested(given) for guard in each.guards]
            suits = jnp.all(jnp.asarray(tests)) if tests else jnp.bool_(True)
            index = jnp.where(suits, jnp.int32(number), index)
        return index

    return choice
