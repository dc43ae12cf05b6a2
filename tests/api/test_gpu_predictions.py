"""The benchmark models, planned for an H200 with no device at hand: parts, barriers, and predicted times.

The times to compare with are emulated for an H100 (docs/gpu.md) where they can be, else estimates from public
measurements of H100 and H200. `benchmarks.gpu.fit` compares the model with plans that were measured, and more
closely.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass

import jax
import pytest

from benchmarks.gpu.roofline import predict
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.cost.price import our_price, stock_price
from jax_cocktail.device.nvidia import H200
from jax_cocktail.lowering.edge.capture import capture
from jax_cocktail.primitives import translate
from jax_cocktail.schedule.policy import candidates
from jax_cocktail.utask.ir import UProgram
from jax_cocktail_tools.models import MODELS
from tests.null.gpus import OnDevice, plan_for

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it

FACTOR = 3.0
PLANNING_SECONDS = 20.0  # of one candidate; two where nothing else runs


AROUND = 2  # crossings before and after the loop


@dataclass(frozen=True)
class Expected:
    """Microseconds of a call, ours and stock XLA's default; ours None where the plan is known to be another
    one than the estimate's. `parts`, `barriers`: of our best plan."""

    stock: float
    ours: float | None
    parts: int
    barriers: int


# In the model, seq2seq takes all of its 50 steps, and rae visits all 127 nodes of its arrays.
EXPECTED = {
    ("lstm", 1): Expected(5500, 164, 128, 73),
    ("lstm", 64): Expected(9000, 564, 128, 73),
    ("nasrnn", 1): Expected(11000, 1840, 128, 1000),
    ("nasrnn", 64): Expected(13000, 2890, 128, 1000),
    ("attention", 1): Expected(525, 35, 12, 0),
    ("attention", 64): Expected(1150, 99, 132, 0),  # heads and batch are cut together, for one turn of all
    ("seq2seq", 1): Expected(2000, 234, 128, 98),
    ("seq2seq", 64): Expected(2375, 434, 132, 148),
    ("blockdrop", 1): Expected(275, 59, 16, 17),  # in one cluster
    ("blockdrop", 64): Expected(475, None, 64, 0),
    ("skipnet", 1): Expected(2250, None, 128, 74),
    ("rae", 1): Expected(2780, 175, 16, 127),  # in one cluster
}


@functools.cache
def program_of(name: str, batch: int) -> UProgram:
    function, arguments = MODELS[name].make(batch)
    captured = capture(jax.make_jaxpr(function)(*arguments))
    (region,) = captured.regions
    return translate(region.program, name, tuple(range(len(region.operands))))


@functools.cache
def best_of(name: str, batch: int) -> tuple[OnDevice, float]:
    """The cheapest plan, and the seconds that the longest planning took."""
    program, longest, plans = program_of(name, batch), 0.0, []
    for candidate in candidates([program], H200.units, machine_of(H200)):
        start = time.process_time()
        plans.append(plan_for(program, candidate))
        longest = max(longest, time.process_time() - start)
    return min(
        plans, key=lambda p: our_price(p.program, p.mesh.units, machine_of(H200), p.plan).seconds
    ), longest


@pytest.mark.parametrize(("name", "batch"), EXPECTED)
def test_stock_is_priced_about_right(name, batch):
    found = stock_price(program_of(name, batch), 1, machine_of(H200)).seconds * 1e6
    assert EXPECTED[name, batch].stock / FACTOR <= found <= EXPECTED[name, batch].stock * FACTOR


@pytest.mark.parametrize(("name", "batch"), EXPECTED)
def test_ours_is_planned_and_predicted_about_right(name, batch):
    expected, (planned, longest) = EXPECTED[name, batch], best_of(name, batch)
    found = predict(planned, H200)
    assert max(planned.parts) == expected.parts
    assert expected.parts <= H200.units or not expected.barriers
    assert found.barriers <= expected.barriers + AROUND
    assert longest < PLANNING_SECONDS
    if expected.ours is not None:
        assert expected.ours / FACTOR <= found.seconds * 1e6 <= expected.ours * FACTOR


def test_every_model_is_covered():
    assert {(name, batch) for name, model in MODELS.items() for batch in model.batches} == set(EXPECTED)
