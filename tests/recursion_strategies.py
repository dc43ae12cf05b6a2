"""Random recursive functions for hypothesis: counters, any number of calls, alone or in branches and loops.

A program is a tuple of functions that call each other; each is a tree of plain tuples that `build` reads. A
call has one vector, some scalars, an integer, and a counter that ends the recursion; it returns a vector, a
scalar and an integer. Integers are computed from integers alone, so that which way a program goes cannot
depend on how floats were rounded; floats stay bounded.

In an *ordered* program, what a call gets follows from its caller's arguments, and integers from those alone:
its calls can be known before they run.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

from tests.recursion_python import unrolled

WIDTH = 3
MOST_CALLS = 60  # of a program, if every branch is the one with most calls

Values = tuple[Any, Any, Any]  # vector, scalar, integer: what statements work on and what a call returns


def operands(seed: int, scalars: int) -> tuple[Any, ...]:
    """Weights, table, vector, scalars, integer."""
    random = np.random.default_rng(seed)
    weights = random.uniform(-0.5, 0.5, (WIDTH, WIDTH)).astype(np.float32)
    table = random.uniform(-1, 1, (5, WIDTH)).astype(np.float32)
    vector = random.uniform(-1, 1, WIDTH).astype(np.float32)
    numbers = tuple(np.float32(x) for x in random.uniform(-1, 1, scalars))
    return weights, table, vector, numbers, np.int32(random.integers(0, 9))


def build(program: Any, recursive: Any) -> Any:
    """A function of `operands` and of the first counter."""
    functions, scalars, ordered = program

    def run(weights: Any, table: Any, vector: Any, numbers: Any, integer: Any, count: Any) -> Values:
        made: list[Any] = []
        for body in functions:
            like = (vector, jnp.zeros((), vector.dtype), integer)
            run = _Body(body, made, weights, table, scalars, (recursive is unrolled, ordered))
            made.append(recursive(out_like=like)(run))
        return made[0](vector, numbers, integer, count)

    return run


class _Body:
    """One function. Its own calls go through `self`, those of others by their names."""

    def __init__(
        self, body: Any, made: list[Any], weights: Any, table: Any, scalars: int, how: tuple[bool, bool]
    ) -> None:
        self.number, (self.last, self.statements) = len(made), body
        self.made, self.weights, self.table, self.scalars = made, weights, table, scalars
        self.in_python, self.ordered = how
        self.__name__ = f"function_{self.number}"

    def __call__(self, myself: Any, vector: Any, numbers: Any, integer: Any, count: Any) -> Values:
        scalar = numbers[0] if numbers else vector[0]

        def call(target: int, values: Values, fewer: int) -> Values:
            v, s, i = values
            if self.ordered:
                v, s = vector * 0.5, scalar
            rest = tuple(x * 0.5 + s * 0.25 for x in numbers[1:])
            passed = (s, *rest) if numbers else ()
            target %= len(self.made)
            function = myself if target == self.number else self.made[target]
            w, t, j = function(v, passed, i, count - fewer)
            return w, t, i if self.ordered else j

        def end() -> Values:
            return self.step(self.last, (vector, scalar, integer))

        def more() -> Values:
            return self.block(self.statements, (vector, scalar, integer), call)

        return lax.cond(count <= 0, end, more)

    def block(self, statements: Any, values: Values, call: Any) -> Values:
        for statement in statements:
            values = self.statement(statement, values, call)
        return values

    def statement(self, statement: Any, values: Values, call: Any) -> Values:
        tag = statement[0]
        v, s, i = values
        if tag == "step":
            return self.step(statement[1], values)
        if tag == "call":
            _, target, fewer, kind = statement
            w, t, j = call(target, values, fewer)
            return jnp.tanh(v + w * 0.5), (t * s if kind % 2 else t - s * 0.5), (i + j) % 7
        if tag == "both":
            _, target, fewer, more = statement
            (w, t, j), (x, u, k) = call(target, values, fewer), call(target, (v * 0.5, s + 0.25, i + 1), more)
            return jnp.tanh(w - x), t * u + s * 0.5, (j + k * 2) % 9
        if tag == "cond":
            _, then, other = statement
            sides = [lambda: self.block(then, values, call), lambda: self.block(other, values, call)]
            return lax.cond(i % 2 == 0, *sides)
        if tag == "switch":
            blocks = [lambda b=b: self.block(b, values, call) for b in statement[1]]
            return lax.switch(i % len(blocks), blocks)
        if tag == "vmap":
            return self.lanes(statement, values, call)
        _, length, reverse, inner = statement

        def turn(carried: Values, k: Any) -> tuple[Values, Any]:
            w, t, j = carried
            found = self.block(inner, (w, t * 0.5 + k * 0.1, j), call)
            return found, found[1]

        numbers = jnp.arange(length, dtype=v.dtype)
        (v, s, i), rows = lax.scan(turn, values, numbers, reverse=reverse)
        return v, s + rows.sum() * 0.1, i

    def lanes(self, statement: Any, values: Values, call: Any) -> Values:
        _, target, fewer, _ = statement
        v, s, i = values
        scales = jnp.asarray([0.5, -0.25], v.dtype)

        def one(scale: Any) -> Values:
            return call(target, (v * scale, s + scale, i), fewer)

        if self.in_python:  # where a vmapped branch is none
            found = jax.tree.map(lambda *x: jnp.stack(x), *(one(scale) for scale in scales))
        else:
            found = jax.vmap(one)(scales)
        w, t, j = found
        return jnp.tanh(v + w.sum(0)), t[0] * s - t[1], (i + j.sum()) % 5

    def step(self, kind: int, values: Values) -> Values:
        v, s, i = values
        w, table = self.weights, self.table
        return (
            lambda: (jnp.tanh(v @ w + s), s * 0.5, i),
            lambda: (v * 0.5 + table[i % 5], jnp.tanh(s + v[i % WIDTH]), i + 1),
            lambda: (jnp.sin(v) * s, jnp.sum(v * w[0]), (i * 3 + 1) % 11),
            lambda: (jnp.where(i > 3, v, v[::-1]), jnp.cos(s), i // 2),
            lambda: (v.at[i % WIDTH].set(s), s * v[0], i ^ 1),
            lambda: (jnp.tanh(w @ v), s, jnp.minimum(i + 2, 6)),
        )[kind % 6]()


def _calls(statements: Any) -> int:
    """How many calls a block makes at most."""
    found = 0
    for tag, *rest in statements:
        if tag in ("call", "vmap", "both"):
            found += 1 if tag == "call" else 2
        elif tag == "cond":
            found += max(map(_calls, rest))
        elif tag == "switch":
            found += max(map(_calls, rest[0]))
        elif tag == "scan":
            found += rest[0] * _calls(rest[2])
    return found


def depth_of(program: Any) -> int:
    """A counter with which the program makes no more than `MOST_CALLS` calls."""
    widest = max(1, *(_calls(statements) for _, statements in program[0]))
    depth = 1
    while depth < 6 and sum(widest**k for k in range(depth + 2)) <= MOST_CALLS:
        depth += 1
    return depth


_step = st.tuples(st.just("step"), st.integers(0, 5))
_call = st.tuples(st.just("call"), st.integers(0, 2), st.integers(1, 2), st.integers(0, 1))
_both = st.tuples(st.just("both"), st.integers(0, 2), st.integers(1, 2), st.integers(1, 2))
_vmap = st.tuples(st.just("vmap"), st.integers(0, 2), st.integers(1, 2), st.just(0))


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    block = st.lists(inner, max_size=2).map(tuple)
    return st.one_of(
        st.tuples(st.just("cond"), block, block),
        st.tuples(st.just("switch"), st.lists(block, min_size=1, max_size=3).map(tuple)),
        st.tuples(st.just("scan"), st.integers(1, 2), st.booleans(), block),
    )


def recursions(ordered: st.SearchStrategy[bool] | None = None) -> st.SearchStrategy[Any]:
    """One to three functions, each with at least one call; sometimes ordered."""
    ordered = st.booleans() if ordered is None else ordered
    some = st.recursive(st.one_of(_step, _call, _both, _vmap), _nested, max_leaves=5)
    calls = st.lists(st.one_of(_call, _both), min_size=1, max_size=2)
    block = st.tuples(calls, st.lists(some, max_size=2).map(tuple), st.integers(0, 2)).map(
        lambda parts: (*parts[1][: parts[2]], *parts[0], *parts[1][parts[2] :])
    )
    function = st.tuples(st.integers(0, 5), block)
    functions = st.lists(function, min_size=1, max_size=3).map(tuple)
    return st.tuples(functions, st.integers(0, 3), ordered).filter(
        lambda p: sum(_calls(b) for _, b in p[0]) <= 6
    )
