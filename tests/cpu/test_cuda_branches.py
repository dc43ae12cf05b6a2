"""Vmapped branches outside of loops on threads of a GPU, against stock: each thread computes one side."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jax_cocktail
from jax_cocktail.utask.ir import BranchUTask, by_threads, walk
from tests.cpu.by_threads import run
from tests.cpu.emulated import WAVES, Emulation
from tests.cpu.runner import EAGER
from tests.strategies import check_state, initial_state, programs
from tests.strategies import run as random_run

RNG = np.random.default_rng(0)
FLAGS = {"mixed": RNG.integers(2, size=200) > 0, "all": np.ones(200, bool), "none": np.zeros(200, bool)}
X = RNG.normal(size=200).astype(np.float32)


def steps(count):
    return lambda x: jax.lax.fori_loop(0, count, lambda i, v: jnp.sin(v) + 0.1 * i, x)


def either(flag, x):
    return jax.lax.cond(flag, steps(30), steps(9), x)


@pytest.mark.parametrize(("name", "sanitizer"), [("mixed", "thread"), ("all", "address"), ("none", None)])
def test_branch(name, sanitizer, monkeypatch):
    emitted = run(monkeypatch, jax.vmap(either), (FLAGS[name], X), branches=1, sanitizer=sanitizer)
    assert emitted.source.count("ck_sin(") == 2  # once in each side, and nowhere else
    assert "ck_wait" not in emitted.source and "ck_block_barrier" not in emitted.source


@pytest.mark.parametrize("axis", [0, 1])
def test_switch_of_vectors(axis, monkeypatch):
    def choose(i, x):
        sides = [steps(7), steps(20), lambda x: x, lambda x: steps(11)(x) * jnp.sum(x)]
        return jax.lax.switch(i, sides, x)

    which = RNG.integers(-1, 5, size=100).astype(np.int32)
    x = RNG.normal(size=(100, 3) if axis == 0 else (3, 100)).astype(np.float32)
    batched = jax.vmap(choose, in_axes=(0, axis), out_axes=axis)
    run(monkeypatch, batched, (which, x), branches=3, sanitizer="address")


def test_branch_in_a_branch(monkeypatch):
    def nested(a, b, x):
        def inner(x):
            return jax.lax.cond(b, steps(15), steps(8), x) + 1

        return jax.lax.cond(a, inner, steps(30), x)

    run(monkeypatch, jax.vmap(nested), (FLAGS["mixed"], X > 0, X), branches=2)


def test_integers_and_loops_of_unknown_length(monkeypatch):
    def one(n, x):
        def first(n, x):
            end = jax.lax.while_loop(lambda n: n < 1000, lambda n: n * 2 + 1, jnp.abs(n))
            return end, x, end % 2 == 0

        def second(n, x):
            n, x = jax.lax.fori_loop(0, 20, lambda i, s: (s[0] * 3 + i, jnp.cos(s[1])), (n, x))
            return n, x, n > 0

        return jax.lax.cond(n % 3 == 0, first, second, n, x)

    run(monkeypatch, jax.vmap(one), (np.arange(-100, 100, dtype=np.int32), X), sanitizer="thread")


def test_operators_over_the_whole_batch(monkeypatch):
    """Sums over what the threads of all blocks have written, which other threads then read."""

    def function(flags, x):
        y = jax.vmap(either)(flags, x - jnp.mean(x))
        z = jax.vmap(either)(y > jnp.sum(y) / 200, y[::-1])
        return jnp.sum(z), jnp.cumsum(z), y

    run(monkeypatch, function, (FLAGS["mixed"], X), loops=2, branches=2, sanitizer="thread")


def test_inside_of_a_loop_that_stays(monkeypatch):
    def function(x):
        def step(_, x):
            return jax.vmap(either)(x > 0, x) - jnp.mean(x)

        return jax.lax.fori_loop(0, 3, step, x)

    run(monkeypatch, function, (X,), branches=1, sanitizer="thread")


def test_not_a_number_in_the_side_not_taken(monkeypatch):
    def careful(x):
        def root(x):
            return jax.lax.fori_loop(0, 20, lambda _, y: 0.5 * (y + x / y), jnp.sqrt(x) + jnp.log(x + 1))

        return jax.lax.cond(x > 0, root, steps(9), x)

    x = np.abs(X)
    x[::3] = np.resize(np.array([0, -1, -np.inf, np.inf, np.nan, -0.0, -9], np.float32), x[::3].shape)
    run(monkeypatch, jax.vmap(careful), (x,), branches=1)


def test_gradient(monkeypatch):
    """Behind a batch, the way back has the branches; its loops read what those of both sides have kept."""

    def loss(x, flags):
        batched = jax.vmap(lambda flag, x: jax.lax.cond(flag, steps(70), steps(90), x))
        return jnp.sum(batched(flags, x) ** 2)

    run(monkeypatch, jax.grad(loss), (X, FLAGS["mixed"]), loops=4, branches=2)


def test_gradient_of_an_element(monkeypatch):
    def curved(count):
        return lambda x: jax.lax.fori_loop(0, count, lambda _, v: jnp.tanh(v) * v + 1, x)

    one = jax.grad(lambda x, flag: jax.lax.cond(flag, curved(3), curved(8), x))
    run(monkeypatch, jax.vmap(one), (X, FLAGS["mixed"]), branches=3, sanitizer="address")


def test_batches_of_batches(monkeypatch):
    flags, x = FLAGS["mixed"].reshape(8, 25), X.reshape(8, 25)
    run(monkeypatch, jax.vmap(jax.vmap(either)), (flags, x), branches=1, sanitizer="address")


def test_straight_sides(monkeypatch):
    """The branch itself has no loop."""

    def heavy(x):
        for _ in range(12):
            x = jnp.tanh(jnp.exp(-x * x)) + 0.5
        return x

    def function(x):
        x = x - jax.lax.fori_loop(0, 3, lambda _, v: jnp.cumsum(v) / 200, x)
        return jax.vmap(lambda x: jax.lax.cond(x > 0, heavy, lambda x: x, x))(x)

    run(monkeypatch, function, (X,), branches=1, sanitizer="thread")


def test_few_elements_stay(monkeypatch):
    run(monkeypatch, jax.vmap(either), (FLAGS["mixed"][:63], X[:63]), loops=0)


@pytest.mark.parametrize("wave", [32, 64])
def test_waves(wave, monkeypatch):
    run(monkeypatch, jax.vmap(either), (FLAGS["mixed"], X), branches=1, spec=WAVES[wave], threads=128)


@pytest.mark.long
def test_random_branches(monkeypatch):
    """Random programs as the sides of 64 elements, on blocks of 64 threads, with AddressSanitizer."""
    found = []

    @settings(deadline=None, derandomize=True, database=None, max_examples=8)
    @given(programs(), programs(), st.integers(0, 5))
    def each(first, second, seed):
        def one(flag, *state):
            def side(program, length):
                return lambda *state: random_run((("fori", length, False, program),), state)

            return jax.lax.cond(flag, side(first, 3), side(second, 2), *state)

        states = [initial_state(100 * seed + k) for k in range(64)]
        state = tuple(np.stack(parts) for parts in zip(*states, strict=True))
        arguments = (np.random.default_rng(seed).integers(2, size=64) > 0, *state)
        with monkeypatch.context() as patched:
            patched.setattr("jax_cocktail.passes.limits_for", lambda *_: EAGER)
            emulation = Emulation(launches=[], sanitizer="address").install(patched)
            options = {"force": "cocktail", "strict": True, "units": 3}
            ours = jax_cocktail.jit(jax.vmap(one), options=options)(*arguments)
            check_state(ours, jax.jit(jax.vmap(one))(*arguments))
        for emitted, _, _ in emulation.launches:
            loops = [s for s in walk(emitted.program.entry) if by_threads(s)]
            found.append(sum(isinstance(s, BranchUTask) for loop in loops for s in walk(loop.body)))

    each()
    assert any(found), found
