"""Packs the factors of products that read them often, in the order in which the machine reads them.

A core makes a product by panels: neighbouring columns for whose sums it has registers. A line of a panel lies
one row of the matrix behind the previous one, often on a page of its own. So each repetition waits for the
memory. This pass copies all panels once, before the outermost loop that leaves the matrix as it is, or before
a product of many rows:

    loop: y = dot(x, w)         ->         p = copy(transpose(reshape(w)))       [k, n] -> [n / 16, k, 16]
                                           loop: y = reshape(dot(x, p))

(K. Goto, R. van de Geijn: Anatomy of high-performance matrix multiplication, section 4.2.3.) Units that run
whole loops have a copy each. Units that share a product read short pieces of all rows: each copies its part,
a view of outside arrays that the trip of a parallel loop determines:

                                            parallel i: p[i] = panels(w[:, columns of i])
    loop: parallel i:               ->      loop: parallel i:
        y = dot(x, w[:, columns of i])          y = dot(x, p[i])

What a block of threads packs stays in its shared memory, if it fits. For tensor cores, a warp would read,
round and reorder columns in every iteration, so this is done once, too. `codegen.contraction` recognises the
order. Zeros fill up the last block of columns, and y leaves their sums out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from jax_cocktail.cost.cpu_products import reads_panels
from jax_cocktail.cost.work import sure_runs
from jax_cocktail.device.machine import Machine
from jax_cocktail.device.tuning import BLOCK, FACTORS
from jax_cocktail.device.unit import unit_of
from jax_cocktail.placement.prune import prune
from jax_cocktail.schedule.products.order import PANELS, TENSOR_CORES, Order
from jax_cocktail.utask.builder import INDEX, Builder
from jax_cocktail.utask.copies import copied
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    UOperator,
    UProgram,
    defined_in,
    is_a,
    is_parallel,
    operators_in,
    walk,
)
from jax_cocktail.utask.operators import ELEMENTWISE, PRODUCTS, UPDATES, VIEWS
from jax_cocktail.utask.rewrite import map_regions, with_body
from jax_cocktail.utask.substitute import FreshValues, with_operands
from jax_cocktail.utask.tensor_order import DTYPES, line_length
from jax_cocktail.utask.types import Source, TensorType, Value

Axes = tuple[int, ...]

_MOVES = VIEWS - {"broadcast"} | {"pad"}  # a part of an array has no more elements than that
_TF32 = {"exponent_bits": 8, "mantissa_bits": 10}


@dataclass(frozen=True, slots=True)
class Packing:
    """Limits of packing. `reads`: of a part by a loop, at least; `near`: most bytes of a part that stays with
    its unit, 0 on a core; `rounds`: matrix instructions round float32; `most_bytes`: of all panels of a core.
    """

    reads: int = FACTORS.reads
    near: float = 0.0
    rounds: bool = False
    most_bytes: int = FACTORS.most_bytes

    @classmethod
    def of(cls, machine: Machine) -> Packing:
        if machine.spec is None:
            return cls()
        near = unit_of(machine.spec, machine.target.threads).near
        return cls(BLOCK.pack_trips, near, machine.spec.matrix_float32 == "rounded")

    def least(self, line_bytes: int) -> int:
        """Least reads of a matrix whose lines are so many bytes apart."""
        return self.reads if self.near or line_bytes % FACTORS.alike_bytes else FACTORS.alike_reads


def pack_factors(program: UProgram, packing: Packing = Packing()) -> UProgram:  # noqa: B008 (a frozen value)
    """Returns its argument if no product is worth it. Expects no stitched groups."""
    first = _Packer(program, packing)
    first.run()
    return map_regions(_Packer(program, packing, first).run(), prune)


class _Part(NamedTuple):
    """A part of outside arrays, and the operators that make it. `counter` numbers the copies of it;
    `line_bytes`: from one line of the array that is cut to the next."""

    value: Value
    operators: Sequence[UOperator]
    counter: Value
    copies: int
    first: int
    line_bytes: int

    @property
    def is_fixed(self) -> bool:
        """True if the trip does not determine the part: there is only one."""
        return all(self.counter not in s.inputs for s in self.operators)

    @property
    def outside(self) -> Sequence[Value]:
        made = {self.counter, *(s.output for s in self.operators)}
        return [v for s in self.operators for v in s.inputs if v not in made]

    @property
    def key(self) -> Hashable:
        """Equal for parts that are made alike."""
        names: dict[Value, object] = {self.counter: "trip"}
        for s in self.operators:
            names[s.output] = s.kind, s.attributes, s.output.type, tuple(names.get(v, v) for v in s.inputs)
        return names[self.value], self.copies, self.first


class _Parts:
    """Finds the parts that a parallel loop reads. `constants`: of the program; `near`: see `Packing`."""

    def __init__(self, loop: LoopUTask, constants: Mapping[Value, UOperator], near: float) -> None:
        self.loop, self.near, self.trip = loop, near, loop.body.parameters[0]
        self.inside = frozenset(defined_in(loop.body))
        self.made = {**constants, **{s.outputs[0]: s for s in operators_in(loop.body)}}

    def of(self, value: Value) -> _Part | None:
        """The part that is this value; None if it is none, or lies densely in an array and does not stay with
        its unit."""
        found = dict[Value, UOperator]()
        if not self._collect(value, found):
            return None
        cut = next((s for s in found.values() if is_a(s, "slice", "dynamic_slice")), None)
        if cut is None:
            return None
        whole, part = cut.inputs[0].type.shape, cut.output.type.shape
        axis = next((d for d, n in enumerate(part) if n != whole[d]), 0)
        stays, counter, copies = value.type.nbytes <= self.near, self.trip, self.loop.trip_count or 0
        of_trip = {s.kind: s for s in found.values() if self.trip in s.inputs}
        if (prod(part[:axis]) == 1 and not stays) or ("rem" in of_trip and "div" not in of_trip):
            return None  # or it is a block of all rows, which others share
        across = self.made.get(of_trip["div"].inputs[1]) if "div" in of_trip else None
        if is_a(across, "constant") and not stays:  # trips of one part share a copy
            counter = found.pop(of_trip["div"].output).output
            copies = -(-copies // int.from_bytes(across.data, "little"))
        if not of_trip and copies != 1:
            return None
        line_bytes = cut.inputs[0].type.nbytes // whole[0]
        return _Part(value, tuple(found.values()), counter, copies, self.loop.first, line_bytes)

    def _collect(self, value: Value, found: dict[Value, UOperator]) -> bool:
        """True if views of outside arrays, at positions that the trip determines, make the value."""
        made = self.made.get(value)
        if value in found or made is None:
            return value in found or value == self.trip or value not in self.inside
        is_position = made.kind in ELEMENTWISE and value.type.is_scalar
        if not is_position and made.kind not in _MOVES | {"constant"}:
            return False
        if not all(self._collect(v, found) for v in made.inputs):
            return False
        found[value] = made
        return True


@dataclass(slots=True)
class _Frame:
    """A region that is being rewritten."""

    region: Region
    trips: int  # runs of the region per run of the statement around it
    alone: bool  # one unit runs it by itself, so that a copy made in it needs no barrier
    begins: bool = False  # it is the body of a parallel loop: copies outside would belong to all units
    parts: _Parts | None = None  # of this loop, if no other loop is in between
    stage: bool = False  # of a wavefront
    visible: set[Value] = field(default_factory=set)  # what parameters and the statements so far define
    before: list[Statement] = field(default_factory=list)  # goes before the statement that is being rewritten
    packed: dict[Hashable, Value] = field(default_factory=dict)
    rows: list[Statement] = field(default_factory=list)  # read where they are packed, before all else
    out: list[Statement] = field(default_factory=list)

    def begin(self, row: Sequence[Statement], counter: Value) -> None:
        """Reads a row as soon as the counter is known, so that products stay neighbours."""
        at = next((n for n, s in enumerate(self.out) if counter in s.outputs), None)
        if at is None:
            self.rows += row
        else:
            self.out[at + 1 : at + 1] = row


class _Packer:
    """One walk over a program. The first one changes nothing. It finds the `orders` in which products read a
    part, and how often the loops of a region do (`reads`)."""

    def __init__(self, program: UProgram, packing: Packing, first: _Packer | None = None) -> None:
        self.program, self.first = program, first
        self.orders: dict[Hashable, set[Order | Axes]] = defaultdict(set)
        self.reads: dict[tuple[Hashable, int], dict[int, int]] = defaultdict(dict)
        operators = [s for s in walk(program.entry) if isinstance(s, UOperator)]
        self.fresh, self.packing, self.room = FreshValues(program), packing, packing.most_bytes
        self.constants = {o.output: o for o in operators if o.kind == "constant"}
        self.views: Mapping[Value, Value] = {o.output: o.inputs[0] for o in operators if o.kind == "reshape"}
        self.cuts = {o.output: o for o in operators if is_a(o, "slice", "dynamic_slice")}
        updates = (o.inputs[1] for o in operators if o.kind == "dynamic_update_slice")
        self.in_place = set(map(self._base, updates))  # a product that is made where its update goes
        self.frames: list[_Frame] = []

    def run(self) -> UProgram:
        frame = _Frame(self.program.entry, 1, alone=not any(map(is_parallel, walk(self.program.entry))))
        return map_regions(self.program, lambda _: self._region(frame))

    def _region(self, frame: _Frame) -> Region:
        region = frame.region
        frame.visible.update(region.parameters)
        self.frames.append(frame)
        for statement in region.body:
            frame.before = []
            changed = self._statement(statement)
            frame.out += (*frame.before, *changed)
            frame.visible.update(statement.outputs)
        self.frames.pop()
        return with_body(region, (*frame.rows, *frame.out))

    def _statement(self, statement: Statement) -> Sequence[Statement]:
        top = self.frames[-1]
        if is_a(statement, "dot") and len(statement.inputs) == 2:
            return self._product(statement)
        if isinstance(statement, UOperator):
            return (self._of_stage(statement) if top.stage and self.packing.near else statement,)
        begins, trips, parts = is_parallel(statement), 1, top.parts
        if isinstance(statement, LoopUTask):
            trips = sure_runs(statement)
            parts = _Parts(statement, self.constants, self.packing.near) if begins else None
        stage = isinstance(statement, BranchUTask) and statement.stage is not None
        rest = trips, begins or top.alone, begins, parts, stage
        return (map_regions(statement, lambda region: self._region(_Frame(region, *rest))),)

    def _product(self, dot: UOperator) -> Sequence[Statement]:
        left, right = dot.inputs
        dot = with_operands(dot, {left: self._own(left, dot.source)})
        panels = self._panels(dot)
        if panels is not None and dot.output in self.in_place:  # its sums are then copied to their place
            shallow = dot.inputs[1].type.shape[0] < FACTORS.copied_depth
            panels = None if shallow or panels.padding else panels
        order: Order | Axes = self._tensor_order(dot) or panels or self._turned(dot)
        own, kept = self._row(right, order, dot.source)
        if kept is not None:
            return _multiplied(dot, kept, own, Builder(self.fresh, dot.source))
        if own == right and self._repays(dot):
            return self._by_panels(dot, Builder(self.fresh, dot.source))
        return (with_operands(dot, {right: own}),)

    def _of_stage(self, operator: UOperator) -> UOperator:
        """An operator in a stage of a wavefront: its units keep all parts that it reads."""
        if operator.kind in PRODUCTS | UPDATES | _MOVES:
            return operator
        return with_operands(operator, {v: self._own(v, operator.source) for v in operator.inputs})

    # -- panels ------------------------------------------------------------------------------------------
    def _base(self, value: Value) -> Value:
        """The value before reshapes: the same elements in the same order."""
        while value in self.views:
            value = self.views[value]
        return value

    def _panels(self, dot: UOperator) -> Order | None:
        """The panels of a core; None if it reads the matrix in other ways, or the machine is no core."""
        left, right = (v.type for v in dot.inputs)
        if self.packing.near or not reads_panels((left.dtype, right.dtype, dot.output.type.dtype)):
            return None
        if right.rank < 2 or dot.ints("rhs_contract") != (0,) or dot.ints("rhs_batch"):
            return None
        return Order.of(right, PANELS)

    def _repays(self, product: UOperator) -> bool:
        """True for a product by one core with a large matrix."""
        return (
            self.first is not None
            and self.frames[-1].alone
            and self._panels(product) is not None
            and product.inputs[1].type.nbytes >= FACTORS.bytes
            and product.output not in self.in_place
        )

    def _by_panels(self, product: UOperator, b: Builder) -> Sequence[Statement]:
        base, k = self._base(product.inputs[1]), product.inputs[1].type.shape[0]
        first = max((i for i, f in enumerate(self.frames) if f.begins), default=0)
        home = max(self._home((base,)), first)
        if (trips := prod(f.trips for f in self.frames[home + 1 :])) == 1:
            home = len(self.frames) - 1  # no loop repeats it: a branch may not run it at all
        frame = self.frames[home]
        order = Order.of(TensorType(base.type.dtype, (k, base.type.size // k)), PANELS)
        assert order is not None, "a matrix with panels"
        if trips * self._reads(product) < self.packing.least(base.type.nbytes // k):
            return (product,)
        if (base, k) not in frame.packed:
            if base.type.nbytes > self.room:
                return (product,)
            self.room -= base.type.nbytes
            panels = order.moved(base, before := b.to(frame.before))
            dense = order.padding  # the moved matrix is no view
            frame.packed[base, k] = panels if dense else before.emit("copy", (panels,), panels.type)
        b.define(product.outputs, "reshape", (_sums(product, order, frame.packed[base, k], b),))
        return b.out

    def _reads(self, product: UOperator) -> int:
        """The number of times that a product reads its matrix: for each block of rows. Rows on the axes
        before one that is cut lie apart, in blocks of their own."""
        left, contracted = product.inputs[0], product.ints("lhs_contract")
        rows = {d: n for d, n in enumerate(left.type.shape) if d not in contracted}
        cut = self.cuts.get(left)
        whole = left.type.shape if cut is None else cut.inputs[0].type.shape
        axis = next((d for d, n in rows.items() if n != whole[d]), 0)
        groups = prod(n for d, n in rows.items() if d < axis)
        together = prod(n for d, n in rows.items() if d >= axis)
        return groups * -(-together // FACTORS.block_rows)

    def _home(self, values: Sequence[Value]) -> int:
        """The outermost region in which values are visible."""
        seen = (next(i for i, f in enumerate(self.frames) if v in f.visible) for v in values)
        return max(seen, default=0)

    # -- parts -------------------------------------------------------------------------------------------
    def _turned(self, dot: UOperator) -> Axes:
        """The axes of the right factor in the order in which a product reads them. A core reads one block of
        rows per column group sequentially, which suits the prefetcher and touches few pages; GPU threads read
        all columns of a row in one coalesced access."""
        axes, contract = tuple(range(dot.inputs[1].type.rank)), dot.ints("rhs_contract")
        kept = tuple(d for d in axes if d not in contract)
        if dot.ints("rhs_batch") or not kept:
            return axes
        return (*contract, *kept) if self.packing.near else (*kept[:-1], *contract, kept[-1])

    def _tensor_order(self, dot: UOperator) -> Order | None:
        """The order of tensor cores; None if the product takes none, or has few rows, or k is not first."""
        left, right = (value.type for value in dot.inputs)
        if not self.packing.near or dot.ints("rhs_contract") != (0,) or dot.ints("rhs_batch"):
            return None
        if right.rank < 2 or right.dtype not in DTYPES or right.shape[0] % line_length(right.dtype):
            return None
        if left.dtype != right.dtype or left.size // max(right.shape[0], 1) <= BLOCK.few_rows:
            return None
        wanted = (left.dtype,) if left.dtype == "float32" else ("float32", left.dtype)
        suits = dot.output.type.dtype in wanted and (left.dtype != "float32" or dot.may_round)
        return Order.of(right, TENSOR_CORES) if suits else None

    def _own(self, value: Value, source: Source) -> Value:
        """The value, read where it is packed; itself if it is not."""
        return self._row(value, tuple(range(value.type.rank)), source)[0]

    def _row(self, value: Value, order: Order | Axes, source: Source) -> tuple[Value, Order | None]:
        """The value, read where it is packed, before the outermost loop that does not change it, and the
        order of columns that it then has; itself if it is no part, or that does not pay."""
        parts = self.frames[-1].parts
        if parts is None or (part := parts.of(value)) is None:
            return value, None
        home, loop = self._home(part.outside), max(i for i, f in enumerate(self.frames) if f.begins)
        frame, region = self.frames[home], id(self.frames[loop - 1].region)
        if self.first is None:
            self.orders[part.key].add(order)
            self.reads[part.key, region][id(parts.loop)] = prod(f.trips for f in self.frames[home + 1 : loop])
            return value, None
        if self._is_fixed(part) or (isinstance(order, Order) and len(self.first.orders[part.key]) > 1):
            order = tuple(range(value.type.rank))
        key = part.key, order
        if key not in frame.packed:
            reads = self.first.reads[part.key, region].values()
            if home >= loop - 1 or sum(reads) < self.packing.least(part.line_bytes):
                return value, None
            frame.packed[key] = self._copies(part, order, Builder(self.fresh, source, frame.before))
        if self._is_fixed(part):
            return frame.packed[key], None
        b = Builder(self.fresh, source)
        row = b.row(frame.packed[key], part.counter)
        own = (
            row if isinstance(order, Order) else b.transpose(row, [order.index(d) for d in range(len(order))])
        )
        self.frames[-1].begin(b.out, part.counter)
        return own, order if isinstance(order, Order) else None

    def _is_fixed(self, part: _Part) -> bool:
        """Threads copy the part of an only trip as it is. A core copies it like any other: the unit that runs
        the trip does it."""
        return self.packing.near > 0 and part.is_fixed

    def _copies(self, part: _Part, order: Order | Axes, b: Builder) -> Value:
        inside, index = b.to([]), self.fresh.make(INDEX)
        names = {part.counter: index}
        for s in part.operators:
            whole = self._is_fixed(part) or (s.kind == "constant" and not s.output.type.is_scalar)
            (b if whole else inside).out.append(copied(s, names, self.fresh))
        row = names[part.value]
        if self._is_fixed(part):
            return b.emit("copy", (row,), row.type)
        row = order.moved(row, inside) if isinstance(order, Order) else inside.transpose(row, order)
        if isinstance(order, Order) and row.type.dtype == "float32" and self.packing.rounds:
            row = inside.emit("reduce_precision", (row,), row.type, **_TF32)
        array = b.emit("empty", (), row.type.dtype, (part.copies, *row.type.shape))
        parameter, packed = b.like((array, array))
        written = inside.put_row(parameter, row, index)
        body = Region((index, parameter), tuple(inside.out), (written,))
        b.out.append(
            LoopUTask((array,), (packed,), body, None, part.copies, b.source, parallel=True, first=part.first)
        )
        return packed


def _sums(dot: UOperator, order: Order, factor: Value, b: Builder) -> Value:
    """The product with a factor in another order, without the columns behind the last one."""
    product, columns = order.product(dot, factor, b), dot.inputs[1].type.shape[1:]
    if not order.padding:
        return product
    kept = dot.output.type.shape[: dot.output.type.rank - len(columns)]
    flat = b.reshape(product, (*kept, order.wide))
    return b.slice(flat, (0,) * flat.type.rank, (*kept, prod(columns)))


def _multiplied(dot: UOperator, order: Order, factor: Value, b: Builder) -> Sequence[Statement]:
    """The product with a factor in another order, and its columns in theirs."""
    columns = dot.inputs[1].type.shape[1:]
    kept = dot.output.type.shape[: dot.output.type.rank - len(columns)]
    turned = b.reshape(_sums(dot, order, factor, b), (*kept, *(columns[a] for a in order.axes)))
    back = [len(kept) + order.axes.index(d) for d in range(len(columns))]
    b.define(dot.outputs, "transpose", (turned,), permutation=(*range(len(kept)), *back))
    return b.out
