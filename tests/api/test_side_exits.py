"""Side exits: results, side effects and errors are those of stock XLA, whether a program leaves or not."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

import jax_cocktail
from jax_cocktail.memory import MEMORY

TARGET = "jax_cocktail_cpu"
seen: list[float] = []


def note(x):
    seen.append(float(x))


def told(x):
    """A side effect. Its operand is complex, so that it cannot be logged."""
    jax.debug.callback(lambda z: note(z.real), lax.complex(x, x))
    return x


def sent(x):
    io_callback(note, None, x)
    return x


def host(x):
    """A callback without a side effect, as far as JAX knows."""

    def call(value):
        seen.append(float(value))
        return np.asarray(value)

    return jax.pure_callback(call, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def checked(x, limit, on_error=told):
    """The value, with a side effect if it is above the limit."""
    return lax.cond(x > limit, on_error, lambda x: x, x)


def run(function, *arguments):
    """The result and what the callbacks saw, sorted: their order is not defined."""
    seen.clear()
    result = jax.block_until_ready(function(*arguments))
    jax.effects_barrier()
    return result, sorted(seen)


def compare(program, *arguments, times=None, units=1):
    """Our program and stock XLA agree. `times`: how often a callback is called."""
    ours = jax_cocktail.jit(program, options={"force": "cocktail", "strict": True, "units": units})
    with warnings.catch_warnings():
        warnings.simplefilter("error", jax_cocktail.CocktailWarning)
        mine, heard = run(ours, *arguments)
    stock, expected = run(jax.jit(program), *arguments)
    assert heard == expected
    assert times is None or len(heard) == times
    for x, y in zip(jax.tree.leaves(mine), jax.tree.leaves(stock), strict=True):
        assert x.dtype == y.dtype
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))
    assert f"@{TARGET}" in ours.lower(*arguments).as_text()


@pytest.mark.parametrize("on_error", [told, host])
@pytest.mark.parametrize("limit, times", [(100.0, 0), (-1.0, 6), (0.5, 5), (4.5, 1)])
def test_scan(on_error, limit, times):
    def program(xs, limit):
        return lax.scan(lambda a, x: (checked(x, limit, on_error) + a, a), 0.0, xs)

    compare(program, jnp.arange(6.0), limit, times=times)


@pytest.mark.parametrize("limit, times", [(100.0, 0), (-1.0, 5), (3.5, 1)])
def test_while(limit, times):
    def program(limit, stop):
        return lax.while_loop(lambda a: a < stop, lambda a: checked(a, limit) + 1, 0.0)

    compare(program, limit, 5.0, times=times)


@pytest.mark.parametrize("limit, times", [(100.0, 0), (6.5, 3)])
def test_fori_with_a_bound_at_run_time(limit, times):
    def program(limit, n):
        return lax.fori_loop(0, n, lambda i, a: checked(a * 1.0, limit) + 1, 0.0)

    compare(program, limit, 10, times=times)


@pytest.mark.parametrize("which, times", [(0, 0), (1, 3), (2, 0)])
def test_switch(which, times):
    def program(which, x):
        sides = [lambda x: x + 1, lambda x: told(x) * 2, lambda x: x - 1]
        return lax.fori_loop(0, 3, lambda i, x: lax.switch(which, sides, x), x)

    compare(program, which, 1.0, times=times)


@pytest.mark.parametrize("limit", [100.0, 7.5, 5.5])
def test_nested_loops(limit):
    def program(limit):
        def outer(a, x):
            inner = lax.while_loop(
                lambda b: b[0] < x, lambda b: (b[0] + 1, checked(b[1] + b[0], limit)), (0.0, x)
            )
            return a + inner[1], inner[1]

        return lax.scan(outer, 0.0, jnp.arange(4.0) + 0.5)

    compare(program, limit, times=0 if limit > 99 else None)


def test_several_exits():
    def program(x):
        def body(i, x):
            x = checked(x + 1, 8.0)
            return checked(x * 1.5, 12.0, host)

        y = lax.fori_loop(0, 5, body, x)
        return lax.while_loop(lambda a: a < 40, lambda a: checked(a + 3, 38.0), y)

    for start in (-20.0, -3.0, 1.0, 30.0):
        compare(program, start)


def test_what_follows_an_exit_ends():
    """After the exit the step is zero: a loop that went on would never end."""

    def program(x):
        def step(a):
            size = lax.cond(a > 2, lambda a: told(a) * 0 + 1, lambda a: a * 0 + 1, a)
            return lax.while_loop(lambda b: b < a + 1, lambda b: b + size, a)

        def body(a, _):
            return step(a), None

        a = lax.scan(body, x, None, length=4)[0]
        return lax.while_loop(lambda b: b < 20, lambda b: b + a, a)

    compare(program, 0.0, times=1)
    compare(program, -1.0, times=0)


def test_independent_iterations():
    def program(xs, limit):
        def one(x):
            y = checked(x, limit)
            return lax.while_loop(lambda a: a < 9, lambda a: a + y + 1, y)

        return lax.map(one, xs)

    compare(program, jnp.arange(5.0), 3.5, times=1)
    compare(program, jnp.arange(5.0), 9.0, times=0)
    compare(program, jnp.zeros((0,)), 9.0, times=0)


def test_carries_of_all_kinds():
    def program(key, n, limit):
        def body(state):
            key, i, flag, table = state
            key, sub = jax.random.split(key)
            table = table.at[i % 4].add(jax.random.randint(sub, (), 0, 10))
            i = lax.cond(jnp.any(table > limit), lambda i: told(i * 1.0).astype(jnp.int32), lambda i: i, i)
            return key, i + 1, ~flag, table

        start = (key, 0, False, jnp.zeros(4, jnp.int32))
        return lax.while_loop(lambda s: s[1] < n, body, start)

    for limit in (10**6, 12):
        compare(program, jax.random.key(3), 9, limit)


def test_donated_and_updated_in_place():
    def program(table, limit):
        def body(i, t):
            row = lax.cond(t[i] > limit, told, lambda x: x, t[i])
            return t.at[i + 1].set(row + t[i + 1])

        return lax.fori_loop(0, 63, body, table)

    for limit in (1e9, 500.0):
        expected, heard = run(jax.jit(program), jnp.arange(64.0), limit)
        ours = jax_cocktail.jit(program, options={"force": "cocktail", "strict": True}, donate_argnums=0)
        given = jnp.arange(64.0)
        found, mine = run(ours, given, limit)
        assert given.is_deleted() and mine == heard
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("limit", [1e9, 0.5])
def test_several_units(limit):
    weights = jnp.asarray(np.random.default_rng(0).integers(-1, 2, (256, 256)), jnp.float32) / 16

    def program(h, w, limit):
        def body(i, h):
            h = jnp.round(jnp.clip(h @ w, -4, 4) * 16) / 16
            worst = jnp.max(jnp.abs(h))
            return h + lax.cond(worst > limit, lambda x: told(x) * 0, lambda x: x * 0, worst)

        return lax.fori_loop(0, 4, body, h)

    compare(program, jnp.ones((8, 256)), weights, limit, units=2)


@pytest.mark.parametrize("stage", ["scan", "while"])
def test_an_error_of_a_callback_is_the_users(stage):
    def fail(x):
        raise ValueError(f"too large: {x}")

    def program(x):
        def body(x):
            def bad(x):
                return jax.pure_callback(fail, jax.ShapeDtypeStruct((), x.dtype), x)

            return lax.cond(x > 3, bad, lambda x: x, x) + 1

        if stage == "scan":
            return lax.fori_loop(0, 3, lambda i, x: body(x), x)
        return lax.while_loop(lambda x: x < 5, body, x)

    ours = jax_cocktail.jit(program, options={"force": "cocktail", "strict": True})
    assert float(ours(0.0 if stage == "scan" else 7.0)) == (3.0 if stage == "scan" else 7.0)
    for function in (jax.jit(program), ours):
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="too large"):
            jax.block_until_ready(function(2.0))


def test_an_operator_without_a_rule():
    def program(m, limit):
        def body(i, m):
            return lax.cond(m[0, 0] > limit, lambda m: jnp.fft.fft(m).real, lambda m: m + 1, m)

        return lax.fori_loop(0, 4, body, m)

    for limit in (100.0, 2.5):
        compare(program, jnp.eye(3), limit)


def square(x):
    """A complex number times its conjugate."""
    return jnp.real(lax.complex(x, x) * lax.complex(x, -x))


def test_a_type_that_only_the_rare_path_has():
    def program(x, limit):
        return lax.fori_loop(0, 4, lambda i, x: lax.cond(x > limit, square, lambda x: x + 1, x), x)

    for limit in (100.0, 2.5):
        compare(program, 1.0, limit)


def test_around_and_inside_of_transformations():
    def program(x, limit):
        return lax.fori_loop(0, 4, lambda i, x: checked(x, limit, told) * 1.5, x)

    ours = jax_cocktail.jit(program, options={"force": "cocktail", "strict": True})
    for limit in (100.0, 2.5):
        nested, heard = run(jax.jit(lambda x, limit: ours(x, limit) + 1), 1.0, limit)
        expected, known = run(jax.jit(lambda x, limit: program(x, limit) + 1), 1.0, limit)
        assert (float(nested), heard) == (float(expected), known)
        gradient, heard = run(jax.jit(jax.grad(ours)), 1.0, limit)
        expected, known = run(jax.jit(jax.grad(program)), 1.0, limit)
        assert (float(gradient), heard) == (float(expected), known)
        compare(lambda x, limit: jax.checkpoint(program)(x, limit) * 2, 1.0, limit)


def test_an_unbatched_check_in_a_batched_loop():
    """The loop runs until the last batch element is done, and its check is about all of them."""

    def program(xs, limit):
        def test(state):
            return jnp.any(state[0] < 10)

        def body(state):
            x, worst = state
            worst = checked(worst, limit)
            return jnp.where(x < 10, x * 2, x), worst + 1

        return lax.while_loop(test, body, (xs, 0.0))

    def batched(xs, limit):
        def one(x):
            return lax.while_loop(lambda a: a < 10, lambda a: a + everyone(a, limit), x)

        return jax.vmap(one)(xs)

    @jax.custom_batching.custom_vmap
    def everyone(a, limit):
        return checked(a, limit) * 0 + 1

    @everyone.def_vmap
    def _(size, in_batched, a, limit):
        worst = checked(jnp.max(a), limit)
        return jnp.ones(size) + worst * 0, True

    for limit in (100.0, 6.5):
        compare(program, jnp.arange(1.0, 5.0), limit)
        compare(batched, jnp.arange(1.0, 5.0), limit)


def test_an_exported_program():
    def program(m, limit):
        return lax.fori_loop(0, 4, lambda i, m: lax.cond(m[0, 0] > limit, square, jnp.exp, m), m)

    ours = jax_cocktail.jit(program, options={"force": "cocktail", "strict": True})
    allowed = [jax.export.DisabledSafetyCheck.custom_call(TARGET)]
    exported = jax.export.export(ours, disabled_checks=allowed)(jnp.eye(3), 2.0)
    compiled = ours.lower(jnp.eye(3), 2.0).compile()
    for limit in (2.0, 1e9):
        expected = jax.jit(program)(jnp.eye(3) / 4, limit)
        np.testing.assert_allclose(exported.call(jnp.eye(3) / 4, limit), expected, rtol=1e-6)
        np.testing.assert_allclose(compiled(jnp.eye(3) / 4, limit), expected, rtol=1e-6)


STAYS = {
    "in every iteration": lambda x: lax.fori_loop(0, 3, lambda i, a: told(a) + 1, x),
    "in every side": lambda x: lax.fori_loop(0, 3, lambda i, a: lax.cond(a > 1, told, host, a) + 1, x),
    "in a condition": lambda x: lax.while_loop(lambda a: checked(a, 1.0) < 4, lambda a: a + 1, x),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_stays_with_stock(name):
    program = STAYS[name]
    ours = jax_cocktail.jit(program, options={"force": "cocktail"})
    MEMORY.warned.clear()
    with pytest.warns(jax_cocktail.CocktailWarning, match="test_side_exits.py:"):
        mine = run(ours, 2.0)
    assert mine == run(jax.jit(program), 2.0)
    assert TARGET not in ours.lower(2.0).as_text()


def test_a_check_outside_of_loops_causes_no_warning():
    def program(x):
        return lax.fori_loop(0, 3, lambda i, a: a + 1, checked(x, 1.0))

    ours = jax_cocktail.jit(program, options={"force": "cocktail"})
    with warnings.catch_warnings():
        warnings.simplefilter("error", jax_cocktail.CocktailWarning)
        assert run(ours, 2.0) == run(jax.jit(program), 2.0)
    (left,) = jax_cocktail.explain(ours)(2.0).left
    assert left.what == "cond" and "no loop" in left.reason
    with pytest.raises(jax_cocktail.StrictModeError, match="no loop"):
        jax_cocktail.jit(program, options={"strict": True})(2.0)


def test_ordered_effects_keep_their_order():
    """Around loops, in branches of loops, and in loops that stay with stock XLA."""

    def say(x):
        io_callback(note, None, x, ordered=True)

    def program(x, limit):
        def rare(a):
            say(a)
            return a

        def body(i, a):
            return lax.cond(a > limit, rare, lambda a: a, a) + 1

        say(x)
        y = lax.fori_loop(0, 3, body, x)
        say(y + 100)
        z = lax.fori_loop(0, 3, lambda i, a: a * 2, x)
        w = lax.fori_loop(0, 2, lambda i, a: (say(a + 200), a)[1] + 1, z)
        say(x + 300)
        return y, z, lax.while_loop(lambda a: a < 70, lambda a: body(0, a), x * 20 + w)

    ours = jax_cocktail.jit(program, options={"force": "cocktail"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jax_cocktail.CocktailWarning)
        for limit in (1e9, 2.5, 60.0):
            outcomes = []
            for function in (jax.jit(program), ours):
                seen.clear()
                result = jax.tree.map(float, function(1.0, limit))
                jax.effects_barrier()
                outcomes.append((result, tuple(seen)))
            assert outcomes[0] == outcomes[1]
    assert ours.lower(1.0, 2.0).as_text().count(f"@{TARGET}") >= 2


def test_a_recursion_beside_an_exit():
    """After an exit the recursion's argument is zero; it must not report a failure then."""

    @jax_cocktail.recursive(max_depth=8)
    def countdown(self, n):
        return lax.cond(n < 1, lambda: 0, lambda: self(n - 1) + 2)

    def program(n, limit):
        def body(i, n):
            divisor = lax.cond(n > limit, lambda n: told(n * 1.0).astype(jnp.int32), lambda n: n, n)
            return countdown(100 // jnp.where(divisor == 0, 1, divisor)) + n

        return lax.fori_loop(0, 2, body, n)

    for limit in (1000, 20):
        compare(program, jnp.int32(25), jnp.int32(limit))


def test_explain():
    def program(x):
        return lax.fori_loop(0, 3, lambda i, a: checked(a, 100.0, sent) + 1, x)

    report = jax_cocktail.explain(jax_cocktail.jit(program, options={"force": "cocktail"}))(1.0)
    (region,) = report.captured
    (text,) = region.exits
    assert "test_side_exits.py:" in text and "side effects" in text
    assert f"side exit at {text}" in str(report) and "again" in str(report)
    assert not report.left


def test_decisions_without_a_measurement(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))

    def reason_of(program, x):
        report = jax_cocktail.explain(program)(x)
        return report.choice, report.why

    def program(scale, on_error):
        def body(i, a):
            return checked(jnp.where(i % 2 > 0, a, a * scale + 1), 1e6, on_error)

        return lambda x: lax.fori_loop(0, 100, body, x)

    seen.clear()
    choice, why = reason_of(program(0.50, told), 1.0)
    assert (choice, seen) == ("cocktail", []), why
    choice, why = reason_of(program(2.00, told), 1.0)
    assert (choice, seen) == ("stock", []) and "leaves" in why and "test_side_exits.py:" in why
    choice, why = reason_of(program(2.00, told), 1.0)
    assert (choice, seen) == ("stock", []) and "leaves" in why, "the decision is stored"
    abstract = jax.ShapeDtypeStruct((), jnp.float32)
    assert reason_of(program(0.25, told), abstract)[0] == "stock"
    assert reason_of(program(0.25, host), abstract)[0] == "cocktail"


@pytest.mark.all_candidates
def test_a_program_that_often_leaves_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path))

    def program(x):
        return lax.fori_loop(0, 100, lambda i, a: checked(a * 1.0, 150.0) + 1, x)

    ours = jax_cocktail.jit(program)
    for start in (0.0, 60.0, 1.0, 2.0, 70.0, 3.0, 4.0):
        run(ours, start)
    report = jax_cocktail.explain(ours)(0.0)
    assert report.choice == "cocktail" and report.captured[0].exited[1] >= 7
    assert f"2 of {report.captured[0].exited[1]} calls so far left" in str(report)
    for start in (80.0, 90.0, 91.0):
        assert run(ours, start) == run(jax.jit(program), start)
    report = jax_cocktail.explain(ours)(0.0)
    assert report.choice == "stock" and "5 of" in report.why and "side exit" in report.why
    assert TARGET not in ours.copy().lower(0.0).as_text()


@pytest.mark.parametrize("limit, times", [(100.0, 0), (1.5, 1)])
def test_a_loop_for_its_side_effects_alone(limit, times):
    def program(x, limit):
        lax.fori_loop(0, 3, lambda i, a: checked(a, limit) + 1, x)
        return x * 2

    compare(program, 0.0, limit, times=times)


@pytest.mark.parametrize("limit, times", [(100, 0), (2, 7)])
def test_an_exit_in_a_recursion(limit, times):
    @jax_cocktail.recursive(max_depth=8, max_calls=128)
    def leaves(self, n):
        def inner():
            return self(n - 1) + self(n - 1)

        return lax.cond(n < 1, lambda: n + 1, inner) + lax.cond(n > limit, host, lambda n: n, n)

    compare(leaves, jnp.int32(5), times=times)
