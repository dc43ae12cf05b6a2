"""One binary for any batch: how many programs are built, what a size costs, and what it loses.

    python -m benchmarks.any_size
    python -m benchmarks.any_size --sizes 1000 --timed 20,48,100,333,1000

Calls a recurrent network with all batches from 1 on, in random order. Prints the native builds, the time that
a new batch takes beside stock XLA, and the memory of the process on the way. Then the program for any batch
and the one for each of a few batches are timed in turn, and compared by medians.
"""

from __future__ import annotations

import argparse
import resource
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_cocktail
from jax_cocktail_tools.models.measure import interleaved_samples

FORCED = {"force": "cocktail", "compile": "now"}


def lstm(w: Any, u: Any, b: Any, xs: Any) -> Any:
    """The last state of an LSTM. xs: (steps, batch, width)."""

    def step(carry: Any, x: Any) -> Any:
        h, c = carry
        i, f, g, o = jnp.split(x @ w + h @ u + b, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    zero = jnp.zeros((xs.shape[1], u.shape[0]))
    return jax.lax.scan(step, (zero, zero), xs)[0][0]


def arguments(batch: int, steps: int, width: int) -> tuple[Any, ...]:
    random = np.random.default_rng(batch)
    shapes = (width, 4 * width), (width, 4 * width), (4 * width,), (steps, batch, width)
    return tuple(jnp.asarray(random.normal(size=shape) * 0.2, jnp.float32) for shape in shapes)


def called_with_all(sizes: int, steps: int, width: int) -> None:
    """Calls a function with each size once, and tells what that took."""
    ours, stock = jax_cocktail.jit(lstm, options=FORCED), jax.jit(lstm)
    begun, spent = jax_cocktail.cache_info().compiled, {"ours": 0.0, "stock": 0.0}
    for number, batch in enumerate(np.random.default_rng(0).permutation(np.arange(1, sizes + 1)), 1):
        given = arguments(int(batch), steps, width)
        results = []
        for name, function in {"ours": ours, "stock": stock}.items():
            start = time.perf_counter()
            results.append(jax.block_until_ready(function(*given)))
            spent[name] += time.perf_counter() - start
        if not np.allclose(*results, rtol=1e-4, atol=1e-5):
            raise AssertionError(f"batch {batch} differs")
        if number in (3, 10, 30, 100, 300, 1000) or number == sizes:
            built = jax_cocktail.cache_info().compiled - begun
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
            means = ", ".join(f"{name} {seconds / number * 1e3:.0f} ms" for name, seconds in spent.items())
            told = f"{built} builds; first calls {means} on average; peak {peak} MiB"
            print(f"  {number:5} sizes: {told}", flush=True)


def compared(batch: int, steps: int, width: int, seconds: float) -> None:
    """Times the program for any batch beside the one for this batch, and stock XLA."""
    given = arguments(batch, steps, width)
    exact = {**FORCED, "reproducible": True}
    ways = {
        "any batch": jax_cocktail.jit(lstm, options=FORCED),
        "this batch": jax_cocktail.jit(lstm, options=exact),
        "stock XLA": jax.jit(lstm),
    }
    calls = [partial(way, *given) for way in ways.values()]
    for call in calls:
        jax.block_until_ready(call())
    times = dict(zip(ways, interleaved_samples(calls, seconds=seconds).medians, strict=True))
    shown = ", ".join(f"{name} {each * 1e6:.0f} us" for name, each in times.items())
    ratio = times["any batch"] / times["this batch"]
    print(f"  batch {batch:5}: {shown}; any / this {ratio:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", type=int, default=200, help="batches from 1 on")
    parser.add_argument("--timed", default="20,48,100,333,1000", help="batches to time")
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=3.0)
    given = parser.parse_args()
    print(f"jax {jax.__version__}, {given.steps} steps of {given.width} units")
    called_with_all(given.sizes, given.steps, given.width)
    for batch in map(int, given.timed.split(",")):
        compared(batch, given.steps, given.width, given.seconds)


if __name__ == "__main__":
    main()
