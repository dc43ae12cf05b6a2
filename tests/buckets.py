"""Buckets of primitive cases as programs: all cases of a family and dtype, in a branch in a loop."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from tests.case import differences
from tests.cases import groups
from tests.selection import ALL

TAKEN = (True, False, True)
# Types like others: what jax makes of a primitive is seen with those, and the templates do not depend on jax.
# Random bits of every width are jax's own, though. Groups that only move or compare elements are the same for
# all types.
LIKE_OTHERS = frozenset({"float16", "int8", "int16", "int64", "uint8", "uint16", "uint64"})
OF_ANY_TYPE = frozenset({"movement", "dynamic", "gather", "scatter", "select", "sort"})
REPRESENTATIVES = frozenset({"bool", "float32", "int32"})
# Types of every width, signed, unsigned and floating. JAX_COCKTAIL_TEST_ALL=1 runs every type everywhere.
OF_EVERY_KIND = REPRESENTATIVES | {"bfloat16", "float64", "uint8"}
SOME = OF_EVERY_KIND | {"int16", "int64", "uint32"}


def looped(cases):
    """All cases of a bucket as one program: a loop whose steps either run them or take given results."""

    def program(flags, arguments, given):
        def step(count, inputs):
            flag, arguments, given = inputs

            def run():
                return [case.function(*args) for case, args in zip(cases, arguments, strict=True)]

            return count + flag, lax.cond(flag, run, lambda: given)

        return lax.scan(step, jnp.int32(0), (flags, arguments, given))

    return program


def operands_of(cases):
    """Flags, arguments and stand-ins for the results, all with one leading axis for the steps."""
    arguments = [case.arguments() for case in cases]
    results = [jax.eval_shape(c.function, *args) for c, args in zip(cases, arguments, strict=True)]
    given = jax.tree.map(_stand_in, results)
    flags = np.array(TAKEN)
    return flags, *(jax.tree.map(lambda x: _stack([x] * len(TAKEN)), tree) for tree in (arguments, given))


def buckets():
    """Parameters `cases, x64` of a test."""
    for (group, dtype, x64), cases in groups().items():
        if group in OF_ANY_TYPE - {"scatter"} and dtype not in SOME and not ALL:
            continue  # a scatter may add
        alike = dtype in LIKE_OTHERS or (group in OF_ANY_TYPE and dtype not in REPRESENTATIVES)
        marks = [pytest.mark.long] if alike and group != "random" else []
        yield pytest.param(cases, x64, id=f"{group}-{dtype}" + ("-x64" if x64 else ""), marks=marks)


def chosen():
    """The buckets of types of every kind: templates and passes are the same for all types of a kind."""
    return [b for b in buckets() if ALL or OF_EVERY_KIND & set(str(b.id).split("-"))]


def check_bucket(cases, x64, compiler_options=None):
    """The bucket as a captured region equals stock, compiled with these options of XLA."""
    with jax.enable_x64(x64):
        operands = operands_of(cases)
        program = looped(cases)
        stock = jax.jit(program, compiler_options=compiler_options)(*operands)
        ours = jax_cocktail.jit(program, options={"force": "cocktail", "strict": True})(*operands)
        assert int(ours[0]) == int(stock[0]) == sum(TAKEN)
        found = []
        for step in range(len(TAKEN)):
            pairs = zip(cases, _raw(ours[1], step), _raw(stock[1], step), strict=True)
            found += [differences(case, mine, theirs) for case, mine, theirs in pairs]
        assert not [text for text in found if text]


def _is_key(x):
    return jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


def _stand_in(result):
    if _is_key(result):
        return jax.random.wrap_key_data(np.full((*result.shape, 2), 7, np.uint32))
    return np.ones(result.shape, result.dtype)


def _stack(arrays):
    return jnp.stack(arrays) if _is_key(arrays[0]) else np.stack(arrays)


def _raw(tree, step):
    """One step's results; typed keys as their bits."""
    return jax.tree.map(lambda x: np.asarray(jax.random.key_data(x) if _is_key(x) else x)[step], tree)
