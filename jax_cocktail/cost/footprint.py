"""The bytes that statements touch: of operators, of groups, and of an iteration of a loop, by value."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from jax_cocktail.utask.failure import KIND as FAIL
from jax_cocktail.utask.ir import (
    Statement,
    StitchedUTask,
    UOperator,
    is_parallel,
    operators_of,
    performers,
    walk,
)
from jax_cocktail.utask.operators import LEAVES, NO_RESULTS, PARTIAL
from jax_cocktail.utask.types import Value

NO_TIME = LEAVES | NO_RESULTS | {"reshape", "broadcast", FAIL}  # free in any runtime


def piece(operator: UOperator) -> Value | None:
    """The value that has as many elements as an operator reads of an array and as many as it writes; None if
    it touches its operands whole."""
    if operator.kind in PARTIAL:
        return operator.output
    return operator.inputs[operator.facts.updates] if operator.facts.updates else None


def written(operator: UOperator) -> Value:
    """The value whose elements an operator with one result writes: an update leaves the others alone."""
    found = piece(operator)
    return operator.output if found is None else found


def bytes_of(operator: UOperator) -> dict[Value, int]:
    """The bytes that an operator touches, by value in memory. An element operator counts for one value, since
    both compilers fuse chains of them."""
    part = piece(operator)
    if part is not None:
        return {part: 2 * part.type.nbytes}
    values = operator.outputs if operator.is_element else (*operator.inputs, *operator.outputs)
    return {v: v.type.nbytes for v in values if not v.type.is_scalar}


def bytes_of_group(group: StitchedUTask) -> dict[Value, int]:
    """The bytes that the members read from memory, whole or in part, and write to it, by value."""
    outside = set(group.inputs)
    moved = {v: v.type.nbytes for v in group.outputs if not v.type.is_scalar}
    for member in group.members:
        part = piece(member)
        if part is None:
            moved.update((v, v.type.nbytes) for v in member.inputs if v in outside and not v.type.is_scalar)
        else:
            moved.pop(member.output, None)
            moved[part] = part.type.nbytes
    return moved


def bytes_of_pieces(statements: Iterable[Statement]) -> float:
    """The bytes of arrays outside that statements read or write by pieces."""
    pieces = (piece(o) for s in statements for o in operators_of(s))
    return float(sum(v.type.nbytes for v in pieces if v is not None))


def touched_bytes(statements: Iterable[Statement], units: int) -> float:
    """Bytes that one execution of the statements touches, per unit."""
    whole: dict[Value, int] = {}
    shared, own = 0.0, [0.0] * units
    for statement in statements:
        if is_parallel(statement):
            parts, each = max(statement.trip_count or 1, 1), touched_bytes(statement.body.body, 1)
            if parts < units:  # other units touch the bytes of other loops
                for unit in performers(statement, units):
                    own[unit] += each
            else:
                shared += each * ceil(parts / units)
            continue
        for inner in walk(statement):
            if isinstance(inner, UOperator) and inner.kind not in NO_TIME:
                whole.update(bytes_of(inner))
            elif isinstance(inner, StitchedUTask):
                whole.update(bytes_of_group(inner))
    return sum(whole.values()) + shared + max(own)
