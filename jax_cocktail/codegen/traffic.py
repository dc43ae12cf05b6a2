"""The bytes that a planned program loads and stores, by unit and by memory, from its statements alone.

A byte counts each time that it is loaded, whether a cache holds it or not. A lane loop loads an element of an
operand once for every trip of the innermost loop on which its position depends. Products are taken as their
templates move them (`cost.cpu_products`). Values in registers and templates' arrays on the stack count
nothing, nor does what LAPACK does inside. A sort is one of random numbers.

    group of shape S      each read once per element of S, less often if its position lacks the last axes
    reductions            the same for their operands; the results are stored once
    copy, transfer        as many bytes loaded as stored
    loop                  its body for each trip; of a parallel loop, unit (first + p) mod n runs trip p
    branch                the mean over its sides, or as often as each was taken

Blocks of threads reduce in registers, and load the operands of a product once for each call of its template:
in every iteration of a loop, or in all together if they keep them in registers. Bytes are those of sectors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, log2, prod

from jax_cocktail.analysis.contraction import contraction
from jax_cocktail.codegen.loads import LaneLoads
from jax_cocktail.cost.cpu_products import VECTOR_BYTES, Loads, conv_loads, dot_loads, pairs_inside
from jax_cocktail.cost.footprint import written
from jax_cocktail.cost.vector import Vector
from jax_cocktail.cost.work import rows, runs
from jax_cocktail.device.block import USUAL_BLOCK, Block
from jax_cocktail.device.machine import Machine
from jax_cocktail.device.tuning import BLOCK
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    StitchedUTask,
    UOperator,
    UProgram,
    by_threads,
    defined_in,
    operators_of,
    walk,
)
from jax_cocktail.utask.layout import core, neighbours, reduced_axes, row_major
from jax_cocktail.utask.plan import MemoryPlan, Slot
from jax_cocktail.utask.types import ITEM_SIZE, Value

Shares = tuple[float, ...]  # how often each unit executes something
Executions = Mapping[int, int]  # how often regions ran, by id


@dataclass(frozen=True, slots=True)
class Moved(Vector):
    """Bytes that were loaded and stored."""

    loaded: float = 0
    stored: float = 0

    @property
    def bytes(self) -> float:
        return self.loaded + self.stored


@dataclass(frozen=True, slots=True)
class Traffic:
    """The bytes that one call moves. `units`: of every unit, by memory: "operand 0" and so on, "result 0"
    and so on, "workspace", "own" (memory of one unit), "other" (constants; for a counted call also the
    stack)."""

    units: tuple[Mapping[str, Moved], ...]

    def total(self, *prefixes: str) -> Moved:
        """The sum over all units, in the memories whose names begin so; without any, in all of them."""
        names = prefixes or ("",)
        return sum((m for unit in self.units for n, m in unit.items() if n.startswith(names)), Moved())


def moved_per_call(program: UProgram, plan: MemoryPlan, units: int, machine: Machine) -> Moved:
    """The bytes that all units together load and store in one call, as predicted."""
    vector = 0 if machine.is_gpu else VECTOR_BYTES
    return traffic(program, plan, units, vector=vector, block=machine.block).total()


def traffic(
    program: UProgram,
    plan: MemoryPlan,
    units: int = 1,
    executions: Executions | None = None,
    vector: int = VECTOR_BYTES,
    block: Block = USUAL_BLOCK,
) -> Traffic:
    """The prediction for one call of a program on so many units.

    `executions`: of the regions, as an interpreter observed them; without it, a loop of unknown length has
    as many trips as prices assume, and a branch takes each side equally often. `vector`: bytes of a vector
    register of a CPU; 0: a unit is a `block` of threads.
    """
    count = min(units, plan.most_units)
    moved = tuple(defaultdict[str, Moved](Moved) for _ in range(count))
    model = _Model(plan, moved, executions, vector, block)
    model.entry(program)
    return Traffic(tuple({n: m for n, m in sorted(unit.items()) if m.bytes} for unit in model.moved))


@dataclass(slots=True)
class _Model:
    """Adds up what the units move. `part_depth`: parallel loops around the statement at hand; `by_thread`: in
    one of them, threads share the trips; `kept`: matrices that stay in registers, and the part of their
    products that loads them."""

    plan: MemoryPlan
    moved: tuple[defaultdict[str, Moved], ...]
    executions: Executions | None
    vector: int
    block: Block
    part_depth: int = 0
    by_thread: bool = False
    kept: dict[Value, float] = field(default_factory=dict)

    # -- memory ------------------------------------------------------------------------------------------
    def add(self, value: Value, loaded: float, stored: float, shares: Shares) -> None:
        """Notes elements of a value that is in memory."""
        if not value.type.is_scalar:
            item = ITEM_SIZE[value.type.dtype]
            self.add_to(self.plan.slot(value), Moved(loaded * item, stored * item), shares)

    def add_to(self, slot: Slot, moved: Moved, shares: Shares) -> None:
        name = self.name(slot)
        for unit, share in zip(self.moved, shares, strict=True):
            if share and moved.bytes:
                unit[name] += moved * share

    def name(self, slot: Slot) -> str:
        """The memory's name; that of the operand for a result that shares its memory."""
        if slot in self.plan.parts:
            return "own"
        operands = {b: a for a, b in self.plan.aliases}
        if slot.space == "output" and slot.index in operands:
            return f"operand {operands[slot.index]}"
        numbered = {"input": "operand", "output": "result"}.get(slot.space)
        names = {"constant": "other", "private": "own", "thread": "own"}
        return f"{numbered} {slot.index}" if numbered else names.get(slot.space, slot.space)

    def alone(self, shares: Shares, *values: Value) -> Shares:
        """The shares of a statement that only unit 0 executes if it writes shared memory."""
        return (shares[0], *(0.0 for _ in shares[1:])) if any(map(self.is_shared, values)) else shares

    def is_shared(self, value: Value) -> bool:
        if self.part_depth or value.type.is_scalar or not value.type.size:
            return False
        return self.plan.slot(value).space in ("workspace", "output", "input")

    # -- control flow ------------------------------------------------------------------------------------
    def entry(self, program: UProgram) -> None:
        """The program: every unit loads the operands that are scalars."""
        once = (1.0,) * len(self.moved)
        first = (1.0, *(0.0 for _ in once[1:]))
        for number, value in enumerate(program.entry.parameters):
            if value.type.is_scalar:
                self.add_to(Slot("input", number), Moved(loaded=value.type.nbytes), once)
        self.region(program.entry, once)
        for number, value in enumerate(program.entry.results):
            target = Slot("output", number)
            if value.type.is_scalar:
                self.add_to(target, Moved(stored=value.type.nbytes), first)
            elif value.type.size and not (
                self.plan.layouts[value].is_whole and self.plan.slot(value) == target
            ):
                self.add(value, value.type.size, 0, first)
                self.add_to(target, Moved(stored=value.type.nbytes), first)

    def region(self, region: Region, shares: Shares) -> None:
        for statement in region.body if any(shares) else ():
            if isinstance(statement, LoopUTask):
                self.loop(statement, region, shares)
            elif isinstance(statement, BranchUTask):
                for side in statement.branches:
                    taken = self.ratio(side, region, 1 / len(statement.branches))
                    inside = tuple(share * taken for share in shares)
                    self.region(side, inside)
                    self.transfer(side.results, statement.outputs, inside)
            else:
                self.statement(statement, shares)

    def ratio(self, inner: Region, outer: Region, assumed: float) -> float:
        """The number of runs of a region for each run of the one around it."""
        if self.executions is None:
            return assumed
        around = self.executions.get(id(outer), 0)
        return self.executions.get(id(inner), 0) / around if around else 0.0

    def loop(self, loop: LoopUTask, around: Region, shares: Shares) -> None:
        self.transfer(loop.initial, loop.carried, shares)
        trips = self.ratio(loop.body, around, runs(loop))
        if loop.condition is not None:
            tests = self.ratio(loop.condition, around, trips + 1)
            self.region(loop.condition, tuple(share * tests for share in shares))
        inside = tuple(share * trips for share in shares)
        if loop.parallel and not self.part_depth:
            count, number, run = loop.trip_count or 0, len(shares), self.block.warp if by_threads(loop) else 1
            order = [(unit - loop.first) % number for unit in range(number)]
            runs_of = [range(run * k, count, run * number) for k in order]
            parts = [sum(min(run, count - first) for first in each) for each in runs_of]
            inside = tuple(share * n for share, n in zip(shares, parts, strict=True))
        self.part_depth += loop.parallel
        self.by_thread |= by_threads(loop)
        before = self.kept
        if not self.vector and not loop.parallel and trips >= BLOCK.held_trips:
            self.kept = self.kept | dict.fromkeys(kept_matrices(loop, self.plan, self.block), 1 / trips)
        self.region(loop.body, inside)
        self.transfer(loop.body.results, loop.carried, inside)
        self.kept = before
        self.part_depth -= loop.parallel
        self.by_thread &= not by_threads(loop)

    def transfer(self, sources: Sequence[Value], targets: Sequence[Value], shares: Shares) -> None:
        """Copies at the joins of control flow."""
        for source, target in zip(sources, targets, strict=True):
            if not target.type.is_scalar:
                self.copy(source, target, self.alone(shares, target))

    # -- statements --------------------------------------------------------------------------------------
    def statement(self, statement: UOperator | StitchedUTask, shares: Shares) -> None:
        if isinstance(statement, StitchedUTask):
            self.group(statement, self.alone(shares, *statement.outputs))
        elif not statement.is_element and any(v.type.size for v in statement.outputs):
            self.anchor(statement, self.alone(shares, *statement.outputs))

    def anchor(self, operator: UOperator, shares: Shares) -> None:
        if operator.kind == "dot":
            strides = self.strides(operator.output)
            self.dot(operator, strides, operator.output, shares)
        elif operator.kind == "conv":
            left, right, result = (v.type.size for v in (*operator.inputs, operator.output))
            loads = conv_loads(operator, self.vector) if self.vector else Loads(left, right, 0, result)
            self.product(operator, loads, operator.output, shares)
        else:
            if operator.facts.updates or operator.kind == "copy":
                self.copy(operator.inputs[0], operator.output, shares)
            if operator.facts.orders:
                _, loaded, stored = _comparisons(operator)
                scratch = Slot(self.plan.scratch_space, self.plan.scratch_offset)
                self.add_to(scratch, Moved(4 * loaded, 4 * stored), shares)
            for value, loaded, stored in _elements(operator):
                self.add(value, loaded, stored, shares)

    def group(self, group: StitchedUTask, shares: Shares) -> None:
        closer = group.members[-1]
        if group.members[0].kind == "dot":
            self.product_in_place(group, shares)
        elif group.reductions:
            self.reductions(group, shares)
        elif closer.kind == "concatenate" and closer.output in group.outputs:
            for operand in closer.inputs:
                self.nest(group.members, [(operand, closer.output)], shares)
        else:
            self.nest(group.members, self.targets(group, shares), shares)

    def targets(self, group: StitchedUTask, shares: Shares) -> list[tuple[Value, Value]]:
        """The values that a group stores but for reductions, see `nest`. Makes the copies of its updates."""
        targets = []
        for member in group.members:
            if member.kind == "dynamic_update_slice":
                self.copy(member.inputs[0], member.output, shares)
            if member.output in group.outputs and member.kind != "reduce":
                targets.append((written(member), member.output))
        return targets

    def nest(
        self, members: Sequence[UOperator], targets: Sequence[tuple[Value, Value]], shares: Shares
    ) -> None:
        """One loop nest. `targets`: (value whose elements are computed, value in whose memory they go)."""
        reads = LaneLoads(members, self.plan.layouts)
        shape = core(targets[0][0].type.shape)
        self.store(reads, targets, shares)
        self.load(reads, list(enumerate(shape)), shares)

    def store(self, reads: LaneLoads, targets: Sequence[tuple[Value, Value]], shares: Shares) -> None:
        for value, place in targets:
            reads.element(value)
            gaps = self.gaps(value, row_major(place.type.shape))
            self.add(place, 0, value.type.size * gaps, shares)

    def load(self, reads: LaneLoads, loops: Sequence[tuple[int, int]], shares: Shares) -> None:
        """Threads load neighbouring elements together, in sectors; one that all of a warp need is a sector by
        itself."""
        everything = prod(size for _, size in loops)
        for root, axes, steps in reads.found():
            # It stands in the innermost loop that it depends on.
            depth = max((n + 1 for n, (axis, _) in enumerate(loops) if axis in axes), default=0)
            count, item = float(prod(size for _, size in loops[:depth])), ITEM_SIZE[root.type.dtype]
            if not self.vector and count < everything:
                count = -(-everything // self.block.warp) * (self.block.sector // item)
            elif not self.vector:
                count *= self.sectors(_run(steps, loops), item)
            self.add(root, count, 0, shares)

    def reductions(self, group: StitchedUTask, shares: Shares) -> None:
        """One pass over their operands. Totals are in registers, or on the stack where lanes keep the last
        axis."""
        first = group.reductions[0]
        loops, reduced = list(enumerate(core(first.inputs[0].type.shape))), reduced_axes(first)
        kept, inner = ([each for each in loops if (each[0] in reduced) is side] for side in (False, True))
        columns = bool(self.vector and kept) and loops[-1] in kept
        reads = LaneLoads(group.members, self.plan.layouts)
        self.store(reads, self.targets(group, shares), shares)
        for each in group.reductions:
            (x,), result = each.inputs, each.output
            if x.type.size:
                reads.element(x)
            self.add(result, 0, result.type.size, shares)
        self.load(reads, [*kept[:-1], *inner, *kept[-1:]] if columns else [*kept, *inner], shares)

    def sectors(self, run: int, item: int) -> float:
        """Bytes of the sectors around so many neighbouring elements, over those of the elements. Threads of a
        loop that they share have neighbouring trips: most of their elements are neighbours."""
        if self.by_thread:
            return 1.0
        sector = self.block.sector
        return -(-run * item // sector) * sector / (run * item)

    def gaps(self, value: Value, strides: Sequence[int]) -> float:
        """The factor for a value with these strides; 1 on a CPU."""
        run = neighbours(zip(value.type.shape, strides, strict=False))
        return 1.0 if self.vector else self.sectors(run, ITEM_SIZE[value.type.dtype])

    def copy(self, source: Value, target: Value, shares: Shares) -> None:
        """One array, unless it is there already."""
        if target.type.is_scalar or not target.type.size or self.plan.same_place(source, target):
            return
        self.nest((), [(source, target)], shares)

    # -- products ----------------------------------------------------------------------------------------
    def product_in_place(self, group: StitchedUTask, shares: Shares) -> None:
        """A product whose result is a part of an array."""
        dot, update = group.members[0], group.members[-1]
        self.copy(update.inputs[0], update.output, shares)
        strides = row_major(update.output.type.shape)
        kept = iter(s for n, s in zip(update.inputs[1].type.shape, strides, strict=True) if n != 1)
        inside = tuple(next(kept) if n != 1 else 0 for n in dot.output.type.shape)
        self.dot(dot, inside, update.output, shares)

    def dot(self, dot: UOperator, result: tuple[int, ...], place: Value, shares: Shares) -> None:
        left, right = (self.strides(v) for v in dot.inputs[:2])
        axes = contraction(dot, (left, right, result))
        if self.vector:
            self.product(dot, dot_loads(dot, axes, self.vector), place, shares)
            return
        calls = axes.batch.size * prod(axis.size for axis in axes.outer)
        a, b = (side.size * axes.depth.size * calls for side in (axes.rows, axes.columns))
        stored = dot.output.type.size * self.gaps(dot.output, result)
        self.product(dot, Loads(a, b, 0, stored), place, shares)

    def strides(self, value: Value) -> tuple[int, ...]:
        return (0,) * value.type.rank if value.type.is_scalar else self.plan.layouts[value].strides

    def product(self, product: UOperator, loads: Loads, place: Value, shares: Shares) -> None:
        for number, value in enumerate(product.inputs):
            if value.type.is_scalar:
                continue
            count = loads.right if number % 2 else loads.left
            if value in self.kept:
                count *= self.kept[value]
            elif not self.kept.keys().isdisjoint(product.inputs):
                count *= self.block.warps  # every warp has a part of the matrix
            self.add(value, count * self.gaps(value, self.plan.layouts[value].strides), 0, shares)
        self.add(place, loads.result, loads.stored, shares)


def _run(steps: Mapping[int, int], loops: Sequence[tuple[int, int]]) -> int:
    """Neighbouring elements that neighbouring trips of a loop nest load."""
    run = 1
    for axis, size in reversed(loops):
        if steps.get(axis) != run:
            break
        run *= size
    return run


def kept_matrices(loop: LoopUTask, plan: MemoryPlan, block: Block) -> Iterable[Value]:
    """The larger operands of products of few rows that no iteration changes, as many as registers hold."""
    inside, steady, left = set(defined_in(loop)), set[Value](), BLOCK.held_bytes(block)
    for statement in walk(loop.body):
        if isinstance(statement, LoopUTask) and statement.parallel and statement.index is not None:
            steady.add(statement.index)
        for operator in operators_of(statement):
            if all(v in steady or v not in inside for v in operator.inputs):
                steady.update(operator.outputs)
            if operator.kind != "dot" or len(operator.inputs) > 2 or min(rows(operator)) > BLOCK.held_rows:
                continue
            matrix = max(operator.inputs, key=lambda v: v.type.size)
            size = matrix.type.nbytes
            if (matrix in steady or matrix not in inside) and matrix in plan.layouts and size <= left:
                left -= size
                yield matrix


# ---- anchors -----------------------------------------------------------------------------------------------

Elements = Iterable[tuple[Value, float, float]]  # values with the elements that are loaded and stored


def _elements(operator: UOperator) -> Elements:
    """The elements that a template moves, besides the copy of an array that it updates."""
    if operator.facts.orders:
        return _ordered(operator)
    if operator.facts.ties == "windows":
        return _windows(operator)
    if operator.kind == "scatter":
        return _scatter(operator)
    if operator.facts.updates or operator.kind == "copy":
        return ()
    return (*((v, v.type.size, 0) for v in operator.inputs), *_results(operator))


def _results(operator: UOperator) -> Elements:
    return ((v, 0, v.type.size) for v in operator.outputs)


def _scatter(operator: UOperator) -> Elements:
    _, table, updates = operator.inputs
    size = updates.type.size
    yield table, size * len(operator.ints("scatter_dims_to_operand_dims")), 0
    yield updates, size, 0
    yield operator.output, size if operator["op"] != "set" else 0, size


def _windows(operator: UOperator) -> Elements:
    """Every window is read but for what lies in the padding. If they have sources, these are added to a
    result of zeros."""
    *sources, x = operator.inputs
    yield x, _pairs(operator, x, (sources or operator.outputs)[0].type.shape), 0
    for value in sources:
        yield value, value.type.size, 0
        yield operator.output, value.type.size, value.type.size
    yield from _results(operator)


def _pairs(operator: UOperator, x: Value, windows: Sequence[int]) -> int:
    """Pairs of a window and one of its elements inside the operand."""
    ones, known = (1,) * x.type.rank, {name for name, _ in operator.attributes}
    names = "strides", "window", "base_dilation", "window_dilation"
    rules = zip(*(operator.ints(name) if name in known else ones for name in names), strict=True)
    each = zip(x.type.shape, windows, operator.pairs("padding"), rules, strict=True)
    found = 1
    for n, count, (low, _), (stride, window, gap, spread) in each:
        found *= pairs_inside(n, gap, count, stride, window, spread, low)
    return found


def _ordered(operator: UOperator) -> Elements:
    """Two keys for every comparison; then every operand in its new order."""
    compared, _, _ = _comparisons(operator)
    yield operator.inputs[0], 2 * compared, 0
    for value, result in zip(operator.inputs, operator.outputs, strict=False):
        yield value, result.type.size, 0
    yield from _results(operator)


def _comparisons(operator: UOperator) -> tuple[float, float, float]:
    """Comparisons of a sort of random numbers, and positions that it loads and stores. Runs of 16 elements
    are sorted by insertion, then merged pairwise."""
    (value, *_), axis = operator.inputs, operator.number(operator.facts.orders)
    length = value.type.shape[axis]
    run = min(length, 16)
    inserted, merges = (run + 2) / 4, ceil(log2(max(length / 16, 1)))
    compared, stored = inserted + merges, inserted + 0.25 + merges
    return compared * value.type.size, (compared + 2 * merges + 1) * value.type.size, stored * value.type.size
