"""Replacing values in statements, and fresh values for passes that need new ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import TypeVar

from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
    UProgram,
    highest_id,
)
from jax_cocktail.utask.rewrite import map_regions, with_body
from jax_cocktail.utask.types import TensorType, Value

S = TypeVar("S", UOperator, LoopUTask, BranchUTask, StitchedUTask, Statement)


def replaced(values: Iterable[Value], mapping: Mapping[Value, Value]) -> tuple[Value, ...]:
    """`values`, each replaced by its entry in `mapping`, if it has one."""
    return tuple(mapping.get(value, value) for value in values)


def with_operands(statement: S, mapping: Mapping[Value, Value]) -> S:
    """The statement on the replaced operands, nested regions left alone; the same object if none changes."""
    if isinstance(statement, StitchedUTask):
        members = tuple(with_operands(member, mapping) for member in statement.members)
        if members == statement.members:
            return statement
        inputs = tuple(dict.fromkeys(replaced(statement.inputs, mapping)))
        return replace(statement, members=members, inputs=inputs)
    inputs = replaced(statement.inputs, mapping)
    if inputs == statement.inputs:
        return statement
    if isinstance(statement, LoopUTask):
        return replace(statement, initial=inputs)
    if isinstance(statement, BranchUTask):
        return replace(statement, selector=inputs[0])
    return replace(statement, inputs=inputs)


def with_reads(statement: S, mapping: Mapping[Value, Value]) -> S:
    """The statement with other operands, nested regions included; its results stay."""
    if not mapping:
        return statement
    return map_regions(with_operands(statement, mapping), lambda region: region_reads(region, mapping))


def region_reads(region: Region, mapping: Mapping[Value, Value]) -> Region:
    """The region with replacements for some of the values that it reads."""
    body = (with_reads(statement, mapping) for statement in region.body)
    return with_body(region, body, replaced(region.results, mapping))


class FreshValues:
    """Makes values whose ids occur nowhere in a program; without a program, ids count from the `first`. The
    program is read when the first value is made: most passes look around and make none."""

    def __init__(self, program: UProgram | None = None, first: int = 0) -> None:
        self._program, self._ids = program, count(first)

    def make(self, type_: TensorType) -> Value:
        if (program := self._program) is not None:
            self._program, self._ids = None, count(highest_id(program.entry) + 1)
        return Value(next(self._ids), type_)

    def like(self, values: Iterable[Value]) -> tuple[Value, ...]:
        """New values of the same types."""
        return tuple(self.make(value.type) for value in values)
