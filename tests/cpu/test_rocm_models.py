"""The benchmark models at small sizes on the ROCm target, emulated at both wave sizes, against `jax.jit`."""

from __future__ import annotations

from itertools import product

import jax
import pytest

import jax_cocktail
from jax_cocktail_tools.models import MODELS, largest_difference
from tests.case import QUICK
from tests.cpu.emulated import KERNELS, WAVES, Emulation
from tests.cpu.runner import EAGER


@pytest.mark.parametrize("wave", WAVES)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_model(name, wave, monkeypatch):
    """Products take matrix units, where the default precision lets them."""
    model = MODELS[name]
    function, arguments = model.make(model.batches[-1], small=True)
    stock = jax.jit(function, compiler_options=QUICK)(*arguments)
    monkeypatch.setattr("jax_cocktail.passes.limits_for", lambda *_: EAGER)
    emulation = Emulation(launches=[], threads=128, spec=WAVES[wave]).install(monkeypatch)
    ours = jax_cocktail.jit(function, options={"force": "cocktail", "strict": True, "units": 3})
    for emulation.kernel in KERNELS:
        assert largest_difference(ours(*arguments), stock) <= model.tolerance
    assert max(emitted.plan.most_units for emitted, _, _ in emulation.launches) > 1


def sanitized():
    """Every model at both wave sizes under both sanitizers. One case of each model is not long, in turn."""
    ways = list(product(WAVES, ("thread", "address")))
    usual = {(name, *ways[number % len(ways)]) for number, name in enumerate(sorted(MODELS))}
    for case in product(sorted(MODELS), WAVES, ("thread", "address")):
        yield pytest.param(*case, marks=[] if case in usual else [pytest.mark.long])


@pytest.mark.one_jax
@pytest.mark.parametrize(("name", "wave", "sanitizer"), list(sanitized()))
def test_sanitized(name, wave, sanitizer, monkeypatch):
    """No race, and no access outside of an array: a report of the sanitizer ends the test."""
    function, arguments = MODELS[name].make(MODELS[name].batches[-1], small=True)
    monkeypatch.setattr("jax_cocktail.passes.limits_for", lambda *_: EAGER)
    emulation = Emulation(launches=[], threads=128, spec=WAVES[wave], sanitizer=sanitizer).install(
        monkeypatch
    )
    options = {"force": "cocktail", "strict": True, "units": 2}
    jax.block_until_ready(jax_cocktail.jit(function, options=options)(*arguments))
    assert emulation.launches
