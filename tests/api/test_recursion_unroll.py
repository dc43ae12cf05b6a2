"""Recursion unrolled: the values of the functions as they were written, and errors at the same depths."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail import recursive
from jax_cocktail.primitives.jaxprs import nested_jaxprs, open_jaxpr
from jax_cocktail.recursion import machine as recursion_machine
from jax_cocktail.recursion import primitive as recursion
from jax_cocktail.recursion import unroll as recursion_unroll
from jax_cocktail.recursion.machine import bodies_of, plan_of, planned, run_machine
from jax_cocktail.recursion.unroll import unroll
from jax_cocktail_tools.models.calls import ackermann
from tests.recursion_compare import check
from tests.recursion_python import by_python, unrolled, widened

OURS = {"force": "cocktail", "strict": True, "units": 1}
ERRORS = (jax.errors.JaxRuntimeError, ValueError)

pytestmark = pytest.mark.one_jax  # about a plan that no jax sees


def fibonacci(recursive, depth):
    @recursive(max_depth=depth)
    def fib(self, n):
        return lax.cond(n < 2, lambda: n, lambda: self(n - 1) + self(n - 2))

    return fib


def leaning(recursive, depth):
    """Calls whose argument is a call, and one on one side only."""

    @recursive(max_depth=depth)
    def lean(self, n):
        def more():
            return self(self(n - 2) * 0 + n - 1) + lax.cond(n % 3 == 0, lambda: self(n - 3), lambda: n)

        return lax.cond(n < 1, lambda: n * 0 + 2, more)

    return lean


def mutual(recursive, depth):
    """Two functions with results of different types, and a third that calls nobody."""

    @recursive
    def leaf(self, n):
        return n * 3 + 1

    @recursive(out_like=lambda n: (n, jnp.float32(0)))
    def down(self, n):
        def more():
            return up(n - 1) + leaf(n), jnp.sin(jnp.float32(n))

        return lax.cond(n < 1, lambda: (n, jnp.float32(0.5)), more)

    @recursive(max_depth=depth)
    def up(self, n):
        def more():
            m, x = down(n - 1)
            return m + lax.select(x > 0, self(n - 2), n)

        return lax.cond(n < 1, lambda: n, more)

    return up


def wrapped(recursive, depth):
    """A call that would be in tail position, were it not for the function that makes it."""

    @recursive(out_like=lambda n: (n, n))
    def second(self, n):
        return first(n - 1), n

    @recursive(max_depth=depth)
    def first(self, n):
        return lax.cond(n < 1, lambda: n + 7, lambda: second(n)[0])

    return first


def iterated(recursive, depth):
    """The first function goes on in its own frame; the second one is not in tail position."""

    @recursive(out_like=lambda n: jnp.float32(0))
    def nested(self, n):
        return lax.cond(n < 1, lambda: jnp.float32(1), lambda: self(n - 1) * 1.5 + self(n - 2))

    @recursive(max_depth=depth, out_like=lambda total, n: total)
    def loop(self, total, n):
        return lax.cond(n < 1, lambda: total, lambda: self(total * 0.5 + nested(n), n - 1))

    return lambda n: loop(jnp.float32(0), n)


def looping(recursive, depth):
    """Calls in loops: with rows, with carries that calls see, and in a condition."""

    @recursive(max_depth=depth)
    def loop(self, n):
        def more():
            rows = jnp.arange(10)

            def turn(carried, row):
                found = self(jnp.minimum(n - 1 - row, carried % 3))
                return (carried * 3 + found) % 101, found

            total, found = lax.scan(turn, n, rows, reverse=True)
            short = lax.fori_loop(0, n % 3, lambda k, c: (c + self(n - 2 - k)) % 89, total)

            def step(state):
                k, t = state
                return k + 1, (t * 5 + self(n - 1)) % 97

            last, t = lax.while_loop(lambda s: self(n - 2) % 2 + s[0] < 2, step, (n * 0, short))
            return (t + found.sum() + last) % 1009

        return lax.cond(n < 1, lambda: n * 0 + 1, more)

    return loop


def switching(recursive, depth):
    """A pytree, floats, and a switch whose sides make none, one and two calls."""

    @recursive(max_depth=depth, out_like=lambda n, x: {"x": x, "n": n})
    def node(self, n, x):
        def two():
            a, b = self(n - 1, x * 0.5), self(n - 2, jnp.cos(x))
            return {"x": a["x"] - b["x"] * x, "n": a["n"] + b["n"]}

        def one():
            a = self(n - 1, x + 1)
            return {"x": jnp.tanh(a["x"]), "n": a["n"] * 2}

        return lax.switch(jnp.where(n < 1, 0, 1 + n % 2), [lambda: {"x": x, "n": n + 1}, one, two])

    return lambda n: node(n, jnp.float32(0.3))


PROGRAMS = {f.__name__: f for f in (fibonacci, leaning, mutual, wrapped, iterated, looping, switching)}
SIZES = {"fibonacci": 7, "looping": 3, "leaning": 5}


def programs():
    return pytest.mark.parametrize("name", PROGRAMS)


@pytest.fixture
def levels(request, monkeypatch):
    """How often, whatever there is to unroll."""
    for module, name, value in (
        (recursion_machine, "LEVELS", request.param),
        (recursion_machine, "MOST_FRAME_BYTES", 10_000),
        (recursion_unroll, "MOST_CALLS", 1000),
        (recursion_unroll, "MOST_ITEMS", 10_000),
    ):
        monkeypatch.setattr(module, name, value)
    return request.param


def named(function):
    return pytest.mark.parametrize("name", PROGRAMS)(function)


def size(name):
    return np.int32(SIZES.get(name, 6))


def binding(jaxpr):
    """The first recursion of a program, as an equation."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == recursion.RECURSION:
            return equation
        for inner in nested_jaxprs(equation):
            found = binding(open_jaxpr(inner))
            if found is not None:
                return found
    return None


def task_of(function, *arguments):
    return binding(jax.make_jaxpr(function)(*arguments).jaxpr).params["task"]


@named
@pytest.mark.parametrize("levels", [1], indirect=True)
def test_values(name, levels):
    function, n = PROGRAMS[name](recursive, 24), size(name)
    assert planned(task_of(function, n), unrolled=True).levels == levels + 1
    expected = by_python(lambda: PROGRAMS[name](unrolled, 24)(*widened((n,))))
    check(jax_cocktail.jit(function, options=OURS)(n), expected)
    check(jax.jit(function)(n), expected)


@pytest.mark.parametrize(
    ("name", "levels"),
    [(name, 1) for name in PROGRAMS] + [(name, 2) for name in ("mutual", "wrapped", "iterated")],
    indirect=["levels"],
)
def test_depths(name, levels):
    """Whatever is unrolled fails where the functions do as they were written. Both by stock XLA."""
    for depth in (levels + 1, 2 * levels + 2)[: 1 if name == "looping" else 2]:
        task = task_of(PROGRAMS[name](recursive, depth), size(name))
        assert planned(task, unrolled=True).depth == depth // (levels + 1)
        plain, short = (jax.jit(partial(outcome, task, way)) for way in (False, True))
        seen = set()
        for n in range(depth + 3):
            (status, results), (found, others) = plain(np.int32(n)), short(np.int32(n))
            assert int(status) == int(found), (depth, n)
            seen.add(int(status))
            if not status:
                check(others, results)
        assert seen == {0, 1}


def outcome(task, way, n):
    """Status and results of a call with `n`, and zeros for what is no integer."""
    types = task.operands
    return run_machine(
        task, [n if a.dtype == n.dtype and not a.shape else jnp.zeros(a.shape, a.dtype) for a in types], way
    )


def depth_of_calls(n):
    return max(n, 1)  # of `fibonacci`


@pytest.mark.parametrize("limit", [6, 7])
def test_errors_at_the_limit(limit):
    """An odd number of levels is not unrolled."""
    function = jax_cocktail.jit(fibonacci(recursive, limit), options=OURS)
    for n in (limit - 1, limit, limit + 1):
        if depth_of_calls(n) <= limit:
            assert int(function(n)) == by_python(lambda n=n: fibonacci(unrolled, 1)(n))
        else:
            with pytest.raises(ERRORS, match=f"fib called itself more than {limit} deep"):
                jax.block_until_ready(function(n))
    text = str(jax_cocktail.explain(function)(limit))
    assert ("a stack of 3 frames of 24 bytes, unrolled once" in text) == (limit == 6)
    assert ("a stack of 7 frames of 8 bytes;" in text) == (limit == 7)


def test_without_a_limit():
    """There is room for an even number of levels."""
    assert planned(task_of(recursive(fibonacci(recursive, 1).body), 3), unrolled=True).depth == 1 << 15


@pytest.mark.parametrize("compiler", ["stock", "ours"])
def test_lanes_and_gradients(compiler):
    """Every lane has its own stack; derivatives, whose calls have numbers, are not unrolled."""

    def value(x, n):
        @recursive(max_depth=8, max_calls=64, out_like=lambda n: x)
        def wave(self, n):
            return lax.cond(n < 2, lambda: jnp.sin(x * n), lambda: self(n - 1) * x - jnp.cos(self(n - 2)))

        return wave(n)

    def plain(x, n):
        return np.sin(x * n) if n < 2 else plain(x, n - 1) * x - np.cos(plain(x, n - 2))

    compiled = {"stock": jax.jit, "ours": lambda f: jax_cocktail.jit(f, options=OURS)}[compiler]
    xs, counts = np.float32([0.3, -0.7, 1.1]), np.int32([6, 0, 3])
    expected = np.asarray([plain(np.float64(x), n) for x, n in zip(xs, counts, strict=True)])
    check(compiled(jax.vmap(value))(xs, counts), expected)
    slopes = compiled(jax.vmap(jax.grad(value)))(xs, counts)
    moved = [plain(x + 1e-6, n) - plain(x - 1e-6, n) for x, n in zip(np.float64(xs), counts, strict=True)]
    check(slopes, np.asarray(moved) / 2e-6, 1e-4)


REFUSED = {
    "all calls are in tail position": lambda n: countdown(n),
    "a function that would be inlined has calls in tail position": lambda n: ackermann(n, n),
    "max_depth=31 is not divisible by 2": lambda n: fibonacci(recursive, 31)(n),
    "its code would be too long": lambda n: many(n),
    "calls have numbers": lambda n: jax.grad(lambda x: power(x, n))(1.5),
}


@recursive(max_depth=4)
def countdown(self, n):
    return lax.cond(n < 1, lambda: n, lambda: self(n - 1))


@recursive(max_depth=4)
def many(self, n):
    return lax.cond(n < 1, lambda: n, lambda: sum(self(n - k) for k in range(1, 6)))


@recursive(max_depth=4, max_calls=4)
def power(self, x, n):
    return lax.cond(n < 1, lambda: 1.0, lambda: x * self(x, n - 1))


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_unrolled(reason):
    task = task_of(REFUSED[reason], 3)
    bodies = bodies_of(task)
    assert unroll(task, bodies, plan_of(task, bodies).tail_calls, 1) == reason
    assert planned(task, unrolled=True).levels == 1


def test_large_frames_are_not():
    @recursive(max_depth=8)
    def long(self, x):
        return lax.cond(x[0] < 1, lambda: x, lambda: self(x - 1) + jnp.sin(self(x - 2)) * x)

    for width, levels in ((8, 2), (1000, 1)):
        assert planned(task_of(long, np.ones(width, np.float32)), unrolled=True).levels == levels
