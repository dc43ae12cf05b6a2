"""One binary serves any size of a batch or cache: what a second size shows to vary is a launch parameter."""

from __future__ import annotations

import shutil
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.lowering.run import stopwatch
from jax_cocktail.memory import MEMORY
from jax_cocktail.schedule import general
from tests.api.one_binary import HIDDEN, called
from tests.api.sized_programs import LENGTH, OWN, PROGRAMS, array, attending

SIZES = (5, 40, 2, 31, 32, 33, 131)  # the first two are what a family learns from
MOST = 6  # programs: one for the first size, one for few and one for many, or more where something is decided


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "cache"))
    MEMORY.general.clear()
    monkeypatch.setattr(MEMORY.counts, "compiled", 0)



# Each in one way; the other ways take as long again.
WAYS = [(name, 1 + (number + more) % 2, more) for number, name in enumerate(PROGRAMS) for more in (0, 1)]


@pytest.mark.all_candidates
@pytest.mark.parametrize(
    ("name", "units"),
    [pytest.param(name, units, marks=[pytest.mark.long] * more) for name, units, more in WAYS],
)
def test_any_size(name, units):
    function, make = PROGRAMS[name]
    for size in SIZES:
        called(function, make(size), units)
    assert jax_cocktail.cache_info().compiled <= MOST


@pytest.mark.parametrize("name", OWN)
def test_sizes_with_texts_of_their_own(name):
    function, make = OWN[name]
    for size in (5, 4, 33):
        called(function, make(size))


@pytest.mark.parametrize("size", [0, 1])
def test_no_element_and_one(size):
    function = jax.vmap(lambda x: lax.fori_loop(0, 5, lambda i, c: jnp.tanh(c * x) + i, x))
    for each in (5, 6, size):
        called(function, (array(each),))


@pytest.mark.parametrize(("length", "sizes"), [(20, (9, 18, 5, 20)), (100, (60, 80, 33))])
def test_padded_to_a_length(length, sizes):
    def function(x):
        missing = length - x.shape[0]

        def step(c, _):
            y = jnp.pad(jnp.tanh(c), ((0, missing), (0, 0)), constant_values=3)
            return c * 0.5 + y[1], (y, y.sum(0))

        return lax.scan(step, x, None, length=3)

    for size in sizes:
        called(function, (array(size, HIDDEN),))


def test_rows_longer_than_the_axis():
    """Rows of 33 elements, if the size is the largest of the few ones."""

    def function(x):
        def step(c, _):
            y = jnp.pad(jnp.tanh(c), ((0, 0), (1, 1)), constant_values=0.1)
            return c * 0.5 + y.sum(-1, keepdims=True) * 0.1, (y.max(-1), (y * y).mean(-1))

        return lax.scan(step, x, None, length=3)

    for size in (9, 16, 31, 30):
        called(function, (array(4, size),))


def test_coincidences():
    """A batch that is as long as the sequence, as wide as a layer, or as a constant of the program."""

    def states(w, xs):
        step = lambda h, x: (jnp.tanh(h @ w + x) + 40 / 1000, h.sum(1) * 40)  # noqa: E731
        return lax.scan(step, xs[0] * 0, xs)

    for size in (33, 50, LENGTH, HIDDEN, 40, 2 * HIDDEN, 4 * HIDDEN):
        called(states, (array(HIDDEN, HIDDEN), array(LENGTH, size, HIDDEN)))


def test_both_axes_of_random_numbers():
    function = lambda x: lax.fori_loop(  # noqa: E731
        0, 3, lambda _, c: jnp.tanh(c + jax.random.normal(jax.random.PRNGKey(3), c.shape)), x
    )
    for size in (5, 40, 33):
        called(function, (array(size, size),))


def test_one_number_stands_for_a_few_and_for_many(monkeypatch):
    """The programs are equal but for what their calls may give."""
    group = (1031, 1223, 1361, 1489)
    monkeypatch.setattr(general, "RANGES", ((33, (group,)), (2, (group,))))
    function, make = PROGRAMS["branch"]
    for size in (40, 64, 33, 20, 5, 2):
        called(function, make(size))


def test_two_sizes_vary():
    function = lambda xs, ys: attending(xs, ys)  # noqa: E731
    for cache, queries in ((20, 10), (33, 40), (64, 64), (12, 90), (35, 35)):
        called(function, (array(cache, HIDDEN), array(queries, HIDDEN)))
    assert jax_cocktail.cache_info().compiled <= 6


@pytest.mark.all_candidates
def test_later_processes_know_what_varies(monkeypatch):
    monkeypatch.setenv("JAX_COCKTAIL_PLANS", "checked")
    function, make = PROGRAMS["branch"]
    for size in (5, 40, 33):
        called(function, make(size))
    built = jax_cocktail.cache_info().compiled
    MEMORY.renew()
    for size in (64, 33, 5, 40, 50):  # what is stored is what would be planned now
        called(function, make(size))
    assert built == 2 and jax_cocktail.cache_info().compiled == 0


def test_reproducible_programs_depend_on_no_other_call():
    function, make = PROGRAMS["branch"]
    options = {"force": "cocktail", "reproducible": True}
    first = jax_cocktail.jit(function, options=options)(*make(40))
    for size in (5, 41, 33):
        called(function, make(size))
    again = jax_cocktail.jit(lambda *a: function(*a), options=options)(*make(40))
    jax.tree.map(np.testing.assert_array_equal, again, first)


def test_a_size_keeps_its_program():
    """What was compiled for a size before others came stays, bit for bit."""
    function, make = PROGRAMS["means"]
    first = jax_cocktail.jit(function, options={"force": "cocktail"})(*make(40))
    for size in (33, 50):
        called(function, make(size))
    again = jax_cocktail.jit(lambda *a: function(*a), options={"force": "cocktail"})(*make(40))
    jax.tree.map(np.testing.assert_array_equal, again, first)


def test_explain_names_the_size():
    function, make = PROGRAMS["branch"]
    for size in (40, 50):
        called(function, make(size))
    report = jax_cocktail.explain(jax_cocktail.jit(function, options={"force": "cocktail"}))(*make(77))
    assert 77 in [length for length, _ in report.captured[0].lengths]
    assert "launch parameter: the length 77" in str(report)


def test_another_program_is_no_size():
    """Constants that vary by themselves are compiled anew, and are right."""
    for factor in (0.5, 0.7, 0.9):
        called(lambda x, f=factor: lax.fori_loop(0, 9, lambda i, c: jnp.tanh(c) * f, x), (array(40),))
    for trips in (20, 30, 40):
        called(lambda x, n=trips: lax.fori_loop(0, n, lambda i, c: jnp.tanh(c) * 0.5, x), (array(40),))


def test_sizes_near_others_are_not_measured(monkeypatch):
    monkeypatch.setenv("JAX_COCKTAIL_PLANS", "cached")
    race = stopwatch.race  # whatever else the machine does: what is timed on a busy one settles no other size
    monkeypatch.setattr(stopwatch, "race", lambda *facts: replace(race(*facts), others=0.0))
    function, make = PROGRAMS["branch"]
    measured = []
    for size in (40, 50, 60, 33, 100):
        why = jax_cocktail.explain(jax_cocktail.jit(function))(*make(size)).why
        measured.append("measured now" in why)
        assert measured[-1] or "for sizes near these" in why
    assert measured == [True, True, False, False, True]
    again = jax_cocktail.explain(jax_cocktail.jit(lambda *a: function(*a)))(*make(60))
    assert "for sizes near these" in again.why


@pytest.mark.parametrize(("row", "sizes"), [(7, (9, 6, 5)), (45, (60, 44, 33))])
def test_row_beside_an_update_of_any_size(row, sizes):
    """A row that lies in an update of most sizes lies behind it for the smallest ones."""

    def function(x):
        def step(_, c):
            y = (c * 2 + 1).transpose(1, 0, 2).reshape(-1, HIDDEN)
            y = lax.dynamic_update_slice(y, jnp.tanh(c[:, 0]), (0, 0))
            return jnp.tanh(c * 0.5 + y[row : row + 1])

        return lax.fori_loop(0, 5, step, x)

    for size in sizes:
        called(function, (array(size, 3, HIDDEN),))


def test_scratch_of_the_longer_axis():
    """Sorting an axis of any size needs less memory than sorting another one, or more."""

    def function(x, y):
        def step(c, _):
            x, y = c
            y = jnp.sort(y * 1.1, 0)
            return (jnp.tanh(jnp.sort(x, 0) - x * 0.5), y), jnp.argsort(y, 0)

        return lax.scan(step, (x, y), None, length=3)

    for size in (40, 60, 33, 1500):
        called(function, (array(size, 6), array(900, 2)))


@pytest.mark.long
def test_many_arrays_of_any_size():
    """Arrays whose bytes are in no proportion, in a workspace for more elements than those planned for."""

    def function(x, weights):
        def step(_, c):
            made = [jnp.tanh(c @ w) for w in weights]
            out = sum(jnp.sort(h, 0) @ h.T @ c * 1e-3 for h in made)
            return jnp.tanh(out + c)

        return lax.fori_loop(0, 2, step, x)

    weights = [array(25, width) for width in range(25, 49, 2)]
    for size in (40, 60, 2000):
        called(function, (array(size, 25), weights))


@pytest.mark.parametrize("units", [1, 2])
def test_even_and_odd_lengths(units, monkeypatch, tmp_path):
    """Loops are unrolled by two, with a trip of its own at the end of an odd number, as of a stand-in."""
    w, u = array(128, 128) * 0.1, array(32, 128) * 0.3

    def states(xs):
        return lax.scan(lambda h, x: (jnp.tanh(h @ w + x @ u),) * 2, jnp.zeros(128), xs)[1]

    for length in (100, 80):
        called(states, (array(length, 32),), units)
    known, other = tmp_path / "cache" / "families", tmp_path / "other"
    shutil.copytree(known, other / "families")
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(other))  # what varies is known, and nothing is built
    before = jax_cocktail.cache_info().compiled
    for length in (100, 81, 64, 33):
        called(states, (array(length, 32),), units)
    assert jax_cocktail.cache_info().compiled - before <= 2
