"""The order of a linear task's operands: within each sort, the linear operands come last.

Only this module knows the order. Transposition exchanges the linear operands and the results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from jax_cocktail.recursion.task import Task, split

T = TypeVar("T")
S = TypeVar("S")
Rows = tuple[tuple[T, ...], ...]  # by function


@dataclass(frozen=True, slots=True)
class Moving(Generic[T]):
    """One item for each linear operand of a task, or for each of its results, where `environment` holds the
    accumulated sums."""

    token: T
    environment: tuple[T, ...]
    rows: Rows[T]
    arguments: tuple[T, ...]

    @property
    def flat(self) -> tuple[T, ...]:
        """All items, in the order of a task's results."""
        return (self.token, *self.environment, *(x for own in self.rows for x in own), *self.arguments)

    def each(self, change: Callable[[T], S]) -> Moving[S]:
        """Applies `change` to each item."""
        rows = tuple(tuple(map(change, own)) for own in self.rows)
        environment, arguments = tuple(map(change, self.environment)), tuple(map(change, self.arguments))
        return Moving(change(self.token), environment, rows, arguments)


@dataclass(frozen=True, slots=True)
class Layout(Generic[T]):
    """One item for each operand of a linear task, or of one of its functions (with only its own rows): first
    the constant operands, then the linear ones in `moving`."""

    number: T
    environment: tuple[T, ...]
    rows: Rows[T]
    moving: Moving[T]

    @property
    def constant(self) -> tuple[T, ...]:
        return (self.number, *self.environment, *(x for own in self.rows for x in own))

    @property
    def flat(self) -> tuple[T, ...]:
        """All items, in the order of the operands."""
        found: list[T] = []
        self.each(found.append)
        return tuple(found)

    def filled(self, values: Sequence[S]) -> Layout[S]:
        """The layout with these values, given in the order of the operands."""
        remaining = iter(values)
        return self.each(lambda _: next(remaining))

    def each(self, change: Callable[[T], S]) -> Layout[S]:
        """Applies `change` to each item, in the order of the operands."""
        moving = self.moving
        token, number = change(moving.token), change(self.number)
        environment = tuple(map(change, self.environment))
        moving_environment = tuple(map(change, moving.environment))
        rows = [(tuple(map(change, x)), tuple(map(change, y))) for x, y in self._rows]
        arguments = tuple(map(change, moving.arguments))
        constant, moving_rows = tuple(x for x, _ in rows), tuple(y for _, y in rows)
        return Layout(
            number, environment, constant, Moving(token, moving_environment, moving_rows, arguments)
        )

    @property
    def _rows(self) -> zip[tuple[tuple[T, ...], tuple[T, ...]]]:
        return zip(self.rows, self.moving.rows, strict=True)


def operands_of(task: Task) -> Layout[int]:
    """The positions of a linear task's operands."""
    assert task.linear is not None
    (token, number), environment, rows, arguments = task.split_operands(range(len(task.operands)))
    constant, moving = _parts(environment, task.linear.environment)
    own = split(rows, *(len(f.rows) for f in task.functions))
    pairs = [_parts(x, n) for x, n in zip(own, task.linear.rows, strict=False)]
    moving_rows = tuple(y for _, y in pairs)
    return Layout(
        number, constant, tuple(x for x, _ in pairs), Moving(token, moving, moving_rows, tuple(arguments))
    )


def results_of(task: Task) -> Moving[int]:
    """The positions of a task's results."""
    (token,), accumulated, rows, results = task.split_results(range(len(task.results)))
    own = split(rows, *(len(f.row_results) for f in task.functions))[:-1]
    return Moving(token, tuple(accumulated), tuple(map(tuple, own)), tuple(results))


def _parts(positions: Sequence[int], moving: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Splits the positions of one sort into constant ones and the last `moving`, which are linear."""
    first = len(positions) - moving
    return tuple(positions[:first]), tuple(positions[first:])
