"""The latency of statements in one block of threads, as counts of the links of its chain.

A count has the name of a field of `device.templates.Templates`, or is `far_load`, `near_load` or `meet`,
which belong to the hardware. The sum of counts times clocks is the time of a block that is alone on its
multiprocessor and waits for nothing but itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import ceil, prod

from jax_cocktail.analysis.contraction import Strides, contraction
from jax_cocktail.cost.conv_plan import conv_case, conv_plan
from jax_cocktail.cost.dot_plan import (
    DotForm,
    DotPlan,
    above,
    along_k,
    dot_form,
    dot_plan,
    is_rounded,
    vector,
)
from jax_cocktail.cost.footprint import written
from jax_cocktail.device.block import USUAL_BLOCK, Block
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.device.templates import Templates
from jax_cocktail.device.tuning import BLOCK
from jax_cocktail.utask.ir import StitchedUTask, UOperator, is_a, operators_of
from jax_cocktail.utask.operators import FREE, LEAVES, PARTIAL, PRODUCTS, RESHAPES, UPDATES, VIEWS
from jax_cocktail.utask.types import FLOATS, Value

Counts = Counter[str]
_COPIES_TOGETHER = 4  # loads of a thread in `ck_copy`
_NEAR_CLOCKS = 33.0  # [M] H100: of a load that the nearest cache has
_PLACE = 3  # operations that find the place of an element in an array of one thread, and keep it in bounds
_HIDDEN_LINES = 128  # of shared memory, read while a product of few rows starts and ends


def clocks(counts: Mapping[str, float], templates: Templates, spec: DeviceSpec) -> float:
    """Clocks of the chain."""
    price = _links(templates, spec)
    return sum((number * price[name] for name, number in counts.items()), 0.0)


@cache
def _links(templates: Templates, spec: DeviceSpec) -> Mapping[str, float]:
    """The clocks of each link."""
    far = spec.far_clocks
    price: dict[str, float] = {**asdict(templates), "far_load": far, "meet": spec.meet_clocks}
    price["near_load"] = _NEAR_CLOCKS
    return price | {name: price[name] * far for name in ("behind_division", "serial_load")}


@dataclass(frozen=True, slots=True)
class ArrayPlaces:
    """The places of a statement's arrays. `is_far`: reads of a value come from the second-level cache;
    `strides`: of a value, in elements; `room`: bytes of scratch; `outlined`: statements are functions;
    `holds`: the matrix of a product of few rows stays in registers."""

    is_far: Callable[[Value], bool]
    strides: Callable[[Value], Strides]
    room: int
    outlined: bool
    holds: bool = False
    block: Block = USUAL_BLOCK


def counts_of(statement: UOperator | StitchedUTask, memory: ArrayPlaces) -> Counts:
    """The links of one execution by one block."""
    members = [m for m in operators_of(statement) if m.kind not in LEAVES]
    if all(v.type.size <= 1 for m in members for v in (*m.inputs, *m.outputs)):
        return Counter(scalar=sum(m.facts.cost for m in members if m.kind not in FREE))
    if is_a(statement, "copy"):
        return copy_counts(statement.inputs[0], memory)
    others = [m for m in members if m.kind not in PRODUCTS and not _makes_elements(m)]
    passes = [_gathered(m, memory) for m in others if m.inputs]
    if any(m.kind not in FREE and _makes_elements(m) for m in members):
        passes.append(_elements(statement, members, memory))
    products = [m for m in members if m.kind in PRODUCTS]
    found = sum((_dot(m, memory) if m.kind == "dot" else _conv(m, memory) for m in products), Counts())
    found = sum(passes, found)
    if isinstance(statement, StitchedUTask) and statement.reductions:  # one loop loads for them all
        far = [each["far_load"] for each in passes]
        found["far_load"] -= sum(far) - max(far)
    return found


# ---- lane loops --------------------------------------------------------------------------------------------


def _makes_elements(operator: UOperator) -> bool:
    return operator.is_element or operator.kind in UPDATES


class _Read:
    """The work for one element of a group's results: flops, divisions, and loads from far memory."""

    def __init__(self, members: Iterable[UOperator], memory: ArrayPlaces) -> None:
        self.makers = {v: m for m in members for v in m.outputs}
        self.memory = memory
        self.known: set[tuple[Value, tuple[int, ...]]] = set()
        self.flops = self.divisions = self.far = 0

    def visit(self, value: Value, views: tuple[int, ...] = ()) -> None:
        """The element of a value through these views, which the code computes or loads once."""
        if (value, views) in self.known:
            return
        self.known.add((value, views))
        maker = self.makers.get(value)
        if maker is None or not _makes_elements(maker):
            self.far += value.type.size > 1 and self.memory.is_far(value)
        elif maker.kind in UPDATES:
            self.visit(written(maker))
        elif maker.kind in VIEWS:
            shifts = () if maker.kind in RESHAPES else (maker.output.id,)
            self.visit(maker.inputs[0], (*views, *shifts))
        else:
            self.flops += 0 if maker.kind in FREE else maker.facts.cost
            self.divisions += maker.facts.divides and maker.output.type.dtype in FLOATS
            for operand in maker.inputs:
                self.visit(operand, views)


def _elements(statement: UOperator | StitchedUTask, members: list[UOperator], memory: ArrayPlaces) -> Counts:
    """A loop of the threads over the elements that a group writes."""
    read = _Read(members, memory)
    sizes = [0]
    for value in statement.outputs:
        maker = read.makers.get(value)
        if maker is None:  # a leaf, which only stores
            sizes.append(value.type.size)
        elif _makes_elements(maker):
            read.visit(value)
            sizes.append(written(maker).type.size)
    rounds = above(max(sizes), memory.block.threads)
    found = Counter({"stage": 1, "round": rounds})
    found["operation"], found["division"] = rounds * read.flops, rounds * read.divisions
    found["far_load"] = above(rounds, BLOCK.most_together) * bool(read.far)
    if read.divisions:
        found["behind_division"] = rounds * read.far - found["far_load"]
    return found


def counts_alone(members: Iterable[UOperator]) -> Counts:
    """The links of statements that a thread runs alone, on numbers and on arrays of its own."""
    found = Counts()
    for member in members:
        if member.kind in LEAVES:
            continue
        touches = member.kind in PARTIAL or member.kind in UPDATES or member.kind == "slice"
        found["scalar"] += _PLACE if touches else 0 if member.kind in FREE else member.facts.cost
        found["near_load"] |= touches and member.kind not in UPDATES  # loads of a statement are made together
    return found


def counts_unrolled(members: Iterable[UOperator], trips: int, carried: Iterable[Value]) -> Counts:
    """The links of a short innermost loop of such statements. Compilers unroll it: places become constants,
    and the loads of some trips are made together. `carried`: what changes from trip to trip."""
    changing, found = set(carried), Counts(near_load=above(trips, BLOCK.most_together))
    for member in members:
        touches = any(v.type.size > 1 for v in member.inputs)
        if touches or not changing.isdisjoint(member.inputs):
            changing.update(member.outputs)
            found["scalar"] += trips * (touches + (0 if member.kind in FREE else member.facts.cost))
    return found


def copy_counts(value: Value, memory: ArrayPlaces) -> Counts:
    """A copy of a whole array, by `ck_copy`."""
    rounds = above(value.type.nbytes, BLOCK.load_bytes * memory.block.threads)
    far = above(rounds, _COPIES_TOGETHER) * memory.is_far(value)
    return Counter({"stage": 1, "round": rounds, "far_load": far})


def _gathered(operator: UOperator, memory: ArrayPlaces) -> Counts:
    """Reductions and other templates that combine the elements of rows."""
    size, rows = max(v.type.size for v in operator.inputs), max(v.type.size for v in operator.outputs)
    teams = 1 if rows < BLOCK.whole_rows else memory.block.warps
    rounds = above(rows, teams) * above(above(size, rows), memory.block.threads // teams)
    finds = operator.outputs[-1].type.dtype != operator.inputs[0].type.dtype  # where an element is
    found = Counter({"argument" if finds else "reduction": 1})
    found["compare" if finds else "operation"] = rounds * operator.facts.cost
    if any(memory.is_far(v) for v in operator.inputs):
        found["far_load"] = above(rounds, BLOCK.most_together)
    return found


# ---- products ----------------------------------------------------------------------------------------------


def _dot(operator: UOperator, memory: ArrayPlaces) -> Counts:
    a, b = operator.inputs[:2]
    terms = len(operator.inputs) // 2
    strides = memory.strides(a), memory.strides(b), memory.strides(operator.output)
    axes = contraction(operator, strides)
    dtypes = a.type.dtype, b.type.dtype, operator.output.type.dtype
    form = dot_form(axes, dtypes, is_rounded(operator), terms)
    few = memory.holds and terms == 1 and min(form.m, form.n) <= BLOCK.held_rows
    if few and axes.batch.size == 1 and not axes.outer:
        form = replace(form, mma=False)
    plan = dot_plan(form, memory.block, memory.room)
    far = any(map(memory.is_far, operator.inputs[::2])), any(map(memory.is_far, operator.inputs[1::2]))
    if plan.turned:
        form, far = form.turned(), (far[1], far[0])
    times = prod(axis.size for axis in axes.outer)
    make = {"serial": _serial, "columns": _slim, "lanes": _slim, "fma": _tiles, "mma": _tiles}[plan.path]
    once = make(form.normal(), plan, axes.batch.size, far, memory)
    if axes.outer:
        once["meet"] += 1
    return Counter({name: times * number for name, number in once.items()})


_Far = tuple[bool, bool]  # the left operand is in far memory; the right one


def _serial(f: DotForm, p: DotPlan, batch: int, far: _Far, memory: ArrayPlaces) -> Counts:
    rounds = above(batch * f.m * f.n, memory.block.threads)
    return Counter({"stage": 1, "operation": rounds * f.k * 2, "far_load": rounds * any(far)})


def _slim(f: DotForm, p: DotPlan, batch: int, far: _Far, memory: ArrayPlaces) -> Counts:
    """Few rows: `ck_dot_columns` and `ck_dot_lanes`."""
    items = batch * above(f.n, p.columns)
    parts = p.parts if batch == 1 or items < memory.block.warps else 1
    inside, depth = (1, p.kv) if p.path == "columns" else (p.lanes, p.v)
    groups = parts * (memory.block.warp // p.lanes if p.path == "columns" else p.lanes)
    teams = memory.block.warps // parts if p.path == "columns" else memory.block.threads // (parts * inside)
    rounds, steps = above(items, teams), above(f.k // depth, groups)
    lines = batch * f.k * f.n * f.b_size / 128 - _HIDDEN_LINES
    found = Counter({"gemv": 1, "gemv_round": rounds - 1})
    if not far[1]:
        found["line"] = max(0, ceil(lines))
    if far[0] and memory.outlined:
        found["serial_load"], found["serial_word"] = rounds * steps, rounds * steps * depth
    elif any(far):
        found["far_load"] = rounds * above(steps * f.m * depth, 32)
    return found


def _tiles(f: DotForm, p: DotPlan, batch: int, far: _Far, memory: ArrayPlaces) -> Counts:
    """`ck_dot_tiles`, and `ck_dot_whole` for packed matrices."""
    size, mma = f.a_size if f.mma else f.w_size, p.path == "mma"
    sides = (f.m, f.a_m, f.a_k, f.a_size, p.bm), (f.n, f.b_n, f.b_k, f.b_size, p.bn)
    copies = (
        0 if f.is_packed else sum(_copies(f.k, p.bk, size, memory.block.threads, *side) for side in sides)
    )
    tiles, steps = batch * above(f.m, p.bm) * above(f.n, p.bn), f.terms * above(f.k, p.bk)
    ahead = 0 if steps == p.stages else p.stages - 1
    found = Counter({"tile_step": tiles * (steps + ahead)})
    found["tile_copy"] = copies * found["tile_step"]
    inner = tiles * steps * max(p.bk * size // 32 // p.slices if mma else p.bk // (p.slices * 4), 1)
    if mma:
        found["mma"], found["mma_word"] = inner, inner * (4 * p.tm + 2 * p.tn)
        found["mma_more"] = inner * (p.tm * p.tn - 1)
    else:
        found["fma"] = inner * max(p.tm * p.tn // 4, 1)
    found["slice_end" if p.slices > 1 else "tile_end"] = tiles
    found["far_load"] = tiles * any(far)
    return found


def _copies(
    k: int, bk: int, size: int, threads: int, rows: int, s_row: int, s_k: int, own: int, tile: int
) -> int:
    """Copies of one thread for one tile of an operand."""
    along = along_k(s_row, s_k)
    line, lines = (bk, tile) if along else (tile, bk)
    dense = (s_k if along else s_row) == 1
    extent, step = (k, s_row) if along else (rows, s_k)
    v = vector(own, 16 // max(own, size), extent, step) if dense else 1
    return above(lines * (line // v), threads)


def _conv(operator: UOperator, memory: ArrayPlaces) -> Counts:
    case = conv_case(operator)
    plan = conv_plan(case, memory.block, memory.room)
    if plan.kind == "simple":
        rounds = above(case.rows * case.columns * case.groups, memory.block.threads)
        far = any(map(memory.is_far, operator.inputs))
        return Counter({"stage": 1, "operation": rounds * case.depth * 2, "far_load": rounds * far})
    if plan.kind == "few":
        return Counter({"stage": 1, "far_load": 1, "box_clock": plan.cost // 64})
    tiles = case.groups * above(case.rows, plan.rows) * above(case.columns, plan.columns)
    steps = tiles * above(case.depth, plan.depth)
    copies = above(plan.rows * plan.depth // case.a_chunk, memory.block.threads)
    found = Counter({"conv_step": steps, "conv_copy": steps * copies})
    if plan.kind == "fma":
        found["fma"] = steps * plan.depth // (plan.slices * 4) * plan.height * plan.width // 4
    else:
        inner = steps * plan.depth // (plan.slices * case.step)
        found["mma"], found["mma_word"] = inner, inner * (4 * plan.height + 2 * plan.width)
        found["mma_more"] = inner * (plan.height * plan.width - 1)
    found["slice_end" if plan.slices > 1 else "tile_end"] = tiles
    return found
