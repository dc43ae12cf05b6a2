"""Python recursion in the place of `jax_cocktail.recursive`, with the same text: the reference of tests."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

RANDOM = np.random.default_rng(7)


def floats(*shape, scale=1.0):
    return (RANDOM.standard_normal(shape) * scale).astype(np.float32)


def like(x, shape=()):
    return jax.ShapeDtypeStruct(shape, jnp.result_type(x))


def unrolled(fun=None, /, **options):
    """Stands for `jax_cocktail.recursive`: calls of Python."""

    def wrapped(body):
        @functools.wraps(body)
        def itself(*args):
            return body(itself, *args)

        return itself

    return wrapped if fun is None else wrapped(fun)


def widened(tree):
    """With float64 for float32; to be called where JAX has float64."""

    def widen(x):
        x = np.asarray(x)
        return jnp.asarray(x, np.float64 if x.dtype == np.float32 else x.dtype)

    return jax.tree.map(widen, tree)


def by_python(run):
    """The result of `run()`, in float64, with concrete branches."""
    with jax.enable_x64(True), jax.disable_jit():
        return jax.tree.map(np.asarray, run())


def total(results):
    """A scalar that depends on every float leaf, each entry with a weight of its own."""
    leaves = [x for x in jax.tree.leaves(results) if jnp.issubdtype(x.dtype, jnp.floating)]
    return sum(jnp.sum(x * (1 + 0.1 * jnp.arange(x.size, dtype=x.dtype).reshape(x.shape))) for x in leaves)
