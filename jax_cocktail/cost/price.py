"""The cost of a program on a machine: this model ranks candidates where nothing is measured."""

from __future__ import annotations

from collections.abc import Mapping

from jax_cocktail.cost import cpu as price_cpu
from jax_cocktail.cost import gpu as price_gpu
from jax_cocktail.cost.gpu import gpu_price, spread_seconds
from jax_cocktail.cost.vector import Comparison, Price
from jax_cocktail.cost.work import runs, waits
from jax_cocktail.cost.xla import xla_price, xla_seconds
from jax_cocktail.device.machine import Machine
from jax_cocktail.device.tuning import BLOCK
from jax_cocktail.utask.ir import LoopUTask, Statement, UProgram, walk
from jax_cocktail.utask.plan import MemoryPlan

__all__ = [
    "Comparison",
    "Price",
    "barriers_per_call",
    "barriers_per_iteration",
    "dispatch_seconds",
    "launch_seconds",
    "our_price",
    "profile",
    "statement_seconds",
    "stock_price",
]


def stock_price(program: UProgram, cores: int, machine: Machine) -> Price:
    """The price of one call of a translated program under stock XLA, on that many cores or on a GPU."""
    if machine.spec is not None:
        return xla_price(program, machine.spec)
    return price_cpu.stock_price(program, cores, machine.host)


def our_price(program: UProgram, units: int, machine: Machine, plan: MemoryPlan | None = None) -> Price:
    """The price of one call of a planned program on that many units. `plan`: what is in shared memory."""
    if machine.spec is not None:
        return gpu_price(program, units, machine.spec, plan, machine.target.threads)
    return price_cpu.our_price(program, units, machine.host)


def dispatch_seconds(program: UProgram, cores: int, machine: Machine, stock: Price) -> float:
    """Seconds of the `stock` price of a translated program that a CPU takes to dispatch kernels; 0 for a
    program without loops, and on a GPU."""
    if machine.is_gpu or not any(isinstance(s, LoopUTask) for s in walk(program.entry)):
        return 0.0
    return stock.seconds - price_cpu.undispatched_price(program, cores, machine.host).seconds


def launch_seconds(machine: Machine) -> float:
    """Seconds to launch a call of ours in stock XLA's program."""
    if machine.spec is None:
        return machine.host.launch_seconds
    return machine.spec.launch_seconds + BLOCK.ramp_seconds


def profile(statement: Statement, cores: int, units: int, machine: Machine) -> tuple[float, float]:
    """Seconds of one execution, ours and stock XLA's, before planning; the units share our heavy
    operators."""
    if machine.spec is not None:
        return spread_seconds(statement, units, machine.spec), xla_seconds(statement, machine.spec)
    host = machine.host
    ours = price_cpu.statement_price(statement, host.ours, units, host)
    spread = ours.seconds - ours.heavy * (1 - 1 / units)
    return spread, price_cpu.statement_price(statement, host.stock, cores, host).seconds


def barriers_per_iteration(program: UProgram) -> tuple[tuple[LoopUTask, int], ...]:
    """Every loop with `wait` operators in its body, and their number; inner loops are counted separately."""
    loops = [s for s in walk(program.entry) if isinstance(s, LoopUTask)]
    inside = [[s for region in loop.regions for s in region.body] for loop in loops]
    counts = [int(sum(waits(s, times=lambda _: 0) for s in body)) for body in inside]
    return tuple((loop, count) for loop, count in zip(loops, counts, strict=True) if count)


def barriers_per_call(program: UProgram) -> float:
    """Barriers of one call. A loop of unknown length has as many trips as prices assume."""
    return sum(waits(statement, times=runs) for statement in program.entry.body)


def statement_seconds(program: UProgram, units: int, machine: Machine) -> Mapping[int, float]:
    """Predicted seconds of one execution of each statement of a planned program, by its identity. What is
    inside a parallel loop is priced for one part."""
    if machine.spec is not None:
        return price_gpu.statement_seconds(program, units, machine.spec, machine.target.threads)
    return price_cpu.statement_seconds(program, units, machine.host)
