"""Random programs: statements with nested control flow on a fixed list of values ("slots")."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.generator.draw import FLOATS, HALVES, INTEGERS, WIDE, Draw, Kind, Shape
from tests.generator.expressions import COUNT, Expressions, Slot, cast, fit
from tests.generator.models import complex_loop, factored, recurrent, rotated

MOST_ELEMENTS = 160
SIZES = (1, 1, 2, 2, 3, 3, 4, 5, 7, 14)  # numbers of statements, at most: most programs are small
NESTED = ("cond", "switch", "fori", "while", "scan")
LARGE = ("lockstep", "recurrent", "rows", "factor", "complex", "rotate")  # loops of their own
STATE, ARGUMENTS = 1, 2  # what else a program's seed determines
Values = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement: what it does follows from its tag and its own seed.

    `number`: in the program, by which it can be left out. `target`: the slot that it sets, if it is no block.
    `more`: other slots that it sets.
    """

    number: int
    tag: str
    seed: int
    target: int
    blocks: tuple[tuple[Statement, ...], ...] = ()
    more: tuple[int, ...] = ()

    @property
    def targets(self) -> frozenset[int]:
        """All slots that it may set."""
        inner = [t for block in self.blocks for s in block for t in s.targets]
        return frozenset(inner or [self.target, *self.more])


@dataclass(frozen=True, slots=True)
class Program:
    """A random program. `x64`: it needs `jax.enable_x64`."""

    seed: int
    x64: bool
    kinds: tuple[Kind, ...]
    block: tuple[Statement, ...]

    def arguments(self) -> list[np.ndarray]:
        draw = Draw(self.seed, ARGUMENTS)
        special, rare = draw.of((0.0, 0.0, 0.1, 0.3)), draw.of((0.0, 0.0, 0.0, 0.02))
        return [draw.array(kind, special if kind.exact else rare) for kind in self.kinds]

    def function(self, without: frozenset[int] = frozenset()) -> Callable[..., Values]:
        """The JAX function, with the statements `without` left out."""
        return lambda *state: _run(self.block, _Run(self.kinds, without), tuple(state))

    @property
    def numbers(self) -> list[int]:
        """Of all statements, those that hold others first."""
        return [s.number for s in _statements(self.block)]

    @property
    def tags(self) -> frozenset[str]:
        """The kinds of its statements."""
        return frozenset(s.tag for s in _statements(self.block))

    @property
    def tolerance(self) -> float:
        """Of inexact results, relative, and absolute for those below 1."""
        floats = {kind.dtype for kind in self.kinds if not kind.exact} & set(FLOATS)
        if floats & set(HALVES):
            return 0.2
        return 2e-3 if "float32" in floats else 1e-5


def _statements(block: Sequence[Statement]) -> Iterator[Statement]:
    for statement in block:
        yield statement
        for inner in statement.blocks:
            yield from _statements(inner)


# ---- making ------------------------------------------------------------------------------------------------


def program(seed: int) -> Program:
    """The program of a seed."""
    draw = Draw(seed, STATE)
    x64 = draw.chance(0.2)
    kinds = _kinds(draw, x64)
    room = _Room(draw.of(SIZES))
    first = draw.of((*[""] * 7, *LARGE, "recurrent"))
    block = [_statement(draw, kinds, room, 3, first)]
    while not room.is_full and draw.chance(0.8):
        block.append(_statement(draw, kinds, room, 2))
    return Program(seed, x64, kinds, tuple(block))


@dataclass(slots=True)
class _Room:
    """For so many statements; numbers them."""

    most: int
    made: int = 0

    def take(self) -> int:
        self.made += 1
        return self.made - 1

    @property
    def is_full(self) -> bool:
        return self.made >= self.most


def _kinds(draw: Draw, x64: bool) -> tuple[Kind, ...]:
    pool = [1, *(draw.of((2, 3, 4, 4, 6, 8, 8, 12)) for _ in range(2))]
    if draw.chance(0.08):
        pool.append(0)
    floats = ["float32", "float32", *(HALVES if draw.chance(0.2) else ()), *(["float64"] if x64 else [])]
    integers = [d for d in INTEGERS if x64 or d not in WIDE]

    def shape(rank: int) -> Shape:
        found = tuple(draw.of(pool) for _ in range(rank))
        return found if np.prod(found) <= MOST_ELEMENTS else shape(rank - 1)

    kinds = [COUNT, Kind("float32", shape(2), False), Kind("int32", shape(1), True)]
    for _ in range(2 + draw.below(4)):
        if draw.chance(0.25):
            kinds.append(draw.of(kinds))
        elif draw.chance(0.55):
            kinds.append(Kind(draw.of(floats), shape(draw.below(4)), draw.chance(0.3)))
        else:
            kinds.append(Kind(draw.of((*integers, "bool", "int32")), shape(draw.below(3)), True))
    return tuple(kinds)


def _statement(draw: Draw, kinds: Sequence[Kind], room: _Room, depth: int, wanted: str = "") -> Statement:
    number, seed = room.take(), draw.seed()
    if wanted or depth == 0 or (room.is_full and depth < 3) or draw.chance(0.3):
        tag = wanted or draw.of((*["assign"] * 5, *LARGE, *["permute"] * 2))
        tag = "assign" if tag in LARGE and depth < 2 else tag
        target = draw.of(_targets(tag, kinds))
        alike = tuple(n for n, kind in enumerate(kinds) if kind == kinds[target] and n != target)
        return Statement(number, tag, seed, target, more=alike if tag == "permute" else ())
    tag, target = draw.of(NESTED), draw.below(len(kinds))
    blocks = []
    for _ in range({"cond": 2, "switch": 1 + draw.below(4)}.get(tag, 1)):
        count = draw.below(3) if tag in ("cond", "switch") else 1 + draw.below(3)
        blocks.append(_block(draw, kinds, room, depth - 1, count))
    return Statement(number, tag, seed, target, tuple(blocks))


def _targets(tag: str, kinds: Sequence[Kind]) -> Sequence[int]:
    """The slots that a statement can set."""
    every = range(len(kinds))
    if tag in ("rows", "lockstep"):
        return [n for n in every if kinds[n].shape and kinds[n].size] or every
    return [n for n in every if kinds[n].is_float and not kinds[n].exact] if tag in LARGE else every


def _block(draw: Draw, kinds: Sequence[Kind], room: _Room, depth: int, count: int) -> tuple[Statement, ...]:
    """At most `count` statements; one at least, unless none is wanted."""
    made: list[Statement] = []
    while len(made) < count and not (made and room.is_full):
        made.append(_statement(draw, kinds, room, depth))
    return tuple(made)


# ---- running -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Run:
    """What all statements of a run know. `extra`: values beside the slots, such as loop counters."""

    kinds: tuple[Kind, ...]
    without: frozenset[int]
    extra: tuple[Slot, ...] = ()

    def expressions(self, draw: Draw, state: Values) -> Expressions:
        return Expressions(draw, [*zip(self.kinds, state, strict=True), *self.extra])

    def knowing(self, *more: Slot) -> _Run:
        return _Run(self.kinds, self.without, (*self.extra, *more))


def _run(block: Sequence[Statement], run: _Run, state: Values) -> Values:
    for statement in block:
        if statement.number not in run.without:
            state = _STATEMENTS[statement.tag](statement, run, state)
    return state


def _with(state: Values, slots: Sequence[int], values: Sequence[Any]) -> Values:
    new = dict(zip(slots, values, strict=True))
    return tuple(new.get(position, value) for position, value in enumerate(state))


def _assign(statement: Statement, run: _Run, state: Values) -> Values:
    draw, kind = Draw(statement.seed), run.kinds[statement.target]
    made = run.expressions(draw, state).make(kind, 1 + draw.below(3))
    return _with(state, (statement.target,), (made,))


def _permute(statement: Statement, run: _Run, state: Values) -> Values:
    """Slots of one kind change places; without others, it is turned over."""
    slots = (statement.target, *statement.more)
    values = [state[s] for s in slots]
    turned = (
        [lax.rev(values[0], tuple(range(values[0].ndim)))] if len(slots) == 1 else values[1:] + values[:1]
    )
    return _with(state, slots, turned)


def _branch(statement: Statement, run: _Run, state: Values) -> Values:
    slots = sorted(statement.targets)
    here = run.expressions(Draw(statement.seed), state)

    def side(block: Sequence[Statement]) -> Callable[..., list[Any]]:
        return lambda *carried: [_run(block, run, _with(state, slots, carried))[s] for s in slots]

    sides = [side(block) for block in statement.blocks]
    carried = [state[s] for s in slots]
    if statement.tag == "cond":
        return _with(state, slots, lax.cond(here.predicate(), *sides, *carried))
    number = here.scalar() if here.draw.chance(0.2) else jnp.abs(here.scalar() % len(sides))
    return _with(state, slots, lax.switch(number, sides, *carried))


def _fori(statement: Statement, run: _Run, state: Values) -> Values:
    draw, slots = Draw(statement.seed), sorted(statement.targets)
    first: Any = draw.of((0, 0, 0, 1, -2))
    last: Any = first + draw.below(6)
    if draw.chance(0.4):  # perhaps before the first
        last = run.expressions(draw, state).scalar() % 5

    def step(i: Any, carried: Sequence[Any]) -> list[Any]:
        known = run.knowing((COUNT, cast(i, "int32")))
        after = _run(statement.blocks[0], known, _with(state, slots, carried))
        return [after[s] for s in slots]

    return _with(state, slots, lax.fori_loop(first, last, step, [state[s] for s in slots]))


def _while(statement: Statement, run: _Run, state: Values) -> Values:
    """As long as a predicate holds, and a counter has not come to its end; or as long as the latter."""
    draw, slots = Draw(statement.seed), sorted(statement.targets)
    limit, seed, counts = draw.below(6), draw.seed(), draw.chance(0.3)
    way: Any = draw.of((1, 1, 2, -1)) if counts else 1
    end = run.expressions(draw, state).scalar() % 9 if draw.chance(0.3) else limit
    first, end = (0, end) if way > 0 else (end, 0)

    def test(carry: tuple[Any, Sequence[Any]]) -> Any:
        count, carried = carry
        goes_on = count < end if way > 0 else count > end
        if counts:
            return goes_on
        wanted = run.expressions(Draw(seed), _with(state, slots, carried)).predicate()
        return goes_on & (wanted | (count < 2))

    def step(carry: tuple[Any, Sequence[Any]]) -> tuple[Any, list[Any]]:
        count, carried = carry
        after = _run(statement.blocks[0], run.knowing((COUNT, count)), _with(state, slots, carried))
        return count + way, [after[s] for s in slots]

    _, carried = lax.while_loop(test, step, (jnp.int32(first), [state[s] for s in slots]))
    return _with(state, slots, carried)


def _scan(statement: Statement, run: _Run, state: Values) -> Values:
    draw, slots = Draw(statement.seed), sorted(statement.targets)
    length, target = draw.below(6), run.kinds[statement.target]
    row = draw.of(run.kinds)
    rows = run.expressions(draw, state).make(row.like(shape=(length, *row.shape)), 1)

    def step(carried: Sequence[Any], x: Any) -> tuple[list[Any], Any]:
        after = _run(statement.blocks[0], run.knowing((row, x)), _with(state, slots, carried))
        return [after[s] for s in slots], after[statement.target]

    reverse, unroll = draw.chance(0.3), 2 if draw.chance(0.1) else 1
    carried, collected = lax.scan(step, [state[s] for s in slots], rows, reverse=reverse, unroll=unroll)
    state = _with(state, slots, carried)
    if draw.chance(0.5):
        return state
    return _with(state, (statement.target,), (fit(collected, target.shape),))


def _lockstep(statement: Statement, run: _Run, state: Values) -> Values:
    """A loop for each row of the target under `vmap`; every row decides how long it runs."""
    draw, target = Draw(statement.seed), run.kinds[statement.target]
    if not target.shape or target.size == 0:
        return _assign(statement, run, state)
    row, seed, branches = target.like(shape=target.shape[1:]), draw.seed(), draw.chance(0.6)
    counts = run.expressions(draw, state).make(Kind("int32", target.shape[:1], True), 1)

    def element(start: Any, count: Any) -> Any:
        def step(carry: tuple[Any, Any]) -> tuple[Any, Any]:
            i, x = carry
            slots = [(row, x), (row, start), (COUNT, i), (COUNT, count), *zip(run.kinds, state, strict=True)]

            def made(which: int) -> Any:
                return Expressions(Draw(seed, which), slots).make(row, 2)

            return i + 1, lax.cond(
                i % 2 == count % 2, lambda: made(0), lambda: made(1)
            ) if branches else made(0)

        return lax.while_loop(lambda c: c[0] < count % 6, step, (jnp.int32(0), start))[1]

    return _with(state, (statement.target,), (jax.vmap(element)(state[statement.target], counts),))


def _rows(statement: Statement, run: _Run, state: Values) -> Values:
    """Rows of the target in turn; a branch decides what becomes of each."""
    draw, target = Draw(statement.seed), run.kinds[statement.target]
    if not target.shape or target.size == 0:
        return _assign(statement, run, state)
    row, seed = target.like(shape=target.shape[1:]), draw.seed()
    keeps, late, whole = draw.chance(0.4), draw.chance(0.3), draw.chance(0.5)
    wanted = run.expressions(draw, state).make(Kind("bool", target.shape[:1], True), 1)

    def step(i: Any, array: Any) -> Any:
        before = array[i - 1 if late else i]
        slots = [(row, before), (COUNT, cast(i, "int32")), *zip(run.kinds, state, strict=True)]

        def side(which: int) -> Callable[[], Any]:
            return lambda: Expressions(Draw(seed, which), slots).make(row, 2)

        made = lax.cond(wanted[i], side(0), (lambda: before) if keeps else side(1))
        return lax.dynamic_update_index_in_dim(array, made, i, 0) if whole else array.at[i].set(made)

    made = lax.fori_loop(int(late), target.shape[0], step, state[statement.target])
    return _with(state, (statement.target,), (made,))


def _inexact(make: Callable[[Draw, Expressions], Any]) -> Callable[[Statement, _Run, Values], Values]:
    """The statement that sets its target to the elements of an inexact array."""

    def ran(statement: Statement, run: _Run, state: Values) -> Values:
        draw, kind = Draw(statement.seed), run.kinds[statement.target]
        made = make(draw, run.expressions(draw, state))
        return _with(state, (statement.target,), (cast(fit(made, kind.shape), kind.dtype),))

    return ran


_STATEMENTS: dict[str, Callable[[Statement, _Run, Values], Values]] = {
    "assign": _assign,
    "permute": _permute,
    "cond": _branch,
    "switch": _branch,
    "fori": _fori,
    "while": _while,
    "scan": _scan,
    "lockstep": _lockstep,
    "recurrent": _inexact(recurrent),
    "rows": _rows,
    "factor": _inexact(factored),
    "complex": _inexact(complex_loop),
    "rotate": _inexact(rotated),
}
