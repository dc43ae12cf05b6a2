"""Programs whose arguments several devices divide: ours, beside stock XLA.

    python -m benchmarks.several_devices
    python -m benchmarks.several_devices --devices 4 --width 256 --steps 500

The devices are those that XLA makes of one CPU, and share its cores. Beside both: the same under
`jax.shard_map`, and a device's part of the work on one device alone, with as many cores as a device has. All
results agree. The ways run in turn; medians count.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_cocktail
from jax_cocktail_tools.models.measure import interleaved_samples

FORCED = {"force": "cocktail", "compile": "now"}
BATCH, HEADS = P(None, "d"), P("d")


def recurrent(w: Any, xs: Any) -> Any:
    return lax.scan(lambda h, x: (jnp.tanh(h @ w + x), h.sum(-1)), xs[0] * 0, xs)[1]


def gradient(w: Any, xs: Any) -> Any:
    return jax.grad(lambda w: (recurrent(w, xs) ** 2).mean())(w)


def chains(w: Any, xs: Any) -> Any:
    """Each takes its own number of steps."""

    def chain(x: Any, trips: Any) -> Any:
        return lax.while_loop(lambda c: c[1] < trips, lambda c: (jnp.sin(c[0] @ w), c[1] + 1), (x, 0))[0]

    trips = xs.shape[0] * (1 + jnp.arange(xs.shape[1]) % 3) // 3
    return jax.vmap(chain)(xs[0], trips)


def decoded(w: Any, xs: Any) -> Any:
    """Attention to the steps before, for each head alone."""

    def step(cache: Any, i: Any) -> Any:
        x = jnp.tanh(xs[i] @ w)
        cache = cache.at[:, i].set(x)
        scores = jnp.where(jnp.arange(xs.shape[0]) <= i, jnp.einsum("hd,htd->ht", x, cache), -1e9)
        return cache, jnp.einsum("ht,htd->hd", jax.nn.softmax(scores), cache)

    cache = jnp.zeros((xs.shape[1], xs.shape[0], xs.shape[2]))
    return lax.scan(step, cache, jnp.arange(xs.shape[0]))[1]


PROGRAMS: Mapping[str, tuple[Callable[..., Any], P]] = {
    "recurrent": (recurrent, BATCH),
    "gradient": (gradient, P()),
    "chains": (chains, HEADS),
    "decoder": (decoded, BATCH),
}


def measure(name: str, steps: int, batch: int, width: int, seconds: float) -> dict[str, float]:
    """Median seconds of a call, each way."""
    function, results = PROGRAMS[name]
    mesh = Mesh(np.array(jax.devices()), ("d",))
    random = np.random.default_rng(0)
    w = random.normal(size=(width, width)).astype(np.float32) / np.float32(width)
    xs = random.normal(size=(steps, batch * mesh.size, width)).astype(np.float32)
    whole = jax.device_put(w, NamedSharding(mesh, P())), jax.device_put(xs, NamedSharding(mesh, BATCH))
    alone = jax.device_put(w), jax.device_put(xs[:, :batch])

    def part(w: Any, xs: Any) -> Any:
        found = function(w, xs)
        return lax.pmean(found, "d") if results == P() else found

    mapped = jax.shard_map(part, mesh=mesh, in_specs=(P(), BATCH), out_specs=results, check_vma=False)
    cores = max(len(os.sched_getaffinity(0)) // mesh.size, 1)
    ours = partial(jax_cocktail.jit, options=FORCED)
    ways = {
        "ours": (ours(function), whole),
        "stock XLA": (jax.jit(function), whole),
        "ours under shard_map": (ours(mapped), whole),
        "ours, a part on one device": (jax_cocktail.jit(function, options={**FORCED, "units": cores}), alone),
    }
    report = jax_cocktail.explain(ways["ours"][0])(*whole)
    if report.left or not report.captured:
        raise AssertionError(f"{name}: stock XLA runs {report.left}")
    expected = ways["stock XLA"][0](*whole)
    for way in ("ours", *(["ours under shard_map"] if name != "chains" else [])):
        if not np.allclose(ways[way][0](*whole), expected, rtol=1e-3, atol=1e-4):
            raise AssertionError(f"{name}: {way} differs")
    runs = [partial(way, *arguments) for way, arguments in ways.values()]
    return dict(zip(ways, interleaved_samples(runs, seconds=seconds).medians, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16, help="of each device")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=10.0)
    given = vars(parser.parse_args())
    devices = given.pop("devices")
    if jax.device_count() != devices:  # JAX reads it once
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
        command = [sys.executable, "-m", "benchmarks.several_devices", *sys.argv[1:]]
        sys.exit(subprocess.run(command, env={**os.environ, "XLA_FLAGS": flags}).returncode)
    print(f"jax {jax.__version__}, {devices} devices, {given}")
    for name in PROGRAMS:
        times = measure(name, **given)
        print(name)
        for way, time in times.items():
            print(f"  {way:28}{time * 1e3:10.3f} ms   ours takes {times['ours'] / time:5.2f} times as long")


if __name__ == "__main__":
    main()
