"""Stitched groups in the mesh interpreter: values that remember which memory they are computed from.

A lane loop reads the elements that its results need, and no others: a slice of a shared array touches the
slice only. Movement operators therefore move, beside the elements, the addresses that these come from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jax_cocktail.errors import VerificationError
from jax_cocktail.utask.arrays import Array
from jax_cocktail.utask.ir import StitchedUTask, UOperator
from jax_cocktail.utask.operators import KINDS
from jax_cocktail.utask.types import TensorType, Value
from tests.oracle.interpreter.run import EVALUATE
from tests.oracle.memory import Cells

_NOWHERE = np.asarray(-1, np.int64)


@dataclass(frozen=True, slots=True)
class Traced:
    """Elements, and for each of them the memory that it depends on: one array of addresses per source."""

    array: Array
    cells: tuple[Cells, ...] = ()


Touch = Callable[[Cells], None]


def needed_members(group: StitchedUTask, wanted: Sequence[Value]) -> list[UOperator]:
    """The members that compute `wanted`, in order. What an in-place update overwrites is not computed."""
    needed = set(wanted)
    members: list[UOperator] = []
    for member in reversed(group.members):
        if needed.intersection(member.outputs):
            members.append(member)
            needed.update(sources(member))
    return members[::-1]


def sources(member: UOperator) -> tuple[Value, ...]:
    """The operands that a member computes from."""
    return member.inputs[1:] if member.kind == "dynamic_update_slice" else member.inputs


def evaluate_member(member: UOperator, values: Mapping[Value, Traced], touch: Touch) -> tuple[Traced, ...]:
    """The results of a member. `touch` is told of memory that is read whatever becomes of them."""
    operands = [values[v] for v in member.inputs]
    result = EVALUATE[member.kind](member, [x.array for x in operands])
    arrays = [np.asarray(x) for x in (result if isinstance(result, tuple) else (result,))]
    sort = KINDS[member.kind].sort
    if sort == "elementwise":
        cells = _distinct([c for x in operands for c in x.cells])
    elif sort == "movement":
        cells = _moved(member, operands, touch)
    else:
        cells = ()
        for x in operands:
            for c in x.cells:
                touch(c)
    return tuple(Traced(array, cells) for array in arrays)


def check_lanes(stores: Sequence[tuple[Cells | None, Traced]]) -> None:
    """Raises if a lane of a loop overwrites what another lane reads. `stores`: what the loop computes, and
    where it goes; lane i computes element i of everything that has as many elements."""
    reads = _distinct([cells for _, traced in stores for cells in traced.cells])
    for target, _ in stores:
        if target is None:
            continue
        written = target.address.ravel()
        for cells in reads:
            read = cells.address.ravel()
            apart = read[read != written] if read.size == written.size else read[:0]
            if np.isin(apart, written).any():
                raise VerificationError(
                    f"a lane writes {target.value} where another lane reads {cells.value}; only what is read"
                    " element by element can be overwritten: print the program after memory is planned"
                )


def _distinct(cells: Sequence[Cells]) -> tuple[Cells, ...]:
    return tuple({id(c): c for c in cells}.values())


def _moved(member: UOperator, operands: Sequence[Traced], touch: Touch) -> tuple[Cells, ...]:
    """The addresses behind the elements of a movement operator's result."""
    if member.kind == "concatenate":
        return tuple(
            replace(c, address=_apply(member, _alone(operands, position, c.address)))
            for position, operand in enumerate(operands)
            for c in operand.cells
        )
    for operand in operands[1:]:  # starts, indices, fillers
        for c in operand.cells:
            touch(c)
    rest = [_NOWHERE] if member.kind == "pad" else [x.array for x in operands[1:]]
    return tuple(
        replace(c, address=_apply(member, [c.address, *rest]))
        for operand in operands[:1]
        for c in operand.cells
    )


def _alone(operands: Sequence[Traced], position: int, address: Array) -> list[Array]:
    """Addresses for one operand, nothing for the others."""
    others = [np.broadcast_to(_NOWHERE, x.array.shape) for x in operands]
    others[position] = address
    return others


def _apply(member: UOperator, operands: Sequence[Array]) -> Array:
    """A movement operator on addresses."""
    result = member.output
    addresses = replace(member, outputs=(Value(result.id, TensorType("int64", result.type.shape)),))
    if member.kind == "gather":
        filler = tuple((n, _NOWHERE.tobytes() if n == "fill_value" else v) for n, v in member.attributes)
        addresses = replace(addresses, attributes=filler)
    moved = EVALUATE[member.kind](addresses, operands)
    assert isinstance(moved, np.ndarray)
    return moved
