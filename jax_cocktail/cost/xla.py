"""The cost of a translated program under stock XLA on a GPU.

XLA launches a kernel for every product, convolution and fusion. The host launches a few kernels between two
decisions one by one; many kernels form a graph, which has a launch cost of its own. A loop of unknown trip
count asks the host before every trip: XLA copies the condition there and waits for it. A branch is part of a
graph, or asks the host too. Only products and convolutions are ever large; they run in cuBLAS and cuDNN. A
convolution keeps what surrounds it out of graphs.

That is XLA's default, with which ours is compared. With options of its compiler, all becomes one graph, in
which loops of known trip count are unrolled: `unrolled_seconds`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from jax_cocktail.cost.footprint import written
from jax_cocktail.cost.vector import Price, Vector, mean
from jax_cocktail.cost.work import tensor_factors, trips, work
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.device.tuning import STOCK
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Statement, UOperator, UProgram
from jax_cocktail.utask.operators import FREE, PRODUCTS
from jax_cocktail.utask.types import Value


@dataclass(frozen=True, slots=True)
class _Kernels(Vector):
    """The launches of a region: number of kernels; their seconds in a graph and one by one; kernels that no
    graph takes; seconds in a graph of the whole call, with unrolled loops, infinite if there is none; and the
    price of separate launches (loops), with the heavy part of all."""

    count: float = 0.0
    graph: float = 0.0
    stream: float = 0.0
    loose: float = 0.0
    unrolled: float = 0.0
    apart: Price = Price()

    @property
    def seconds(self) -> float:
        """Seconds of one execution."""
        captured = self.count >= STOCK.fewest_in_graph and not self.loose
        return self.apart.seconds + (STOCK.graph_launch + self.graph if captured else self.stream)


def xla_price(program: UProgram, spec: DeviceSpec) -> Price:
    """The price of one call of a translated program under stock XLA on a device."""
    found = _statements(program.entry.body, spec)
    return replace(found.apart, seconds=found.seconds)


def unrolled_seconds(program: UProgram, spec: DeviceSpec) -> float | None:
    """Seconds of one call as one graph with unrolled loops, an estimate; None if a kernel is in no graph. The
    device has to be one on which XLA captures loops."""
    seconds = STOCK.graph_launch + _statements(program.entry.body, spec).unrolled
    return seconds if seconds < math.inf else None


def xla_seconds(statement: Statement, spec: DeviceSpec) -> float:
    """Seconds of one execution of a statement, whatever surrounds it."""
    return _statements((statement,), spec).seconds


def _statements(statements: tuple[Statement, ...], spec: DeviceSpec) -> _Kernels:
    found = _fusions(statements, spec)
    for statement in statements:
        if isinstance(statement, LoopUTask):
            found += _loop(statement, spec)
        elif isinstance(statement, BranchUTask):
            found += _branch(statement, spec)
        elif isinstance(statement, UOperator) and not statement.is_element:
            found += _anchor(statement, spec)
    return found


def _loop(loop: LoopUTask, spec: DeviceSpec) -> _Kernels:
    once, number = sum((_statements(r.body, spec) for r in loop.regions), _Kernels()), trips(loop)
    if loop.trip_count is None:  # it may have no trip at all
        seconds, unrolled = once.seconds + STOCK.host_round_trip, once.unrolled + STOCK.conditional
        apart = replace(once.apart, seconds=seconds, least_convolutions=0.0)
    else:
        counted = once + _kernel(0.0, spec)
        unrolled, apart = counted.unrolled, replace(once.apart, seconds=counted.seconds)
    return _Kernels(unrolled=number * unrolled if number else 0.0, apart=apart * number)


def _branch(branch: BranchUTask, spec: DeviceSpec) -> _Kernels:
    sides = [_statements(r.body, spec) for r in branch.branches]
    own = _Kernels(1, STOCK.conditional, STOCK.host_round_trip, unrolled=STOCK.conditional)
    found = sum(sides, _Kernels()) * (1 / len(sides)) + own
    return replace(found, apart=mean([side.apart for side in sides]))


def _kernel(seconds: float, spec: DeviceSpec) -> _Kernels:
    """One kernel that works for so long beyond the least time of a kernel."""
    graph, stream = spec.launch_seconds + seconds, max(STOCK.stream_kernel, spec.launch_seconds + seconds)
    return _Kernels(1, graph, stream, unrolled=min(STOCK.early_kernel, spec.launch_seconds) + seconds)


def _anchor(operator: UOperator, spec: DeviceSpec) -> _Kernels:
    if operator.kind in PRODUCTS:
        return _library(operator, spec)
    return _kernel(work(operator).bytes / _memory_rate(spec), spec) * operator.facts.kernels


def _library(operator: UOperator, spec: DeviceSpec) -> _Kernels:
    """A call of cuBLAS or cuDNN."""
    amount = work(operator)
    fill = min(1.0, max(operator.output.type.size / STOCK.tile, 1.0) / spec.units)
    convolution = operator.kind == "conv"
    share = STOCK.convolution_share if convolution else STOCK.product_share
    seconds = max(
        amount.flops / (_peak(operator, spec) * share * fill),
        amount.bytes / _memory_rate(spec),
        STOCK.small_convolution if convolution else STOCK.small_product,
    )
    found = _kernel(seconds - spec.launch_seconds, spec)
    heavy = seconds if seconds >= STOCK.heavy else 0.0
    conv = heavy if convolution else 0.0
    found = replace(found, apart=Price(0.0, heavy, conv, conv))
    return replace(found, loose=1.0, unrolled=math.inf) if convolution else found


def _peak(operator: UOperator, spec: DeviceSpec) -> float:
    """Flops per second of the units that a library uses: it pads thin operands for tensor cores."""
    own = spec.flops / 2 if operator.inputs[0].type.dtype == "float64" else spec.flops
    return {"halves": spec.half_flops, "tensors": spec.tensor_flops}.get(tensor_factors(operator), own)


def _fusions(statements: tuple[Statement, ...], spec: DeviceSpec) -> _Kernels:
    """Element-wise operators between the same launches are one kernel."""
    level: dict[Value, int] = {}
    bytes_of: dict[int, float] = {}
    for statement in statements:
        at = max((level.get(v, 0) for v in statement.inputs), default=0)
        fused = isinstance(statement, UOperator) and (
            statement.is_element or statement.kind == "dynamic_update_slice"
        )
        if isinstance(statement, UOperator) and fused and statement.kind not in FREE:
            bytes_of[at] = bytes_of.get(at, 0.0) + written(statement).type.nbytes
        level.update(dict.fromkeys(statement.outputs, at if fused else at + 1))
    rate = _memory_rate(spec)
    return sum((_kernel(size / rate, spec) for size in bytes_of.values()), _Kernels())


def _memory_rate(spec: DeviceSpec) -> float:
    return STOCK.memory_share * spec.memory_rate
