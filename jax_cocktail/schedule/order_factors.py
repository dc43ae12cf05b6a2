"""Stores packed matrices in the order in which tensor cores read them.

`place` packs the right factors of products that a loop repeats: each unit copies its columns once. A warp
would then read, round and reorder these columns in every iteration. This pass does both once, when the
columns are packed:

    p[i] = w[:, columns]                   p[i] = order(round(w[:, columns]))
    loop: y = dot(x, p[i])          ->     loop: y = reshape(dot(reshape(x), p[i]))

The order is that of `utask.tensor_order`. In the program, only reshapes and transposes say so: y is the sum
of the same products. `codegen.contraction` recognises the order. Zeros fill up the last block of columns, and
y leaves their sums out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from jax_cocktail.device.tuning import BLOCK
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import (
    LoopUTask,
    Region,
    Statement,
    UOperator,
    UProgram,
    is_a,
    is_parallel,
    regions_in,
    walk,
)
from jax_cocktail.utask.rewrite import rewrite
from jax_cocktail.utask.substitute import FreshValues, replaced
from jax_cocktail.utask.tensor_order import COLUMNS, DTYPES, depth_shape, line_length
from jax_cocktail.utask.types import Shape, TensorType, Value

_TF32 = {"exponent_bits": 8, "mantissa_bits": 10}
_Read = tuple[UOperator, UOperator, UOperator]  # of columns: the slice, its reshape, the product


def order_factors(program: UProgram, rounds: bool = True) -> UProgram:
    """Returns its argument if no product on tensor cores reads packed columns. `rounds`: matrix instructions
    round factors of float32."""
    uses = _Uses(program)
    factors = [factor for s in walk(program.entry) if is_parallel(s) for factor in _factors(s, uses)]
    return rewrite(program, _Rewriter(factors, FreshValues(program), rounds).change) if factors else program


@dataclass(frozen=True, slots=True)
class _Order:
    """How the columns of a factor, which may have several axes, become blocks without a copy: `axes` of the
    columns from the outermost one on, divided into those of the blocks and those of a block's 8 columns.
    `padding`: zeros behind the columns."""

    axes: tuple[int, ...]
    blocks: Shape
    inside: Shape
    padding: int = 0

    @classmethod
    def of(cls, columns: Shape) -> _Order | None:
        """Whole runs of the last axis; or a column of all groups together with its neighbours; or all columns
        one after another, and zeros."""
        *groups, last = columns
        every = tuple(range(len(columns)))
        if last % COLUMNS == 0:
            return cls(every, (*groups, last // COLUMNS), (COLUMNS,))
        together = COLUMNS // groups[0] if len(groups) == 1 and COLUMNS % groups[0] == 0 else 0
        if together and last % together == 0:
            return cls((1, 0), (last // together,), (together, groups[0]))
        count = prod(columns)
        blocks = -(-count // COLUMNS)
        return cls(every, (blocks,), (COLUMNS,), blocks * COLUMNS - count) if count >= COLUMNS else None

    def type(self, part: TensorType) -> TensorType:
        """Of a part (k, columns) in the new order."""
        deep, line = depth_shape(part.shape[0], part.dtype)
        return TensorType(part.dtype, (*self.blocks, deep, *self.inside, line))

    def moved(self, part: Value, b: Builder) -> Value:
        """A part (k, columns) in the new order."""
        deep = depth_shape(part.type.shape[0], part.type.dtype)
        outer, count = len(deep), len(self.blocks)
        turned = b.transpose(part, (0, *(1 + axis for axis in self.axes)))
        if self.padding:
            flat = b.reshape(turned, (part.type.shape[0], prod(part.type.shape[1:])))
            wide, zero = flat.type.resized(1, prod(self.blocks) * COLUMNS), b.constant(0, part.type.dtype)
            turned = b.emit("pad", (flat, zero), wide, low=(0, 0), interior=(0, 0))
        apart = b.reshape(turned, (*deep, *self.blocks, *self.inside))
        inside = range(outer + count, outer + count + len(self.inside))
        return b.transpose(apart, (*range(outer, outer + count), 0, *inside, 1))

    @property
    def contracted(self) -> tuple[int, int]:
        """The axes of k in a factor, as `depth_shape` has them."""
        block = len(self.blocks)
        return block, block + 1 + len(self.inside)


@dataclass(frozen=True, slots=True)
class _Factor:
    """A packed matrix. `arrays`: it before, in and after the loop that packs it, and what the loop yields;
    `write`: of a unit's columns; `part`: their type; `reads`: of them."""

    arrays: tuple[Value, ...]
    write: UOperator
    part: TensorType
    order: _Order
    reads: tuple[_Read, ...]


class _Uses:
    """Who makes a value, and who reads it."""

    def __init__(self, program: UProgram) -> None:
        self.readers: dict[Value, list[Statement]] = defaultdict(list)
        self.makers: dict[Value, UOperator] = {}
        self.yielded = {v for region in regions_in(program.entry) for v in region.results}
        for statement in walk(program.entry):
            for value in statement.inputs:
                self.readers[value].append(statement)
            if isinstance(statement, UOperator):
                self.makers.update((v, statement) for v in statement.outputs)

    def only(self, value: Value, kind: str, position: int = 0) -> tuple[UOperator, ...]:
        """The readers, if all are operators of a kind that take the value as this operand; else none."""
        found = tuple(s for s in self.readers[value] if is_a(s, kind) and s.inputs[position] == value)
        return found if len(found) == len(self.readers[value]) and value not in self.yielded else ()

    def is_view(self, value: Value) -> bool:
        """True for the slice of an array, turned and reshaped."""
        made = self.makers.get(value)
        if is_a(made, "reshape", "transpose"):
            return self.is_view(made.inputs[0])
        return is_a(made, "slice", "dynamic_slice")


def _factors(loop: LoopUTask, uses: _Uses) -> Iterator[_Factor]:
    results = zip(loop.initial, loop.carried, loop.body.results, loop.outputs, strict=True)
    for first, array, last, packed in results:
        write, part = uses.makers.get(last), TensorType(packed.type.dtype, packed.type.shape[1:])
        if part.rank < 2 or part.dtype not in DTYPES or part.shape[0] % line_length(part.dtype):
            continue
        if not is_a(uses.makers.get(first), "empty") or len(uses.readers[first]) != 1 or uses.readers[last]:
            continue
        if write is None or uses.only(array, "dynamic_update_slice") != (write,):
            continue
        row, order = write.inputs[1], _Order.of(part.shape[1:])
        reads = tuple(_reads(packed, part, uses)) if order and uses.is_view(row) else ()
        if order is not None and reads and None not in reads and row.type.shape == (1, *part.shape):
            yield _Factor((first, array, last, packed), write, part, order, tuple(filter(None, reads)))


def _reads(packed: Value, part: TensorType, uses: _Uses) -> Iterator[_Read | None]:
    """All reads of a packed matrix; None for one that is no product of one part."""
    if not uses.only(packed, "dynamic_slice"):
        yield None
    for one in uses.only(packed, "dynamic_slice"):
        rows = uses.only(one.output, "reshape")
        products = uses.only(rows[0].output, "dot", 1) if len(rows) == 1 else ()
        whole = one.output.type.shape == (1, *part.shape) and bool(rows) and rows[0].output.type == part
        yield (one, rows[0], products[0]) if whole and len(products) == 1 and _suits(products[0]) else None


def _suits(dot: UOperator) -> bool:
    """True for a product with enough rows, on tensor cores, whose right factor has k first."""
    left, right = (value.type for value in dot.inputs)
    if dot.ints("rhs_contract") != (0,) or dot.ints("rhs_batch") or left.dtype != right.dtype:
        return False
    if left.size // right.shape[0] <= BLOCK.few_rows:
        return False
    wanted = (left.dtype,) if left.dtype == "float32" else ("float32", left.dtype)
    return dot.output.type.dtype in wanted and (left.dtype != "float32" or dot.may_round)


class _Rewriter:
    """Replaces the statements of all factors. `renamed`: arrays and columns in the new order by those in the
    old one."""

    def __init__(self, factors: Sequence[_Factor], fresh: FreshValues, rounds: bool) -> None:
        self.fresh, self.rounds, self.renamed = fresh, rounds, dict[Value, Value]()
        self.writes = {f.write.output: f for f in factors}
        self.reads = {read[0].output: (f, read) for f in factors for read in f.reads}
        self.rows = {read[1].output: f for f in factors for read in f.reads}
        for factor in factors:
            type_ = factor.order.type(factor.part)
            whole = TensorType(type_.dtype, (factor.arrays[0].type.shape[0], *type_.shape))
            self.renamed |= {v: fresh.make(whole) for v in factor.arrays}
            self.renamed |= {read[1].output: fresh.make(type_) for read in factor.reads}

    def change(self, statement: Statement) -> Statement | list[Statement]:
        if isinstance(statement, LoopUTask):
            return self._loop(statement)
        if not isinstance(statement, UOperator) or not statement.outputs:
            return statement
        b, output = Builder(self.fresh, statement.source), statement.outputs[0]
        if output in self.writes:
            self._write(self.writes[output], b)
        elif output in self.reads:
            self._read(*self.reads[output], b)
        elif output in self.renamed:  # an array before its loop, or columns, which `_read` has made
            return [] if output in self.rows else replace(statement, outputs=(self.renamed[output],))
        elif statement.kind == "dot" and statement.inputs[1] in self.rows:
            self._multiply(statement, self.rows[statement.inputs[1]], b)
        else:
            return statement
        return b.out

    def _loop(self, loop: LoopUTask) -> LoopUTask:
        names, body = self.renamed, loop.body
        if not any(v in names for v in loop.outputs):
            return loop
        inside = Region(replaced(body.parameters, names), body.body, replaced(body.results, names))
        initial, outputs = replaced(loop.initial, names), replaced(loop.outputs, names)
        return replace(loop, initial=initial, outputs=outputs, body=inside)

    def _write(self, factor: _Factor, b: Builder) -> None:
        array, row, index, zero, *_ = factor.write.inputs
        moved = factor.order.moved(b.reshape(row, factor.part.shape), b)
        if moved.type.dtype == "float32" and self.rounds:
            moved = b.emit("reduce_precision", (moved,), moved.type, **_TF32)
        one = b.reshape(moved, (1, *moved.type.shape))
        inputs = (self.renamed[array], one, index, *[zero] * moved.type.rank)
        b.define((self.renamed[factor.write.output],), "dynamic_update_slice", inputs)

    def _read(self, factor: _Factor, read: _Read, b: Builder) -> None:
        packed, index, zero, *_ = read[0].inputs
        row = self.renamed[read[1].output]
        starts = (index, *[zero] * row.type.rank)
        part = b.emit("dynamic_slice", (self.renamed[packed], *starts), row.type.dtype, (1, *row.type.shape))
        b.define((row,), "reshape", (part,))

    def _multiply(self, dot: UOperator, factor: _Factor, b: Builder) -> None:
        left, row, order = dot.inputs[0], self.renamed[dot.inputs[1]], factor.order
        (axis,), shape = dot.ints("lhs_contract"), left.type.shape
        deep = depth_shape(shape[axis], row.type.dtype)
        contracted = {
            "lhs_contract": tuple(range(axis, axis + len(deep))),
            "rhs_contract": order.contracted,
        }
        kept = (*shape[:axis], *shape[axis + 1 :])
        type_ = TensorType(dot.output.type.dtype, (*kept, *order.blocks, *order.inside))
        left = b.reshape(left, (*shape[:axis], *deep, *shape[axis + 1 :]))
        product = b.emit("dot", (left, row), type_, **(dict(dot.attributes) | contracted))
        columns = factor.part.shape[1:]
        if order.padding:
            flat = b.reshape(product, (*kept, prod(order.blocks) * COLUMNS))
            product = b.slice(flat, (0,) * flat.type.rank, (*kept, prod(columns)))
        turned = b.reshape(product, (*kept, *(columns[a] for a in order.axes)))
        back = [len(kept) + order.axes.index(d) for d in range(len(columns))]
        b.define(dot.outputs, "transpose", (turned,), permutation=(*range(len(kept)), *back))
