"""The time that one unit with many lanes takes for statements, or for a part of them.

On a CPU, dividing work pays from a fixed amount on (`limits.Limits`). On a GPU the amount says little: a
product of one row takes the time to read its weights, an element-wise operator takes as long for 256 elements
as for 32, and a barrier costs as much as a quarter of a million operations. So seconds decide between few
parts and many, and the price of a planned program (`cost.gpu`) has the same basis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log2, prod
from typing import cast

from jax_cocktail.analysis.axes import rule
from jax_cocktail.cost.work import UNKNOWN_TRIPS, work
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.device.tuning import BLOCK
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Statement,
    StitchedUTask,
    UOperator,
    once,
    operators_of,
    regions_of,
)
from jax_cocktail.utask.operators import BARRIERS, COPIES, FREE, PRODUCTS
from jax_cocktail.utask.types import Value

HALVES = ("bfloat16", "float16")
_NOTHING = FREE | BARRIERS | {"fail", "iota"}


@dataclass(frozen=True, slots=True)
class Unit:
    """The rates of one thread block, alone on its multiprocessor, per second.

    `near`: bytes that it keeps in shared memory; `near_rate`, `far_rate`: bytes per second from there and
    from L2; `memory_rate`: its share of the device's; `products`, `convolutions`, `elements`: flops of each;
    `tensors`, `halves`: flops on tensor cores of products of float32 that may be rounded, and of 16 bits.
    """

    near: float
    near_rate: float
    far_rate: float
    memory_rate: float
    products: float
    convolutions: float
    elements: float
    tensors: float
    halves: float
    lanes: int = BLOCK.threads

    def near_share(self, touched: float) -> float:
        """The share of so many repeatedly read bytes that fits into shared memory."""
        return min(1.0, self.near / touched) if touched else 1.0

    def rate(self, touched: float) -> float:
        """Bytes per second for repeated reads of so many bytes; those that do not fit come from L2."""
        share = self.near_share(touched)
        return 1.0 / (share / self.near_rate + (1 - share) / self.far_rate)

    def steps(self, size: float, cost: float = 1.0) -> float:
        """Seconds of `cost` operations on each of so many elements: at least one operation of all lanes."""
        return ceil(size / self.lanes) * self.lanes * cost / self.elements


def unit_of(spec: DeviceSpec) -> Unit:
    """The unit of a device; its rates are those of the device over its multiprocessors."""
    peak = spec.flops / spec.units
    return Unit(
        near=BLOCK.near_share * spec.shared_bytes,
        near_rate=spec.shared_rate / spec.units,
        far_rate=spec.l2_rate / spec.units,
        memory_rate=spec.memory_rate / spec.units,
        products=BLOCK.product_share * peak,
        convolutions=BLOCK.convolution_share * peak,
        elements=BLOCK.element_share * peak / 2,
        tensors=BLOCK.tensor_share * spec.tensor_flops / spec.units,
        halves=BLOCK.tensor_share * spec.half_flops / spec.units,
    )


@dataclass(frozen=True, slots=True)
class Part:
    """The part of statements that one unit runs: a `share` of the values in `axes`, which are cut. `far`:
    values that come from other units every time; `within`: the part that contains this part."""

    axes: Mapping[Value, int]
    share: float = 1.0
    far: frozenset[Value] = frozenset()
    within: Part | None = None

    def of(self, operator: UOperator) -> float:
        """The share of an operator's results."""
        own = 1.0 if self.axes.keys().isdisjoint(operator.outputs) else self.share
        return own if self.within is None else own * self.within.of(operator)

    def shares(self, operator: UOperator) -> list[float]:
        """The share of every operand."""
        tie = rule(operator).along([self.axes.get(v) for v in operator.outputs])
        axes = tie.inputs if tie is not None else (None,) * len(operator.inputs)
        own = [1.0 if axis is None else self.share for axis in axes]
        if self.within is None:
            return own
        return [a * b for a, b in zip(own, self.within.shares(operator), strict=True)]


WHOLE = Part({})


def unit_seconds(statements: Sequence[Statement], unit: Unit, part: Part = WHOLE) -> float:
    """Seconds that one unit takes for its part of the statements, once."""
    rate = _rate(statements, unit, part)
    return sum(_seconds(s, unit, part, rate) for s in statements)


def _rate(statements: Sequence[Statement], unit: Unit, part: Part) -> float:
    """Bytes per second of the level that holds all data that the statements themselves touch."""
    touched: dict[Value, float] = {}
    for operator in (o for s in statements for o in operators_of(s) if o.kind in PRODUCTS):
        sizes = operand_bytes(operator, part)
        touched.update({v: n for v, n in sizes.items() if n > touched.get(v, 0.0) and v not in part.far})
    return unit.rate(sum(touched.values()))


def _seconds(statement: Statement, unit: Unit, part: Part, rate: float) -> float:
    if isinstance(statement, UOperator | StitchedUTask):
        return sum(operator_seconds(o, unit, part, rate) for o in operators_of(statement))
    inside = sum(unit_seconds(region.body, unit, part) for region in regions_of(statement))
    if isinstance(statement, LoopUTask):
        return inside * (UNKNOWN_TRIPS if statement.trip_count is None else statement.trip_count)
    return inside / len(statement.branches) if isinstance(statement, BranchUTask) else BLOCK.statement_seconds


def operator_seconds(operator: UOperator, unit: Unit, part: Part, rate: float) -> float:
    """Seconds of the part of one operator whose operands come at `rate` bytes per second."""
    if operator.kind in _NOTHING or not operator.outputs:
        return 0.0
    share = part.of(operator)
    if operator.kind in PRODUCTS:
        flops = cast(float, getattr(unit, arithmetic(operator)))
        sizes = operand_bytes(operator, part)
        far = sum(size for v, size in sizes.items() if v in part.far)
        moved = (sum(sizes.values()) - far) / rate + far / unit.far_rate
        return BLOCK.statement_seconds + max(work(operator).flops * share / flops, moved)
    if operator.kind in COPIES:
        return unit.steps(work(operator).bytes * share / 8, operator.facts.cost)
    size = _elements(operator) * share
    if operator.is_element:
        return unit.steps(size, operator.facts.cost)
    deep = log2(max(size, 2.0)) ** 2 if operator.facts.orders else 1.0
    return BLOCK.statement_seconds + BLOCK.reduce_seconds + unit.steps(size, deep)


@once
def _elements(operator: UOperator) -> int:
    """The number of elements that lanes process: those of the result, or of an anchor's largest value."""
    values = operator.outputs if operator.is_element else (*operator.inputs, *operator.outputs)
    return max(v.type.size for v in values)


@once
def arithmetic(operator: UOperator) -> str:
    """The name of the field of `Unit` that holds the rate of the operator's flops."""
    if operator.kind not in PRODUCTS:
        return "elements"
    own = "convolutions" if operator.kind == "conv" else "products"
    if operator.kind == "dot" and min(_rows(operator)) < BLOCK.few_rows:
        return own
    dtype = operator.inputs[0].type.dtype
    if dtype in HALVES:
        return "halves"
    return "tensors" if dtype == "float32" and operator.may_round else own


def device_flops(operator: UOperator, spec: DeviceSpec) -> float:
    """Flops per second of a whole device, at full rate."""
    return {"halves": spec.half_flops, "tensors": spec.tensor_flops}.get(arithmetic(operator), spec.flops)


def _rows(dot: UOperator) -> tuple[int, int]:
    """Rows of the left operand and columns of the right one."""
    left, right = (v.type for v in dot.inputs)
    common = prod(left.shape[d] for d in (*dot.ints("lhs_batch"), *dot.ints("lhs_contract")))
    return left.size // max(common, 1), right.size // max(common, 1)


def operand_bytes(operator: UOperator, part: Part = WHOLE) -> dict[Value, float]:
    """The operands that a product reads, and the bytes of each that the part reads."""
    if operator.kind not in PRODUCTS:
        return {}
    pairs = zip(operator.inputs, part.shares(operator), strict=True)
    return {v: v.type.nbytes * share for v, share in pairs}
