"""Transformations of JAX around and inside programs that run on the card."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.gpu import programs
from tests.gpu.card import Card, check, check_close, in_float64

PARTS = {
    "lstm": (programs.lstm, programs.lstm_arguments()),
    "gru": (programs.gru, programs.gru_arguments()),
}


def loss_of(function):
    return lambda *arguments: (function(*arguments) ** 2).mean()


@pytest.mark.parametrize("name", [pytest.param("lstm"), pytest.param("gru", marks=pytest.mark.emulated)])
def test_gradients(card: Card, eager, name):
    """Of all arguments: the backward scan is ours too."""
    function, arguments = PARTS[name]
    gradient = jax.value_and_grad(loss_of(function), tuple(range(len(arguments))))
    check(card, gradient, *arguments)


@pytest.mark.parametrize("name", PARTS)
def test_gradients_of_wide_batches(gpu: Card, name):
    """Many steps and rows: the gradients of weights are one product after the loop."""
    make = {"lstm": programs.lstm_arguments, "gru": programs.gru_arguments}[name]
    function = PARTS[name][0]
    arguments = make(32, 64, 64)
    check(gpu, jax.grad(loss_of(function), tuple(range(len(arguments)))), *arguments)


def test_jvp(card: Card, eager):
    x, w = programs.floats(4, 3, 7), programs.floats(7, 7)
    check(card, lambda x, w: jax.jvp(programs.cells, (x, w), (w[0] + x * 0, w * 2)), x, w)


def test_checkpoint(card: Card, eager):
    x, w = programs.floats(4, 3, 7), programs.floats(7, 7)
    kept = jax.checkpoint(lambda x, w: programs.cells(x, w)[0].sum())
    check(card, jax.grad(kept, (0, 1)), x, w)


@pytest.mark.emulated
def test_vmap(card: Card, eager):
    """Lanes with trips of their own."""
    check(card, jax.vmap(programs.newton), programs.floats(9, 4) ** 2 + 0.5)


@pytest.mark.parametrize("outside", ["vmap", "grad"])
def test_transforms_of_the_compiled_function(card: Card, eager, outside):
    """`vmap` and `grad` of what `jit` returns."""
    x, w = programs.floats(4, 3, 7), programs.floats(7, 7)

    def around(function):
        if outside == "vmap":
            return jax.vmap(lambda x, w: function(x, w)[0], (None, 0))
        return jax.grad(lambda x, w: function(x, w)[0].sum(), 1)

    w = np.stack([w, w * 0.5]) if outside == "vmap" else w
    with jax.default_matmul_precision("highest"):
        ours, stock = (around(jit(programs.cells))(x, w) for jit in (card.jit, jax.jit))
        exact = in_float64(around(programs.cells), (x, w))
    check_close(ours, stock, exact)


def test_nested_jit(card: Card, eager):
    """Ours in ours, and both in stock's."""
    inner = card.jit(programs.newton)
    outer = card.jit(lambda a: lax.fori_loop(0, 3, lambda _, b: inner(b) + 1, a))
    around = jax.jit(lambda a: outer(a) * inner(a))
    a = np.array([2.0, 9.0, 5.0], np.float32)
    plain = programs.newton

    def stock(a):
        return lax.fori_loop(0, 3, lambda _, b: plain(b) + 1, a) * plain(a)

    check_close(around(a), jax.jit(stock)(a), in_float64(stock, (a,)))


@pytest.mark.emulated
def test_donation(card: Card, eager):
    """The program writes where its operand was."""

    def program(x, y):
        return lax.fori_loop(0, 5, lambda i, c: (c[1] + 1, c[0] * 0.5), (x, y))

    x, y = (jnp.asarray(programs.floats(6, 5, seed=s)) for s in (0, 1))
    stock = jax.jit(program)(x, y)
    exact = in_float64(program, (x, y))
    ours = card.jit(program, how={"donate_argnums": (0, 1)})(x, y)
    check_close(ours, stock, exact)
    if card.emulation is None:
        assert x.is_deleted() and y.is_deleted()


def test_ahead_of_time(card: Card, eager):
    arguments = programs.decoder_arguments()
    compiled = card.jit(programs.decoder).lower(*arguments).compile()
    stock = jax.jit(programs.decoder)(*arguments)
    check_close(compiled(*arguments), stock, stock)


def test_many_carries(gpu: Card, eager):
    """More parameters than 4 KB hold."""
    count = 600
    start = tuple(np.float32(k) for k in range(count))

    def program(*state):
        return lax.fori_loop(0, 3, lambda _, s: (*s[1:], s[0] + s[1]), state)

    check(gpu, program, *start)


@pytest.mark.emulated
def test_nothing_and_little(card: Card, eager):
    """Arrays without elements, loops without trips, scalars alone."""

    def program(empty, x, n):
        def step(state, x):
            empty, total = state
            return (empty * 2, total + x.sum() + empty.sum()), (empty, x[:0])

        state, ys = lax.scan(step, (empty, x.max()), x)
        trips = lax.fori_loop(0, n, lambda i, a: a * 2, state[1])
        return state, ys, trips, lax.scan(step, state, x[:0])

    check(card, program, np.zeros((0, 4), np.float32), programs.floats(3, 5), np.int32(0))
