"""Work of statements, from their operators alone: floating-point operations and bytes touched."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod

from jax_cocktail.cost.footprint import piece
from jax_cocktail.cost.vector import Vector
from jax_cocktail.device.tuning import MODEL
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
    once,
    regions_of,
)
from jax_cocktail.utask.operators import FREE
from jax_cocktail.utask.rewrite import Inside, fold


@dataclass(frozen=True, slots=True)
class Work(Vector):
    """`flops`, and the `bytes` that are read and written without any fusion."""

    flops: float = 0.0
    bytes: float = 0.0

    @property
    def weight(self) -> float:
        """One number for comparisons: the operations that a core does in the same time."""
        return self.flops + MODEL.flops_per_byte * self.bytes


def work(statement: Statement) -> Work:
    """The work of one execution; that of a branch is the mean over its regions."""
    if isinstance(statement, UOperator):
        return _operator(statement)
    if isinstance(statement, StitchedUTask):
        return total(statement.members)
    inside = sum(map(region_work, regions_of(statement)), Work())
    if isinstance(statement, BranchUTask):
        return inside * (1 / len(statement.branches))
    return inside * (trips(statement) if isinstance(statement, LoopUTask) else 1)


def total(statements: Iterable[Statement]) -> Work:
    return sum(map(work, statements), Work())


@once
def region_work(region: Region) -> Work:
    return total(region.body)


def runs(loop: LoopUTask) -> int:
    """The number of runs of the body, assumed if it is known only at run time."""
    return sure_runs(loop) if loop.likely_trips is None else loop.likely_trips


def sure_runs(loop: LoopUTask) -> int:
    """The runs of what pays only if there are enough: a bound of the number promises none."""
    return MODEL.unknown_trips if loop.trip_count is None else loop.trip_count


def trips(loop: LoopUTask) -> int:
    """The trips of a loop; those of one that `may_stop_inside` count as `once_stopped`."""
    return once_stopped(runs(loop)) if may_stop_inside(loop) else runs(loop)


def may_stop_inside(loop: LoopUTask) -> bool:
    """True for a loop that has two trips in one and may stop between them. Such a trip counts for one and a
    half, since a branch counts for the mean over its regions."""
    return loop.trip_count is None and loop.stops_by is not None


def once_stopped(number: int) -> int:
    """Trips of a loop that may stop in the middle of its body, in place of `number` that stop at its end."""
    return int(number / 1.5)


def waits(statement: Statement, times: Callable[[LoopUTask], float] = trips) -> float:
    """Barriers in one run of a statement; a branch has those of its worst region. `times`: runs of a loop."""

    def each(s: Statement, inside: Inside[float]) -> float:
        if isinstance(s, UOperator):
            return float(s.kind == "wait")
        counts = list(map(sum, inside))
        return times(s) * sum(counts) if isinstance(s, LoopUTask) else max(counts, default=0.0)

    return fold(statement, each)


def rows(dot: UOperator) -> tuple[int, int]:
    """Rows of the left operand of a product, and columns of the right one."""
    left, right = (v.type for v in dot.inputs[:2])
    common = max(prod(left.shape[d] for d in (*dot.ints("lhs_batch"), *dot.ints("lhs_contract"))), 1)
    return left.size // common, right.size // common


def tensor_factors(product: UOperator) -> str:
    """The factors that tensor cores take: "halves" of 16 bits, or "tensors" of float32; "": none."""
    dtype = product.inputs[0].type.dtype
    if dtype in ("bfloat16", "float16"):
        return "halves"
    return "tensors" if dtype == "float32" and product.may_round else ""


def has_loop(statement: Statement) -> bool:
    return isinstance(statement, LoopUTask) or any(map(_has_loop, regions_of(statement)))


@once
def _has_loop(region: Region) -> bool:
    return any(map(has_loop, region.body))


@once
def _operator(operator: UOperator) -> Work:
    if operator.kind in FREE or not operator.outputs:
        return Work()
    size = operator.outputs[0].type.size
    touched = float(sum(v.type.nbytes for v in (*operator.inputs, *operator.outputs)))
    if operator.kind == "dot":
        left = operator.inputs[0].type.shape
        contracted = prod(left[d] for d in operator.ints("lhs_contract"))
        return Work(size * contracted * float(len(operator.inputs)), touched)
    if operator.kind == "conv":
        kernel = operator.inputs[1].type.shape
        features = kernel[operator.ints("rhs_spec")[0]]
        return Work(2.0 * size * (prod(kernel) // max(features, 1)), touched)
    part = piece(operator)
    if part is not None:
        return Work(float(part.type.size), 2.0 * part.type.nbytes)
    if not operator.is_element:
        size = max(v.type.size for v in (*operator.inputs, *operator.outputs))
    return Work(size * element_flops(operator), touched)


def element_flops(operator: UOperator) -> float:
    """The flops of one element of an operator that is no product."""
    return float(operator.facts.cost * (operator.inputs[0].type.shape[-1] if operator.facts.cubic else 1))
