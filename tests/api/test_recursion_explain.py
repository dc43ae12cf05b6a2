"""What the report says of recursions: how each runs where it runs, which may be stock XLA."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.scipy.special import zeta

import jax_cocktail
from jax_cocktail.lowering.choice import choose, decisions
from jax_cocktail.recursion import levels as recursion_levels
from jax_cocktail.recursion import paths as recursion_paths

pytestmark = pytest.mark.all_candidates  # about the choice, or what is remembered of it

OURS = {"force": "cocktail", "units": 2}
UNSUPPORTED = "ignore:.*('zeta'|float8).*:jax_cocktail.CocktailWarning"
WEIGHT = jnp.full((4, 4), 0.5)


@jax_cocktail.recursive(max_depth=16)
def steps(self, n):
    return lax.cond(n < 2, lambda: n, lambda: self(n - 1) + self(n - 2))


@jax_cocktail.recursive(out_like=lambda n, x: x, max_depth=16, max_calls=64)
def eighths(self, n, x):
    """Of a matrix of 4 by 4 whose type we cannot compile, so all of it stays with stock XLA."""

    def more():
        first, second = (self(n - k, x).astype(jnp.float32) for k in (1, 2))
        return (first + WEIGHT @ second).astype(x.dtype)

    return lax.cond(n < 1, lambda: x, more)


def told(function, *arguments, **options):
    return jax_cocktail.explain(jax_cocktail.jit(function, options=options or OURS))(*arguments).recursions


def test_ours():
    (text,) = told(steps, 5)
    assert "frontier-parallel on several units: " in text and "stock" not in text


@pytest.mark.parametrize("units", [1, 2])
def test_dump(units, tmp_path):
    """The dump tells when values live, in a program with barriers too."""
    options = {**OURS, "units": units, "plans": "fresh", "dump_to": str(tmp_path)}
    assert jax_cocktail.jit(steps, options=options)(5) == 5
    (memory,) = tmp_path.glob("steps_0_*/memory.txt")
    assert "live at" in memory.read_text()
    (last,) = memory.parent.glob("*_barriers.txt")
    assert ("wait" in last.read_text()) == (units > 1)


def is_plain_stack(text):
    return ": on stock XLA a stack of 16 frames" in text and "siblings" not in text and "level" not in text


@pytest.mark.parametrize("options", [{"force": "stock"}, {"force": "auto"}], ids=str)
def test_all_on_stock(options, monkeypatch):
    """Whoever decided it."""
    decided = decisions.Decision("stock", why="stock XLA is faster")
    monkeypatch.setattr(choose, "_decide", lambda *_: decided)
    (text,) = told(steps, 5, **options)
    assert is_plain_stack(text)


@pytest.mark.filterwarnings(UNSUPPORTED)
def test_nothing_captured():
    def loop(x):
        return lax.fori_loop(0, 2, lambda i, y: zeta(y, 2.0) * steps(i), x)

    (text,) = told(loop, WEIGHT)
    assert is_plain_stack(text)


@pytest.mark.filterwarnings(UNSUPPORTED)
def test_one_on_stock():
    """Beside one of ours, and in a loop that is stock XLA's."""

    def both(x):
        loop = lax.fori_loop(0, 2, lambda i, y: zeta(y, 2.0) * steps(i), x)
        return loop, steps(6), eighths(3, x.astype(jnp.float8_e4m3fn))

    loop, ours, other = told(both, WEIGHT)
    assert "frontier-parallel on several units: " in ours and "stock" not in ours
    assert "steps" in loop and is_plain_stack(loop)
    assert "eighths" in other and ": on stock XLA a stack of 8 frames" in other
    assert "unrolled once" in other and "siblings" not in other


@pytest.mark.filterwarnings(UNSUPPORTED)
def test_levels_on_stock(monkeypatch):
    """Beside one of ours, stock XLA gets the loops that are made for us."""
    monkeypatch.setattr(recursion_paths, "WEIGHT_BYTES", 0)
    monkeypatch.setattr(recursion_levels, "WIDTHS", (1, 2))
    jax.clear_caches()
    texts = told(
        lambda x: (steps(6), jax.vmap(lambda y: eighths(3, y.astype(jnp.float8_e4m3fn)))(x)),
        jnp.stack([WEIGHT, WEIGHT]),
    )
    assert "frontier-parallel on several units: " in texts[0]
    assert ": on stock XLA level-synchronous" in texts[1]
