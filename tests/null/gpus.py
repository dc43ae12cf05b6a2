"""Programs planned for a GPU but not emitted, and shapes of programs that placement has to get right."""

from __future__ import annotations

from dataclasses import dataclass

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.compiler import schedule
from jax_cocktail.device.nvidia import H200
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.device.target import Target
from jax_cocktail.passes import passes
from jax_cocktail.placement.mesh import UnitMesh, set_resource
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail.utask.ir import UProgram, is_parallel, walk
from jax_cocktail.utask.plan import MemoryPlan
from tests.null.programs import build, counted, elementwise, matmul, while_loop


@dataclass(frozen=True)
class OnDevice:
    """A planned program and the units that find work."""

    program: UProgram
    plan: MemoryPlan
    mesh: UnitMesh
    target: Target

    @property
    def parts(self) -> list[int]:
        """Of every parallel loop."""
        return [s.trip_count for s in walk(self.program.entry) if is_parallel(s)]


def plan_for(program: UProgram, candidate: Candidate | None = None, spec: DeviceSpec = H200) -> OnDevice:
    """Every pass for the candidate, on all units of the device if none is given."""
    candidate, machine = candidate or Candidate(spec.units), machine_of(spec)
    for _, run in passes(candidate, machine=machine):
        program = run(program)
        verify(program)
    planned = schedule(program, machine, candidate.units if candidate.cluster else 0)
    mesh = set_resource(planned.plan, min(candidate.units, spec.units))
    return OnDevice(planned.program, planned.plan, mesh, machine.target)


def recurrence(batch: int, size: int, trips: int | None) -> UProgram:
    """h = tanh(h @ w), so many times, or until it is small."""

    def step(b, h, w):
        return elementwise(b, "tanh", matmul(b, h, w))

    def body(b, h, w):
        if trips is not None:
            return counted(b, trips, (h,), lambda _, h: (step(b, h, w),))

        def small(h):
            largest = b.emit("reduce", (h,), "float32", (), axes=(0, 1), op="max")
            return elementwise(b, "gt", largest, b.full(0.1, "float32", ()), dtype="bool")

        return while_loop(b, (h,), small, lambda h: (step(b, h, w),))

    return build([f"float32[{batch},{size}]", f"float32[{size},{size}]"], body)


def rowwise(rows: int, columns: int, trips: int) -> UProgram:
    """x = tanh(x) / (1 + max of the row), again and again: rows know nothing of each other."""

    def body(b, x):
        def step(_, x):
            top = b.emit("reduce", (x,), "float32", (rows,), axes=(1,), op="max")
            one = b.full(1.0, "float32", (rows,))
            scale = b.broadcast(elementwise(b, "add", one, top), (rows, columns), (0,))
            return (elementwise(b, "div", elementwise(b, "tanh", x), scale),)

        return counted(b, trips, (x,), step)

    return build([f"float32[{rows},{columns}]"], body)


def scalars(trips: int) -> UProgram:
    """x = 0.5 x + 1, on one number."""

    def body(b, x):
        half, one = b.full(0.5, "float32", ()), b.full(1.0, "float32", ())
        return counted(
            b, trips, (x,), lambda _, x: (elementwise(b, "add", elementwise(b, "mul", x, half), one),)
        )

    return build(["float32[]"], body)


def iterated_product(size: int, trips: int) -> UProgram:
    """p = (a @ p) / |a @ p|, the heart of a power iteration; the matrix is on the left."""

    def body(b, a, p):
        def step(_, p):
            y = matmul(b, a, p)
            top = b.emit("reduce", (elementwise(b, "abs", y),), "float32", (), axes=(0,), op="max")
            return (elementwise(b, "div", y, b.broadcast(top, (size,), ())),)

        return counted(b, trips, (p,), step)

    return build([f"float32[{size},{size}]", f"float32[{size}]"], body)
