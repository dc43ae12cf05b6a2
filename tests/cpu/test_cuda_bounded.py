"""Gradients of `while_loop` with a bound on the CUDA target, emulated, against `jax.jit` on the host."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail import compiler
from jax_cocktail.build.device import build_device_program
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.device.nvidia import A100, B200, H200
from jax_cocktail.lowering.choice.variants import prepare
from jax_cocktail.utask.candidate import Candidate
from tests.case import QUICK
from tests.cpu.cuda_compilers import nvcc
from tests.cpu.emulated import KERNELS, Emulation
from tests.cpu.runner import EAGER

BOUND = 7


def settle(loop, a, x):
    """A loop of 4 trips for the arguments of the test."""
    return loop(lambda s: s[1] < 4, lambda s: (jnp.tanh(a @ s[0]) + 0.5 * s[0] * s[0], s[1] + 1), (x, 0))[0]


def bounded(cond, body, init):
    return jax_cocktail.while_loop(cond, body, init, max_trips=BOUND)


def masked(cond, body, init):
    """What stock JAX can derive."""

    def step(state, _):
        following = body(state)
        return jax.tree.map(lambda x, y: jnp.where(cond(state), x, y), following, state), None

    return lax.scan(step, init, length=BOUND)[0]


def gradient(loop):
    return jax.value_and_grad(lambda a, x: jnp.sum(settle(loop, a, x) ** 2), argnums=(0, 1))


def arguments_of(size, batch):
    keys = jax.random.split(jax.random.key(0))
    return jax.random.normal(keys[0], (size, size)) / 4, jax.random.normal(keys[1], (size, batch)) / 2


@pytest.mark.parametrize("units", [1, 3])
def test_a_gradient(units, monkeypatch):
    arguments = arguments_of(12, 5)
    with jax.default_matmul_precision("highest"):
        stock = jax.jit(gradient(masked), compiler_options=QUICK)(*arguments)
        monkeypatch.setattr("jax_cocktail.passes.limits_for", lambda *_: EAGER)
        emulation = Emulation(launches=[]).install(monkeypatch)
        options = {"force": "cocktail", "strict": True, "units": units}
        ours = jax_cocktail.jit(gradient(bounded), options=options)
        for emulation.kernel in KERNELS:
            found = ours(*arguments)
            jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6), found, stock)
    assert {kernel for *_, kernel in emulation.launches} == set(KERNELS)
    grids = {emitted.plan.most_units for emitted, _, _ in emulation.launches}
    assert (max(grids) > 1) == (units > 1)


CARDS = pytest.param(A100, marks=pytest.mark.long), H200, pytest.param(B200, marks=pytest.mark.long)


@pytest.mark.parametrize("spec", CARDS, ids=lambda spec: spec.arch)
def test_nvcc_compiles_a_gradient(spec, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))
    toolchain = nvcc()
    jaxpr = jax.make_jaxpr(gradient(bounded))(*arguments_of(128, 64))
    programs = prepare(jaxpr, "gradient", machine_of(spec)).programs
    assert programs
    for program in programs:
        emitted = compiler.emit(program, machine_of(spec), candidate=Candidate(spec.units))
        built = build_device_program(emitted.source, toolchain, spec)
        assert "ck_resident" in built.kernels
        assert not built.spills
