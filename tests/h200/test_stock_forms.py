"""Which loops stock XLA captures, by its options. Whether a captured loop is unrolled is decided when the
graph is made, so it cannot be seen here."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from benchmarks.gpu import peers
from benchmarks.gpu.rows import ROWS
from jax_cocktail.lowering.choice.stock_forms import MOST_NODES, worth_unrolling
from tests.h200.card import compiled

SLICED = ("lstm/64", "nasrnn/64", "lstm_gradient")  # a trip copies a slice from or to an address of its own
UNKNOWN = ("seq2seq/1", "seq2seq/64")  # they stop by their data
LOOPS = ("lstm/1", "nasrnn/1", "attention/1", "attention/64", *UNKNOWN, *SLICED)


def in_form(row, form, folder):
    function, arguments = ROWS[row].make(False)
    return compiled(jax.jit(function), arguments, folder, options=peers.MODES[form])


def loops(found):
    """The number of loops, and of those in command buffers."""
    return len(found.all("kWhile")), found.captured.count("kWhile")


@pytest.mark.parametrize("row", LOOPS)
def test_every_loop_is_captured_if_loops_are_unrolled(row, tmp_path):
    """Where there is something to unroll, the graph is not enormous, so the form is tried."""
    found = in_form(row, "graphs_unrolled", tmp_path)
    assert loops(found) == ((2, 2) if row == "lstm_gradient" else (1, 1))
    assert worth_unrolling(found.text) is (row not in UNKNOWN)


@pytest.mark.parametrize("row", LOOPS)
def test_loops_that_are_captured_as_they_are(row, tmp_path):
    """All but those that copy slices, with jax 0.10.2, 0.11.2 and 0.12. If XLA learns to capture these, the
    options for unrolled loops are worth less."""
    count, captured = loops(in_form(row, "graphs", tmp_path))
    assert captured == (0 if row in SLICED else count) and count


def test_no_loop_is_captured_by_default(tmp_path):
    """The price of stock XLA that decides counts on it."""
    assert loops(in_form("lstm/1", "stock", tmp_path)) == (1, 0)


def test_some_graphs_would_be_enormous(tmp_path):
    x = jnp.zeros((64, 64), jnp.float32)
    for trips in (MOST_NODES // 10, MOST_NODES):
        function = jax.jit(lambda x, trips=trips: lax.fori_loop(0, trips, lambda _, y: jnp.tanh(y @ x), x))
        found = compiled(function, (x,), tmp_path / str(trips))
        assert worth_unrolling(found.text) is (trips < MOST_NODES)
