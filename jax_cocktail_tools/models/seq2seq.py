"""Seq2seq: greedy LSTM decoding until all sentences have ended, with a data-dependent trip count.

As in COCKTAILER's benchmark, a mask adds a large number at the reference token, so sentence lengths follow
the data although the weights are random. Row ``i`` has ``min(max(i, 10), 50)`` tokens, its end marker
included.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_cocktail_tools.models.lstm import cell, cell_weights
from jax_cocktail_tools.models.model import Instance, Model, generator, normal

START, END = 1, 0


def seq2seq(
    h: Any, c: Any, mask: Any, embedding: Any, weights: Any, w_out: Any, b_out: Any
) -> tuple[Any, Any]:
    """``h`` and ``c`` (batch, hidden) come from an encoder; ``mask`` is (longest, batch, vocabulary).

    Returns the tokens (longest, batch) and the number of steps taken.
    """
    longest, batch, _ = mask.shape

    def unfinished(state: Any) -> Any:
        step, token, *_ = state
        return (jnp.max(token) > END) & (step < longest)

    def decode(state: Any) -> Any:
        step, token, h, c, tokens = state
        h, c = cell(embedding[token], h, c, weights)
        logits = h @ w_out + b_out + mask[step]
        token = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        return step + 1, token, h, c, tokens.at[step].set(token)

    first = jnp.full((batch,), START, jnp.int32)
    state = (jnp.int32(0), first, h, c, jnp.zeros((longest, batch), jnp.int32))
    step, _, _, _, tokens = lax.while_loop(unfinished, decode, state)
    return tokens, step


def reference_tokens(random: np.random.Generator, batch: int, longest: int, vocabulary: int) -> np.ndarray:
    """The tokens, (longest, batch). End markers fill each row after its last token."""
    lengths = np.clip(np.arange(batch), longest // 5, longest)
    tokens = random.integers(2, vocabulary, size=(longest, batch))
    tokens[np.arange(longest)[:, None] >= lengths - 1] = END
    return tokens


def build(batch: int, small: bool) -> Instance:
    vocabulary, hidden, longest = (29, 16, 20) if small else (3797, 256, 50)
    random = generator("seq2seq")
    tokens = reference_tokens(random, batch, longest, vocabulary)
    mask = np.zeros((longest, batch, vocabulary), np.float32)
    np.put_along_axis(mask, tokens[:, :, None], np.float32(1e6), axis=2)
    state = [jnp.asarray(np.tanh(normal(random, batch, hidden))) for _ in range(2)]
    return seq2seq, (
        *state,
        jnp.asarray(mask),
        jnp.asarray(normal(random, vocabulary, hidden)),
        cell_weights(random, hidden, hidden),
        jnp.asarray(normal(random, hidden, vocabulary, scale=hidden**-0.5)),
        jnp.asarray(normal(random, vocabulary, scale=0.1)),
    )


MODEL = Model("seq2seq", "greedy LSTM decoder, 3797 words, up to 50 steps: while_loop", (1, 64), 1e-5, build)
