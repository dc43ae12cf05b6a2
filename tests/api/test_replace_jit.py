"""`replace_jit`: libraries that call `jax.jit` themselves get ours."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_cocktail
from jax_cocktail.api import Jit

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it

STOCK = jax.jit
X = np.arange(4.0, dtype=np.float32)
LIBRARY = """
import functools
import jax
from jax import jit, lax

@jit
def plain(x):
    return lax.fori_loop(0, 3, lambda _, c: c * 2 + 1, x)

@functools.partial(jax.jit, static_argnames=("trips",), donate_argnums=0)
def partly(x, trips):
    return lax.fori_loop(0, trips, lambda _, c: c * 2 + 1, x)

def solve(x):
    return jax.jit(lambda x: lax.while_loop(lambda c: c[0] < 20, lambda c: c * 2 + 1, x))(x)
"""


def is_ours(jitted):
    return isinstance(jitted, Jit)


def made():
    return jax.jit(lambda x: x)


@pytest.fixture(autouse=True)
def restored():
    yield
    assert jax.jit is STOCK


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A function that imports a library; every test has a module of its own."""
    (tmp_path / "some_library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "some_library", raising=False)
    yield lambda: importlib.import_module("some_library")
    sys.modules.pop("some_library", None)


def test_every_way_to_call_it():
    with jax_cocktail.replace_jit():
        assert is_ours(jax.jit(jnp.sin))
        assert is_ours(jax.jit(static_argnums=0)(lambda n: n))
        assert is_ours(functools.partial(jax.jit, inline=True)(jnp.sin))

        @jax.jit
        def decorated(x):
            return x + 1

        assert is_ours(decorated)
        assert inspect.signature(jax.jit) == inspect.signature(STOCK)
        assert jax.jit.__name__ == "jit" and jax.jit.__doc__ == STOCK.__doc__
    np.testing.assert_array_equal(decorated(X), X + 1)  # and it stays ours
    assert not is_ours(made())


def test_a_library_imported_in_the_block(library):
    with jax_cocktail.replace_jit(force="cocktail", strict=True):
        module = library()
        with jax_cocktail.options(units=1):
            np.testing.assert_array_equal(module.plain(X), 8 * X + 7)
        np.testing.assert_array_equal(module.solve(X), 32 * X + 31)
        np.testing.assert_array_equal(module.partly(jnp.asarray(X), trips=2), 4 * X + 3)
        report = jax_cocktail.explain(module.plain)(X)
    assert report.choice == "cocktail" and len(report.captured) == 1
    assert is_ours(module.plain) and is_ours(module.partly)
    assert module.partly.lower(X, trips=2).compile()(X).shape == X.shape
    assert module.plain.trace(X).jaxpr.in_avals[0].shape == X.shape
    assert not is_ours(module.jit(lambda x: x))  # the name that it imported follows the blocks
    with jax_cocktail.replace_jit():
        assert is_ours(module.jit(lambda x: x))


def test_what_was_bound_before_stays_stock(library):
    module = library()
    with jax_cocktail.replace_jit():
        assert not is_ours(module.plain) and not is_ours(module.jit(jnp.sin))
        np.testing.assert_array_equal(module.plain(X), 8 * X + 7)
        np.testing.assert_array_equal(module.solve(X), 32 * X + 31)


def test_jax_and_our_own_calls_stay_stock():
    def inside(name):
        return eval("jax.jit(lambda x: x)", {"jax": jax, "__name__": name})

    with jax_cocktail.replace_jit():
        assert not any(map(is_ours, map(inside, ("jax._src.api", "jaxlib.xla", "jax_cocktail.api", "jax"))))
        assert all(map(is_ours, map(inside, ("jaxopt.base", "jax_md.space", "__main__"))))
        values = jax.jit(lambda x: jnp.linalg.norm(jax.random.normal(jax.random.key(0), (3,))) + x)(X)
    assert np.isfinite(values).all()


def test_blocks_nest_and_end_with_exceptions():
    outer, inner = jax_cocktail.replace_jit(force="stock"), jax_cocktail.replace_jit(force="cocktail")
    with outer, outer:
        with pytest.raises(RuntimeError), inner:
            assert made()._explicit == {"force": "cocktail"}
            raise RuntimeError
        assert made()._explicit == {"force": "stock"}
    assert not is_ours(made())


def test_as_a_decorator():
    @jax_cocktail.replace_jit()
    def nested(depth):
        return [made(), *(nested(depth - 1) if depth else [])]

    assert len(nested(3)) == 4 and all(map(is_ours, nested(3)))
    assert not is_ours(made())


def in_a_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(made()))
    thread.start()
    thread.join()
    return found[0]


def test_a_block_is_for_its_thread_and_install_for_all():
    with jax_cocktail.replace_jit():
        assert is_ours(made()) and not is_ours(in_a_thread())
    replacement = jax_cocktail.replace_jit(force="stock")
    replacement.install()
    try:
        assert in_a_thread()._explicit == {"force": "stock"}
        with jax_cocktail.replace_jit(force="cocktail"):
            assert made()._explicit == {"force": "cocktail"}
            assert in_a_thread()._explicit == {"force": "stock"}
    finally:
        replacement.remove()
    assert not is_ours(in_a_thread())
    with pytest.raises(ValueError, match="not installed"):
        replacement.remove()


def test_many_threads_at_once():
    stop, wrong = threading.Event(), []

    def work(use):
        while not stop.is_set():
            if use:
                with jax_cocktail.replace_jit():
                    wrong.append(not is_ours(made()))
            else:
                wrong.append(is_ours(made()))

    threads = [threading.Thread(target=work, args=(n % 2 == 0,)) for n in range(4)]
    for thread in threads:
        thread.start()
    stop.wait(0.3)
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong and not any(wrong)


def test_another_patch_over_ours_is_kept():
    def patched(*args, **kwargs):
        return STOCK(*args, **kwargs)

    try:
        with jax_cocktail.replace_jit():
            jax.jit = patched
        assert jax.jit is patched
        with jax_cocktail.replace_jit():
            assert is_ours(made())
        assert jax.jit is patched
    finally:
        jax.jit = STOCK


def test_options_are_checked_at_once():
    with pytest.raises(TypeError, match="no option 'speed'"):
        jax_cocktail.replace_jit(speed=1)
