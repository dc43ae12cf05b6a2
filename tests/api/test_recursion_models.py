"""The recursive models: ours agrees with stock, and both with what the values must be."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_cocktail
from jax_cocktail.lowering.choice.variants import prepare
from jax_cocktail.utask.ir import walk
from jax_cocktail_tools.models import MODELS, RECURSIVE, largest_difference
from jax_cocktail_tools.models.calls import ADD, CONSTANT, MULTIPLY, SINE, VARIABLE

STRICT = {"force": "cocktail", "strict": True}
CASES = [(name, batch) for name, model in RECURSIVE.items() for batch in model.batches]


def integral(decay, low, high, tolerance):
    """Of exp(-decay x) sin(20 x)."""

    def antiderivative(x):
        return -np.exp(-decay * x) * (decay * np.sin(20 * x) + 20 * np.cos(20 * x)) / (decay**2 + 400)

    return np.float64(antiderivative(high) - antiderivative(low))


def plain_expression(kinds, first, second, root, constants, variables):
    def value(node):
        a, b, kind = first[node], second[node], kinds[node]
        if kind in (CONSTANT, VARIABLE):
            return float(constants[node] if kind == CONSTANT else variables[a])
        if kind in (ADD, MULTIPLY):
            return value(a) + value(b) if kind == ADD else value(a) * value(b)
        return np.sin(value(a)) if kind == SINE else np.tanh(value(a))

    return np.float64(value(root))


EXPECTED = {
    "rae_recursive": (jax.jit(MODELS["rae"].make(small=True)[0]), 2e-5),
    "fibonacci": (lambda n: np.int32(55), 0),
    "ackermann": (lambda m, n: np.int32(9), 0),
    "simpson": (integral, 2e-3),
    "quicksort": (np.sort, 0),
    "expression": (plain_expression, 2e-5),
}


def test_names():
    assert all(model.name == name for name, model in RECURSIVE.items())
    assert not set(RECURSIVE) & set(MODELS)


@pytest.mark.parametrize(("name", "batch"), CASES)
def test_values(name, batch):
    function, arguments = RECURSIVE[name].make(batch, small=True)
    stock = jax.jit(function)(*arguments)
    ours = jax_cocktail.jit(function, options=STRICT)(*arguments)
    assert largest_difference(ours, stock) <= RECURSIVE[name].tolerance
    if name in EXPECTED:
        plain, tolerance = EXPECTED[name]
        assert largest_difference(stock, plain(*map(np.asarray, arguments))) <= tolerance


def test_a_forest_is_its_trees():
    """Values, and gradients by the shared weights."""
    forest, arguments = RECURSIVE["tree_lstm"].make(64, small=True)
    single, _ = RECURSIVE["tree_lstm"].make(1, small=True)
    trees, weights = [x[:3] for x in arguments[:5]], arguments[5:]

    def value_and_gradient(function):
        return jax.jit(jax.value_and_grad(lambda w, trees: jnp.sum(jnp.sin(function(*trees, *w)))))

    alone = value_and_gradient(single)
    each = [alone(weights, [x[k] for x in trees]) for k in range(3)]
    found = value_and_gradient(forest)(weights, trees)
    assert largest_difference(found, jax.tree.map(lambda *x: sum(x), *each)) < 1e-5


@pytest.mark.parametrize("batch", RECURSIVE["child_sum_tree_lstm"].batches)
def test_subsets_of_equally_many_children_share_code(batch):
    """Statements of the translated programs: more than 16,000 with code for each subset of four children."""
    function, arguments = RECURSIVE["child_sum_tree_lstm"].make(batch, small=False)
    programs = prepare(jax.make_jaxpr(function)(*arguments), "child_sum").programs
    assert sum(1 for program in programs for _ in walk(program.entry)) < 8000
