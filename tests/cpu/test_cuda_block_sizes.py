"""Blocks of other sizes than the usual one: the same answers, no race, no spill."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from benchmarks.gpu.sass.programs import card_of
from benchmarks.gpu.sass.sizes import sizes_of, told_sizes
from jax_cocktail import compiler
from jax_cocktail.build.device import build_device_program
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.device.nvidia import A100, B200, H200
from jax_cocktail.lowering.choice import variants
from jax_cocktail.lowering.choice.variants import prepare
from jax_cocktail.schedule.policy import block_sizes
from jax_cocktail.utask.candidate import way
from tests.cpu import sass
from tests.cpu.cuda_compilers import nvcc
from tests.cpu.cuda_text import NO_NVCC, NVCC
from tests.cpu.emulated import Emulation
from tests.cpu.runner import EAGER

SIZES = block_sizes(machine_of(H200))
UNITS = 3


def steps(x, w, rows):
    """Products of one row, statistics of many short rows and of few long ones, a position, running sums."""

    def body(i, state):
        h, m, found = state
        h = jnp.tanh(h @ w + i)
        m = jax.nn.softmax(m * h[0, 0], axis=-1)
        centred = (m - m.mean(axis=0)) * lax.rsqrt(m.var(axis=0) + 1e-3)
        long = jnp.sum(m.reshape(3, -1) * 2, axis=1)
        return h, centred + lax.cumsum(long)[0], found + jnp.argmax(h, axis=-1).astype(jnp.int32)

    start = x, rows, jnp.zeros(x.shape[:1], jnp.int32)
    return lax.fori_loop(0, 2, body, start)


def arguments():
    random = np.random.default_rng(0)
    x, w, rows = (
        random.standard_normal(shape).astype(np.float32) for shape in ((1, 96), (96, 96), (120, 33))
    )
    return x, w / 10, rows


def ours(threads, monkeypatch, **how):
    """The results of the resident and of the portable kernel with blocks of so many threads."""
    monkeypatch.setattr("jax_cocktail.passes.limits_for", lambda *_: EAGER)
    emulation = Emulation(launches=[], threads=256, **how).install(monkeypatch)
    candidate = way(UNITS, threads=threads)
    monkeypatch.setattr(variants, "candidates", lambda *_: (candidate,))
    options = {"force": "cocktail", "strict": True, "units": UNITS}
    function = jax_cocktail.jit(steps, options=options)
    with jax.default_matmul_precision("highest"):
        for emulation.kernel in ("ck_resident", "ck_portable"):
            yield jax.tree.map(np.asarray, function(*arguments()))
    assert {f"#define CK_THREADS {threads}\n" in e.source for e, _, _ in emulation.launches} == {True}
    assert max(emitted.plan.most_units for emitted, _, _ in emulation.launches) == UNITS


@pytest.mark.parametrize("threads", SIZES)
def test_answers(threads, monkeypatch):
    """Those of stock XLA, with at most twice its distance from float64."""
    with jax.default_matmul_precision("highest"):
        stock = jax.jit(steps)(*arguments())
        with jax.enable_x64():
            exact = jax.jit(steps)(*(x.astype(np.float64) for x in arguments()))
    for found in ours(threads, monkeypatch):
        np.testing.assert_array_equal(found[2], exact[2])
        for mine, theirs, true in zip(found[:2], stock, exact, strict=False):
            far = np.abs(theirs - true).max()
            assert np.abs(mine - true).max() <= 2 * far + 1e-6


# The sanitizer of races takes seconds for many threads: the smallest size, the usual one and the largest.
WATCHED = [(threads, "address") for threads in SIZES] + [(n, "thread") for n in (SIZES[0], 256, SIZES[-1])]


@pytest.mark.parametrize(("threads", "sanitizer"), WATCHED)
def test_sanitized(threads, sanitizer, monkeypatch):
    expected = jax.jit(steps)(*arguments())
    for found in ours(threads, monkeypatch, sanitizer=sanitizer):
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not NVCC, reason=NO_NVCC)
@pytest.mark.parametrize("spec", [A100, H200, B200], ids=lambda spec: spec.arch)
def test_registers(spec, tmp_path: Path, monkeypatch):
    """Every size compiles without spills, within the registers that a thread can have.

    On other cards than the H200 it is the sizes whose threads have the fewest.
    """
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))
    (program,) = prepare(jax.make_jaxpr(steps)(*arguments()), "steps", machine_of(spec)).programs
    for threads in SIZES if spec is H200 else SIZES[-2:]:
        candidate = way(spec.units, threads=threads)
        emitted = compiler.emit(program, machine_of(spec), candidate=candidate)
        built = build_device_program(emitted.source, nvcc(), spec)
        assert built.kernels.keys() == {"ck_resident", "ck_portable"} and not built.spills
        for facts in built.kernels.values():
            assert facts.registers <= spec.most_registers(threads)


@pytest.mark.skipif(not sass.tools(), reason=sass.NO_TOOLS)
def test_the_model_ranks_sizes_as_the_emulator_does():
    """For the products of one row, where it takes smaller blocks than usual."""
    nvcc()
    small, usual = found = sizes_of("attention/1", card_of("sm_90"), (128, 256))
    assert (small.threads, usual.threads) == (128, 256)
    assert small.predicted < usual.predicted and small.emulated < usual.emulated
    assert small.spill_bytes == usual.spill_bytes == 0
    assert [line.split()[1::2][:3] for line in told_sizes("attention/1", found)] == [
        ["128", "1", "1"],
        ["256", "2", "2"],
    ]
