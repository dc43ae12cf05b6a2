"""Names and files of any content are data; a program that moves is neither compiled nor timed again."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.lowering.choice import decisions
from jax_cocktail.lowering.edge.jaxpr_text import jaxpr_text
from jax_cocktail.memory import MEMORY
from tests.names import NAMES

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it

SOURCE = """
def {name}(x):
    def body(i, a):
        return inner(a) * 3 + i
    return lax.fori_loop(0, 3, body, x)
"""
X = np.arange(4, dtype=np.float32)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "cache"))
    MEMORY.warned.clear()


def defined(name="f", file="a.py", lines=0, inner="relu", refused=False):
    """A function with a loop that calls another function, at this place."""

    def call(a):
        if refused:
            a = jax.pure_callback(lambda x: x, a, a)
        return jax.nn.relu(a) + jnp.sin(a)

    call.__name__ = call.__qualname__ = inner
    scope = {"lax": lax, "inner": jax.jit(call)}
    exec(compile("\n" * lines + SOURCE.format(name="f"), file, "exec"), scope)
    scope["f"].__name__ = scope["f"].__qualname__ = name
    return scope["f"]


def taken(name, otherwise):
    """The name, unless Python or JAX refuse it for a file or for a function inside."""
    return otherwise if "\0" in name or "\udcff" in name else name


def entries():
    folder = Path(os.environ["JAX_COCKTAIL_CACHE_DIR"]) / "entries"
    return sorted(each.name for each in folder.iterdir())


def test_names_are_data(tmp_path):
    """All of them are one program."""
    wanted = np.asarray(jax.jit(defined())(X))
    fingerprints = set()
    for number, name in enumerate(NAMES.values()):
        file, inner = taken(name, "a.py"), taken(name, "relu")
        folder = tmp_path / f"dump{number}"
        options = {"force": "cocktail", "profile": "off", "dump_to": str(folder), "units": 1}
        ours = jax_cocktail.jit(defined(name, file, inner=inner), options=options)
        np.testing.assert_allclose(ours(X), wanted, rtol=1e-6)
        report = jax_cocktail.explain(ours)(X)
        assert report.choice == "cocktail"
        assert all(line.isprintable() for line in str(report).split("\n"))
        fingerprints.add(report.captured[0].fingerprint)
        assert len(list(folder.iterdir())) == 2, "the program and the decision"
    assert len(fingerprints) == len(entries()) == 1


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_messages_are_one_line(name):
    ours = jax_cocktail.jit(defined(name, taken(name, "a.py"), refused=True), options={"force": "cocktail"})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ours.lower(X)
    assert told and all(str(each.message).isprintable() for each in told)
    assert all(each.filename.isprintable() for each in told)


def test_a_moved_program_is_known():
    """Its decision and its binary are those of the program in its old place, with its old names."""
    first = jax_cocktail.jit(defined())
    first(X)
    (before,) = [jax_cocktail.explain(first)(X)]
    for place in ({"lines": 1}, {"file": "b.py"}, {"name": "g"}, {"inner": "gelu"}):
        report = jax_cocktail.explain(jax_cocktail.jit(defined(**place)))(X)
        assert report.why == before.why and "before" in report.why
        assert report.trials == before.trials and report.choice == before.choice


@jax_cocktail.recursive
def count(self, n):
    return lax.cond(n <= 0, lambda: 0, lambda: self(n - 1) + 1)


def body_of(function, *arguments):
    return jax.make_jaxpr(function)(*arguments)


def test_what_a_decision_is_about():
    def smooth(slope):
        @jax.custom_vjp
        def f(x):
            return jnp.sin(x) * slope

        f.defvjp(lambda x: (f(x), x), lambda x, ct: (ct * jnp.cos(x),))
        return f

    def loop(function):
        return body_of(lambda x: lax.fori_loop(0, 3, lambda i, a: function(a), x), X)

    assert jaxpr_text(loop(smooth(2.0))) == jaxpr_text(loop(smooth(2.0)))
    different = [loop(smooth(2.0)), loop(smooth(3.0)), loop(jnp.sin), loop(jnp.cos)]
    different += [loop(jax.jit(jnp.sin)), body_of(jnp.sin, X), body_of(jnp.sin, X[:2])]
    different += [body_of(lambda x, n=n: lax.fori_loop(0, n, lambda i, a: a * 2, x), X) for n in (3, 4)]
    different += [body_of(lambda x, axis=axis: x.sum(axis), np.ones((2, 2))) for axis in (0, 1)]
    different += [body_of(lambda a, b: a - b, 1.0, 2.0), body_of(lambda a, b: b - a, 1.0, 2.0)]
    different += [body_of(count, 3), body_of(lambda n: count(count(n)), 3)]
    inner = [jax_cocktail.jit(defined(), options={"force": force}) for force in ("stock", "auto")]
    different += [body_of(function, X) for function in inner]
    keys = [decisions.key_of(closed, 1) for closed in different]
    assert len(set(keys)) == len(keys)


def renamed(name):
    def count(self, n):
        return lax.cond(n <= 0, lambda: 0, lambda: self(n - 1) + 1)

    count.__name__ = count.__qualname__ = name
    return jax_cocktail.recursive(count, max_depth=8)


def test_the_name_of_a_recursion_is_in_its_message_alone():
    fingerprints = set()
    for name, told in (("f", "f called"), ("größe", "größe called"), ("a\nb", "a_b called")):
        ours = jax_cocktail.jit(renamed(name), options={"force": "cocktail", "units": 1})
        assert int(ours(5)) == 5
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=f"jax_cocktail: {told} itself"):
            jax.block_until_ready(ours(9))
        fingerprints.add(jax_cocktail.explain(ours)(5).captured[0].fingerprint)
    assert len(fingerprints) == len(entries()) == 1
    assert jaxpr_text(body_of(renamed("f"), 3)) == jaxpr_text(body_of(renamed("g"), 3))
