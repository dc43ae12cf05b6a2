"""Every primitive and dtype against `jax.jit`, inside a loop, as one custom call."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from tests.case import differences
from tests.cases import groups


def _looped(cases):
    """All cases of a bucket as one program; a loop of two trips around each keeps it ours."""

    def program(arguments):
        def trip(_, previous):
            return [case.function(*args) for case, args in zip(cases, arguments, strict=True)]

        first = trip(0, None)
        return lax.fori_loop(0, 2, lambda i, c: lax.optimization_barrier(trip(i, c)), first)

    return program


def _buckets():
    for (group, dtype, x64), cases in groups().items():
        yield pytest.param(cases, x64, id=f"{group}-{dtype}" + ("-x64" if x64 else ""))


@pytest.mark.parametrize("cases, x64", list(_buckets()))
def test_bucket(cases, x64):
    with jax.enable_x64(x64):
        arguments = [case.arguments() for case in cases]
        program = _looped(cases)
        stock = jax.jit(program)(arguments)
        ours = jax_cocktail.jit(program, options={"force": "cocktail", "strict": True})(arguments)
        found = [differences(c, a, b) for c, a, b in zip(cases, _raw(ours), _raw(stock), strict=True)]
        assert not [text for text in found if text]


def _raw(tree):
    """Typed keys as their bits."""

    def bits(x):
        is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(x) if is_key else x)

    return jax.tree.map(bits, tree)
