"""One binary serves any size of a batch or cache: what a second size shows to vary is a launch parameter."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.memory import MEMORY

HIDDEN, LENGTH = 24, 11
SIZES = (5, 40, 2, 3, 31, 32, 33, 64, 131, 300)  # the first two are what a family learns from
MOST = 3  # programs: one for the first size, one for few and one for many


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "cache"))
    MEMORY.families.clear()
    MEMORY.general.clear()
    monkeypatch.setattr(MEMORY.counts, "compiled", 0)


def array(*shape, dtype=jnp.float32):
    values = np.random.default_rng(len(shape) + sum(shape)).normal(size=shape) * 0.4
    return jnp.asarray(values * 50 if dtype == jnp.int32 else values, dtype)


def lstm(w, u, b, xs):
    def step(carry, x):
        h, c = carry
        i, f, g, o = jnp.split(x @ w + h @ u + b, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((xs.shape[1], HIDDEN))
    return lax.scan(step, (zero, zero), xs)


def lstm_arguments(n):
    w = array(HIDDEN, 4 * HIDDEN)
    return w, w * 1.1, array(4 * HIDDEN), array(LENGTH, n, HIDDEN)


def collatz(n):
    def step(state):
        n, steps = state
        return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1

    return lax.while_loop(lambda state: state[0] != 1, step, (n, 0))[1]


def decoder(embedding, query, key, value, out, token):
    """Greedy decoding over a cache of the keys and values so far."""
    cache = jnp.zeros((token.shape[0], LENGTH, HIDDEN))

    def step(carry, i):
        keys, values, token = carry
        x = embedding[token]
        keys = lax.dynamic_update_slice(keys, (x @ key)[:, None], (0, i, 0))
        values = lax.dynamic_update_slice(values, (x @ value)[:, None], (0, i, 0))
        scores = jnp.einsum("bd,btd->bt", x @ query, keys)
        scores = jnp.where(jnp.arange(LENGTH) <= i, scores, -1e9)
        mixed = jnp.einsum("bt,btd->bd", jax.nn.softmax(scores), values)
        token = jnp.argmax(mixed @ out @ embedding.T, -1)
        return (keys, values, token), token

    return lax.scan(step, (cache, cache, token), jnp.arange(LENGTH))[1]


def attending(cache, queries):
    """A scan over queries that attend to a cache of any length."""

    def step(state, query):
        mixed = jax.nn.softmax(cache @ (query + state)) @ cache
        return state * 0.5 + mixed, mixed

    return lax.scan(step, jnp.zeros(HIDDEN), queries)


def normalised(w, xs):
    """Batch normalisation in a loop: means, variances and the largest over the batch."""

    def step(h, x):
        h = h @ w + x
        h = (h - h.mean(0)) / (h.std(0) + 0.5)
        return jnp.tanh(h), (h.max(0), jnp.argmax(h, 0))

    return lax.scan(step, xs[0] * 0, xs)


def per_element_branch(x, w):
    def one(x):
        return lax.cond(x.sum() > 0, lambda: jnp.tanh(x @ w), lambda: x * 0.5)

    return lax.fori_loop(0, 5, lambda i, h: jax.vmap(one)(h), x)


def ranked(xs):
    """Sorting, cumulative sums, positions and reversal along the batch."""

    def step(c, x):
        s = jnp.sort(x + c)
        return jnp.tanh(jnp.cumsum(s)[::-1]) + jnp.arange(x.shape[0]) * 0.01, (s[-1], s[0], jnp.argmin(c))

    return lax.scan(step, xs[0] * 0, xs)


def image(kernel, x):
    def step(c, _):
        c = lax.conv_general_dilated(c, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jnp.tanh(c), c.mean((1, 2))

    return lax.scan(step, x, None, length=3)


def joined(x, y):
    def step(_, c):
        return jnp.tanh(jnp.concatenate([c[: x.shape[0]] + y, c[x.shape[0] :] * 0.5]))

    return lax.fori_loop(0, 4, step, jnp.concatenate([x, y]))


PROGRAMS = {
    "lstm": (lstm, lstm_arguments),
    "loss": (jax.grad(lambda *a: jnp.mean(lstm(*a)[1][-1] ** 2), (0, 1, 2)), lstm_arguments),
    "collatz": (jax.vmap(collatz), lambda n: (jnp.arange(1, n + 1),)),
    "decoder": (decoder, lambda n: (array(20, HIDDEN), *[array(HIDDEN, HIDDEN)] * 4, jnp.arange(n) % 20)),
    "cache": (attending, lambda n: (array(n, HIDDEN), array(LENGTH, HIDDEN))),
    "means": (normalised, lambda n: (array(HIDDEN, HIDDEN), array(LENGTH, n, HIDDEN))),
    "branch": (per_element_branch, lambda n: (array(n, HIDDEN), array(HIDDEN, HIDDEN))),
    "ranked": (ranked, lambda n: (array(LENGTH, n),)),
}
OWN = {  # the geometry of convolutions is in the text, and two lengths that join are a third one
    "image": (image, lambda n: (array(3, 3, 2, 2), array(n, 6, 5, 2))),
    "joined": (joined, lambda n: (array(n, HIDDEN), array(n, HIDDEN))),
}


def agree(ours, stock):
    for mine, theirs in zip(jax.tree.leaves(ours), jax.tree.leaves(stock), strict=True):
        scale = float(np.max(np.abs(theirs), initial=1))
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-5 * scale)


def called(function, arguments, units=1, **options):
    options = {"force": "cocktail", "units": units, "strict": True, **options}
    ours = jax_cocktail.jit(function, options=options)(*arguments)
    agree(ours, jax.jit(function)(*arguments))


@pytest.mark.all_candidates
@pytest.mark.parametrize("units", [1, 2])
@pytest.mark.parametrize("name", PROGRAMS)
def test_any_size(name, units):
    function, make = PROGRAMS[name]
    for size in SIZES:
        called(function, make(size), units)
    assert jax_cocktail.cache_info().compiled <= MOST
