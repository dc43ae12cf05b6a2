"""Blocks of two axes on the CUDA target, emulated, against `jax.jit` on the host."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.analysis.parallel import block_access, scalar_constants
from jax_cocktail.utask.ir import is_parallel, walk
from jax_cocktail_tools.models import attention as decoding
from jax_cocktail_tools.models import nasrnn as cells
from jax_cocktail_tools.models import seq2seq as sentences
from tests.cpu.emulated import Emulation
from tests.null.grids import EagerGrids

KERNELS = ("ck_resident", "ck_portable")


def array(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32))


def attention():
    function, given = decoding.build(4, True)
    return function, given, EagerGrids()


def nasrnn():
    function, (xs, *weights) = cells.build(4, True)
    return function, (xs[:4], *weights), EagerGrids(last=True)


def seq2seq():
    function, given = sentences.build(4, True)
    return function, given, EagerGrids(last=True)


def solvers():
    """Newton's method for square roots over two batch axes, as long as any of them needs it."""

    def root(x):
        def step(carry):
            y, n = carry
            return 0.5 * (y + x / y), n + 1

        return lax.while_loop(lambda c: (jnp.abs(c[0] ** 2 - x) > 1e-4 * x) & (c[1] < 20), step, (x, 0))

    return jax.vmap(jax.vmap(root)), (1 + jnp.abs(array(1, 6, 4)),), EagerGrids()


def uneven():
    """Columns that no number of units divides, in groups of rows."""

    def run(h, w):
        return lax.fori_loop(0, 5, lambda _, h: jnp.tanh(h @ w), h)

    return run, (array(2, 6, 7), array(3, 7, 7) / 7), EagerGrids(last=True)


def remainder():
    """Two blocks of two heads, and one of the last head."""
    caches = (array(n, 12, 5, 8, 8) for n in range(2))
    weights = (array(n, 5, 8, 8) / 3 for n in range(2, 6))
    return (
        decoding.decoder(4, 8),
        (array(6, 12, 5, 1, 8), *caches, *weights),
        EagerGrids(uneven=True, blocks=36),
    )


CASES = {
    "attention": attention,
    "remainder": remainder,
    "nasrnn": nasrnn,
    "seq2seq": seq2seq,
    "solvers": solvers,
    "uneven": uneven,
}


def check(monkeypatch, name, units, kernels=KERNELS, **how):
    """Equals stock, in blocks of two axes."""
    function, given, limits = CASES[name]()
    monkeypatch.setattr("jax_cocktail.passes.limits_for", lambda *_: limits)
    emulation = Emulation(launches=[], distribute=False, **how).install(monkeypatch)
    options = {"force": "cocktail", "strict": True, "units": units}
    with jax.default_matmul_precision("highest"):
        stock = jax.jit(function)(*given)
        ours = jax_cocktail.jit(function, options=options)
        for emulation.seed, emulation.kernel in enumerate(kernels):
            found = ours(*given)
            for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(stock), strict=True):
                np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6)
    emitted = emulation.launches[-1][0]
    assert any(len(runs) == 2 for runs in blocks(emitted.program))


def blocks(program):
    """What parts of parallel loops own of arrays."""
    constants = scalar_constants(program.entry)
    for statement in walk(program.entry):
        if is_parallel(statement):
            yield from (runs for runs in block_access(statement, constants).values() if runs is not None)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("units", [3, 4])
def test_equals_stock(name, units, monkeypatch):
    check(monkeypatch, name, units)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_nothing_else_is_touched(name, sanitizer, monkeypatch):
    check(monkeypatch, name, 3, KERNELS[:1], sanitizer=sanitizer)
