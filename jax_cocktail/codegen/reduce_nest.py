"""Emits groups that reduce: one pass, several accumulators (AStitch, ASPLOS'22, section 4.3).

The pass also stores the elements that reach memory. On a core, reductions down columns have a strip of
accumulators, one for each vector lane. Those along rows have a run of them, and combine the run in the end:

    for strip of columns: a1[...] = 0                for row: a1[...] = 0; a2[...] = 0
      for row: for column in strip                     for run of the row: for element in run
        e[...] = ...; a1[column] = a1[column] + e        e[...] = ...
                                                         a1[lane] = a1[lane] + e; a2[lane] = max(a2[lane], e)
                                                       y1 = sum of a1; y2 = maximum of a2

Combining the lanes of a short row takes longer than adding its elements. So a core does it for many rows at
once: transposed, the lanes of a row lie in as many vectors, which are added.

Sums of many elements are added in f32 by blocks, and the blocks in f64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import inf, prod
from typing import ClassVar, cast

from jax_cocktail.codegen.context import ALONE, Context
from jax_cocktail.codegen.element import ElementWriter
from jax_cocktail.codegen.kernel import Expression, Index, Load, Name, Pointer, Store, spelled
from jax_cocktail.codegen.lanes import (
    Destination,
    Merged,
    elements_of,
    emit_batches,
    merge_axes,
    nest_elements,
    stored_by,
)
from jax_cocktail.codegen.mapping import Groups, Row, group_batches, group_elements, group_rows, groups_for
from jax_cocktail.codegen.passes import hoisted
from jax_cocktail.codegen.reduction import functor, identity, step
from jax_cocktail.codegen.text import COMPUTE
from jax_cocktail.codegen.writer import (
    Axes,
    Writer,
    axes_of,
    call,
    code,
    down,
    indices_within,
    iterated,
    joined,
)
from jax_cocktail.device.tuning import PROGRAM
from jax_cocktail.utask.ir import StitchedUTask, UOperator
from jax_cocktail.utask.sizes import Size, most_of
from jax_cocktail.utask.types import ITEM_SIZE

SUM_BLOCK = PROGRAM.sum_block
COLUMN_BLOCK = 128  # the same of a long column, whose elements come one after the other, not in lanes
RUNS = (
    (96, 32),
    (256, 64),
)  # from so many elements of a row on, runs of so many have accumulators of their own
SHORTEST_RUN = 9  # of shorter rows, compilers take several side by side
LANES = 16  # accumulators of each row, and rows, that ck_fold_rows takes
MOST_FOLDED = 255  # elements of a row: those of a longer one take much longer than its lanes
STRIP = 1024  # columns whose accumulators are held together: they stay in the first-level cache

Totals = Sequence[Expression]  # an accumulator for each reduction


@dataclass(frozen=True, slots=True)
class _Reduction:
    """One reduction of a group."""

    context: Context
    operator: UOperator

    @property
    def op(self) -> str:
        return cast(str, self.operator["op"])

    @property
    def dtype(self) -> str:
        return self.operator.output.type.dtype

    def is_long(self, elements: int, most: int = SUM_BLOCK) -> bool:
        """True if a plain f32 sum of this many elements, more than `most`, would lose digits."""
        return self.op == "sum" and COMPUTE[self.dtype] == "f32" and elements > most

    def type(self, wide: bool) -> str:
        """The C type of the accumulator; a wide one is an f64."""
        return "f64" if wide else COMPUTE[self.dtype]

    def add(self, total: Expression, element: Expression) -> None:
        _set(self.context.writer, total, step(self.op, total, element))

    def place(self, loops: Axes) -> Index:
        """The index of the result element at the position of the loops."""
        indices = indices_within(loops, self.operator.inputs[0].type.shape)
        reduced = self.operator.ints("axes")
        kept = tuple(index for d, index in enumerate(indices) if d not in reduced)
        return self.context.place(self.operator.output, kept)

    def finish(self, loops: Axes, merged: Merged, total: Expression, wide: bool, on: Expression = "") -> None:
        """Stores the total. A register is set without a condition: all threads of the unit have the total."""
        value, result = code("f32({})", total) if wide else total, self.operator.output
        if result.type.is_scalar:
            self.context.set_rounded(result, value)
        else:
            place = Load(self.context.pointer(result), self.place(loops).without(merged))
            self.context.writer.store(place, down(value, self.dtype), on)


@dataclass(frozen=True, slots=True)
class _Nest:
    """A group that reduces.

    Attributes:
      loops: over the elements, outermost first; `kept` are those over axes that the results have, `inner` the
        others.
      targets: the elements that it stores.
    """

    context: Context
    group: StitchedUTask
    loops: Axes
    kept: Axes
    inner: Axes
    reductions: Sequence[_Reduction]
    targets: Sequence[Destination]

    @property
    def has_scalars(self) -> bool:
        """True if all its reductions have one result."""
        return not self.kept

    @property
    def is_empty(self) -> bool:
        return prod(count for _, count in self.loops) == 0

    def elements(self, writer: Writer, merged: Merged = frozenset()) -> ElementWriter:
        return elements_of(self.context, self.group.members, writer, merged)

    def dry(self) -> ElementWriter:
        """The lines that the pass computes and accesses."""
        dry = self.elements(Writer())
        dry.writer.add(*nest_elements(dry, self.targets, self.loops))
        for each in self.reductions:
            operand = each.operator.inputs[0]
            dry.element(operand, indices_within(self.loops, operand.type.shape))
            if not each.operator.output.type.is_scalar:
                dry.addresses.append(each.place(self.loops))
        return dry

    def merge(self) -> tuple[Axes, Axes, Merged]:
        """`kept` and `inner` with adjacent axes merged, and the variables of those that are gone."""
        if self.is_empty:
            return self.kept, self.inner, frozenset()
        dry = self.dry()
        (kept, outer), (inner, gone) = (merge_axes(axes, dry) for axes in (self.kept, self.inner))
        return kept, inner, outer | gone

    def take(self, totals: Totals, merged: Merged = frozenset(), on: Expression = "") -> list[Store]:
        """Adds the elements at the position of the loops to the totals. Returns the stores that remain, under
        a condition if there is one."""
        elements = self.elements(self.context.writer, merged)
        stores = nest_elements(elements, self.targets, self.loops)
        for each, total in zip(self.reductions, totals, strict=True):
            operand = each.operator.inputs[0]
            each.add(total, elements.element(operand, indices_within(self.loops, operand.type.shape)))
        if self.has_scalars:  # every unit computes them for itself, and one of them stores the rest
            pairs = zip(self.targets, stores, strict=True)
            return [_under(s, on, ALONE if self.context.is_shared(value) else "") for (value, _), s in pairs]
        return [_under(store, on) for store in stores]


def emit_reductions(context: Context, group: StitchedUTask) -> None:
    first = group.reductions[0]
    axes, reduced = axes_of(first.inputs[0].type.shape), first.ints("axes")
    kept = iterated([axis for d, axis in enumerate(axes) if d not in reduced])
    inner = iterated([axis for d, axis in enumerate(axes) if d in reduced])
    reductions = [_Reduction(context, each) for each in group.reductions if each.output in group.outputs]
    nest = _Nest(context, group, iterated(axes), kept, inner, reductions, stored_by(context, group))
    if context.target.has_threads:
        _emit_for_groups(nest)
    elif kept and inner and nest.loops[-1] in kept and not nest.is_empty:
        _emit_columns(nest)
    else:
        _emit_rows(nest)


def _under(store: Store, *conditions: Expression) -> Store:
    """A store under conditions, "" for none."""
    terms = [each for each in conditions if each != ""]
    return replace(store, condition=joined(" && ", terms)) if terms else store


def _positions(axes: Axes) -> int:
    return prod(count for _, count in axes)


def _set(writer: Writer, place: Expression, value: Expression) -> None:
    if isinstance(place, Load):
        writer.store(place, value)
    else:
        writer.set(place, value)


# GCC 12 unrolls shorter loops early. If the loop around them has a run-time bound, it then adds selected
# values to wrong accumulators.
_UNROLLED = 16


# -- a core --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Rows:
    """One accumulator per result element."""

    context: Context
    most: ClassVar[int] = SUM_BLOCK  # terms of a sum in f32
    block: ClassVar[int] = SUM_BLOCK  # those of a part of a longer sum

    def new(self, type_: str, first: Expression) -> Expression:
        """Declares an accumulator."""
        return self.context.writer.var(type_, self.context.writer.fresh("a"), first)

    def each(self) -> AbstractContextManager[None]:
        """Around what is done with each accumulator; `at`: with its element."""
        return nullcontext()

    at = each

    @contextmanager
    def results(self, reductions: Sequence[_Reduction], totals: Totals) -> Iterator[Totals]:
        """Around what is done with each result. Yields the results."""
        yield totals


@dataclass(frozen=True, slots=True)
class _Columns:
    """An accumulator for each column of a strip, which runs in vector lanes.

    Attributes:
      lane: the variable of the column; `column`: its number in the strip.
      begin: the first column of the strip, "" if there is only one strip.
      count: the columns of the strip; `size`: those of the longest strip.
    """

    context: Context
    lane: Name
    column: Name
    begin: Expression
    count: Expression | int
    size: int
    most: ClassVar[int] = SUM_BLOCK
    block: ClassVar[int] = COLUMN_BLOCK

    def new(self, type_: str, first: Expression) -> Expression:
        writer = self.context.writer
        array = Pointer(writer.fresh("a"), type_)
        writer.line("{} {}[{}];", type_, array, int(self.size))
        with self.each():
            writer.store(Load(array, self.column), first)
        return Load(array, self.column)

    def each(self) -> AbstractContextManager[None]:
        pragma: Expression = self.context.target.lanes
        if self.context.sizes and type(self.count) is int and self.count <= _UNROLLED:
            pragma = f"{pragma} CK_NO_UNROLL"
        return self.context.writer.loop(self.column, self.count, pragma, finish=hoisted)

    @contextmanager
    def at(self) -> Iterator[None]:
        with self.each():
            if self.begin != "":
                place = code("{} + {}", self.begin, self.column)
                self.context.writer.let(self.context.target.index, self.lane, place)
            yield

    @contextmanager
    def results(self, reductions: Sequence[_Reduction], totals: Totals) -> Iterator[Totals]:
        with self.at():
            yield totals


@dataclass(frozen=True, slots=True)
class _Runs(_Columns):
    """An accumulator for each element of a run: a row is added run by run, and the accumulators at its end.
    One vector of them would wait for itself at each step. A short row is one run, which may not fill them."""

    most: ClassVar[int] = COLUMN_BLOCK

    def new(self, type_: str, first: Expression) -> Expression:
        return _Columns.new(replace(self, count=self.size), type_, first)

    @contextmanager
    def results(self, reductions: Sequence[_Reduction], totals: Totals) -> Iterator[Totals]:
        self.context.needs.add("reduce")
        arrays = zip(reductions, _arrays(totals), strict=True)
        yield [call(f"ck_fold_lanes<{functor(r.op)}, {self.size}>", array) for r, array in arrays]


def _arrays(totals: Totals) -> list[Pointer]:
    return [total.pointer for total in totals if isinstance(total, Load)]


@dataclass(frozen=True, slots=True)
class _InRuns:
    """The addition of rows run by run.

    Attributes:
      inner: the loops around the lanes.
      form: the lanes; `rest`: those of what the runs leave over.
    """

    inner: Axes
    form: _Runs
    rest: _Runs | None = None


def _emit_rows(n: _Nest) -> None:
    kept, inner, merged = n.merge()
    runs = _in_runs(n, inner)
    if runs is not None and len(inner) == 1 and kept and _folds_rows(n, kept[-1][1], inner[0][1]):
        _emit_folded(n, kept, merged, runs)
        return
    with n.context.writer.loops(kept):
        if runs is not None:
            _emit_totals(n, runs.inner, merged, runs.form, runs.rest)
        else:
            _emit_totals(n, inner, merged, _Rows(n.context))


def _in_runs(n: _Nest, inner: Axes) -> _InRuns | None:
    """None if rows are added element by element. This and the order of the terms of a row do not depend on
    the number of rows, which units share out."""
    if not inner or n.is_empty or any(each.dtype == "bool" for each in n.reductions):
        return None
    lane, count = inner[-1]
    if count >= RUNS[0][0]:
        size = max(size for least, size in RUNS if count >= least)
        number, column = Name(f"{lane.text}r"), Name(f"{lane.text}c")
        runs = _Runs(n.context, lane, column, code("{} * {}", size, number), size, size)
        full = count - count % size
        some = full < count or isinstance(count, Size)  # for another length it may leave something over
        rest = replace(runs, begin=spelled(full), count=count % size) if some else None
        return _InRuns([*inner[:-1], (number, count // size)], runs, rest)
    most = most_of(count)  # the accumulators suffice in all calls
    if most == inf or (len(inner) == 1 and count < SHORTEST_RUN):
        return None
    size = max(LANES, 1 << (int(most) - 1).bit_length())
    return _InRuns(inner[:-1], _Runs(n.context, lane, lane, "", count, size))


def _folds_rows(n: _Nest, rows: int, length: int) -> bool:
    """True if there are enough rows to combine the lanes of several at once."""
    wide = all(ITEM_SIZE[each.dtype] >= 4 or COMPUTE[each.dtype] == "f32" for each in n.reductions)
    return wide and rows >= LANES and length <= MOST_FOLDED


def _emit_folded(n: _Nest, kept: Axes, merged: Merged, runs: _InRuns) -> None:
    """Combines the lanes of several rows at once. Rows that are left over share a table with rows before."""
    context, writer = n.context, n.context.writer
    context.needs.add("rows")
    row, count = kept[-1]
    block, end = Name(f"{row.text}b"), Name(f"{row.text}e")
    place = code("{} - {}", row, block)
    with writer.loops(kept[:-1]):
        tables = [Pointer(writer.fresh("t"), each.type(wide=False)) for each in n.reductions]
        for table in tables:
            writer.line("alignas(64) {} {}[{}];", table.type, table, LANES * LANES)
        with writer.loop(block, count, step=LANES):
            last = code("{} + {}", block, LANES)
            writer.let("i64", end, code("{} < {} ? {} : {}", last, count, last, count))
            with writer.loop(row, end, start=block):
                totals, _ = _accumulated(n, runs.inner, merged, runs.form, runs.rest)
                for each, array, table in zip(n.reductions, _arrays(totals), tables, strict=True):
                    keep = (
                        f"ck_keep_row<{functor(each.op)}, {runs.form.size}>({{}}, {{}} + {LANES} * ({{}}));"
                    )
                    writer.line(keep, array, table, place)
            for each, table in zip(n.reductions, tables, strict=True):
                writer.line(f"ck_fold_rows<{functor(each.op)}>({{}});", table)
            with writer.loop(row, end, context.target.lanes, start=block):
                for each, table in zip(n.reductions, tables, strict=True):
                    each.finish(n.loops, merged, Load(table, place), wide=False)


def _emit_columns(n: _Nest) -> None:
    kept, inner, merged = n.merge()
    with n.context.writer.loops(kept[:-1]), _strips(n.context, *kept[-1]) as columns:
        _emit_totals(n, inner, merged, columns)


@contextmanager
def _strips(context: Context, lane: Name, width: int) -> Iterator[_Columns]:
    """A loop over the strips of a row."""
    if width <= STRIP:
        yield _Columns(context, lane, lane, "", width, width)
        return
    size = -(-width // -(-width // STRIP))
    begin, column, count = (Name(f"{lane.text}{suffix}") for suffix in "bcn")
    with context.writer.loop(begin, width, step=size):
        rest = code("{} - {}", width, begin)
        context.writer.let("i64", count, code("{} < {} ? {} : {}", rest, size, rest, size))
        yield _Columns(context, lane, column, begin, count, size)


def _emit_totals(
    n: _Nest, inner: Axes, merged: Merged, form: _Rows | _Columns, rest: _Columns | None = None
) -> None:
    """Computes and stores what a pass over the inner axes accumulates. `rest`: of the last one."""
    totals, long = _accumulated(n, inner, merged, form, rest)
    with form.results(n.reductions, totals) as results:
        for reduction, result, wide in zip(n.reductions, results, long, strict=True):
            reduction.finish(n.loops, merged, result, wide)


def _accumulated(
    n: _Nest, inner: Axes, merged: Merged, form: _Rows | _Columns, rest: _Columns | None
) -> tuple[Totals, Sequence[bool]]:
    """The accumulators after a pass over the inner axes, and whether they are wide."""
    long = [each.is_long(_positions(inner), form.most) for each in n.reductions]
    pairs = list(zip(n.reductions, long, strict=True))
    totals = [form.new(r.type(wide), identity(r.op, r.dtype)) for r, wide in pairs]
    writer = n.context.writer
    if not n.is_empty:
        with writer.loops(inner[:-1]):
            if any(long):
                _emit_blocks(n, inner[-1], merged, form, totals, long)
            else:
                with writer.loops(inner[-1:], finish=hoisted), form.at():
                    writer.add(*n.take(totals, merged))
            if rest is not None:
                with rest.at():
                    writer.add(*n.take(totals, merged))
    return totals, long


def _emit_blocks(
    n: _Nest,
    axis: tuple[Name, int],
    merged: Merged,
    form: _Rows | _Columns,
    totals: Totals,
    long: Sequence[bool],
) -> None:
    """Adds blocks of an axis in f32, and their sums in f64 if they are `long`."""
    writer, (name, count) = n.context.writer, axis
    block, end = Name(f"{name.text}b"), Name(f"{name.text}e")
    with writer.loop(block, count, step=form.block):
        last = code("{} + {}", block, form.block)
        writer.let("i64", end, code("{} < {} ? {} : {}", last, count, last, count))
        pairs = list(zip(totals, long, strict=True))
        parts = [form.new("f32", "0") if wide else total for total, wide in pairs]
        with writer.loop(name, end, start=block, finish=hoisted), form.at():
            writer.add(*n.take(parts, merged))
        with form.each():
            for (total, wide), part in zip(pairs, parts, strict=True):
                if wide:
                    _set(writer, total, code("{} + {}", total, part))


# -- a block of threads --------------------------------------------------------------------------------------
def _emit_for_groups(n: _Nest) -> None:
    """A group of threads reduces each row, then combines its partial results."""
    context, writer = n.context, n.context.writer
    context.needs.add("block")
    length = _positions(n.inner)
    block = context.block
    threads, warp = block.threads, block.warp
    groups = groups_for(_positions(n.kept), length, threads, warp)
    have = f", {length}" if warp < groups.size and length < groups.size else ""  # threads with an element
    with group_rows(context, groups, n.kept) as row:
        pairs = [(each, each.is_long(length // groups.size)) for each in n.reductions]
        totals = [_Rows(context).new(r.type(wide), identity(r.op, r.dtype)) for r, wide in pairs]
        if not n.is_empty:
            _emit_elements(n, groups, row, totals)
        for (each, _), total in zip(pairs, totals, strict=True):
            if groups.size > 1:
                writer.set(total, call(f"ck_group_reduce<{groups.size}, {functor(each.op)}{have}>", total))
        for (each, wide), total in zip(pairs, totals, strict=True):
            each.finish(n.loops, frozenset(), total, wide, row.stores)


def _emit_elements(n: _Nest, groups: Groups, row: Row, totals: Totals) -> None:
    """The elements of a row, as a thread sees them. Those that are stored come in batches, so that loads do
    not wait for stores."""
    context, inside = n.context, row.inside if n.targets else ""
    body = partial(n.take, totals, on=row.first)
    found = group_batches(context, groups, n.inner, n.dry().writer.nodes, inside) if n.targets else None
    if found is not None:
        emit_batches(context, found, n.targets, body)
        return
    with group_elements(context, groups, n.inner, inside):
        context.writer.add(*body())
