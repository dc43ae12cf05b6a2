"""Recursive programs against Python recursion: values and gradients of every one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jax_cocktail
from tests.recursion_compare import COMPILERS, check, check_recursion
from tests.recursion_programs import CASES, X, countdown, descent, plain_countdown
from tests.recursion_python import by_python, total, unrolled, widened
from tests.recursion_strategies import recursions

DIFFERENTIABLE = tuple(case for case in CASES if case.grads)
ON_STOCK_TOO = ("waves", "grammar", "rae", "child_sum_scan", "expression_tree", "inside_loops")
DEEP = 10_000


def named(cases):
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


@named(CASES)
def test_values(case):
    function = case.make(jax_cocktail.recursive)
    expected = by_python(lambda: case.make(unrolled)(*widened(case.args)))
    if case.expected is not None:
        check(expected, case.expected(), 1e-6)
    arguments = jax.tree.map(jnp.asarray, case.args)
    for compiler in ("eager", "ours"):
        check(COMPILERS[compiler](function)(*arguments), expected)


@named(DIFFERENTIABLE)
def test_gradients(case):
    def gradient(recursive):
        return jax.grad(lambda *args: total(case.make(recursive)(*args)), case.grads)

    expected = by_python(lambda: gradient(unrolled)(*widened(case.args)))
    for compiler in ("stock", "ours") if case.name in ON_STOCK_TOO else ("ours",):
        check(COMPILERS[compiler](gradient(jax_cocktail.recursive))(*case.args), expected, 1e-4)


@pytest.mark.parametrize("compiler", ["stock", "ours"])
def test_ten_thousand_calls_deep(compiler):
    """Tail calls take no room: `countdown` has four frames."""
    compiled = COMPILERS[compiler]
    check(compiled(countdown(jax_cocktail.recursive))(DEEP), plain_countdown(DEEP), 1e-4)
    value, slope, x = float(X), 1.0, float(X)
    for _ in range(DEEP):
        value, slope = 0.9995 * value + x * x, 0.9995 * slope + 2 * x
    down = descent(jax_cocktail.recursive)
    check(compiled(jax.value_and_grad(down))(X, np.int32(DEEP)), (value, slope), 1e-4)


@pytest.mark.one_jax
@settings(
    max_examples=4, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
@given(recursions(), st.integers(0, 5))
def test_random_recursions(program, seed):
    check_recursion(program, seed, ("stock", "ours")[seed % 2 :][:1])
