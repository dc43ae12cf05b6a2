"""Replacing values in statements, and fresh values for passes that need new ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import count

from jax_cocktail.utask.ir import StitchedUTask, UOperator, UProgram, regions_of, walk
from jax_cocktail.utask.types import TensorType, Value


def replaced(values: Iterable[Value], mapping: Mapping[Value, Value]) -> tuple[Value, ...]:
    """`values`, each by what it stands for now."""
    return tuple(mapping.get(value, value) for value in values)


def with_operands(operator: UOperator, mapping: Mapping[Value, Value]) -> UOperator:
    """`operator` on the replaced operands; the same object if none of them changes."""
    inputs = replaced(operator.inputs, mapping)
    return operator if inputs == operator.inputs else replace(operator, inputs=inputs)


def with_group_operands(group: StitchedUTask, mapping: Mapping[Value, Value]) -> StitchedUTask:
    """A group whose members read the replaced values."""
    members = tuple(with_operands(member, mapping) for member in group.members)
    if members == group.members:
        return group
    inputs = tuple(dict.fromkeys(replaced(group.inputs, mapping)))
    return replace(group, members=members, inputs=inputs)


class FreshValues:
    """Makes values whose ids occur nowhere in a program."""

    def __init__(self, program: UProgram) -> None:
        highest = max((value.id for value in _defined(program)), default=-1)
        self._ids = count(highest + 1)

    def make(self, type_: TensorType) -> Value:
        return Value(next(self._ids), type_)


def _defined(program: UProgram) -> Iterable[Value]:
    for root in program.regions:
        yield from root.parameters
    for statement in (s for root in program.regions for s in walk(root)):
        yield from statement.outputs
        if isinstance(statement, StitchedUTask):
            for member in statement.members:
                yield from member.outputs
        for region in regions_of(statement):
            yield from region.parameters
