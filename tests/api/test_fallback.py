"""What goes wrong is told once, with its cause and a remedy, and stock XLA runs; `strict` raises instead."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.scipy.special import zeta

import jax_cocktail
from jax_cocktail.lowering.choice import variants
from jax_cocktail.lowering.edge import intercept
from jax_cocktail.memory import MEMORY
from tests.told import silent, told

TARGET = "jax_cocktail_cpu"
FORCED = {"force": "cocktail"}
STRICT = {"force": "cocktail", "strict": True}


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    """Every cause is new, and nothing is in the cache."""
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "cache"))
    jax_cocktail.load()
    MEMORY.warned.clear()


def function(x):
    return lax.fori_loop(0, 3, lambda i, a: a + x, x)


UNSUPPORTED = {
    "primitive": (lambda x: lax.fori_loop(0, 2, lambda i, a: zeta(a + 2, 2.0), x), jnp.ones(3), "'zeta'"),
    "dtype": (lambda x: lax.fori_loop(0, 2, lambda i, a: a * x, x), jnp.ones(3, jnp.float8_e4m3fn), "float8"),
    "in all sides of a branch": (
        lambda x: lax.fori_loop(
            0, 2, lambda i, a: lax.cond(i > 0, lambda a: zeta(a + 2, 2.0), lambda a: zeta(a + 3, 2.0), a), x
        ),
        jnp.ones(3),
        "'zeta'",
    ),
    "another random number generator": (
        lambda k: lax.fori_loop(0, 2, lambda i, k: jax.random.fold_in(k, i), k),
        jax.random.key(0, impl="rbg"),
        "rbg",
    ),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported(name):
    program, x, cause = UNSUPPORTED[name]
    result, text = told(jax_cocktail.jit(program, options=FORCED), x)
    expected = jax.jit(program)(x)
    if jax.dtypes.issubdtype(expected.dtype, jax.dtypes.prng_key):
        result, expected = jax.random.key_data(result), jax.random.key_data(expected)
    assert jnp.array_equal(result, expected)
    assert cause in text
    assert "test_fallback.py:" in text
    assert "move this out of it or into a branch" in text
    with pytest.raises(jax_cocktail.StrictModeError, match="test_fallback.py:"):
        jax_cocktail.jit(program, options=STRICT)(x)


def test_told_once():
    program, x, _ = UNSUPPORTED["primitive"]
    told(jax_cocktail.jit(program, options=FORCED), x)
    silent(jax_cocktail.jit(program, options=FORCED).copy(), x)


def test_what_is_asked_for_is_silent():
    program, x, _ = UNSUPPORTED["primitive"]
    silent(jax_cocktail.jit(program, options={"force": "stock"}), x)
    silent(jax_cocktail.jit(lambda x: x + 1, options=STRICT), x)


def test_callbacks_are_stock_and_strict_says_so():
    def program(x):
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        return lax.fori_loop(0, 2, lambda i, a: jax.pure_callback(lambda a: a + 1, shape, a), x)

    result, text = told(jax_cocktail.jit(program, options=FORCED), jnp.float32(0))
    assert float(result) == 2
    assert "pure_callback" in text
    with pytest.raises(jax_cocktail.StrictModeError):
        jax_cocktail.jit(program, options=STRICT)(jnp.float32(0))


def test_a_loop_with_an_effect_inside_is_stock():
    def program(x):
        y = lax.fori_loop(0, 2, lambda i, a: (io_callback(lambda: None, None), a + 1)[1], x)
        return lax.fori_loop(0, 2, lambda i, a: a * 2, y)

    result, text = told(jax_cocktail.jit(program, options=FORCED), 0.0)
    assert float(result) == 8
    assert "side effects" in text and "test_fallback.py:" in text
    lowered = jax_cocktail.jit(program, options=FORCED).lower(0.0).as_text()
    assert lowered.count("stablehlo.while") == 1
    assert lowered.count(f"@{TARGET}") == 1
    with pytest.raises(jax_cocktail.StrictModeError, match="side effects"):
        jax_cocktail.jit(program, options=STRICT)(0.0)


def check_refused(program, cause, *arguments):
    """The whole call runs on stock XLA, which is told once."""
    wrapped = jax_cocktail.jit(program, options=FORCED)
    result, text = told(wrapped, *arguments)
    assert jnp.array_equal(result, jax.jit(program)(*arguments))
    assert cause in text and "test_fallback.py:" in text
    silent(jax_cocktail.jit(program, options=FORCED), *arguments)
    silent(jax_cocktail.jit(program, options={"force": "stock"}), *arguments)
    assert TARGET not in wrapped.lower(*arguments).as_text()
    with pytest.raises(jax_cocktail.StrictModeError, match="test_fallback.py:"):
        jax_cocktail.jit(program, options=STRICT)(*arguments)


def test_unknown_effects_are_stock(monkeypatch):
    monkeypatch.setattr(intercept, "ORDERED", frozenset())

    def program(x):
        jax.debug.print("{}", x, ordered=True)
        return function(x)

    check_refused(program, "side effects of an unknown kind (OrderedDebugEffect)", jnp.ones(3))


def test_other_platforms_are_told():
    def lowered(options):
        traced = jax_cocktail.jit(function, options=options).trace(jnp.ones(3))
        return traced.lower(lowering_platforms=("tpu",)).as_text()

    result, text = told(lowered, FORCED)
    assert TARGET not in result
    assert "only the platforms cpu" in text and "test_fallback.py:" in text
    with pytest.raises(jax_cocktail.StrictModeError, match="only the platforms cpu"):
        lowered(STRICT)


def test_a_private_symbol_that_is_gone_is_told(monkeypatch):
    monkeypatch.setattr(intercept, "available", lambda: False)
    result, text = told(jax_cocktail.jit(function, options=FORCED), jnp.ones(3))
    assert jnp.array_equal(result, jnp.full(3, 4.0))
    assert "does not reach jax_cocktail" in text and "test_fallback.py:" in text
    silent(jax_cocktail.jit(function, options=FORCED).copy(), jnp.ones(3))
    silent(jax_cocktail.jit(lambda x: x + 1, options=STRICT), jnp.ones(3))
    silent(jax_cocktail.jit(function, options={"force": "stock", "strict": True}), jnp.ones(3))
    with pytest.raises(jax_cocktail.StrictModeError, match="does not reach"):
        jax_cocktail.jit(function, options=STRICT)(jnp.ones(3))


@pytest.mark.parametrize("damage", [lambda data: data[:100], lambda data: data[:-9] + b"corrupted"])
def test_damaged_binary_is_built_again(tmp_path, damage):
    silent(jax_cocktail.jit(function, options=FORCED), jnp.ones(3))
    for path in (tmp_path / "cache").rglob("program.so"):
        path.write_bytes(damage(path.read_bytes()))
    report = jax_cocktail.explain(jax_cocktail.jit(function, options=FORCED))(jnp.ones(3))
    assert not report.captured[0].cached
    result = silent(jax_cocktail.jit(function, options=FORCED).copy(), jnp.ones(3))
    assert jnp.array_equal(result, jnp.full(3, 4.0))


def test_a_fault_of_ours_does_not_stop_the_user(monkeypatch):
    def fail(*arguments, **options):
        raise IndexError("list index out of range")

    monkeypatch.setattr(variants, "emit", fail)
    result, text = told(jax_cocktail.jit(function, options=FORCED), jnp.ones(3))
    assert jnp.array_equal(result, jnp.full(3, 4.0))
    assert "IndexError" in text
    assert "report" in text
    with pytest.raises(IndexError):
        jax_cocktail.jit(function, options=STRICT)(jnp.ones(3))


def test_unwritable_dump_folder(tmp_path):
    (tmp_path / "file").write_text("")
    options = {**FORCED, "dump_to": str(tmp_path / "file")}
    result, _ = told(jax_cocktail.jit(function, options=options), jnp.ones(3))
    assert jnp.array_equal(result, jnp.full(3, 4.0))
