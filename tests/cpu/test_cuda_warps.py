"""Loops of batch elements on blocks of one warp, against stock: no warp waits for another one."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_cocktail
from benchmarks.gpu.elements import ring
from jax_cocktail import compiler
from jax_cocktail.build.device import build_device_program
from jax_cocktail.codegen.gpu import launch_plan
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.device.nvidia import A100, B200, H200
from jax_cocktail.lowering.choice.survey import survey
from jax_cocktail.lowering.choice.variants import possible, prepare
from jax_cocktail.schedule.sync import plan_tail
from jax_cocktail.utask.candidate import way
from jax_cocktail.utask.ir import by_threads, is_parallel, walk
from tests.cpu import sass
from tests.cpu.by_threads import close
from tests.cpu.cuda_compilers import nvcc
from tests.cpu.cuda_text import NO_NVCC, NVCC
from tests.cpu.emulated import KERNELS, WAVES, Emulation
from tests.cpu.runner import EAGER

RACES = pytest.param("thread", marks=pytest.mark.long)  # that sanitizer takes long
WARP = way(H200.units, threads=H200.warp)


def run(monkeypatch, function, arguments, loops=1, threads=32, **how):
    """Compares both kernels with stock. `loops`: the number of loops whose trips units share, between which
    they do not wait; None: there are others as well."""
    monkeypatch.setattr("jax_cocktail.passes.limits_for", lambda *_: EAGER)
    emulation = Emulation(launches=[], threads=threads, **how).install(monkeypatch)
    ours = jax_cocktail.jit(function, options={"force": "cocktail", "strict": True, "units": 3})
    expected = jax.jit(function)(*arguments)
    for emulation.kernel in KERNELS:
        jax.tree.map(close, ours(*arguments), expected)
    emitted = emulation.launches[0][0]
    found = [s for s in walk(emitted.program.entry) if is_parallel(s)]
    assert loops in (None, len(found)) and not any(map(by_threads, found)), emitted.remarks
    assert any("on a warp" in remark.text for remark in emitted.remarks)
    assert loops is None or "ck_wait" not in emitted.source
    return emitted


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def jacobi(b):
    """x[i] = (x[i - 1] + x[i + 1] + b[i]) / 3, until it stays."""

    def step(state):
        x, _, k = state
        zero = jnp.zeros(1)
        new = (jnp.concatenate([zero, x[:-1]]) + jnp.concatenate([x[1:], zero]) + b) / 3
        return new, jnp.max(jnp.abs(new - x)), k + 1

    return jax.lax.while_loop(lambda state: state[1] > 0.01, step, (jnp.zeros_like(b), jnp.float32(1), 0))


def descent(a, b):
    """Least squares, with a matrix of its own."""

    def step(state):
        x, k, _ = state
        rest = b - a @ x
        return x + 0.1 * a.T @ rest, k + 1, jnp.sum(rest * rest)

    start = jnp.zeros(a.shape[1]), 0, jnp.float32(1)
    return jax.lax.while_loop(lambda state: (state[2] > 1e-2) & (state[1] < 12), step, start)[:2]


def power(a):
    """The largest eigenvalue of a matrix. What the loop begins with is of the element, too."""

    def step(state):
        v, k, old, _ = state
        w = a @ v
        size = jnp.sqrt(jnp.sum(w * w))
        return w / size, k + 1, size, jnp.abs(size - old)

    start = a[0] / jnp.max(a), 0, jnp.float32(0), jnp.float32(1)
    return jax.lax.while_loop(lambda state: (state[3] > 1e-2) & (state[1] < 20), step, start)[:3]


def inverse(a):
    """Newton's iteration, whose products have tiles."""

    def step(state):
        x, k, _ = state
        rest = jnp.eye(len(a)) - a @ x
        return x + x @ rest, k + 1, jnp.sum(rest * rest)

    start = a.T / jnp.sum(a * a), 0, jnp.float32(1)
    return jax.lax.while_loop(lambda state: (state[2] > 1e-3) & (state[1] < 9), step, start)[:2]


def chain(x):
    """A counted loop."""
    return jax.lax.fori_loop(0, 5, lambda k, y: 0.5 * (y + jnp.roll(y, 1)) + k * jnp.sum(y) * 0.01, x)


@pytest.mark.parametrize(("size", "sanitizer"), [(33, "address"), (100, "thread"), (257, None)])
def test_jacobi(size, sanitizer, monkeypatch):
    run(monkeypatch, jax.vmap(jacobi), (3 * normal(70, size),), sanitizer=sanitizer)


@pytest.mark.parametrize("sanitizer", ["address", RACES])
def test_descent(sanitizer, monkeypatch):
    a, b = normal(64, 40, 36) / 8, normal(64, 40)
    with jax.default_matmul_precision("highest"):
        emitted = run(monkeypatch, jax.vmap(descent), (a, b), sanitizer=sanitizer)
    assert "ck_group_reduce<32, CkSum>" in emitted.source


@pytest.mark.parametrize("sanitizer", ["address", RACES])
def test_power_iteration(sanitizer, monkeypatch):
    a = np.abs(normal(64, 48, 48))
    with jax.default_matmul_precision("highest"):
        run(monkeypatch, jax.vmap(power), (a + a.transpose(0, 2, 1),), sanitizer=sanitizer)


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_steps_of_its_own(sanitizer, monkeypatch):
    run(monkeypatch, jax.vmap(ring), (normal(64, 128),), sanitizer=sanitizer)


def test_products_by_tiles(monkeypatch):
    a = 5 * np.eye(12, dtype=np.float32) + normal(64, 12, 12)
    with jax.default_matmul_precision("highest"):
        emitted = run(monkeypatch, jax.vmap(inverse), (a,), sanitizer="address")
    assert "CkDotTiles" in emitted.source


def test_more_than_near_memory_holds(monkeypatch):
    """Sixteen blocks share what a multiprocessor has; the rest is further away."""
    emitted = run(monkeypatch, jax.vmap(ring), (normal(64, 3000),))
    assert emitted.plan.private_bytes >= 3000 * 4
    assert emitted.plan.template_bytes + emitted.plan.own_bytes <= H200.room(32)


@pytest.mark.parametrize("sanitizer", [None, RACES])
def test_units_that_wait(sanitizer, monkeypatch):
    """What follows the loop mixes batch elements."""

    def function(x):
        y = jax.vmap(ring)(x)[2]
        return y - jnp.mean(y, axis=0)

    emitted = run(monkeypatch, function, (normal(64, 100),), loops=None, sanitizer=sanitizer)
    assert "ck_wait" in emitted.source


def test_counted_loops(monkeypatch):
    run(monkeypatch, jax.vmap(chain), (normal(64, 100),), sanitizer="address")


def test_map(monkeypatch):
    run(monkeypatch, lambda x: jax.lax.map(jacobi, x), (3 * normal(70, 100),), sanitizer="address")


def test_one_after_another(monkeypatch):
    """Each warp goes on with its own elements."""
    run(monkeypatch, lambda x: jax.vmap(jacobi)(jax.vmap(ring)(x)), (normal(64, 100),), loops=2)


@pytest.mark.parametrize("wave", [32, 64])
@pytest.mark.parametrize("tiles", [False, True])
def test_waves(tiles, wave, monkeypatch):
    function = inverse if tiles else jacobi
    given = 5 * np.eye(12, dtype=np.float32) + normal(64, 12, 12) if tiles else 3 * normal(64, 130)
    with jax.default_matmul_precision("highest"):
        run(monkeypatch, jax.vmap(function), (given,), threads=wave, spec=WAVES[wave])


def emitted_for(function, arguments, spec=H200):
    machine = machine_of(spec)
    (program,) = prepare(jax.make_jaxpr(jax.vmap(function))(*arguments), "f", machine).programs
    return compiler.emit(program, machine, candidate=way(spec.units, threads=spec.warp))


def test_small_elements_keep_their_threads():
    """Also where a block is one warp: less than its worth is for a thread."""
    loops = {}
    for size in (31, 32):
        emitted = emitted_for(jacobi, (normal(4096, size),))
        loops[size] = [s.level for s in walk(emitted.program.entry) if is_parallel(s)]
    assert loops == {31: ["thread"], 32: ["unit"]}


def test_the_model_prefers_threads_for_small_elements():
    """Rings of 64 numbers fit the registers of a thread, which exchanges nothing with others."""
    prepared = prepare(jax.make_jaxpr(jax.vmap(ring))(normal(4096, 64)), "ring", machine_of(H200))
    found = survey(prepared, H200.units)
    emitted = compiler.emit(*prepared.programs, machine_of(H200), candidate=found.best.candidate)
    assert [s.level for s in walk(emitted.program.entry) if is_parallel(s)] == ["thread"]


@pytest.mark.parametrize("size", [256, 1024])
def test_the_model_prefers_warps(size):
    """To blocks of more threads, and to a batch that stays together."""
    prepared = prepare(jax.make_jaxpr(jax.vmap(ring))(normal(4096, size)), "ring", machine_of(H200))
    found = survey(prepared, H200.units)
    seconds = {plan.candidate: s for plan, s in zip(found.plans, found.seconds, strict=True)}
    assert found.best.candidate == WARP and possible(prepared, found.best, H200.units)
    assert all(seconds[WARP] < each for candidate, each in seconds.items() if candidate != WARP)


def test_few_elements_keep_their_blocks():
    """One for each multiprocessor: a warp would take longer for it."""
    prepared = prepare(jax.make_jaxpr(jax.vmap(ring))(normal(128, 1024)), "ring", machine_of(H200))
    assert survey(prepared, H200.units).best.candidate != WARP


@pytest.mark.skipif(not NVCC, reason=NO_NVCC)
@pytest.mark.skipif(not sass.tools(), reason=sass.NO_TOOLS)
@pytest.mark.parametrize("spec", [A100, H200, B200], ids=lambda spec: spec.arch)
@pytest.mark.parametrize(
    "function", [descent, inverse, *(pytest.param(f, marks=pytest.mark.long) for f in (jacobi, power, ring))]
)
def test_sixteen_warps_of_a_multiprocessor(function, spec, tmp_path: Path, monkeypatch):
    """Nothing spills, and registers and shared memory leave room for so many."""
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))
    shapes = {descent: ((100, 100), (100,)), power: ((128, 128),), inverse: ((16, 16),)}
    given = [normal(1024, *shape) for shape in shapes.get(function, ((1024,),))]
    emitted = emitted_for(function, given, spec)
    built = build_device_program(emitted.source, nvcc(), spec)
    launch = launch_plan(emitted.program, emitted.plan, emitted.machine, emitted.sizes)
    assert not built.spills and not launch.cooperative and launch.most_units == 1024
    opcodes = sass.opcodes(built.binary, "ck_resident")
    assert not any(name.startswith("BAR") for name in opcodes)
    assert any(name.startswith("SHFL") for name in opcodes)
    registers = built.kernels["ck_resident"].registers
    assert spec.resident_units(32, registers, launch.resident_shared_bytes) >= 16


def test_own_arrays_of_all_blocks_are_bounded(monkeypatch):
    """One block takes all elements if the arrays that do not fit in shared memory would fill the card."""

    def each(x):
        def step(state):
            k, y = state
            products = jnp.sort(jnp.outer(y[:64], y[:64]).reshape(-1))
            return k + 1, jnp.tanh(y) + 0.1 * products[:4000]

        return jax.lax.while_loop(lambda state: state[0] < 3, step, (0, x))[1]

    rows = jax.ShapeDtypeStruct((4096, 4000), jnp.float32)
    prepared = prepare(jax.make_jaxpr(jax.vmap(each))(rows), "rows", machine_of(H200))
    (program,) = prepared.programs
    plan = compiler.emit(program, machine_of(H200), candidate=WARP).plan
    assert plan.most_units == 4096 and plan.private_bytes > 4 * 4000
    monkeypatch.setattr(plan_tail, "_MOST_PRIVATE", H200.memory_bytes // (1 << 20))
    emitted = compiler.emit(program, machine_of(H200), candidate=WARP)
    assert "of global memory" in str(emitted.remarks[-1]) and emitted.plan.most_units == 1
