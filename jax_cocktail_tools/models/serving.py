"""Serving: a decoder that answers requests of unlike length, each with caches of keys and values of its own.

One request is a `while_loop` that ends with its answer. `jax.vmap` makes a batch of it: stock XLA then runs
all requests until the longest answer is complete. Continuous batching (Orca: Yu et al., OSDI'22) keeps a few
slots instead, and a new request takes the slot of one that is complete.

Lengths of answers are exponential with a mean of 55 tokens, and at most 2,000. A step attends to those
blocks of the caches that are filled, with a running maximum and sum.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_cocktail_tools.models.model import Instance, Model, generator, normal

MEAN, BLOCK = 55, 64  # tokens of an answer; rows of the caches that a trip of the attention reads

Weights = dict[str, Any]
State = tuple[Any, ...]


def attention(query: Any, keys: Any, values: Any, count: Any) -> Any:
    """Attention of ``query``, (heads, size), to the first ``count`` rows of caches, (rows, heads, size). The
    number of rows is at most `BLOCK`, or a multiple of it."""
    heads, size = query.shape
    block = min(BLOCK, keys.shape[0])

    def step(state: State) -> State:
        start, largest, total, mixed = state
        part = lax.dynamic_slice_in_dim(keys, start, block)
        scores = jnp.einsum("hd,bhd->bh", query, part) * size**-0.5
        scores = jnp.where((start + jnp.arange(block) < count)[:, None], scores, -jnp.inf)
        new = jnp.maximum(largest, scores.max(0))
        chosen, kept = jnp.exp(scores - new), jnp.exp(largest - new)
        part = lax.dynamic_slice_in_dim(values, start, block)
        mixed = mixed * kept[:, None] + jnp.einsum("bh,bhd->hd", chosen, part)
        return start + block, new, total * kept + chosen.sum(0), mixed

    nothing = jnp.int32(0), jnp.full(heads, -jnp.inf), jnp.zeros(heads), jnp.zeros((heads, size))
    _, _, total, mixed = lax.while_loop(lambda state: state[0] < count, step, nothing)
    return mixed / total[:, None]


def following(token: Any, at: Any, keys: Any, values: Any, weights: Weights) -> tuple[Any, Any, Any]:
    """The token after ``token``, and the caches with its rows at position ``at``."""
    heads, size = keys.shape[1:]
    x = weights["table"][token]
    query, key, value = (x @ weights[name] for name in ("query", "key", "value"))
    keys = lax.dynamic_update_index_in_dim(keys, key.reshape(heads, size), at, 0)
    values = lax.dynamic_update_index_in_dim(values, value.reshape(heads, size), at, 0)
    x = x + attention(query.reshape(heads, size), keys, values, at + 1).reshape(-1) @ weights["out"]
    x = x + jax.nn.relu(x @ weights["up"]) @ weights["down"]
    return jnp.argmax(x @ weights["words"]).astype(token.dtype), keys, values


def cache_rows(most: int) -> int:
    """Rows of caches for answers of up to so many tokens."""
    return most if most <= BLOCK else -(-most // BLOCK) * BLOCK


def answer(token: Any, length: Any, weights: Weights, heads: int, most: int) -> Any:
    """The ``length`` tokens that follow ``token``, in an array of ``most``, of one request."""

    def step(state: State) -> State:
        at, token, tokens, keys, values = state
        token, keys, values = following(token, at, keys, values, weights)
        return at + 1, token, lax.dynamic_update_index_in_dim(tokens, token, at, 0), keys, values

    cache = jnp.zeros((cache_rows(most), heads, weights["table"].shape[1] // heads))
    state = jnp.int32(0), token, jnp.zeros(most, jnp.int32), cache, cache
    return lax.while_loop(lambda state: state[0] < length, step, state)[2]


def server(heads: int, most: int) -> Any:
    """A function that answers a batch of requests."""

    def serve(tokens: Any, lengths: Any, weights: Weights) -> Any:
        """``tokens`` and ``lengths`` are (requests,) int32; the answers are (requests, most)."""
        return jax.vmap(lambda token, length: answer(token, length, weights, heads, most))(tokens, lengths)

    return serve


def requests(random: np.random.Generator, count: int, words: int, most: int) -> tuple[Any, Any]:
    """The first tokens of so many requests, and the lengths of their answers."""
    lengths = np.clip(np.ceil(random.exponential(MEAN, count)), 1, most)
    return random.integers(0, words, count).astype(np.int32), lengths.astype(np.int32)


def weights_of(random: np.random.Generator, width: int, words: int) -> Weights:
    """Weights of one layer."""
    square = ("query", "key", "value", "out")
    made = {name: normal(random, width, width, scale=width**-0.5) for name in square}
    made["up"] = normal(random, width, 4 * width, scale=width**-0.5)
    made["down"] = normal(random, 4 * width, width, scale=width**-0.5 / 2)
    made["table"] = normal(random, words, width)
    return made | {"words": normal(random, width, words, scale=width**-0.5)}


def build(batch: int, small: bool) -> Instance:
    width, heads, words, most = (16, 2, 30, 80) if small else (256, 4, 1000, 2000)
    random = generator("serving")
    weights = jax.tree.map(jnp.asarray, weights_of(random, width, words))
    tokens, lengths = requests(random, batch, words, most)
    if small:
        lengths = np.minimum(lengths, 4 + lengths % 13)
    return server(heads, most), (jnp.asarray(tokens), jnp.asarray(lengths), weights)


MODEL = Model(
    "serving", "requests of 55 tokens on average, 4 heads x 64: vmap of while_loop", (64, 256), 2e-5, build
)
