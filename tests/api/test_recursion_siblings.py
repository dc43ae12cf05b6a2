"""Calls of one body in parallel: found breadth first, run by stacks of their own, finished backwards."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail import recursive
from jax_cocktail.lowering.choice import decide
from jax_cocktail.lowering.state import collecting
from jax_cocktail.memory import MEMORY
from jax_cocktail.recursion import siblings as recursion_siblings
from tests.process import python
from tests.recursion_compare import check
from tests.recursion_python import by_python, unrolled, widened

ERRORS = (jax.errors.JaxRuntimeError, ValueError)
SHARED = {"force": "cocktail", "units": 2, "strict": True}


@pytest.fixture(params=[(4, 12), (64, 512)], ids=["few", "many"])
def queue(request, monkeypatch):
    """Queues that have no room for the tree, and queues that most trees fit into."""
    monkeypatch.setattr(recursion_siblings, "FRONTIER", request.param[0])
    monkeypatch.setattr(recursion_siblings, "ROOM", request.param[1])
    jax.clear_caches()
    return request.param


def ours(function, units=2):
    return jax_cocktail.jit(lambda *x: function(*x), options=SHARED | {"units": units})


def explained(function, *arguments) -> Any:
    return jax_cocktail.explain(ours(function))(*arguments)


def runs_siblings(function, *arguments) -> bool:
    return tells_siblings(explained(function, *arguments))


def tells_siblings(report: Any) -> bool:
    return "units" in str(report) and any(
        "frontier-parallel on several units: " in text for text in report.recursions
    )


# ---- programs: (name, function of `recursive`, arguments) --------------------------------------------------
def quadrature(recursive):
    """Most calls are near zero."""

    @recursive(out_like=lambda a, b, t: a, max_depth=48)
    def integral(self, a, b, tolerance):
        def f(x):
            return jnp.sqrt(x) * jnp.cos(3 * x)

        middle = (a + b) / 2
        coarse = (f(a) + f(b)) * (b - a) / 2
        fine = (f(a) + 2 * f(middle) + f(b)) * (b - a) / 4

        def halves():
            return self(a, middle, tolerance / 2) + self(middle, b, tolerance / 2)

        return lax.cond(jnp.abs(fine - coarse) < tolerance, lambda: fine, halves)

    return integral


def fan(recursive):
    """Three calls, two or none; several results, a table, integers and vectors."""
    table = np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3)

    def run(weights, vector, count):
        rows = weights @ table.T

        @recursive(out_like=lambda v, n: (v, n, jax.ShapeDtypeStruct((), v.dtype)), max_depth=12)
        def node(self, v, n):
            def leaf():
                return v * 2, n, v[0]

            def more(number):
                parts = [self(jnp.tanh(v + rows[:, n % 5] * k), n - 1 - k) for k in range(number)]
                return (
                    sum(p[0] for p in parts) * 0.5,
                    sum(p[1] * (k + 1) for k, p in enumerate(parts)) % 11,
                    parts[0][2] - parts[-1][2] + v[1],
                )

            branches = [leaf, lambda: more(2), lambda: more(3)]
            return lax.switch(jnp.where(n <= 0, 0, 1 + n % 2), branches)

        return node(vector, count)

    return run


def lopsided(recursive):
    """A long chain with small trees beside it, and some calls that make one call."""

    @recursive(out_like=lambda n, x: x, max_depth=64)
    def value(self, n, x):
        def more():
            return lax.cond(
                n % 3 == 0,
                lambda: self(n - 1, x * 0.9) + x,
                lambda: self(n - 1, x * 0.5) + self(n // 4, x + 1),
            )

        return lax.cond(n < 1, lambda: x, more)

    return value


PROGRAMS = {
    "quadrature": (quadrature, (np.float32(0), np.float32(2), np.float32(1e-4))),
    "one call": (quadrature, (np.float32(1), np.float32(1.001), np.float32(1))),
    "fan": (fan, (np.eye(3, dtype=np.float32), np.array([0.1, -0.3, 0.7], np.float32), np.int32(8))),
    "lopsided": (lopsided, (np.int32(30), np.float32(1))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name, queue):
    make, arguments = PROGRAMS[name]
    function = make(recursive)
    expected = by_python(lambda: make(unrolled)(*widened(arguments)))
    with collecting() as reports:
        divided = ours(function)(*arguments)
    assert tells_siblings(reports[0])
    for found in (divided, ours(function, 1)(*arguments), jax.jit(function)(*arguments)):
        check(found, expected, 1e-4)


def test_random_intervals(queue):
    """Trees of many shapes by one program, most of them larger than the queue."""
    function = ours(quadrature(recursive))
    stock = jax.jit(quadrature(recursive))
    random = np.random.default_rng(5)
    for _ in range(20):
        a, length, digits = random.uniform(0, 3), random.uniform(0, 3), random.uniform(1, 6)
        arguments = [np.float32(x) for x in (a, a + length, 10**-digits)]
        np.testing.assert_allclose(function(*arguments), stock(*arguments), rtol=1e-4, atol=1e-5)


def test_more_units(queue):
    make, arguments = PROGRAMS["quadrature"]
    expected = jax.jit(make(recursive))(*arguments)
    np.testing.assert_allclose(ours(make(recursive), 3)(*arguments), expected, rtol=1e-4)


# ---- transformations and surroundings ----------------------------------------------------------------------
def test_in_a_scan(queue):
    function = quadrature(recursive)

    def many(ends):
        def step(total, end):
            found = function(jnp.float32(0), end, jnp.float32(1e-3))
            return total + found, found * 2

        return lax.scan(step, jnp.float32(0), ends)

    ends = jnp.linspace(0.5, 3, 5, dtype=jnp.float32)
    check(ours(many)(ends), jax.jit(many)(ends), 1e-4)


def test_in_64_bits():
    with jax.enable_x64(True):
        arguments = (jnp.float64(0), jnp.float64(2), jnp.float64(1e-6))
        function = quadrature(recursive)
        np.testing.assert_allclose(ours(function)(*arguments), jax.jit(function)(*arguments), rtol=1e-12)
        assert runs_siblings(function, *arguments)


def test_derivatives_and_lanes():
    """Those keep something of every call, or have lanes of their own: they go by the stack."""
    function = quadrature(recursive)
    a, b, t = PROGRAMS["quadrature"][1]
    slope = jax.grad(lambda b: function(a, b, t))
    np.testing.assert_allclose(ours(slope)(b), jax.jit(slope)(b), rtol=1e-4)
    ends = jnp.linspace(0.5, 3, 7, dtype=jnp.float32)
    lanes = jax.vmap(lambda b: function(a, b, t))
    np.testing.assert_allclose(ours(lanes)(ends), jax.jit(lanes)(ends), rtol=1e-4)
    moved = lambda b: jax.jvp(lambda b: function(a, b, t), (b,), (jnp.float32(1),))  # noqa: E731
    check(ours(moved)(b), jax.jit(moved)(b), 1e-4)
    assert not runs_siblings(lanes, ends)


# ---- limits ------------------------------------------------------------------------------------------------
@recursive(max_depth=9)
def deep_on_one_side(self, n):
    """As deep as `n` says, and wide enough before."""
    return lax.cond(n < 1, lambda: n, lambda: self(n - 1) + self(n // 2) * 2)


@recursive(max_depth=3, out_like=lambda n, x: x)
def by_tail_calls(self, n, x):
    """Only calls that are not the last thing a call does count as deeper."""

    def more():
        both = lambda: self(0, x + 1) + self(0, x)  # noqa: E731
        return lax.cond(n == 1, both, lambda: self(n - 1, x * 0.5))

    return lax.cond(n < 1, lambda: x, more)


@pytest.mark.parametrize("frontier", [2, 8, 64])
def test_depth_of_calls_that_wait_counts(frontier, monkeypatch):
    monkeypatch.setattr(recursion_siblings, "FRONTIER", frontier)
    jax.clear_caches()
    function = ours(deep_on_one_side)
    assert runs_siblings(deep_on_one_side, 8)
    for _ in range(2):
        assert int(function(8)) == int(by_python(lambda: deep_in_python(8)))
        with pytest.raises(ERRORS, match="called itself more than 9 deep; raise max_depth=9"):
            jax.block_until_ready(function(9))
        with pytest.raises(ERRORS, match="called itself more than 9 deep"):
            jax.block_until_ready(function(1000))


def deep_in_python(n):
    return 0 if n < 1 else deep_in_python(n - 1) + deep_in_python(n // 2) * 2


def test_calls_in_tail_position_take_no_room(queue):
    assert runs_siblings(by_tail_calls, 50, jnp.float32(3))
    for n in (0, 1, 2, 3, 50):
        np.testing.assert_allclose(
            ours(by_tail_calls)(n, jnp.float32(3)), jax.jit(by_tail_calls)(n, jnp.float32(3)), rtol=1e-6
        )


def test_no_numbers_after_a_failure():
    """The results of a call that fails are filled, whichever way it was found."""
    make = jax.jit(lambda n: jax_cocktail.jit(deep_on_one_side, options=SHARED)(n))
    with pytest.raises(ERRORS, match="9 deep"):
        jax.block_until_ready(make(20))


ENDLESS = """
    import jax, jax.numpy as jnp, jax_cocktail
    from jax import lax

    @jax_cocktail.recursive(max_depth=10)
    def count(self, n):
        def more():
            both = self(n - 1) + self(n - 1)  # at least 2
            return lax.while_loop(lambda x: x < 100, lambda x: x + both, jnp.int32(0)) % 7 + 1

        return lax.cond(n < 1, lambda: jnp.int32(1), more)

    ours = jax_cocktail.jit(count, options={"force": "cocktail", "units": 2, "strict": True})
    texts = jax_cocktail.explain(ours)(9).recursions
    assert any("frontier-parallel on several units: " in text for text in texts)
    assert ours(9) == jax.jit(count)(9)
    try:
        ours(12).block_until_ready()
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        print(error)
"""


def test_nothing_is_made_of_calls_that_failed():
    """A loop of a call that waits for them would have no end."""
    assert "called itself more than 10 deep" in python(ENDLESS)


# ---- what is said, and which way is taken ------------------------------------------------------------------
@recursive(max_depth=32)
def dependent(self, n):
    return lax.cond(n < 2, lambda: n, lambda: self(self(n - 1) // 2) + 1)


@recursive(out_like=lambda n, x: x, max_depth=16)
def large(self, n, x):
    return lax.cond(n < 1, lambda: x, lambda: self(n - 1, x + 1) + self(n - 2, x * 0.5))


def test_explained():
    make, arguments = PROGRAMS["quadrature"]
    (text,) = explained(make(recursive), *arguments).recursions
    assert "frontier-parallel on several units: 64 calls at a time, each with a stack of 48 frames" in text
    for function, given in ((dependent, (5,)), (large, (3, jnp.ones(200)))):
        (text,) = explained(function, *given).recursions
        assert "frontier-parallel" not in text and "a stack of" in text
        np.testing.assert_allclose(ours(function)(*given), jax.jit(function)(*given))


@pytest.mark.all_candidates
@pytest.mark.parametrize("lanes", [False, True])
def test_two_units_are_tried(lanes, monkeypatch, tmp_path):
    """However little the model can say of a tree."""
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))
    MEMORY.decisions.clear()
    tried = []
    building = decide.building

    def watched(prepared, plans, mark):
        tried.extend(plan.candidate.units for plan in plans)
        return building(prepared, plans, mark)

    monkeypatch.setattr(decide, "building", watched)
    make, arguments = PROGRAMS["quadrature"]
    program = make(recursive)
    if lanes:
        program, arguments = jax.vmap(program), [jnp.full(2, x) for x in arguments]
    function = jax_cocktail.jit(program, options={"units": 2})
    np.testing.assert_allclose(function(*arguments), jax.jit(program)(*arguments), rtol=1e-4)
    assert sorted(tried) == [1, 2]
