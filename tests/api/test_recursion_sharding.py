"""Recursion under `jax.shard_map`: every device takes its own way."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

import jax_cocktail
from jax_cocktail import recursive
from jax_cocktail.errors import UnsupportedError
from tests.process import python

EACH, ALL = PartitionSpec("d"), PartitionSpec()
COMPILERS = {"stock": jax.jit, "ours": lambda f: jax_cocktail.jit(f, options={"force": "cocktail"})}

ON_TWO = """
    import jax, jax.numpy as jnp, numpy as np
    from tests.api.test_recursion_sharding import EACH, forest
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("d",))
    assert mesh.size == 2
    for compiler in ("stock", "ours"):
        counts, x = jnp.asarray([3, 1], jnp.int32), jnp.arange(1.0, 5.0)
        print(np.asarray(jax.jit(forest(mesh, False, EACH, compiler))(counts, x)).tolist())
"""


def grown(n, x):
    @recursive(max_depth=8, max_calls=32, out_like=lambda n: x)
    def grow(self, n):
        return lax.cond(n < 1, lambda: x, lambda: self(n - 1) * 2 + self(n - 2))

    return grow(n)


def forest(mesh, check, spec, compiler="stock"):
    def each(counts, x):
        return grown(counts[0], x)

    each = COMPILERS[compiler](each)
    return jax.shard_map(each, mesh=mesh, in_specs=(spec, spec), out_specs=spec, check_vma=check)


@pytest.fixture
def mesh():
    return Mesh(np.array(jax.devices()[:1]), ("d",))


@pytest.mark.parametrize("compiler", COMPILERS)
def test_values_and_gradients(mesh, compiler):
    counts, x = jnp.asarray([3], jnp.int32), jnp.arange(1.0, 3.0)
    mapped = forest(mesh, False, EACH, compiler)
    np.testing.assert_allclose(jax.jit(mapped)(counts, x), grown(3, x))
    gradient = jax.jit(jax.grad(lambda x: (mapped(counts, x) ** 2).sum()))
    np.testing.assert_allclose(gradient(x), jax.grad(lambda x: (grown(3, x) ** 2).sum())(x), rtol=1e-6)


def test_what_is_the_same_everywhere_may_be_checked(mesh):
    counts, x = jnp.asarray([3], jnp.int32), jnp.arange(1.0, 3.0)
    np.testing.assert_allclose(jax.jit(forest(mesh, True, ALL))(counts, x), grown(3, x))


def test_the_error_names_the_option(mesh):
    counts, x = jnp.asarray([3], jnp.int32), jnp.arange(1.0, 3.0)
    with pytest.raises(UnsupportedError, match="grow gets values that differ.*check_vma=False.*grow"):
        jax.jit(forest(mesh, True, EACH))(counts, x)


def test_two_devices():
    out = python(ON_TWO, XLA_FLAGS="--xla_force_host_platform_device_count=2")
    expected = np.concatenate([grown(3, jnp.arange(1.0, 3.0)), grown(1, jnp.arange(3.0, 5.0))])
    for line in out.splitlines():
        np.testing.assert_allclose(np.asarray(eval(line)), expected)
    assert len(out.splitlines()) == 2
