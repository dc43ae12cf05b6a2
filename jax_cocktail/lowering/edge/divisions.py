"""Divides the regions of a call as its arguments are divided, with a `shard_map` of our own around each.

An axis that our ties prove independent is divided: each device runs the program of its part
(`schedule.vmap.shards`). All other axes are whole on each device. XLA's partitioner sees a `shard_map`, which
says how operands and results of our call are divided, so it inserts nothing where that is how they come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from jax_cocktail.lowering.edge.capture import TOGETHER, Capture, Region, untaken
from jax_cocktail.lowering.edge.follow import Found, choices, nbytes
from jax_cocktail.lowering.edge.shardings import Division, Names, Spec, Spread
from jax_cocktail.schedule.vmap.cut import Uncuttable
from jax_cocktail.schedule.vmap.shards import preferred, shard
from jax_cocktail.utask.ir import UProgram


@dataclass(frozen=True, slots=True)
class _Divided:
    """A program and how it is divided. `reason`: why some axes of the mesh divide nothing, or ""; `gathered`:
    the bytes of the operands that each device has to get from others then."""

    program: UProgram
    division: Division
    reason: str
    gathered: int


def divided(
    captured: Capture, programs: Sequence[UProgram], spread: Spread, insists: bool
) -> tuple[Capture, tuple[UProgram, ...]]:
    """The regions of a call with their divisions, and the programs of one device. A region with an axis that
    communicates is left to stock XLA, unless the user `insists`: then all devices compute the same."""
    regions: list[Region] = []
    chosen: list[UProgram] = []
    order: list[int | tuple[int]] = []
    left = list(captured.left)
    for step in captured.order:
        if isinstance(step, int):
            order.append(step)
            continue
        region = captured.regions[step[0]]
        found = _obstacle(region) or _divided(region, programs[step[0]], captured, spread)
        if not isinstance(found, str) and (insists or not found.reason):
            order.append((len(regions),))
            regions.append(replace(region, division=found.division))
            chosen.append(found.program)
            continue
        left += untaken([region], found if isinstance(found, str) else _priced(found, spread))
        order += region.members
    captured = replace(captured, regions=tuple(regions), order=tuple(order), left=tuple(left))
    return captured, tuple(chosen)


def _priced(found: _Divided, spread: Spread) -> str:
    return (
        f"{TOGETHER}: {found.reason}; otherwise each of {spread.size} devices has to get"
        f" {_size(found.gathered)} of arguments together, and to compute all of it"
    )


def _obstacle(region: Region) -> str:
    """The reason why a region cannot run on several devices, or ""."""
    if region.exits:
        return f"on several devices, it cannot call Python: {region.exits[0].reason}"
    return "on several devices, its messages would come from all of them" if region.log is not None else ""


def _divided(region: Region, program: UProgram, captured: Capture, spread: Spread) -> _Divided:
    followed, entry = captured.followed, program.entry
    assert followed is not None
    specs = [followed.specs.get(var, ()) for var in region.operands]
    zeros = [n for n, var in enumerate(region.operands) if var in followed.zeros]
    operands, results = (Found([v.type.rank for v in vs]) for vs in (entry.parameters, entry.results))
    numbers: list[Names] = []
    for names, axes in choices(region.operands, specs, spread, results):
        try:
            found = shard(program, axes, spread.parts(names), zeros)
        except Uncuttable as error:
            results.fail(names, axes, error)
            continue
        program = found.program
        results.take(names, found.results)
        operands.add(names, found.operands[: len(specs)])
        numbers += [names] if found.numbered else []
    parts = Found([v.type.rank for v in entry.results])  # of results that each device has whole
    for names, axes in results.without(spread):
        parts.add(names, results.prefer(names, preferred(program, axes, spread.parts(names))))
    wanted, made, taken = (tuple(map(tuple, each.specs)) for each in (operands, results, parts))
    types = tuple(v.type for v in program.entry.results)
    reason = next(iter(results.reasons(spread)), "")
    gathered = sum(
        nbytes(var)
        for var, given, own in zip(region.operands, specs, wanted, strict=True)
        if any(have and have != want for have, want in zip(given, own, strict=False))
    )
    remarks = _remarks(results, spread, reason, gathered)
    sums = tuple(results.sums)
    division = Division(spread.mesh, wanted, made, taken, sums, tuple(numbers), types, remarks)
    return _Divided(program, division, reason, gathered)


def _remarks(found: Found, spread: Spread, reason: str, gathered: int) -> tuple[str, ...]:
    used = [name for name, _ in spread.mesh if name in found.used]
    parts = spread.parts(tuple(used))
    axes = f"{'axes' if len(used) > 1 else 'axis'} {', '.join(used)} of the mesh"
    said = {
        f"each device computes one of {parts} parts, by the {axes}": parts > 1,
        "devices add up what they have computed, after the program": any(found.sums),
        f"before it, devices get {_size(gathered)} of arguments together": gathered > 0,
        f"devices compute the same: {reason}": bool(reason),
    }
    return tuple(text for text, holds in said.items() if holds)


def _size(nbytes: int) -> str:
    return f"{nbytes / 1024:.3g} KiB" if nbytes >= 1024 else f"{nbytes} bytes"


def on_each_device(
    division: Division, function: Callable[..., Sequence[Any]], others: int
) -> Callable[..., Sequence[Any]]:
    """The function of whole arrays of which each device computes its part by `function`. It returns so many
    `others` beside the results of the region, which it takes of any device."""

    def part(*operands: Any) -> tuple[Any, ...]:
        numbers = (lax.axis_index(names) for names in division.numbers)
        outputs = function(*operands, *numbers)
        count = len(division.results)
        pairs = zip(outputs[:count], division.sums, strict=True)
        added = [lax.psum(output, names) if names else output for output, names in pairs]
        return *map(_own_part, added, division.taken), *outputs[count:]

    names, sizes = zip(*division.mesh, strict=True)
    mesh = AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))
    given, made = (tuple(map(_spec, each)) for each in (division.operands, division.results))
    made += (PartitionSpec(),) * others
    mapped = jax.shard_map(part, mesh=mesh, in_specs=given, out_specs=made, check_vma=False)

    def whole(*operands: Any) -> Sequence[Any]:
        # JAX compares the mesh with one that the user has set, of which the types may be others
        with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
            # Where axes of the mesh are explicit, JAX would take the division from the types of the user's
            # values. Copies have other types, and XLA does not see them.
            return [*map(jnp.copy, mapped(*map(jnp.copy, operands)))]

    return whole


def _own_part(whole: Any, spec: Spec) -> Any:
    """The part of an array that this device has by a spec."""
    for axis, names in enumerate(spec):
        if names:
            size = whole.shape[axis] // lax.axis_size(names)
            whole = lax.dynamic_slice_in_dim(whole, lax.axis_index(names) * size, size, axis)
    return whole


def _spec(spec: Spec) -> PartitionSpec:
    return PartitionSpec(*(names or None for names in spec))
