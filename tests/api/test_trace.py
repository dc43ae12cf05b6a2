"""`trace`: results, what it records under all control flow, and what it says of the rest."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.experimental import io_callback

import jax_cocktail
from jax_cocktail.lowering.choice import decisions
from jax_cocktail.lowering.run import stopwatch
from tests.strategies import initial_state, programs, run

FORCED = {"force": "cocktail", "units": 2}
EVERYTHING = {**FORCED, "trace": 3}


def rnn(w, xs):
    return lax.scan(lambda h, x: (jnp.tanh(h @ w + x), h.sum()), jnp.zeros(w.shape[0]), xs)


def newton(a):
    return lax.while_loop(lambda x: jnp.any(abs(x * x - a) > 1e-5 * a), lambda x: (x + a / x) / 2, a)


def sides(x, n):
    def step(i, x):
        return lax.cond(i % 2 == 0, lambda x: jnp.sin(x) + 1, lambda x: x * 0.5, x)

    return lax.fori_loop(0, n, step, x)


@jax_cocktail.recursive
def fib(fib, n):
    return lax.cond(n < 2, lambda n: n, lambda n: fib(n - 1) + fib(n - 2), n)


def two(x):
    y = lax.fori_loop(0, 5, lambda i, a: jnp.tanh(a * 2), x)
    z = jnp.fft.fft(y).real  # stock XLA runs it between the loops
    return lax.fori_loop(0, 7, lambda i, a: jnp.cos(a) + z, z), y


KEY = jax.random.key(0)
CASES = {
    "rnn": (rnn, (jax.random.normal(KEY, (64, 64)) / 8, jax.random.normal(KEY, (9, 64)))),
    "newton": (newton, (jnp.arange(1.0, 65.0),)),
    "sides": (sides, (jnp.arange(64.0), 6)),
    "recursion": (lambda n: fib(n), (jnp.int32(9),)),
    "gradient": (jax.grad(lambda w, xs: rnn(w, xs)[1].sum()), (jnp.eye(16) / 2, jnp.ones((5, 16)))),
    "batch": (jax.vmap(newton), (jnp.arange(1.0, 33.0).reshape(4, 8),)),
    "two": (two, (jnp.arange(8.0) / 8,)),
}


def traced(function, options, *arguments):
    return jax_cocktail.trace(jax_cocktail.jit(function, options=options))(*arguments)


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_an_untraced_call(name, tmp_path):
    function, arguments = CASES[name]
    found = traced(function, EVERYTHING, *arguments)
    plain = jax_cocktail.jit(function, options=FORCED)(*arguments)
    assert jax.tree.structure(found.results) == jax.tree.structure(plain)
    for x, y in zip(jax.tree.leaves(found.results), jax.tree.leaves(plain), strict=True):
        np.testing.assert_array_equal(x, y)
    assert found.notes == () and len(found.regions) == (2 if name == "two" else 1)
    for region in found.regions:
        assert region.stamps > 0 and region.end > region.start and region.level == 3
    found.perfetto(tmp_path / "trace.json")
    slices = [e for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in slices) and str(found)


@settings(max_examples=4, deadline=None, derandomize=True, database=None)
@given(program=programs(), seed=st.integers(0, 5))
def test_random_programs(program, seed):
    state = initial_state(seed)
    found = traced(lambda *s: run(program, s), EVERYTHING, *state)
    plain = jax_cocktail.jit(lambda *s: run(program, s), options=FORCED)(*state)
    for x, y in zip(jax.tree.leaves(found.results), jax.tree.leaves(plain), strict=True):
        np.testing.assert_array_equal(x, y)


def test_regions_follow_each_other():
    first, second = traced(two, EVERYTHING, jnp.arange(8.0) / 8).regions
    assert (first.number, second.number) == (0, 1) and first.start == 0 and second.start >= first.end


def test_slices_name_the_users_lines():
    found = traced(rnn, EVERYTHING, *CASES["rnn"][1])
    line = f"test_trace.py:{rnn.__code__.co_firstlineno + 1}"
    assert "loop of" in str(found) and line in str(found)
    stages = [row for row in found.regions[0].rows if row.kind == "stage"]
    assert any("tanh" in row.what and row.source.function.endswith("<lambda>") for row in stages)


def test_levels():
    counts = [traced(rnn, {**FORCED, "trace": level}, *CASES["rnn"][1]).regions for level in (0, 1, 2, 3)]
    assert [region.level for (region,) in counts] == [2, 1, 2, 3]
    for wrong in (4, -1, True, "2"):
        with pytest.raises(ValueError, match=r"option 'trace' must be one of 0, 1, 2, 3, not"):
            jax_cocktail.jit(rnn, options={"trace": wrong})


def test_a_function_that_is_not_jitted_and_a_block_of_options():
    with jax_cocktail.options(**EVERYTHING):
        found = jax_cocktail.trace(newton)(jnp.arange(1.0, 9.0))
    np.testing.assert_allclose(found.results, np.sqrt(np.arange(1.0, 9.0)), rtol=1e-5)
    assert found.function == "newton" and found.regions[0].level == 3


def test_a_method_and_static_arguments():
    class Root:
        @jax_cocktail.jit(static_argnames="times", options=FORCED)
        def find(self, a, times):
            return lax.fori_loop(0, times, lambda i, x: (x + a / x) / 2, a)

        __hash__ = object.__hash__

    jax.tree_util.register_static(Root)
    found = jax_cocktail.trace(Root().find)(jnp.ones(4) * 4, times=20)
    np.testing.assert_allclose(found.results, 2, rtol=1e-6)
    assert len(found.regions) == 1


def test_no_control_flow():
    found = jax_cocktail.trace(lambda x: x + 1)(jnp.ones(3))
    np.testing.assert_array_equal(found.results, 2)
    assert found.regions == () and found.notes == ("nothing to record: it contains no loop or branch",)
    assert "no custom calls recorded" in str(found)


def test_loops_that_stock_xla_runs_are_told():
    found = traced(rnn, {"force": "stock"}, *CASES["rnn"][1])
    assert found.regions == () and 'options={"force": "cocktail"} records' in found.notes[0]
    assert jax.tree.leaves(found.results)[0].shape == (64,)

    def printing(x):
        y = lax.fori_loop(0, 3, lambda i, a: jnp.sin(a), x)

        def step(i, a):
            io_callback(lambda i: None, None, i)
            return a + y

        return lax.fori_loop(0, 2, step, x)

    with pytest.warns(jax_cocktail.CocktailWarning):
        found = traced(printing, FORCED, jnp.ones(3))
    assert len(found.regions) == 1 and "'io_callback' has side effects" in found.notes[0]


def test_side_effects_happen_once(capfd):
    def talking(x):
        jax.debug.print("said {}", x[0])
        return lax.fori_loop(0, 3, lambda i, a: jnp.sin(a), x)

    found = traced(talking, FORCED, jnp.ones(3))
    jax.block_until_ready(found.results)
    jax.effects_barrier()
    assert capfd.readouterr().out.count("said") == 1 and len(found.regions) == 1


def test_abstract_arguments_have_no_timeline():
    with pytest.raises(TypeError):
        traced(newton, FORCED, jax.ShapeDtypeStruct((3,), np.float32))


@pytest.mark.all_candidates  # the plan of a decision is one of them
def test_decisions_stay(tmp_path, monkeypatch):
    """A decision that was measured without stamps counts, and tracing measures nothing."""
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))  # other tests clear the shared folder
    monkeypatch.setattr(stopwatch.Watch, "others", lambda self: 0.0)  # a busy machine is measured again
    stored = []
    store = decisions.store
    monkeypatch.setattr(decisions, "store", lambda *facts: (stored.append(facts), store(*facts)))
    x = jnp.full(64, 7.25)
    jax_cocktail.jit(newton)(x)
    assert len(stored) == 1
    found = traced(newton, {"trace": 3}, x)
    assert len(stored) == 1 and len(found.regions) == (stored[0][1].choice == "cocktail")
