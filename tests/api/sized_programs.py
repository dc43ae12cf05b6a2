"""Functions of arguments that may have many sizes, with makers of such arguments."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.api.one_binary import HIDDEN, lstm

LENGTH = 11


def array(*shape, dtype=jnp.float32):
    values = np.random.default_rng(len(shape) + sum(shape)).normal(size=shape) * 0.4
    return jnp.asarray(values * 50 if dtype == jnp.int32 else values, dtype)


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
