"""Builds kernel IR: templates of C text, and a writer that collects statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from string import Formatter
from typing import TypeVar

from jax_cocktail.codegen.kernel import (
    Assign,
    Call,
    Compound,
    Declaration,
    Expression,
    Index,
    Load,
    Loop,
    Name,
    Node,
    Spelled,
    Store,
    spelled,
)
from jax_cocktail.codegen.text import MOST_ELEMENTS, NARROW, STORAGE

_T = TypeVar("_T")
Axes = Sequence[tuple[Name, int]]  # loop variables and their counts, outermost first
Finish = Callable[[Loop], Sequence[Node]]  # a pass over a loop


def code(template: str, *operands: Expression | int, **named: Expression | int) -> Spelled:
    """A format string of C text, with operands in the place of its fields."""
    rest = iter(operands)
    pieces: list[Expression] = []
    for text, field in _fields(template):
        if text:
            pieces.append(text)
        if field is not None:
            operand = named[field] if field else next(rest)
            pieces.append(spelled(operand) if isinstance(operand, int) else operand)
    return Spelled(tuple(pieces))


@cache
def _fields(template: str) -> list[tuple[str, str | None]]:
    return [(text, field) for text, field, _, _ in Formatter().parse(template)]


def joined(separator: str, items: Sequence[Expression]) -> Spelled:
    """Expressions joined by a text."""
    return code(separator.join(["{}"] * len(items)), *items)


def call(function: str, *arguments: Expression | int) -> Call:
    """A call of a function of the runtime headers."""
    return Call(function, tuple(spelled(each) if isinstance(each, int) else each for each in arguments))


def clamped(position: Expression, limit: int) -> Call:
    """An index clamped to 0 ... `limit`."""
    return call("ck_clamp_index", position, limit)


def up(value: Expression, dtype: str) -> Expression:
    """A stored element as a value of the compute type."""
    return call("ck_up", value) if dtype in NARROW else value


def down(value: Expression, dtype: str) -> Expression:
    """A value of the compute type as it is stored."""
    return call(f"ck_down<{STORAGE[dtype]}>", value) if dtype in NARROW else value


def variable(name: Name) -> Index:
    """A loop variable as an index."""
    return Index(0, ((name, 1),))


def axes_of(shape: Sequence[int], prefix: str = "i") -> Axes:
    """A loop variable for each axis of a shape."""
    return [(Name(f"{prefix}{d}"), n) for d, n in enumerate(shape)]


def indices_of(axes: Axes) -> tuple[Index, ...]:
    """The loop variables as indices; 0 along unit axes."""
    return tuple(variable(name) if n != 1 else Index() for name, n in axes)


def indices_within(loops: Axes, shape: Sequence[int]) -> tuple[Index, ...]:
    """The position of the loops as indices of an array of their shape, unit axes aside."""
    rest = iter(indices_of(loops))
    return tuple(next(rest) if n != 1 else Index() for n in shape)


def iterated(axes: Axes) -> list[tuple[Name, int]]:
    """The axes that get a loop: all but unit axes."""
    return [(name, n) for name, n in axes if n != 1]


def replaced(items: Sequence[_T], axis: int, item: _T) -> tuple[_T, ...]:
    """Sizes or indices with another one at `axis`."""
    return (*items[:axis], item, *items[axis + 1 :])


def unchanged(loop: Loop) -> Sequence[Node]:
    """The pass that does nothing."""
    return [loop]


class Writer:
    """Collects the statements of a function. `index`: the type of loop variables."""

    def __init__(self, index: str = "i64") -> None:
        self.nodes: list[Node] = []
        self.index = index
        self._fresh = 0

    def fresh(self, prefix: str) -> Name:
        self._fresh += 1
        return Name(f"{prefix}{self._fresh}")

    def add(self, *nodes: Node) -> None:
        self.nodes += nodes

    def line(self, template: str, *operands: Expression | int) -> None:
        """A statement that is plain text."""
        self.add(code(template, *operands))

    def let(self, type_: str, name: Name, value: Expression) -> Name:
        """A constant variable."""
        self.add(Declaration(type_, name, value))
        return name

    def var(self, type_: str, name: Name, value: Expression) -> Name:
        """A mutable variable."""
        self.add(Declaration(type_, name, value, const=False))
        return name

    def set(self, name: Expression, value: Expression, condition: Expression = "") -> None:
        self.add(Assign(name, value, condition))

    def store(self, element: Load, value: Expression, condition: Expression = "") -> None:
        self.add(Store(element, value, condition))

    @contextmanager
    def block(self, head: Expression = "", template: str = "") -> Iterator[None]:
        with self._inside() as body:
            yield
        self.add(Compound(head, tuple(body), template))

    @contextmanager
    def loop(
        self,
        name: Name,
        stop: Expression | int,
        pragma: Expression = "",
        *,
        start: Expression = "0",
        step: Expression | int = "",
        declared: bool = False,
        finish: Finish = unchanged,
    ) -> Iterator[None]:
        """A counted loop, see `Loop`. `declared`: its variable exists already. `finish`: a pass over it."""
        index = "i64" if isinstance(stop, int) and stop > MOST_ELEMENTS else self.index
        with self._inside() as body:
            yield
        stop, step = (spelled(n) if isinstance(n, int) else n for n in (stop, step))
        self.add(*finish(Loop("" if declared else index, name, start, stop, tuple(body), step, pragma)))

    @contextmanager
    def loops(self, axes: Axes, pragma: Expression = "", finish: Finish = unchanged) -> Iterator[None]:
        """A loop for each axis. `pragma`, `finish`: of the innermost one."""
        with ExitStack() as stack:
            for name, count in axes[:-1]:
                stack.enter_context(self.loop(name, count))
            for name, count in axes[-1:]:
                stack.enter_context(self.loop(name, count, pragma, finish=finish))
            yield

    @contextmanager
    def nest(self, shape: Sequence[int], prefix: str = "i") -> Iterator[tuple[Index, ...]]:
        """Sequential loops over the positions of a shape. Yields the indices."""
        axes = axes_of(shape, prefix)
        with self.loops(iterated(axes)):
            yield indices_of(axes)

    @contextmanager
    def _inside(self) -> Iterator[list[Node]]:
        outer, self.nodes = self.nodes, []
        yield self.nodes
        self.nodes = outer
