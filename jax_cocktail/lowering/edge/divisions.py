"""Divides the regions of a call as its arguments are divided, with a `shard_map` of our own around each.

An axis that our ties prove independent is divided: each device runs the program of its part
(`schedule.vmap.shards`). All other axes are whole on each device. XLA's partitioner sees a `shard_map`, which
says how operands and results of our call are divided, so it inserts nothing where that is how they come.

The shardings between regions follow from the same ties. If XLA finds others, it moves data at the border of a
region, and the results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from jax_cocktail.errors import UnsupportedError
from jax_cocktail.lowering.edge.adapter import is_key, primitive_name, program
from jax_cocktail.lowering.edge.capture import CONSTRAINTS, Capture, Region, untaken
from jax_cocktail.lowering.edge.shardings import Division, Names, Spec, Spread, spec_of
from jax_cocktail.primitives import translate
from jax_cocktail.schedule.vmap.cut import SUM, Uncuttable
from jax_cocktail.schedule.vmap.shards import shard
from jax_cocktail.utask.ir import UProgram

Known = dict[Any, Spec]  # by JAX's variable


@dataclass(frozen=True, slots=True)
class _Divided:
    """A program and how it is divided; `reason`: why some axes of the mesh divide nothing, and `gathered` the
    bytes that each device needs of the others then."""

    program: UProgram
    division: Division
    reason: str = ""
    gathered: int = 0


def divided(
    captured: Capture, programs: Sequence[UProgram], spread: Spread, insists: bool
) -> tuple[Capture, tuple[UProgram, ...]]:
    """The regions of a call with their divisions, and the programs of one device. A region with an axis that
    communicates is left to stock XLA, unless the user `insists`: then all devices compute the same."""
    flat = captured.flat
    pairs = zip(flat.template.invars, spread.operands, strict=True)
    known: Known = {var: spec for var, spec in pairs if spec is not None}
    zeros = {e.outvars[0] for e in flat.equations if _is_zeros(e)}
    regions: list[Region] = []
    chosen: list[UProgram] = []
    order: list[int | tuple[int]] = []
    left = list(captured.left)
    for step in captured.order:
        if isinstance(step, int):
            _follow(flat.equations[step], known, spread)
            order.append(step)
            continue
        (number,) = step
        region, found = captured.regions[number], None
        why = _obstacle(region)
        if not why:
            found = _divided(region, programs[number], known, spread, zeros)
            why = found.reason
        if found is not None and (insists or not why):
            order.append((len(regions),))
            regions.append(replace(region, division=found.division))
            chosen.append(found.program)
            known.update(zip(region.results, found.division.results, strict=True))
            continue
        if found is not None:
            why = f"{why}: each of {spread.size} devices would compute all of it, from {found.gathered} bytes of others"
        left += untaken([region], why)
        order += region.members
    return replace(captured, regions=tuple(regions), order=tuple(order), left=tuple(left)), tuple(chosen)


def _obstacle(region: Region) -> str:
    """The reason why a region cannot run on several devices, or ""."""
    if region.exits:
        return f"it may call Python: {region.exits[0].reason}"
    return "it has messages" if region.log is not None else ""


def _divided(
    region: Region, program: UProgram, known: Known, spread: Spread, zeros: set[Any]
) -> _Divided:
    specs = [known.get(var, ()) for var in region.operands]
    specs = [(*spec, *[()] * (len(value.type.shape) - len(spec))) for spec, value in zip(specs, program.entry.parameters)]
    zero = [n for n, var in enumerate(region.operands) if var in zeros]
    operands: list[list[Names]] = [[()] * len(spec) for spec in specs]
    results: list[list[Names]] = [[()] * v.type.rank for v in program.entry.results]
    sums: list[Names] = [()] * len(results)
    numbers: list[Names] = []
    used: set[str] = set()
    reasons: dict[Names, str] = {}
    for names, axes in _candidates(region, specs):
        if not used.isdisjoint(names):
            continue
        try:
            found = shard(program, axes, spread.parts(names), zero)
        except Uncuttable as error:
            reasons.setdefault(names, str(error))
            continue
        program = found.program
        used.update(names)
        numbers += [names] if found.numbered else []
        for places, cut in ((operands, found.operands), (results, found.results)):
            for place, axis in zip(places, cut, strict=False):
                if axis is not None and axis != SUM:
                    place[axis] += names
        sums = [each + names if axis == SUM else each for each, axis in zip(sums, found.results, strict=True)]
    wanted = tuple(map(tuple, operands))
    division = Division(spread.mesh, wanted, tuple(map(tuple, results)), tuple(sums), tuple(numbers), tuple(v.type for v in program.entry.results))
    lost = [why for names, why in reasons.items() if not used.issuperset(names) and spread.parts(names) > 1]
    gathered = sum(
        _nbytes(var) for var, given, own in zip(region.operands, specs, wanted, strict=True) if lost and given != own
    )
    return _Divided(program, division, lost[0] if lost else "", gathered)


def _candidates(region: Region, specs: Sequence[Spec]) -> list[tuple[Names, dict[int, int]]]:
    """The axes of operands that some axes of the mesh divide, those of most bytes first."""
    found: dict[Names, dict[int, int]] = {}
    for number, spec in enumerate(specs):
        for axis, names in enumerate(spec):
            if names:
                found.setdefault(names, {})[number] = axis
    single = []
    for names, axes in found.items():
        single += [(names, axes), *((names, {number: axis}) for number, axis in axes.items() if len(axes) > 1)]
    return sorted(single, key=lambda pair: -sum(_nbytes(region.operands[n]) for n in pair[1]))


def _nbytes(var: Any) -> int:
    return prod(var.aval.shape) * (8 if is_key(var.aval) else var.aval.dtype.itemsize)


def _is_zeros(equation: Any) -> bool:
    """True for an equation that makes an array of zeros."""
    first = next(iter(equation.invars), None)
    return primitive_name(equation) == "broadcast_in_dim" and isinstance(first, jex.Literal) and not np.any(first.val)


def _follow(equation: Any, known: Known, spread: Spread) -> None:
    """Notes how the results of an equation of stock XLA's are divided, as far as our ties tell it."""
    if primitive_name(equation) in CONSTRAINTS:
        sharding = equation.params.get("sharding", equation.params.get("dst_sharding"))
        spec = spec_of(sharding, len(equation.outvars[0].aval.shape))
        if spec is not None and {name for names in spec for name in names} <= dict(spread.mesh).keys():
            known[equation.outvars[0]] = spec
        return
    variables = list(dict.fromkeys(v for v in equation.invars if not isinstance(v, jex.Literal)))
    groups: dict[Names, dict[int, int]] = {}
    for number, var in enumerate(variables):
        for axis, names in enumerate(known.get(var, ())):
            if names:
                groups.setdefault(names, {})[number] = axis
    if not groups:
        return
    try:
        alone = translate(program(_alone(equation, variables)), "equation")
    except UnsupportedError:
        return
    made: list[list[Names]] = [[()] * v.type.rank for v in alone.entry.results]
    for names, axes in groups.items():
        try:
            found = shard(alone, axes, spread.parts(names)).results
        except Uncuttable:
            continue
        for place, axis in zip(made, found, strict=True):
            if axis is not None and axis != SUM:
                place[axis] += names
    known.update((var, tuple(spec)) for var, spec in zip(equation.outvars, made, strict=True))


def _alone(equation: Any, variables: Sequence[Any]) -> Any:
    """A closed jaxpr of one equation."""
    return jex.ClosedJaxpr(_template().replace(invars=list(variables), constvars=[], eqns=[equation], outvars=list(equation.outvars), effects=equation.effects), [])


def _template() -> Any:
    from jax_cocktail.primitives.jaxprs import open_jaxpr

    return open_jaxpr(jax.make_jaxpr(lambda: 0)())


def on_each_device(division: Division, function: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    """The function of whole arrays of which each device computes its part by `function`. Results beyond those
    of the region are those of any device."""

    def part(*operands: Any) -> tuple[Any, ...]:
        numbers = [lax.axis_index(names) for names in division.numbers]
        outputs = list(function(*operands, *numbers))
        for position, names in enumerate(division.sums):
            outputs[position] = lax.psum(outputs[position], names) if names else outputs[position]
        return tuple(outputs[: len(division.results)])

    sizes, names = [size for _, size in division.mesh], [name for name, _ in division.mesh]
    specs = tuple(map(_spec, division.operands)), tuple(map(_spec, division.results))
    automatic = (jax.sharding.AxisType.Auto,) * len(names)
    mesh = jax.sharding.AbstractMesh(tuple(sizes), tuple(names), axis_types=automatic)
    mapped = jax.shard_map(part, mesh=mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False)

    def whole(*operands: Any) -> Sequence[Any]:
        # a mesh that the user has set may name the axes otherwise, or hold types that this call does not
        with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
            return mapped(*operands)

    return whole


def _spec(spec: Spec) -> PartitionSpec:
    return PartitionSpec(*(names or None for names in spec))
