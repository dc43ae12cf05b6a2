"""Compares a random recursive program with the same calls in Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_cocktail
from jax_cocktail.lowering.state import collecting
from jax_cocktail.primitives.jaxprs import nested_jaxprs, open_jaxpr
from jax_cocktail.recursion.machine import planned
from jax_cocktail.recursion.siblings import Siblings, siblings_of
from tests.recursion_python import by_python, total, unrolled, widened
from tests.recursion_strategies import build, depth_of, operands

OURS = {"force": "cocktail", "strict": True}
SHARED = {**OURS, "units": 2}
COMPILERS = {
    "eager": lambda f: f,
    "stock": jax.jit,
    "ours": lambda f: jax_cocktail.jit(f, options=OURS),
}


def scheduled(function, *arguments):
    """Results of our program, and how its recursions run: by the report on this very compilation."""
    with collecting() as reports:
        results = jax_cocktail.jit(function, options=OURS)(*arguments)
    return results, [text for report in reports for text in report.recursions]


def check(found: Any, expected: Any, tolerance: float = 2e-5) -> None:
    """Equal integers; floats as close as `tolerance`, relative to the largest of an array and to one."""
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert x.shape == y.shape
        if x.dtype == jnp.bfloat16:
            np.testing.assert_allclose(x.astype(np.float64), y.astype(np.float64), rtol=2e-2)
        elif jnp.issubdtype(x.dtype, jnp.floating):
            scale = max(1.0, float(np.abs(y).max(initial=0.0)))
            np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * scale)
        else:
            np.testing.assert_array_equal(x, y)


def check_recursion(program: Any, seed: int, compilers: Sequence[str] = ("stock", "ours")) -> None:
    """Values, and gradients by weights, table, vector and scalars; by ours also values alone, which are
    unrolled."""
    *floats, integer = operands(seed, program[1])
    count = np.int32(depth_of(program))

    def results(recursive: Any, integer: Any, count: Any, *floats: Any) -> Any:
        def loss(*floats: Any) -> Any:
            values = build(program, recursive)(*floats, integer, count)
            return total(values), values

        return jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)(*floats)

    expected = by_python(lambda: results(unrolled, *map(jnp.asarray, (integer, count)), *widened(floats)))
    for compiler in compilers:
        compiled = COMPILERS[compiler](lambda *x: results(jax_cocktail.recursive, *x))
        check(compiled(integer, count, *floats), expected, 1e-4)
    if "ours" in compilers:
        alone = COMPILERS["ours"](lambda *x: build(program, jax_cocktail.recursive)(*x))
        check(alone(*floats, integer, count), expected[0][1], 1e-4)
    if siblings(program, seed):
        shared = jax_cocktail.jit(build(program, jax_cocktail.recursive), options=SHARED)
        check(shared(*floats, integer, count), expected[0][1], 1e-4)


def siblings(program: Any, seed: int) -> bool:
    """Whether two units find calls of the program that they can take apart."""
    *floats, integer = operands(seed, program[1])
    function = build(program, jax_cocktail.recursive)
    jaxpr = jax.make_jaxpr(function)(*floats, integer, np.int32(depth_of(program)))
    return any(isinstance(siblings_of(planned(task)), Siblings) for task in _tasks(jaxpr))


def _tasks(jaxpr: Any) -> Iterator[Any]:
    for equation in open_jaxpr(jaxpr).eqns:
        if equation.primitive.name == "recursion":
            yield equation.params["task"]
        for inner in nested_jaxprs(equation):
            yield from _tasks(inner)
