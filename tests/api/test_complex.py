"""Loops and branches on complex numbers, with our calls forced, against stock XLA and NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.lowering.choice.variants import prepare
from jax_cocktail.lowering.edge import complex_parts

FORCED = {"force": "cocktail"}
STRICT = {"force": "cocktail", "strict": True}


def numbers(*shape, seed=0):
    re, im = np.random.default_rng(seed).normal(size=(2, *shape))
    return (re + 1j * im).astype(np.complex64)


def same(function, *arguments, tolerance=2e-5):
    wrapped = jax_cocktail.jit(function, options=STRICT)
    assert "jax_cocktail_cpu" in wrapped.lower(*arguments).as_text()
    found, expected = wrapped(*arguments), jax.jit(function)(*arguments)
    assert jax.tree.map(jnp.result_type, found) == jax.tree.map(jnp.result_type, expected)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance), found, expected
    )


# -- operators -----------------------------------------------------------------------------------------------
UNARY = {
    "exp": (jnp.exp, np.exp),
    "log": (jnp.log, np.log),
    "sqrt": (jnp.sqrt, np.sqrt),
    "sin": (jnp.sin, np.sin),
    "cos": (jnp.cos, np.cos),
    "abs": (jnp.abs, np.abs),
    "angle": (jnp.angle, np.angle),
    "sign": (jnp.sign, np.sign),
    "conj": (jnp.conj, np.conj),
    "negative": (jnp.negative, np.negative),
    "square": (jnp.square, np.square),
    "cube": (lambda x: x**3, lambda x: x**3),
    "inverse cube": (lambda x: x**-3, lambda x: x**-3),
    "real": (jnp.real, np.real),
    "imag": (jnp.imag, np.imag),
}
BINARY = {
    "add": (jnp.add, np.add),
    "subtract": (jnp.subtract, np.subtract),
    "multiply": (jnp.multiply, np.multiply),
    "divide": (jnp.divide, np.divide),
    "equal": (jnp.equal, np.equal),
    "not_equal": (jnp.not_equal, np.not_equal),
}
EVERY = np.concatenate([numbers(16), [1, -1, 1j, -1j, 2 - 0.5j, -3 + 1e-3j, 0.5]]).astype(np.complex64)


def in_a_loop(functions):
    """Each function of the rows of its arguments."""

    def every(*rows):
        return lax.scan(lambda c, row: (c, [f(*row) for f in functions]), 0, rows)[1]

    return every


def compare(found, expected, tolerance=2e-5):
    if expected.dtype == bool:
        np.testing.assert_array_equal(found, expected)
        return
    scale = np.maximum(np.abs(expected), 1e-30)
    assert np.max(np.abs(np.asarray(found, expected.dtype) - expected) / scale) < tolerance


def test_unary_operators():
    x = EVERY.reshape(-1, 1)
    found = jax_cocktail.jit(in_a_loop([ours for ours, _ in UNARY.values()]), options=STRICT)(x)
    for name, result in zip(UNARY, found, strict=True):
        with np.errstate(divide="ignore"):
            compare(result, UNARY[name][1](x.astype(np.complex128)), 1e-4 if name == "log" else 2e-5)


def test_binary_operators():
    x, y = (a.ravel()[:, None] for a in np.meshgrid(EVERY, EVERY))
    found = jax_cocktail.jit(in_a_loop([ours for ours, _ in BINARY.values()]), options=STRICT)(x, y)
    for name, result in zip(BINARY, found, strict=True):
        expected = BINARY[name][1](x.astype(np.complex128), y.astype(np.complex128))
        loose = name in ("multiply", "divide")  # a part that cancels counts against the whole
        compare(result, expected, 1e-5 if loose else 1e-6)


def test_large_and_small_numbers():
    large = np.array([3e30 + 4e30j, 1e38 - 1e38j, 1e-30 + 1e-31j, 3e-38j, 0, 1e30], np.complex64)[:, None]
    loop = in_a_loop([jnp.abs, lambda x: x / (3e30 + 1e30j), lambda x: x / x, lambda x: 1 / x, jnp.sqrt])
    found, expected = (jit(loop)(large) for jit in (lambda f: jax_cocktail.jit(f, options=STRICT), jax.jit))
    for x, y in zip(found, expected, strict=True):
        x, y = np.asarray(x), np.asarray(y)
        np.testing.assert_array_equal(np.isfinite(x), np.isfinite(y))
        finite = np.isfinite(y)
        np.testing.assert_allclose(x[finite], y[finite], rtol=1e-5)


def test_infinite_and_undefined_parts():
    """Infinities, what is undefined of them, and the sides of branch cuts are those of XLA."""
    parts = [0.0, -0.0, 1.0, -2.0, np.inf, -np.inf]
    x, y = (a.ravel() for a in np.meshgrid(*[np.array([complex(a, b) for a in parts for b in parts])] * 2))
    x, y = x.astype(np.complex64), y.astype(np.complex64)
    unary = [jnp.exp, jnp.log, jnp.sqrt, jnp.sin, jnp.cos, jnp.abs, jnp.square, jnp.sign]
    powers = [lambda x, n=n: lax.integer_pow(x, n) for n in (-4, -3, -1, 0, 1, 2, 3, 5)]

    def every(x, y):
        return [f(x) for f in (*unary, *powers)], [x / y, x - y, x == y]

    shapes = jax.eval_shape(every, x, y)

    def once(x, y):
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        return lax.fori_loop(0, 1, lambda i, _: every(x, y), zeros)

    same(once, x, y)


def test_parts_that_fit_although_the_absolute_value_does_not():
    x = np.array([89 + 1.5j, 89 + 0.1j, 90, 88 + 1j], np.complex64)
    (found,) = jax_cocktail.jit(in_a_loop([jnp.exp]), options=STRICT)(x)
    expected = np.exp(x.astype(np.complex128))
    np.testing.assert_array_equal(np.isinf(found.real), [False, True, True, False])
    for mine, right in ((found.real, expected.real), (found.imag, expected.imag)):
        fits = np.abs(right) < 3.4e38
        np.testing.assert_allclose(mine[fits], right[fits], rtol=1e-4)


@pytest.mark.filterwarnings("ignore:Casting complex")
def test_conversions():
    def converted(x):
        real = [lax.convert_element_type(x, t) for t in (jnp.int32, jnp.float32)]
        return x.astype(bool), real, x.real.astype(x.dtype)

    same(lambda xs: lax.scan(lambda c, x: (c + x, converted(x)), 0j, xs), EVERY.reshape(-1, 1)[:, 0])


def test_data_movement():
    def moved(carry, index):
        x, y = carry
        top = lax.dynamic_slice(x, (index, 0), (2, 4))
        rows = jnp.concatenate([top, jnp.flip(x[1:], 0), jnp.pad(y, ((0, 1), (0, 0)))], 0)
        picked = rows[jnp.array([2, 0, 3])] + jnp.where(index > 0, x, x.T[:, :1].T)[:3]
        first, second = jnp.split(picked, 2, axis=1)
        x = x.at[index].set(picked[0]).at[jnp.array([1, 1])].add(picked[1:])
        x = x.at[index, 0].subtract(2j) + jnp.tile(jnp.stack([x[0, 0], x[0, 1]]), (4, 2))
        x = lax.dynamic_update_slice(x, jnp.broadcast_to(first[:1], (2, 2)), (index, 1)) * 0.5
        total = jnp.cumsum(second, axis=0).sum() + jnp.mean(rows)
        return (x, y * 0.5 + total), (total, first.reshape(-1), jnp.squeeze(second[:1], 0))

    same(lambda x, y: lax.scan(moved, (x, y), jnp.arange(3)), numbers(4, 4), numbers(1, 4, seed=1))


def test_products():
    def step(h, x):
        h = jnp.einsum("ij,bj->bi", x, h) / 3
        window = jnp.convolve(h[0], x[0], mode="same")
        return h, (window, jnp.vdot(h, h), h @ x.conj().T)

    same(lambda h, xs: lax.scan(step, h, xs), numbers(2, 4), numbers(5, 4, 4, seed=1), tolerance=1e-4)


# -- control flow --------------------------------------------------------------------------------------------
def escape(c):
    """Mandelbrot's iteration; the result is an integer."""
    z, steps = lax.while_loop(
        lambda s: (s[1] < 30) & (jnp.abs(s[0]) < 2), lambda s: (s[0] ** 2 + c, s[1] + 1), (c, 0)
    )
    return steps


def nested(x, flags):
    def step(x, flag):
        x = lax.cond(flag, lambda x: x * (1 + 1j), lambda x: jnp.exp(x) / 4, x)
        inner = lax.fori_loop(0, 2, lambda i, a: lax.switch(i, [jnp.conj, lambda a: a * 1j], a), x)
        return inner, (x, jnp.abs(inner))

    return lax.scan(step, x, flags, reverse=True)


def recurrence(decay, xs):
    """A diagonal linear recurrence, as state space models have it."""

    def step(h, x):
        h = decay * h + x
        return h, h.real

    return lax.scan(step, jnp.zeros(decay.shape, decay.dtype), xs)[1]


def only_inside(x):
    """Operands and results are real."""

    def step(i, x):
        z = jax.checkpoint(jax.jit(lambda z: jnp.exp(z) * z))(lax.complex(x, 0.5 * x))
        return jnp.abs(z) / (1 + jnp.abs(z)) + lax.cond(i > 1, lambda z: z.real, lambda z: z.imag, z) * 0.1

    return lax.fori_loop(0, 4, step, x)


FLAGS = np.array([True, False, True])
DECAY, INPUTS = numbers(4) / 4, numbers(6, 4, seed=1)


def test_while():
    grid = (np.linspace(-2, 1, 7) + 1j * np.linspace(-1, 1, 5)[:, None]).astype(np.complex64)
    same(escape, grid[2, 3])
    same(jax.vmap(jax.vmap(escape)), grid)


def test_nested_control_flow():
    same(nested, numbers(3), FLAGS)
    same(jax.vmap(nested, (0, None)), numbers(2, 3), FLAGS)
    same(only_inside, np.array([0.3, 0.7], np.float32))


def test_derivatives():
    same(jax.grad(lambda d, xs: (recurrence(d, xs) ** 2).sum(), (0, 1)), DECAY, INPUTS)
    same(jax.grad(lambda x: only_inside(x).sum()), np.array([0.3, 0.7], np.float32), tolerance=1e-4)
    holomorphic = jax.grad(lambda x: nested(x, FLAGS)[0].sum().real)
    same(holomorphic, numbers(3), tolerance=1e-4)


def test_several_loops_and_no_elements():
    def two(x):
        y = lax.fori_loop(0, 3, lambda i, a: a * (0.5 + 0.5j), x) + 1j
        return lax.fori_loop(0, 3, lambda i, a: a / (1 + a), y)

    same(two, numbers(5))
    same(two, numbers(0))


@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_double_precision(name):
    with jax.enable_x64(True):
        decay, inputs = DECAY.astype(name), INPUTS.astype(name)
        same(recurrence, decay, inputs, tolerance=1e-13 if name == "complex128" else 2e-6)


# -- what stays on stock XLA ---------------------------------------------------------------------------------
def rarely(operator):
    """A loop that calls an operator in one side of a branch."""

    def function(x, limit):
        def step(i, a):
            return lax.cond(jnp.abs(a).sum() > limit, lambda a: operator(a), lambda a: a * (1 + 0.5j), a)

        return lax.fori_loop(0, 4, step, x)

    return function


def test_an_operator_in_a_rare_case():
    for limit in (1e3, 6.0):
        same(rarely(jnp.fft.fft), numbers(4), limit)
        same(rarely(scaled), numbers(4), limit)


seen: list[complex] = []


def test_a_side_effect_in_a_rare_case():
    def note(z):
        jax.debug.callback(lambda z: seen.append(complex(z.sum())), z)
        return z

    for limit in (1e3, 3.0):
        seen.clear()
        same(rarely(note), numbers(4), limit)
        jax.effects_barrier()
        assert seen[: len(seen) // 2] == pytest.approx(seen[len(seen) // 2 :]) and bool(seen) == (limit < 10)


def callback(z):
    return jax.pure_callback(lambda z: z, jax.ShapeDtypeStruct(z.shape, z.dtype), z)


def scaled(z):
    """A primitive that has a jaxpr on complex numbers among its parameters."""
    return z.at[jnp.array([0, 0, 1])].multiply(2j)


@pytest.mark.parametrize(
    ("operator", "cause"),
    [(jnp.fft.fft, "'fft'"), (callback, "'pure_callback'"), (scaled, "'scatter.mul'")],
)
def test_stock_runs_the_loop_as_it_is(operator, cause):
    def function(x):
        return lax.fori_loop(0, 2, lambda i, a: operator(a) * 0.5j, x)

    wrapped = jax_cocktail.jit(function, options=FORCED)
    with pytest.warns(jax_cocktail.CocktailWarning, match=cause):
        text = wrapped.lower(numbers(4)).as_text()
    assert "stablehlo.real" not in text
    np.testing.assert_array_equal(wrapped(numbers(4)), jax.jit(function)(numbers(4)))


def test_nested_loops_are_searched_for_complex_numbers_once(monkeypatch):
    def searched(depth):
        def nested(x, depth=depth):
            return lax.fori_loop(0, x[0], lambda _, x: nested(x, depth - 1), x) if depth else x + 1

        closed, seen = jax.make_jaxpr(nested)(jnp.ones(3, jnp.int32)), []
        monkeypatch.setattr(complex_parts, "_touches_complex", lambda e: seen.append(e))
        prepare(closed, "nested")
        return len(seen)

    assert searched(8) < 2.5 * searched(4)
