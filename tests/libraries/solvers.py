"""Differential equations, root finding, optimisation, linear solves."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.libraries.table import Made, program


def _diffrax(solver: str, adaptive: bool) -> Made:
    import diffrax

    def solve(y: jax.Array) -> jax.Array:
        term = diffrax.ODETerm(lambda t, y, args: jnp.array([y[1], 3 * (1 - y[0] ** 2) * y[1] - y[0]]))
        control = diffrax.PIDController(rtol=1e-4, atol=1e-5) if adaptive else diffrax.ConstantStepSize()
        times = diffrax.SaveAt(ts=jnp.linspace(0, 3, 7))
        method = getattr(diffrax, solver)()
        found = diffrax.diffeqsolve(
            term, method, 0.0, 3.0, 0.05, y, saveat=times, stepsize_controller=control
        )
        assert found.ys is not None
        return found.ys

    return solve, jnp.array([1.0, 0.5])


@program("diffrax", loops=1)
def diffrax_tsit5() -> Made:
    return _diffrax("Tsit5", adaptive=True)


@program("diffrax", loops=1)
def diffrax_euler() -> Made:
    return _diffrax("Euler", adaptive=False)


@program("diffrax", loops=1, in_ci=False)
def diffrax_kvaerno5() -> Made:
    return _diffrax("Kvaerno5", adaptive=True)


# Rounding decides the step sizes: in float32 the gradient changes by some percent with the last bits of `y`.
@program("diffrax", loops=2, tolerance=0.1, in_ci=False)
def diffrax_gradient() -> Made:
    solve, y = _diffrax("Tsit5", adaptive=True)
    return jax.grad(lambda y: solve(y).sum()), y


# Three steps of training through the adaptive solver: all loops are in the loop over the steps.
@program("diffrax", loops=1, tolerance=0.1, in_ci=False)
def diffrax_tsit5_training() -> Made:
    solve, y = _diffrax("Tsit5", adaptive=True)
    target = jnp.array([0.5, -0.5])

    def train(y: jax.Array) -> tuple[jax.Array, jax.Array]:
        def step(y: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            loss, slope = jax.value_and_grad(lambda y: jnp.mean((solve(y)[-1] - target) ** 2))(y)
            return y - 0.05 * slope, loss

        return lax.scan(step, y, None, length=3)

    return train, y


@program("diffrax", loops=2)
def diffrax_neural_ode_gradient() -> Made:
    import diffrax
    import equinox

    field = equinox.nn.MLP(2, 2, 8, 1, activation=jax.nn.tanh, key=jax.random.key(0))
    weights, rest = equinox.partition(field, equinox.is_array)

    def loss(weights: Any, y: jax.Array) -> jax.Array:
        term = diffrax.ODETerm(lambda t, y, args: equinox.combine(args, rest)(y))
        times = diffrax.SaveAt(ts=jnp.linspace(0, 1, 4))
        found = diffrax.diffeqsolve(term, diffrax.Heun(), 0.0, 1.0, 0.1, y, weights, saveat=times)
        assert found.ys is not None
        return jnp.sum(found.ys**2)

    return jax.grad(loss), weights, jnp.array([1.0, 0.5])


@program("diffrax", loops=1, in_ci=False)
def diffrax_sde() -> Made:
    import diffrax

    def solve(key: jax.Array) -> jax.Array:
        noise = diffrax.VirtualBrownianTree(0.0, 1.0, tol=1e-2, shape=(), key=key)
        drift, diffusion = lambda t, y, args: -y, lambda t, y, args: 0.3 * jnp.ones(())
        terms = diffrax.MultiTerm(diffrax.ODETerm(drift), diffrax.ControlTerm(diffusion, noise))
        found = diffrax.diffeqsolve(terms, diffrax.Euler(), 0.0, 1.0, 0.05, jnp.float32(1))
        assert found.ys is not None
        return found.ys

    return jax.vmap(solve), jax.random.split(jax.random.key(0), 4)


@program("optimistix", loops=1)
def optimistix_newton() -> Made:
    import optimistix

    def solve(y: jax.Array) -> jax.Array:
        solver = optimistix.Newton(rtol=1e-5, atol=1e-5)
        return optimistix.root_find(lambda y, args: y - jnp.tanh(y @ args), solver, y, jnp.eye(3) * 0.5).value

    return solve, jnp.array([1.0, 2.0, 3.0])


@program("optimistix", loops=1)
def optimistix_levenberg_marquardt() -> Made:
    import optimistix

    xs = jnp.linspace(0, 1, 8)

    def solve(y: jax.Array) -> jax.Array:
        solver = optimistix.LevenbergMarquardt(rtol=1e-5, atol=1e-5)
        residuals = lambda y, args: y[0] * jnp.exp(-y[1] * args) - 2 * jnp.exp(-0.5 * args)  # noqa: E731
        return optimistix.least_squares(residuals, solver, y, xs).value

    return solve, jnp.array([1.0, 1.0])


@program("optimistix", loops=1)
def optimistix_bfgs() -> Made:
    import optimistix

    def solve(y: jax.Array) -> jax.Array:
        solver = optimistix.BFGS(rtol=1e-5, atol=1e-5)
        return optimistix.minimise(
            lambda y, args: jnp.sum((y - 1) ** 4 + y**2), solver, y, max_steps=64
        ).value

    return solve, jnp.array([2.0, -1.0])


@program("optimistix", loops=1)
def optimistix_fixed_point() -> Made:
    import optimistix

    def solve(y: jax.Array) -> jax.Array:
        solver = optimistix.FixedPointIteration(rtol=1e-5, atol=1e-5)
        return optimistix.fixed_point(lambda y, args: jnp.cos(y), solver, y).value

    return jax.vmap(solve), jnp.array([0.3, 1.0, 2.0])


@program("lineax", loops=1)
def lineax_cg() -> Made:
    import lineax

    def solve(a: jax.Array, b: jax.Array) -> jax.Array:
        operator = lineax.MatrixLinearOperator(a @ a.T + jnp.eye(5), lineax.positive_semidefinite_tag)
        return lineax.linear_solve(operator, b, lineax.CG(rtol=1e-6, atol=1e-6)).value

    return solve, jax.random.normal(jax.random.key(0), (5, 5)), jnp.arange(5.0)


@program("lineax", loops=1)
def lineax_lu_in_a_loop() -> Made:
    import lineax

    def implicit_euler(a: jax.Array, y: jax.Array) -> jax.Array:
        def step(y: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            operator = lineax.MatrixLinearOperator(jnp.eye(3) - 0.1 * a)
            y = lineax.linear_solve(operator, y, lineax.LU()).value
            return y, y

        return lax.scan(step, y, length=10)[1]

    return implicit_euler, jax.random.normal(jax.random.key(0), (3, 3)), jnp.arange(3.0)


@program("jaxopt", loops=4, in_ci=False)
def jaxopt_lbfgs() -> Made:
    import jaxopt

    x = jax.random.normal(jax.random.key(0), (20, 4))
    labels = (x @ jnp.arange(4.0) > 0).astype(jnp.float32)

    def fit(w: jax.Array) -> jax.Array:
        def loss(w: jax.Array) -> jax.Array:
            return jnp.mean(jnp.logaddexp(0, x @ w) - labels * (x @ w)) + 0.1 * w @ w

        return jaxopt.LBFGS(loss, maxiter=20).run(w).params

    return fit, jnp.zeros(4)


@program("jaxopt", loops=2)
def jaxopt_projected_gradient() -> Made:
    import jaxopt

    def fit(w: jax.Array) -> jax.Array:
        loss = lambda w: jnp.sum((w - jnp.array([0.9, 0.2, -0.4])) ** 2)  # noqa: E731
        solver = jaxopt.ProjectedGradient(loss, jaxopt.projection.projection_simplex, maxiter=30)
        return solver.run(w).params

    return fit, jnp.full(3, 1 / 3)


@program("jaxopt", loops=1)
def jaxopt_bisection_under_vmap() -> Made:
    import jaxopt

    def root(a: jax.Array) -> jax.Array:
        return jaxopt.Bisection(lambda x: x**3 - a, 0.0, 3.0, maxiter=20, check_bracket=False).run().params

    return jax.vmap(root), jnp.linspace(0.5, 8, 6)


@program("jaxopt", loops=2)
def jaxopt_lasso() -> Made:
    import jaxopt

    x = jax.random.normal(jax.random.key(0), (20, 5))
    data = x, x @ jnp.array([1.0, 0.0, -2.0, 0.0, 0.5])

    def fit(penalty: jax.Array) -> jax.Array:
        solver = jaxopt.ProximalGradient(
            jaxopt.objective.least_squares, jaxopt.prox.prox_lasso, maxiter=30, tol=1e-4
        )
        return solver.run(jnp.zeros(5), hyperparams_prox=penalty, data=data).params

    return fit, jnp.float32(0.1)


@program("optax", loops=1)
def optax_adam() -> Made:
    import optax

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))
    x = jax.random.normal(jax.random.key(0), (16, 4))

    def train(w: jax.Array) -> jax.Array:
        def step(state: tuple[jax.Array, Any], _: None) -> tuple[tuple[jax.Array, Any], jax.Array]:
            w, opt = state
            loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - 1) ** 2))(w)
            updates, opt = optimizer.update(gradient, opt)
            return (optax.apply_updates(w, updates), opt), loss

        return lax.scan(step, (w, optimizer.init(w)), length=20)[1]

    return train, jnp.zeros(4)


@program("optax", loops=1)
def optax_lbfgs() -> Made:
    import optax

    optimizer = optax.lbfgs()

    def loss(w: jax.Array) -> jax.Array:
        return jnp.sum((w - 1) ** 4 + w**2)

    def fit(w: jax.Array) -> jax.Array:
        def step(state: tuple[jax.Array, Any], _: None) -> tuple[tuple[jax.Array, Any], None]:
            w, opt = state
            value, gradient = optax.value_and_grad_from_state(loss)(w, state=opt)
            updates, opt = optimizer.update(gradient, opt, w, value=value, grad=gradient, value_fn=loss)
            return (optax.apply_updates(w, updates), opt), None

        return lax.scan(step, (w, optimizer.init(w)), length=8)[0][0]

    return fit, jnp.array([2.0, -1.0])


@program("optax", loops=1)
def optax_gradient_accumulation() -> Made:
    import optax

    optimizer = optax.MultiSteps(optax.adam(1e-2), every_k_schedule=4)
    xs = jax.random.normal(jax.random.key(0), (12, 8, 4))

    def train(w: jax.Array) -> jax.Array:
        def step(state: tuple[jax.Array, Any], x: jax.Array) -> tuple[tuple[jax.Array, Any], jax.Array]:
            w, opt = state
            loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - 1) ** 2))(w)
            updates, opt = optimizer.update(gradient, opt, w)
            return (optax.apply_updates(w, updates), opt), loss

        return lax.scan(step, (w, optimizer.init(w)), xs)[1]

    return train, jnp.zeros(4)


@program("optax", loops=2)
def optax_ctc_gradient() -> Made:
    import optax

    labels = jnp.array([[1, 2, 3, 2], [4, 1, 0, 0]])
    skipped = jnp.array([[0.0, 0, 0, 0], [0, 0, 1, 1]])

    def loss(logits: jax.Array) -> jax.Array:
        return optax.ctc_loss(logits, jnp.zeros(logits.shape[:2]), labels, skipped).sum()

    return jax.grad(loss), jax.random.normal(jax.random.key(0), (2, 10, 5))


@program("optax", loops=1)
def optax_hungarian() -> Made:
    import optax

    return optax.assignment.hungarian_algorithm, jax.random.normal(jax.random.key(0), (5, 6))


@program("ott", loops=1)
def ott_sinkhorn() -> Made:
    from ott.geometry import pointcloud
    from ott.problems.linear import linear_problem
    from ott.solvers.linear import sinkhorn

    def cost(x: jax.Array, y: jax.Array) -> jax.Array:
        problem = linear_problem.LinearProblem(pointcloud.PointCloud(x, y, epsilon=0.1))
        return sinkhorn.Sinkhorn(max_iterations=100)(problem).reg_ot_cost

    return cost, jax.random.normal(jax.random.key(0), (12, 2)), jax.random.normal(jax.random.key(1), (9, 2))


@program("ott", loops=2)
def ott_soft_sort() -> Made:
    from ott.tools import soft_sort

    return lambda x: soft_sort.sort(x, axis=-1, epsilon=0.1), jax.random.normal(jax.random.key(0), (10,))
