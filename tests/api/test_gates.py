"""Loops whose batch elements wait for each other at gates, before and after `threads` and `recover`, in the
interpreter, against stock."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.api.apart import recovered, taken

STARTS = np.geomspace(0.5, 90, 64).astype(np.float32)
DONE = np.append(STARTS, np.float32(500))  # the last element has no trip, and keeps its first flag


def loop(gate, settle, fresh=True):
    """A loop of a batch as a library writes it: `gate` of all flags scales the step of every element, and
    `settle` gives the next flags of `flags`, new numbers and counts."""

    def function(x):
        def body(state):
            x, flags, k = state
            going = x < 100
            new = x * jnp.where(gate(flags), 1.5, 1.25) + 1
            flags = jnp.where(going, settle(flags, new, k), flags)
            return jnp.where(going, new, x), flags, jnp.where(going, k + 1, k)

        start = x, jnp.full(x.shape, fresh), jnp.zeros(x.shape, jnp.int32)
        return jax.lax.while_loop(lambda state: jnp.any(state[0] < 100), body, start)

    return function


def closes(flags, new, k):
    return jnp.where(new > 20, False, flags)


def two_gates(x):
    """Flags that close at different trips."""

    def body(state):
        x, low, high, k = state
        going = x < 100
        new = x * jnp.where(jnp.any(low), 1.5, 1.25) + jnp.where(jnp.all(high), 1.0, 2.0)
        low = jnp.where(going, low & (new < 10), low)
        high = jnp.where(going, high | (new > 40), high)
        return jnp.where(going, new, x), low, high, jnp.where(going, k + 1, k)

    ones = jnp.ones(x.shape, bool)
    start = x, ones, ~ones, jnp.zeros(x.shape, jnp.int32)
    return jax.lax.while_loop(lambda state: jnp.any(state[0] < 100), body, start)


SETTLE = {
    "any": loop(jnp.any, closes),
    "any of flags or nothing": loop(lambda flags: jnp.any(flags | False), closes),
    "and": loop(jnp.any, lambda flags, new, k: flags & (new < 20)),
    "none": loop(lambda flags: ~jnp.any(flags), closes),
    "all": loop(jnp.all, lambda flags, new, k: flags | (new > 20), fresh=False),
    "settled at the start": loop(jnp.any, closes, fresh=False),
}

STAY = {
    "two gates": two_gates,
    "opens again": loop(jnp.any, lambda flags, new, k: jnp.where(new > 20, k % 3 == 0, flags)),
    "all of flags that fall": loop(jnp.all, closes),
    "any of flags that rise": loop(jnp.any, lambda flags, new, k: flags | (new > 20), fresh=False),
    "turns": loop(jnp.any, lambda flags, new, k: ~flags),
    "any of other flags": loop(lambda flags: jnp.any(~flags), closes),
    "a sum": loop(lambda flags: jnp.sum(flags) > 1, closes),
    "mixed elsewhere": loop(jnp.any, lambda flags, new, k: flags & (jnp.min(new) < 20)),
}


@pytest.mark.parametrize("starts", [STARTS, DONE], ids=["all run", "one is done"])
@pytest.mark.parametrize("name", SETTLE)
def test_gates_that_settle(name, starts):
    assert taken(SETTLE[name], (starts,)) == 3


@pytest.mark.parametrize("name", STAY)
def test_gates_that_do_not_settle(name):
    assert taken(STAY[name], (DONE,)) == 0


@pytest.mark.parametrize("name", [*SETTLE, *STAY])
def test_gates_on_a_cpu(name):
    """Elements share slots only if nothing mixes them."""
    notes = recovered(SETTLE.get(name) or STAY[name], (DONE,))
    assert [note.fired for note in notes] == [name in SETTLE], notes
