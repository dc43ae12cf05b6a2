"""What a planned program will take on a device, and what no program of its shape can go below.

The limit is that of the plan's critical path: what one unit writes and another reads takes at least a hop,
and all bytes have to come through their level of memory, all flops through the arithmetic units, which work
beside each other. What lies between limit and prediction is latency: barriers that are longer than a hop,
statements that wait for the ones before, units without work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from jax_cocktail.cost.gpu import call_seconds, kernel_spent, seen_by_units
from jax_cocktail.cost.kernel import kernel_of
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.device.target import Target
from jax_cocktail.placement.mesh import UnitMesh
from jax_cocktail.utask.ir import UProgram, is_parallel, walk
from jax_cocktail.utask.plan import MemoryPlan


class Planned(Protocol):
    """A program that is planned for a mesh, such as `compiler.Emitted`."""

    @property
    def program(self) -> UProgram: ...

    @property
    def plan(self) -> MemoryPlan: ...

    @property
    def mesh(self) -> UnitMesh: ...

    @property
    def target(self) -> Target: ...


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one call. Loops of unknown trip count are taken to run `ModelTuning.unknown_trips` times.

    Attributes:
      seconds: with the launch.
      limit_seconds: without it: hops of the critical path, and the longer of bytes and flops at full rate.
      kernels: launches.
      barriers: on the critical path, and exchanges; each is at least one hop.
      flops: of all units together, what several of them compute again included.
      bytes_by_level: read by all units together from "shared" memory, "l2" and "memory".
    """

    seconds: float
    limit_seconds: float
    kernels: int
    barriers: float
    flops: float
    bytes_by_level: Mapping[str, float]

    @property
    def ratio(self) -> float:
        """How far above its limit the program is predicted to be."""
        return self.seconds / self.limit_seconds if self.limit_seconds else 1.0


def predict(planned: Planned | UProgram, spec: DeviceSpec) -> Prediction:
    """The prediction for a planned program; without a plan, on as many units as find work."""
    units = _units(planned, spec)
    if isinstance(planned, UProgram):
        kernel = kernel_of(planned, units, spec)
    else:
        kernel = kernel_of(planned.program, units, spec, planned.plan, planned.target.threads)
    found = kernel_spent(kernel, spec)
    moved = {"shared": found.bytes.shared, "l2": found.bytes.l2, "memory": found.bytes.memory}
    rates = {"shared": spec.shared_rate, "l2": spec.l2_rate, "memory": spec.memory_rate}
    hops = found.barriers if units > 1 else 0.0
    work = max(found.arithmetic, *(size / rates[level] for level, size in moved.items()))
    return Prediction(
        seconds=call_seconds(found, kernel, spec),
        limit_seconds=hops * seen_by_units(spec, kernel.cluster).hop_seconds + work,
        kernels=1,
        barriers=hops,
        flops=found.flops,
        bytes_by_level=moved,
    )


def _units(planned: Planned | UProgram, spec: DeviceSpec) -> int:
    if not isinstance(planned, UProgram):
        return min(planned.mesh.units, spec.units)
    loops = (s for s in walk(planned.entry) if is_parallel(s))
    return min(max((loop.first + (loop.trip_count or 0) for loop in loops), default=1), spec.units)
