"""The benchmark models against stock XLA on the same device and float64."""

from __future__ import annotations

import jax
import pytest

from jax_cocktail_tools.models import MODELS
from tests.gpu.card import Card, check, check_close, in_float64

CASES = [(name, batch) for name, model in MODELS.items() for batch in model.batches]
QUICK = {("rae", 1)}  # to emulate
SMALL = [pytest.param(*case, marks=pytest.mark.emulated if case in QUICK else ()) for case in CASES]


@pytest.mark.parametrize(("name", "batch"), SMALL)
def test_small(card: Card, eager, name, batch):
    function, arguments = MODELS[name].make(batch, small=True)
    check(card, function, *arguments, units=min(card.most_units, 16))


@pytest.mark.parametrize(("name", "batch"), CASES)
def test_full_size(gpu: Card, name, batch):
    function, arguments = MODELS[name].make(batch)
    check(gpu, function, *arguments)


@pytest.mark.parametrize(("name", "batch"), [("lstm", 64), ("nasrnn", 1)])
def test_default_precision(gpu: Card, name, batch):
    """Products in whatever precision stock takes by default: no further from the truth than stock."""
    function, arguments = MODELS[name].make(batch)
    stock, ours = (jit(function)(*arguments) for jit in (jax.jit, gpu.jit))
    check_close(ours, stock, in_float64(function, arguments), times=4.0)
