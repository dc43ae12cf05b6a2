"""One binary serves many lengths of a sequence: a new length is planned, and not compiled."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.lowering.choice import request, variants
from jax_cocktail.memory import MEMORY
from tests.api.one_binary import HIDDEN, agree, called, lstm

BATCH = 3
LENGTHS = (1, 50, 3, 14, HIDDEN)  # every second one in two units


@pytest.fixture(autouse=True)
def counters(monkeypatch, tmp_path):
    """A cache of its own for every test, and counters that begin at zero."""
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("compiled", "resized"):
        monkeypatch.setattr(MEMORY.counts, name, 0)


def array(*shape):
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape) * 0.4, jnp.float32)


def weights():
    return array(HIDDEN, 4 * HIDDEN), array(HIDDEN, 4 * HIDDEN) * 1.1, array(4 * HIDDEN)


def loss(*arguments):
    (h, _), ys = lstm(*arguments)
    return jnp.mean(ys**2) + jnp.sum(h)


gradient = jax.grad(loss, (0, 1, 2, 3))


def decay(xs, reverse=False):
    return lax.scan(lambda c, x: (0.9 * c + x, jnp.tanh(c)), jnp.zeros(xs.shape[1:]), xs, reverse=reverse)


def counted():
    info = jax_cocktail.cache_info()
    return info.compiled, info.resized


# ---- nothing is compiled for a new length ------------------------------------------------------------------
@pytest.mark.all_candidates
@pytest.mark.parametrize("units", [1, 2])
@pytest.mark.parametrize("function", [lstm, gradient], ids=["lstm", "gradient"])
def test_a_new_length_is_not_compiled(function, units):
    arguments = weights()
    called(function, (*arguments, array(160, BATCH, HIDDEN)), units)
    assert counted() == (1, 0)
    for number, length in enumerate((141, 192, 200), 1):
        called(function, (*arguments, array(length, BATCH, HIDDEN)), units)
        assert counted() == (1, number)


@pytest.mark.all_candidates
@pytest.mark.parametrize("which", [0, *(pytest.param(k, marks=pytest.mark.long) for k in (1, 2, 3))])
def test_another_length_keeps_the_way_of_the_first(which, monkeypatch):
    """The model may rank ways that are alike otherwise for another length."""
    arguments, every = weights(), variants.candidates
    with monkeypatch.context() as patch:
        patch.setattr(variants, "candidates", lambda *given: every(*given)[which:][:1])
        called(lstm, (*arguments, array(160, BATCH, HIDDEN)), 2)
    monkeypatch.setattr(request, "MODEL", replace(request.MODEL, alike=100))
    called(lstm, (*arguments, array(141, BATCH, HIDDEN)), 2)
    assert counted() == (1, 1)


def hidden(*arguments):
    return lstm(*arguments)[1]


FROM_THE_END = {
    "last": lambda *a: hidden(*a)[-1],
    "second layer": lambda w, u, b, xs: hidden(w, u, b, hidden(w, u, b, xs))[-1],
    "last five": lambda *a: hidden(*a)[-5:],
    "first and last": lambda *a: hidden(*a)[0] + hidden(*a)[-1],
    "gradient": jax.grad(lambda *a: jnp.sum(hidden(*a)[-1] ** 2)),
    "gradient, first": jax.grad(lambda *a: jnp.sum(hidden(*a, True)[0] ** 2)),
}


@pytest.mark.all_candidates
@pytest.mark.parametrize("name", FROM_THE_END)
def test_places_from_the_end(name):
    arguments = weights()
    for number, length in enumerate((160, 141, 300)):
        called(FROM_THE_END[name], (*arguments, array(length, BATCH, HIDDEN)))
        assert counted() == (1, number)


def test_a_while_loop_that_a_length_bounds():
    def search(xs):
        def go_on(state):
            i, total = state
            return (i < len(xs)) & (jnp.sum(total) < 30.5)

        return lax.while_loop(go_on, lambda s: (s[0] + 1, s[1] + xs[s[0]] ** 2), (0, jnp.zeros(HIDDEN)))

    for length in (40, 71, 100):
        called(search, (array(length, HIDDEN),))
    assert counted() == (1, 2)


def test_a_stored_program_has_its_launch_parameters(monkeypatch):
    monkeypatch.setenv("JAX_COCKTAIL_PLANS", "cached")
    given = {n: array(n, HIDDEN) for n in (30, 45, 60)}
    first = {n: called(decay, (x,)) for n, x in given.items()}
    assert counted() == (1, 2)
    MEMORY.plans.clear()  # what a new process knows
    MEMORY.lookups.clear()
    for n, x in given.items():
        again = called(lambda x: decay(x), (x,))
        jax.tree.map(np.testing.assert_array_equal, again, first[n])
    assert counted() == (1, 2) and jax_cocktail.cache_info().programs.stored == 3


@pytest.mark.all_candidates
def test_calls_of_different_lengths_at_the_same_time():
    given = [array(n, 5) for n in (20, 90, 41, 300)]
    ours = [
        jax_cocktail.jit(decay, options={"force": "cocktail", "units": 2}).lower(x).compile() for x in given
    ]
    stock = [jax.jit(decay)(x) for x in given]
    assert counted()[0] == 1

    def work(number):
        for _ in range(50):
            agree(ours[number](given[number]), stock[number])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_explain_names_the_lengths():
    report = jax_cocktail.explain(jax_cocktail.jit(decay, options={"force": "cocktail"}))(array(40, 5))
    (region,) = report.captured
    assert [length for length, _ in region.lengths] == [40] and "(decay)" in region.lengths[0][1]
    assert "launch parameter: the length 40 at" in str(report)
    report = jax_cocktail.explain(jax_cocktail.jit(decay, options={"force": "cocktail"}))(array(4, 2, 5))
    assert report.captured[0].lengths == () and "launch parameter" not in str(report)


# ---- results are those of stock XLA ------------------------------------------------------------------------
def nested(xs):
    def row(c, x):
        return lax.scan(lambda c, y: (jnp.tanh(c + y), c * 2), c, x)

    return lax.scan(row, jnp.zeros(4), xs)


def branch_inside(xs):
    def step(c, x):
        return lax.cond(x[0] > 0, lambda: (c + x, c), lambda: (c - x, x))

    return lax.scan(step, jnp.zeros(xs.shape[1]), xs)


def inside_branch(xs):
    return lax.cond(xs[0, 0] > 0, lambda: decay(xs), lambda: (xs[0], jnp.flip(xs, 0)))


def carries_the_length(xs):
    return lax.fori_loop(0, len(xs), lambda i, a: a.at[i].set(jnp.tanh(jnp.sum(a)) + a[i] / 2), xs)


def square(xs):
    return lax.fori_loop(0, len(xs), lambda i, a: jnp.tanh(a @ a * 0.1 + a[i]), jnp.outer(xs, xs))


def rows_and_columns(xs, w):
    ys = decay(xs)[1]
    scores = jax.nn.softmax(ys @ ys.T)
    return jnp.cumsum(ys, 0), scores @ ys, jnp.reshape(ys, (-1,)).sum(), jnp.concatenate([ys, xs[:1]]) @ w


def attention(xs):
    def step(c, x):
        return c * 0.5 + x, jax.nn.softmax(xs @ (x + c)) @ xs

    return lax.scan(step, jnp.zeros(xs.shape[1]), xs)


def gathers(xs):
    index = jnp.arange(len(xs))[::-1]
    return lax.scan(lambda c, i: (c + xs[i], xs[(i * 3) % len(xs)]), jnp.zeros(xs.shape[1]), index)


def masked_prefix(xs):
    """Sums of selected rows, on accumulators for a few columns."""

    def body(carry):
        i, c = carry
        rows = jnp.where((jnp.arange(xs.shape[0]) <= i)[:, None], xs, 0)
        return i + 1, c + rows.sum(0) + xs[i]

    return lax.while_loop(
        lambda carry: (carry[0] < xs.shape[0]) & (carry[1][0] < 1e6), body, (0, jnp.zeros(5, xs.dtype))
    )


PROGRAMS = {
    "lstm": (lambda xs: lstm(*weights(), xs), lambda n: (array(n, BATCH, HIDDEN),)),
    "reverse": (lambda xs: lstm(*weights(), xs, reverse=True), lambda n: (array(n, 1, HIDDEN),)),
    "gradient": (lambda xs: gradient(*weights(), xs), lambda n: (array(n, BATCH, HIDDEN),)),
    "second gradient": (
        jax.grad(lambda xs: jnp.sum(jax.grad(lambda x: jnp.sum(decay(x)[1] ** 2))(xs) ** 2)),
        lambda n: (array(n, 5),),
    ),
    "nested": (nested, lambda n: (array(n, 13, 4),)),
    "nested alike": (nested, lambda n: (array(n, n, 4),)),
    "branch inside": (branch_inside, lambda n: (array(n, 8),)),
    "inside branch": (inside_branch, lambda n: (array(n, HIDDEN),)),
    "carry": (carries_the_length, lambda n: (array(n),)),
    "square": (square, lambda n: (array(n),)),
    "rows and columns": (rows_and_columns, lambda n: (array(n, HIDDEN), array(HIDDEN, 7))),
    "attention": (jax.grad(lambda xs: jnp.sum(attention(xs)[1] ** 2)), lambda n: (array(n, HIDDEN),)),
    "masked prefix": (masked_prefix, lambda n: ((array(n, 5) * 9).astype(jnp.int32),)),
    "gather": (gathers, lambda n: (array(n, 6),)),
    "vmap": (jax.vmap(decay), lambda n: (array(4, n, 5),)),
    "two lengths": (lambda xs, ys: (decay(xs), decay(ys, True)), lambda n: (array(n, 5), array(n + 2, 5))),
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_length(name):
    function, make = PROGRAMS[name]
    for number, length in enumerate(LENGTHS):
        called(function, make(length), units=1 + number % 2)
