"""Arrays that batch elements update in place: those that are done write nothing, and no select copies all."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_cocktail
from jax_cocktail.analysis.verifier import verify
from jax_cocktail.lowering.edge import adapter
from jax_cocktail.primitives import translate
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.vmap.updates import updates
from jax_cocktail.utask.ir import is_a, walk
from tests.oracle.interpreter.run import run as interpreted

LENGTHS = np.array([3, 0, 7, 1, 5], np.int32)
LONG = 40


def passed(function, *arguments):
    """Compares with stock after the pass, and returns the selects between whole arrays that are left."""
    program = simplify(translate(adapter.program(jax.make_jaxpr(function)(*arguments)), "updates"))
    after = simplify(updates(program))
    verify(after, "translated")
    expected = jax.tree.leaves(jax.jit(function)(*arguments))
    for ours, stock in zip(interpreted(after, jax.tree.leaves(arguments)), expected, strict=True):
        np.testing.assert_array_equal(ours, stock)
    large = (o for o in walk(after.entry) if is_a(o, "select") and o.output.type.size >= LONG)
    return sum(1 for _ in large)


def loop(write, length, array):
    """`write(array, k)` in each trip, until the element's length is reached."""
    step = lambda state: (state[0] + 1, write(state[1], state[0]))  # noqa: E731
    return jax.lax.while_loop(lambda state: state[0] < length, step, (jnp.int32(0), array))[1]


WRITES = {
    "one number": lambda a, k: a.at[k * 3].set(k * 1.5),
    "a window": lambda a, k: jax.lax.dynamic_update_slice(a, jnp.arange(4.0) + k, (k * 9,)),
    "a clamped window": lambda a, k: jax.lax.dynamic_update_slice(a, jnp.arange(7.0) + k, (k * 31,)),
    "from the end": lambda a, k: a.at[-k - 1].set(k + 0.5),
    "dropped": lambda a, k: a.at[k * 17].set(k + 0.5, mode="drop"),
    "clipped": lambda a, k: a.at[k * 17].set(k + 0.5, mode="clip"),
    "added": lambda a, k: a.at[k % 3].add(0.1 * k),
    "the largest": lambda a, k: a.at[k % 4].max(0.3 * k),
    "narrow indices": lambda a, k: a.at[(k * 30).astype(jnp.uint8)].set(k + 0.5),
    "two writes": lambda a, k: a.at[k].set(1.0 * k).at[k + 1].multiply(3.0),
    "its own number": lambda a, k: a.at[k + 1].set(a[k] + 1),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writes(write):
    arrays = np.random.default_rng(0).normal(size=(len(LENGTHS), LONG)).astype(np.float32)
    function = jax.vmap(lambda length, array: loop(write, length, array))
    assert passed(function, LENGTHS, arrays) == 0


@pytest.mark.parametrize("axis", [0, 1])
def test_batch_axes(axis):
    lengths = np.array([LENGTHS, LENGTHS[::-1]])
    arrays = np.zeros((*lengths.shape, LONG, 2), np.float32)
    arrays = np.moveaxis(arrays, 1, 1 + axis)
    inner = jax.vmap(lambda n, a: loop(lambda a, k: a.at[k].set(k * 1.0), n, a), in_axes=(0, axis))
    assert passed(jax.vmap(inner), lengths, arrays) == 0


def test_an_array_that_is_read_afterwards():
    """What elements that are done compute of it is nobody's."""

    def step(state):
        k, array, total = state
        array = array.at[k].set(total)
        return k + 1, array, total + jnp.sum(array * array)

    def each(length, x):
        return jax.lax.while_loop(lambda s: s[0] < length, step, (0, jnp.full(LONG, 3), x))[1:]

    assert passed(jax.vmap(each), LENGTHS, np.arange(5, dtype=np.int32)) == 0


def test_a_loop_inside_that_searches_the_array():
    """It would not end for an element that is done, if this one did not write what it looks for."""

    def step(state):
        k, array, found = state
        array = array.at[k].set(1.0)
        at = jax.lax.while_loop(lambda at: array[at] == 0, lambda at: (at + 1) % LONG, k // 2)
        return k + 1, array.at[at].set(0.0), found + at

    def each(length):
        return jax.lax.while_loop(lambda s: s[0] < length, step, (0, jnp.zeros(LONG), 0))[1:]

    assert passed(jax.vmap(each), LENGTHS) > 0


def test_elements_that_others_read():
    """What an element that is done writes would count for the others."""

    def step(state):
        k, rows, total = state
        active = k < LENGTHS
        new = jax.vmap(lambda row, k: row.at[k].set(k + 1.0))(rows, k)
        return (
            jnp.where(active, k + 1, k),
            jnp.where(active[:, None], new, rows),
            jnp.where(active, total + new.sum(), total),
        )

    def together(total):
        start = jnp.zeros(5, jnp.int32), jnp.zeros((5, 64)), total
        return jax.lax.while_loop(lambda state: (state[0] < LENGTHS).any(), step, start)

    assert passed(together, np.zeros(5, np.float32)) > 0


def test_a_write_without_a_place():
    numbers = jax.lax.ScatterDimensionNumbers((0,), (), ())

    def write(array, k):
        nowhere = jnp.zeros((0,), jnp.int32) + k
        return jax.lax.scatter_add(array, nowhere, jnp.full((4,), k + 1.0), numbers)

    arrays = np.zeros((len(LENGTHS), 64), np.float32)
    assert passed(jax.vmap(lambda n, array: loop(write, n, array)), LENGTHS, arrays) > 0


def test_small_arrays_are_chosen():
    function = jax.vmap(lambda n, a: loop(lambda a, k: a.at[k % 3].set(k * 1.0), n, a))
    program = translate(adapter.program(jax.make_jaxpr(function)(LENGTHS, np.zeros((5, 3)))), "small")
    program = simplify(program)
    assert updates(program) is program


def collected(length, start, weights):
    """Elements that share weights: all their states, in an array of 64 rows that is a result."""

    def step(state):
        k, x, rows = state
        x = jnp.tanh(x @ weights)
        return k + 1, x, rows.at[k].set(x)

    return jax.lax.while_loop(lambda s: s[0] < length, step, (0, start, jnp.zeros((64, 8))))[1:]


@pytest.mark.parametrize("count", [9, 16, 50])
@pytest.mark.parametrize("units", [1, 2])
def test_large_states_in_slots(count, units):
    rng = np.random.default_rng(count)
    lengths = np.minimum(rng.exponential(12, count), 64).astype(np.int32)
    weights = rng.normal(size=(8, 8)).astype(np.float32) / 3
    starts = rng.normal(size=(count, 8)).astype(np.float32)
    function = jax.vmap(collected, in_axes=(0, 0, None))
    options = {"force": "cocktail", "strict": True, "units": units}
    ours = jax_cocktail.jit(function, options=options)
    expected = jax.jit(function)(lengths, starts, weights)
    for mine, stock in zip(ours(lengths, starts, weights), expected, strict=True):
        np.testing.assert_allclose(mine, stock, rtol=2e-6, atol=2e-6)
    (captured,) = jax_cocktail.explain(ours)(lengths, starts, weights).captured
    assert any("share 8 slots" in str(remark) for remark in captured.remarks) or count <= 9


def test_states_of_their_own_in_slots():
    """A slot takes its next element's large array, not what was in it."""
    rng = np.random.default_rng(0)
    lengths, begin = rng.integers(0, 30, 40).astype(np.int32), rng.normal(size=(40, 200)).astype(np.float32)
    weights = rng.normal(size=(4, 4)).astype(np.float32)

    def each(length, array):
        def step(state):
            k, array = state
            row = jnp.tanh(jax.lax.dynamic_slice(array, (k,), (4,)) @ weights)
            return k + 1, jax.lax.dynamic_update_slice(array, row, (2 * k,))

        return jax.lax.while_loop(lambda s: s[0] < length, step, (0, array))

    ours = jax_cocktail.jit(jax.vmap(each), options={"force": "cocktail", "strict": True})
    for mine, stock in zip(ours(lengths, begin), jax.jit(jax.vmap(each))(lengths, begin), strict=True):
        np.testing.assert_allclose(mine, stock, rtol=2e-6, atol=2e-6)
