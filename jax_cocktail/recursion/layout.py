"""The order of a linear task's operands: of every sort, what the task is linear in comes last.

Nothing else knows the order. The transpose of a task has results in the place of what moves, and what moves
in the place of results.
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
    """Something of everything that a task is linear in, or of all its results; `environment`: there what is
    accumulated."""

    token: T
    environment: tuple[T, ...]
    rows: Rows[T]
    arguments: tuple[T, ...]

    @property
    def flat(self) -> tuple[T, ...]:
        """In the order of a task's results."""
        return (self.token, *self.environment, *(x for own in self.rows for x in own), *self.arguments)

    def each(self, change: Callable[[T], S]) -> Moving[S]:
        """What `change` makes of each."""
        rows = tuple(tuple(map(change, own)) for own in self.rows)
        environment, arguments = tuple(map(change, self.environment)), tuple(map(change, self.arguments))
        return Moving(change(self.token), environment, rows, arguments)


@dataclass(frozen=True, slots=True)
class Layout(Generic[T]):
    """Something of every operand of a linear task, or of one function (with only its own rows): of
    what is constant, and of what moves."""

    number: T
    environment: tuple[T, ...]
    rows: Rows[T]
    moving: Moving[T]

    @property
    def constant(self) -> tuple[T, ...]:
        return (self.number, *self.environment, *(x for own in self.rows for x in own))

    @property
    def flat(self) -> tuple[T, ...]:
        """In the order of the operands."""
        found: list[T] = []
        self.each(found.append)
        return tuple(found)

    def filled(self, values: Sequence[S]) -> Layout[S]:
        """These values, which are in the order of the operands, in the places of its own."""
        remaining = iter(values)
        return self.each(lambda _: next(remaining))

    def each(self, change: Callable[[T], S]) -> Layout[S]:
        """What `change` makes of each, one after the other."""
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
    """What is constant of one sort, and what moves: so many at the end."""
    first = len(positions) - moving
    return tuple(positions[:first]), tuple(positions[first:])
