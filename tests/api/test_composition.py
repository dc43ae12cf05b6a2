"""Every JAX transformation and stage around, inside and through `jax_cocktail.jit`, with our calls forced."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

import jax_cocktail
from jax_cocktail.lowering.lower import lower
from jax_cocktail.lowering.state import Mark, collecting

FORCED = {"force": "cocktail"}
TARGET = "jax_cocktail_cpu"
WIDTH = 16

ours = functools.partial(jax_cocktail.jit, options=FORCED)


def keys(number):
    return jax.random.normal(jax.random.key(number), (7, 1, WIDTH)) * 0.3


def weights():
    shapes = ((WIDTH, 4 * WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH,))
    return tuple(jax.random.normal(jax.random.key(10 + i), shape) * 0.3 for i, shape in enumerate(shapes))


WEIGHTS, SEQUENCE, START = weights(), keys(3), jnp.zeros((1, WIDTH))
BATCH = jnp.stack([keys(number) for number in (4, 5, 6)])


def lstm(parameters, xs, start):
    w_x, w_h, bias = parameters

    def cell(state, x):
        hidden, memory = state
        i, f, g, o = jnp.split(x @ w_x + hidden @ w_h + bias, 4, axis=-1)
        memory = jax.nn.sigmoid(f) * memory + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(memory)
        return (hidden, memory), hidden

    (hidden, _), outputs = lax.scan(cell, (start, start), xs)
    return hidden, outputs


OURS, STOCK = ours(lstm), jax.jit(lstm)


def loss(function):
    return lambda parameters: sum(jnp.sum(y**2) for y in function(parameters, SEQUENCE, START))


def power(x, n, flag=True):
    result = lax.fori_loop(0, n, lambda i, a: a * x, jnp.ones_like(x))
    return result if flag else -result


def doubling(x, limit):
    return lax.while_loop(lambda c: c[0].sum() < limit, lambda c: (c[0] * 1.5, c[1] + 1), (x, 0))


def branching(x):
    return lax.cond(x.sum() > 0, lambda x: jnp.sin(x) @ jnp.ones((4, 4)), lambda x: x * 2, x)


def same(left, right, tolerance=2e-4):
    a, b = jax.tree.leaves(left), jax.tree.leaves(right)
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert x.shape == y.shape
        assert x.dtype == y.dtype
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=tolerance, atol=tolerance)


def calls(function, *arguments):
    """Custom calls of ours in the text of a function."""
    return jax.jit(function).lower(*arguments).as_text().count(f"@{TARGET}")


def agrees(mine, stock, *arguments, at_least=1, tolerance=2e-4):
    """The same numbers, eagerly and lowered, and really through custom calls."""
    same(mine(*arguments), stock(*arguments), tolerance)
    assert calls(mine, *arguments) >= at_least


def test_forward():
    agrees(OURS, STOCK, WEIGHTS, SEQUENCE, START)
    assert OURS.lower(WEIGHTS, SEQUENCE, START).as_text().count("stablehlo.while") == 0


def test_second_call_lowers_nothing():
    function = ours(lambda x: power(x, 5))
    function(jnp.arange(3.0))
    with collecting() as reports:
        function(jnp.arange(3.0) + 1)
    assert not reports


TRANSFORMED = {
    "grad": lambda f: jax.grad(loss(f)),
    "jit of grad": lambda f: jax.jit(jax.grad(loss(f))),
    "value_and_grad": lambda f: jax.value_and_grad(loss(f)),
    "jvp": lambda f: lambda p: jax.jvp(lambda p: f(p, SEQUENCE, START), (p,), (p,)),
    "linearize": lambda f: lambda p: jax.linearize(lambda p: f(p, SEQUENCE, START), p)[1](p),
    "vjp": lambda f: lambda p: jax.vjp(lambda p: f(p, SEQUENCE, START)[0], p)[1](jnp.ones((1, WIDTH))),
    "vmap": lambda f: lambda p: jax.vmap(f, (None, 0, None))(p, BATCH, START),
    "vmap of grad": lambda f: (
        lambda p: jax.vmap(lambda x: jax.grad(lambda p: jnp.sum(f(p, x, START)[0]))(p))(BATCH)
    ),
    "hessian vector product": lambda f: lambda p: jax.jvp(jax.grad(loss(f)), (p,), (p,)),
    "checkpoint": lambda f: jax.grad(loss(jax.checkpoint(f))),
    "checkpoint with a policy": lambda f: jax.grad(
        loss(jax.checkpoint(f, policy=jax.checkpoint_policies.dots_saveable))
    ),
    "nested in jax.jit": lambda f: jax.jit(lambda p: f(p, SEQUENCE, START)[0] * 2),
    "inside scan": lambda f: jax.jit(
        lambda p: lax.scan(lambda c, _: (f(p, SEQUENCE, c)[0], None), START, None, length=3)[0]
    ),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformed(name):
    transform = TRANSFORMED[name]
    tolerance = 2e-3 if name.startswith("hessian") else 2e-4
    agrees(transform(OURS), transform(STOCK), WEIGHTS, tolerance=tolerance)


def test_eager_gradient_runs_both_halves():
    with collecting() as reports:
        jax.grad(loss(ours(lstm)))(WEIGHTS)
    assert sum(report.choice == "cocktail" for report in reports) >= 2


def test_of_grad():
    agrees(ours(jax.grad(loss(lstm))), jax.grad(loss(STOCK)), WEIGHTS)


def test_of_checkpoint():
    agrees(jax.grad(loss(ours(jax.checkpoint(lstm)))), jax.grad(loss(STOCK)), WEIGHTS)


def test_nested_in_itself():
    nested = ours(lambda p: OURS(p, SEQUENCE, START)[0] * 2)
    agrees(nested, lambda p: STOCK(p, SEQUENCE, START)[0] * 2, WEIGHTS)
    assert calls(nested, WEIGHTS) == 1


def test_stock_jit_inside():
    def function(p):
        return STOCK(p, SEQUENCE, START)[0] * 2

    agrees(ours(function), function, WEIGHTS)


def test_static_by_number():
    function = ours(power, static_argnums=(1,))
    same(function(jnp.arange(4.0), 3), jnp.arange(4.0) ** 3)
    assert TARGET in function.lower(jnp.arange(4.0), 3).as_text()


def test_static_by_name():
    function = ours(power, static_argnames=("n", "flag"))
    same(function(jnp.arange(4.0), n=3, flag=False), -(jnp.arange(4.0) ** 3))


def test_static_by_name_passed_by_position():
    function = ours(power, static_argnames=("n", "flag"))
    same(function(jnp.arange(4.0), 3, False), -(jnp.arange(4.0) ** 3))


def test_static_by_number_passed_by_name():
    function = ours(power, static_argnums=(1, 2))
    same(function(jnp.arange(4.0), flag=False, n=3), -(jnp.arange(4.0) ** 3))


def test_donation():
    function = ours(lambda x: lax.fori_loop(0, 3, lambda i, a: a + 1, x), donate_argnums=0)
    x = jnp.zeros(1024)
    address = x.unsafe_buffer_pointer()
    y = function(x)
    assert x.is_deleted()
    same(y, jnp.full(1024, 3.0))
    assert y.unsafe_buffer_pointer() == address


def test_without_donation_the_argument_stays():
    x = jnp.zeros(1024)
    same(ours(lambda x: lax.fori_loop(0, 3, lambda i, a: a.at[i].add(1), x))(x)[:3], jnp.ones(3))
    same(x, jnp.zeros(1024))


def test_ahead_of_time_stages():
    traced = OURS.trace(WEIGHTS, SEQUENCE, START)
    lowered = traced.lower()
    assert TARGET in lowered.as_text()
    same(lowered.compile()(WEIGHTS, SEQUENCE, START), STOCK(WEIGHTS, SEQUENCE, START))


def test_eval_shape_and_make_jaxpr():
    shapes = [jax.eval_shape(f, WEIGHTS, SEQUENCE, START) for f in (OURS, STOCK)]
    assert shapes[0] == shapes[1]
    assert jax.tree.map(lambda s: s.shape, OURS.eval_shape(WEIGHTS, SEQUENCE, START)) == jax.tree.map(
        lambda s: s.shape, shapes[1]
    )
    assert jax.make_jaxpr(OURS)(WEIGHTS, SEQUENCE, START)


def test_while_with_a_limit_from_data():
    agrees(ours(doubling), jax.jit(doubling), jnp.ones(4), 100.0)


def test_vmapped_while_with_a_predicate_per_lane():
    limits = jnp.array([10.0, 100.0])
    mine, stock = (jax.vmap(f(doubling), (None, 0)) for f in (ours, jax.jit))
    agrees(mine, stock, jnp.ones(4), limits)


def test_cond_and_its_gradient():
    x = jnp.ones(4)
    agrees(ours(branching), branching, x)
    agrees(jax.grad(lambda x: ours(branching)(x).sum()), jax.grad(lambda x: branching(x).sum()), x)


def test_vmapped_cond():
    x = jnp.stack([jnp.ones(4), -jnp.ones(4)])
    same(jax.vmap(ours(branching))(x), jax.vmap(branching)(x))


def test_pytrees_with_none():
    def function(tree):
        return {"o": lax.fori_loop(0, 3, lambda i, a: a + tree["x"], tree["y"]), "n": None}

    result = ours(function)({"x": jnp.ones(2), "y": jnp.zeros(2), "z": None})
    assert result["n"] is None
    same(result["o"], jnp.full(2, 3.0))


def test_keyword_arguments():
    function = ours(lambda *, a, b: lax.fori_loop(0, 2, lambda i, c: c + b, a))
    assert function(a=1.0, b=2.0) == 5.0
    assert function(b=2.0, a=1.0) == 5.0


@pytest.mark.parametrize("shape", [(), (3,)])
def test_typed_keys(shape):
    def function(key):
        def one(key):
            return lax.fori_loop(0, 3, lambda i, k: jax.random.fold_in(k, i), key)

        return jax.vmap(one)(key) if shape else one(key)

    key = jax.random.key(1) if not shape else jax.random.split(jax.random.key(1), shape)
    mine, stock = ours(function)(key), jax.jit(function)(key)
    assert mine.dtype == stock.dtype
    assert jnp.array_equal(jax.random.key_data(mine), jax.random.key_data(stock))
    assert calls(ours(function), key) == 1


def test_effects_stay_with_stock():
    seen = []

    def function(x):
        def body(i, a):
            io_callback(lambda value: seen.append(float(value)), None, a)
            return a + 1

        return lax.fori_loop(0, 3, body, x)

    with pytest.warns(jax_cocktail.CocktailWarning, match="side effects"):
        assert ours(function)(1.0) == 4.0
    jax.effects_barrier()
    assert sorted(seen) == [1.0, 2.0, 3.0]


def test_effects_around_loops_do_not_stop_them(capsys):
    def function(x):
        y = lax.fori_loop(0, 3, lambda i, a: a * 2, x)
        jax.debug.print("half way {}", y)
        z = lax.fori_loop(0, 3, lambda i, a: a + 1, y)
        jax.debug.callback(lambda value: seen.append(float(value)), z)
        return z

    seen = []
    assert calls(ours(function), 1.0) >= 1
    assert "stablehlo.while" not in ours(function).lower(1.0).as_text()
    assert ours(function)(1.0) == 11.0
    jax.effects_barrier()
    assert seen == [11.0]
    assert capsys.readouterr().out == "half way 8.0\n"
    many = jax.jit(jax.vmap(ours(function)))
    assert jnp.array_equal(many(jnp.arange(2.0)), jnp.array([3.0, 11.0]))
    jax.effects_barrier()
    assert sorted(seen) == [3.0, 11.0, 11.0]


def test_rewriting_keeps_effects():
    def function(x):
        jax.debug.print("{}", x)
        return lax.fori_loop(0, 3, lambda i, a: a * 2, x)

    closed = jax.make_jaxpr(function)(1.0)
    outcome = lower(closed, Mark("function", jax_cocktail.Options(force="cocktail")), "")
    assert outcome.jaxpr is not closed
    assert outcome.jaxpr.effects == closed.effects != set()


def test_unused_half_is_dropped():
    def function(x):
        return lax.fori_loop(0, 3, lambda i, a: a * x, x), lax.linalg.hessenberg(jnp.outer(x, x))[0]

    half = jax.jit(lambda x: ours(function)(x)[0])
    same(half(jnp.arange(3.0)), jnp.arange(3.0) ** 4)
    assert "gehrd" not in half.lower(jnp.arange(3.0)).as_text().lower()


def test_deeply_nested_branches():
    """As deep as stock JAX can trace them: our own recursions take no more of Python's stack."""

    def nested(x):
        function = lambda a: a + 1  # noqa: E731
        for k in range(110):
            function = functools.partial(lambda f, k, a: lax.cond(a[0] > k, f, jnp.negative, a), function, k)
        return function(x)

    options = {"force": "cocktail", "profile": "off", "strict": True, "units": 1}
    mine = jax_cocktail.jit(nested, options=options)
    same(mine(jnp.full(2, 200.0)), jnp.full(2, 201.0))
    same(mine(jnp.full(2, 1.0)), jnp.full(2, -1.0))


@pytest.mark.parametrize("size", [3, 3000])
def test_closed_over_array(size):
    w = jnp.arange(float(size))
    agrees(ours(lambda x: lax.fori_loop(0, 2, lambda i, a: a + w, x)), lambda x: x + 2 * w, jnp.zeros(size))


def test_closed_over_key():
    key = jax.random.key(3)

    def function(x):
        return lax.fori_loop(0, 3, lambda i, a: a + jax.random.uniform(jax.random.fold_in(key, i)), x)

    agrees(ours(function), jax.jit(function), jnp.float32(1))


def test_closed_over_tracer():
    def gradient(w):
        function = ours(lambda x: lax.fori_loop(0, 2, lambda i, a: a * w, x))
        return function(jnp.ones(3)).sum()

    same(jax.grad(gradient)(jnp.arange(3.0)), 2 * jnp.arange(3.0))


def test_reverse_mode_of_while_is_the_stock_error():
    messages = []
    for wrap in (jax.jit, ours):
        with pytest.raises(ValueError) as caught:
            jax.grad(lambda x, wrap=wrap: wrap(doubling)(x, 10.0)[0].sum())(jnp.ones(3))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_custom_rules_inside_a_loop():
    @jax.custom_vjp
    def twice(x):
        return x * 2

    twice.defvjp(lambda x: (x * 2, None), lambda _, g: (g * 3,))

    def function(x):
        return lax.scan(lambda c, _: (twice(jax.nn.relu(c)), None), x, None, length=3)[0].sum()

    agrees(jax.grad(ours(function)), jax.grad(function), jnp.arange(3.0))


def test_partial_capture_around_an_unsupported_operator():
    def function(x):
        y = lax.fori_loop(0, 5, lambda i, a: jnp.tanh(a * 2), x)
        z = lax.linalg.hessenberg(jnp.outer(y, y) + jnp.eye(6))[0][0]
        return lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, c[1] * 1.5), (0, z))[1]

    agrees(ours(function), jax.jit(function), jnp.arange(6.0) / 10, at_least=2)


def test_zero_sized_arrays_and_loops():
    def function(x, y):
        return lax.scan(lambda c, t: (c + t.sum(), c * 2), x, y)

    for shape in ((0, 3), (4, 0)):
        same(ours(function)(jnp.float32(1), jnp.ones(shape)), function(jnp.float32(1), jnp.ones(shape)))


def test_integer_inputs_under_grad():
    def function(x, n):
        return lax.fori_loop(0, 3, lambda i, a: a * n, x).sum()

    mine, stock = (jax.grad(f(function), allow_int=True, argnums=(0, 1)) for f in (ours, jax.jit))
    n = jnp.arange(3)
    (left, left_zero), (right, right_zero) = mine(jnp.ones(3), n), stock(jnp.ones(3), n)
    same(left, right)
    assert left_zero.dtype == right_zero.dtype


@pytest.mark.parametrize("check", [False, True])
def test_shard_map(check):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    spec = jax.sharding.PartitionSpec("d")

    def mapped(wrap):
        def function(x):
            return lax.fori_loop(0, 3, lambda i, a: jnp.tanh(a) * x, x)

        return jax.shard_map(wrap(function), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check)

    agrees(mapped(ours), mapped(jax.jit), jnp.arange(6.0))
