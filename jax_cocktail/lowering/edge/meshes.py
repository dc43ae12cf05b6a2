"""The parts of a function that `jax.shard_map` divides over the devices of a mesh.

The body of such an equation is a program for one device, with the shapes of its shard. It is exchanged in
place: nothing is traced again, so the types of values, which say over which axes they vary, do not change.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import jax
import jax.extend.core as jex

from jax_cocktail.lowering.edge.adapter import forced_to_stock, primitive_name
from jax_cocktail.lowering.state import Mark, read_mark
from jax_cocktail.primitives.jaxprs import (
    communicates,
    constants,
    is_jaxpr,
    nested_jaxprs,
    open_jaxpr,
)

if TYPE_CHECKING:
    from jax_cocktail.lowering.edge.shardings import Spread

SHARD_MAP = "shard_map"
LOOPS = frozenset({"scan", "while"})
EACH = "each device runs the body of jax.shard_map"  # the reason of a report on more than one part


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a program.

    Attributes:
      devices: those of this process that run it, each for itself at the same time.
      processes: the number of processes that run it.
      divided: the number of devices over which XLA divides it.
      spread: how, as far as we know it.
    """

    devices: int = 1
    processes: int = 1
    divided: int = 1
    spread: Spread | None = None

    @property
    def obstacle(self) -> str:
        """The reason why we cannot compile the program, or ""."""
        if self.divided == 1 or self.spread is not None:
            return ""
        return (
            f"the module runs on {self.divided} devices, and does not say how they divide the operands; use"
            " jax_cocktail.jit for the outermost function, or jax.shard_map"
        )


def place_of(mesh: Any) -> Place:
    """The place of a program that each device of a mesh runs."""
    if isinstance(mesh, jax.sharding.AbstractMesh):  # it has no devices
        processes = min(jax.process_count(), mesh.size)
        return Place(max(mesh.size // processes, 1), processes)
    here = jax.process_index()
    owners = [each.process_index for each in mesh.devices.flat]
    return Place(max(owners.count(here), 1), len(set(owners)))


ALONE = Place()


def place_of_parts(devices: int, spread: Spread | None) -> Place:
    """The place of a program that XLA divides over so many devices."""
    if spread is None:
        return Place(divided=devices)
    processes = min(jax.process_count(), devices)
    return Place(max(devices // processes, 1), processes, devices, spread)


def agreed(mark: Mark, place: Place) -> Mark:
    """The mark of a call in a place. Processes that run it together must choose alike, or wait for each other
    without end: what one of them has measured or stored does not count."""
    if place.processes == 1 or mark.options.reproducible or mark.options.force == "stock":
        return mark
    return replace(mark, options=replace(mark.options, reproducible=True))


def automatic(mesh: Any, manual: Any) -> str:
    """The reason why a program cannot be one of each device, or ""."""
    if mesh.size > 1 and frozenset(manual) != frozenset(mesh.axis_names):
        return "this shard_map leaves some axes of the mesh automatic; make all of them manual"
    return ""


def obstacle_of(equation: Any) -> str:
    """The reason why we cannot compile the body of a `shard_map`, or ""."""
    mesh, manual = equation.params["mesh"], frozenset(equation.params["newly_manual_axes"])
    return automatic(mesh, manual | frozenset(getattr(mesh, "manual_axes", ())))


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """A jaxpr in a call that is compiled for itself: the body of a `shard_map`, or of a loop that stays with
    XLA because it communicates. `obstacle`: the reason why it cannot be compiled, or ""; `mapped`: it is the
    body of a `shard_map`."""

    jaxpr: Any
    place: Place | None = None  # None: that of what is around it
    obstacle: str = ""
    mapped: bool = False

    @property
    def repeats(self) -> bool:
        """True if XLA runs it in a loop."""
        return not self.mapped

    @property
    def key(self) -> int:
        return id(self.jaxpr)

    @property
    def closed(self) -> Any:
        return jex.ClosedJaxpr(self.jaxpr, [])


def parts_in(jaxpr: Any, place: Place | None = None) -> Iterator[Part]:
    """The parts of a jaxpr, the inner ones before those around them, but for what the user keeps on stock
    XLA. `place`: where it runs, if not where what is around it does."""
    for equation in open_jaxpr(jaxpr).eqns:
        if forced_to_stock(equation):
            continue
        if primitive_name(equation) == SHARD_MAP:
            there = place_of(equation.params["mesh"])
            yield from parts_in(equation.params["jaxpr"], there)
            yield Part(equation.params["jaxpr"], there, obstacle_of(equation), mapped=True)
            continue
        divides = primitive_name(equation) in LOOPS and communicates(equation)
        for inner in nested_jaxprs(equation):
            yield from parts_in(inner, place)
            if divides and not constants(inner) and not open_jaxpr(inner).constvars:
                yield Part(open_jaxpr(inner), place)


def with_parts(jaxpr: Any, chosen: Mapping[int, Any]) -> Any:
    """The jaxpr with closed jaxprs in the place of some parts, by their keys."""
    opened = open_jaxpr(jaxpr)
    equations = [_with_parts(each, chosen) for each in opened.eqns]
    if all(map(operator.is_, equations, opened.eqns)):
        return jaxpr
    new = opened.replace(eqns=equations)
    return new if jaxpr is opened else jex.ClosedJaxpr(new, list(constants(jaxpr)))


def _with_parts(equation: Any, chosen: Mapping[int, Any]) -> Any:
    def exchanged(value: Any) -> Any:
        if isinstance(value, tuple | list) and any(map(is_jaxpr, value)):
            return type(value)(map(exchanged, value))
        if not is_jaxpr(value):
            return value
        found = chosen.get(id(open_jaxpr(value)))
        if found is None:
            return with_parts(value, chosen)
        if primitive_name(equation) == SHARD_MAP:
            return embedded(found)
        return sealed(found, "part")  # JAX traces the bodies of loops again

    params = {name: exchanged(value) for name, value in equation.params.items()}
    if all(params[name] is value or params[name] == value for name, value in equation.params.items()):
        return equation
    mark = read_mark(params.get("name"))
    if mark is not None:  # what is inside is chosen now, and not once more
        params["name"] = mark.function
    return equation.replace(params=params)


def emptied(jaxpr: Any) -> Any:
    """A closed jaxpr without what this one computes: a placeholder, which nobody runs."""
    return jex.ClosedJaxpr(jaxpr.replace(eqns=[]), [])


def embedded(closed: Any) -> Any:
    """The open jaxpr with the constants of a closed one as literals."""
    opened, values = open_jaxpr(closed), constants(closed)
    if not opened.constvars:
        return opened
    pairs = zip(opened.constvars, values, strict=True)
    known = {var: jex.Literal(value, var.aval) for var, value in pairs}

    def read(atom: Any) -> Any:
        return atom if isinstance(atom, jex.Literal) else known.get(atom, atom)

    equations = [each.replace(invars=[*map(read, each.invars)]) for each in opened.eqns]
    results = [*map(read, opened.outvars)]
    return open_jaxpr(
        jex.ClosedJaxpr(opened.replace(constvars=[], eqns=equations, outvars=results), [])
    )


# ---- calls ------------------------------------------------------------------------------------------------

_FOR_INPUTS, _FOR_RESULTS = ("in_shardings", "in_layouts", "donated_invars"), ("out_shardings", "out_layouts")


@cache
def _template() -> Any:
    """The equation of a call of a jitted function with one argument and one result."""
    (equation,) = open_jaxpr(jax.make_jaxpr(jax.jit(lambda x: x + 1))(0.0)).eqns
    return equation


def call(closed: Any, operands: Sequence[Any], results: Sequence[Any], name: str) -> Any:
    """An equation that calls a jitted function with this jaxpr, which JAX does not trace again."""
    template = _template()
    params = {**template.params, "jaxpr": closed, "name": name}
    params |= {key: params[key] * len(operands) for key in _FOR_INPUTS if key in params}
    params |= {key: params[key] * len(results) for key in _FOR_RESULTS if key in params}
    return template.replace(
        invars=list(operands), outvars=list(results), params=params, effects=open_jaxpr(closed).effects
    )


def sealed(closed: Any, name: str) -> Any:
    """A closed jaxpr that calls another one: JAX does not trace the latter again when it evaluates this."""
    opened, new = open_jaxpr(closed), jex.gensym()
    operands, results = ([new(atom.aval) for atom in atoms] for atoms in (opened.invars, opened.outvars))
    outer = opened.replace(
        constvars=[],
        invars=operands,
        eqns=[call(closed, operands, results, name)],
        outvars=results,
    )
    return jex.ClosedJaxpr(outer, [])
