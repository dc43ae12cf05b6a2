"""Stored decisions that nobody took: whatever a file says, it is either a decision or as good as absent."""

from __future__ import annotations

import json

import jax.numpy as jnp
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.lowering.choice import decisions
from jax_cocktail.lowering.choice.decisions import Decision, Plan
from jax_cocktail.memory import MEMORY
from jax_cocktail.records import sealed
from jax_cocktail.report import Trial
from jax_cocktail.utask.candidate import Candidate

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it

KEY = "0" * 64
NAN, INFINITE = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A cache of its own for every test."""
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "cache"))
    MEMORY.decisions.clear()
    return tmp_path / "cache" / "decisions"


def edit(folder, *way):
    """Sets one value of the stored decision: the keys that lead to it, and the value. It is sealed again."""
    (path,) = folder.glob("*.json")
    record = json.loads(path.read_text())
    facts = inner = record["facts"]
    *keys, last, value = way
    for key in keys:
        inner = inner[key]
    inner[last] = value
    path.write_text(json.dumps({**record, **sealed(facts)}))
    MEMORY.decisions.clear()


@pytest.mark.parametrize(
    "way",
    [
        *(("plan", "candidate", "units", units) for units in (2.5, NAN, "2", True, 0, -1)),
        *(("plan", "candidate", name, [1]) for name in ("distribute", "pipeline", "cluster")),
        ("plan", "candidate", "extra", 1),
        *(("plan", "candidate", "threads", value) for value in (True, "64", -64)),
        ("plan", "candidate", []),
        *(("plan", "skip", skip) for skip in ([0.5], 7, [[0]])),
        *(("trials", 0, "seconds", seconds) for seconds in (NAN, -1.0, 10**400, "1", None)),
        ("thorough", 1),
        ("why", None),
        ("kept", {}),
        ("others", INFINITE),
        ("choice", "rm -rf"),
    ],
)
def test_values_of_other_types_are_not_believed(folder, way):
    decision = Decision("stock", Plan(Candidate(4)), (Trial("a", 1.0),))
    decisions.store(KEY, decision)
    MEMORY.decisions.clear()
    assert decisions.load(KEY) == decision
    edit(folder, *way)
    assert decisions.load(KEY) is None


@pytest.mark.parametrize("change", [{"format": 5}, {"sha256": "0" * 64}, {"facts": []}, {"facts": None}])
def test_records_of_other_versions_are_not_believed(folder, change):
    decisions.store(KEY, Decision("stock"))
    (path,) = folder.glob("*.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    MEMORY.decisions.clear()
    assert decisions.load(KEY) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("candidate", {"units": units}) for units in (10**9, 10**18)),
        ("candidate", {"units": 2, "cluster": True}),
        ("candidate", {"units": 2, "threads": 128}),  # no block of threads is a unit here
        *(("skip", skip) for skip in ([0], [99], [-1])),
    ],
)
def test_plans_that_no_survey_finds_are_not_believed(folder, recwarn, field, value):
    """At once, and without a warning: the decision is taken again."""

    def function(x):
        return lax.fori_loop(0, 3, lambda i, a: jnp.sin(a) * x, x)

    def decide():
        return jax_cocktail.explain(jax_cocktail.jit(function, options={"units": 2}))(jnp.ones(4))

    first = decide()
    assert "measured now" in first.why and "measured before" in decide().why
    edit(folder, "choice", "cocktail")
    edit(folder, "plan", field, value)
    assert "measured now" in decide().why and not recwarn.list
