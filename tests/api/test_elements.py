"""Random programs of batch elements, before and after `threads`, in the interpreter, against stock."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api.apart import EAGER, taken
from tests.selection import ALL
from tests.strategies import initial_state, programs, run

IN_MEMORY = replace(EAGER, numbers=2)  # nearly all arrays of an element are in the memory of its thread
EVERY = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
BATCH = 3


def states(seed):
    """The states of a few elements, element axis first."""
    found = [initial_state(100 * seed + k) for k in range(BATCH)]
    return tuple(np.stack(parts) for parts in zip(*found, strict=True))


@pytest.mark.one_jax
@pytest.mark.parametrize("limits", [EAGER, IN_MEMORY], ids=["registers", "memory"])
def test_random_elements(limits):
    """Many random programs have a thread for each element, and all agree with stock."""
    found = []

    @settings(EVERY, max_examples=200 if ALL else 8)
    @given(programs(), st.integers(0, 5))
    def each(program, seed):
        function = jax.vmap(lambda *state: run((("fori", 3, seed % 2 > 0, program),), state))
        found.append(taken(function, states(seed), limits))

    each()
    assert sum(n > 0 for n in found) >= len(found) // 3, found


def solved(matrix, b):
    """Steps with a factorisation, a determinant, and a system in each."""

    def step(_, x):
        a = matrix + 0.1 * jnp.outer(x, x)
        spd = a @ a.T + 4.0 * jnp.eye(3, dtype=a.dtype)
        y = jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(spd), x, lower=True)
        z = jnp.linalg.solve(a, b)
        return 0.1 * y + 0.2 * jnp.tanh(z) + 0.01 * jnp.tanh(jnp.linalg.det(a))

    return jax.lax.fori_loop(0, 3, step, b)


@pytest.mark.one_jax
@pytest.mark.parametrize("limits", [EAGER, IN_MEMORY], ids=["registers", "memory"])
def test_small_factorisations(limits):
    rng = np.random.default_rng(0)
    state = rng.normal(size=(BATCH, 3, 3)).astype(np.float32), rng.normal(size=(BATCH, 3)).astype(np.float32)
    state[0][1, 0] = 0  # a pivot that is not in its row
    assert taken(lambda *s: (jax.vmap(solved)(*s),), state, limits) == 1


@pytest.mark.one_jax
@pytest.mark.parametrize("limits", [EAGER, IN_MEMORY], ids=["registers", "memory"])
def test_a_matrix_without_a_factor(limits):
    """All of the factor is NaN."""
    a = np.stack([np.eye(3), -np.eye(3), [[1, 2, 0], [2, 1, 0], [0, 0, 1]]]).astype(np.float32)

    def factor(a):
        return jax.lax.fori_loop(0, 2, lambda _, x: jnp.linalg.cholesky(x, symmetrize_input=False), a)

    assert taken(lambda a: (jax.vmap(factor)(a),), (a,), limits) == 1


LONG = 70  # numbers of an array that is too large for registers


def swapped(x):
    arrays = jnp.zeros(LONG), jnp.zeros(LONG)
    return jax.lax.fori_loop(0, LONG, lambda i, s: (s[1], s[0].at[i].set(x + i)), arrays)


def older(x):
    def step(i, state):
        array, total = state
        first = array.at[i].set(x)
        second = first.at[i].multiply(2.0)
        return second, total + first[i]

    return jax.lax.fori_loop(0, LONG, step, (jnp.zeros(LONG), 0.0))


def dropped(x):
    """An update that nobody hands on."""

    def step(i, state):
        array, total = state
        tried = jax.lax.fori_loop(0, 3, lambda j, a: a.at[j].set(x), array)
        return array.at[i].set(x * i), total + tried[1]

    return jax.lax.fori_loop(0, LONG, step, (jnp.zeros(LONG), 0.0))


def read_and_written(x):
    def step(i, state):
        array, total = state
        return array.at[i].add(x + total), total + 0.5 * array[jnp.maximum(i - 1, 0)]

    return jax.lax.fori_loop(0, LONG, step, (jnp.ones(LONG), 0.0))


def closure(a):
    return jax.lax.fori_loop(0, 3, lambda _, r: r | (a @ r), a)


def summed(x):
    return jax.lax.fori_loop(0, 3, lambda _, v: jnp.cumsum(v) / 8, x)


def forked(x):
    """Two updates of one state, of which only the second one is handed on."""

    def step(i, state):
        array, total = state
        first = jax.lax.dynamic_update_slice(array, x[None], (i,))
        total = total + jax.lax.dynamic_slice(first, (i,), (1,))[0]
        return jax.lax.dynamic_update_slice(array, (x + i + 1)[None], (i + 1,)), total

    return jax.lax.fori_loop(0, LONG - 1, step, (jnp.zeros(LONG), 0.0))


def chained(x):
    """An array that each trip reads before it writes."""

    def step(i, array):
        return array.at[i].set(0.5 * array[i - 1] + x)

    return (jax.lax.fori_loop(1, LONG, step, jnp.ones(LONG)),)


def shifted(x):
    """An update with a part of the array that it updates."""

    def step(i, array):
        array = jax.lax.dynamic_update_slice(array, array[:-2], (i % 3,))
        return array.at[0].add(x)

    return (jax.lax.fori_loop(0, 9, step, jnp.arange(float(LONG))),)


def watched(x):
    """An array that the condition reads, that a branch updates, and that a nested loop hands on."""

    def step(state):
        i, array = state
        array = jax.lax.fori_loop(0, 2, lambda j, a: a.at[i + j].set(x + j), array)
        array = jax.lax.cond(i % 3 == 0, lambda a: a.at[i].add(1.0), lambda a: a, array)
        return i + 1, array

    def goes(state):
        i, array = state
        return (array[i] < 0.5) & (i < 9)

    return jax.lax.while_loop(goes, step, (0, jnp.zeros(LONG)))


@pytest.mark.parametrize(
    ("function", "loops"),
    [(swapped, 0), (older, 0), (forked, 0), (chained, 1)]
    + [(f, None) for f in (dropped, read_and_written, shifted, watched)],
)
def test_large_arrays(function, loops):
    """They are updated where they lie, or in the memory of the thread."""
    arguments = (np.linspace(-1, 1, BATCH, dtype=np.float32),)
    assert loops in (None, taken(jax.vmap(function), arguments, replace(EAGER, local=0)))
    assert taken(jax.vmap(function), arguments) == 1


def test_products_and_sums():
    adjacent = np.random.default_rng(0).uniform(size=(BATCH, 5, 5)) < 0.3
    assert taken(lambda a: (jax.vmap(closure)(a),), (adjacent,)) == 0
    halves = np.random.default_rng(0).uniform(size=(BATCH, 50)).astype(jnp.bfloat16)
    assert taken(lambda x: (jax.vmap(summed)(x),), (halves,)) == 1


def halved(x):
    return jax.lax.while_loop(lambda v: v > 1.0, lambda v: v * 0.5, x)


def narrow(table):
    def one(i):
        return halved(jnp.sum(jax.lax.dynamic_slice(table, (i.astype(jnp.uint8),), (8,))))

    return (jax.lax.map(one, jnp.arange(300)),)


def test_maps():
    x = np.linspace(0, 9, 9, dtype=np.float32)
    assert taken(lambda x: (jax.lax.map(halved, x),), (x,)) == 1
    assert taken(lambda x: (jax.lax.map(lambda v: jnp.stack([halved(v), -v]), x),), (x,)) == 1
    assert taken(lambda x: (jax.lax.map(jnp.tanh, x.reshape(3, 3)),), (x,)) == 0
    assert taken(narrow, (np.linspace(0, 1, 400, dtype=np.float32),)) == 1


def mixed(start):
    """A loop by a flag whose predicate looks at all elements."""
    limits = jnp.array([6, 11, 1000])

    def goes(k):
        return (jnp.sum(k) < limits) & (k < 9)

    def body(state):
        flag, k = state
        return flag & goes(k + 1), jnp.where(flag, k + 1, k)

    return jax.lax.while_loop(lambda state: jnp.any(goes(state[1])), body, (goes(start), start))


def test_flags_in_a_loop():
    """The outer loop is one of single elements, too."""

    def inner(x):
        def body(state):
            flag, x = state
            return flag & (x * 0.5 > 0.1), jnp.where(flag, x * 0.5, x)

        return jax.lax.while_loop(lambda state: jnp.any(state[1] > 0.1), body, (x > 0.1, x))[1]

    def function(x):
        return (jax.lax.fori_loop(0, 4, lambda _, x: inner(x) + 1.0, x),)

    assert taken(function, (np.linspace(0, 3, BATCH, dtype=np.float32),)) == 1


def test_flags_that_look_at_all_elements():
    assert taken(mixed, (np.zeros(3, np.int32),)) == 0


def test_a_flag_behind_a_long_program():
    def function(x):
        for _ in range(1200):
            x = jnp.sin(x) + 1

        def body(state):
            flag, x = state
            return flag & (x * 0.5 > 0.1), jnp.where(flag, x * 0.5, x)

        return jax.lax.while_loop(lambda state: jnp.any(state[1] > 0.1), body, (x > 0.1, x))

    assert taken(function, (np.linspace(0, 3, BATCH, dtype=np.float32),)) == 1
