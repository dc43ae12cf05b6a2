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


NUMBERS, POINTS, SEEN = np.arange(1, 30, dtype=np.int32), normal(5, 3), normal(3)
A, B = (RANDOM.integers(1, 3, n).astype(np.int32) for n in (9, 7))
MOVES, DRAWS, STATE = normal(20, 4), RANDOM.uniform(size=20).astype(np.float32), normal(4)
ANGLES = (np.float32(0.4), np.float32(0.9), np.float32(0.3))
SIGNAL, HALF, RATES = normal(9), np.float32(0.5), RANDOM.uniform(2, 3.5, 12).astype(np.float32)
FILTER = (EYE, SEEN, EYE, HALF)
LOOPS = {  # arguments, an array like the result, and the arguments of C++ if they are others
    "collatz": ((NUMBERS,), NUMBERS, (NUMBERS, NUMBERS.size)),
    "lorenz": ((POINTS, 10), POINTS, (POINTS, 5, 10)),
    "levenshtein": ((A, B), np.int32(0), (A, 9, B, 7)),
    "newton": ((np.float32(2.5), 12), np.float32(0), ()),
    "kalman": ((SIGNAL, *FILTER), np.empty((9, 3), np.float32), (SIGNAL, 9, *FILTER, 3)),
    "metropolis": ((STATE, MOVES, DRAWS), STATE, (STATE, 4, MOVES, DRAWS, 20)),
    "logistic": ((HALF, RATES), RATES, (HALF, RATES, 12)),
    "divisors": ((A[:7], B), np.int32(0), (A, B, 7)),
    "walk": ((np.uint32(12345), 30), np.empty(2, np.float32), ()),
    "pendulum": ((*ANGLES, 25), np.empty(2, np.float32), ()),
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
    arguments, like, there = LOOPS[name]
    has_numba = hasattr(loops, name)
    row = scalar._row(name, getattr(scalar, name), arguments, np.empty_like(like), there, numba=has_numba)
    found = jax_cocktail.jit(row.function, options={"force": "cocktail"})(*row.arguments)
    np.testing.assert_allclose(found, jax.jit(row.function)(*row.arguments), rtol=1e-5, atol=1e-5)
    for peer in row.peers.values():
        np.testing.assert_allclose(found, peer()(), rtol=1e-4, atol=1e-4)


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
