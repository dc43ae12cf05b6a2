"""Finds operands that a statement may overwrite with its results while it runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jax_cocktail.utask.ir import Statement, StitchedUTask, UOperator
from jax_cocktail.utask.layout import Layout, core, keeps_elements
from jax_cocktail.utask.operators import UPDATES
from jax_cocktail.utask.types import Value

Pair = tuple[Value, Value, bool]  # (operand root, result, does sharing save a copy?)


@dataclass(frozen=True, slots=True)
class Layouts:
    """The layouts of a program, and the operators that define its views."""

    layouts: Mapping[Value, Layout]
    views: Mapping[Value, UOperator]

    def root(self, value: Value) -> Value | None:
        layout = self.layouts.get(value)
        return layout.root if layout is not None else None

    def whole(self, value: Value) -> Value | None:
        """The root if the value covers it, so that shared memory replaces a copy."""
        layout = self.layouts.get(value)
        return layout.root if layout is not None and layout.is_whole else None


def in_place_pairs(statement: Statement, memory: Layouts) -> Iterator[Pair]:
    if isinstance(statement, StitchedUTask):
        yield from _stitched_pairs(statement, memory)
    elif isinstance(statement, UOperator) and statement.kind in UPDATES:
        target = memory.whole(statement.inputs[0])
        if target is not None and target not in {memory.root(v) for v in statement.inputs[1:]}:
            yield target, statement.output, True


def _stitched_pairs(group: StitchedUTask, memory: Layouts) -> Iterator[Pair]:
    """A lane loop finishes reading element i before it writes element i, so a result may replace an operand
    that is read at that element only. If it reduces to scalars, every unit reads the operands, but one of
    them writes."""
    scalars = any(reduction.output.type.is_scalar for reduction in group.reductions)
    if scalars or group.members[-1].kind == "concatenate":
        return
    reads = _reads(group, memory)
    updates = {m.output: m for m in group.members if m.kind == "dynamic_update_slice"}
    combined = {reduction.output for reduction in group.reductions}
    for result in group.outputs:
        if result.type.is_scalar or result in combined:
            continue
        if result in updates:
            target = memory.whole(updates[result].inputs[0])
            if target is not None and all(
                aligned and _is_own_slice(leaf, updates[result], memory) for leaf, aligned in reads[target]
            ):
                yield target, result, True
            continue
        for root, leaves in list(reads.items()):
            fits = root.type.dtype == result.type.dtype and root.type.size == result.type.size
            if fits and all(aligned and memory.whole(leaf) is not None for leaf, aligned in leaves):
                yield root, result, False


def _reads(group: StitchedUTask, memory: Layouts) -> dict[Value, list[tuple[Value, bool]]]:
    """root -> its values that the group reads, and whether element by element. The target of an in-place
    update is not read."""
    found: dict[Value, list[tuple[Value, bool]]] = defaultdict(list)
    inputs = frozenset(group.inputs)
    for member, aligned in zip(group.members, _aligned(group), strict=True):
        first = 1 if member.kind == "dynamic_update_slice" else 0
        for operand in member.inputs[first:]:
            root = memory.root(operand)
            if root is not None and operand in inputs:
                found[root].append((operand, aligned))
    return found


def _keeps(member: UOperator) -> bool:
    """True if result element i depends on operand elements i only, or if a loop over the operand's elements
    takes them."""
    return member.kind == "dynamic_update_slice" or member.kind == "reduce" or keeps_elements(member)


def _aligned(group: StitchedUTask) -> list[bool]:
    """For each member, True if it and all members that depend on it go element by element."""
    apart = set[Value]()  # a member that does not depends on these
    found = []
    for member in reversed(group.members):
        found.append(_keeps(member) and apart.isdisjoint(member.outputs))
        if not found[-1]:
            apart.update(member.inputs)
    return found[::-1]


def _is_own_slice(leaf: Value, update: UOperator, memory: Layouts) -> bool:
    """True if the value is exactly the part of the array that the update overwrites."""
    target, written = update.inputs[0], update.inputs[1]
    layout = memory.layouts[leaf]
    if core(written.type.shape) == core(layout.root.type.shape) and layout.is_whole:
        return True
    reader = memory.views.get(layout.base)
    return (
        reader is not None
        and reader.kind == "dynamic_slice"
        and memory.whole(reader.inputs[0]) == memory.whole(target)
        and reader.inputs[0].type.shape == target.type.shape
        and reader.inputs[1:] == update.inputs[2:]
        and reader.output.type.shape == written.type.shape
        and layout.offset == 0
        and core(layout.shape) == core(written.type.shape)
        and [s for n, s in zip(layout.shape, layout.strides, strict=True) if n != 1]
        == [s for n, s in zip(written.type.shape, memory.layouts[target].strides, strict=True) if n != 1]
    )
