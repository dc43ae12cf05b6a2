"""Launch parameters in the text of a program: the numbers that it reads from its unit when it starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TypeGuard

from jax_cocktail.codegen.gpu import launch_plan
from jax_cocktail.codegen.kernel import Declaration, Line, Name, Node, SizeName, names_in, printed
from jax_cocktail.codegen.outline import Outer
from jax_cocktail.codegen.text import MOST_ELEMENTS
from jax_cocktail.codegen.writer import code
from jax_cocktail.device.machine import Machine
from jax_cocktail.device.target import Target
from jax_cocktail.device.tuning import PROGRAM
from jax_cocktail.utask.ir import LoopUTask, UProgram, walk
from jax_cocktail.utask.plan import MemoryPlan
from jax_cocktail.utask.sizes import Parameter, Quotient, Size, is_general, magnitude, place_in
from jax_cocktail.utask.types import Source


@dataclass(frozen=True, slots=True)
class Text:
    """The source text of a program, the launch parameters that it reads, in their order, and the places of
    the loops in which a call can be stopped."""

    source: str
    parameters: tuple[Parameter, ...] = ()
    loops: tuple[Source, ...] = ()


def lengths(program: UProgram, plan: MemoryPlan) -> dict[int, Size]:
    """The sizes that are trip counts or numbers of elements along axes, such as those of the parts of a
    sequence, and the last positions of both, by value."""
    trips = [s.trip_count for s in walk(program.entry) if isinstance(s, LoopUTask)]
    axes = (n for value in plan.layouts for n in value.type.shape)
    sizes = [n for n in trips if isinstance(n, Size)]
    sizes += [n for n in axes if isinstance(n, Size)]
    last = (n - 1 for n in sizes)
    return {int(n): n for n in (*last, *sizes) if _is_known_by_value(n)}


def counts(plan: MemoryPlan) -> dict[float, Size]:
    """The numbers of elements, of arrays and along their axes, that follow from launch parameters: means
    divide by them."""
    shapes = [value.type.shape for value in plan.layouts]
    sizes = [n for shape in shapes for n in (prod(shape), *shape)]
    return {float(n): n for n in sizes if _is_known_by_value(n)}


def _is_known_by_value(number: int) -> TypeGuard[Size]:
    """True for a size that a constant of its value means. What a general parameter is divided by may be any
    number."""
    if not isinstance(number, Size) or not number.is_general:
        return isinstance(number, Size)
    return not any(isinstance(atom, Quotient) for product, _ in number.terms for atom in product)


def sized_spaces(plan: MemoryPlan, spaces: frozenset[str]) -> frozenset[str]:
    """Those of `spaces`, and of all where sizes are general, in which the places of arrays follow from launch
    parameters: the bytes of an array there do, or what lies before the space."""
    found = {slot.space for root, slot in plan.slots.items() if isinstance(root.type.nbytes, Size)}
    general = {"own"} if is_general(plan.own_bytes) else set[str]()
    return (spaces | general) & (found | {"private"} if "workspace" in found else found)


def own_size(plan: MemoryPlan, target: Target) -> tuple[Parameter, ...]:
    """The launch parameter, if there is one, that is the size of a unit's own memory on a GPU."""
    if not (target.own_sized and is_general(plan.own_bytes)):
        return ()
    return tuple(place_in(plan.own_bytes, "own bytes").parameters)


def fits(program: UProgram, plan: MemoryPlan, machine: Machine, given: Mapping[Parameter, int]) -> bool:
    """True if a call may give these numbers to a program that is planned for others: on a GPU its blocks have
    the shared memory for them, and 32 bits suffice for all positions, in elements and in bytes."""
    if machine.spec is None:
        return True
    launch = launch_plan(program, plan, machine, given=given)
    trips = (s.trip_count for s in walk(program.entry) if isinstance(s, LoopUTask))
    counted = [*(v.type.nbytes for v in plan.layouts), *(n for n in trips if n is not None)]
    return (
        launch.resident_shared_bytes <= machine.spec.room(machine.target.threads)
        and launch.workspace_bytes <= machine.spec.memory_bytes
        and all(magnitude(n, given) <= MOST_ELEMENTS for n in counted if is_general(n))
    )


def parameters(names: Mapping[Name, Outer]) -> list[SizeName]:
    """The launch parameters among the outer names of a program, and in their addresses, each once."""
    found = (each for name, about in names.items() for each in names_in(name, about.address))
    return list(dict.fromkeys(each for each in found if isinstance(each, SizeName)))


def declared(found: list[SizeName], type_of: Callable[[SizeName], str], assume: str) -> list[Line]:
    """The declarations of launch parameters, which are of certain C types. `assume`: see `Target`."""
    nodes = list[Node]()
    for number, name in enumerate(found):
        type_, read = type_of(name), f"unit->sizes[{number}]"
        nodes.append(Declaration(type_, name, read if type_ == "i64" else f"{type_}({read})"))
        if assume and not name.parameter.role:
            least = name.parameter.least or PROGRAM.parameter_trips
            nodes.append(code(assume, code("{} >= {}", name, least)))
    return printed(nodes)
