"""Loops whose trips one counter of all batch elements bounds, before and after `threads`, in the interpreter,
against stock."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.api.apart import recovered, taken

STARTS = np.append(np.geomspace(0.5, 90, 64), 500).astype(np.float32)  # the last element has no trip


def flagged(bound, step=1, start=0):
    """A loop of a batch as Equinox writes it: by a flag, and bounded by the trips of all."""

    def function(x):
        def body(state):
            flag, x, k = state
            new = x * 1.25 + 1
            return flag & (new < 100), jnp.where(flag, new, x), k + step

        state = x < 100, x, jnp.int32(start)
        return jax.lax.while_loop(lambda s: jnp.any(s[1] < 100) & bound(s[2]), body, state)[1:2]

    return function


def selected(x):
    """The same without a flag; the limit depends on the elements, and is the same for all."""
    limit = jnp.sum(x > 50).astype(jnp.int32)

    def body(state):
        x, k, n = state
        going = x < 100
        return jnp.where(going, x * 1.25 + 1, x), k + 1, jnp.where(going, n + 1, n)

    start = x, jnp.int32(0), jnp.zeros(x.shape, jnp.int32)
    x, _, n = jax.lax.while_loop(lambda s: (s[1] < limit) & jnp.any(s[0] < 100), body, start)
    return x, n


BOUNDED = {
    "selected": selected,
    **{f"flagged {n}": flagged(lambda k, n=n: k < n) for n in (0, 1, 5, 1000)},
    "downwards": flagged(lambda k: k >= 3, step=-2, start=12),
    "left operand": flagged(lambda k: k < 7),
}


def loop_of_all(new, test, after=lambda k: k + 1, last=lambda state: state[:1]):
    """A loop that uses its counter for more than a bound."""

    def function(x):
        def body(state):
            x, k = state
            going = x < 100
            return jnp.where(going, new(x, k), x), after(k)

        return last(jax.lax.while_loop(test, body, (x, jnp.int32(1))))

    return function


def grows(x, k):
    return x * 1.25 + 1


def ends(state):
    return jnp.any(state[0] < 100) & (state[1] < 6)


def flag_of_counter(x):
    """A flag that some elements lose at the third trip, while its predicate is true again later."""

    def goes(x, k):
        return (x < 100) & ((k != 3) | (x < 20))

    def body(state):
        flag, x, k = state
        new = x * 1.25 + 1
        return flag & goes(new, k + 1), jnp.where(flag, new, x), k + 1

    def test(state):
        return jnp.any(goes(*state[1:])) & (state[2] < 6)

    one = jnp.sum(x > 499).astype(jnp.int32)  # not known when the program is compiled
    return jax.lax.while_loop(test, body, (goes(x, one), x, one))[1:2]


def wave(x):
    """An element begins when its neighbour has, and not with the first trip."""

    def body(state):
        x, k = state
        return jnp.where(jnp.roll(x, 1) > 100, x + 200, x), k + 1

    start = x, jnp.int32(0)
    return jax.lax.while_loop(lambda s: jnp.any(jnp.roll(s[0], 1) > 100) & (s[1] < 5), body, start)[:1]


def trips_beside_flags(x):
    """The trips of all, which go on where an element without a flag passes the test."""

    def body(state):
        x, flag, t = state
        return jnp.where(flag, x + 1, x), flag & (x + 1 < 100), t + 1

    start = x, x > jnp.sum(x) / x.size, jnp.int32(0)
    return jax.lax.while_loop(lambda s: jnp.any(s[0] < 100) & (s[2] < 400), body, start)[2:]


OTHERS = {
    "begins later": wave,
    "trips beside flags": trips_beside_flags,
    "flag of the counter": flag_of_counter,
    "reads the counter": loop_of_all(lambda x, k: x + k, ends),
    "returns the counter": loop_of_all(grows, ends, last=lambda state: state),
    "predicate of the counter": loop_of_all(
        grows, lambda s: jnp.any((s[0] < 100) & (s[1] < 9)) & (s[1] < 6)
    ),
    "either": loop_of_all(grows, lambda s: jnp.any(s[0] < 100) | (s[1] < 6)),
    "doubles": loop_of_all(grows, ends, after=lambda k: 2 * k),
    "mixes": loop_of_all(lambda x, k: x + jnp.max(x), ends),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_bounds(name):
    assert taken(BOUNDED[name], (STARTS,)) == 1


@pytest.mark.parametrize("name", OTHERS)
def test_counters_that_do_more(name):
    assert taken(OTHERS[name], (STARTS,)) == 0


@pytest.mark.parametrize("name", [*BOUNDED, *OTHERS])
def test_bounds_on_a_cpu(name):
    """Elements share slots if they count for themselves."""
    notes = recovered(BOUNDED.get(name) or OTHERS[name], (STARTS,))
    assert any(note.fired for note in notes) == (name in BOUNDED), notes
