"""The shardings of the arguments of a call, as the module that is lowered says them.

The shardings of a module's arguments are attributes of its main function, and JAX sets them before it lowers
the body. They name the axes of a mesh, not its devices: JAX lowers once for all devices.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import jax

from jax_cocktail.utask.types import TensorType

Names = tuple[str, ...]  # axes of a mesh that divide one axis of an array, the major one first
Typed = tuple[str, str]  # the type and the sharding of a value, as MLIR prints them; "" if XLA may choose it
UNKNOWN = "unknown"  # in place of a sharding: that of what something else computes
Spec = tuple[Names, ...]  # for each axis of an array

_SHARDING = re.compile(r"#sdy\.sharding<mesh<\[(?P<mesh>[^\]]*)\]>, \[(?P<axes>[^\]]*)\]")
_RANKED = re.compile(r"<\d+x")  # the type of an array that has axes
_SIZE = re.compile(r'"([^"]+)"=(\d+)')
_AXIS = re.compile(r"\{([^}]*)\}")
_NAME = re.compile(r'"([^"]+)"')


@dataclass(frozen=True, slots=True)
class Spread:
    """The mesh of a module, as names and sizes of axes, and the specs of operands of a call. None: the module
    does not say it."""

    mesh: tuple[tuple[str, int], ...]
    operands: tuple[Spec | None, ...]

    @property
    def size(self) -> int:
        return prod(size for _, size in self.mesh)

    def parts(self, names: Names) -> int:
        """The number of parts into which these axes divide an array."""
        sizes = dict(self.mesh)
        return prod(sizes[name] for name in names)


@dataclass(frozen=True, slots=True)
class Division:
    """A region of a call, divided over the devices of a mesh.

    Attributes:
      mesh: names and sizes of its axes.
      operands, results: their specs.
      taken: the parts of results that a device takes of what it computes whole, as other devices do.
      sums: for each result, the axes of the mesh over which the results of the devices are terms of it.
      numbers: for each operand that the program has beyond those of the region, the axes of the mesh along
        which it is the number of the device.
      types: those of the results on one device.
      remarks: on what the devices do, for `explain`.
    """

    mesh: tuple[tuple[str, int], ...]
    operands: tuple[Spec, ...]
    results: tuple[Spec, ...]
    taken: tuple[Spec, ...]
    sums: tuple[Names, ...]
    numbers: tuple[Names, ...]
    types: tuple[TensorType, ...]
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Followed:
    """The shardings of the values of a call.

    Attributes:
      specs: of its variables, as far as they are known.
      zeros: the variables that are arrays of zeros.
      apart: the positions of equations without control flow that XLA is to partition, since they communicate
        or say how a value is divided.
    """

    specs: Mapping[Any, Sequence[Names]] = field(default_factory=dict)
    zeros: Collection[Any] = frozenset()
    apart: Collection[int] = frozenset()


def spread_of(operands: Sequence[Typed], devices: int) -> Spread | None:
    """The shardings of the operands of a call in a module for so many devices; None if it has none of one
    mesh of all devices, or if none is divided but an unknown one may be."""
    found = [_parsed(text) for _, text in operands]
    meshes = {mesh for mesh, _ in filter(None, found)}
    if len(meshes) != 1:
        return None
    spread = Spread(meshes.pop(), tuple(each and each[1] for each in found))
    is_divided = any(spread.parts(names) > 1 for spec in filter(None, spread.operands) for names in spec)
    unknown = any(sharding == UNKNOWN and _RANKED.search(type_) for type_, sharding in operands)
    return spread if spread.size == devices and (is_divided or not unknown) else None


def shardings_of(operands: Sequence[Any], around: Sequence[Typed]) -> tuple[Typed, ...]:
    """The types and shardings of values of a module. `around`: those of the arguments of the function that is
    lowered, if it is not the main one."""
    return tuple((str(operand.type), _sharding_of(operand, around)) for operand in operands)


def _sharding_of(operand: Any, around: Sequence[Typed]) -> str:
    try:
        owner = operand.owner
        if hasattr(operand, "arg_number"):
            function = owner.owner
            if function.name.value != "main":  # it takes tokens before its arguments
                position = operand.arg_number - len(owner.arguments) + len(around)
                type_, sharding = around[position] if position >= 0 else ("", UNKNOWN)
                return sharding if type_ == str(operand.type) else UNKNOWN
            attributes = function.attributes["arg_attrs"][operand.arg_number]
            return str(attributes["sdy.sharding"]) if "sdy.sharding" in attributes else ""
        if "sdy.sharding_constraint" in str(getattr(owner, "name", "")):
            return str(owner.attributes["sharding"])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        pass  # this release of jax has others
    return UNKNOWN


def _parsed(text: str) -> tuple[tuple[tuple[str, int], ...], Spec] | None:
    """The mesh and the spec in a text; None if it says more than they can."""
    match = _SHARDING.match(text)
    if match is None or ":(" in match["axes"] or "unreduced" in text:
        return None
    mesh = tuple((name, int(size)) for name, size in _SIZE.findall(match["mesh"]))
    if not mesh:  # every device has it
        return None
    return mesh, tuple(tuple(_NAME.findall(axis)) for axis in _AXIS.findall(match["axes"]))


def is_explicit(sharding: Any) -> bool:
    """True for the sharding of a type that says how all axes of a mesh divide its values."""
    types = getattr(getattr(sharding, "mesh", None), "axis_types", ())
    return set(types or ()) == {jax.sharding.AxisType.Explicit}


def spec_of(sharding: Any, known: Spec) -> Spec | None:
    """The spec of a `NamedSharding` of an array; None for other shardings. `known`: of the value before,
    which keeps what this one does not constrain."""
    if not isinstance(sharding, jax.sharding.NamedSharding):
        return None
    entries = [*sharding.spec, *[None] * (len(known) - len(sharding.spec))]
    said = [(x,) if isinstance(x, str) else tuple(x) if isinstance(x, tuple) else () for x in entries]
    used = {name for names in said for name in names}
    free = [x is jax.sharding.PartitionSpec.UNCONSTRAINED for x in entries]
    kept = [names if each and used.isdisjoint(names) else () for names, each in zip(known, free, strict=True)]
    return tuple(map(operator.add, said, kept))
