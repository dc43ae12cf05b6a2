"""The model of a server: every way to answer requests of unlike length gives the same tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import jax_cocktail
from benchmarks.serving import HostLoop, measure, printed
from jax_cocktail_tools.models import serving
from jax_cocktail_tools.models.model import generator


def test_answers_are_those_of_stock_and_of_a_host_loop():
    function, (tokens, lengths, weights) = serving.MODEL.make(64, small=True)
    stock = jax.jit(function)(tokens, lengths, weights)
    ours = jax_cocktail.jit(function, options={"force": "cocktail", "strict": True})
    np.testing.assert_array_equal(ours(tokens, lengths, weights), stock)
    (captured,) = jax_cocktail.explain(ours)(tokens, lengths, weights).captured
    assert "share 8 slots" in str(captured.remarks[0])
    host = HostLoop(weights, 2, stock.shape[1], 8)
    np.testing.assert_array_equal(host(np.asarray(tokens), np.asarray(lengths)), stock)


def test_attention_is_that_over_the_whole_cache():
    random = np.random.default_rng(0)
    query, keys, values = (random.normal(size=n) for n in ((2, 8), (192, 2, 8), (192, 2, 8)))
    for count in (1, 63, 64, 65, 192):
        scores = np.einsum("hd,bhd->bh", query, keys[:count]) / np.sqrt(8)
        weights = np.exp(scores - scores.max(0))
        expected = np.einsum("bh,bhd->hd", weights / weights.sum(0), values[:count])
        found = serving.attention(*map(jnp.float32, (query, keys, values)), count)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_lengths():
    random = generator("lengths")
    _, lengths = serving.requests(random, 20_000, 10, 300)
    assert lengths.min() == 1 and lengths.max() == 300
    assert 54 < np.minimum(random.exponential(serving.MEAN, 10**6), 300).mean() < 56
    assert 54 < lengths.mean() < 57


def test_the_table():
    size = {"width": 16, "heads": 2, "words": 20, "most": 40}
    found = measure(12, (4,), True, 0.1, size)
    assert set(found["seconds"]) == {"ours", "stock", "host loop, 4 slots"}
    assert "the best host loop / ours" in printed(found)
