"""Loops that keep arrays of batch elements that are done by writing what is there, before and after `threads`
and `recover`, in the interpreter, against stock."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.api.apart import recovered, taken

STARTS = np.append(np.geomspace(0.5, 90, 64), 500).astype(np.float32)
SAVED = np.random.default_rng(0).normal(size=(65, 6)).astype(np.float32)  # fewer than some have trips
PAIRS = np.random.default_rng(1).normal(size=(65, 6, 2)).astype(np.float32)


def put(out, k, new, flag):
    """Writes a number for one element, or what is there."""
    return out.at[k].set(jnp.where(flag, new, out[k]))


def saving(write, seen=True):
    """A loop that saves the number of each trip. `seen`: the program shows the first flags."""

    def function(x, out, flag):
        def body(state):
            flag, x, k, out = state
            new = x * 1.25 + 1
            out = jax.vmap(write)(out, k, new, flag)
            after = flag & (new < 100)
            return after, jnp.where(flag, new, x), jnp.where(flag, k + 1, k), out

        start = x < 100 if seen else flag, x, jnp.zeros(x.shape, jnp.int32), out
        return jax.lax.while_loop(lambda s: jnp.any(s[1] < 100), body, start)

    return function


def nested(x, out, flag):
    """A loop of one to three trips in each trip writes, for elements with an outer and an inner flag."""

    def body(state):
        flag, x, k, out = state

        def write(inner):
            going, n, out = inner
            out = jax.vmap(put)(out, k + n, x + n, flag & going)
            return going & (n + 1 < 1 + k % 3), jnp.where(going, n + 1, n), out

        none = jnp.zeros(x.shape, jnp.int32)
        start = none < 1 + k % 3, none, out
        out = jax.lax.while_loop(lambda s: jnp.any(s[1] < 1 + k % 3), write, start)[2]
        new = x * 1.25 + 1
        return flag & (new < 100), jnp.where(flag, new, x), jnp.where(flag, k + 1, k), out

    start = x < 100, x, jnp.zeros(x.shape, jnp.int32), out
    return jax.lax.while_loop(lambda s: jnp.any(s[1] < 100), body, start)[1:]


def pair(out, k, new, flag):
    return out.at[k].set(jnp.where(flag, jnp.stack([new, k * 0.5]), out[k]))


KEPT = {
    "numbers": (saving(put), SAVED),
    "pairs": (saving(pair), PAIRS),
    "first flags out of sight": (saving(put, seen=False), SAVED),
    "nested": (nested, SAVED),
}

def choosing(other, start="set"):
    """A loop that writes a number, or another one than what is there."""

    def write(out, k, new, flag):
        return getattr(out.at[k], start)(jnp.where(flag, new, other(out, k)))

    return saving(write)


def column(out, k, new, flag):
    return out.at[:, 0].set(jnp.where(flag, new, out[:, 1]))


CHANGED = {
    "other places": (choosing(lambda out, k: out[k - 1]), SAVED),
    "sums": (choosing(lambda out, k: out[k], "add"), SAVED),
    "the first number": (choosing(lambda out, k: out[0]), SAVED),
    "some that are done": (saving(lambda out, k, new, flag: put(out, k, new, flag | (k > 2))), SAVED),
    "other axes": (saving(column), PAIRS),
}


def arguments(out, flag=STARTS < 100):
    return STARTS, out, flag


@pytest.mark.parametrize("name", KEPT)
def test_kept(name):
    function, out = KEPT[name]
    assert taken(function, arguments(out)) == 1


def test_first_flags_that_are_not_the_predicate():
    """Some elements of which the predicate is false have a first trip, as stock XLA gives it to them."""
    function, out = KEPT["first flags out of sight"]
    assert taken(function, arguments(out, np.ones(65, bool))) == 1


def test_no_first_trip():
    """All flags are true, and no predicate is."""
    function, out = KEPT["first flags out of sight"]
    assert taken(function, (STARTS + 100, out, np.ones(65, bool))) == 1


@pytest.mark.parametrize("name", CHANGED)
def test_changed(name):
    function, out = CHANGED[name]
    assert taken(function, arguments(out)) == 0


@pytest.mark.parametrize("name", [*KEPT, *CHANGED])
def test_on_a_cpu(name):
    function, out = KEPT.get(name) or CHANGED[name]
    notes = recovered(function, arguments(out))
    assert any(note.fired for note in notes) == (name in KEPT), notes
