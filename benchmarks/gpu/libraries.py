"""Batches of other libraries' loops on a GPU: what is planned for a card that is not here.

    python -m benchmarks.gpu.libraries [--spec H200] [--build] [rows]

prints for each row the plan, into how many parts the work falls, and the times that the model predicts for
ours and for stock XLA, as `benchmarks.gpu.elements` does. A row whose library is missing says so. Nothing is
measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.gpu.elements import SPECS, planned, table
from benchmarks.gpu.ensembles import Program


def _chain(algorithm: Any) -> Callable[[Any], Any]:
    """The positions of ten steps from 0."""

    def chain(key: Any) -> Any:
        def step(state: Any, key: Any) -> Any:
            state, _ = algorithm.step(key, state)
            return state, state.position

        return jax.lax.scan(step, algorithm.init(jnp.zeros(4)), jax.random.split(key, 10))[1]

    return chain


def _log_density(x: Any) -> Any:
    return -0.5 * jnp.sum(x**2) - 0.1 * jnp.sum(jnp.cosh(x))


def nuts(count: int) -> Program:
    """Chains of the No-U-Turn sampler, each of which doubles its trajectory as often as it needs."""
    import blackjax

    algorithm = blackjax.nuts(_log_density, step_size=0.3, inverse_mass_matrix=jnp.ones(4))
    return jax.vmap(_chain(algorithm)), (jax.random.split(jax.random.PRNGKey(0), count),)


def hmc(count: int) -> Program:
    """Chains of Hamiltonian Monte Carlo with trajectories of one length."""
    import blackjax

    weights = jnp.ones(4)
    algorithm = blackjax.hmc(
        _log_density, step_size=0.3, inverse_mass_matrix=weights, num_integration_steps=10
    )
    return jax.vmap(_chain(algorithm)), (jax.random.split(jax.random.PRNGKey(0), count),)


def tsit5(count: int, saved: int = 0) -> Program:
    """Lorenz systems with steps of their own; the state at the end, or at some times."""
    import diffrax

    def slope(t: Any, y: Any, args: Any) -> Any:
        return jnp.stack([10.0 * (y[1] - y[0]), y[0] * (28.0 - y[2]) - y[1], y[0] * y[1] - 8.0 / 3.0 * y[2]])

    def solve(y: Any) -> Any:
        times = diffrax.SaveAt(ts=jnp.linspace(0.0, 1.0, saved)) if saved else diffrax.SaveAt(t1=True)
        control = diffrax.PIDController(rtol=1e-5, atol=1e-5)
        term, method = diffrax.ODETerm(slope), diffrax.Tsit5()
        return diffrax.diffeqsolve(
            term, method, 0.0, 1.0, 0.01, y, saveat=times, stepsize_controller=control
        ).ys

    return jax.vmap(solve), (jnp.ones((count, 3)),)


def tic_tac_toe(count: int) -> Program:
    """Games of random moves."""
    import pgx

    game = pgx.make("tic_tac_toe")

    def play(key: Any) -> Any:
        def step(state: Any, key: Any) -> Any:
            moves = jnp.where(state.legal_action_mask, 0.0, -1e9)
            state = game.step(state, jax.random.categorical(key, moves))
            return state, state.rewards

        return jax.lax.scan(step, game.init(key), jax.random.split(key, 9))[1]

    return jax.vmap(play), (jax.random.split(jax.random.PRNGKey(0), count),)


ROWS: dict[str, Callable[[], Program]] = {
    "blackjax nuts/4096": partial(nuts, 4096),
    "blackjax hmc/4096": partial(hmc, 4096),
    "diffrax tsit5/100000": partial(tsit5, 10**5),
    "diffrax tsit5 at 10 times/100000": partial(tsit5, 10**5, 10),
    "pgx tic_tac_toe/10000": partial(tic_tac_toe, 10**4),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--spec", choices=SPECS, default="H200", help="the card")
    parser.add_argument("--build", action="store_true", help="compile, for registers and spills")
    parser.add_argument("rows", nargs="*", help=f"those with this text in their name; of {', '.join(ROWS)}")
    options = parser.parse_args()
    head, missing = True, list[str]()
    for name, make in ROWS.items():
        if options.rows and not any(text in name for text in options.rows):
            continue
        try:
            made = make()
        except ModuleNotFoundError as error:
            missing.append(f"{name}: {error.name} is not installed")
            continue
        lines = list(table(iter([planned(name, made, SPECS[options.spec], options.build)])))
        print("\n".join(lines if head else lines[2:]), flush=True)
        head = False
    print("\n".join(missing))


if __name__ == "__main__":
    main()
