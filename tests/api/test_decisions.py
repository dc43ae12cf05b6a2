"""Ours or stock: measured once on the first real arguments, stored, and never asked again."""

from __future__ import annotations

import inspect
import json

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.lowering import decisions, lower
from jax_cocktail.schedule.price import Price
from tests.process import python

TARGET = "jax_cocktail_cpu"


def function(x):
    return lax.fori_loop(0, 3, lambda i, a: jnp.sin(a) * x, x)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A cache of its own for every test."""
    root = tmp_path / "cache"
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(root))
    decisions._remembered.clear()
    return root / "decisions"


@pytest.fixture
def measured(monkeypatch):
    """What each measurement finds, in place of real times; the calls are counted."""

    class Measured:
        count = 0
        choice = "cocktail"

    def measure(stock, ours, arguments, margin=1.0):
        Measured.count += 1
        times = (2.0, 1.0) if Measured.choice == "cocktail" else (1.0, 2.0)
        return decisions.Decision(Measured.choice, *times)

    monkeypatch.setattr(decisions, "measure", measure)
    return Measured


def choice(x, **options):
    """The choice for a fresh function, as a call makes it."""
    fresh = jax_cocktail.jit(function, options=options)
    fresh(x)
    return jax_cocktail.explain(fresh)(x)


def test_first_call_measures_and_stores(folder):
    jax_cocktail.jit(function)(jnp.ones(4))
    (path,) = folder.glob("*.json")
    facts = json.loads(path.read_text())
    assert facts["choice"] in ("cocktail", "stock")
    assert facts["stock_seconds"] > 0
    assert facts["cocktail_seconds"] > 0
    ours_won = facts["cocktail_seconds"] <= decisions.MARGIN * facts["stock_seconds"]
    assert facts["choice"] == ("cocktail" if ours_won else "stock")


@pytest.mark.parametrize("winner", ["cocktail", "stock"])
def test_the_winner_runs_and_nothing_is_measured_again(measured, winner):
    measured.choice = winner
    x = jnp.ones(4)
    for _ in range(2):
        report = choice(x)
        assert report.choice == winner
        assert report.stock_seconds is not None
        lowered = jax_cocktail.jit(function).lower(x).as_text()
        assert (TARGET in lowered) == (winner == "cocktail")
    assert measured.count == 1
    assert report.why == "measured before on this machine"


def test_another_size_is_another_program(measured):
    choice(jnp.ones(4))
    choice(jnp.ones(5))
    assert measured.count == 2


def test_profile_off_measures_nothing(measured, folder):
    report = choice(jnp.ones(4), profile="off")
    assert report.choice == "cocktail"
    assert 'not measured (the option profile is "off"): the model says' in report.why
    assert measured.count == 0
    assert not folder.exists()


@pytest.mark.parametrize("force", ["cocktail", "stock"])
def test_force_wins_over_what_is_stored(measured, force):
    measured.choice = "stock" if force == "cocktail" else "cocktail"
    choice(jnp.ones(4))
    assert choice(jnp.ones(4), force=force).choice == force


def test_effects_are_not_repeated_to_measure(measured):
    def printing(x):
        jax.debug.callback(lambda: seen.append(1))
        return function(x)

    seen = []
    wrapped = jax_cocktail.jit(printing)
    wrapped(jnp.ones(4))
    jax.effects_barrier()
    assert (measured.count, len(seen)) == (0, 1)
    assert "not measured (running it has side effects)" in jax_cocktail.explain(wrapped)(jnp.ones(4)).why


def heavy(x, w):
    return lax.fori_loop(0, 3, lambda i, a: jnp.tanh(a @ w), x)


def line_of(found, text):
    lines, start = inspect.getsourcelines(found)
    return start + next(i for i, line in enumerate(lines) if text in line)


@pytest.mark.parametrize("hopeless", [False, True])
def test_stock_by_price_alone(measured, monkeypatch, folder, hopeless):
    """Without a build, and the report says so, now and when the decision is found again."""
    cost = Price(gain=1e-6, loss=1.0, least_loss=1.0 if hopeless else 0.0)
    assert (cost.hopeless(), cost.favours_stock()) == (hopeless, True)
    monkeypatch.setattr(lower, "price", lambda program, cores: cost)
    monkeypatch.setattr(lower, "compile_program", None)  # nobody calls it
    shape = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    arguments = (jnp.ones((64, 64)),) * 2 if hopeless else (shape, shape)
    lower._recent.clear()
    report = jax_cocktail.explain(heavy)(*arguments)
    assert (report.choice, report.captured) == ("stock", ())
    (left,) = report.left
    assert left.what == "while" or left.what == "scan"
    assert f"test_decisions.py:{line_of(heavy, 'fori_loop')}" in left.where
    assert left.reason == report.why
    assert str(cost) in report.why
    assert ("no concrete arguments" in report.why) == (not hopeless)
    assert "no loop or branch" not in str(report)
    assert len(list(folder.glob("*.json"))) == hopeless
    decisions._remembered.clear()
    if hopeless:
        monkeypatch.setattr(lower, "price", None)  # it is stored
    assert jax_cocktail.explain(heavy)(*arguments) == report
    wrapped = jax_cocktail.jit(heavy)
    assert TARGET not in wrapped.lower(*arguments).as_text()
    assert measured.count == 0


def test_the_model_decides_in_transformed_functions(measured, monkeypatch):
    gradient = jax.jit(jax.grad(lambda x: jax_cocktail.jit(function)(x).sum()))
    assert TARGET in gradient.lower(jnp.ones(4)).as_text()
    monkeypatch.setattr(lower, "price", lambda program, cores: Price(0.0, 1.0, 0.0))
    gradient = jax.jit(jax.grad(lambda x: jax_cocktail.jit(function)(x).sum()))
    assert TARGET not in gradient.lower(jnp.ones(4)).as_text()
    assert choice(jnp.ones(4), profile="off").choice == "stock"
    assert measured.count == 0
    choice(jnp.ones(4))  # with values at hand it is measured all the same
    assert measured.count == 1


def test_without_values_the_model_or_what_is_stored_decides(measured):
    x = jnp.ones(4)
    gradient = jax.grad(lambda x: jax_cocktail.jit(function)(x).sum())
    gradient(x)
    jax.jit(lambda x: jax_cocktail.jit(function)(x))(x)
    assert TARGET in jax_cocktail.jit(function).lower(jax.ShapeDtypeStruct((4,), jnp.float32)).as_text()
    assert measured.count == 0
    measured.choice = "stock"
    choice(x)
    assert measured.count == 1
    assert TARGET not in jax_cocktail.jit(function).lower(jax.ShapeDtypeStruct((4,), jnp.float32)).as_text()


@pytest.mark.parametrize(
    "make",
    [
        lambda f: (f, (jnp.ones(4), jnp.ones(3))),
        lambda f: (f, (2.0, jnp.ones(3))),
        lambda f: (f, (jnp.ones(4), {"a": 1, "b": (True, None)})),
    ],
)
def test_arguments_of_every_kind_can_be_measured_on(measured, make):
    wrapped, arguments = make(jax_cocktail.jit(lambda x, unused: function(x)))
    wrapped(*arguments)
    assert measured.count == 1


def test_measured_with_closed_over_keys_keywords_and_static_arguments(measured):
    key, w = jax.random.key(0), jnp.ones(4)

    def everything(x, n, *, y):
        return lax.fori_loop(0, n, lambda i, a: a * y + w + jax.random.normal(key, (4,)), x)

    wrapped = jax_cocktail.jit(everything, static_argnames="n")
    wrapped(jnp.ones(4), 3, y=2.0)
    assert measured.count == 1
    wrapped(jnp.ones(4), n=4, y=2.0)
    assert measured.count == 2


def test_typed_keys_can_be_measured_on(measured):
    jax_cocktail.jit(lambda k: lax.fori_loop(0, 3, lambda i, k: jax.random.fold_in(k, i), k))(
        jax.random.key(0)
    )
    assert measured.count == 1


def test_measuring_does_not_consume_donated_arguments():
    wrapped = jax_cocktail.jit(function, donate_argnums=0)
    x = jnp.ones(1000)
    expected = jax.jit(function)(jnp.ones(1000))
    assert jnp.allclose(wrapped(x), expected)
    assert x.is_deleted()


def test_nested_functions_are_measured_once_as_one(measured):
    inner = jax_cocktail.jit(function)
    jax_cocktail.jit(lambda x: inner(x) + lax.fori_loop(0, 2, lambda i, a: a + 1, x))(jnp.ones(4))
    assert measured.count == 1


def test_stock_means_all_of_it(measured):
    """What a function that chose stock calls does not come back as a custom call."""
    measured.choice = "stock"
    inner = jax_cocktail.jit(function)

    def outer(x):
        y = lax.fori_loop(0, 2, lambda i, a: a + 1, x)
        return lax.fori_loop(0, 2, lambda i, a: inner(jnp.linalg.qr(jnp.outer(a, a))[1][0]), y)

    wrapped = jax_cocktail.jit(outer)
    with pytest.warns(jax_cocktail.CocktailWarning, match="qr"):
        wrapped(jnp.ones(4))
    assert measured.count == 1
    assert TARGET not in jax_cocktail.jit(outer).lower(jnp.ones(4)).as_text()


@pytest.mark.parametrize("text", ["", "{", '{"format": 1, "choice": "rm -rf"}', "[1]"])
def test_a_damaged_file_is_measured_again(measured, folder, text):
    choice(jnp.ones(4))
    (path,) = folder.glob("*.json")
    path.write_text(text)
    decisions._remembered.clear()
    assert choice(jnp.ones(4)).choice == "cocktail"
    assert measured.count == 2
    assert json.loads(path.read_text())["choice"] == "cocktail"


def test_a_file_that_others_can_write_is_not_believed(measured, folder):
    choice(jnp.ones(4))
    (path,) = folder.glob("*.json")
    path.chmod(0o666)
    decisions._remembered.clear()
    choice(jnp.ones(4))
    assert measured.count == 2


def test_clear_cache_forgets(measured, folder):
    choice(jnp.ones(4))
    jax_cocktail.clear_cache()
    assert not list(folder.glob("*.json"))
    choice(jnp.ones(4))
    assert measured.count == 2


def test_real_times_are_plausible():
    jaxpr = jax.make_jaxpr(function)(jnp.ones(4))
    found = decisions.measure(jaxpr, jaxpr, [jnp.ones(4)])
    assert found.stock_seconds is not None and found.cocktail_seconds is not None
    assert 1e-7 < found.stock_seconds < 10
    assert 1e-7 < found.cocktail_seconds < 10


def test_a_second_process_believes_the_first(folder):
    program = """
        import jax.numpy as jnp, jax_cocktail
        from jax import lax
        from jax_cocktail.lowering import decisions
        real, count = decisions.measure, []
        decisions.measure = lambda *a: count.append(1) or real(*a)
        jax_cocktail.jit(lambda x: lax.fori_loop(0, 3, lambda i, a: a + x, x))(jnp.ones(3))
        print(len(count))
    """
    assert [python(program).strip() for _ in range(2)] == ["1", "0"]
