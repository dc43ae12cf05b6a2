"""Memory of models, beside the largest set of their buffers that are live at the same time."""

from __future__ import annotations

import pytest

import jax_cocktail
from benchmarks.workspace import GOAL, rows
from jax_cocktail_tools.models import MODELS

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it


@pytest.fixture(scope="module")
def found():
    """Small models and their gradients, all candidates for a CPU and a GPU."""
    return [row for some in rows(["lstm", "nasrnn", "skipnet"], small=True) for row in some]


def test_models_are_near_the_lower_bound(found):
    assert {row.target for row in found} == {"cpu", "gpu"}
    assert {"lstm/1", "lstm_gradient/64", "nasrnn_gradient/1", "skipnet/1"} <= {row.program for row in found}
    for row in found:
        assert 1 <= row.usage.bound <= row.usage.peak <= row.usage.total, row
    assert [row for row in found if row.above > GOAL] == []


def test_blocks_of_a_network_share_memory(found):
    """Sides of its branches, and one block after the other."""
    alone = [
        row
        for row in found
        if (row.program, row.target) == ("skipnet/1", "cpu") and row.candidate.split()[0] == "units=1"
    ]
    assert {row.space for row in alone} == {"workspace"}
    assert all(row.usage.total > 3.9 * row.usage.peak for row in alone)


def test_explain_tells_it():
    function, arguments = MODELS["skipnet"].make(small=True)
    jitted = jax_cocktail.jit(function, options={"force": "cocktail", "units": 1})
    (region,) = jax_cocktail.explain(jitted)(*arguments).captured
    (memory,) = region.memory
    assert (memory.space, memory.bytes) == ("workspace", region.workspace_bytes)
    assert memory.bound_bytes <= memory.bytes < memory.separate_bytes
