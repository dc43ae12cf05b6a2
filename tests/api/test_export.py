"""jax.export: a program with our calls leaves the process and comes back in another one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import export, lax

import jax_cocktail
from jax_cocktail.lowering import lower
from tests.process import python

TARGET = "jax_cocktail_cpu"
ALLOWED = [export.DisabledSafetyCheck.custom_call(TARGET)]


@pytest.fixture(autouse=True)
def fresh():
    """Every warning is told again."""
    lower._warned.clear()


def function(x):
    return lax.while_loop(lambda c: c.sum() < 100, lambda c: c * 1.5, x)


OURS = jax_cocktail.jit(function, options={"force": "cocktail"})


def test_needs_permission():
    with pytest.raises(ValueError, match=TARGET):
        export.export(OURS)(jnp.ones(4))


def test_here_and_in_another_process(tmp_path):
    pytest.importorskip("flatbuffers")
    exported = export.export(OURS, disabled_checks=ALLOWED)(jnp.ones(4))
    data = exported.serialize()
    expected = jax.jit(function)(jnp.ones(4))
    assert jnp.allclose(export.deserialize(data).call(jnp.ones(4)), expected)
    (tmp_path / "program").write_bytes(data)
    program = f"""
        import jax_cocktail
        jax_cocktail.load()
        import jax.numpy as jnp, pathlib
        from jax import export
        program = export.deserialize(pathlib.Path({str(tmp_path / "program")!r}).read_bytes())
        print(float(program.call(jnp.ones(4))[0]))
    """
    out = python(program, JAX_COCKTAIL_CACHE_DIR=str(tmp_path / "cache"))
    assert abs(float(out) - float(expected[0])) < 1e-4


def test_a_recursion_on_stock_needs_permission_of_its_own():
    """Its custom call raises the error of a recursion that is too deep."""

    @jax_cocktail.recursive(max_depth=8)
    def count(self, n):
        return lax.cond(n < 1, lambda: n, lambda: self(n - 1) + 1)

    with pytest.raises(ValueError, match="jax_cocktail_failure"):
        export.export(jax.jit(count))(jnp.int32(0))
    permitted = [export.DisabledSafetyCheck.custom_call("jax_cocktail_failure")]
    exported = export.export(jax.jit(count), disabled_checks=permitted)(jnp.int32(0))
    assert int(exported.call(jnp.int32(7))) == 7


def test_a_recursion_that_is_ours_needs_no_other_permission():
    @jax_cocktail.recursive(max_depth=8)
    def fib(self, n):
        return lax.cond(n < 2, lambda: n, lambda: self(n - 1) + self(n - 2))

    compiled = jax_cocktail.jit(fib, options={"force": "cocktail"})
    exported = export.export(compiled, disabled_checks=ALLOWED)(jnp.int32(0))
    assert int(exported.call(jnp.int32(8))) == 21


def test_several_platforms_are_stock():
    with pytest.warns(jax_cocktail.CocktailWarning, match="several platforms"):
        exported = export.export(OURS, platforms=("cpu", "cuda"))(jnp.ones(4))
    assert exported.platforms == ("cpu", "cuda")
    assert TARGET not in exported.mlir_module()


def test_another_platform_is_stock():
    with pytest.warns(jax_cocktail.CocktailWarning, match="only the CPU"):
        lowered = OURS.trace(jnp.ones(4)).lower(lowering_platforms=("rocm",))
    assert TARGET not in lowered.as_text()


def test_symbolic_sizes_are_stock():
    shapes = jax.ShapeDtypeStruct(export.symbolic_shape("n"), jnp.float32)
    with pytest.warns(jax_cocktail.CocktailWarning, match="symbolic sizes"):
        exported = export.export(OURS)(shapes)
    assert jnp.allclose(exported.call(jnp.ones(5)), jax.jit(function)(jnp.ones(5)))
