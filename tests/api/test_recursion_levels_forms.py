"""Calls level by level in other forms: several functions, several axes of lanes, many children."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.lowering.choice.variants import prepare
from jax_cocktail.recursion import levels as recursion_levels
from jax_cocktail.recursion import paths as recursion_paths
from jax_cocktail.recursion import primitive as recursion
from tests.recursion_compare import OURS, check, scheduled
from tests.recursion_levels_programs import (
    BELOW,
    CHILDREN,
    TABLE,
    WEIGHTS,
    X,
    child_sum,
    mutual,
    mutual_arguments,
)
from tests.recursion_python import by_python, floats, like, total, unrolled, widened

pytestmark = pytest.mark.one_jax  # long, and about schedules, of which jax knows nothing


@pytest.fixture(autouse=True)
def _whatever_the_weights(monkeypatch):
    monkeypatch.setattr(recursion_paths, "WEIGHT_BYTES", 0)
    monkeypatch.setattr(recursion_levels, "WIDTHS", (1, 2))  # the host compiler is slow with many
    monkeypatch.setattr(recursion_levels, "FOREST_WIDTHS", (1, 8))
    jax.clear_caches()


@pytest.fixture
def _never_by_stack(monkeypatch):
    """What goes by the stack is wrong."""
    run = recursion.run_levels

    def only(levels, operands, lanes, by_stack):
        def wrong():
            status, results = jax.eval_shape(by_stack)
            return jnp.zeros(status.shape, status.dtype), [jnp.full(x.shape, 77, x.dtype) for x in results]

        return run(levels, operands, lanes, wrong)

    monkeypatch.setattr(recursion, "run_levels", only)


def by_levels(schedules):
    return bool(schedules) and all("level-synchronous, up to" in text for text in schedules)


def check_levels(function, arguments, expected):
    """The results, all of whose recursions run by levels."""
    results, schedules = scheduled(function, *arguments)
    check(results, expected, 1e-4)
    assert by_levels(schedules)


def gradient(make, recursive, wanted):
    """Value and gradient of a program by the arguments at these positions."""
    return jax.value_and_grad(lambda *arguments: total(make(recursive)(*arguments)), wanted)


def in_python(make, wanted, arguments):
    return by_python(lambda: gradient(make, unrolled, wanted)(*widened(arguments)))


@pytest.mark.parametrize("count", [0, 5])
def test_several_functions(_never_by_stack, count):
    """Shared and own types of arguments and results; uneven trees."""
    arguments = mutual_arguments(count)
    ours = gradient(mutual, jax_cocktail.recursive, (0, 1, 2, 4))
    check_levels(ours, arguments, in_python(mutual, (0, 1, 2, 4), arguments))


def test_axes_of_lanes(_never_by_stack):
    """Operands with one axis of two, and gradients of every lane, of one axis, and of neither."""
    tables, vectors = np.stack([TABLE, TABLE * 2]), np.stack([X, -X, X * 0.5])
    counts = np.asarray([[3, 0, 4], [2, 1, 5]], np.int32)
    weights, last = WEIGHTS

    def grid(table, weights, last, vector):
        run = lambda *a: total(mutual(jax_cocktail.recursive)(a[0], weights, last, *a[1:]))  # noqa: E731
        return jax.vmap(jax.vmap(run, (None, 0, 0)), (0, 0, None))(table, counts, vector)

    def lane(i, j):
        return in_python(mutual, (0, 1, 2, 4), (tables[i], weights, last, counts[i, j], vectors[j]))

    lanes = [[lane(i, j) for j in range(3)] for i in range(2)]
    values, (by_table, by_weights, by_last, by_vector) = jax.tree.map(
        lambda *x: np.stack(x).reshape(2, 3, *np.shape(x[0])), *(x for line in lanes for x in line)
    )
    operands = (tables, weights, last, vectors)
    summed = jax.grad(lambda *a: grid(*a).sum(), (0, 1, 2, 3))
    expected = (by_table.sum(1), by_weights.sum((0, 1)), by_last.sum((0, 1)), by_vector.sum(0))
    check_levels(summed, operands, expected)

    def apart(table, weights, last, vector):
        one = gradient(mutual, jax_cocktail.recursive, (1,))
        return jax.vmap(jax.vmap(one, (None, None, None, 0, 0)), (0, None, None, 0, None))(
            table, weights, last, counts, vector
        )

    check(jax_cocktail.jit(apart, options=OURS)(*operands), (values, (by_weights,)), 1e-4)


def test_weights_of_one_axis(_never_by_stack):
    """The sums of products over one axis of two."""
    many = np.stack([WEIGHTS[0], WEIGHTS[0] * 0.5])
    counts = np.asarray([[3, 0], [2, 4]], np.int32)

    def loss(table, weights, last):
        run = lambda w, n: total(mutual(jax_cocktail.recursive)(table, w, last, n, X))  # noqa: E731
        return jax.vmap(jax.vmap(run, (0, 0)), (None, 0))(weights, counts).sum()

    def reference(table, weights, last):
        run = lambda w, n: total(mutual(unrolled)(table, w, last, n, X))  # noqa: E731
        return sum(run(weights[j], counts[i, j]) for i in range(2) for j in range(2))

    operands = (TABLE, many, WEIGHTS[1])
    ours = jax.grad(loss, (0, 1, 2))
    expected = by_python(lambda: jax.grad(reference, (0, 1, 2))(*widened(operands)))
    check_levels(ours, operands, expected)


@pytest.mark.parametrize("most", [5, 12])
def test_many_children(_never_by_stack, most):
    """Each of them may be there or not, in a loop of more trips than are written out for the stack."""
    arguments = (*CHILDREN[most], len(BELOW[most]) - 1)
    program = child_sum(BELOW[most])
    ours = gradient(program, jax_cocktail.recursive, (0, 1))
    check_levels(ours, arguments, in_python(program, (0, 1), arguments))


NONE = 8
SUBSETS = (  # of three children, by node
    *((1, 2, 3), (NONE, 4, NONE), (NONE, 5, 6), (4, NONE, 5)),
    *((6, 7, NONE), (NONE, NONE, 7), (7, NONE, NONE), (NONE, NONE, NONE)),
)


def optional(start, missing, worth=lambda value, position: value):
    """Adds the values of children to `start`. A missing one is worth `missing`."""

    def make(recursive):
        def run(x, weights, root):
            outside = missing(weights.dtype)

            @recursive(out_like=like(weights, (4,)), max_depth=16, max_calls=64)
            def node(self, k):
                found = start(weights.dtype)
                for position in range(3):
                    child = jnp.asarray(SUBSETS)[k, position]
                    there = lambda child=child: self(child) @ weights  # noqa: E731
                    found += worth(lax.cond(child == NONE, lambda: outside, there), position)
                return jnp.tanh(found + x[k])

            return node(root)

        return run

    return make


def zeros(dtype):
    return jnp.zeros(4, dtype)


def minus_zeros(dtype):
    return jnp.full(4, -0.0, dtype)


@pytest.fixture
def _kinds(monkeypatch):
    """The numbers of paths and of bodies."""
    run, found = recursion.run_levels, set()

    def noted(levels, *rest):
        found.add((len(levels.paths), len(levels.bodies)))
        return run(levels, *rest)

    monkeypatch.setattr(recursion, "run_levels", noted)
    return found


OPTIONAL = (floats(8, 4), floats(4, 4, scale=0.5), np.int32(0))


@pytest.mark.usefixtures("one_candidate")
def test_paths_that_compute_the_same_have_one_body(_never_by_stack, _kinds):
    """If there are equally many children."""
    program = optional(zeros, zeros)
    expected = by_python(lambda: program(unrolled)(*widened(OPTIONAL)))
    check_levels(program(jax_cocktail.recursive), OPTIONAL, expected)
    assert _kinds == {(8, 4)}


@pytest.mark.parametrize(
    ("program", "bodies"),
    [
        (optional(zeros, lambda dtype: jnp.ones(4, dtype)), 8),
        (optional(zeros, minus_zeros), 8),
        (optional(minus_zeros, zeros), 7),  # minus zero plus zero is zero, and only the first of them counts
        (optional(zeros, zeros, lambda value, position: value * (position + 1)), 8),
    ],
    ids=["ones", "plus_minus_zero", "from_minus_zero", "by_position"],
)
def test_paths_that_compute_something_else(_kinds, program, bodies):
    prepare(jax.make_jaxpr(program(jax_cocktail.recursive))(*OPTIONAL), "optional")
    assert _kinds == {(8, bodies)}


@pytest.mark.usefixtures("one_candidate")
def test_many_bodies_become_one(_never_by_stack, _kinds, monkeypatch):
    """Where children may be missing, and so it is in the derivative."""
    monkeypatch.setattr(recursion_paths, "MOST_BODIES", 4)
    program = optional(zeros, zeros, lambda value, position: value * (position + 1))
    ours = gradient(program, jax_cocktail.recursive, (0, 1))
    check_levels(ours, OPTIONAL, in_python(program, (0, 1), OPTIONAL))
    assert _kinds == {(1, 1)}


def test_bodies_of_other_work_stay(_kinds, monkeypatch):
    """A body that ran all sides of this branch would do five times the work."""
    monkeypatch.setattr(recursion_paths, "MOST_BODIES", 4)

    def run(x, weights, root):
        @jax_cocktail.recursive(out_like=like(weights, (4,)), max_depth=8, max_calls=64)
        def node(self, k):
            kinds = [lambda n=n: (self(k - 1) + self(k - 2)) @ weights * n for n in range(5)]
            return lax.switch(k, [lambda: x[k], lambda: x[k], *kinds])

        return node(root)

    prepare(jax.make_jaxpr(run)(*OPTIONAL), "other_work")
    assert _kinds == {(7, 6)}  # both leaves are alike


def test_children_passed_down(_never_by_stack):
    """A float argument for calls that may not be made."""

    def make(recursive):
        def run(x, weights, root):
            @recursive(max_depth=16, max_calls=16)
            def node(self, y, k):
                found = y * x[k]
                for child in range(3):
                    below = jnp.asarray(BELOW[5])[k, child]
                    more = lambda below=below: jnp.sin(self(y * 0.5 + x[k], below))  # noqa: E731
                    found = found + lax.cond(below == len(BELOW[5]), lambda: y * 0.1, more)
                return jnp.tanh(found @ weights)

            return node(x[0], root)

        return run

    arguments = (*CHILDREN[5], len(BELOW[5]) - 1)
    ours = gradient(make, jax_cocktail.recursive, (0, 1))
    check_levels(ours, arguments, in_python(make, (0, 1), arguments))


def test_loops_without_a_bound_go_by_the_stack():
    @jax_cocktail.recursive(out_like=lambda n: jnp.zeros(4), max_depth=8)
    def node(self, n):
        children = lax.fori_loop(0, n, lambda k, total: total + self(k), jnp.ones(4))
        return lax.cond(n < 1, lambda: jnp.asarray(TABLE)[n], lambda: children @ WEIGHTS[0][:4])

    results, schedules = scheduled(node, 3)
    check(results, jax.jit(node)(3))
    assert "there are calls in a loop" in schedules[0]


def test_limits_of_several_functions(monkeypatch):
    """More calls than room: the stack. Too deep: an error."""
    monkeypatch.setattr("jax_cocktail.recursion.order.MOST_ROOM", 4)

    def value(n, depth):
        @jax_cocktail.recursive(out_like=lambda n: jnp.zeros(4), max_depth=depth)
        def node(self, n):
            inner = lambda: jnp.tanh(jnp.concatenate([other(n - 1), self(n - 2)]) @ WEIGHTS[0])  # noqa: E731
            return lax.cond(n < 2, lambda: jnp.asarray(TABLE)[n], inner)

        @jax_cocktail.recursive(out_like=lambda n: jnp.zeros(4), max_depth=depth)
        def other(self, n):
            return lax.cond(n < 1, lambda: jnp.ones(4), lambda: node(n - 1) * 2 + node(n - 2))

        return node(n)

    ours = jax_cocktail.jit(value, static_argnums=1, options=OURS)
    assert by_levels(scheduled(lambda n: value(n, 8), 2)[1])
    for n in (2, 6):
        check(ours(n, 8), jax.jit(value, static_argnums=1)(n, 8))
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="more than 3 deep"):
        jax.block_until_ready(ours(6, 3))


def test_products_with_slices_of_weights(monkeypatch):
    """Their factors are kept and multiplied together, as those of products with all of the weights."""

    def make(recursive):
        def run(x, weights, last, root):
            @recursive(out_like=like(weights, (4,)), max_depth=8, max_calls=16)
            def node(self, k):
                def inner():
                    both = self(k - 1) @ weights[:, :4] + self(k - 2) @ weights[:, 4:]
                    return jnp.tanh(both @ last)

                return lax.cond(k < 2, lambda: x[k], inner)

            return node(root)

        return run

    run, sites = recursion.run_levels, []

    def noted(levels, *rest):
        sites.append(len(levels.plan.sites))
        return run(levels, *rest)

    monkeypatch.setattr(recursion, "run_levels", noted)
    arguments = (floats(2, 4), floats(4, 8), floats(4, 4), np.int32(4))
    ours = gradient(make, jax_cocktail.recursive, (0, 1, 2))
    prepare(jax.make_jaxpr(ours)(*arguments), "slices")
    assert max(sites) == 3
