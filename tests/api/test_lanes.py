"""Control flow under `jax.vmap` against stock: every lane on its own, same answers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax

import jax_cocktail
from jax_cocktail.analysis.verifier import verify
from jax_cocktail.device.tuning import BatchTuning
from jax_cocktail.lowering.edge import adapter
from jax_cocktail.primitives import translate
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.vmap.recover import recover
from tests.oracle.interpreter.run import run as interpret
from tests.strategies import initial_state, programs, run

WIDTH = 48
EAGER = BatchTuning(slots=3, rows=2, rounds=2, element_bytes=64, branch_flops=8.0, parallel_flops=1.0)


def random(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


WEIGHTS = tuple(random(WIDTH, WIDTH, seed=i) * 0.2 for i in range(4))


def remarks(function, *arguments):
    """What the pass says about a function."""
    found = []
    program = translate(adapter.program(jax.make_jaxpr(function)(*arguments)), "lanes")
    recover(simplify(program), remark=found.append)
    return [str(remark) for remark in found if remark.fired]


def agrees(function, *arguments, tolerance=1e-5):
    """Integers exactly, floats closely, and with a call of ours."""
    ours = jax_cocktail.jit(function, options={"force": "cocktail", "strict": True})
    assert "jax_cocktail_cpu" in ours.lower(*arguments).as_text()
    for x, y in zip(
        jax.tree.leaves(ours(*arguments)), jax.tree.leaves(jax.jit(function)(*arguments)), strict=True
    ):
        assert x.shape == y.shape and x.dtype == y.dtype
        if jnp.issubdtype(y.dtype, np.floating):
            np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(x, y)


# -- loops ---------------------------------------------------------------------------------------------------
def newton(x, n):
    return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, 0.5 * (s[1] + x / s[1])), (0, x))


def cell(x, n):
    """Rows, and weights that all lanes share."""
    return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, jnp.tanh(s[1] @ WEIGHTS[0] + x)), (0, x))


def rows(x, n):
    def step(s):
        return s[0] + 1, jnp.roll(s[1], 1) * 0.5 + x

    return lax.while_loop(lambda s: (s[0] < n) & (s[1].sum() < 1e3), step, (0, x))


def collatz(n):
    return lax.while_loop(
        lambda s: s[1] > 1, lambda s: (s[0] + 1, jnp.where(s[1] % 2 == 0, s[1] // 2, 3 * s[1] + 1)), (0, n)
    )[0]


def limits(lanes, high=40):
    return np.random.default_rng(lanes).integers(0, high, lanes).astype(np.int32)


@pytest.mark.parametrize("lanes", [1, 16, 17, 100, 300])
def test_scalar_lanes(lanes):
    agrees(jax.vmap(newton), random(lanes) + 2, limits(lanes))
    assert bool(remarks(jax.vmap(newton), random(lanes) + 2, limits(lanes))) == (lanes > 16)


@pytest.mark.parametrize("function", [cell, rows])
@pytest.mark.parametrize("shape", [(40, WIDTH), (5, 200)])
def test_rows_per_lane(function, shape):
    if function is cell and shape[1] != WIDTH:
        shape = (5, WIDTH)
    agrees(jax.vmap(function), random(*shape), limits(shape[0]))


@pytest.mark.parametrize("trips", ["none", "one lane", "alike"])
def test_unlike_trip_counts(trips):
    counts = {
        "none": np.zeros(64),
        "one lane": np.where(np.arange(64) == 9, 1500, 0),
        "alike": np.full(64, 7),
    }
    agrees(jax.vmap(newton), random(64) + 2, counts[trips].astype(np.int32))
    agrees(jax.vmap(rows), random(64, 100), counts[trips].astype(np.int32))


def test_zero_lanes():
    function = jax_cocktail.jit(jax.vmap(newton), options={"force": "cocktail"})
    count, values = function(np.zeros(0, np.float32), np.zeros(0, np.int32))
    assert count.shape == values.shape == (0,)


def test_integers_are_exact():
    agrees(jax.vmap(collatz), np.arange(1, 400, dtype=np.int32))


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.uint8])
def test_floor_division_of_lanes(dtype):
    """Towards minus infinity, by powers of two and by others, for all signs."""

    def digits(n, by):
        def step(s):
            count, n, total = s
            return count + 1, (n // 2).astype(dtype), total + n % by + n // by

        return lax.while_loop(lambda s: (s[0] < 9) & (s[1] != 0), step, (0, n, n))

    ends = np.iinfo(dtype)
    n = np.r_[np.arange(-40, 40), ends.min : ends.min + 9, ends.max - 9 : ends.max].astype(dtype)
    for by in (4, 6, -4):
        agrees(jax.vmap(lambda n, by=by: digits(n, np.array(by).astype(dtype))), n)


def test_limits_that_are_shared_or_not_numbers():
    agrees(jax.vmap(newton, (0, None)), random(40) + 2, np.int32(7))
    agrees(jax.vmap(newton, (None, 0)), np.float32(2), limits(40))

    def growing(x):
        return lax.while_loop(lambda y: y < 100, lambda y: y * y + 1, x)

    x = random(40)
    x[::7] = np.nan
    x[1::7] = np.inf
    agrees(jax.vmap(growing), x)


def test_nested_vmap():
    agrees(jax.vmap(jax.vmap(newton)), random(6, 40) + 2, limits(240).reshape(6, 40))
    agrees(jax.vmap(jax.vmap(newton, (0, None))), random(40, 6) + 2, limits(40))
    agrees(jax.vmap(jax.vmap(newton, (0, None)), (1, None), 1), random(6, 40) + 2, np.int32(3))


def test_keys():
    def draw(key, n):
        def step(s):
            key, using = jax.random.split(s[1])
            return s[0] + 1, key, s[2] + jax.random.randint(using, (), 0, 5)

        return lax.while_loop(lambda s: s[0] < n, step, (0, key, 0))[2]

    agrees(jax.vmap(draw), jax.random.split(jax.random.key(0), 40), limits(40, 6))


def test_while_in_while():
    def nested(x, n):
        def step(s):
            inner = lax.while_loop(lambda t: t[0] < s[0], lambda t: (t[0] + 1, t[1] * 0.5 + x), (0, s[1]))
            return s[0] + 1, inner[1]

        return lax.while_loop(lambda s: s[0] < n, step, (0, x))

    agrees(jax.vmap(nested), random(40), limits(40, 9))
    agrees(jax.vmap(nested), random(40, 100), limits(40, 9))


def test_while_in_scan_in_vmap():
    def scanned(x, n):
        return lax.scan(lambda c, k: (newton(c + k, n)[1], c), x, jnp.arange(3.0))

    agrees(jax.vmap(scanned), random(40) + 2, limits(40))
    assert remarks(jax.vmap(scanned), random(40) + 2, limits(40))


def test_while_in_cond_in_scan_in_vmap():
    def scanned(x, n, flags):
        def step(c, flag):
            return lax.cond(flag, lambda c: newton(c, n)[1], lambda c: c + 1, c), c

        return lax.scan(step, x, flags)

    agrees(jax.vmap(scanned), random(40) + 2, limits(40), random(40, 3) > 0)


# -- branches ------------------------------------------------------------------------------------------------
def layers(flag, x):
    def deep(x):
        for w in WEIGHTS:
            x = jnp.tanh(x @ w)
        return x

    return lax.cond(flag, deep, lambda x: x * 2, x)


def switching(index, x):
    sides = [
        lambda x: jnp.tanh(x @ WEIGHTS[0]) @ WEIGHTS[1],
        lambda x: x * 2,
        lambda x: jnp.sin(x @ WEIGHTS[2]) @ WEIGHTS[3],
        lambda x: x + 1,
        lambda x: (x @ WEIGHTS[1]) @ WEIGHTS[0],
    ]
    return lax.switch(index, sides, x)


@pytest.mark.parametrize("lanes", [1, 8, 64])
@pytest.mark.parametrize("taken", ["none", "some", "all"])
def test_branches(lanes, taken):
    flags = {"none": np.zeros(lanes, bool), "some": random(lanes) > 0.5, "all": np.ones(lanes, bool)}[taken]
    x = random(lanes, WIDTH)
    assert remarks(jax.vmap(layers), flags, x)
    loop = jax.vmap(lambda flag, x: lax.fori_loop(0, 2, lambda i, y: layers(flag, y), x))
    agrees(loop, flags, x)


def test_a_branch_is_control_flow_under_vmap():
    x = random(256, WIDTH)
    agrees(jax.vmap(layers), random(256) > 0.5, x)


def test_switch():
    index = np.random.default_rng(0).integers(-1, 7, 256).astype(np.int32)
    assert len(remarks(jax.vmap(switching), index, random(256, WIDTH))) == 3
    agrees(jax.vmap(switching), index, random(256, WIDTH))


def test_branch_in_branch_and_under_two_vmaps():
    def nested(first, second, x):
        def outer(x):
            return (
                lax.cond(second, lambda x: jnp.tanh(x @ WEIGHTS[0]) @ WEIGHTS[1], lambda x: x - 1, x)
                @ WEIGHTS[2]
            )

        return lax.cond(first, outer, lambda x: x * 2, x)

    agrees(jax.vmap(nested), random(256) > 0, random(256, seed=1) > 0, random(256, WIDTH))
    agrees(jax.vmap(jax.vmap(layers)), random(32, 8) > 0.5, random(32, 8, WIDTH))


def test_branch_in_while_and_in_scan():
    def looping(x, n):
        def step(s):
            return s[0] + 1, lax.cond(
                s[0] % 3 == 0, lambda x: jnp.tanh(x @ WEIGHTS[0]), lambda x: x * 0.9, s[1]
            )

        return lax.while_loop(lambda s: s[0] < n, step, (0, x))

    def scanning(x, flags):
        return lax.scan(lambda c, flag: (layers(flag, c), c.sum()), x, flags)

    agrees(jax.vmap(looping), random(40, WIDTH), limits(40, 9))
    agrees(jax.vmap(scanning), random(40, WIDTH), random(40, 5) > 0.5, tolerance=1e-4)
    assert remarks(jax.vmap(scanning), random(40, WIDTH), random(40, 5) > 0.5)


def test_gradients():
    def loss(flags, x):
        return jax.vmap(layers)(flags, x).sum()

    agrees(jax.grad(loss, argnums=1), random(256) > 0.5, random(256, WIDTH))


# -- anything ------------------------------------------------------------------------------------------------
@pytest.mark.one_jax
@settings(
    max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
@given(programs(), st.integers(1, 2))
def test_random_programs_in_lanes(program, units):
    states = [initial_state(seed) for seed in range(7)]
    stacked = [np.stack([np.asarray(s[k]) for s in states]) for k in range(len(states[0]))]
    jaxpr = jax.make_jaxpr(jax.vmap(lambda *s: run(program, s)))(*stacked)
    before = simplify(translate(adapter.program(jaxpr), "lanes"))
    after = recover(before, units, limits=EAGER)
    verify(after)
    tidy = simplify(after)
    verify(tidy)
    expected = interpret(before, stacked)
    for found in (interpret(after, stacked), interpret(tidy, stacked)):
        for x, y in zip(found, expected, strict=True):
            if jnp.issubdtype(y.dtype, np.integer) or y.dtype == np.bool_:
                np.testing.assert_array_equal(x, y)
            else:
                wide = np.asarray(x, np.float32), np.asarray(y, np.float32)
                np.testing.assert_allclose(*wide, rtol=1e-4, atol=1e-4)
