"""Batches of loops on a GPU, one batch element a thread: what is planned for a card that is not here.

    python -m benchmarks.gpu.elements [--spec H200] [--build]
    python -m benchmarks.gpu.elements --emulate

prints for each row the plan, the times that the model predicts for ours and for stock XLA, how many units
find work, and with `--build` the registers and spills that the compiler reports. `--emulate` prints the
cycles of one block of two rows in the latency laboratory, beside the same rows written by hand
(`by_hand.cu`). Nothing is measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu.sass.emulate import emulated
from benchmarks.gpu.sass.machine import machine_for
from benchmarks.gpu.sass.programs import Program, card_of, record
from jax_cocktail.build.device import build_device_program, device_toolchain
from jax_cocktail.codegen.gpu import launch_plan
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.compiler import emit
from jax_cocktail.device.nvidia import A100, H200
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.lowering.choice.survey import survey
from jax_cocktail.lowering.choice.variants import prepare
from jax_cocktail.utask.ir import by_threads, walk
from jax_cocktail.utask.plan import LaunchPlan

SPECS = {"A100": A100, "H200": H200}


def collatz(n: Any) -> Any:
    """Steps until the Collatz sequence of n reaches 1."""

    def following(state: Any) -> Any:
        n, steps = state
        return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1

    return jax.lax.while_loop(lambda state: state[0] > 1, following, (n, 0))[1]


def lorenz(state: Any) -> Any:
    """500 steps of the Lorenz system by the classical Runge-Kutta method."""

    def slope(s: Any) -> Any:
        x, y, z = s
        return jnp.stack([10.0 * (y - x), x * (28.0 - z) - y, x * y - 8.0 / 3.0 * z])

    def step(_: Any, s: Any) -> Any:
        h = 0.01
        a = slope(s)
        b = slope(s + h / 2 * a)
        c = slope(s + h / 2 * b)
        d = slope(s + h * c)
        return s + h / 6 * (a + 2 * b + 2 * c + d)

    return jax.lax.fori_loop(0, 500, step, state)


def price_path(key: Any) -> Any:
    """What a call option pays at the end of a random path of 252 days (Black and Scholes)."""

    def day(_: Any, state: Any) -> Any:
        price, key = state
        key, sub = jax.random.split(key)
        return price * jnp.exp(-0.0001 + 0.02 * jax.random.normal(sub)), key

    return jnp.maximum(jax.lax.fori_loop(0, 252, day, (jnp.float32(100), key))[0] - 100, 0)


def march(pixel: Any) -> Any:
    """The distance of the first surface behind a pixel: a sphere above a plane."""
    ray = jnp.array([pixel[0], pixel[1], 1.0])
    ray = ray / jnp.linalg.norm(ray)

    def distance(at: Any) -> Any:
        return jnp.minimum(jnp.linalg.norm(at - jnp.array([0.0, 0.0, 3.0])) - 1.0, at[1] + 1.0)

    def going(state: Any) -> Any:
        along, number, near = state
        return (number < 128) & (near > 1e-3) & (along < 50)

    def step(state: Any) -> Any:
        along, number, _ = state
        near = distance(along * ray)
        return along + near, number + 1, near

    return jax.lax.while_loop(going, step, (jnp.float32(0), 0, jnp.float32(1)))[0]


def metropolis(key: Any) -> Any:
    """1000 steps of a Metropolis sampler of four numbers."""

    def density(x: Any) -> Any:
        return -0.5 * jnp.sum(x * x * jnp.arange(1, 5))

    def step(_: Any, state: Any) -> Any:
        x, log, key = state
        key, move, chance = jax.random.split(key, 3)
        y = x + 0.5 * jax.random.normal(move, (4,))
        accepted = jnp.log(jax.random.uniform(chance)) < density(y) - log
        return jnp.where(accepted, y, x), jnp.where(accepted, density(y), log), key

    x = jnp.zeros(4)
    return jax.lax.fori_loop(0, 1000, step, (x, density(x), key))[0]


def _pixels() -> Any:
    line = jnp.linspace(-1, 1, 512)
    return jnp.stack(jnp.meshgrid(line, line), -1)


def _keys(count: int) -> Any:
    return jax.random.split(jax.random.PRNGKey(0), count)


ROWS: dict[str, Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "Collatz, 10^4": lambda: (jax.vmap(collatz), (jnp.arange(1, 10**4 + 1),)),
    "Collatz, 10^6": lambda: (jax.vmap(collatz), (jnp.arange(1, 10**6 + 1),)),
    "Lorenz, 10^5": lambda: (jax.vmap(lorenz), (jnp.ones((10**5, 3)),)),
    "price paths, 10^5": lambda: (jax.vmap(price_path), (_keys(10**5),)),
    "ray marching, 512 x 512": lambda: (jax.vmap(jax.vmap(march)), (_pixels(),)),
    "Metropolis, 4096": lambda: (jax.vmap(metropolis), (_keys(4096),)),
}


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan of a row: predicted seconds of a call, the loops whose trips threads share, the units that
    find work, and what the compiler reports."""

    row: str
    plan: str
    ours: float
    stock: float
    loops: int
    units: int
    registers: int | None = None
    spill_bytes: int | None = None


def planned(row: str, spec: DeviceSpec, build: bool = False) -> Planned:
    """The best plan of a row by the model."""
    function, arguments = ROWS[row]()
    machine = machine_of(spec)
    prepared = prepare(jax.make_jaxpr(function)(*arguments), row, machine)
    found = survey(prepared, spec.units)
    seconds = min(found.seconds)
    plan = found.best
    (program,) = prepared.programs
    emitted = emit(program, machine, candidate=plan.candidate)
    loops = sum(map(by_threads, walk(emitted.program.entry)))
    figures = (plan.candidate.name, seconds, found.comparison.stock.seconds, loops, emitted.plan.most_units)
    if not build:
        return Planned(row, *figures)
    built = build_device_program(emitted.source, device_toolchain(spec.arch), spec)
    facts = built.kernels.values()
    return Planned(row, *figures, max(f.registers for f in facts), max(f.spill_bytes for f in facts))


BY_HAND = {"Collatz, 10^4": 10**4, "Lorenz, 10^5": 10**5}  # rows of `by_hand.cu`, and their elements


def emulated_cycles(row: str) -> tuple[float, float]:
    """Cycles of one block of a row, ours and written by hand, on the card of the record."""
    spec, function_of = card_of("sm_90"), ROWS[row]
    function, arguments = function_of()
    machine, toolchain = machine_of(spec), device_toolchain(spec.arch)
    prepared = prepare(jax.make_jaxpr(function)(*arguments), row, machine)
    (program,) = prepared.programs
    emitted = emit(program, machine, candidate=survey(prepared, spec.units).best.candidate)
    launch = launch_plan(emitted.program, emitted.plan, emitted.machine, emitted.sizes)
    size = sum(v.type.nbytes for v in emitted.program.entry.results)
    contents = (np.asarray(arguments[0]), size, max(launch.workspace_bytes, 16))
    numbers = {"ROW": list(BY_HAND).index(row), "COUNT": BY_HAND[row], "THREADS": launch.threads}
    head = "".join(f"#define {name} {number}\n" for name, number in numbers.items())
    by_hand = head + (Path(__file__).parent / "by_hand.cu").read_text(encoding="utf-8")
    plain = LaunchPlan(0, launch.most_units, launch.threads, 0, 0, 0, cooperative=False)
    multiprocessor = machine_for(spec.arch, record())

    def cycles(source: str, launch: LaunchPlan) -> float:
        binary = build_device_program(source, toolchain, spec).binary
        return float(emulated(Program(source, binary, launch, contents), multiprocessor).timed.end)

    return cycles(emitted.source, launch), cycles(by_hand, plain)


def table(found: Iterator[Planned]) -> Iterator[str]:
    """A line for each row."""
    yield "| program | plan | units | ours, us | stock XLA, us | registers | spills |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for each in found:
        known = ["-" if n is None else str(n) for n in (each.registers, each.spill_bytes)]
        times = f"{each.ours * 1e6:.1f} | {each.stock * 1e6:.0f}"
        yield f"| {each.row} | {each.plan} | {each.units} | {times} | {' | '.join(known)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--spec", choices=SPECS, default="H200", help="the card")
    parser.add_argument("--build", action="store_true", help="compile, for registers and spills")
    parser.add_argument("--emulate", action="store_true", help="cycles of a block, beside code by hand")
    options = parser.parse_args()
    if options.emulate:
        for row in BY_HAND:
            ours, by_hand = emulated_cycles(row)
            cycles = f"{ours:.0f} cycles of a block, by hand {by_hand:.0f}"
            print(f"{row}: {cycles}, ratio {ours / by_hand:.3f}", flush=True)
        return
    for line in table(planned(row, SPECS[options.spec], options.build) for row in ROWS):
        print(line, flush=True)


if __name__ == "__main__":
    main()
