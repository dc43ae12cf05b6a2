"""How loops with independent iterations run: one after the other, in vector lanes, or dealt out to threads.

Where a unit is one thread, a lane loop is a loop nest whose innermost loop the compiler vectorises. Where it
is a block of threads, the nest is one loop over flat positions, dealt out to the threads; neighbours get
neighbouring elements, so that their accesses fall together. Rows that are reduced get a group of threads
each: as many as keep the block busy (AStitch, ASPLOS'22, section 4.4, adaptive thread mapping).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from math import prod

from jax_cocktail.codegen.context import Context
from jax_cocktail.codegen.loops import loop_over
from jax_cocktail.codegen.text import MOST_ELEMENTS, Index, Writer, variable
from jax_cocktail.errors import UnsupportedError

Axes = Sequence[tuple[str, int]]  # loop variable and count, outermost first
WARP = 32
FEW_ROWS = 4  # up to here a row has the whole block, one row after the other
LONG_ROW = 8  # elements per thread of the block from which that pays
LONG_BODY = 96  # lines of a loop's trips written out side by side, a call counted as
LONG_CALL = 4


@contextmanager
def lane_nest(context: Context, axes: Axes) -> Iterator[None]:
    """Loops over all positions of `axes`; the iterations are independent."""
    target, writer = context.target, context.writer
    if target.has_threads:
        with _few_together(context, _counted(axes) // target.threads), writer.block(_dealt(context, axes)):
            _unravel(context, axes)
            yield
        return
    with ExitStack() as stack:
        for position, (name, count) in enumerate(axes):
            last = position == len(axes) - 1
            stack.enter_context(_lifting(writer, name) if last else nullcontext())
            stack.enter_context(writer.loop(name, count, target.lanes if last and count > 1 else ""))
        yield


_WORD = re.compile(r"\w+")
_CONST = re.compile(r" *const [\w:]+ (\w+) = (.*);")
_STORE = re.compile(r" *\w+\[.*\] = (\w+|ck_down<\w+>\(\w+\));")


@contextmanager
def _lifting(writer: Writer, name: str) -> Iterator[None]:
    """Around a loop: what does not depend on its variable is computed before it. The compiler cannot do so
    with a load, and gathers: for all it knows the loop's stores change what is loaded."""
    start = len(writer.lines)
    yield
    lines = writer.lines[start:]
    first = next((k for k, line in enumerate(lines, 1) if line.endswith("{")), len(lines))
    matches = [_CONST.fullmatch(line) for line in lines[first:-1]]
    if not all(m or _STORE.fullmatch(line) for m, line in zip(matches, lines[first:-1], strict=True)):
        return
    inside, before, body = {name}, list[str](), list[str]()
    for match, line in zip(matches, lines[first:-1], strict=True):
        if match is None or not inside.isdisjoint(_WORD.findall(match[2])):
            body.append(line)
            inside |= {match[1]} if match else set()
        else:
            before.append(line[2:])
    writer.lines[start:] = [*before, *lines[:first], *body, lines[-1]]


def lane_loop(context: Context, name: str, count: int, pragma: bool = False) -> AbstractContextManager[None]:
    """One loop whose iterations are independent. `pragma`: to be run in vector lanes where there are any."""
    if context.target.has_threads:
        return context.writer.block(_dealt(context, [(name, count)]))
    return context.writer.loop(name, count, context.target.lanes if pragma else "")


def rows_over(context: Context, shape: Sequence[int], body: Callable[[tuple[Index, ...]], None]) -> None:
    """Runs `body` for every position of `shape`; the iterations are independent."""
    if not context.target.has_threads:
        loop_over(context.writer, shape, body)
        return
    indices = tuple(variable(f"i{d}") if n != 1 else Index() for d, n in enumerate(shape))
    with lane_nest(context, [(f"i{d}", n) for d, n in enumerate(shape) if n != 1]):
        body(indices)


def _counted(axes: Axes) -> int:
    """How many positions there are. Raises UnsupportedError where 32 bits do not count them."""
    count = prod(n for _, n in axes)
    if count > MOST_ELEMENTS:
        raise UnsupportedError(f"a loop over {count} elements: a GPU program counts them in 32 bits")
    return count


def _dealt(context: Context, axes: Axes) -> str:
    """Head of the loop in which the threads take turns."""
    count = _counted(axes)
    name = axes[0][0] if len(axes) == 1 else "l"
    index, threads = context.target.index, context.target.threads
    return f"for ({index} {name} = ck_lane(); {name} < {count}; {name} += {threads})"


@dataclass(frozen=True, slots=True)
class Batches:
    """A lane loop in which each thread takes several positions at a time: it loads what all of them need
    before it stores any, so that it waits once. The compiler cannot do so: for all it knows they touch each
    other's memory."""

    axes: Axes
    together: int
    count: int

    @contextmanager
    def over(self, context: Context) -> Iterator[None]:
        """Around what is done batch by batch: the loop over all that are full."""
        threads = context.target.threads
        context.writer.line(f"{context.target.index} at = ck_lane();")
        full, step = self.count - (self.together - 1) * threads, self.together * threads
        with context.writer.block(f"for (; at < {full}; at += {step})"):
            yield

    @contextmanager
    def each(self, context: Context) -> Iterator[None]:
        """Loops over the positions of a batch; `j` counts them."""
        context.writer.line("#pragma unroll")
        with context.writer.block(f"for ({context.target.index} j = 0; j < {self.together}; ++j)"):
            self._position(context, f"at + {context.target.threads} * j")
            yield

    @contextmanager
    def rest(self, context: Context) -> Iterator[None]:
        """Loops over the positions that fill no batch."""
        with context.writer.block(f"for (; at < {self.count}; at += {context.target.threads})"):
            self._position(context, "at")
            yield

    def has_rest(self, context: Context) -> bool:
        return self.count % (self.together * context.target.threads) != 0

    def _position(self, context: Context, text: str) -> None:
        name = self.axes[0][0] if len(self.axes) == 1 else "l"
        context.writer.line(f"const {context.target.index} {name} = {text};")
        _unravel(context, self.axes)


def batches(context: Context, axes: Axes, lines: Sequence[str]) -> Batches | None:
    """The batches of a lane loop whose body is these lines; None where there is no need or no room."""
    loads = any("[" in line.split(" = ", 1)[-1] for line in lines)
    if not (loads and axes and context.target.has_threads):
        return None
    count, most = _counted(axes), context.target.most_together
    length = sum(LONG_CALL if "ck_" in line else 1 for line in lines)
    together = 1
    while 2 * together <= most and 2 * together * context.target.threads <= count:
        together *= 2
    while together > 1 and together * length > LONG_BODY:
        together //= 2
    return Batches(axes, together, count) if together > 1 else None


@contextmanager
def _few_together(context: Context, trips: int) -> Iterator[None]:
    """Around a loop: how many of its trips the compiler may write out side by side. Left alone it writes out
    hundreds of short ones, whose loads then take all registers there are."""
    lines, most = context.writer.lines, context.target.most_together
    start = len(lines)
    yield
    together = most
    while together > 1 and together * (len(lines) - start) > LONG_BODY:
        together //= 2
    if most and trips > most:
        lines.insert(start, f"{lines[start][: -len(lines[start].lstrip())]}#pragma unroll {together}")


def _unravel(context: Context, axes: Axes, flat: str = "l") -> None:
    """Declares the loop variables of a flat position."""
    if len(axes) == 1 and flat == "l":
        return
    rest = flat
    for position, (name, count) in reversed(list(enumerate(axes))):
        text = rest if position == 0 else f"{rest} % {count}"
        context.writer.line(f"const {context.target.index} {name} = {text};")
        rest = f"{rest} / {count}"


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows of which each has `size` threads."""

    size: int
    rows: int


def groups_for(rows: int, length: int, threads: int) -> Groups:
    """How many threads share a row of `length` elements."""
    if length <= 1:
        return Groups(1, rows)
    if rows == 1 or (rows <= FEW_ROWS and length >= LONG_ROW * threads):
        return Groups(threads, rows)
    size = 1
    while size < WARP and size < length and rows * size < threads:
        size *= 2
    return Groups(size, rows)


@contextmanager
def group_rows(context: Context, groups: Groups, kept: Axes) -> Iterator[str]:
    """Loops over rows, a group of threads each. Yields the condition under which a thread stores.

    The trip count is the same for all threads, so that a group can always exchange values; groups beyond the
    last row work on that row once more and store nothing.
    """
    _counted(kept)
    threads, index = context.target.threads, context.target.index
    at_once = threads // groups.size
    alone = groups.size == threads or groups.rows == 1
    first = "ck_lane() == 0" if alone else f"ck_lane() % {groups.size} == 0"
    if groups.rows == 1:
        with context.writer.block():
            yield first
        return
    with context.writer.block(f"for ({index} first = 0; first < {groups.rows}; first += {at_once})"):
        own = "first" if at_once == 1 else f"first + ck_lane() / {groups.size}"
        context.writer.line(f"const {index} mine = {own};")
        even = groups.rows % at_once == 0
        row = "mine" if even else f"mine < {groups.rows} ? mine : {groups.rows - 1}"
        context.writer.line(f"const {index} r = {row};")
        _unravel(context, kept, "r")
        stores = first if groups.size > 1 else ""
        inside = "" if even else f"mine < {groups.rows}"
        yield " && ".join(filter(None, (stores, inside))) or "true"


@contextmanager
def group_elements(context: Context, groups: Groups, inner: Axes) -> Iterator[None]:
    """Loops over the elements of a row, dealt out to the threads of its group."""
    index, count = context.target.index, _counted(inner)
    name = inner[0][0] if len(inner) == 1 else "k"
    start = "ck_lane()" if groups.size == context.target.threads else f"ck_lane() % {groups.size}"
    start = "0" if groups.size == 1 else start
    head = f"for ({index} {name} = {start}; {name} < {count}; {name} += {groups.size})"
    with _few_together(context, count // groups.size), context.writer.block(head):
        if len(inner) > 1:
            _unravel(context, inner, "k")
        yield
