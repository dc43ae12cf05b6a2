"""Programs in which a thread of a GPU runs one batch element, emulated and compared with stock."""

from __future__ import annotations

import jax
import numpy as np

import jax_cocktail
from jax_cocktail.utask.ir import BranchUTask, by_threads, walk
from tests.cpu.emulated import KERNELS, Emulation
from tests.cpu.runner import EAGER


def run(monkeypatch, function, arguments, units=3, loops=1, branches=None, **how):
    """Compares both kernels with stock. `loops`: the number of loops by threads; `branches`: how many there
    are in these."""
    monkeypatch.setattr("jax_cocktail.passes.limits_for", lambda *_: EAGER)
    emulation = Emulation(launches=[], **how).install(monkeypatch)
    ours = jax_cocktail.jit(function, options={"force": "cocktail", "strict": True, "units": units})
    expected = jax.jit(function)(*arguments)
    for emulation.kernel in KERNELS:
        jax.tree.map(close, ours(*arguments), expected)
    emitted = emulation.launches[0][0]
    found = [s for s in walk(emitted.program.entry) if by_threads(s)]
    inside = sum(isinstance(s, BranchUTask) for loop in found for s in walk(loop.body))
    assert len(found) == loops, emitted.remarks
    assert branches in (None, inside), emitted.remarks
    return emitted


def close(ours, stock):
    if np.issubdtype(stock.dtype, np.inexact):
        np.testing.assert_allclose(ours, stock, rtol=2e-5, atol=2e-5)
    else:
        np.testing.assert_array_equal(ours, stock)
