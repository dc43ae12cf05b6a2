"""Loops of batch elements on threads of a GPU, against stock: each thread runs the loop of one element."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jax_cocktail
from jax_cocktail.utask.ir import by_threads, walk
from tests.cpu.by_threads import run
from tests.cpu.emulated import WAVES, Emulation
from tests.cpu.runner import EAGER
from tests.strategies import check_state, initial_state, programs
from tests.strategies import run as random_run


def collatz(n):
    def step(state):
        n, steps = state
        return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1

    return jax.lax.while_loop(lambda state: state[0] > 1, step, (n, 0))[1]


@pytest.mark.parametrize(("count", "sanitizer"), [(64, None), (65, "address"), (1000, "thread")])
def test_collatz(count, sanitizer, monkeypatch):
    numbers = jnp.arange(1, 1 + count, dtype=jnp.int32)
    emitted = run(monkeypatch, jax.vmap(collatz), (numbers,), sanitizer=sanitizer)
    assert "ck_wait" not in emitted.source and "ck_block_barrier" not in emitted.source


def lorenz(state):
    def step(_, state):
        x, y, z = state
        slope = jnp.stack([10.0 * (y - x), x * (28.0 - z) - y, x * y - 8.0 / 3.0 * z])
        return state + 0.01 * slope

    return jax.lax.fori_loop(0, 30, step, state)


@pytest.mark.parametrize("axis", [0, 1])
def test_lorenz(axis, monkeypatch):
    states = np.random.default_rng(0).normal(size=(300, 3) if axis == 0 else (3, 300)).astype(np.float32)
    run(monkeypatch, jax.vmap(lorenz, in_axes=axis, out_axes=axis), (states,))


def saved(state):
    """Every step's state: the array of one element is too large for registers."""

    def step(state, _):
        state = state + 0.01 * jnp.stack([state[1], -jnp.sin(state[0])])
        return state, state[0]

    return jax.lax.scan(step, state, None, length=50)


def test_outputs_of_every_step(monkeypatch):
    states = np.random.default_rng(0).normal(size=(130, 2)).astype(np.float32)
    run(monkeypatch, jax.vmap(saved), (states,), sanitizer="address")


def driven(state, drive):
    return jax.lax.scan(lambda s, d: (s + d * jnp.tanh(s), s), state, drive)


@pytest.mark.parametrize("axis", [0, 1])
def test_inputs_of_every_step(axis, monkeypatch):
    rng = np.random.default_rng(0)
    states, drive = rng.normal(size=100).astype(np.float32), rng.normal(size=(100, 40)).astype(np.float32)
    drive = drive if axis == 0 else drive.T.copy()
    run(monkeypatch, jax.vmap(driven, in_axes=(0, axis), out_axes=(0, axis)), (states, drive))


def walk_of(key):
    """Draws, branches, and a table that all elements share."""
    table = jnp.asarray(np.linspace(-1, 1, 300), jnp.float32)

    def step(k, state):
        x, key = state
        key, sub = jax.random.split(key)
        u = jax.random.uniform(sub)
        kind = jnp.floor(u * 4).astype(jnp.int32)
        x = jax.lax.switch(
            kind,
            [
                lambda x: x + 1,
                lambda x: x - table[jnp.clip(k * 7, 0, 299)],
                lambda x: jnp.sin(jnp.exp(jnp.cos(x * u))),
                lambda x: x,
            ],
            x,
        )
        return x, key

    return jax.lax.fori_loop(0, 20, step, (jnp.float32(0), key))[0]


def test_draws_and_branches(monkeypatch):
    run(monkeypatch, jax.vmap(walk_of), (jax.random.split(jax.random.PRNGKey(0), 96),))


def nested(n):
    """A loop of unknown length in another one, and in a branch."""

    def outer(state):
        k, total = state
        inner = jax.lax.while_loop(lambda s: s[0] < k, lambda s: (s[0] + 1, s[1] + s[0] % 3), (0, 0))[1]
        total = jax.lax.cond(inner % 2 == 0, lambda t: t + inner, lambda t: t - 1, total)
        return k + 1, total

    return jax.lax.while_loop(lambda s: s[0] < n, outer, (0, 0))


def test_loops_in_loops(monkeypatch):
    run(monkeypatch, jax.vmap(nested), (jnp.arange(100, dtype=jnp.int32) % 23,))


def newton(matrix, start):
    """Small dense algebra, an argmax and sums."""

    def step(_, x):
        residual = matrix @ x - 1.0
        best = jnp.argmax(jnp.abs(residual))
        return (x - 0.1 * matrix.T @ residual).at[best].add(0.01 * jnp.sum(residual))

    return jax.lax.fori_loop(0, 8, step, start)


def test_small_matrices(monkeypatch):
    rng = np.random.default_rng(0)
    matrices = rng.normal(size=(70, 3, 3)).astype(np.float32)
    run(monkeypatch, jax.vmap(newton), (matrices, rng.normal(size=(70, 3)).astype(np.float32)))


def test_gradient(monkeypatch):
    def loss(states):
        return jnp.sum(jax.vmap(lorenz)(states) ** 2)

    states = np.random.default_rng(0).normal(size=(80, 3)).astype(np.float32)
    run(monkeypatch, jax.grad(loss), (states,), loops=2)


def test_tangents(monkeypatch):
    states = np.random.default_rng(0).normal(size=(80, 3)).astype(np.float32)
    run(monkeypatch, lambda x: jax.jvp(jax.vmap(lorenz), (x,), (x,)), (states,))


def test_no_element(monkeypatch):
    numbers = jnp.zeros(0, jnp.int32)
    assert jax_cocktail.jit(jax.vmap(collatz), options={"force": "cocktail"})(numbers).shape == (0,)


def until(x):
    return jax.lax.while_loop(lambda s: s[0] * s[0] > 2.0, lambda s: (s[0] * 0.5, s[1] + 1), (x, 0))


def test_not_a_number_in_a_condition(monkeypatch):
    x = np.linspace(-9, 9, 64, dtype=np.float32)
    x[5], x[6], x[7] = np.nan, 0, -np.inf
    x[7] = 1e30
    run(monkeypatch, jax.vmap(until), (x,))


def test_float64(monkeypatch):
    with jax.enable_x64():
        run(monkeypatch, jax.vmap(until), (np.linspace(-9, 9, 64),))


@pytest.mark.parametrize("count", [1, 63])
def test_few_elements_stay(count, monkeypatch):
    run(monkeypatch, jax.vmap(collatz), (jnp.arange(1, 1 + count, dtype=jnp.int32),), loops=0)


@pytest.mark.parametrize("sanitizer", [None, "thread"])
def test_large_elements_have_a_block(sanitizer, monkeypatch):
    """A block does what is too large for the memory of a thread, and the report says so."""

    def settle(x):
        return jax.lax.while_loop(lambda x: jnp.sum(x) > 1, lambda x: x * 0.5, x)

    x = np.random.default_rng(0).uniform(1, 9, size=(64, 1200)).astype(np.float32)
    emitted = run(monkeypatch, jax.vmap(settle), (x,), loops=0, sanitizer=sanitizer)
    told = [remark.text for remark in emitted.remarks]
    assert any("no thread runs the loop" in text for text in told)
    assert any("on a block" in text for text in told)
    assert "ck_wait" not in emitted.source


def test_map(monkeypatch):
    """`lax.map` has no batch: its trips are independent as they are."""
    numbers = jnp.arange(1, 300, dtype=jnp.int32)
    run(monkeypatch, lambda n: jax.lax.map(collatz, n), (numbers,), sanitizer="address")


def test_map_of_solvers(monkeypatch):
    states = np.random.default_rng(0).normal(size=(70, 2)).astype(np.float32)
    run(monkeypatch, lambda x: jax.lax.map(saved, x), (states,))


def flagged(x):
    """A loop that selects by a flag which it carries, as Equinox writes it."""

    def body(state):
        going, x, k = state
        new = x * 0.75
        return going & (new > 0.5), jnp.where(going, new, x), jnp.where(going, k + 1, k)

    return jax.lax.while_loop(lambda state: state[1] > 0.5, body, (x > 0.5, x, 0))


def test_flags(monkeypatch):
    x = np.random.default_rng(0).uniform(0, 9, size=100).astype(np.float32)
    batched = jax.vmap(flagged)

    def selected(x):  # the loop of a batch as a library writes it
        def body(state):
            going, x, k = state
            new = x * 0.75
            return going & (new > 0.5), jnp.where(going, new, x), jnp.where(going, k + 1, k)

        start = x > 0.5, x, jnp.zeros(x.shape, jnp.int32)
        return jax.lax.while_loop(lambda state: jnp.any(state[1] > 0.5), body, start)

    np.testing.assert_array_equal(batched(x)[1], selected(x)[1])
    run(monkeypatch, selected, (x,))


def waiting(x):
    """A loop of a batch whose steps are smaller as soon as all elements have left the start."""

    def body(state):
        x, young, k = state
        going = x < 100
        new = x * jnp.where(jnp.any(young), 1.5, 1.25) + 1
        young = jnp.where(going, young & (new < 20), young)
        return jnp.where(going, new, x), young, jnp.where(going, k + 1, k)

    start = x, jnp.ones(x.shape, bool), jnp.zeros(x.shape, jnp.int32)
    return jax.lax.while_loop(lambda state: jnp.any(state[0] < 100), body, start)


@pytest.mark.parametrize("last", [90.0, 500.0], ids=["settles", "never settles"])
def test_gates(last, monkeypatch):
    x = np.append(np.geomspace(0.5, 90, 99), last).astype(np.float32)
    run(monkeypatch, waiting, (x,), loops=3, sanitizer="thread")


def test_batches_of_batches(monkeypatch):
    numbers = jnp.arange(1, 1 + 13 * 40, dtype=jnp.int32).reshape(13, 40)
    run(monkeypatch, jax.vmap(jax.vmap(collatz)), (numbers,), sanitizer="thread")


def test_solvers_of_two_batches(monkeypatch):
    states = np.random.default_rng(0).normal(size=(9, 17, 3)).astype(np.float32)
    run(monkeypatch, jax.vmap(jax.vmap(lorenz), in_axes=1), (states,))


def test_all_states_of_batches_of_batches(monkeypatch):
    states = np.random.default_rng(0).normal(size=(9, 17, 2)).astype(np.float32)
    run(monkeypatch, jax.vmap(jax.vmap(saved)), (states,))


def test_a_large_array_that_is_read(monkeypatch):
    def one(x):
        ones = jnp.ones(70)
        return jax.lax.fori_loop(1, 70, lambda i, a: a.at[i].set(0.5 * a[i - 1] + x), ones)

    run(monkeypatch, jax.vmap(one), (np.linspace(-1, 1, 70, dtype=np.float32),), sanitizer="address")


def test_one_block_after_another(monkeypatch):
    """More blocks' worth of elements than blocks: no block keeps its slice for the next loop."""

    def settle(limit, factor):
        return lambda x: jax.lax.while_loop(lambda x: jnp.sum(x) > limit, lambda x: x * factor, x)

    def function(x):
        return jax.vmap(settle(0.1, 0.7))(jax.vmap(settle(1.0, 0.5))(x))

    x = np.random.default_rng(0).uniform(1, 9, size=(64, 1200)).astype(np.float32)
    run(monkeypatch, function, (x,), loops=0)


def test_one_thread_after_another(monkeypatch):
    numbers = jnp.arange(1, 1000, dtype=jnp.int32)
    run(monkeypatch, lambda n: jax.vmap(collatz)(jax.vmap(collatz)(n) + 1), (numbers,), loops=2)


@pytest.mark.parametrize("wave", [32, 64])
def test_waves(wave, monkeypatch):
    numbers = jnp.arange(1, 1000, dtype=jnp.int32)
    run(monkeypatch, jax.vmap(collatz), (numbers,), spec=WAVES[wave], threads=128)


@pytest.mark.long
def test_random_elements(monkeypatch):
    """Random programs of 64 elements each, on blocks of 64 threads, with AddressSanitizer."""
    found = []

    @settings(deadline=None, derandomize=True, database=None, max_examples=12)
    @given(programs(), st.integers(0, 5))
    def each(program, seed):
        def function(*state):
            return random_run((("fori", 3, seed % 2 > 0, program),), state)

        states = [initial_state(100 * seed + k) for k in range(64)]
        arguments = tuple(np.stack(parts) for parts in zip(*states, strict=True))
        with monkeypatch.context() as patched:
            patched.setattr("jax_cocktail.passes.limits_for", lambda *_: EAGER)
            emulation = Emulation(launches=[], sanitizer="address").install(patched)
            options = {"force": "cocktail", "strict": True, "units": 3}
            ours = jax_cocktail.jit(jax.vmap(function), options=options)(*arguments)
            check_state(ours, jax.jit(jax.vmap(function))(*arguments))
        for emitted, _, _ in emulation.launches:
            found.append(sum(map(by_threads, walk(emitted.program.entry))))

    each()
    assert any(found), found


@pytest.mark.parametrize("sanitizer", [None, "thread"])
def test_arrays_that_a_trip_on_another_thread_reads(sanitizer, monkeypatch):
    """One unit has all elements, and its threads copy the array that all elements begin with."""

    def each(length, rows):
        def step(state):
            k, rows = state
            new = jnp.arange(8.0) + k
            return k + 1, rows.at[k].set(new).at[k // 2 + 1].set(new)

        return jax.lax.while_loop(lambda state: state[0] < length, step, (jnp.int32(0), rows))

    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 9, 64).astype(np.int32)
    rows = rng.normal(size=(40, 8)).astype(np.float32)
    how = {"spec": WAVES[64], "threads": 128, "sanitizer": sanitizer}
    run(monkeypatch, jax.vmap(each, in_axes=(0, None)), (lengths, rows), **how)
