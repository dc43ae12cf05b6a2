"""Loops that stock XLA compiles to one kernel: its compiler says so where nothing is measured."""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.cost.hlo import Module
from jax_cocktail.errors import StalePlanError
from jax_cocktail.lowering.choice import stock_xla
from jax_cocktail.memory import MEMORY
from tests.process import python

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it

UNMEASURED = {"profile": "off", "plans": "cached"}
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

    def module(flat, region, options):
        regions.append(region)
        return real(flat, region, options)

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
    MEMORY.plans["stock"].clear()  # as in another process
    assert jax_cocktail.explain(wrapped)(SMALL).choice == "stock" and len(asked) == 1
    jax_cocktail.clear_cache()
    jax_cocktail.explain(wrapped)(SMALL)
    assert len(asked) == 2


@pytest.mark.parametrize("plans, times", [("fresh", 2), ("checked", 3)])
def test_the_option_plans(asked, monkeypatch, plans, times):
    """XLA is asked at every capture if nothing known counts, and once more if it is to be checked."""
    function = loop(jnp.sin).__wrapped__
    for _ in range(2):
        jax_cocktail.explain(jax_cocktail.jit(function, options={**UNMEASURED, "plans": plans}))(SMALL)
    assert len(asked) == times
    if plans == "checked":
        monkeypatch.setattr(stock_xla, "stock_module", lambda *_: Module(""))
        with pytest.raises(StalePlanError, match="the plan cache says StockKernels"):
            jax_cocktail.explain(jax_cocktail.jit(function, options={**UNMEASURED, "plans": plans}))(SMALL)


def test_flags_of_xla_belong_to_the_question(asked, monkeypatch):
    wrapped = loop(jnp.sin)
    jax_cocktail.explain(wrapped)(SMALL)
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", "") + " ")
    jax_cocktail.explain(wrapped)(SMALL)
    assert len(asked) == 2


def test_operators_beside_a_loop_are_still_dispatched():
    def function(x):
        x = lax.fori_loop(0, 3, lambda i, y: jnp.sin(y), x)
        for _ in range(20):
            x = jnp.cumsum(jnp.sort(x))
        return x

    report = jax_cocktail.explain(jax_cocktail.jit(function, options=UNMEASURED))(SMALL)
    assert report.choice == "cocktail" and report.why.endswith("compiles loops to one kernel")


def test_constants_are_not_compiled_in(asked):
    table = jnp.arange(float(1 << 20))
    report = jax_cocktail.explain(loop(lambda y: table[y.astype(int)]))(SMALL)
    assert report.choice in ("stock", "cocktail") and len(asked) == 1
    (region,) = asked
    assert table.shape in [v.aval.shape for v in region.operands]


def test_what_was_traced_with_wide_types(asked):
    """The region keeps its types in a process that narrows those of its arguments now."""
    wrapped = loop(jnp.sin)
    with jax.enable_x64(True):
        traced = jax.jit(wrapped).trace(np.ones(8))
    assert "xf64>" in traced.lower().as_text() and len(asked) == 1


def test_where_a_region_makes_no_sense_alone():
    """Values that vary over a mesh: the model decides as if nobody could be asked."""
    found = python(
        """
        import jax, jax.numpy as jnp, jax_cocktail
        from jax import lax
        from jax.sharding import PartitionSpec as P

        mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Auto,))
        for strict in (False, True):
            loop = jax_cocktail.jit(
                lambda x: lax.fori_loop(0, 30, lambda i, y: jnp.sin(y), x), options={"strict": strict}
            )
            mapped = jax.shard_map(loop, mesh=mesh, in_specs=P("a"), out_specs=P("a"))
            print("jax_cocktail_cpu" in jax.jit(mapped).lower(jnp.ones(16)).as_text())
        """,
        XLA_FLAGS="--xla_force_host_platform_device_count=2",
    )
    assert found.split() == ["True", "True"]


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
