"""Probabilistic programs, filters, samplers, evolution strategies."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.libraries.table import Made, program

# Chains of samplers multiply rounding errors, so they are short.


def _log_density(x: jax.Array) -> jax.Array:
    return -0.5 * jnp.sum(x**2 / jnp.array([1.0, 4.0, 0.5])) + 0.1 * jnp.sin(x[0])


def _chain(step: Any, state: Any, key: jax.Array, length: int) -> Any:
    return lax.scan(lambda state, key: (step(key, state)[0], None), state, jax.random.split(key, length))[0]


@program("blackjax", loops=1, tolerance=1e-2)
def blackjax_hmc() -> Made:
    import blackjax

    def sample(key: jax.Array, x: jax.Array) -> jax.Array:
        kernel = blackjax.hmc(_log_density, 0.1, jnp.ones(3), 5)
        return _chain(kernel.step, kernel.init(x), key, 10).position

    return sample, jax.random.key(0), jnp.ones(3)


@program("blackjax", loops=1, tolerance=1e-2)
def blackjax_nuts() -> Made:
    import blackjax

    def sample(key: jax.Array, x: jax.Array) -> jax.Array:
        kernel = blackjax.nuts(_log_density, 0.3, jnp.ones(3))
        return _chain(kernel.step, kernel.init(x), key, 4).position

    return sample, jax.random.key(0), jnp.ones(3)


@program("blackjax", loops=1, tolerance=1e-2)
def blackjax_mala_under_vmap() -> Made:
    import blackjax

    def sample(key: jax.Array, x: jax.Array) -> jax.Array:
        kernel = blackjax.mala(_log_density, 0.2)
        return _chain(kernel.step, kernel.init(x), key, 10).position

    return jax.vmap(sample), jax.random.split(jax.random.key(0), 4), jnp.ones((4, 3))


@program("blackjax", loops=1, tolerance=1e-2)
def blackjax_window_adaptation() -> Made:
    import blackjax

    def adapted(key: jax.Array, x: jax.Array) -> jax.Array:
        warmup = blackjax.window_adaptation(blackjax.hmc, _log_density, num_integration_steps=3)
        (_, parameters), _ = warmup.run(key, x, 20)
        return parameters["step_size"]

    return adapted, jax.random.key(0), jnp.ones(3)


@program("blackjax", loops=1, tolerance=1e-2)
def blackjax_elliptical_slice() -> Made:
    import blackjax

    def sample(key: jax.Array, x: jax.Array) -> jax.Array:
        kernel = blackjax.elliptical_slice(_log_density, mean=jnp.zeros(3), cov=jnp.eye(3))
        return _chain(kernel.step, kernel.init(x), key, 10).position

    return sample, jax.random.key(0), jnp.ones(3)


@program("numpyro", loops=1, tolerance=1e-2)
def numpyro_nuts() -> Made:
    import numpyro
    from numpyro import distributions, infer

    def model(y: jax.Array) -> None:
        scale = numpyro.sample("scale", distributions.Gamma(2.0, 1.0))
        mean = numpyro.sample("mean", distributions.Normal(0.0, 2.0))
        numpyro.sample("y", distributions.Normal(mean, scale), obs=y)

    y = jax.random.normal(jax.random.key(1), (10,)) + 1
    kernel = infer.NUTS(model, max_tree_depth=4)
    start = kernel.init(jax.random.PRNGKey(0), 10, None, (y,), {})

    def sample(state: Any) -> Any:
        return lax.fori_loop(0, 4, lambda i, s: kernel.sample(s, (y,), {}), state).z

    return sample, start


@program("numpyro", loops=1, in_ci=False)
def numpyro_svi() -> Made:
    import numpyro
    from numpyro import distributions, infer

    def model(y: jax.Array) -> None:
        mean = numpyro.sample("mean", distributions.Normal(0.0, 2.0))
        numpyro.sample("y", distributions.Normal(mean, 1.0), obs=y)

    y = jax.random.normal(jax.random.key(1), (10,)) + 1
    guide = infer.autoguide.AutoNormal(model)
    svi = infer.SVI(model, guide, numpyro.optim.Adam(0.05), infer.Trace_ELBO())
    start = svi.init(jax.random.PRNGKey(0), y)
    return lambda state, y: lax.scan(lambda s, _: svi.update(s, y), state, length=15)[1], start, y


@program("numpyro", loops=2)
def numpyro_hmm_gradient() -> Made:
    from numpyro import distributions, handlers, sample
    from numpyro.contrib.control_flow import scan
    from numpyro.infer.util import log_density

    def model(y: jax.Array) -> None:
        level = sample("level", distributions.Normal(0.0, 1.0))

        def step(x: jax.Array, y: jax.Array) -> tuple[jax.Array, None]:
            x = sample("x", distributions.Normal(0.9 * x + level, 0.3))
            sample("y", distributions.Normal(x, 1.0), obs=y)
            return x, None

        scan(step, jnp.float32(0), y)

    y = jax.random.normal(jax.random.key(0), (15,))

    def density(values: dict[str, jax.Array]) -> jax.Array:
        return log_density(handlers.seed(model, 0), (y,), {}, values)[0]

    return jax.grad(density), {"level": jnp.float32(0.1), "x": 0.5 * y}


@program("numpyro", loops=1)
def numpyro_gamma_prior() -> Made:
    from numpyro import distributions

    def walk(key: jax.Array) -> jax.Array:
        def step(scale: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
            scale = distributions.InverseGamma(3.0, scale).sample(key)
            return scale, distributions.Beta(2.0, 3.0).log_prob(scale / (1 + scale))

        return lax.scan(step, jnp.float32(1), jax.random.split(key, 10))[1]

    return walk, jax.random.PRNGKey(0)


@program("dynamax", loops=3)
def dynamax_hmm_smoother() -> Made:
    from dynamax.hidden_markov_model import hmm_smoother

    start = jnp.array([0.5, 0.3, 0.2])
    transition = jnp.array([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1], [0.1, 0.3, 0.6]])
    return (
        lambda likelihoods: hmm_smoother(start, transition, likelihoods).smoothed_probs,
        jax.random.normal(jax.random.key(0), (20, 3)),
    )


@program("dynamax", loops=1)
def dynamax_kalman_filter() -> Made:
    from dynamax.linear_gaussian_ssm import LinearGaussianSSM

    model = LinearGaussianSSM(2, 2)
    parameters, _ = model.initialize(jax.random.PRNGKey(0))
    data = jax.random.normal(jax.random.key(1), (12, 2))
    return lambda y: model.filter(parameters, y).filtered_means, data


@program("cuthbert", loops=1)
def cuthbert_kalman_filter() -> Made:
    from cuthbert import filter as run
    from cuthbert.gaussian import kalman

    eye = jnp.eye(2)

    def filtered(y: jax.Array) -> jax.Array:
        made = kalman.build_filter(
            jnp.zeros(2),
            eye,
            lambda t: (0.9 * eye, jnp.zeros(2), 0.1 * eye),
            lambda t: (eye, jnp.zeros(2), 0.5 * eye, y[t]),
        )
        return run(made, jnp.arange(len(y)), made.init_prepare(), parallel=False).mean

    return filtered, jax.random.normal(jax.random.key(0), (8, 2))


@program("distrax", loops=1)
def distrax_hmm() -> Made:
    import distrax

    def likelihood(y: jax.Array) -> jax.Array:
        model = distrax.HMM(
            init_dist=distrax.Categorical(probs=jnp.array([0.6, 0.4])),
            trans_dist=distrax.Categorical(probs=jnp.array([[0.7, 0.3], [0.2, 0.8]])),
            obs_dist=distrax.Normal(jnp.array([-1.0, 1.0]), jnp.array([1.0, 0.5])),
        )
        return model.forward(y)[1]

    return likelihood, jax.random.normal(jax.random.key(0), (20,))


@program("evosax", loops=1, tolerance=1e-2)
def evosax_cma_es() -> Made:
    from evosax.algorithms import CMA_ES

    strategy = CMA_ES(population_size=8, solution=jnp.zeros(3))
    parameters = strategy.default_params

    def search(key: jax.Array) -> jax.Array:
        def step(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            ask, tell = jax.random.split(key)
            population, state = strategy.ask(ask, state, parameters)
            fitness = jnp.sum((population - 1) ** 2, axis=-1)
            state, _ = strategy.tell(tell, population, fitness, state, parameters)
            return state, fitness.min()

        state = strategy.init(key, jnp.zeros(3), parameters)
        return lax.scan(step, state, jax.random.split(key, 5))[1]

    return search, jax.random.key(0)
