"""Loops that stock XLA compiles to one kernel: its compiler says so where nothing is measured."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.lowering import stock_xla

UNMEASURED = {"profile": "off"}
SMALL = jnp.ones(8)


def loop(body):
    return jax_cocktail.jit(lambda x: lax.fori_loop(0, 30, lambda i, y: body(y), x), options=UNMEASURED)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))


@pytest.fixture
def asked(monkeypatch):
    """The regions that XLA was asked about."""
    regions, real = [], stock_xla.stock_module

    def module(flat, region):
        regions.append(region)
        return real(flat, region)

    monkeypatch.setattr(stock_xla, "stock_module", module)
    return regions


@pytest.mark.parametrize("body", [jnp.sin, lambda x: jnp.sort(x) + 1], ids=["element-wise", "sort"])
def test_the_model_knows_what_xla_says(asked, body):
    """XLA puts no sort into such a kernel, in any version."""
    wrapped = loop(body)
    text = jax.jit(wrapped.__wrapped__).lower(SMALL).compile().as_text()
    one = 'xla_cpu_small_call="true"' in text
    report = jax_cocktail.explain(wrapped)(SMALL)
    assert one == (body is jnp.sin) and len(asked) == 1
    assert report.choice == ("stock" if one else "cocktail")
    assert report.why.endswith("under stock XLA, which compiles loops to one kernel") == one


def test_the_answer_is_kept(asked):
    wrapped = loop(jnp.sin)
    for _ in range(3):
        assert jax_cocktail.explain(wrapped)(SMALL).choice == "stock"
    assert len(asked) == 1
    jax_cocktail.clear_cache()
    jax_cocktail.explain(wrapped)(SMALL)
    assert len(asked) == 2


def test_nobody_asks_where_it_changes_nothing(asked):
    """Stock XLA is better anyway; ours is better all the same; there is no loop; the choice is made."""
    x = jnp.ones((256, 256))
    jax_cocktail.explain(loop(lambda y: y @ y))(x)
    jax_cocktail.explain(loop(lambda y: y @ x))(jnp.ones(256))
    branch = jax_cocktail.jit(lambda x: lax.cond(x[0] > 0, jnp.sin, jnp.cos, x), options=UNMEASURED)
    jax_cocktail.explain(branch)(SMALL)
    for force in ("cocktail", "stock"):
        forced = jax_cocktail.jit(loop(jnp.sin).__wrapped__, options={"force": force})
        jax_cocktail.explain(forced)(SMALL)
    assert asked == []


def test_under_an_outer_jit():
    """Where nothing can be measured, a small loop stays with stock XLA, and one with a sort is ours."""
    for body, ours in ((jnp.sin, False), (lambda y: jnp.sort(y) + 1, True)):
        jitted = jax_cocktail.jit(lambda x, body=body: lax.fori_loop(0, 30, lambda i, y: body(y), x))
        assert ("jax_cocktail_cpu" in jax.jit(jitted).lower(SMALL).as_text()) == ours
