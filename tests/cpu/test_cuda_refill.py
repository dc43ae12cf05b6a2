"""Threads that take a batch element when they are done with another one, emulated, against stock."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.gpu.sass.emulate import emulated
from benchmarks.gpu.sass.machine import machine_for
from benchmarks.gpu.sass.programs import Program, card_of
from benchmarks.gpu.sass.programs import record as recorded
from jax_cocktail import compiler
from jax_cocktail.build.device import build_device_program, device_toolchain
from jax_cocktail.codegen import threads
from jax_cocktail.codegen.gpu import launch_plan
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.device.amd import MI250X, MI300X
from jax_cocktail.device.nvidia import A100, B200, H200
from jax_cocktail.device.tuning import ELEMENTS
from jax_cocktail.lowering.choice.variants import prepare
from jax_cocktail.utask.candidate import Candidate
from tests.cpu import sass
from tests.cpu.by_threads import run
from tests.cpu.cuda_compilers import nvcc
from tests.cpu.emulated import WAVES
from tests.cpu.rocm_compilers import zig

RACES = pytest.param("thread", marks=pytest.mark.long)  # that sanitizer takes long
TAKES = "ck_take_trips"


def numbers(count):
    return np.random.default_rng(0).integers(0, 1 << 16, count).astype(np.int32)


def hailstones(n):
    """Some take no step."""

    def step(state):
        n, steps = state
        return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1

    return jax.lax.while_loop(lambda state: state[0] > 1, step, (n, 0))[1]


def rejections(x):
    """A scan of loops until a number is accepted."""

    def draw(carry, k):
        def step(state):
            y, tries = state
            return (y * 1664525 + 1013904223) & 0xFFFF, tries + 1

        y, tries = jax.lax.while_loop(lambda state: state[0] & 7 != 0, step, (carry + k, 0))
        return y + tries, tries

    return jax.lax.scan(draw, x, jnp.arange(5, dtype=x.dtype))


def loops_in_loops(x):
    """A counted loop of loops of unknown length, in each of which there is another one."""

    def outer(k, carry):
        def middle(state):
            y, j = state
            y = jax.lax.while_loop(lambda y: y & 3 != 0, lambda y: (y * 5 + 3) & 0xFFF, y + j)
            return y + 1, j + 1

        y, j = jax.lax.while_loop(lambda state: state[1] < (carry & 3), middle, (carry + k, 0))
        return y + j

    return jax.lax.fori_loop(0, 4, outer, x)


def implicit_steps(a):
    """Newton's iteration in each step of Euler's implicit method."""

    def step(_, y):
        def newton(state):
            z, _, k = state
            d = (z - y - 0.1 * (jnp.sin(z) - a * z**3)) / (1 - 0.1 * (jnp.cos(z) - 3 * a * z**2))
            return z - d, jnp.abs(d), k + 1

        go = lambda state: (state[1] > 1e-5) & (state[2] < 20)  # noqa: E731
        return jax.lax.while_loop(go, newton, (y, jnp.float32(1), 0))[0]

    return jax.lax.fori_loop(0, 6, step, a)


def long_body(x):
    """So many statements in an iteration that they are in functions of their own."""

    def step(state):
        y, k = state
        for n in range(300):
            y = (y ^ (y >> 3)) * (2 * n + 1) + k
        return y & 0xFFFF, k + 1

    return jax.lax.while_loop(lambda state: (state[0] & 3 != 0) & (state[1] < 6), step, (x, 0))


MANY, FEW = 16 * 2 * 64 + 30, 15 * 2 * 64  # elements for two blocks of 64 threads


@pytest.mark.parametrize("wave", [None, 32, 64])
@pytest.mark.parametrize("function", [hailstones, rejections, loops_in_loops])
def test_a_thread_takes_the_next_element(function, wave, monkeypatch):
    how = {} if wave is None else {"spec": WAVES[wave]}
    emitted = run(monkeypatch, jax.vmap(function), (numbers(MANY),), units=2, threads=64, **how)
    assert TAKES in emitted.source


@pytest.mark.parametrize("sanitizer", ["address", RACES])
def test_nobody_races_for_an_element(sanitizer, monkeypatch):
    how = {"units": 2, "threads": 64, "sanitizer": sanitizer}
    assert TAKES in run(monkeypatch, jax.vmap(hailstones), (numbers(MANY),), **how).source


@pytest.mark.parametrize("function", [implicit_steps, long_body])
def test_long_iterations(function, monkeypatch):
    """From four elements a thread."""
    given = numbers(4 * 2 * 64 + 30)
    if function is implicit_steps:
        given = (given % 1000 / 1000).astype(np.float32)
    assert TAKES in run(monkeypatch, jax.vmap(function), (given,), units=2, threads=64).source


def expensive_beside(x):
    """Few lanes at a time would run what is beside the inner loop."""

    def step(_, y):
        for n in range(200):
            y = (y ^ (y >> 3)) * (2 * n + 1)
        return jax.lax.while_loop(lambda y: y & 1 != 0, lambda y: (y * 3) >> 1, y)

    return jax.lax.fori_loop(0, 3, step, x)


@pytest.mark.parametrize(("function", "count"), [(hailstones, FEW), (expensive_beside, MANY)])
def test_lanes_that_wait_for_each_other(function, count, monkeypatch):
    assert TAKES not in run(monkeypatch, jax.vmap(function), (numbers(count),), units=2, threads=64).source


def steps(count):
    return lambda x: jax.lax.fori_loop(0, count, lambda i, y: jnp.sin(y) + 0.1 * y * i, x)


def two_sides(x):
    return jax.lax.cond(jnp.sin(40 * x) > 0.2, steps(200), steps(150), x)


def many_sides(x):
    """A selector out of bounds takes the first or last side."""
    which = (jnp.sin(40 * x) * 3).astype(jnp.int32)
    return jax.lax.switch(which, [steps(200), lambda x: x, steps(180)], x) + 1


def nested_sides(x):
    inner = lambda x: jax.lax.cond(x > 0.5, steps(100), steps(150), x)  # noqa: E731
    return jax.lax.cond(jnp.sin(40 * x) > 0.2, inner, steps(200), x), x + 1


@pytest.mark.parametrize("sanitizer", [None, "address", RACES])
@pytest.mark.parametrize("function", [two_sides, many_sides, nested_sides])
def test_blocks_gather_elements_that_take_one_side(function, sanitizer, monkeypatch):
    given = np.linspace(0, 1, 2 * 2 * 64 + 30, dtype=np.float32)
    emitted = run(monkeypatch, jax.vmap(function), (given,), units=2, threads=64, sanitizer=sanitizer)
    assert TAKES in emitted.source


@pytest.mark.parametrize("count", [0, 1, 2 * 64])
def test_all_elements_take_one_side(count, monkeypatch):
    """Or few do not."""
    given = np.zeros(2 * 2 * 64 + 30, np.float32)
    given[:count] = 0.01
    emitted = run(monkeypatch, jax.vmap(two_sides), (given,), units=2, threads=64)
    assert TAKES in emitted.source


def cycles(function, argument, beside, monkeypatch):
    """Of one block in the latency laboratory, all of its trips."""
    sided = ELEMENTS.sided if beside else 1e9
    monkeypatch.setattr(threads, "ELEMENTS", replace(ELEMENTS, beside=beside, sided=sided))
    spec = card_of("sm_90")
    machine, toolchain = machine_of(spec), device_toolchain(spec.arch)
    (program,) = prepare(jax.make_jaxpr(jax.vmap(function))(argument), "f", machine).programs
    emitted = compiler.emit(program, machine, candidate=Candidate(spec.units))
    assert (TAKES in emitted.source) == bool(beside)
    launch = launch_plan(emitted.program, emitted.plan, emitted.machine, emitted.sizes)
    binary = build_device_program(emitted.source, toolchain, spec).binary
    sizes = [v.type.nbytes for v in emitted.program.entry.results]
    contents = (argument, *sizes, max(launch.workspace_bytes, 16))
    whole = Program(emitted.source, binary, launch, contents)
    found = emulated(whole, machine_for(spec.arch, recorded()), iterations=10**9, before=10**9)
    assert found.ended
    return found.timed.end


def for_card(function, spec):
    """The program of 10 million batch elements."""
    dtype = jnp.float32 if function in (two_sides, implicit_steps) else jnp.int32
    given = jax.ShapeDtypeStruct((10**7,), dtype)
    machine = machine_of(spec)
    (program,) = prepare(jax.make_jaxpr(jax.vmap(function))(given), "f", machine).programs
    emitted = compiler.emit(program, machine, candidate=Candidate(spec.units))
    assert TAKES in emitted.source
    return emitted


LONG = loops_in_loops, implicit_steps, two_sides
FUNCTIONS = [hailstones, *(pytest.param(f, marks=pytest.mark.long) for f in LONG)]


@pytest.mark.parametrize("spec", [A100, H200, B200], ids=lambda spec: spec.arch)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_spills_on_nvidia(function, spec):
    toolchain = nvcc()
    built = build_device_program(for_card(function, spec).source, toolchain, spec)
    assert all(facts.spill_bytes == 0 for facts in built.kernels.values())


@pytest.mark.parametrize("spec", [MI250X, MI300X], ids=lambda spec: spec.arch)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_spills_on_amd(function, spec):
    built = compiler.build(for_card(function, spec), compiler=zig())
    assert not any("spills" in remark.text for remark in built.emitted.remarks)


@pytest.mark.skipif(not sass.tools(), reason=sass.NO_TOOLS)
@pytest.mark.parametrize("nested", [False, True])
def test_a_warp_does_not_wait_for_its_longest_element(nested, monkeypatch):
    """Four elements a thread, of exponential lengths."""
    nvcc()

    def some(length):
        def step(state):
            x, k = state
            return x + 0.01 * jnp.sin(x) + 0.1 / (1 + x * x), k + 1

        return jax.lax.while_loop(lambda state: state[1] < length, step, (jnp.float32(0), 0))[0]

    def function(length):
        again = lambda k, y: y + some(length * (k % 2 + 1))  # noqa: E731
        return jax.lax.fori_loop(0, 3, again, jnp.float32(0)) if nested else some(length)

    random = np.random.default_rng(0)
    lengths = np.ceil(random.exponential(40, 5 * 256 * H200.units)).astype(np.int32)
    votes, none = (cycles(function, lengths, beside, monkeypatch) for beside in (ELEMENTS.beside, 0.0))
    assert votes < 0.75 * none


@pytest.mark.skipif(not sass.tools(), reason=sass.NO_TOOLS)
def test_a_warp_does_not_run_both_sides(monkeypatch):
    """Eight elements a thread, half of which take each side."""
    nvcc()
    given = np.random.default_rng(0).uniform(0, 1, 8 * 256 * H200.units).astype(np.float32)
    gathered, mixed = (cycles(two_sides, given, beside, monkeypatch) for beside in (ELEMENTS.beside, 0.0))
    assert gathered < 0.8 * mixed
