"""Batches of loops on a GPU, one element a thread or a warp: what is planned for a card that is not here.

    python -m benchmarks.gpu.elements [--spec H200] [--build]
    python -m benchmarks.gpu.elements --emulate

prints for each row the plan, the times that the model predicts for ours and for stock XLA, into how many
parts the work falls, and with `--build` the registers and spills that the compiler reports. `--emulate`
prints the cycles of one block of two rows in the latency laboratory, of a program for that number of elements
and of one for any, beside the same rows written by hand (`by_hand.cu`). Nothing is measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu.ensembles import ENSEMBLES
from benchmarks.gpu.ensembles import Program as EnsembleProgram
from benchmarks.gpu.sass.emulate import emulated
from benchmarks.gpu.sass.machine import machine_for
from benchmarks.gpu.sass.programs import Program, card_of, record
from jax_cocktail.build.device import build_device_program, device_toolchain
from jax_cocktail.codegen.gpu import launch_plan
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.compiler import Emitted, emit
from jax_cocktail.device.nvidia import A100, H200
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.lowering.choice.survey import survey
from jax_cocktail.lowering.choice.variants import prepare
from jax_cocktail.utask.ir import UProgram, by_threads, walk
from jax_cocktail.utask.numbers import numbers
from jax_cocktail.utask.plan import LaunchPlan
from jax_cocktail_tools.models import serving
from jax_cocktail_tools.models.model import generator

SPECS = {"A100": A100, "H200": H200}


def pendulum(state: Any) -> Any:
    """200 steps of a pendulum: a long one swings and needs only one stage in each, and a short one four."""

    def slope(s: Any) -> Any:
        return jnp.stack([s[1], -9.81 / state[2] * jnp.sin(s[0])])

    def euler(_: Any, s: Any) -> Any:
        s = s.at[1].add(0.01 * slope(s)[1])
        return s.at[0].add(0.01 * s[1])

    def runge_kutta(_: Any, s: Any) -> Any:
        h = 0.01
        a = slope(s)
        b = slope(s + h / 2 * a)
        c = slope(s + h / 2 * b)
        return s + h / 6 * (a + 2 * b + 2 * c + slope(s + h * c))

    def steps(step: Any) -> Any:
        return lambda s: jax.lax.fori_loop(0, 200, step, s)

    return jax.lax.cond(state[2] > 1, steps(euler), steps(runge_kutta), state[:2])


def ring(x: Any) -> Any:
    """Oscillators that pull at their neighbours, by Heun's method with steps of its own."""

    def slope(y: Any) -> Any:
        return jnp.roll(y, 1) + jnp.roll(y, -1) - y - y**3

    def step(state: Any) -> Any:
        t, h, y = state
        a = slope(y)
        b = slope(y + h * a)
        error = 100 * jnp.sqrt(jnp.mean((h / 2 * (b - a)) ** 2))
        good = error <= 1
        y = jnp.where(good, y + h / 2 * (a + b), y)
        return jnp.where(good, t + h, t), h * jnp.clip(0.9 * jax.lax.rsqrt(error + 1e-9), 0.3, 2.0), y

    start = jnp.float32(0), jnp.float32(0.1), x
    return jax.lax.while_loop(lambda state: state[0] < 1.0, step, start)[2]


def _rings(size: int) -> Callable[[], EnsembleProgram]:
    return lambda: (jax.vmap(ring), (jnp.ones((4096, size)),))


def _requests() -> EnsembleProgram:
    """Those of a server: a decoder of one layer, each with caches of its own."""
    random = generator("serving")
    weights = serving.weights_of(random, 256, 1000)
    return serving.server(4, 2000), (*serving.requests(random, 1024, 1000, 2000), weights)


ROWS: dict[str, Callable[[], EnsembleProgram]] = {
    **{name: partial(each.make, False) for name, each in ENSEMBLES.items()},
    "pendulums/100000": lambda: (jax.vmap(pendulum), (jnp.ones((10**5, 3)),)),
    "rings_64/4096": _rings(64),
    "rings_256/4096": _rings(256),
    "rings_1024/4096": _rings(1024),
    "serving/1024": _requests,
}


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan of a row: predicted seconds of a call, the loops whose trips threads share, the parts into
    which the work falls (`units`), and what the compiler reports."""

    row: str
    plan: str
    ours: float
    stock: float
    loops: int
    units: int
    registers: int | None = None
    spill_bytes: int | None = None


def planned(row: str, made: EnsembleProgram, spec: DeviceSpec, build: bool = False) -> Planned:
    """The best plan of a row by the model. `made`: its function and arguments."""
    function, arguments = made
    machine = machine_of(spec)
    prepared = prepare(jax.make_jaxpr(function)(*arguments), row, machine)
    found = survey(prepared, spec.units)
    seconds = min(found.seconds)
    plan = found.best
    emitted = [emit(program, machine, candidate=plan.candidate) for program in prepared.programs]
    loops = sum(by_threads(s) for each in emitted for s in walk(each.program.entry))
    units = max(each.plan.most_units for each in emitted)
    figures = (plan.candidate.name, seconds, found.comparison.stock.seconds, loops, units)
    if not build:
        return Planned(row, *figures)
    compiler = device_toolchain(spec.arch)
    built = [build_device_program(each.source, compiler, spec) for each in emitted]
    facts = [f for each in built for f in each.kernels.values()]
    return Planned(row, *figures, max(f.registers for f in facts), max(f.spill_bytes for f in facts))


BY_HAND = ("collatz/10000", "lorenz/100000")  # rows of `by_hand.cu`


def emulated_cycles(row: str) -> tuple[float, float, float]:
    """Cycles of one block of a row on the card of the record: of our program for that number of elements, of
    the one for any number, and of the one that is written by hand."""
    spec = card_of("sm_90")
    function, arguments = ENSEMBLES[row].make(False)
    machine, toolchain = machine_of(spec), device_toolchain(spec.arch)
    prepared = prepare(jax.make_jaxpr(function)(*arguments), row, machine)
    (program,) = prepared.programs
    candidate = survey(prepared, spec.units).best.candidate
    emitted = emit(program, machine, candidate=candidate)
    anyone = emit(program, machine, candidate=candidate, varying=_counts(program, ENSEMBLES[row].count))
    launch, other = _launch(emitted), _launch(anyone)
    size = sum(v.type.nbytes for v in emitted.program.entry.results)
    contents = (np.asarray(arguments[0]), size, max(launch.workspace_bytes, 16))
    count = ENSEMBLES[row].count
    numbers = {"ROW": BY_HAND.index(row), "COUNT": count, "THREADS": launch.threads}
    head = "".join(f"#define {name} {number}\n" for name, number in numbers.items())
    by_hand = head + (Path(__file__).parent / "by_hand.cu").read_text(encoding="utf-8")
    plain = LaunchPlan(0, launch.most_units, launch.threads, 0, 0, 0, cooperative=False)
    multiprocessor = machine_for(spec.arch, record())

    def cycles(source: str, launch: LaunchPlan) -> float:
        binary = build_device_program(source, toolchain, spec).binary
        return float(emulated(Program(source, binary, launch, contents), multiprocessor).timed.end)

    return cycles(emitted.source, launch), cycles(anyone.source, other), cycles(by_hand, plain)


def _launch(emitted: Emitted) -> LaunchPlan:
    return launch_plan(emitted.program, emitted.plan, emitted.machine, emitted.sizes, emitted.given)


def _counts(program: UProgram, count: int) -> frozenset[int]:
    """The positions of the numbers of a program that are the number of elements."""
    return frozenset(position for position, number in enumerate(numbers(program)) if number == count)


def table(found: Iterator[Planned]) -> Iterator[str]:
    """A line for each row."""
    yield "| program | plan | parts | ours, us | stock XLA, us | gain | registers | spills |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for each in found:
        known = ["-" if n is None else str(n) for n in (each.registers, each.spill_bytes)]
        times = f"{each.ours * 1e6:.1f} | {each.stock * 1e6:.0f} | {each.stock / each.ours:.0f}"
        yield f"| {each.row} | {each.plan} | {each.units} | {times} | {' | '.join(known)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--spec", choices=SPECS, default="H200", help="the card")
    parser.add_argument("--build", action="store_true", help="compile, for registers and spills")
    parser.add_argument("--emulate", action="store_true", help="cycles of a block, beside code by hand")
    options = parser.parse_args()
    if options.emulate:
        for row in BY_HAND:
            ours, anyone, by_hand = emulated_cycles(row)
            cycles = f"{ours:.0f} cycles of a block, for any number {anyone:.0f}, by hand {by_hand:.0f}"
            print(f"{row}: {cycles}, ratios {ours / by_hand:.3f}, {anyone / by_hand:.3f}", flush=True)
        return
    for line in table(planned(row, ROWS[row](), SPECS[options.spec], options.build) for row in ROWS):
        print(line, flush=True)


if __name__ == "__main__":
    main()
