"""Random nested programs for hypothesis: while / fori / scan / cond / switch over carries of mixed types.

A program is a tree of plain tuples (so that it shrinks and prints well) and `run` interprets it with JAX. The
state is a fixed list of arrays. Integers and predicates are computed from integers alone, so that trip counts
and branches cannot depend on how floats were rounded; floats stay bounded. The bfloat16 vector feeds nothing
else, since it is compared loosely (`check_state`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

import jax_cocktail

State = tuple[Any, ...]

# slots: three vectors, two matrices, two float scalars, three integers, an integer vector, a flag, a bfloat16
# vector, an int8 vector, a uint32 scalar
VECTORS, MATRICES, SCALARS, INTEGERS = (0, 1, 2), (3, 4), (5, 6), (7, 8, 9)
INT_VECTOR, FLAG, HALVES, BYTES, WORD = 10, 11, 12, 13, 14
WIDTH, HEIGHT = 5, 3


def initial_state(seed: int) -> State:
    rng = np.random.default_rng(seed)
    shapes = [(WIDTH,)] * 3 + [(HEIGHT, WIDTH)] * 2 + [()] * 2
    floats = [rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]
    integers = [np.int32(rng.integers(-9, 9)) for _ in INTEGERS]
    vector = rng.integers(-9, 9, WIDTH).astype(np.int32)
    halves = rng.uniform(-1, 1, WIDTH).astype(jnp.bfloat16)
    small = rng.integers(-128, 128, WIDTH).astype(np.int8)
    word = np.uint32(rng.integers(2**32))
    return (*floats, *integers, vector, np.bool_(rng.integers(2)), halves, small, word)


def check_state(ours: Any, expected: Any, label: str = "") -> None:
    """Two final states agree: integers and flags exactly, floats as closely as their type allows."""
    for position, (x, y) in enumerate(zip(ours, expected, strict=True)):
        where = f"{label} {position}"
        assert x.shape == y.shape and x.dtype == y.dtype, where
        if jnp.issubdtype(y.dtype, np.floating):
            close = 2e-2 if y.dtype == jnp.bfloat16 else 1e-4
            wide = np.asarray(x, np.float32), np.asarray(y, np.float32)
            np.testing.assert_allclose(*wide, rtol=close, atol=close, err_msg=where)
        else:
            np.testing.assert_array_equal(x, y, err_msg=where)


def _vector_step(kind: int, s: list[Any], a: int, b: int, c: int) -> None:
    x, y, i = s[VECTORS[a]], s[VECTORS[b]], s[INTEGERS[c]]
    m = s[MATRICES[b % 2]]
    s[VECTORS[c]] = (
        lambda: jnp.tanh(x + y),
        lambda: x * 0.5 - y * 0.25,
        lambda: jnp.where(s[INT_VECTOR] > i, x, y),
        lambda: x.at[i].set(s[SCALARS[b % 2]]),
        lambda: x.at[i % WIDTH].add(y[(i + 1) % WIDTH] * 0.1),
        lambda: jnp.roll(x, 1) * 0.5 + y * 0.5,
        lambda: lax.dynamic_slice(m, (i, 0), (1, WIDTH))[0],
        lambda: (jnp.ones(HEIGHT, jnp.float32) * 0.2) @ m,
        lambda: jnp.sort(x),
        lambda: jnp.concatenate([y[2:], x[:2]]),
        lambda: jnp.max(m, axis=0),
        lambda: jnp.cumsum(x) * 0.2,
    )[kind % 12]()


def _matrix_step(kind: int, s: list[Any], a: int, b: int, c: int) -> None:
    m, n, v, i = s[MATRICES[a % 2]], s[MATRICES[b % 2]], s[VECTORS[c]], s[INTEGERS[a]]
    s[MATRICES[c % 2]] = (
        lambda: m * 0.5 + n * 0.5,
        lambda: jnp.sin(m) * v,
        lambda: lax.dynamic_update_slice(m, v[None] * 0.5, (i, 0)),
        lambda: jnp.flip(m, 0) * 0.9,
        lambda: m.at[i % HEIGHT].set(m[(i + 1) % HEIGHT]),
        lambda: jnp.tanh(m @ (n.T @ n)),
        lambda: jnp.where(s[FLAG], m, n),
        lambda: jnp.broadcast_to(s[SCALARS[a % 2]], (HEIGHT, WIDTH)) + m * 0.25,
        lambda: jnp.pad(m, ((1, 0), (0, 0)))[:HEIGHT],
        lambda: m[s[INT_VECTOR][:HEIGHT] % HEIGHT],
    )[kind % 10]()


def _scalar_step(kind: int, s: list[Any], a: int, b: int, c: int) -> None:
    x, v, i, j = s[SCALARS[a % 2]], s[VECTORS[b]], s[INTEGERS[b]], s[INTEGERS[c]]
    if kind % 2:
        s[SCALARS[c % 2]] = (
            lambda: jnp.tanh(x + jnp.sum(v) * 0.1),
            lambda: jnp.max(v),
            lambda: v[i % WIDTH] + x * 0.5,
            lambda: jnp.float32(0.01) * i.astype(jnp.float32) + x * 0.5,
            lambda: jnp.mean(s[MATRICES[a % 2]]),
        )[kind // 2 % 5]()
    else:
        s[INTEGERS[a]] = (
            lambda: (i + j) % 17,
            lambda: i ^ j,
            lambda: jnp.minimum(i, j) - 1,
            lambda: i // jnp.where(j == 0, 1, j),
            lambda: jnp.sum(s[INT_VECTOR]) % 11,
            lambda: s[INT_VECTOR][j % WIDTH],
            lambda: jnp.argmax(s[INT_VECTOR]).astype(jnp.int32),
        )[kind // 2 % 7]()


def _move_step(kind: int, s: list[Any], a: int, b: int, c: int) -> None:
    if kind % 5 == 0:
        s[VECTORS[0]], s[VECTORS[1]], s[VECTORS[2]] = s[VECTORS[a]], s[VECTORS[b]], s[VECTORS[c]]
    elif kind % 5 == 1:
        s[MATRICES[0]], s[MATRICES[1]] = s[MATRICES[1]], s[MATRICES[a % 2]]
    elif kind % 5 == 2:
        s[INTEGERS[0]], s[INTEGERS[1]], s[INTEGERS[2]] = s[INTEGERS[a]], s[INTEGERS[b]], s[INTEGERS[c]]
    elif kind % 5 == 3:
        s[FLAG] = s[INTEGERS[a]] > s[INTEGERS[b]]
    else:
        s[INT_VECTOR] = s[INT_VECTOR].at[s[INTEGERS[a]]].set(s[INTEGERS[b]]) % 13


def _narrow_step(kind: int, s: list[Any], a: int, b: int, c: int) -> None:
    h, v, k, word, i = s[HALVES], s[VECTORS[a]], s[BYTES], s[WORD], s[INTEGERS[b]]
    family, kind = kind % 3, kind // 3
    if family == 0:
        s[HALVES] = (
            lambda: h * 0.5 + v.astype(jnp.bfloat16) * 0.25,
            lambda: jnp.tanh((h + h[::-1]) * 0.5),
            lambda: jnp.where(k > 0, h, -h),
            lambda: h.at[i % WIDTH].set(s[SCALARS[c % 2]].astype(jnp.bfloat16)),
            lambda: jnp.maximum(h, jnp.roll(h, 2)) * 0.5,
        )[kind % 5]()
    elif family == 1:
        s[BYTES] = (
            lambda: k * jnp.int8(3) + jnp.int8(7),
            lambda: k + s[INT_VECTOR].astype(jnp.int8),
            lambda: k ^ (k >> 1),
            lambda: jnp.cumsum(k, dtype=jnp.int8),
            lambda: k.at[i].set(word.astype(jnp.int8)),
            lambda: jnp.sort(k)[::-1],
        )[kind % 6]()
    else:
        s[WORD] = (
            lambda: word * jnp.uint32(1664525) + jnp.uint32(1013904223),
            lambda: word ^ (word << 13) ^ (word >> 17),
            lambda: word - i.astype(jnp.uint32),
            lambda: word + jnp.sum(k.astype(jnp.uint32), dtype=jnp.uint32),
            lambda: word // jnp.uint32(3) + (word % jnp.uint32(7)),
        )[kind % 5]()
    if kind % 4 == 0:
        s[INTEGERS[c]] = (s[WORD] % jnp.uint32(17)).astype(jnp.int32) - jnp.sum(s[BYTES] > 0)


STEPS = (_vector_step, _matrix_step, _scalar_step, _move_step, _narrow_step)


def _leave(state: State) -> State:
    """The state, by way of complex numbers, which only stock XLA compiles."""
    x = state[SCALARS[0]]
    return (*state[: SCALARS[0]], lax.real(lax.complex(x, jnp.zeros_like(x))), *state[SCALARS[0] + 1 :])


def run(block: Any, state: State) -> State:
    """Runs a block (tuple of statements) on a state."""
    for statement in block:
        state = _run_one(statement, state)
    return state


def _run_one(statement: Any, state: State) -> State:
    tag = statement[0]
    if tag == "step":
        _, family, kind, a, b, c = statement
        slots = list(state)
        STEPS[family](kind, slots, a, b, c)
        return tuple(slots)
    if tag == "cond":
        _, a, then, other = statement
        return lax.cond(state[INTEGERS[a]] % 2 == 0, lambda s: run(then, s), lambda s: run(other, s), state)
    if tag == "rare":
        _, a, when, block = statement
        return lax.cond(state[INTEGERS[a]] % 5 == when, lambda s: _leave(run(block, s)), lambda s: s, state)
    if tag == "switch":
        _, a, blocks = statement
        return lax.switch(state[INTEGERS[a]], [lambda s, b=b: run(b, s) for b in blocks], state)
    if tag == "fori":
        _, count, dynamic, body = statement
        stop = (state[INTEGERS[0]] % 4) if dynamic else count

        def step(i: Any, s: State) -> State:
            return run(body, (*s[:7], s[7] + i.astype(jnp.int32), *s[8:]))

        return lax.fori_loop(0, stop, step, state)
    if tag == "while":
        _, limit, body = statement

        def test(c: Any) -> Any:
            return (c[0] < limit) & (jnp.sum(c[1][INT_VECTOR]) < 60)

        return lax.while_loop(test, lambda c: (c[0] + 1, run(body, c[1])), (jnp.int32(0), state))[1]
    _, reverse, body = statement

    def scan_step(s: State, x: Any) -> tuple[State, Any]:
        s = run(body, (s[0] * 0.5 + x * 0.5, *s[1:]))
        return s, (s[0] * 0.5, s[7])

    final, (rows, numbers) = lax.scan(scan_step, state, state[3], reverse=reverse)
    return (*final[:3], rows, *final[4:7], numbers.sum() % 23, *final[8:])


_index = st.integers(0, 2)
_step = st.tuples(st.just("step"), st.integers(0, len(STEPS) - 1), st.integers(0, 30), _index, _index, _index)


def _nested(inner: st.SearchStrategy[Any], exits: bool) -> st.SearchStrategy[Any]:
    block = st.lists(inner, min_size=0, max_size=3).map(tuple)
    rare = [st.tuples(st.just("rare"), _index, st.integers(0, 4), block)] if exits else []
    return st.one_of(
        *rare,
        _step,
        st.tuples(st.just("cond"), _index, block, block),
        st.tuples(st.just("switch"), _index, st.lists(block, min_size=1, max_size=3).map(tuple)),
        st.tuples(st.just("fori"), st.integers(0, 4), st.booleans(), block),
        st.tuples(st.just("while"), st.integers(0, 4), block),
        st.tuples(st.just("scan"), st.booleans(), block),
    )


def programs(exits: bool = False) -> st.SearchStrategy[Any]:
    """Blocks with at least one statement, control flow nested up to three deep. `exits`: with branches that
    only stock XLA compiles."""
    nested = st.recursive(_step, partial(_nested, exits=exits), max_leaves=8)
    return st.lists(nested, min_size=1, max_size=4).map(tuple)


def check_program(program, seed, units=1):
    """The program as a captured region equals stock."""
    state = initial_state(seed)
    options = {"force": "cocktail", "strict": True, "units": units}
    stock = jax.jit(lambda *s: run(program, s))(*state)
    ours = jax_cocktail.jit(lambda *s: run(program, s), options=options)(*state)
    check_state(ours, stock)
