"""The loops of `benchmarks.peers` and `benchmarks.products`: all systems compute the same."""

from __future__ import annotations

import sys
import types

import jax
import numpy as np
import pytest

import jax_cocktail
from benchmarks import products
from benchmarks.peers import __main__ as peers
from benchmarks.peers import decoder, recurrent, scalar
from benchmarks.peers.rows import Row

RANDOM, EYE = np.random.default_rng(3), np.eye(3, dtype=np.float32)


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


LOOPS = {
    "collatz": (np.arange(1, 30, dtype=np.int32),),
    "lorenz": (normal(5, 3), 10),
    "levenshtein": (RANDOM.integers(0, 3, 9).astype(np.int32), RANDOM.integers(0, 3, 7).astype(np.int32)),
    "newton": (np.float32(2.5), 12),
    "kalman": (normal(9), EYE, normal(3), EYE, np.float32(0.5)),
    "metropolis": (normal(4), normal(20, 4), RANDOM.uniform(size=20).astype(np.float32)),
}


@pytest.fixture
def loops(monkeypatch):
    """Numba's loops, run by Python if numba is not installed."""
    if "numba" not in sys.modules:
        stand_in = types.ModuleType("numba")
        stand_in.njit = lambda *function, **_: function[0] if function else lambda made: made
        stand_in.prange = range
        monkeypatch.setitem(sys.modules, "numba", stand_in)
    monkeypatch.delitem(sys.modules, "benchmarks.peers.numba_loops", raising=False)
    from benchmarks.peers import numba_loops

    return numba_loops


@pytest.mark.parametrize("name", LOOPS)
def test_loops(loops, name):
    row = scalar._row(name, getattr(scalar, name), LOOPS[name])
    found = jax_cocktail.jit(row.function, options={"force": "cocktail"})(*row.arguments)
    np.testing.assert_allclose(found, jax.jit(row.function)(*row.arguments), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found, row.peers["numba"]()(), rtol=1e-4, atol=1e-4)


def test_decoder(loops):
    weights, token = decoder._weights(RANDOM, 8, 12), np.array(1)
    found = jax.jit(lambda token, weights: decoder.decode(token, weights, 5))(np.int32(1), weights)
    np.testing.assert_allclose(found, decoder._numba(token, weights, 5)(), rtol=1e-4, atol=1e-4)
    onnxruntime = pytest.importorskip("onnxruntime")
    from benchmarks.peers import onnx

    assert onnxruntime
    run = onnx.onnx_runtime(lambda: decoder._graph(token, weights, 5), {"first_token": token})
    np.testing.assert_allclose(found, run(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_stacks(kind):
    row = recurrent.row(kind, (2, 5, 4, 3), seed=1)
    expected = jax.jit(row.function)(*row.arguments)
    found = jax_cocktail.jit(row.function, options={"force": "cocktail"})(*row.arguments)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert all(np.allclose(run(), expected, atol=1e-4) for run in peers.peers_of(row, expected).values())


@pytest.mark.parametrize("rows", [1, 5])
def test_products(rows):
    """The systems that are here agree; a wrong loop would raise."""
    found = products.measure(rows, 6, 9, 0.01, 1)
    assert all(found[name] > 0 for name in ("ours", "stock XLA", "OpenBLAS", "ours / best"))
    assert products.printed(found).startswith(f"{rows} x 6 x 9")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(AssertionError, match="OpenBLAS differs"):
        patch.setattr(products, "with_numpy", lambda x, *_: x + 1)
        products.measure(rows, 6, 9, 0.01, 1)


def test_peers_that_are_missing_or_differ_are_left_out():
    def missing():
        raise ImportError("no such library")

    given = {"missing": missing, "right": lambda: lambda: np.ones(3), "wrong": lambda: lambda: np.zeros(3)}
    row = Row("ones", lambda x: x, (np.ones(3, np.float32),), given)
    with pytest.warns(UserWarning, match="ones: wrong differs by 1.0e"):
        assert [*peers.peers_of(row, np.ones(3, np.float32))] == ["right"]
    found = peers.measure(Row("ones", lambda x: x + 0, row.arguments, {"right": given["right"]}), False, 0.05)
    assert found["best peer / ours"] == found["right"] / found["ours"]
    assert peers.printed(found).startswith("ones")
