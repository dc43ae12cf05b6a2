"""Neural networks, reinforcement learning, environments, tree search."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.libraries.table import Made, program


@program("equinox", loops=2)
def equinox_gru() -> Made:
    import equinox

    cell = equinox.nn.GRUCell(4, 8, key=jax.random.key(0))

    def last(xs: jax.Array) -> jax.Array:
        return lax.scan(lambda h, x: (cell(x, h), None), jnp.zeros(8), xs)[0]

    return jax.grad(lambda xs: last(xs).sum()), jax.random.normal(jax.random.key(1), (10, 4))


@program("equinox", loops=2)
def equinox_checkpointed_while() -> Made:
    from equinox.internal import while_loop

    def growing(x: jax.Array) -> jax.Array:
        def body(s: Any) -> Any:
            return s[0] + 1, jnp.sin(s[1]) * 1.5

        return while_loop(lambda s: s[0] < 9, body, (0, x), max_steps=16, kind="checkpointed")[1]

    return jax.grad(lambda x: growing(x).sum()), jnp.arange(4.0)


@program("flax", loops=1)
def flax_lstm() -> Made:
    from flax import linen

    model = linen.RNN(linen.OptimizedLSTMCell(8))
    xs = jax.random.normal(jax.random.key(1), (2, 10, 4))
    return model.apply, model.init(jax.random.key(0), xs), xs


@program("flax", loops=2)
def flax_remat_gradient() -> Made:
    from flax import linen

    class Block(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return x + linen.Dense(8)(linen.gelu(linen.LayerNorm()(x))), None

    layers = linen.scan(
        linen.remat(Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=4
    )
    x = jax.random.normal(jax.random.key(1), (3, 8))
    weights = layers().init(jax.random.key(0), x, None)
    return jax.grad(lambda weights, x: (layers().apply(weights, x, None)[0] ** 2).sum()), weights, x


@program("flax", loops=1)
def flax_greedy_decoder() -> Made:
    from flax import linen

    class Decoder(linen.Module):
        @linen.compact
        def __call__(self, token: jax.Array) -> jax.Array:
            x = linen.Embed(11, 8)(token)
            x = x + linen.MultiHeadDotProductAttention(num_heads=2, decode=True)(x, x)
            return linen.Dense(11)(linen.LayerNorm()(x))

    model = Decoder()
    started = model.init(jax.random.key(0), jnp.zeros((2, 12), jnp.int32))

    def decode(weights: Any, cache: Any, token: jax.Array) -> jax.Array:
        def step(carry: Any, _: None) -> tuple[Any, jax.Array]:
            cache, token = carry
            logits, changed = model.apply({"params": weights, "cache": cache}, token, mutable=["cache"])
            token = jnp.argmax(logits[:, -1:], axis=-1).astype(jnp.int32)
            return (changed["cache"], token), token

        return lax.scan(step, (cache, token), length=12)[1]

    return decode, started["params"], started["cache"], jnp.ones((2, 1), jnp.int32)


@program("haiku", loops=1)
def haiku_lstm() -> Made:
    import haiku

    def unrolled(xs: jax.Array) -> jax.Array:
        core = haiku.LSTM(8)
        return haiku.dynamic_unroll(core, xs, core.initial_state(2))[0]

    model = haiku.without_apply_rng(haiku.transform(unrolled))
    xs = jax.random.normal(jax.random.key(1), (10, 2, 4))
    return model.apply, model.init(jax.random.key(0), xs), xs


@program("rlax", loops=2)
def rlax_td_lambda() -> Made:
    import rlax

    def loss(values: jax.Array) -> jax.Array:
        rewards = jnp.cos(jnp.arange(10.0))
        return jnp.sum(rlax.td_lambda(values[:-1], rewards, jnp.full(10, 0.9), values[1:], 0.8) ** 2)

    return jax.grad(loss), jnp.arange(11.0)


def _mctx(policy: str) -> Made:
    import mctx

    def search(key: jax.Array, embedding: jax.Array) -> jax.Array:
        def outputs(x: jax.Array) -> tuple[jax.Array, jax.Array]:
            return jnp.sin(x[:, :3] * 3), jnp.tanh(x.sum(-1))

        def recurrent(params: Any, key: jax.Array, action: jax.Array, x: jax.Array) -> Any:
            following = jnp.tanh(x + action[:, None])
            logits, value = outputs(following)
            return (
                mctx.RecurrentFnOutput(
                    reward=value * 0.5, discount=jnp.full_like(value, 0.9), prior_logits=logits, value=value
                ),
                following,
            )

        logits, value = outputs(embedding)
        root = mctx.RootFnOutput(prior_logits=logits, value=value, embedding=embedding)
        found = getattr(mctx, policy)({}, key, root, recurrent, num_simulations=8)
        return found.action_weights

    return search, jax.random.key(0), jax.random.normal(jax.random.key(1), (2, 4))


@program("mctx", loops=2)
def mctx_muzero() -> Made:
    return _mctx("muzero_policy")


@program("mctx", loops=1, in_ci=False)
def mctx_gumbel() -> Made:
    return _mctx("gumbel_muzero_policy")


@program("brax", loops=1)
def brax_pendulum() -> Made:
    from brax import envs

    environment = envs.get_environment("inverted_pendulum", backend="positional")

    def rollout(key: jax.Array) -> jax.Array:
        def step(state: Any, _: None) -> tuple[Any, jax.Array]:
            state = environment.step(state, jnp.zeros(environment.action_size))
            return state, state.reward

        return lax.scan(step, environment.reset(key), length=3)[1]

    return rollout, jax.random.PRNGKey(0)


@program("gymnax", loops=1)
def gymnax_cartpole() -> Made:
    import gymnax

    environment, parameters = gymnax.make("CartPole-v1")

    def rollout(key: jax.Array) -> jax.Array:
        def step(carry: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            act, move = jax.random.split(key)
            action = environment.action_space(parameters).sample(act)
            observation, state, reward, *_ = environment.step(move, carry, action, parameters)
            return state, observation

        _, state = environment.reset(key, parameters)
        return lax.scan(step, state, jax.random.split(key, 20))[1]

    return jax.vmap(rollout), jax.random.split(jax.random.key(0), 3)


@program("jumanji", loops=2)
def jumanji_snake() -> Made:
    import jumanji

    environment = jumanji.make("Snake-v1", num_rows=4, num_cols=4)

    def rollout(key: jax.Array) -> jax.Array:
        def step(state: Any, action: jax.Array) -> tuple[Any, jax.Array]:
            state, timestep = environment.step(state, action)
            return state, timestep.reward

        return lax.scan(step, environment.reset(key)[0], jnp.arange(6) % 4)[1]

    return jax.vmap(rollout), jax.random.split(jax.random.key(0), 3)


@program("pgx", loops=1)
def pgx_tic_tac_toe() -> Made:
    import pgx

    environment = pgx.make("tic_tac_toe")

    def play(key: jax.Array) -> jax.Array:
        def step(carry: Any) -> Any:
            state, key = carry
            key, using = jax.random.split(key)
            logits = jnp.where(state.legal_action_mask, 0.0, -jnp.inf)
            return environment.step(state, jax.random.categorical(using, logits)), key

        start = environment.init(key), key
        return lax.while_loop(lambda c: ~(c[0].terminated | c[0].truncated), step, start)[0].rewards

    return jax.vmap(play), jax.random.split(jax.random.key(0), 4)
