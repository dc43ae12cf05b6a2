"""What a recursion is to JAX: functions with one environment, whose bodies are jaxprs that refer to them.

Operands and results come in three sorts, which differentiation turns into each other (the transpose of what
stands beside is on the right):

| sort | operand | result |
|---|---|---|
| environment | the same for all calls: weights, tables | *accumulated*: the sum over all calls |
| rows | a row for every call, found by its number | a row for every call |
| arguments | what a call gets | what it returns |

The rows of a function that is differentiated are its tape. A body also gets and returns a *token*, a scalar
without meaning: it keeps JAX from dropping a call that it takes to be without consequence, because its
arguments are integers or its results are not used.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from jax_cocktail.primitives.jaxprs import open_jaxpr

Aval: TypeAlias = jax.ShapeDtypeStruct
TOKEN = Aval((), np.dtype("float32"))
NUMBER = Aval((), np.dtype("int32"))


class Numbering(enum.Enum):
    """How calls come to their numbers: they have none, get the next one, or are told by the caller."""

    NONE = 0
    FRESH = 1
    GIVEN = 2


@dataclass(frozen=True, eq=False, slots=True)
class Function:
    """One of the functions of a task.

    `body`: a closed jaxpr without constants, (token, [number,] *environment, *rows, *arguments) ->
    (token, *accumulated, *row results, *results); the number only if the caller tells it. `source`: where the
    user wrote it.
    """

    name: str
    body: Any
    rows: tuple[Aval, ...]
    arguments: tuple[Aval, ...]
    row_results: tuple[Aval, ...]
    results: tuple[Aval, ...]
    source: str = ""

    @property
    def key(self) -> tuple[Any, ...]:
        """Functions that return the same types return them in the same places."""
        return tuple((a.shape, str(a.dtype)) for a in self.results)


@dataclass(frozen=True, slots=True)
class Linear:
    """Of a task that is linear in its last operands of every sort: how many those are. `transposed`: the task
    with operands and results exchanged; made when it is asked for, since not all can be."""

    environment: int
    rows: tuple[int, ...]  # by function
    transposed: Callable[[], Task]


@dataclass(frozen=True, slots=True)
class Lanes:
    """One vmap around a recursion: its size, and which operands and results have a leading axis for it. A
    result without one is the sum over the lanes."""

    size: int
    operands: tuple[bool, ...]
    results: tuple[bool, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Task:
    """Functions that call each other; the first one is called from outside.

    `max_depth`: most calls that are under way at a time; `max_calls`: most calls, where they are numbered.
    `linear`: set if the task is linear in some operands, all arguments among them.
    """

    functions: tuple[Function, ...]
    environment: tuple[Aval, ...]
    accumulated: tuple[Aval, ...]
    numbering: Numbering
    max_depth: int
    max_calls: int
    linear: Linear | None = None

    @property
    def entry(self) -> Function:
        return self.functions[0]

    @property
    def rows(self) -> tuple[Aval, ...]:
        """Of all functions."""
        return tuple(row for function in self.functions for row in function.rows)

    @property
    def row_results(self) -> tuple[Aval, ...]:
        return tuple(row for function in self.functions for row in function.row_results)

    @property
    def numbers(self) -> int:
        """How many operands tell the number of the first call, plus one: where that is zero, there is none
        (under vmap, both sides of a branch run, one of them with a tape of zeros)."""
        return int(self.numbering is Numbering.GIVEN)

    @property
    def operands(self) -> tuple[Aval, ...]:
        """Of the primitive."""
        stacked = (Aval((self.max_calls, *row.shape), row.dtype) for row in self.rows)
        numbers = (NUMBER,) * self.numbers
        return (TOKEN, *numbers, *self.environment, *stacked, *self.entry.arguments)

    @property
    def results(self) -> tuple[Aval, ...]:
        """Of the primitive."""
        stacked = (Aval((self.max_calls, *row.shape), row.dtype) for row in self.row_results)
        return (TOKEN, *self.accumulated, *stacked, *self.entry.results)

    def split_operands(self, operands: Sequence[Any]) -> tuple[list[Any], ...]:
        """Token and number, environment, rows of all functions, arguments."""
        sizes = (1 + self.numbers, len(self.environment), len(self.rows))
        return split(operands, *sizes)

    def split_results(self, results: Sequence[Any]) -> tuple[list[Any], ...]:
        """Token, accumulated, row results of all functions, results."""
        return split(results, 1, len(self.accumulated), len(self.row_results))


def split(values: Sequence[Any], *sizes: int) -> tuple[list[Any], ...]:
    """Runs of these lengths, and the rest."""
    found, start = [], 0
    for size in sizes:
        found.append(list(values[start : start + size]))
        start += size
    return (*found, list(values[start:]))


def aval_of(value: Any) -> Aval:
    """Shape and dtype of an array, tracer or abstract value; Python scalars as JAX sees them."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return Aval(tuple(value.shape), value.dtype)
    return Aval(jnp.shape(value), jnp.result_type(value))


def is_float(aval: Any) -> bool:
    """Whether values of this type can be differentiated."""
    return bool(jnp.issubdtype(aval.dtype, jnp.inexact))


def floats(avals: Sequence[Any]) -> tuple[int, ...]:
    """The positions of what can be differentiated."""
    return tuple(k for k, aval in enumerate(avals) if is_float(aval))


def evaluate(jaxpr: Any, consts: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
    """The results of a jaxpr with these constants."""
    closed = jex.ClosedJaxpr(open_jaxpr(jaxpr), list(consts))
    return list(jex.jaxpr_as_fun(closed)(*operands))


def row_bytes(avals: Sequence[Any]) -> int:
    """Bytes of one value of each type."""
    return sum(math.prod(a.shape) * a.dtype.itemsize for a in avals)
