"""Faults and checked access to attributes, for all type rules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.sizes import is_integer
from jax_cocktail.utask.types import INTEGERS, Shape, TensorType, Value

Rule = Callable[[UOperator], None]


class Fault(Exception):
    """Raised if a type rule does not hold; caught by `infer.fault`."""


def require(condition: bool, message: str) -> None:
    if not condition:
        raise Fault(message)


def integer(operator: UOperator, name: str) -> int:
    value = operator[name]
    require(is_integer(value), f"{name} is not an integer")
    return operator.number(name)


def integers(operator: UOperator, name: str, count: int) -> tuple[int, ...]:
    value = operator[name]
    require(isinstance(value, tuple) and all(map(is_integer, value)), f"{name} is not a tuple of integers")
    found = operator.ints(name)
    require(len(found) == count, f"{name} has {len(found)} entries, not {count}")
    return found


def axis(operator: UOperator, name: str, rank: int) -> int:
    value = integer(operator, name)
    require(0 <= value < rank, f"{name} {value} is no axis of rank {rank}")
    return value


def axes(operator: UOperator, name: str, rank: int) -> tuple[int, ...]:
    """An attribute that lists distinct axes of a value of `rank` axes."""
    value = operator[name]
    found = integers(operator, name, len(value) if isinstance(value, tuple) else 0)
    require(len(set(found)) == len(found), f"{name} repeats an axis")
    require(all(0 <= d < rank for d in found), f"{name} {found} are no axes of rank {rank}")
    return found


def pairs(operator: UOperator, name: str, count: int) -> tuple[tuple[int, int], ...]:
    """An attribute that is a tuple of (low, high) pairs."""
    value = operator[name]
    require(isinstance(value, tuple) and len(value) == count, f"{name} has not {count} entries")
    found = operator.pairs(name)
    good = all(isinstance(pair, tuple) and len(pair) == 2 and all(map(is_integer, pair)) for pair in found)
    require(good, f"{name} is not a tuple of integer pairs")
    return found


def positive(operator: UOperator, name: str, count: int) -> tuple[int, ...]:
    found = integers(operator, name, count)
    require(all(n >= 1 for n in found), f"{name} has an entry below 1")
    return found


def dtype_in(operator: UOperator, dtype: str, allowed: Collection[str]) -> None:
    require(dtype in allowed, f"does not take {dtype}")


def equal_types(operator: UOperator, values: Sequence[Value]) -> None:
    types = [str(value.type) for value in values]
    require(len(set(types)) == 1, f"operands differ in type: {', '.join(types)}")


def result_is(operator: UOperator, expected: TensorType, index: int = 0) -> None:
    found = operator.outputs[index].type
    require(found == expected, f"result is {found}, expected {expected}")


def result_shape(operator: UOperator, shape: Shape) -> None:
    found = operator.output.type
    require(found.shape == shape, f"result is {found}, expected shape {list(shape)}")


def index_scalars(operator: UOperator, values: Sequence[Value], count: int) -> None:
    require(len(values) == count, f"{len(values)} start indices for rank {count}")
    for value in values:
        require(value.type.dtype in INTEGERS and not value.type.shape, f"start index {value} is {value.type}")
