"""Packs the right factors of products that a loop repeats, in the order in which a core reads them.

A core makes a product by panels: so many neighbouring columns as its registers have sums for. A line of a
panel lies one row of the matrix behind the previous one, often on a page of its own. So each repetition waits
for the memory, and copies the panel. This pass copies all panels once, before the outermost loop that leaves
the matrix as it is:

    loop: y = dot(x, w)         ->         p = copy(transpose(reshape(w)))       [k, n] -> [n / 64, k, 64]
                                           loop: y = reshape(dot(x, p))

(K. Goto, R. van de Geijn: Anatomy of high-performance matrix multiplication, section 4.2.3.) The sums do not
change. Units that run whole loops have a copy each; the others read what `place` packed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from jax_cocktail.cost.work import sure_runs
from jax_cocktail.device.tuning import FACTORS
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import LoopUTask, Region, Statement, UOperator, UProgram, is_a, is_parallel, walk
from jax_cocktail.utask.rewrite import map_regions, with_body
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import ITEM_SIZE, Value


def pack_factors(program: UProgram, most_bytes: int = FACTORS.most_bytes) -> UProgram:
    """Returns its argument if no product is worth it. Expects no stitched groups. `most_bytes`: of all copies
    of a unit."""
    packer = _Packer(program, most_bytes)
    entry = packer.region(program.entry, _Frame(1, alone=not any(map(is_parallel, walk(program.entry)))))
    return program if entry is program.entry else replace(program, entry=entry)


@dataclass(slots=True)
class _Frame:
    """A region that is being rewritten.

    Attributes:
      trips: runs of the region per run of the statement around it.
      alone: one unit runs it by itself, so that a copy made in it needs no barrier.
      begins: it is the body of a parallel loop: copies outside would belong to all units.
      visible: values that its parameters and the statements so far define.
      before: statements to put before the one that is being rewritten.
      packed: the panels of the matrices that were packed in it.
    """

    trips: int
    alone: bool
    begins: bool = False
    visible: set[Value] = field(default_factory=set)
    before: list[Statement] = field(default_factory=list)
    packed: dict[tuple[Value, int], Value] = field(default_factory=dict)


class _Packer:
    def __init__(self, program: UProgram, most_bytes: int) -> None:
        operators = [s for s in walk(program.entry) if isinstance(s, UOperator)]
        self.fresh = FreshValues(program)
        self.views: Mapping[Value, Value] = {o.output: o.inputs[0] for o in operators if o.kind == "reshape"}
        updates = (o.inputs[1] for o in operators if o.kind == "dynamic_update_slice")
        self.in_place = set(map(self._base, updates))  # a product that is made where its update goes
        self.frames: list[_Frame] = []
        self.room = most_bytes

    def region(self, region: Region, frame: _Frame) -> Region:
        frame.visible.update(region.parameters)
        self.frames.append(frame)
        body: list[Statement] = []
        for statement in region.body:
            frame.before = []
            changed = self._statement(statement)
            body += (*frame.before, *changed)
            frame.visible.update(statement.outputs)
        self.frames.pop()
        return with_body(region, body)

    def _statement(self, statement: Statement) -> Sequence[Statement]:
        if isinstance(statement, UOperator):
            return self._product(statement) if self._is_wide(statement) else (statement,)
        begins = is_parallel(statement)
        number = sure_runs(statement) if isinstance(statement, LoopUTask) else 1
        alone = begins or self.frames[-1].alone
        return (map_regions(statement, lambda r: self.region(r, _Frame(number, alone, begins))),)

    def _base(self, value: Value) -> Value:
        """The value before reshapes: the same elements in the same order."""
        while value in self.views:
            value = self.views[value]
        return value

    def _is_wide(self, product: UOperator) -> bool:
        """True for a product of many rows with a large matrix that consists of whole panels."""
        if not is_a(product, "dot") or len(product.inputs) > 2 or product.ints("rhs_contract") != (0,):
            return False
        left, right = (v.type for v in product.inputs)
        if {left.dtype, right.dtype, product.output.type.dtype} not in ({"float32"}, {"float64"}):
            return False
        free = [n for d, n in enumerate(left.shape) if d not in product.ints("lhs_contract")]
        return (
            not product.ints("rhs_batch")
            and bool(free)
            and free[-1] >= FACTORS.rows
            and right.nbytes >= FACTORS.bytes
            and prod(right.shape[1:]) % _width(right.dtype) == 0
            and product.output not in self.in_place
        )

    def _product(self, product: UOperator) -> Sequence[Statement]:
        base, k = self._base(product.inputs[1]), product.inputs[1].type.shape[0]
        home = self._home(base)
        if home is None or prod(f.trips for f in self.frames[home + 1 :]) < FACTORS.trips:
            return (product,)
        frame = self.frames[home]
        if (base, k) not in frame.packed:
            if base.type.nbytes > self.room:
                return (product,)
            self.room -= base.type.nbytes
            build = Builder(self.fresh, product.source, frame.before)
            width = _width(base.type.dtype)
            lines = build.reshape(base, (k, base.type.size // (k * width), width))
            panels = build.transpose(lines, (1, 0, 2))
            frame.packed[base, k] = build.emit("copy", (panels,), panels.type)
        panels = frame.packed[base, k]
        count, _, width = panels.type.shape
        rows = product.output.type.shape[: product.output.type.rank - product.inputs[1].type.rank + 1]
        b = Builder(self.fresh, product.source)
        attributes = dict(product.attributes) | {"rhs_contract": (1,)}
        shape = (*rows, count, width)
        made = b.emit("dot", (product.inputs[0], panels), base.type.dtype, shape, **attributes)
        b.define(product.outputs, "reshape", (made,))
        return b.out

    def _home(self, base: Value) -> int | None:
        """The outermost region that sees the matrix and whose statements one unit runs by itself."""
        if not self.frames[-1].alone:
            return None
        first = max((i for i, f in enumerate(self.frames) if f.begins), default=0)
        return next((max(i, first) for i, f in enumerate(self.frames) if base in f.visible), None)


def _width(dtype: str) -> int:
    """Columns of a panel."""
    return FACTORS.panel_bytes // ITEM_SIZE[dtype]
