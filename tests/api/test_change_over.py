"""Calls that look alike: each changes over once, and nothing is compiled again and again."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import jax_cocktail
from jax_cocktail.lowering.run.dispatch import Dispatch
from tests.api import random_calls
from tests.api.beside import OPTIONS
from tests.process import python
from tests.selection import ALL

pytestmark = pytest.mark.all_candidates  # about what is compiled

X = jnp.arange(4.0)
_compiled = [0]
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: _compiled.__setitem__(0, _compiled[0] + ("backend_compile" in event))
)


def loop(x):
    return lax.fori_loop(0, 3, lambda i, c: lax.cond(c.sum() > 0, lambda v: v * 0.5, lambda v: v - 1, c), x)


def looped(tree):
    return jax.tree.map(loop, tree)


def within(setting, call):
    def run(f):
        with setting():
            return call(f)

    return run


def committed(x):
    return jax.device_put(x, jax.devices()[0])


def compilations(jitted, calls, rounds=4):
    """The numbers of XLA's compilations for each call, in rounds."""
    found = []
    for _ in range(rounds):
        for call in calls:
            before = _compiled[0]
            jax.block_until_ready(call(jitted))
            assert jax_cocktail.wait(60)
            found.append(_compiled[0] - before)
    return found


def callee(jitted, args, kwargs):
    """The jitted function that runs a call."""
    call = jitted._dispatch.call
    return call.chosen(args, kwargs) if hasattr(call, "chosen") else call


ALIKE = {
    "by position and by name": (lambda a, b: loop(a) + b, [lambda f: f(X, X), lambda f: f(X, b=X)]),
    "tuple and list": (looped, [lambda f: f((X, X)), lambda f: f([X, X])]),
    "the place of None": (looped, [lambda f: f((X, None)), lambda f: f((None, X))]),
    "keys of a dict": (looped, [lambda f: f({"a": X}), lambda f: f({"b": X})]),
    "committed or not": (loop, [lambda f: f(X), lambda f: f(committed(X))]),
    "weak or strong": (
        lambda s: loop(X * s),
        [lambda f: f(jnp.asarray(2.0)), lambda f: f(jnp.float32(2)), lambda f: f(2.0)],
    ),
    "NumPy's and JAX's": (loop, [lambda f: f(X), lambda f: f(np.asarray(X)), lambda f: f(np.arange(4.0))]),
    "a setting": (
        lambda x: loop(x @ x * x),
        [
            lambda f: f(X),
            within(lambda: jax.default_matmul_precision("highest"), lambda f: f(X)),
            within(lambda: jax.numpy_rank_promotion("warn"), lambda f: f(X)),
        ],
    ),
}


@pytest.mark.parametrize("name", ALIKE)
def test_calls_that_look_alike(name):
    function, calls = ALIKE[name]
    stock, ours = jax.jit(function), jax_cocktail.jit(function, options=OPTIONS)
    expected = [call(stock) for call in calls]
    compiled = sum(compilations(jax.jit(lambda *a, **k: function(*a, **k)), calls, 1))
    changes = -jax_cocktail.cache_info().changed_over
    found = compilations(ours, calls)
    changes += jax_cocktail.cache_info().changed_over
    assert changes == compiled
    assert sum(found) == compiled + changes, found
    assert not any(found[2 * len(calls) :]), found
    for call, wanted in zip(calls, expected, strict=True):
        jax.tree.map(np.testing.assert_array_equal, call(ours), wanted)
        calls_of_ours = call(lambda *a, **k: callee(ours, a, k).lower(*a, **k).as_text())
        assert "jax_cocktail_cpu" in calls_of_ours


def test_what_only_jax_tells_apart_is_compiled_once(monkeypatch):
    """Without a part of JAX's key, calls do not change over in turn for ever."""
    init = Dispatch.__init__

    def without_settings(self, make, reader, tickets):
        init(self, make, dataclasses.replace(reader, settings=lambda: None), tickets)

    monkeypatch.setattr(Dispatch, "__init__", without_settings)
    function, calls = ALIKE["a setting"]
    found = compilations(jax_cocktail.jit(lambda x: function(x), options=OPTIONS), calls)
    assert sum(found) <= 2 * len(calls) and not any(found[2 * len(calls) :]), found


def test_threads_with_other_settings():
    function = ALIKE["a setting"][0]
    ours = jax_cocktail.jit(lambda x: function(x), options=OPTIONS)
    expected, errors = jax.jit(function)(X), []

    def work(precision):
        with jax.default_matmul_precision(precision) if precision else contextlib.nullcontext():
            for _ in range(50):
                if not np.array_equal(ours(X), expected):
                    errors.append(precision)

    threads = [threading.Thread(target=work, args=(p,)) for p in (None, "highest", "float32", "default")]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert jax_cocktail.wait(60) and not errors
    assert compilations(ours, ALIKE["a setting"][1])[-3:] == [0, 0, 0]


LEAVES = st.sampled_from(
    [X, X[:2], np.arange(4.0), committed(X), 2.0, 3, True, jnp.asarray(2.0), jnp.int32(2), None]
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=2),
        st.tuples(inner, inner),
        st.dictionaries(st.sampled_from("ab"), inner, min_size=1, max_size=2),
    ),
    max_leaves=3,
)
SETTINGS = st.sampled_from(random_calls.SETTINGS)
CALLS = st.tuples(TREES, st.sampled_from(["positional", "named"]), SETTINGS)


@given(st.lists(CALLS, min_size=2, max_size=3))
@settings(deadline=None, max_examples=1000 if ALL else 5)
def test_any_calls(drawn):
    def function(x):
        leaves = [jnp.asarray(leaf, dtype=jnp.float32) for leaf in jax.tree.leaves(x)]
        return [loop(leaf.reshape(-1)) for leaf in leaves]

    calls = [
        within(setting, lambda f, tree=tree, how=how: f(x=tree) if how == "named" else f(tree))
        for tree, how, setting in drawn
    ]
    expected = [call(jax.jit(function)) for call in calls]
    compiled = sum(compilations(jax.jit(lambda x: function(x)), calls, 1))
    ours = jax_cocktail.jit(function, options=OPTIONS)
    found = compilations(ours, calls, 3)
    assert sum(found) <= 2 * compiled and not any(found[2 * len(calls) :]), (found, compiled)
    for call, wanted in zip(calls, expected, strict=True):
        jax.tree.map(np.testing.assert_array_equal, call(ours), wanted)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", range(0, 1000, 40))
def test_random_sequences(first):
    count = 40 if ALL else 4
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    said = python(f"from tests.api import random_calls; random_calls.main({first}, {count})", XLA_FLAGS=flags)
    assert said == f"{count} sequences\n"
