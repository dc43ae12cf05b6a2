"""Recursive programs dominated by calls and branches: numbers, quadrature, sorting, an interpreter.

They set limits, because stock XLA copies the stack for every call and is faster with a small one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_cocktail import recursive
from jax_cocktail_tools.models.model import Instance, Model, generator, normal

CONSTANT, VARIABLE, ADD, MULTIPLY, SINE, TANH = range(6)


@recursive(max_depth=32)
def fibonacci(self: Any, n: Any) -> Any:
    """Two calls and one sum."""
    return jax.lax.cond(n < 2, lambda: n, lambda: self(n - 1) + self(n - 2))


@recursive(max_depth=256)
def ackermann(self: Any, m: Any, n: Any) -> Any:
    """Nested calls: one call is the argument of another; all others are in tail position."""

    def more() -> Any:
        return jax.lax.cond(n == 0, lambda: self(m - 1, 1), lambda: self(m - 1, self(m, n - 1)))

    return jax.lax.cond(m == 0, lambda: n + 1, more)


def simpson(decay: Any, low: Any, high: Any, tolerance: Any) -> Any:
    """The integral of ``exp(-decay x) sin(20 x)`` by adaptive Simpson quadrature."""

    def f(x: Any) -> Any:
        return jnp.exp(-decay * x) * jnp.sin(20 * x)

    def rule(a: Any, b: Any) -> Any:
        return (b - a) / 6 * (f(a) + 4 * f((a + b) / 2) + f(b))

    @recursive(max_depth=32, max_calls=4096)
    def integral(self: Any, a: Any, b: Any, whole: Any, tolerance: Any) -> Any:
        middle = (a + b) / 2
        left, right = rule(a, middle), rule(middle, b)
        error = left + right - whole

        def halves() -> Any:
            half = tolerance / 2
            return self(a, middle, left, half) + self(middle, b, right, half)

        return jax.lax.cond(jnp.abs(error) < 15 * tolerance, lambda: left + right + error / 15, halves)

    return integral(low, high, rule(low, high), tolerance)


@recursive(max_depth=1024)
def _sorted_between(self: Any, xs: Any, low: Any, high: Any) -> Any:
    """``xs`` with its entries from ``low`` to ``high`` sorted."""

    def parts() -> Any:
        pivot = xs[high]

        def step(k: Any, state: Any) -> Any:
            def swap(xs: Any, end: Any) -> Any:
                a, b = xs[k], xs[end]
                return xs.at[k].set(b).at[end].set(a), end + 1

            return jax.lax.cond(state[0][k] < pivot, swap, lambda *x: x, *state)

        ys, end = jax.lax.fori_loop(low, high, step, (xs, low))
        last = ys[end]
        ys = ys.at[high].set(last).at[end].set(pivot)
        return self(self(ys, low, end - 1), end + 1, high)

    return jax.lax.cond(low >= high, lambda: xs, parts)


def quicksort(xs: Any) -> Any:
    """The sorted vector. All calls pass one array along."""
    return _sorted_between(xs, jnp.int32(0), jnp.int32(xs.shape[0] - 1))


def expression_with(recursive: Callable[..., Any]) -> Callable[..., Any]:
    """A function that evaluates an expression tree given as arrays; `recursive` makes it recursive."""

    def expression(kinds: Any, first: Any, second: Any, root: Any, constants: Any, variables: Any) -> Any:
        """The value of an expression tree, with a ``switch`` over each node's operation. ``first``,
        ``second``: a node's operands; ``first`` of a variable is its number."""

        nodes = kinds.shape[0]

        @recursive(out_like=jax.ShapeDtypeStruct((), constants.dtype), max_depth=nodes, max_calls=nodes)
        def value(self: Any, node: Any) -> Any:
            a, b = first[node], second[node]
            return jax.lax.switch(
                kinds[node],
                [
                    lambda: constants[node],
                    lambda: variables[a],
                    lambda: self(a) + self(b),
                    lambda: self(a) * self(b),
                    lambda: jnp.sin(self(a)),
                    lambda: jnp.tanh(self(a)),
                ],
            )

        return value(root)

    return expression


expression = expression_with(recursive)


def random_expression(random: np.random.Generator, leaves: int, variables: int) -> tuple[np.ndarray, ...]:
    """The arrays kinds, first, second and the root of a random expression."""
    nodes: list[tuple[int, int, int]] = []

    def make(leaves: int) -> int:
        if leaves == 1:
            kind = int(random.choice([CONSTANT, VARIABLE]))
            nodes.append((kind, int(random.integers(variables)), 0))
        elif random.random() < 0.2:
            nodes.append((int(random.choice([SINE, TANH])), make(leaves), 0))
        else:
            some = int(random.integers(1, leaves))
            pair = make(some), make(leaves - some)
            nodes.append((int(random.choice([ADD, MULTIPLY])), *pair))
        return len(nodes) - 1

    root = make(leaves)
    columns = [np.array(column, np.int32) for column in zip(*nodes, strict=True)]
    return (*columns, np.asarray(root, np.int32))


def build_fibonacci(batch: int, small: bool) -> Instance:
    return fibonacci, (jnp.int32(10 if small else 20),)


def build_ackermann(batch: int, small: bool) -> Instance:
    return ackermann, (jnp.int32(2), jnp.int32(3 if small else 60))


def build_simpson(batch: int, small: bool) -> Instance:
    return simpson, tuple(jnp.float32(x) for x in (0.3, 0.0, 2.0 if small else 10.0, 1e-3))


def build_quicksort(batch: int, small: bool) -> Instance:
    return quicksort, (jnp.asarray(normal(generator("quicksort"), 16 if small else 1000)),)


def build_expression(batch: int, small: bool) -> Instance:
    random = generator("expression")
    tables = random_expression(random, 8 if small else 200, 4)
    constants, variables = normal(random, len(tables[0])), normal(random, 4)
    return expression, tuple(jnp.asarray(x) for x in (*tables, constants, variables))


MODELS = (
    Model("fibonacci", "Fibonacci of 20, 21891 calls: recursion", (1,), 0, build_fibonacci),
    Model("ackermann", "Ackermann of 2 and 60, 7625 calls: recursion", (1,), 0, build_ackermann),
    Model("simpson", "adaptive quadrature, depth given by the data: recursion", (1,), 2e-5, build_simpson),
    Model("quicksort", "quicksort of 1000 numbers in place: recursion", (1,), 0, build_quicksort),
    Model("expression", "value of a tree of 200 leaves: recursion with switch", (1,), 2e-5, build_expression),
)
