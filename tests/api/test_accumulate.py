"""Gradients of recurrent networks: weight gradients are one product, and as exact as stock's."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.analysis.verifier import verify
from jax_cocktail.lowering.edge.adapter import program as adapt
from jax_cocktail.primitives import translate
from jax_cocktail.schedule.loops.distribution.distribute import distribute
from jax_cocktail.schedule.loops.layers import layers
from jax_cocktail.schedule.simplify.hoist import hoist
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.utask.ir import LoopUTask, UOperator, walk
from tests.case import QUICK
from tests.oracle.interpreter.run import run

HIDDEN, STEPS = 32, 12


def lstm_cell(state, x, w):
    h, c = state
    i, f, g, o = jnp.split(x @ w["x"] + h @ w["h"] + w["b"], 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return (jax.nn.sigmoid(o) * jnp.tanh(c), c), jax.nn.sigmoid(o) * jnp.tanh(c)


def gru_cell(state, x, w):
    (h,) = state
    r, z, n = jnp.split(x @ w["x"] + w["b"], 3, -1)
    s, y, m = jnp.split(h @ w["h"], 3, -1)
    z = jax.nn.sigmoid(z + y)
    h = (1 - z) * jnp.tanh(n + jax.nn.sigmoid(r + s) * m) + z * h
    return (h,), h


def rnn_cell(state, x, w):
    h = jnp.tanh(x @ w["x"] + state[0] @ w["h"] + w["b"])
    return (h,), h


CELLS = {"lstm": (lstm_cell, 4, 2), "gru": (gru_cell, 3, 1), "rnn": (rnn_cell, 1, 1)}


def layer(name, w, xs, reverse=False):
    cell, _, states = CELLS[name]
    zeros = (jnp.zeros(xs.shape[1:], xs.dtype),) * states
    return lax.scan(lambda state, x: cell(state, x, w), zeros, xs, reverse=reverse)[1]


def weights(name, seed=0, layers=()):
    random, gates = np.random.default_rng(seed), CELLS[name][1]
    shapes = {"x": (HIDDEN, gates * HIDDEN), "h": (HIDDEN, gates * HIDDEN), "b": (gates * HIDDEN,)}
    return {k: np.float32(random.normal(size=(*layers, *s)) * HIDDEN**-0.5) for k, s in shapes.items()}


def inputs(*batch, seed=1):
    return np.float32(np.random.default_rng(seed).normal(size=(STEPS, *batch, HIDDEN)))


def plain(name, reverse=False):
    return lambda w, xs: jnp.sum(layer(name, w, xs, reverse) ** 2)


def two_scans(w, xs):
    first, second = ({k: v[n] for k, v in w.items()} for n in range(2))
    return jnp.sum(layer("lstm", second, layer("lstm", first, xs, reverse=True)) ** 2)


def two_layers_in_one_scan(w, xs):
    def step(state, x):
        new = []
        for n in range(2):
            one, x = lstm_cell(state[n], x, {k: v[n] for k, v in w.items()})
            new.append(one)
        return tuple(new), x

    zeros = jnp.zeros(xs.shape[1:], xs.dtype)
    return jnp.sum(lax.scan(step, ((zeros, zeros),) * 2, xs)[1] ** 2)


def nested(w, xs):
    """Of every outer step the inner scan goes over four rows, from the state that the last one left."""

    def outer(state, rows):
        state, ys = lax.scan(lambda s, x: rnn_cell(s, x, w), state, rows)
        return state, ys.sum(0)

    zeros = (jnp.zeros(xs.shape[1:], xs.dtype),)
    return jnp.sum(lax.scan(outer, zeros, xs.reshape(-1, 4, *xs.shape[1:]))[1] ** 2)


def of_every_lane(w, xs):
    """A network for every lane."""
    return jnp.sum(jax.vmap(plain("gru"), in_axes=(0, 1))(w, xs))


def one_for_all_lanes(w, xs):
    return jnp.sum(jax.vmap(plain("lstm"), in_axes=(None, 1))(w, xs))


FUNCTIONS = {
    "lstm": (plain("lstm"), weights("lstm"), inputs(4)),
    "lstm, batch 1": (plain("lstm"), weights("lstm"), inputs(1)),
    "lstm, vector": (plain("lstm"), weights("lstm"), inputs()),
    "lstm, reversed": (plain("lstm", reverse=True), weights("lstm"), inputs(4)),
    "gru": (plain("gru"), weights("gru"), inputs(4)),
    "gru, reversed, batch 1": (plain("gru", reverse=True), weights("gru"), inputs(1)),
    "rnn": (plain("rnn"), weights("rnn"), inputs(8)),
    "two scans": (two_scans, weights("lstm", layers=(2,)), inputs(4)),
    "two layers in one scan": (two_layers_in_one_scan, weights("lstm", layers=(2,)), inputs(4)),
    "nested": (nested, weights("rnn"), inputs(8)),
    "a network for every lane": (of_every_lane, weights("gru", layers=(3,)), inputs(3, 2)),
    "one network for all lanes": (one_for_all_lanes, weights("lstm"), inputs(3)),
}


def gradient(function):
    return jax.value_and_grad(function, argnums=(0, 1))


def check(function, arguments, **how):
    """Errors against float64 are at most twice stock's; of what stock happens to hit, a few roundings."""
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), arguments)
        exact = jax.tree.map(np.asarray, jax.tree.leaves(jax.jit(function, compiler_options=QUICK)(*wide)))
    stock = jax.tree.leaves(jax.jit(function)(*arguments))
    with jax_cocktail.options(force="cocktail", **how):
        ours = jax.tree.leaves(jax_cocktail.jit(function)(*arguments))
    for x, y, z in zip(ours, stock, exact, strict=True):
        assert x.dtype == y.dtype
        mine, other = (np.abs(np.float64(v) - z).max(initial=0) for v in (x, y))
        assert mine <= 2 * other + 2 * jnp.finfo(x.dtype).eps * np.abs(z).max(initial=0)


UNITS = [(name, 1) for name in FUNCTIONS] + [
    (name, 2) for name in ("lstm", "gru, reversed, batch 1", "nested")
]


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("name", "units"), UNITS)
def test_gradients_are_as_exact_as_stock(name, units):
    function, *arguments = FUNCTIONS[name]
    check(gradient(function), arguments, units=units)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_narrow_floats_are_rounded_once(name):
    """Stock rounds the sum in every step; ours may not be worse, and is better by far."""
    narrow = jax.tree.map(lambda x: jnp.asarray(x, name), (weights("lstm"), inputs(4)))
    check(gradient(plain("lstm")), narrow)


def divided(function, arguments):
    jaxpr = jax.make_jaxpr(function)(*arguments)
    program = layers(simplify(translate(adapt(jaxpr), "test")))
    after = simplify(distribute(hoist(program)))
    verify(after)
    given = [np.asarray(x) for x in jax.tree.leaves(arguments)]
    for x, y in zip(run(after, given), jax.tree.leaves(jax.jit(function)(*arguments)), strict=True):
        np.testing.assert_allclose(np.float64(x), np.float64(y), rtol=1e-4, atol=1e-4)
    return after


@pytest.mark.parametrize(
    ("name", "loops", "inside"),
    [
        ("lstm", 2, 2),  # forward and backward: a product with the recurrent weights each
        ("lstm, batch 1", 2, 2),
        ("lstm, reversed", 2, 2),
        ("gru", 2, 2),
        ("rnn", 2, 2),
        ("two scans", 4, 4),
        ("two layers in one scan", 4, 4),
        ("one network for all lanes", 2, 2),
    ],
)
def test_no_loop_carries_the_gradient_of_weights(name, loops, inside):
    function, *arguments = FUNCTIONS[name]
    after = divided(gradient(function), arguments)
    found = [s for s in walk(after.entry) if isinstance(s, LoopUTask)]
    assert len(found) == loops
    sizes = {v.shape for v in jax.tree.leaves(arguments[0])} | {(HIDDEN, n * HIDDEN) for n in (1, 3, 4)}
    assert not any(v.type.shape in sizes for loop in found for v in loop.carried)
    dots = [s for loop in found for s in loop.body.body if isinstance(s, UOperator) and s.kind == "dot"]
    assert len(dots) == inside
    assert not any(s.kind == "transpose" for s in walk(after.entry) if isinstance(s, UOperator))


def test_a_batch_of_one_step_stays_in_the_loop():
    """What would have to be kept for the sum is more than the sum: nothing is gained."""
    arguments = (weights("rnn"), inputs(8 * HIDDEN))
    after = divided(jax.grad(plain("rnn")), arguments)
    loops = [s for s in walk(after.entry) if isinstance(s, LoopUTask)]
    assert any(v.type.shape == (HIDDEN, HIDDEN) for loop in loops for v in loop.carried)


def test_counted_by_the_program():
    """A while loop with a counter adds up what its chunks give, as integers exactly."""

    def function(xs, ys, n):
        def step(t, state):
            total, seen = state
            return total + jnp.outer(xs[t], ys[t]) @ jnp.ones((HIDDEN, 1), xs.dtype), seen + xs[t]

        start = jnp.zeros((HIDDEN, 1), xs.dtype), jnp.zeros((HIDDEN,), xs.dtype)
        return lax.fori_loop(0, n, step, start)

    random = np.random.default_rng(2)
    xs, ys = (random.integers(-9, 9, (40, HIDDEN)).astype(np.int32) for _ in range(2))
    for n in (0, 3, 16, 37):
        with jax_cocktail.options(force="cocktail"):
            ours = jax_cocktail.jit(function)(xs, ys, np.int32(n))
        for x, y in zip(ours, jax.jit(function)(xs, ys, np.int32(n)), strict=True):
            np.testing.assert_array_equal(x, y)


def test_second_derivatives():
    function, w, xs = FUNCTIONS["rnn"]
    loss = lambda scale, xs: gradient(partial(_scaled, function, w))(scale, xs)[0]  # noqa: E731
    check(jax.value_and_grad(loss), (np.float32(0.5), xs))


def _scaled(function, w, scale, xs):
    return function(jax.tree.map(lambda v: v * scale, w), xs)
