"""The task, a recursion as seen by JAX: functions whose bodies are jaxprs with references to each other.

Operands and results are of three sorts. Transposition exchanges the two columns of this table:

| sort | operand | result |
|---|---|---|
| environment | shared by all calls: weights, tables | *accumulated*: the sum over all calls |
| rows | one row per call, indexed by its number | one row per call |
| arguments | the arguments of a call | the results of a call |

The rows of a differentiated function are its tape. A body also takes and returns a *token*, a scalar without
meaning. It keeps JAX from removing a call that seems to have no effect because its arguments are integers or
its results are unused.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from itertools import accumulate, pairwise
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from jax_cocktail.primitives.jaxprs import open_jaxpr

RECURSION = "recursion"  # the name of the primitive
_Fact = TypeVar("_Fact")
_Rest = ParamSpec("_Rest")
Aval: TypeAlias = jax.ShapeDtypeStruct
TOKEN = Aval((), np.dtype("float32"))
NUMBER = Aval((), np.dtype("int32"))


class Numbering(enum.Enum):
    """The numbering of calls: no numbers, the next free number, or a number given by the caller."""

    NONE = 0
    FRESH = 1
    GIVEN = 2


@dataclass(frozen=True, eq=False, slots=True)
class Function:
    """One function of a task.

    `body`: a closed jaxpr without constants, (token, [number,] *environment, *rows, *arguments) ->
    (token, *accumulated, *row results, *results), with the number only if the caller gives it. `source`: the
    user's source line.
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
        """The types of the results. Functions with equal keys return them in the same registers."""
        return tuple((a.shape, str(a.dtype)) for a in self.results)


@dataclass(frozen=True, slots=True)
class Linear:
    """Linearity of a task: the number of linear operands, which come last in each sort. `transposed` makes
    the transposed task on demand, since some tasks have none."""

    environment: int
    rows: tuple[int, ...]  # by function
    transposed: Callable[[], Task]


@dataclass(frozen=True, slots=True)
class Elements:
    """One vmap around a recursion: its size, and flags for the operands and results with a leading batch
    axis. A result without one is the sum over the batch."""

    size: int
    operands: tuple[bool, ...]
    results: tuple[bool, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Task:
    """Functions that call each other. The first one is called from outside.

    `max_depth`: the most calls active at a time; `max_calls`: the most calls in total, if they are numbered;
    `linear`: set if the task is linear in some operands, which include all arguments.
    """

    functions: tuple[Function, ...]
    environment: tuple[Aval, ...]
    accumulated: tuple[Aval, ...]
    numbering: Numbering
    max_depth: int
    max_calls: int
    linear: Linear | None = None
    known: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)  # see `once`

    @property
    def entry(self) -> Function:
        return self.functions[0]

    @property
    def rows(self) -> tuple[Aval, ...]:
        """The rows of all functions."""
        return tuple(row for function in self.functions for row in function.rows)

    @property
    def row_results(self) -> tuple[Aval, ...]:
        return tuple(row for function in self.functions for row in function.row_results)

    @property
    def numbers(self) -> int:
        """The number (0 or 1) of operands with the first call's number plus one. A zero in it means that
        there is no call: under vmap both sides of a branch run, one of them with a tape of zeros."""
        return int(self.numbering is Numbering.GIVEN)

    @property
    def operands(self) -> tuple[Aval, ...]:
        """The operands of the primitive."""
        stacked = (Aval((self.max_calls, *row.shape), row.dtype) for row in self.rows)
        numbers = (NUMBER,) * self.numbers
        return (TOKEN, *numbers, *self.environment, *stacked, *self.entry.arguments)

    @property
    def results(self) -> tuple[Aval, ...]:
        """The results of the primitive."""
        stacked = (Aval((self.max_calls, *row.shape), row.dtype) for row in self.row_results)
        return (TOKEN, *self.accumulated, *stacked, *self.entry.results)

    def split_operands(self, operands: Sequence[Any]) -> tuple[list[Any], ...]:
        """Splits operands into token and number, environment, rows of all functions, arguments."""
        sizes = (1 + self.numbers, len(self.environment), len(self.rows))
        return split(operands, *sizes)

    def split_results(self, results: Sequence[Any]) -> tuple[list[Any], ...]:
        """Splits results into token, accumulated, row results of all functions, results."""
        return split(results, 1, len(self.accumulated), len(self.row_results))


class _Knowing(Protocol):
    """A task or a loop, which holds what is known of it."""

    @property
    def known(self) -> dict[Any, Any]: ...


_Whole = TypeVar("_Whole", bound=_Knowing)


def batched(results: Sequence[Aval], elements: Sequence[Elements]) -> list[Any]:
    """The types of these results of one batch element, under vmaps."""
    sizes = [[x.size for x in elements if x.results[k]] for k in range(len(results))]
    pairs = zip(sizes, results, strict=True)
    return [jax.core.ShapedArray((*size, *aval.shape), aval.dtype) for size, aval in pairs]


def once(find: Callable[Concatenate[_Whole, _Rest], _Fact]) -> Callable[Concatenate[_Whole, _Rest], _Fact]:
    """Caches a function of a task or a loop, with it: the answers hold what it closes over."""

    @wraps(find)
    def found(task: _Whole, /, *rest: _Rest.args, **named: _Rest.kwargs) -> _Fact:
        key = find, rest, tuple(sorted(named.items()))
        if key not in task.known:
            task.known[key] = find(task, *rest, **named)
        fact: _Fact = task.known[key]
        return fact

    return found


def split(values: Sequence[Any], *sizes: int) -> tuple[list[Any], ...]:
    """Splits values into runs of these lengths and the remainder."""
    found, start = [], 0
    for size in sizes:
        found.append(list(values[start : start + size]))
        start += size
    return (*found, list(values[start:]))


def aval_of(value: Any) -> Aval:
    """The shape and dtype of an array, tracer or abstract value, or of a Python scalar as JAX types it."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return Aval(tuple(value.shape), value.dtype)
    return Aval(jnp.shape(value), jnp.result_type(value))


def is_float(aval: Any) -> bool:
    """True if values of this type can be differentiated."""
    return bool(jnp.issubdtype(aval.dtype, jnp.inexact))


def floats(avals: Sequence[Any]) -> tuple[int, ...]:
    """The positions of the differentiable values."""
    return tuple(k for k, aval in enumerate(avals) if is_float(aval))


def evaluate(jaxpr: Any, consts: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
    """Evaluates a jaxpr with these constants."""
    closed = jex.ClosedJaxpr(open_jaxpr(jaxpr), list(consts))
    return list(jex.jaxpr_as_fun(closed)(*operands))


def zeros(aval: Any) -> Any:
    """An array of zeros of this type."""
    return jnp.zeros(aval.shape, aval.dtype)


def placed(avals: Mapping[int, Aval], slots: list[Aval]) -> dict[int, int]:
    """Assigns each value a slot of its type, and appends missing slots to `slots`. Groups of values of which
    only one is there at a time share slots."""
    found: dict[int, int] = {}
    for k, aval in avals.items():
        same = (n for n, slot in enumerate(slots) if (slot.shape, slot.dtype) == (aval.shape, aval.dtype))
        found[k] = next((n for n in same if n not in found.values()), len(slots))
        slots += [aval] if found[k] == len(slots) else []
    return found


def ranges(counts: Iterable[int]) -> tuple[range, ...]:
    """Consecutive ranges with these lengths, from 0 on."""
    return tuple(range(a, b) for a, b in pairwise(accumulate(counts, initial=0)))


def affordable(avals: Sequence[Any], most_bytes: int, most: int) -> int:
    """The number of rows of these types that fit in `most_bytes`; at least 1, at most `most`."""
    return max(min(most_bytes // max(row_bytes(avals), 1), most), 1)


def row_bytes(avals: Sequence[Any]) -> int:
    """The total bytes of one value of each type."""
    return sum(math.prod(a.shape) * a.dtype.itemsize for a in avals)
