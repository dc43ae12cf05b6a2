"""Gradients of loops that stop: ours, beside what one writes without us.

    python -m benchmarks.bounded
    python -m benchmarks.bounded --bound 2000 --share 0.2 --width 64

The loops run for a share of their bound. Without a bounded loop one scans over the bound and masks the rest
of the iterations, under stock XLA or in ours. Also: the same loop with stock XLA, and with checkpoints. All
gradients agree. The ways run in turn; medians count.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_cocktail
from jax_cocktail_tools.models.measure import interleaved_samples

FORCED = {"force": "cocktail", "compile": "now"}


def relaxation(matrix: Any, state: Any) -> Any:
    return jnp.tanh(state @ matrix) * 0.5 + state * 0.5


def bounded(trips: Any, matrix: Any, state: Any, bound: int, **how: Any) -> Any:
    """The loss after so many trips of a loop that may take up to `bound`."""

    def step(carry: Any) -> Any:
        k, state = carry
        return k + 1, relaxation(matrix, state)

    go = lambda carry: carry[0] < trips  # noqa: E731
    return jnp.sum(jax_cocktail.while_loop(go, step, (0, state), max_trips=bound, **how)[1] ** 2)


def masked(trips: Any, matrix: Any, state: Any, bound: int) -> Any:
    """The same by a scan over the bound."""

    def step(state: Any, k: Any) -> Any:
        return jnp.where(k < trips, relaxation(matrix, state), state), None

    return jnp.sum(jax.lax.scan(step, state, jnp.arange(bound))[0] ** 2)


def measure(bound: int, share: float, width: int, batch: int, seconds: float) -> dict[str, float]:
    """Median seconds of a gradient by the matrix, each way."""
    random = np.random.default_rng(0)
    matrix = jnp.asarray(random.normal(size=(width, width)) / np.sqrt(width), jnp.float32)
    state = jnp.asarray(random.normal(size=(batch, width)), jnp.float32)
    arguments = (jnp.int32(share * bound), matrix, state)

    def gradient(loss: Callable[..., Any], **how: Any) -> Callable[..., Any]:
        return jax.grad(partial(loss, bound=bound, **how), argnums=1)

    ours = partial(jax_cocktail.jit, options=FORCED)
    ways = {
        "ours": ours(gradient(bounded)),
        "ours, checkpoints": ours(gradient(bounded, checkpoints=int(bound**0.5))),
        "bounded loop, stock XLA": jax.jit(gradient(bounded)),
        "masked scan, ours": ours(gradient(masked)),
        "masked scan, stock XLA": jax.jit(gradient(masked)),
    }
    expected = ways["masked scan, stock XLA"](*arguments)
    for name, way in ways.items():
        if not np.allclose(way(*arguments), expected, rtol=1e-3, atol=1e-4):
            raise AssertionError(f"{name} differs")
    found = interleaved_samples([partial(way, *arguments) for way in ways.values()], seconds=seconds)
    return dict(zip(ways, found.medians, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bound", type=int, default=1000, help="trips at most")
    parser.add_argument("--share", type=float, default=0.2, help="of the bound, that the loop takes")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0)
    given = vars(parser.parse_args())
    times = measure(**given)
    print(f"jax {jax.__version__}, {given}")
    for name, time in times.items():
        print(f"  {name:26}{time * 1e3:10.2f} ms   ours is {time / times['ours']:.2f} times as fast")


if __name__ == "__main__":
    main()
