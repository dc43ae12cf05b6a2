"""Maps loops with independent iterations to sequential loops, vector lanes or threads.

If a unit is one thread, a lane loop is a loop nest whose innermost loop the compiler vectorises. If it is a
thread block, the nest is one loop over flat positions, distributed over the threads; adjacent threads get
adjacent elements, so that their accesses coalesce. Each reduced row gets a group of threads, as many as keep
the block busy (AStitch, ASPLOS'22, section 3.3, adaptive thread mapping). Every warp reduces a short row that
is alone for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from math import prod

from jax_cocktail.codegen.context import Context
from jax_cocktail.codegen.kernel import Expression, Index, Loop, Name, Node
from jax_cocktail.codegen.passes import batch, copy_in, hoisted, unrolled
from jax_cocktail.codegen.text import MOST_ELEMENTS, STORAGE, literal
from jax_cocktail.codegen.writer import Axes, Finish, axes_of, code, indices_of, iterated, joined, unchanged
from jax_cocktail.device.tuning import BLOCK, PROGRAM
from jax_cocktail.errors import UnsupportedError
from jax_cocktail.utask.sizes import is_general

_AT, _TRIP = Name("at"), Name("j")  # the position of a batch, and the number of a trip in it
_ZERO = literal(bytes(4), "float32")
_WORDS = frozenset(STORAGE[dtype] for dtype in ("float32", "float64", "int32", "int64", "uint32", "uint64"))


@contextmanager
def lane_nest(context: Context, axes: Axes) -> Iterator[None]:
    """Loops over all positions of `axes`; the iterations are independent."""
    target, writer = context.target, context.writer
    if target.has_threads:
        with _dealt(context, axes, _bounded(context, _counted(axes) // target.threads)):
            _unravel(context, axes)
            yield
        return
    last = axes[-1][1] if axes else 0
    if axes and not is_general(last) and last < PROGRAM.parameter_lanes:  # lanes want to know a short loop
        axes = [*axes[:-1], (axes[-1][0], int(last))]
    with writer.loops(axes, target.lanes if axes and axes[-1][1] > 1 else "", hoisted):
        yield


@contextmanager
def copy_nest(context: Context, axes: Axes) -> Iterator[None]:
    """Threads copy an element at each position of `axes` to memory near the unit. In the resident kernel the
    elements pass the registers, and all of a thread's copies are under way together."""
    bounded = _bounded(context, _counted(axes) // context.target.threads)
    context.needs.add("block")

    def moved(loop: Loop) -> Sequence[Node]:
        copy = copy_in(loop.body, _ZERO)
        assert copy is not None
        call = code("ck_move<RESIDENT>(&{}, &{}, {});", copy.to, copy.element, copy.valid)
        return bounded(replace(loop, body=(*copy.places, call)))

    with _dealt(context, axes, moved):
        _unravel(context, axes)
        yield
    context.writer.line("ck_moved<RESIDENT>();")


def lane_loop(context: Context, name: Name, count: int) -> AbstractContextManager[None]:
    """One loop whose iterations are independent."""
    if context.target.has_threads:
        return _dealt(context, [(name, count)])
    return context.writer.loop(name, count)


@contextmanager
def rows_over(context: Context, shape: Sequence[int]) -> Iterator[tuple[Index, ...]]:
    """Loops over the positions of a shape; the iterations are independent. Yields the indices."""
    axes, threads = axes_of(shape), context.target.has_threads
    with lane_nest(context, iterated(axes)) if threads else context.writer.loops(iterated(axes)):
        yield indices_of(axes)


def _counted(axes: Axes) -> int:
    """The number of positions. Raises UnsupportedError if it exceeds 32 bits."""
    count = prod(n for _, n in axes)
    if count > MOST_ELEMENTS:
        raise UnsupportedError(f"a loop over {count} elements: a GPU program counts them in 32 bits")
    return count


def may_copy(context: Context, batches: Batches, body: Sequence[Node]) -> bool:
    """True if this body of a lane loop is for `copy_nest`, and batches of it wait more than once."""
    copy = copy_in(body, _ZERO)
    if copy is None or batches.count <= batches.together * context.target.threads:
        return False
    to, element = copy.to.pointer, copy.element.pointer
    words = to.type == element.type and to.type in _WORDS
    return words and context.is_at(to, context.target.near) and context.is_at(element, context.target.far)


def _dealt(context: Context, axes: Axes, finish: Finish = unchanged) -> AbstractContextManager[None]:
    """A loop whose iterations the threads share in turn."""
    name, threads = _flat(axes), context.target.threads
    return context.writer.loop(name, _counted(axes), start="ck_lane()", step=threads, finish=finish)


def _flat(axes: Axes, name: str = "l") -> Name:
    """The variable of a loop over all positions of some axes."""
    return axes[0][0] if len(axes) == 1 else Name(name)


def _bounded(context: Context, trips: int) -> Finish:
    return lambda loop: unrolled(loop, trips, context.target.most_together)


@dataclass(frozen=True, slots=True)
class Batches:
    """A lane loop in which each thread takes several positions at a time: it loads all of their operands
    before it stores any result, so that it waits once. The compiler cannot do so: it must assume that the
    positions alias."""

    axes: Axes
    together: int
    count: int
    threads: int
    first: Expression = "ck_lane()"  # position of a thread
    inside: Expression = ""  # the condition under which it takes any, "" for always

    def over(self, context: Context) -> AbstractContextManager[None]:
        """The loop over all full batches, around the work of one."""
        context.writer.var(context.target.index, _AT, self.first)
        full = self.count - (self.together - 1) * self.threads
        return self._loop(context, full, self.together * self.threads)

    def _loop(self, context: Context, count: int, step: int) -> AbstractContextManager[None]:
        return context.writer.loop(_AT, _if(self.inside, count), start="", step=step, declared=True)

    @contextmanager
    def each(self, context: Context) -> Iterator[Name]:
        """Loops over the positions of a batch. Yields the variable that counts them."""
        with context.writer.loop(_TRIP, self.together, "#pragma unroll"):
            self._position(context, code("{} + {} * {}", _AT, self.threads, _TRIP))
            yield _TRIP

    @contextmanager
    def rest(self, context: Context) -> Iterator[None]:
        """Loops over the positions that fill no batch."""
        with self._loop(context, self.count, self.threads):
            self._position(context, _AT)
            yield

    def has_rest(self) -> bool:
        return self.count % (self.together * self.threads) != 0

    def _position(self, context: Context, position: Expression) -> None:
        context.writer.let(context.target.index, _flat(self.axes), position)
        _unravel(context, self.axes)


def batches(context: Context, axes: Axes, body: Sequence[Node]) -> Batches | None:
    """The batches of a lane loop with this body; None if they do not pay."""
    if not (axes and context.target.has_threads):
        return None
    count, threads = _counted(axes), context.target.threads
    together = batch(body, count // threads, context.target.most_together)
    return Batches(axes, together, count, threads) if together > 1 else None


def _unravel(context: Context, axes: Axes, flat: str = "l") -> None:
    """Declares the loop variables of a flat position."""
    if len(axes) == 1 and flat == "l":
        return
    rest: Expression = Name(flat)
    for position, (name, count) in reversed(list(enumerate(axes))):
        value = rest if position == 0 else code("{} % {}", rest, count)
        context.writer.let(context.target.index, name, value)
        rest = code("{} / {}", rest, count)


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows with `size` threads each."""

    size: int
    rows: int


def groups_for(rows: int, length: int, threads: int, warp: int) -> Groups:
    """The groups of threads for rows of `length` elements."""
    if length <= 1:
        return Groups(1, rows)
    if rows == 1 and length <= BLOCK.warp_length:
        return Groups(min(warp, threads), rows)
    if rows == 1 or (rows <= BLOCK.whole_rows and length >= BLOCK.whole_length * threads):
        return Groups(threads, rows)
    size = 1
    while size < warp and size < length and rows * size < threads:
        size *= 2
    return Groups(size, rows)


@dataclass(frozen=True, slots=True)
class Row:
    """Conditions at a row, "" if they always hold.

    Attributes:
      stores: a thread stores what its group has computed.
      inside: the row is one of this group.
      first: of several groups that have the same row, the thread is in the first.
    """

    stores: Expression
    inside: Expression = ""
    first: Expression = ""


@contextmanager
def group_rows(context: Context, groups: Groups, kept: Axes) -> Iterator[Row]:
    """Loops over rows, with a group of threads for each.

    The trip count is the same for all threads, so that a group can always exchange values; groups beyond the
    last row work on that row once more and store nothing.
    """
    _counted(kept)
    threads, index, writer = context.target.threads, context.target.index, context.writer
    at_once = threads // groups.size
    alone = groups.size == threads or groups.rows == 1
    first = "ck_lane() == 0" if alone else f"ck_lane() % {groups.size} == 0"
    if groups.rows == 1:
        with writer.block():
            yield Row(first, first="" if groups.size == threads else f"ck_lane() < {groups.size}")
        return
    begin, mine, row = Name("first"), Name("mine"), Name("r")
    with writer.loop(begin, groups.rows, step=at_once):
        own = begin if at_once == 1 else code("{} + ck_lane() / {}", begin, groups.size)
        writer.let(index, mine, own)
        even = groups.rows % at_once == 0
        inside = "" if even else code("{} < {}", mine, groups.rows)
        last = groups.rows - 1
        writer.let(index, row, mine if even else code("{} ? {} : {}", inside, mine, last))
        _unravel(context, kept, row.text)
        terms = [first] if groups.size > 1 else []
        stores = joined(" && ", terms if even else [*terms, inside]) if terms or not even else "true"
        yield Row(stores, inside)


@contextmanager
def group_elements(context: Context, groups: Groups, inner: Axes, inside: Expression = "") -> Iterator[None]:
    """Loops over the elements of a row, distributed over the threads of its group; none if the group is not
    `inside`, where that is a condition."""
    count = _counted(inner)
    start, stop = _first_of(context, groups), _if(inside, count)
    finish = _bounded(context, count // groups.size)
    with context.writer.loop(_flat(inner, "k"), stop, start=start, step=groups.size, finish=finish):
        if len(inner) > 1:
            _unravel(context, inner, "k")
        yield


def group_batches(
    context: Context, groups: Groups, inner: Axes, body: Sequence[Node], inside: Expression = ""
) -> Batches | None:
    """The batches of the same loop if it has this body; None if they do not pay."""
    count = _counted(inner)
    together = batch(body, count // groups.size, context.target.most_together)
    first = _first_of(context, groups)
    return Batches(inner, together, count, groups.size, first, inside) if together > 1 else None


def _first_of(context: Context, groups: Groups) -> str:
    """The first element of a row that a thread takes."""
    return {1: "0", context.target.threads: "ck_lane()"}.get(groups.size, f"ck_lane() % {groups.size}")


def _if(inside: Expression, count: int) -> Expression | int:
    return count if inside == "" else code("({} ? {} : 0)", inside, count)


@contextmanager
def group_elements_again(context: Context, groups: Groups, axis: tuple[Name, int]) -> Iterator[None]:
    """Maps elements that may be taken twice, along one axis. All threads make the same number of
    trips, in batches whose loads are under way together. Beyond the end they take the last element again."""
    (name, count), size = axis, groups.size
    trips = -(-count // size)
    together = -(-trips // -(-trips // (2 * context.target.most_together)))  # a register each, no more
    lane = _first_of(context, groups)
    base, last = Name("base"), count - 1
    stop, pragma = -(-trips // together) * together * size, f"#pragma unroll {together}"
    with context.writer.loop(base, stop, pragma, step=size):
        own = code("{} + {}", base, lane)
        context.writer.let(context.target.index, name, code("{} < {} ? {} : {}", own, last, own, last))
        yield
