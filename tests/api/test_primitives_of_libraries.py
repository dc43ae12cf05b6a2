"""Loops with primitives that have no rule of ours, as libraries define them, against stock XLA."""

from __future__ import annotations

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.interpreters import ad, batching, mlir
from jax.scipy import special
from jax.sharding import SingleDeviceSharding

import jax_cocktail
from jax_cocktail.lowering.edge.adapter import Calls

FORCED = {"force": "cocktail"}
STRICT = {"force": "cocktail", "strict": True}


def same(function, *arguments, rtol=2e-5):
    """Ours runs all of it, and gives what stock gives: integers exactly."""
    wrapped = jax_cocktail.jit(function, options=STRICT)
    assert "jax_cocktail_cpu" in wrapped.lower(*arguments).as_text()
    found, expected = wrapped(*arguments), jax.jit(function)(*arguments)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol), found, expected)


def primitive(name, impl, abstract, several=False, platform=None):
    made = jex.Primitive(name)
    made.multiple_results = several
    made.def_impl(impl)
    made.def_abstract_eval(abstract)
    rule = mlir.lower_fun(impl, multiple_results=several)
    mlir.register_lowering(made, rule, platform=platform)
    return made


def like(x, **_):
    return jax.core.ShapedArray(x.shape, x.dtype)


def scalar_bool(x):
    return jax.core.ShapedArray((), np.dtype(bool))


any_p = primitive("any_of_batch", jnp.any, scalar_bool)
batching.primitive_batchers[any_p] = lambda xs, axes: (any_p.bind(*xs), None)

marked_p = primitive("marked", lambda x, *, note: x, like)  # an identity that some transformation looks for
ad.deflinear2(marked_p, lambda tangent, x, *, note: [marked_p.bind(tangent, note=note)])
batching.defvectorized(marked_p)


def _halves(x, *, times):
    """Two results, a loop, and another primitive without a rule."""
    half = lax.while_loop(lambda s: s[0] < times, lambda s: (s[0] + 1, s[1] / 2), (0, x))[1]
    return [marked_p.bind(half, note=None), jnp.sum(half)]


def _halves_type(x, *, times):
    return [like(x), jax.core.ShapedArray((), x.dtype)]


halves_p = primitive("halves", _halves, _halves_type, several=True)
add_p, while_p = primitive("add", lambda x: x - 7, like), primitive("while", lambda x: x * 2, like)
shaped_p = primitive("shaped", lambda x, *, table=(): x * len(table), like)

nowhere_p = primitive("by_platform", lambda x: x / 0, like)  # the rule of a platform comes first
mlir.register_lowering(nowhere_p, mlir.lower_fun(lambda x: x * 3, multiple_results=False), platform="cpu")


def until_negative(x):
    """A `while` whose condition, body and branch hold such primitives."""

    def body(state):
        x, total = state
        half, amount = halves_p.bind(x, times=2)
        total = lax.cond(any_p.bind(x > 4), lambda t: marked_p.bind(t, note="a"), lambda t: t + amount, total)
        return nowhere_p.bind(half) - 0.5, total

    return lax.while_loop(lambda s: any_p.bind(s[0] > 0), body, (x, jnp.float32(0)))


def nested(x):
    def row(carry, y):
        inner = lax.fori_loop(0, 3, lambda i, a: marked_p.bind(jnp.sin(a) + y, note=i is None), carry)
        return inner, halves_p.bind(inner, times=1)

    return lax.scan(row, x, jnp.arange(4.0))


def renamed(x):
    """Primitives with the names of JAX's."""

    def body(i, y):
        return add_p.bind(while_p.bind(y)) + i

    return lax.fori_loop(0, 3, body, x)


def beside_the_loop(x):
    y = marked_p.bind(x * 2, note="before")
    y = lax.fori_loop(0, 3, lambda i, a: jnp.cos(a) + y, y)
    return halves_p.bind(lax.fori_loop(0, 3, lambda i, a: a * y, marked_p.bind(y, note="between")), times=3)


@pytest.mark.parametrize("function", [until_negative, nested, renamed, beside_the_loop])
def test_a_primitive_is_what_jax_lowers(function):
    same(function, jnp.array([1.0, 7.5, 3.0]))


def test_transformations_around_it():
    def damped(x):
        return lax.fori_loop(0, 4, lambda i, a: marked_p.bind(jnp.sin(a) * 2, note=None), x)

    def stops_together(x, n):
        def body(state):
            i, y = state
            return i + 1, jnp.where(i < n, y * 1.5, y)

        return lax.while_loop(lambda s: any_p.bind(s[0] < n), body, (0, x))[1]

    x = jnp.arange(5.0)
    same(jax.vmap(damped), x)
    same(jax.grad(lambda x: damped(x).sum()), x)
    same(jax.vmap(stops_together), x, jnp.arange(5))


def body_of(primitive, x=1.0, **params):
    """What we compile for an equation with these parameters."""
    (equation,) = jax.make_jaxpr(lambda x: primitive.bind(x))(x).eqns
    return Calls().body(equation.replace(params=params))


def test_a_parameter_that_cannot_be_hashed_is_no_obstacle():
    body = body_of(shaped_p, table=[1, 2, 3])
    assert jex.jaxpr_as_fun(body)(jnp.float32(2)) == [6]


def told(function, x):
    with pytest.warns(jax_cocktail.CocktailWarning) as caught:
        found = jax_cocktail.jit(function, options=FORCED)(x)
    np.testing.assert_array_equal(found, jax.jit(function)(x))
    (text,) = {str(w.message) for w in caught}
    assert "test_primitives_of_libraries.py:" in text
    return text


def test_what_jax_lowers_otherwise_stays_on_stock():
    """The implementation of such a primitive need not be what XLA compiles, so nobody calls it."""
    calls = []
    own_p = primitive("own_lowering", lambda x: calls.append(x) or x - 1, like)
    mlir.register_lowering(own_p, lambda ctx, x: [x])
    assert "'own_lowering'" in told(lambda x: lax.fori_loop(0, 3, lambda i, a: own_p.bind(a) + 1, x), 1.0)
    assert not calls


def test_an_implementation_that_does_not_fit_stays_on_stock():
    def half(x, **_):
        return jax.core.ShapedArray(x.shape, np.dtype("float16"))

    def needs_number(x):
        return x * float(x)

    assert body_of(primitive("of_another_type", lambda x: x, half)) is None
    assert body_of(primitive("needs_number", needs_number, like)) is None
    assert body_of(primitive("prints", lambda x: jax.debug.print("{}", x) or x, like)) is None


# -- primitives of jax that it lowers in the same way --------------------------------------------------------
DRAWS = {
    "real": lambda key: (
        jax.random.gamma(key, jnp.array([0.3, 2.0, 9.0])),
        jax.random.loggamma(key, 0.7, (3,)),
        jax.random.dirichlet(key, jnp.array([0.5, 2.0, 3.0])),
        jax.grad(lambda a: jax.random.gamma(key, a, (3,)).sum())(2.5),
    ),
    "integer": lambda key: (
        jax.random.binomial(key, 20, jnp.array([0.5, 0.2, 0.7])),
        jax.random.poisson(key, jnp.array([0.5, 2.0, 30.0])),
    ),
    "incomplete": lambda key: (
        special.gammainc(2.0, jax.random.uniform(key, (3,))),
        special.gammaincc(2.0, jax.random.uniform(key, (3,))),
        special.betainc(2.0, 3.0, jax.random.uniform(key, (3,))),
    ),
}


def draws(draw):
    def step(key, _):
        key, using = jax.random.split(key)
        return key, draw(using)

    return lambda key: lax.scan(step, key, length=6)[1]


@pytest.mark.parametrize("name", DRAWS)
def test_draws(name):
    same(draws(DRAWS[name]), jax.random.key(3))


def test_draws_of_a_batch():
    beta = draws(lambda key: jax.random.beta(key, 0.7, 2.0))
    same(jax.vmap(beta), jax.random.split(jax.random.key(4), 5))


# -- platforms -----------------------------------------------------------------------------------------------
def unknown(x):
    return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential")


def twice(x):
    return x * 2


CHOICES = {
    "this one": {"cuda": unknown, "cpu": twice},
    "the default": {"cuda": unknown, "default": jnp.sin},
    "not the default": {"cpu": twice, "default": unknown},
    "shared": {"cpu": twice, "cuda": twice, "rocm": unknown},
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_branch_for_a_platform(name):
    def chosen(x):
        return lax.platform_dependent(x, **CHOICES[name])

    def function(x):
        y = lax.fori_loop(0, 3, lambda i, a: chosen(a) + 1, x)
        return lax.fori_loop(0, 3, lambda i, a: jnp.cos(a), chosen(y))

    same(function, jnp.arange(4.0))
    same(jax.vmap(function), jnp.arange(4.0))


def test_a_choice_without_branch_is_an_error_of_jax():
    def function(x):
        return lax.fori_loop(0, 3, lambda i, a: lax.platform_dependent(a, cuda=jnp.sin), x)

    error = pytest.raises(Exception, match="platform")
    with error:
        jax.jit(function)(1.0)
    with pytest.warns(jax_cocktail.CocktailWarning, match="no branch"), error:
        jax_cocktail.jit(function, options=FORCED)(1.0)


def test_a_module_for_several_platforms():
    def function(x):
        step = {"cpu": twice, "cuda": jnp.sin}
        return lax.fori_loop(0, 3, lambda i, a: lax.platform_dependent(a, **step), x)

    wrapped = jax_cocktail.jit(function, options={"force": "cocktail"})
    with pytest.warns(jax_cocktail.CocktailWarning, match="several platforms"):
        exported = jax.export.export(wrapped, platforms=("cpu", "cuda"))(jnp.arange(4.0))
    np.testing.assert_array_equal(exported.call(jnp.arange(4.0)), jnp.arange(4.0) * 8)


# -- memories ------------------------------------------------------------------------------------------------
DEVICE = jax.devices()[0]


@pytest.mark.parametrize(
    "where", [None, DEVICE, SingleDeviceSharding(DEVICE)], ids=["none", "device", "sharding"]
)
def test_device_put_without_a_move_is_nothing(where):
    same(lambda x: lax.fori_loop(0, 3, lambda i, a: jax.device_put(a * 2, where), x), jnp.arange(4.0))


def test_device_put_into_another_memory_stays_on_stock():
    host, device = (SingleDeviceSharding(DEVICE, memory_kind=kind) for kind in ("pinned_host", "device"))

    def function(x):
        return lax.fori_loop(0, 3, lambda i, a: jax.device_put(jax.device_put(a * 2, host), device), x)

    assert "another memory" in told(function, jnp.arange(4.0))
