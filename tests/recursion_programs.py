"""Recursive programs, each in two readings: one text for `jax_cocktail.recursive` and for Python recursion.

A program is a function of a decorator. Given `unrolled` instead of `jax_cocktail.recursive`, and run without
jit, its calls are calls of Python, so that JAX sees the operations of one concrete tree: the gradient of that
is the reference (`by_python`). `expected` is a second reference for values, in plain NumPy without JAX.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_cocktail_tools.models.calls import (
    ADD,
    CONSTANT,
    MULTIPLY,
    SINE,
    TANH,
    VARIABLE,
    expression_with,
)
from tests.recursion_python import floats, like
from tests.recursion_trees import (
    INPUTS,
    ROOT,
    W_CELL,
    W_SUM,
    B,
    W,
    child_sum,
    over_children_fori,
    over_children_scan,
    over_children_vmap,
    over_children_while,
    plain_child_sum,
    plain_rae,
    plain_tree_sum,
    rae,
    tree_lstm,
    tree_sum,
)


@dataclass(frozen=True)
class Case:
    """`make(recursive)` -> function of `args`; `grads`: which of them to differentiate by; `expected`: the
    value from NumPy's float64, or None."""

    name: str
    make: Callable[[Any], Callable[..., Any]]
    args: tuple[Any, ...]
    grads: tuple[int, ...] = ()
    expected: Callable[[], Any] | None = None


# -- counters ------------------------------------------------------------------------------------------------
def fibonacci(recursive):
    @recursive
    def fib(self, n):
        return lax.cond(n < 2, lambda: n, lambda: self(n - 1) + self(n - 2))

    return fib


def plain_fibonacci(n):
    return n if n < 2 else plain_fibonacci(n - 1) + plain_fibonacci(n - 2)


def waves(recursive):
    """Fibonacci's calls, with a float argument that changes on the way."""

    def run(x, n):
        @recursive
        def wave(self, y, n):
            def more():
                return self(y * 0.9, n - 1) + jnp.sin(y) * self(y + 0.1, n - 2)

            return lax.cond(n < 2, lambda: y * y + n, more)

        return wave(x, n)

    return run


def plain_waves(y, n):
    if n < 2:
        return y * y + n
    return plain_waves(y * 0.9, n - 1) + math.sin(y) * plain_waves(y + 0.1, n - 2)


def ackermann(recursive):
    @recursive
    def ack(self, m, n):
        def more():
            return lax.cond(n == 0, lambda: self(m - 1, 1), lambda: self(m - 1, self(m, n - 1)))

        return lax.cond(m == 0, lambda: n + 1, more)

    return ack


def plain_ackermann(m, n):
    if m == 0:
        return n + 1
    return plain_ackermann(m - 1, 1 if n == 0 else plain_ackermann(m, n - 1))


def power(recursive):
    @recursive
    def power(self, x, n):
        def more():
            return lax.cond(n % 2 == 1, lambda: x * self(x, n - 1), lambda: self(x * x, n // 2))

        return lax.cond(n == 0, lambda: jnp.ones_like(x), more)

    return power


def factorial(recursive):
    def run(x, n):
        @recursive(out_like=like(x))
        def factorial(self, n):
            return lax.cond(n == 0, lambda: x, lambda: n * x * self(n - 1))

        return factorial(n)

    return run


def parity(recursive):
    @recursive(out_like=jax.ShapeDtypeStruct((), bool))
    def even(self, n):
        return lax.cond(n == 0, lambda: True, lambda: odd(n - 1))

    @recursive(out_like=jax.ShapeDtypeStruct((), bool))
    def odd(self, n):
        return lax.cond(n == 0, lambda: False, lambda: even(n - 1))

    return lambda n: (even(n), odd(n))


def countdown(recursive):
    """Tail recursion."""

    @recursive(max_depth=4)
    def count(self, total, n):
        return lax.cond(n == 0, lambda: total, lambda: self(total * 0.999 + n * 1e-3, n - 1))

    return lambda n: count(jnp.ones(()), n)


def plain_countdown(n):
    value = 1.0
    for k in range(n, 0, -1):
        value = value * 0.999 + k * 1e-3
    return value


def descent(recursive):
    """Not in tail position."""

    def run(x, n):
        @recursive(out_like=like(x))
        def down(self, n):
            return lax.cond(n == 0, lambda: x, lambda: 0.9995 * self(n - 1) + x * x)

        return down(n)

    return run


# -- a grammar -----------------------------------------------------------------------------------------------
NUMBER, PLUS, TIMES, OPEN, CLOSE, END = range(6)
TEXT = "(2+3)*4*(5+6*2)+7"


def tokens(text):
    kinds = {"+": PLUS, "*": TIMES, "(": OPEN, ")": CLOSE}
    found = [kinds.get(letter, NUMBER) for letter in text] + [END] * 3
    values = [float(letter) if letter.isdigit() else 0.0 for letter in text] + [0.0] * 3
    return np.array(found, np.int32), np.array(values, np.float32)


def grammar(recursive):
    """Three functions of a recursive-descent parser; each returns a value and where it stopped."""

    def run(kinds, values):
        def result(at):
            return (like(values), at)

        @recursive(out_like=result)
        def expression(self, at):
            value, at = term(at)

            def more():
                other, end = self(at + 1)
                return value + other, end

            return lax.cond(kinds[at] == PLUS, more, lambda: (value, at))

        @recursive(out_like=result)
        def term(self, at):
            value, at = factor(at)

            def more():
                other, end = self(at + 1)
                return value * other, end

            return lax.cond(kinds[at] == TIMES, more, lambda: (value, at))

        @recursive(out_like=result)
        def factor(self, at):
            def bracket():
                value, end = expression(at + 1)
                return value, end + 1

            return lax.cond(kinds[at] == OPEN, bracket, lambda: (values[at], at + 1))

        return expression(jnp.int32(0))

    return run


# -- numbers and arrays --------------------------------------------------------------------------------------
TOLERANCE = 1e-3


def simpson(recursive):
    """Adaptive quadrature of exp(-p x) sin(5 x); the depth depends on the data."""

    def run(parameter, low, high):
        def f(x):
            return jnp.exp(-parameter * x) * jnp.sin(5 * x)

        def rule(a, b):
            return (b - a) / 6 * (f(a) + 4 * f((a + b) / 2) + f(b))

        @recursive(out_like=lambda a, *_: a)
        def integral(self, a, b, whole, tolerance):
            middle = (a + b) / 2
            left, right = rule(a, middle), rule(middle, b)
            error = left + right - whole

            def split():
                half = tolerance / 2
                return self(a, middle, left, half) + self(middle, b, right, half)

            return lax.cond(jnp.abs(error) < 15 * tolerance, lambda: left + right + error / 15, split)

        return integral(low, high, rule(low, high), jnp.asarray(TOLERANCE, low.dtype))

    return run


def plain_simpson(parameter, low, high):
    def f(x):
        return math.exp(-parameter * x) * math.sin(5 * x)

    def rule(a, b):
        return (b - a) / 6 * (f(a) + 4 * f((a + b) / 2) + f(b))

    def integral(a, b, whole, tolerance):
        middle = (a + b) / 2
        left, right = rule(a, middle), rule(middle, b)
        error = left + right - whole
        if abs(error) < 15 * tolerance:
            return left + right + error / 15
        return integral(a, middle, left, tolerance / 2) + integral(middle, b, right, tolerance / 2)

    return integral(low, high, rule(low, high), TOLERANCE)


def quicksort(recursive):
    """The array goes from call to call."""

    @recursive
    def sort(self, xs, low, high):
        def split():
            pivot = xs[high]

            def step(k, state):
                xs, end = state
                goes = (k >= low) & (k < high) & (xs[k] < pivot)
                a, b = xs[k], xs[end]
                swapped = xs.at[k].set(b).at[end].set(a)
                return jnp.where(goes, swapped, xs), end + goes

            ys, end = lax.fori_loop(0, xs.shape[0], step, (xs, low))
            ys = ys.at[high].set(ys[end]).at[end].set(pivot)
            return self(self(ys, low, end - 1), end + 1, high)

        return lax.cond(low >= high, lambda: xs, split)

    return lambda xs: sort(xs, jnp.int32(0), jnp.int32(xs.shape[0] - 1))


# sin(c + x) + tanh(y * c): every operation of the model's; a node with two parents, and one with none
OPERATIONS = np.array([CONSTANT, VARIABLE, VARIABLE, ADD, SINE, CONSTANT, MULTIPLY, TANH, ADD], np.int32)
FIRST = np.array([0, 0, 1, 0, 3, 0, 2, 6, 4], np.int32)
SECOND = np.array([0, 0, 0, 1, 0, 0, 0, 0, 7], np.int32)


def expression_tree(recursive):
    """An evaluator: `switch` over the operation of a node."""
    value = expression_with(recursive)

    def run(constants, variables, root):
        return value(*(jnp.asarray(x) for x in (OPERATIONS, FIRST, SECOND)), root, constants, variables)

    return run


def plain_expression(constants, variables):
    c, (x, y) = constants[0], variables
    return math.sin(c + x) + math.tanh(y * c)


# -- recursion in recursion, loops around and inside ---------------------------------------------------------
def calls_another(recursive):
    """A recursive function of its own, called as a whole by another one."""
    raise_to = power(recursive)

    def run(x, n):
        @recursive(out_like=like(x))
        def polynomial(self, n):
            return lax.cond(n < 0, lambda: 0.5 * x, lambda: raise_to(x, n) + 0.5 * self(n - 1))

        return polynomial(n)

    return run


def defined_inside(recursive):
    """The inner function reads what the outer one was called with."""

    @recursive
    def outer(self, x, n):
        @recursive(out_like=like(x))
        def inner(self, k):
            return lax.cond(k == 0, lambda: x, lambda: jnp.sin(x) * self(k - 1) + n)

        return lax.cond(n == 0, lambda: x, lambda: self(x * 0.5, n - 1) + inner(n))

    return outer


def inside_loops(recursive):
    wave = waves(recursive)

    def run(xs):
        def step(total, x):
            value = lax.cond(total > 1.5, lambda: wave(x, 3), lambda: wave(x + 1, 2))
            return total * 0.5 + value, value

        return lax.scan(step, jnp.zeros((), xs.dtype), xs)

    return run


def pairs(recursive):
    """A pytree in, another one out: floats, whole numbers, flags, bfloat16."""

    def run(state):
        def result(state):
            return {"sum": state["x"], "calls": like(jnp.int32(0)), "odd": like(True), "half": state["half"]}

        @recursive(out_like=result)
        def walk(self, state):
            x, (n, flag) = state["x"], state["counter"]

            def last():
                return {"sum": x, "calls": jnp.int32(1), "odd": flag, "half": state["half"]}

            def more():
                half = (state["half"] * 0.5).astype(state["half"].dtype)
                a = self({"x": jnp.tanh(x), "counter": (n - 1, ~flag), "half": half})
                b = self({"x": x[::-1] * 0.5, "counter": (n - 2, flag), "half": half})
                return {
                    "sum": a["sum"] + b["sum"] * x,
                    "calls": a["calls"] + b["calls"] + 1,
                    "odd": a["odd"] ^ b["odd"],
                    "half": a["half"] + b["half"],
                }

            return lax.cond(n < 2, last, more)

        return walk(state)

    return run


STATE = {
    "x": floats(3),
    "counter": (np.int32(4), np.bool_(True)),
    "half": np.asarray([1.0, 2.0], jnp.bfloat16),
}
SORTED = floats(6)
WEIGHTS = floats(8)
CONSTANTS, VARIABLES = floats(9), floats(2)
X = np.float32(0.7)


def _f64(*arrays):
    return [np.asarray(a, np.float64) for a in arrays]


CASES = (
    Case("fibonacci", fibonacci, (np.int32(9),), (), lambda: plain_fibonacci(9)),
    Case("waves", waves, (X, np.int32(4)), (0,), lambda: plain_waves(float(X), 4)),
    Case("ackermann", ackermann, (np.int32(2), np.int32(3)), (), lambda: plain_ackermann(2, 3)),
    Case("power", power, (X, np.int32(11)), (0,), lambda: float(X) ** 11),
    Case("factorial", factorial, (X, np.int32(5)), (0,), lambda: math.factorial(5) * float(X) ** 6),
    Case("parity", parity, (np.int32(7),), (), lambda: (False, True)),
    Case("grammar", grammar, tokens(TEXT), (1,), lambda: (float(eval(TEXT)), len(TEXT))),
    Case("tree_sum", tree_sum, (WEIGHTS, ROOT), (0,), lambda: plain_tree_sum(WEIGHTS, ROOT)),
    Case("rae", rae, (INPUTS, W, B, ROOT), (0, 1, 2), lambda: plain_rae(INPUTS, W, B, ROOT)),
    Case("tree_lstm", tree_lstm, (INPUTS, W_CELL, ROOT), (0, 1)),
    *(
        Case(
            f"child_sum_{how}",
            child_sum(over_children),
            (INPUTS, W_SUM, ROOT),
            () if how in ("fori", "while") else (0, 1),
            lambda: plain_child_sum(*_f64(INPUTS, W_SUM), ROOT),
        )
        for how, over_children in (
            ("scan", over_children_scan),
            ("fori", over_children_fori),
            ("while", over_children_while),
            ("vmap", over_children_vmap),
        )
    ),
    Case(
        "simpson",
        simpson,
        (X, np.float32(0), np.float32(2)),
        (0, 2),
        lambda: plain_simpson(float(X), 0.0, 2.0),
    ),
    Case("quicksort", quicksort, (SORTED,), (0,), lambda: np.sort(SORTED)),
    Case(
        "expression_tree",
        expression_tree,
        (CONSTANTS, VARIABLES, np.int32(8)),
        (0, 1),
        lambda: plain_expression(*_f64(CONSTANTS, VARIABLES)),
    ),
    Case("calls_another", calls_another, (X, np.int32(3)), (0,)),
    Case("defined_inside", defined_inside, (X, np.int32(3)), (0,)),
    Case("inside_loops", inside_loops, (floats(4),), (0,)),
    Case("pairs", pairs, (STATE,), ()),
)
