"""The benchmark models at small sizes on the CUDA target, emulated, against `jax.jit` on the host."""

from __future__ import annotations

import jax
import pytest

import jax_cocktail
from jax_cocktail.device.tuning import BLOCK
from jax_cocktail_tools.models import MODELS, largest_difference
from tests.case import QUICK
from tests.cpu.emulated import Emulation
from tests.cpu.runner import EAGER

KERNELS = ("ck_resident", "ck_portable")


def cases():
    """Each model at its batches; another version of jax makes the same of other batches and fewer units."""
    for name, model in sorted(MODELS.items()):
        for batch, units in sorted({(model.batches[0], 1), (model.batches[0], 3), (model.batches[-1], 3)}):
            whole = (batch, units) == (model.batches[-1], 3)
            yield pytest.param(name, batch, units, marks=[] if whole else [pytest.mark.one_jax])


@pytest.mark.parametrize(("name", "batch", "units"), list(cases()))
def test_model(name, batch, units, monkeypatch):
    model = MODELS[name]
    function, arguments = model.make(batch, small=True)
    stock = jax.jit(function, compiler_options=QUICK)(*arguments)
    monkeypatch.setattr("jax_cocktail.passes.limits_for", lambda *_: EAGER)
    emulation = Emulation(launches=[]).install(monkeypatch)
    options = {"force": "cocktail", "strict": True, "units": units}
    ours = jax_cocktail.jit(function, options=options)
    for emulation.kernel in KERNELS:
        with jax.default_matmul_precision("highest"):
            found = ours(*arguments)
        assert largest_difference(found, stock) <= model.tolerance
    grids = {emitted.plan.most_units for emitted, _, _ in emulation.launches}
    assert (max(grids) > 1) == (units > 1)


@pytest.mark.one_jax
@pytest.mark.parametrize("name", ["lstm", "blockdrop"])
def test_model_as_it_is_shipped(name, monkeypatch):
    """Blocks of the usual size, and products rounded where JAX's default precision lets them be."""
    model = MODELS[name]
    function, arguments = model.make(model.batches[-1], small=True)
    stock = jax.jit(function)(*arguments)
    monkeypatch.setattr("jax_cocktail.passes.limits_for", lambda *_: EAGER)
    emulation = Emulation(launches=[], threads=BLOCK.threads).install(monkeypatch)
    options = {"force": "cocktail", "strict": True, "units": 2}
    found = jax_cocktail.jit(function, options=options)(*arguments)
    assert largest_difference(found, stock) <= 2e-3
    assert any("CK_TF32" in emitted.source for emitted, _, _ in emulation.launches)
