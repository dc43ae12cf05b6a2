"""The time that one unit with many lanes takes for statements, or for a part of them.

On a CPU, dividing work pays from a fixed amount on (`limits.Limits`). On a GPU the amount says little: a
product of one row takes the time to read its weights, an element-wise operator takes as long for 256 elements
as for 32, and a barrier costs as much as a quarter of a million operations. So seconds decide between few
parts and many, and the price of a planned program (`cost.gpu`) has the same basis.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log2, prod
from typing import cast

from jax_cocktail.analysis.axes import rule
from jax_cocktail.cost.work import element_flops, rows, runs, tensor_factors, work
from jax_cocktail.device.tuning import BLOCK
from jax_cocktail.device.unit import Unit
from jax_cocktail.utask.failure import KIND as FAIL
from jax_cocktail.utask.ir import (
    LoopUTask,
    Statement,
    StitchedUTask,
    UOperator,
    once,
    operators_of,
    regions_of,
)
from jax_cocktail.utask.operators import BARRIERS, COPIES, FREE, LEAVES, PRODUCTS
from jax_cocktail.utask.types import ITEM_SIZE, Value

_NOTHING = FREE | LEAVES | BARRIERS | {FAIL}


@dataclass(frozen=True, slots=True)
class Part:
    """The part of statements that one unit runs: a `share` of the values in `axes`, which are cut. `far`:
    values that come from other units every time; `within`: the part that contains this part."""

    axes: Mapping[Value, int]
    share: float = 1.0
    far: frozenset[Value] = frozenset()
    within: Part | None = None

    def of(self, operator: UOperator) -> _Share:
        """The share of an operator's results."""
        outer = 1.0 if self.within is None else self.within.of(operator)(self.within.share)
        return _Share(not self.axes.keys().isdisjoint(operator.outputs), outer)

    def of_operands(self, operator: UOperator) -> list[_Share]:
        """The share of every operand."""
        tie = rule(operator).along([self.axes.get(v) for v in operator.outputs])
        axes = tie.inputs if tie is not None else (None,) * len(operator.inputs)
        if self.within is None:
            return [_Share(axis is not None) for axis in axes]
        outer = (share(self.within.share) for share in self.within.of_operands(operator))
        return [_Share(axis is not None, share) for axis, share in zip(axes, outer, strict=True)]


@dataclass(frozen=True, slots=True)
class _Share:
    """The share of a value that a part reads or makes, by the share of the part. `outer`: that of the part
    that contains it."""

    is_cut: bool
    outer: float = 1.0

    def __call__(self, share: float) -> float:
        return share * self.outer if self.is_cut else self.outer


WHOLE = Part({})
Sizes = dict[Value, float]  # bytes of the operands of a product
Seconds = Callable[[float], float]  # of a part, by its share
_Term = Callable[[float, float], float]  # the same for one statement, whose operands come at a rate


def unit_seconds(statements: Sequence[Statement], unit: Unit, part: Part = WHOLE) -> float:
    """Seconds that one unit takes for its part of the statements, once."""
    return seconds_by_share(statements, unit, part)(part.share)


def seconds_by_share(
    statements: Sequence[Statement], unit: Unit, part: Part, carried: Iterable[Value] | None = None
) -> Seconds:
    """The seconds for any share in place of the part's own: placement compares many numbers of parts.

    `carried`: of the loop that repeats the statements; None if none does so often.
    """
    products = [(o, _operands(o, part)) for s in statements for o in operators_of(s) if o.kind in PRODUCTS]
    terms = [_term(s, unit, part) for s in statements]
    changing = {*(carried or ()), *(v for s in statements for v in s.outputs)}
    repeated = products if carried is not None else []
    steady = [p for p in repeated if p[0].kind == "dot" and len(set(p[0].inputs)) == 2]

    def seconds(share: float) -> float:
        held = _held(((o, sizes(share)) for o, sizes in steady), changing, unit.held)
        rate = unit.rate(_touched((sizes(share) for _, sizes in products), part.far | held))
        return sum(term(share, rate) for term in terms)

    return seconds


def _held(
    products: Iterable[tuple[UOperator, Sizes]], changing: Container[Value], room: float
) -> set[Value]:
    """Matrices of products of few rows that stay in registers while a loop repeats them; `room`: bytes."""
    held, left = set[Value](), room
    for product, sizes in products:
        (few, taken), *_, (matrix, size) = sorted(sizes.items(), key=lambda item: item[1])
        row = prod(product.inputs[0].type.shape[d] for d in product.ints("lhs_contract"))
        small = taken <= BLOCK.held_rows * row * ITEM_SIZE[few.type.dtype] and size <= left
        if small and matrix not in changing and matrix not in held:
            held.add(matrix)
            left -= size
    return held


def _touched(operands: Iterable[Sizes], far: Container[Value]) -> float:
    """Bytes of all data that products touch, which one level of memory holds."""
    touched: dict[Value, float] = {}
    for sizes in operands:
        for value, size in sizes.items():
            if size > touched.get(value, 0.0) and value not in far:
                touched[value] = size
    return sum(touched.values())


def _term(statement: Statement, unit: Unit, part: Part) -> _Term:
    if isinstance(statement, UOperator):
        return _operator_term(statement, unit, part)
    if isinstance(statement, StitchedUTask):
        members = [_operator_term(o, unit, part) for o in statement.members]
        return lambda share, rate: sum(term(share, rate) for term in members)
    if isinstance(statement, LoopUTask):
        trips = runs(statement)
        carried = statement.carried if trips >= BLOCK.held_trips else None
        regions = [seconds_by_share(region.body, unit, part, carried) for region in statement.regions]
        return lambda share, _: sum(seconds(share) for seconds in regions) * trips
    regions = [seconds_by_share(region.body, unit, part) for region in regions_of(statement)]
    return lambda share, _: sum(seconds(share) for seconds in regions) / len(regions)


def operator_seconds(operator: UOperator, unit: Unit, part: Part, rate: float) -> float:
    """Seconds of the part of one operator whose operands come at `rate` bytes per second."""
    return _operator_term(operator, unit, part)(part.share, rate)


def _operator_term(operator: UOperator, unit: Unit, part: Part) -> _Term:
    if operator.kind in _NOTHING or not operator.outputs:
        return lambda *_: 0.0
    own = part.of(operator)
    if operator.kind in PRODUCTS:
        return _product_term(operator, unit, part, own)
    if operator.kind in COPIES:
        moved, each = work(operator).bytes, operator.facts.cost
        return lambda share, _: unit.steps(moved * own(share) / 8, each)
    size = _elements(operator)
    if operator.is_element:
        cost = operator.facts.cost
        return lambda share, _: unit.steps(size * own(share), cost)
    orders, start = operator.facts.orders, start_seconds(operator)
    flops = element_flops(operator) if operator.facts.cubic else 1.0

    def seconds(share: float, _: float) -> float:
        mine = size * own(share)
        return start + unit.steps(mine, log2(max(mine, 2.0)) ** 2 if orders else flops)

    return seconds


def start_seconds(operator: UOperator) -> float:
    """The seconds of one operator that do not depend on rates: other blocks of a multiprocessor work
    meanwhile."""
    if operator.kind in _NOTHING or operator.kind in COPIES or operator.is_element or not operator.outputs:
        return 0.0
    if operator.kind in PRODUCTS:
        return BLOCK.statement_seconds
    start = BLOCK.statement_seconds + BLOCK.reduce_seconds
    return start * (operator.inputs[0].type.shape[-1] if operator.facts.cubic else 1)  # row after row


def _product_term(operator: UOperator, unit: Unit, part: Part, own: _Share) -> _Term:
    per_second = cast(float, getattr(unit, arithmetic(operator)))
    flops, operands, start = work(operator).flops, _operands(operator, part), start_seconds(operator)

    def seconds(share: float, rate: float) -> float:
        sizes = operands(share)
        far = sum(size for v, size in sizes.items() if v in part.far)
        moved = (sum(sizes.values()) - far) / rate + far / unit.far_rate
        return start + max(flops * own(share) / per_second, moved)

    return seconds


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
    if operator.kind == "dot" and min(rows(operator)) < BLOCK.few_rows:
        return own
    return tensor_factors(operator) or own


def operand_bytes(operator: UOperator, part: Part = WHOLE) -> Sizes:
    """The operands that a product reads, and the bytes of each that the part reads."""
    return _operands(operator, part)(part.share) if operator.kind in PRODUCTS else {}


def _operands(product: UOperator, part: Part) -> Callable[[float], Sizes]:
    """The operands' bytes by the share of the part."""
    pairs = zip(product.inputs, part.of_operands(product), strict=True)
    operands = [(v, v.type.nbytes, own) for v, own in pairs]
    return lambda share: {v: size * own(share) for v, size, own in operands}
