"""The options `choices` and `without`: each alternative gives stock's results; other names are errors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail import Options, config
from jax_cocktail.lowering.choice import variants
from jax_cocktail.passes import OPTIONAL
from jax_cocktail.utask.candidate import way

OURS = {"force": "cocktail"}


def network(w, xs):
    """A recurrence over rows with a product, then a while loop, then a branch for each row."""

    def step(carry, x):
        h, c = carry
        gates = jnp.tanh(h @ w + x)
        c = c * jax.nn.sigmoid(gates) + jnp.exp(-gates * gates)
        return (jnp.tanh(c), c), c.sum(-1)

    (h, c), sums = lax.scan(step, (xs[0], xs[0]), xs)
    h, _ = lax.while_loop(lambda s: s[1] < 5, lambda s: (jnp.sin(s[0]) + 0.1, s[1] + 1), (h, 0))
    rows = jax.vmap(lambda r: lax.cond(r.sum() > 0, jnp.cos, lambda v: v @ w, r))(c)
    return h, rows, sums


def arguments():
    random = np.random.default_rng(0)
    return random.normal(size=(16, 16)).astype("f") / 4, random.normal(size=(19, 4, 16)).astype("f")


def choices_of(function, *args, **options):
    report = jax_cocktail.explain(jax_cocktail.jit(function, options={**OURS, **options}))(*args)
    return [text for region in report.captured for text in region.choices]


def agree(options):
    ours = jax_cocktail.jit(network, options={**OURS, **options})(*arguments())
    stock = jax.jit(network)(*arguments())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=3e-5, atol=3e-5), ours, stock)


@pytest.mark.parametrize("units", [1, 2])
@pytest.mark.parametrize("factor", [2, 4, 8, "whole"])
def test_unrolled_loops_compute_what_stock_does(factor, units):
    named = {f"unroll.{n}": factor for n in (1, 2)} if factor == 2 else {"unroll.1": factor}
    agree({"choices": named, "units": units})


@pytest.mark.parametrize("units", [1, 2])
@pytest.mark.parametrize("name", sorted(OPTIONAL))
def test_every_pass_can_be_left_out(name, units):
    agree({"without": (name,), "units": units})


def test_layers_run_one_step_apart_if_the_user_says_so(monkeypatch):
    """Recurrences of stacked layers side by side on two cores: fewer barriers, the same results."""

    def stacked(ws, xs):
        def step(hs, x):
            following = []
            for h, w in zip(hs, ws, strict=True):
                x = jnp.tanh(h @ w + x @ w.T)
                following.append(x)
            return tuple(following), x

        return lax.scan(step, tuple(jnp.zeros(xs.shape[1:]) for _ in ws), xs)

    random = np.random.default_rng(0)
    ws = [random.normal(size=(128, 128)).astype("f") / 12 for _ in range(4)]
    xs = random.normal(size=(40, 1, 128)).astype("f")
    monkeypatch.setattr(variants, "candidates", lambda *_: (way(2),))
    waits = {}
    for on in (False, True):
        ours = jax_cocktail.jit(stacked, options={**OURS, "units": 2, "choices": {"pipeline": on}})
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), ours(ws, xs), jax.jit(stacked)(ws, xs)
        )
        (region,) = jax_cocktail.explain(ours)(ws, xs).captured
        waits[on] = region.waits
        assert ("pipeline" in region.fired) is on
    assert waits[True] < waits[False]


def test_explain_lists_the_choices():
    found = choices_of(network, *arguments(), units=1)
    assert any(text.startswith("unroll.1: 1, not 2, 4, 8") and "test_choices.py" in text for text in found)
    assert "hoist: off, not on" in choices_of(network, *arguments(), without="hoist")


@pytest.mark.parametrize(("asked", "taken"), [(1, "1"), (3, "3"), (19, "whole"), (100, "whole")])
def test_scan_says_how_far_it_is_unrolled(asked, taken):
    def sums(xs):
        return lax.scan(lambda c, x: (jnp.sin(c + x), c * x), xs[0], xs, unroll=asked)

    xs = np.linspace(0, 1, 38, dtype="f").reshape(19, 2)
    (found,) = (text for text in choices_of(sums, xs, units=1) if text.startswith("unroll.1"))
    assert found.startswith(f"unroll.1: {taken}, ")
    ours, stock = (jit(sums)(xs) for jit in (lambda f: jax_cocktail.jit(f, options=OURS), jax.jit))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ours, stock)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"choices": {"unrol.1": 2}}, "there is no choice unrol.1; the choices are: .*unroll.1 \\(1, 2"),
        ({"choices": {"unroll.1": 3}}, "the choice unroll.1 cannot be 3"),
        ({"without": "fuse"}, "there is no choice fuse"),
        ({"without": ("unroll.1",)}, "the choice unroll.1 cannot be off"),
    ],
)
def test_other_names_are_errors_of_the_call(options, message):
    for force in ("auto", "cocktail"):
        wrong = jax_cocktail.jit(network, options={**options, "force": force, "compile": "background"})
        with pytest.raises(jax_cocktail.ChoiceError, match=message):
            wrong(*arguments())


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"choices": 3}, TypeError),
        ({"choices": ["ab", 3]}, TypeError),
        ({"choices": "unroll.1"}, ValueError),
        ({"choices": {"": 3}}, ValueError),
        ({"without": 3}, TypeError),
        ({"without": (3,)}, TypeError),
        ({"without": {"hoist": 1}}, TypeError),
    ],
)
def test_other_values_are_errors_at_once(values, kind):
    with pytest.raises(kind, match=next(iter(values))):
        jax_cocktail.jit(network, options=values)


def test_they_have_one_spelling(monkeypatch):
    one = Options(choices={"unroll.1": 4, "hoist": False}, without=["sink", "hoist"])
    two = Options(choices="hoist=off, unroll.1=4", without="hoist,sink")
    assert one == two and one.token == two.token and one.compile == "now"
    assert one.pinned == (("hoist", "off"), ("sink", "off"), ("unroll.1", "4"))
    monkeypatch.setenv("JAX_COCKTAIL_CHOICES", "unroll.1=4")
    monkeypatch.setenv("JAX_COCKTAIL_WITHOUT", "hoist")
    assert config.resolve({}).pinned == (("hoist", "off"), ("unroll.1", "4"))
    with jax_cocktail.options(choices={"unroll.1": 2}):
        assert config.resolve({}).choices == (("unroll.1", "2"),)
    assert Options().pinned == ()
