"""Batch elements that share weights, in slots of a GPU: one takes the slot of another that is done."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_cocktail
from jax_cocktail.device.tuning import ELEMENTS
from jax_cocktail_tools.models import serving
from jax_cocktail_tools.models.model import generator
from tests.cpu.emulated import WAVES, Emulation
from tests.cpu.runner import EAGER

FEW = replace(ELEMENTS, local=0, slots=8, fewest=2, pieces=4)


def run(monkeypatch, function, arguments, fired=True, **how):
    """Compares with stock, and returns what the program says of batch elements."""
    monkeypatch.setattr("jax_cocktail.passes.limits_for", lambda *_: EAGER)
    monkeypatch.setattr("jax_cocktail.passes.ELEMENTS", FEW)
    emulation = Emulation(launches=[], **how).install(monkeypatch)
    ours = jax_cocktail.jit(function, options={"force": "cocktail", "strict": True, "units": 3})
    jax.tree.map(np.testing.assert_array_equal, ours(*arguments), jax.jit(function)(*arguments))
    said = (r for r in emulation.launches[0][0].remarks if r.transform == "batch elements")
    return [remark.text for remark in said if remark.fired == fired]


def requests(count):
    random = generator("serving")
    weights = jax.tree.map(jnp.asarray, serving.weights_of(random, 16, 30))
    tokens = jnp.asarray(random.integers(0, 30, count), jnp.int32)
    lengths = jnp.asarray(np.ceil(random.exponential(4.0, count)), jnp.int32)
    return serving.server(2, 24), (tokens, lengths, weights)


@pytest.mark.parametrize("sanitizer", ["address", pytest.param("thread", marks=pytest.mark.long)])
def test_answers(sanitizer, monkeypatch):
    said = run(monkeypatch, *requests(19), sanitizer=sanitizer)
    assert said[0] == "19 batch elements of a vmapped while loop share 8 slots"
    assert said[1] == "each of 8 batch elements runs its own loop on a block"


@pytest.mark.long
def test_waves_of_64(monkeypatch):
    run(monkeypatch, *requests(16), spec=WAVES[64], threads=128)


def test_few_requests_stay_together(monkeypatch):
    said = run(monkeypatch, *requests(7), fired=False)
    assert said[0].startswith("7 batch elements share weights: slots are for 8 to ")
