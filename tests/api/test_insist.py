"""The plan of whoever forces ours where it cannot win."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.cost.price import Comparison, Price
from jax_cocktail.lowering.choice import survey
from jax_cocktail.memory import MEMORY


def heavy(x: Any, w: Any) -> Any:
    return lax.fori_loop(0, 3, lambda _, a: jnp.tanh(a @ w), x)


@pytest.mark.all_candidates
@pytest.mark.parametrize("force", ("auto", "cocktail"))
def test_all_cores_are_planned_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, force: str) -> None:
    """A survey ends with the plan for one core if no number of them can win."""
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))  # nobody has decided
    alone, shared, stock = (Price(s, s, s, s) for s in (2.0, 1.2, 1.0))
    assert Comparison(alone * 0.5, stock).hopeless()
    asked = list[int]()

    def priced(program: Any, units: int, *_: Any) -> Price:
        asked.append(units)
        return alone if units == 1 else shared

    MEMORY.prepared.clear()
    MEMORY.decisions.clear()
    monkeypatch.setattr(survey, "our_price", priced)
    monkeypatch.setattr(survey, "stock_price", lambda *_: stock)
    options = {"force": force, "units": 2, "compile": "now", "plans": "fresh"}
    x, w = jnp.ones((64, 64)), jnp.full((64, 64), 1 / 64)
    report = jax_cocktail.explain(jax_cocktail.jit(heavy, options=options))(x, w)
    assert report.choice == ("stock" if force == "auto" else "cocktail")
    assert (2 in asked) == (force == "cocktail")
    assert ("2 units" in str(report)) == (force == "cocktail")
