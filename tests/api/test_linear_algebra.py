"""Dense linear algebra in loops, with our calls forced, against stock XLA."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.lowering.edge import adapter
from jax_cocktail.lowering.edge.capture import capture
from jax_cocktail.lowering.lower import lower
from jax_cocktail.lowering.state import Mark
from jax_cocktail.primitives import translate
from tests.oracle.interpreter.run import run

FORCED = {"force": "cocktail", "strict": True}


UNITS = pytest.mark.parametrize("units", [1, 2])


def matrices(shape, seed=0):
    """Well-conditioned matrices, positive definite."""
    x = jax.random.normal(jax.random.key(seed), shape)
    return x @ x.mT / shape[-1] + jnp.eye(shape[-1])


def same(function, *arguments, rtol=2e-4, **options):
    """Ours is one custom call, and gives what stock gives."""
    wrapped = jax_cocktail.jit(function, options={**FORCED, **options})
    assert "jax_cocktail_cpu" in wrapped.lower(*arguments).as_text()
    found, expected = wrapped(*arguments), jax.jit(function)(*arguments)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol), found, expected)


# -- linear solves -------------------------------------------------------------------------------------------
def implicit(a, y):
    """Steps of implicit Euler, each with conjugate gradients."""

    def step(y, _):
        y, _ = jax.scipy.sparse.linalg.cg(lambda v: v + 0.1 * a @ v, y, maxiter=6)
        return y, y[0]

    return lax.scan(step, y, length=5)


def with_iterations(a, y):
    """The solver tells how many steps it took, besides its result."""

    def solve(matvec, b):
        def step(state):
            x, count = state
            return x + 0.5 * (b - matvec(x)), count + 1

        return lax.while_loop(lambda s: s[1] < 12, step, (b, 0))

    def body(_, state):
        y, total = state
        x, count = lax.custom_linear_solve(
            lambda v: v + 0.1 * a @ v, y, solve=solve, symmetric=True, has_aux=True
        )
        return x, total + count

    return lax.fori_loop(0, 3, body, (y, 0))


SOLVES = pytest.mark.parametrize("function", [implicit, with_iterations])


@SOLVES
def test_a_linear_solve_is_its_solver(function):
    same(function, matrices((6, 6)), jnp.arange(6.0))


@SOLVES
@pytest.mark.parametrize("axes", [(0, 0), (None, 0), (0, None)])
def test_linear_solves_of_a_batch(function, axes):
    a = matrices((3, 6, 6)) if axes[0] == 0 else matrices((6, 6))
    y = jnp.arange(18.0).reshape(3, 6) if axes[1] == 0 else jnp.arange(6.0)
    same(jax.vmap(function, axes), a, y)


def test_a_linear_solve_has_derivatives():
    def loss(a, y):
        return jnp.sum(implicit(a, y)[1] ** 2)

    same(jax.grad(loss, (0, 1)), matrices((4, 4)), jnp.arange(4.0))


# -- factorisations ------------------------------------------------------------------------------------------
def kalman(model, observations):
    """A Kalman filter: means, covariances and the likelihood of the observations."""
    move, noise, observe, error = model

    def step(state, y):
        mean, cov = state
        mean, cov = move @ mean, move @ cov @ move.T + noise
        innovation = observe @ cov @ observe.T + error
        factor = jax.scipy.linalg.cho_factor(innovation, lower=True)
        gain = jax.scipy.linalg.cho_solve(factor, observe @ cov).T
        rest = y - observe @ mean
        mean, cov = mean + gain @ rest, cov - gain @ innovation @ gain.T
        lost = rest @ jax.scipy.linalg.cho_solve(factor, rest) / 2
        return (mean, cov), (mean, lost + jnp.log(jnp.diag(factor[0])).sum())

    size = len(move)
    (mean, cov), (means, lost) = lax.scan(step, (jnp.zeros(size), jnp.eye(size)), observations)
    return mean, cov, means, lost.sum()


def tracked(size, seen, dtype=jnp.float32):
    """A model of `size` states and `seen` observed ones, and what is observed."""
    keys = jax.random.split(jax.random.key(0), 3)
    move = jnp.eye(size) + 0.1 * jax.random.normal(keys[0], (size, size))
    observe = jax.random.normal(keys[1], (seen, size))
    model = (0.9 * move, 0.1 * jnp.eye(size), observe, 0.3 * jnp.eye(seen))
    return jax.tree.map(lambda x: x.astype(dtype), (model, jax.random.normal(keys[2], (7, seen))))


def newton(x):
    """Newton's method for x^3 + A x = 1, each step with LU factors."""
    a = matrices((5, 5))

    def step(state):
        x, count = state
        factors = jax.scipy.linalg.lu_factor(a + jnp.diag(3 * x**2))
        return x - jax.scipy.linalg.lu_solve(factors, x**3 + a @ x - 1), count + 1

    return lax.while_loop(lambda s: s[1] < 4, step, (x, 0))[0]


def euler(y):
    """Implicit Euler for a stiff linear system, until time 1."""
    a = -20 * matrices((4, 4))

    def step(state):
        y, time = state
        return jnp.linalg.solve(jnp.eye(4) - 0.125 * a, y), time + 0.125

    return lax.while_loop(lambda s: s[1] < 1, step, (y, 0.0))[0]


def sample(key, cov):
    """Correlated normal numbers."""

    def draw(carried, key):
        factor = jnp.linalg.cholesky(cov + carried * jnp.eye(len(cov)))
        return carried + 0.1, factor @ jax.random.normal(key, (len(cov),))

    return lax.scan(draw, 0.0, jax.random.split(key, 5))[1]


@pytest.mark.parametrize(("size", "seen"), [(4, 2), (1, 1), (20, 3)])
def test_kalman_filter(size, seen):
    same(kalman, *tracked(size, seen))


def test_kalman_filters_of_a_batch():
    model, observations = tracked(4, 2)
    batch = jnp.stack([observations, 2 * observations, -observations])
    same(jax.vmap(kalman, (None, 0)), model, batch)
    same(jax.vmap(kalman), jax.tree.map(lambda x: jnp.stack([x, x, 0.9 * x]), model), batch)


def test_the_gradient_of_a_kalman_filter():
    same(jax.grad(lambda m, y: kalman(m, y)[-1]), *tracked(3, 2), rtol=2e-3)


def test_kalman_filter_in_float64():
    with jax.enable_x64(True):
        same(kalman, *tracked(4, 2, jnp.float64), rtol=1e-10)


@pytest.mark.parametrize("function", [newton, euler])
def test_solvers(function):
    y = jnp.linspace(0.5, 1.5, 5 if function is newton else 4)
    same(function, y)
    same(jax.vmap(function), jnp.stack([y, y * y, -y]))


def test_the_gradient_of_an_implicit_step():
    def loss(a, y):
        def step(y, _):
            return jnp.linalg.solve(jnp.eye(4) + 0.1 * a, y), None

        return jnp.sum(lax.scan(step, y, length=5)[0] ** 2)

    same(jax.grad(loss, (0, 1)), matrices((4, 4)), jnp.arange(4.0))


def test_correlated_samples():
    same(sample, jax.random.key(0), matrices((6, 6)))
    same(jax.vmap(sample, (None, 0)), jax.random.key(0), matrices((3, 6, 6)))


def looped(function):
    """A function in a loop, so that we compile it."""
    return lambda *operands: lax.fori_loop(0, 1, lambda _, __: function(*operands), function(*operands))


def test_factors_of_empty_matrices():
    same(looped(lambda a: (jnp.linalg.cholesky(a), lax.linalg.lu(a))), jnp.zeros((2, 0, 0)))
    same(looped(lambda a: (jnp.linalg.cholesky(a), lax.linalg.lu(a))), jnp.zeros((0, 2, 2)))


def test_only_the_lower_triangle_counts():
    a = matrices((5, 5))
    same(looped(lambda a: jnp.linalg.cholesky(a, symmetrize_input=False)), jnp.tril(a) + jnp.triu(a, 1) * 7)


@pytest.mark.parametrize(("function", "size"), [(jnp.linalg.cholesky, 130), (lax.linalg.lu, 65)])
def test_a_gpu_leaves_large_matrices_to_stock(function, size):
    captured = capture(jax.make_jaxpr(looped(function))(jnp.eye(size)), "cuda")
    assert f"a matrix of {size} x {size}; the limit is" in captured.left[0].reason


def test_a_matrix_too_large_for_lapack():
    closed = jax.make_jaxpr(looped(jnp.linalg.cholesky))(jax.ShapeDtypeStruct((8193, 8193), jnp.float32))
    with pytest.warns(jax_cocktail.CocktailWarning, match="a matrix of 8193 x 8193; the limit is"):
        lower(closed, Mark("function", jax_cocktail.Options(force="cocktail")), "")


@pytest.mark.parametrize("size", [24, 150])
def test_accuracy(size):
    """The error against float64 is at most twice that of LAPACK."""
    a = matrices((size, size), seed=5)
    exact = np.asarray(a, np.float64)
    b = jax.random.normal(jax.random.key(6), (size, 4))
    x = np.linalg.solve(exact, np.asarray(b, np.float64))
    cases = [
        (lambda a, b: jnp.linalg.cholesky(a), np.linalg.cholesky(exact)),
        (lambda a, b: jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(a), b), x),
        (jnp.linalg.solve, x),
    ]
    for function, expected in cases:
        ours = jax_cocktail.jit(looped(function), options=FORCED)(a, b)
        stock = jax.jit(looped(function))(a, b)
        lost, allowed = (np.abs(y - expected).max() for y in (ours, stock))
        assert lost <= 2 * allowed


def test_least_squares_by_qr():
    """Gauss-Newton steps, each with a QR factorisation; and their gradient."""

    def fit(t, y):
        def step(c, _):
            jacobian = jnp.stack([jnp.exp(-c[1] * t), -c[0] * t * jnp.exp(-c[1] * t)], 1)
            q, r = jnp.linalg.qr(jacobian)
            rest = y - c[0] * jnp.exp(-c[1] * t)
            return c + jax.scipy.linalg.solve_triangular(r, q.T @ rest), None

        return lax.scan(step, jnp.array([1.5, 0.6]), length=4)[0]

    t = jnp.linspace(0.0, 2.0, 9)
    y = 2 * jnp.exp(-t)
    same(fit, t, y, rtol=1e-3)
    same(jax.vmap(fit, (None, 0)), t, jnp.stack([y, 1.1 * y, y * y]), rtol=1e-3)
    same(jax.grad(lambda t, y: fit(t, y).sum(), 1), t, y, rtol=1e-2)


# -- products with factors that stay reflectors --------------------------------------------------------------
@pytest.mark.skipif(not hasattr(lax.linalg, "ormqr"), reason="this release of jax has no such primitive")
@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (2, 4, 4), (4, 1)])
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
def test_products_with_reflectors(shape, left, transpose):
    *batch, rows, _ = shape
    a = jax.random.normal(jax.random.key(0), shape)
    c = jax.random.normal(jax.random.key(1), (*batch, rows, 2) if left else (*batch, 2, rows))

    def function(a, c):
        def step(_, c):
            reflectors, taus = jnp.linalg.qr(a + c.sum(), mode="raw")
            return lax.linalg.ormqr(reflectors.mT, taus, c, left=left, transpose=transpose)

        return lax.fori_loop(0, 3, step, c)

    same(function, a, c)


# -- tridiagonal systems -------------------------------------------------------------------------------------
def heat(lower, diagonal, upper, y):
    """Implicit steps of a heat equation whose coefficients change."""

    def step(state, _):
        y, factor = state
        y = lax.linalg.tridiagonal_solve(lower, factor * diagonal, upper, y)
        return (y, 0.9 * factor), y.sum()

    return lax.scan(step, (y, 1.5), length=4)


def bands(*shape, seed=0):
    """The diagonals of matrices for which rows must be exchanged."""
    return jax.random.normal(jax.random.key(seed), (3, *shape))


@UNITS
def test_tridiagonal_systems(units):
    y = jax.random.normal(jax.random.key(1), (9, 2))
    same(heat, *bands(9), y, units=units)
    same(jax.vmap(heat), *bands(4, 9), jnp.stack([y, 2 * y, y * y, -y]), units=units)
    same(jax.vmap(heat, (None, None, None, 0)), *bands(9), jnp.stack([y, 2 * y, y * y, -y]), units=units)


def test_the_gradient_of_a_tridiagonal_system():
    same(jax.grad(lambda b, y: heat(*b, y)[1].sum(), (0, 1)), bands(5), jnp.ones((5, 1)), rtol=2e-3)


def test_tridiagonal_systems_of_any_size():
    solve = looped(lax.linalg.tridiagonal_solve)
    for shape in ((0, 2), (1, 1), (2, 1), (3, 0), (300, 1)):
        diagonals = bands(shape[0]) + jnp.array([0.0, 4.0, 0.0])[:, None]
        same(solve, *diagonals, jnp.ones(shape))


def test_a_singular_tridiagonal_system():
    """One of a batch is; the others have solutions."""
    diagonal = jnp.array([[1.0, 2.0, 3.0], [1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    lower, upper = jnp.array([0.0, 0.0, 1.0]), jnp.array([1.0, 0.0, 7.0])
    batch = (jnp.stack([lower] * 3), diagonal, jnp.stack([upper] * 3), jnp.ones((3, 3, 2)))
    same(looped(lax.linalg.tridiagonal_solve), *batch)


def test_accuracy_of_tridiagonal_systems():
    """The error against float64 is at most twice that of LAPACK."""
    diagonals, b = bands(60, seed=3), jnp.ones((60, 3))
    lower, diagonal, upper = np.asarray(diagonals, np.float64)
    exact = np.linalg.solve(np.diag(diagonal) + np.diag(lower[1:], -1) + np.diag(upper[:-1], 1), b)
    solve = looped(lax.linalg.tridiagonal_solve)
    both = (f(*diagonals, b) for f in (jax_cocktail.jit(solve, options=FORCED), jax.jit(solve)))
    lost, allowed = (np.abs(x - exact).max() for x in both)
    assert lost <= 2 * allowed


# -- LAPACK --------------------------------------------------------------------------------------------------
def root(cov):
    """The root of a covariance, and its inverse."""
    values, vectors = jnp.linalg.eigh(cov)
    return vectors * jnp.sqrt(values) @ vectors.T, vectors / jnp.sqrt(values) @ vectors.T


def unscented(observations, cov):
    """An unscented Kalman filter with points along the root of the covariance."""
    size = len(cov)

    def move(x):
        return x + 0.1 * jnp.sin(jnp.roll(x, 1))

    def step(state, y):
        mean, cov = state
        points = jax.vmap(move)(mean + jnp.concatenate([root(size * cov)[0], -root(size * cov)[0]]))
        mean = points.mean(0)
        cov = (points - mean).T @ (points - mean) / (2 * size) + 0.05 * jnp.eye(size)
        innovation = cov[:2, :2] + 0.1 * jnp.eye(2)
        gain = jnp.linalg.solve(innovation, cov[:2]).T
        mean = mean + gain @ (y - mean[:2])
        return (mean, cov - gain @ innovation @ gain.T), mean

    return lax.scan(step, (jnp.zeros(size), cov), observations)


def eigenvalues(a):
    """The QR algorithm, until what is below the diagonal is small."""

    def step(a):
        q, r = jnp.linalg.qr(a)
        return r @ q

    return jnp.diag(lax.while_loop(lambda a: jnp.abs(jnp.tril(a, -1)).max() > 1e-3, step, a))


def completed(known, mask):
    """Matrix completion: singular values shrink, and what is known is put back."""

    def step(x, _):
        u, s, vt = jnp.linalg.svd(x, full_matrices=False)
        x = u * jnp.maximum(s - 0.05, 0) @ vt
        return jnp.where(mask, known, x), s

    return lax.scan(step, known * mask, length=5)


@UNITS
def test_an_unscented_kalman_filter(units):
    observations = jax.random.normal(jax.random.key(0), (6, 2))
    same(unscented, observations, matrices((4, 4)), units=units)
    batch = jnp.stack([observations, -observations, 2 * observations])
    same(jax.vmap(unscented, (0, None)), batch, matrices((4, 4)), units=units)


@UNITS
def test_matrix_completion(units):
    known = jax.random.normal(jax.random.key(0), (3, 7, 2)) @ jax.random.normal(jax.random.key(1), (3, 2, 5))
    mask = jax.random.bernoulli(jax.random.key(2), 0.7, (7, 5))
    same(completed, known[0], mask, units=units)
    same(jax.vmap(completed, (0, None)), known, mask, units=units)


@UNITS
def test_large_factors(units):
    """They are larger than our templates are for."""

    def solved(a, b):
        q, r = jnp.linalg.qr(jnp.concatenate([a, a[:5]]))
        return (
            jnp.linalg.solve(a, b),
            jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(a), b),
            jax.scipy.linalg.solve_triangular(a, b, lower=True, unit_diagonal=True, trans=1),
            jax.scipy.linalg.lu_factor(a),
            jnp.linalg.cholesky(a),
            (q, r, q @ r),
        )

    a, b = matrices((2, 140, 140)), jax.random.normal(jax.random.key(1), (2, 140, 3))
    same(looped(solved), a[0], b[0], units=units)
    same(looped(jax.vmap(solved)), a, b, units=units)


def test_large_matrices_without_factors():
    bad = -matrices((2, 130, 130)).at[0].multiply(-1)
    same(looped(lambda a: (jnp.linalg.cholesky(a), lax.linalg.lu(0 * a))), bad)


def test_the_qr_algorithm():
    same(eigenvalues, matrices((5, 5)), rtol=2e-3)


def test_the_gradients_of_decompositions():
    def loss(a):
        def step(a, _):
            s = jnp.linalg.svd(a, compute_uv=False)
            return root(a)[0] + a / s[0], None

        return lax.scan(step, a, length=3)[0].sum()

    same(jax.grad(loss), matrices((4, 4)), rtol=2e-3)


DECOMPOSITIONS = [
    jnp.linalg.eigh,
    jnp.linalg.eigvalsh,
    lambda a: lax.linalg.eigh(a, lower=False, symmetrize_input=False),
    jnp.linalg.svd,
    lambda a: jnp.linalg.svd(a[..., :3], full_matrices=False),
    lambda a: jnp.linalg.svd(a[..., :3, :]),
    lambda a: jnp.linalg.svd(a[..., :3], compute_uv=False),
]


def test_decompositions_have_the_bits_of_stock():
    """So the signs of vectors are the same, too. Matrices of one element, and with a NaN, are among them."""
    bad = jax.random.normal(jax.random.key(2), (3, 4, 4)).at[1, 2, 2].set(jnp.nan)
    for a in (jax.random.normal(jax.random.key(0), (40, 40)), jnp.full((2, 1, 1), -2.0), bad):
        function = looped(lambda a: [f(a) for f in DECOMPOSITIONS])
        ours, stock = jax_cocktail.jit(function, options=FORCED)(a), jax.jit(function)(a)
        jax.tree.map(np.testing.assert_array_equal, ours, stock)


def test_decompositions_in_float64():
    with jax.enable_x64(True):
        a = jax.random.normal(jax.random.key(0), (2, 9, 6), jnp.float64)
        same(looped(lambda a: (jnp.linalg.svd(a), jnp.linalg.eigh(a.mT @ a))), a, rtol=1e-13)
        cov = jnp.eye(4, dtype=jnp.float64) + 0.1
        same(unscented, jnp.ones((6, 2), jnp.float64), cov, rtol=1e-11)


def test_the_interpreter_agrees():
    operands = jax.random.normal(jax.random.key(0), (6, 2)), matrices((4, 4))
    program = translate(adapter.program(jax.make_jaxpr(unscented)(*operands)), "filter")
    found = run(program, [np.asarray(x) for x in operands])
    for x, y in zip(found, jax.tree.leaves(jax.jit(unscented)(*operands)), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("function", [jnp.linalg.eigh, jnp.linalg.svd])
def test_a_gpu_has_no_lapack(function):
    """What stands beside a loop does not keep it from being captured there."""
    beside = jax.make_jaxpr(lambda a: (looped(jnp.cos)(a), function(a)))(jnp.eye(3))
    assert [region.control_flow for region in capture(beside, "cuda").regions]
    inside = capture(jax.make_jaxpr(looped(function))(jnp.eye(3)), "cuda")
    assert not inside.regions and "on a GPU" in inside.left[0].reason
