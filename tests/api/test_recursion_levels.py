"""Calls level by level on the CPU: the same programs as elsewhere, however small their weights are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax

import jax_cocktail
from jax_cocktail import recursive
from jax_cocktail.recursion import levels as recursion_levels
from jax_cocktail.recursion import paths as recursion_paths
from jax_cocktail.recursion import sums as recursion_sums
from jax_cocktail.recursion.order import padded
from tests.recursion_compare import OURS, check, check_recursion, scheduled
from tests.recursion_programs import CASES
from tests.recursion_python import by_python, total, unrolled, widened
from tests.recursion_strategies import recursions

NAMES = ("rae", "child_sum_vmap")
LEVELS = [case for case in CASES if case.name in NAMES]


@pytest.fixture(autouse=True)
def _whatever_the_weights(monkeypatch):
    monkeypatch.setattr(recursion_paths, "WEIGHT_BYTES", 0)
    monkeypatch.setattr(recursion_levels, "WIDTHS", (1, 2))  # the host compiler is slow with many
    monkeypatch.setattr(recursion_levels, "FOREST_WIDTHS", (1, 4))
    jax.clear_caches()


def by_levels(schedules):
    return any("level-synchronous, up to" in text for text in schedules)


def says_so(function, *arguments):
    return by_levels(jax_cocktail.explain(jax_cocktail.jit(function, options=OURS))(*arguments).recursions)


@pytest.mark.parametrize("case", LEVELS, ids=lambda case: case.name)
def test_values_and_gradients(case):
    def both(recursive):
        function = case.make(recursive)
        return jax.value_and_grad(lambda *args: total(function(*args)), case.grads)

    expected = by_python(lambda: both(unrolled)(*widened(case.args)))
    check(jax_cocktail.jit(both(recursive), options=OURS)(*case.args), expected, 1e-4)


TABLE = np.linspace(-1, 1, 40, dtype=np.float32).reshape(10, 4)
WEIGHTS = np.cos(np.arange(32, dtype=np.float32)).reshape(8, 4) / 2


def sums(table, weights, n):
    """Reads rows by indices far below zero, and some of them again and again."""

    @recursive(out_like=lambda n: table[0], max_depth=8, max_calls=32)
    def value(self, n):
        def inner():
            both = jnp.concatenate([self(n - 1), self(n - 2)]) @ weights
            return jnp.tanh(both) + table[n - 15] * table[n % 3]

        return lax.cond(n < 2, lambda: table[n - 12], inner)

    return value(n).sum()


def plain_sums(table, weights, n):
    """`jnp` counts negative indices from the end once, then clamps."""

    def row(k):
        return table[max(k + 10 if k < 0 else k, 0)]

    def value(n):
        if n < 2:
            return row(n - 12)
        both = jnp.concatenate([value(n - 1), value(n - 2)]) @ weights
        return jnp.tanh(both) + row(n - 15) * row(n % 3)

    return value(n).sum()


@pytest.mark.one_jax
@pytest.mark.parametrize("force", ["stock", "cocktail"])
def test_indices_below_zero(force):
    ours = jax_cocktail.jit(jax.value_and_grad(sums, (0, 1)), options={"force": force})
    expected = jax.value_and_grad(plain_sums, (0, 1))(jnp.asarray(TABLE), jnp.asarray(WEIGHTS), 5)
    check(ours(TABLE, WEIGHTS, 5), expected)
    assert force == "stock" or says_so(sums, TABLE, WEIGHTS, 5)


def test_forest():
    """Sums over lanes and sums of every lane, tables with and without lanes."""
    tables = np.stack([TABLE, TABLE + 1, -TABLE])
    counts = np.asarray([5, 1, 4], np.int32)

    def loss(tables, weights):
        return jax.vmap(sums, (0, None, 0))(tables, weights, counts).sum()

    def plain(tables, weights):
        return sum(plain_sums(t, weights, int(n)) for t, n in zip(tables, counts, strict=True))

    expected = jax.grad(plain, (0, 1))(jnp.asarray(tables), jnp.asarray(WEIGHTS))
    check(jax_cocktail.jit(jax.grad(loss, (0, 1)), options=OURS)(tables, WEIGHTS), expected)
    assert says_so(loss, tables, WEIGHTS)


@pytest.mark.one_jax
@pytest.mark.parametrize("calls", [31, 32, 33, 288, 511])
def test_products_of_many_calls(calls):
    """As many factors as fill chunks of both widths, or one less, or one more."""
    assert (recursion_sums.CHUNK, recursion_sums.WIDE_CHUNK) == (32, 256)

    def make(recursive):
        def function(weights, x):
            @recursive(out_like=lambda n, y: y, max_depth=12, max_calls=511)
            def value(self, n, y):
                z = jnp.tanh(y @ weights)
                return lax.cond(
                    2 * n > calls, lambda: z, lambda: z + self(2 * n, z) * self(2 * n + 1, z * 0.5)
                )

            return value(jnp.int32(1), x).sum()

        return function

    weights, x = np.cos(np.arange(16, dtype=np.float32)).reshape(4, 4) / 2, np.ones(4, np.float32)
    expected = by_python(lambda: jax.grad(make(unrolled))(*widened((weights, x))))
    check(jax_cocktail.jit(jax.grad(make(recursive)), options=OURS)(weights, x), expected, 1e-4)
    assert says_so(make(recursive), weights, x)


@pytest.mark.parametrize("widths", [(1, 2, 4, 8, 16), (1, 4, 16, 64), (1,), (1, 2)])
def test_groups_cover_runs(widths):
    for size in range(1, 200):
        whole = int(padded(jnp.int32(size), widths))
        assert size <= whole < 2 * size

        def groups(rest):
            return 0 if not rest else 1 + groups(rest - max(w for w in widths if w <= rest))

        assert groups(whole) <= groups(size)
        assert whole - size < max(w for w in widths if w <= whole)  # the last group has a call that counts


def test_sums_of_every_lane():
    """`vmap` of `grad`: products are taken for every lane."""
    counts = np.asarray([5, 2], np.int32)
    gradients = jax.vmap(jax.grad(sums, 1), (None, None, 0))
    expected = [jax.grad(plain_sums, 1)(jnp.asarray(TABLE), jnp.asarray(WEIGHTS), int(n)) for n in counts]
    results, schedules = scheduled(gradients, TABLE, WEIGHTS, counts)
    check(results, np.stack(expected))
    assert by_levels(schedules)


@pytest.mark.parametrize("size", [2, 32])
def test_arrays_of_integers(size):
    """Small ones are kept of every call, large ones go by the stack."""
    steps = np.arange(size, dtype=np.int32)

    @recursive(out_like=lambda pair: jnp.float32(0), max_depth=8)
    def count(self, pair):
        def inner():
            return self(pair - jnp.asarray(1 + steps)) + self(pair - jnp.asarray(2 + steps))

        return lax.cond(pair[0] < 2, lambda: (jnp.ones((1, 4)) @ WEIGHTS[:4, :1])[0, 0] + pair[1], inner)

    pair = steps + 5
    results, schedules = scheduled(count, pair)
    check(results, jax.jit(count)(pair))
    assert by_levels(schedules) == (size == 2)


@pytest.mark.one_jax
def test_more_calls_than_room(monkeypatch):
    """The stack machine takes over."""
    monkeypatch.setattr("jax_cocktail.recursion.order.MOST_ROOM", 4)

    def value(table, weights, n):
        @recursive(out_like=lambda n: table[0], max_depth=8)
        def value(self, n):
            inner = lambda: jnp.tanh(jnp.concatenate([self(n - 1), self(n - 2)]) @ weights)  # noqa: E731
            return lax.cond(n < 2, lambda: table[n], inner)

        return value(n)

    for n in (1, 2, 6):
        check(jax_cocktail.jit(value, options=OURS)(TABLE, WEIGHTS, n), jax.jit(value)(TABLE, WEIGHTS, n))


@pytest.mark.one_jax
@pytest.mark.parametrize("lanes", [(), (3,)])
def test_arrays_without_elements(lanes):
    def loss(weights, n, rest):
        @recursive(out_like=lambda n, rest: (weights[0], rest), max_depth=8, max_calls=32)
        def value(self, n, rest):
            def inner():
                (x, rest_x), (y, rest_y) = self(n - 1, rest), self(n - 2, rest * 2)
                return jnp.tanh(jnp.concatenate([x, y]) @ weights), jnp.sin(rest_x) * rest_y

            return lax.cond(n < 2, lambda: (weights[n], rest + 1), inner)

        x, rest = value(n, rest)
        return x.sum() + rest.sum()

    counts = np.full(lanes, 5, np.int32)
    gradients = jax.value_and_grad(loss, (0, 2))
    gradients = jax.vmap(gradients, (None, 0, None)) if lanes else gradients
    operands = (WEIGHTS, counts, np.zeros((0, 3), np.float32))
    results, schedules = scheduled(gradients, *operands)
    check(results, jax.jit(gradients)(*operands))
    assert by_levels(schedules)


@pytest.mark.one_jax
def test_far_more_calls_allowed_than_there_are():
    """Memory is for calls that come, where nothing of them is kept for derivatives."""
    many = 1_000_000

    def values(table, weights, counts):
        @recursive(out_like=lambda n: table[0], max_depth=8, max_calls=many)
        def value(self, n):
            inner = lambda: jnp.tanh(jnp.concatenate([self(n - 1), self(n - 2)]) @ weights)  # noqa: E731
            return lax.cond(n < 2, lambda: table[n], inner)

        return jax.vmap(value)(counts)

    def loss(*operands):
        return values(*operands).sum()

    counts = np.arange(3000, dtype=np.int32) % 6  # with `many`, there are more than 32 bits count
    results, schedules = scheduled(values, TABLE, WEIGHTS, counts)
    check(results, jax.jit(values)(TABLE, WEIGHTS, counts))
    assert by_levels(schedules)
    assert not says_so(jax.grad(loss, 1), TABLE, WEIGHTS, counts)
    assert says_so(jax.grad(loss, 1), TABLE, WEIGHTS, counts[:30])


@pytest.mark.one_jax
@settings(
    max_examples=3, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
@given(recursions(st.just(True)), st.integers(0, 5))
def test_random_recursions(program, seed):
    check_recursion(program, seed, ("ours",))


@pytest.mark.one_jax
def test_every_lane_has_its_own_limit():
    """Seven calls in the first lane and three in the second, where six are kept of each."""

    def loss(weights, n):
        @recursive(out_like=lambda n: weights[0], max_depth=8, max_calls=6)
        def value(self, n):
            inner = lambda: jnp.tanh(jnp.concatenate([self(n - 1), self(n - 1)]) @ weights)  # noqa: E731
            return lax.cond(n < 1, lambda: weights[n], inner)

        return value(n).sum()

    gradient = jax.vmap(jax.grad(loss), (None, 0))
    ours = jax_cocktail.jit(lambda w, n: gradient(w, n).sum(0), options=OURS)
    check(
        ours(WEIGHTS, np.asarray([1, 1], np.int32)), jax.jit(gradient)(WEIGHTS, np.ones(2, np.int32)).sum(0)
    )
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="more than 6 times"):
        jax.block_until_ready(ours(WEIGHTS, np.asarray([2, 1], np.int32)))


def test_loops_of_calls_that_skip_them():
    """Side by side, the loop would run from -1 on for those that skip it, and never end."""

    @recursive(out_like=lambda n: jnp.ones(4), max_depth=8)
    def value(self, n):
        def long():
            return lax.while_loop(lambda s: s[0] != 0, lambda s: (s[0] - 1, s[1] * 0.9), (n, jnp.ones(4)))[1]

        start = lax.cond(n >= 0, long, lambda: jnp.ones(4) * 2)
        inner = lambda: jnp.tanh(jnp.concatenate([self(n - 1), self(n - 2)]) @ WEIGHTS + start)  # noqa: E731
        return lax.cond(n <= 0, lambda: start, inner)

    for n in (1, 4):
        check(jax_cocktail.jit(value, options=OURS)(n), jax.jit(value)(n))


def test_integer_arrays_among_the_results():
    def value(x):
        @recursive(out_like=lambda x, n: (x, jnp.zeros(3, jnp.int32)), max_depth=4, max_calls=4)
        def value(self, x, n):
            def inner():
                below, counts = self(x, n - 1)
                return jnp.sin(below), counts

            return lax.cond(n < 1, lambda: (x, jnp.arange(3, dtype=jnp.int32)), inner)

        return value(x, jnp.int32(2))[0]

    expected = np.cos(np.sin(0.3)) * np.cos(0.3)
    for compiled in (jax.jit(jax.grad(value)), jax_cocktail.jit(jax.grad(value), options=OURS)):
        check(compiled(jnp.float32(0.3)), np.float32(expected))


def test_scan_of_no_trips():
    @recursive(max_depth=4)
    def value(self, x):
        rows = jnp.arange(0, dtype=jnp.float32)
        found, stacked = lax.scan(lambda c, t: (c + self(c + t), c), x, rows)
        return lax.cond(x < 9.0, lambda: found + stacked.sum(), lambda: self(x - 1.0))

    check(jax_cocktail.jit(value, options=OURS)(jnp.float32(10.0)), np.float32(8.0))


@pytest.mark.one_jax
def test_an_index_that_is_no_int32():
    """Clamped before it is narrowed."""

    def loss(table, big):
        @recursive(out_like=lambda n: table[0], max_depth=8, max_calls=8)
        def value(self, n):
            def leaf():
                row = lax.dynamic_slice(table, (big, jnp.uint32(0)), (1, 4), allow_negative_indices=False)
                return row[0]

            inner = lambda: jnp.tanh(jnp.concatenate([self(n - 1), self(n - 2)]) @ WEIGHTS)  # noqa: E731
            return lax.cond(n < 2, leaf, inner)

        return value(jnp.int32(3)).sum()

    tables, big = np.stack([TABLE, -TABLE]), jnp.uint32(0xF0000000)
    function = jax.value_and_grad(lambda t: jax.vmap(loss, (0, None))(t, big).sum())
    check(jax_cocktail.jit(function, options=OURS)(tables), jax.jit(function)(tables))


def test_each_group_is_traced_once(monkeypatch):
    traced, made = [], recursion_levels._Group.made
    monkeypatch.setattr(
        recursion_levels._Group, "made", lambda group, *given: traced.append(group) or made(group, *given)
    )
    case = LEVELS[0]
    jax_cocktail.jit(case.make(recursive), options=OURS).lower(*case.args)
    assert traced and len(traced) == len({*map(id, traced)})
