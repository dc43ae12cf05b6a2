"""Plan types: what scheduling decides and emitters read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jax_cocktail.utask.ir import Region, UOperator, UProgram, regions_of
from jax_cocktail.utask.layout import Layout, dense, view
from jax_cocktail.utask.types import Value


@dataclass(frozen=True, slots=True)
class Slot:
    """Memory of a buffer. space: input | output (`index` = operand or result number) | workspace (`index` =
    byte offset; one for all units) | own (`index` = byte offset in each unit's own memory) | constant
    (`index` = value id)."""

    space: str
    index: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Static memory of a program.

    `layouts`: where every value that is not a register lies; `slots`: memory of every root;
    `aliases`: (operand, result) pairs that share memory; `workspace_bytes`: size of the workspace, whose last
    part, from `scratch_offset`, is free for one operator at a time (`scratch_bytes`); `own_bytes`: size of
    each unit's own memory, whose last part is then the scratch; `most_units`: units that find work.
    """

    layouts: Mapping[Value, Layout]
    slots: Mapping[Value, Slot]
    aliases: tuple[tuple[int, int], ...]
    workspace_bytes: int
    scratch_offset: int = 0
    own_bytes: int = 0
    most_units: int = 1


def layouts_of(program: UProgram) -> dict[Value, Layout]:
    """Layouts of all values of a stitched program that are in memory (registers have none)."""
    layouts: dict[Value, Layout] = {}

    def own(value: Value) -> None:
        if not value.type.is_scalar:
            layouts[value] = dense(value)

    def visit(region: Region) -> None:
        for value in region.parameters:
            own(value)
        for statement in region.body:
            for inner in regions_of(statement):
                visit(inner)
            if isinstance(statement, UOperator) and _is_view(statement, layouts):
                seen = view(statement, layouts[statement.inputs[0]])
                assert seen is not None
                layouts[statement.output] = seen
            else:
                for value in statement.outputs:
                    own(value)

    visit(program.entry)
    return layouts


def _is_view(operator: UOperator, layouts: Mapping[Value, Layout]) -> bool:
    """Movement operators that stitching left alone are views; all others own memory."""
    if not operator.is_element or not operator.inputs or operator.output.type.size == 0:
        return False
    return operator.inputs[0] in layouts and not operator.output.type.is_scalar


def scratch_bytes(operator: UOperator) -> int:
    """Scratch memory that an operator needs while it runs: sorting moves indices, not elements."""
    if operator.kind == "sort":
        axis = operator["dimension"]
        assert isinstance(axis, int)
        return 2 * 4 * operator.inputs[0].type.shape[axis]
    if operator.kind == "top_k":
        axis = operator["axis"]
        assert isinstance(axis, int)
        return 2 * 4 * operator.inputs[0].type.shape[axis]
    return 0
