"""Programs over several devices of the host: ours beside stock XLA, and beside one device with its cores.

    python -m benchmarks.several_devices
    python -m benchmarks.several_devices --devices 8 --rounds 3 --only training

`alone` is the work of one device (its shard, without communication) in a process with one device, on the
cores of one: all of them at once should take no longer. The processes run in turn, and so do the programs in
them; medians count. The results of all ways are checked first. A row is an entry of `ROWS`. With `--times 16`
each device has a batch that is so many times as large.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_cocktail
from jax_cocktail_tools.models.measure import interleaved_samples

AXIS = "d"
Array = jax.Array


@dataclass(frozen=True, slots=True)
class Row:
    """A program.

    Attributes:
      name: its name.
      program: the function of one device, given the name of the mesh's axis; None for a device that is alone.
      arguments: those for so many devices.
      inputs, outputs: how they are divided.
      mapped: under `shard_map`. Otherwise XLA divides the program as its arguments are.
    """

    name: str
    program: Callable[[str | None], Callable[..., Any]]
    arguments: Callable[[int], tuple[Any, ...]]
    inputs: tuple[Any, ...]
    outputs: Any
    mapped: bool = True


def normal(seed: int, *shape: int, scale: float = 1.0) -> Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape) * scale, jnp.float32)


def mean(values: Any, axis: str | None) -> Any:
    return values if axis is None else lax.pmean(values, axis)


# ---- programs ---------------------------------------------------------------------------------------------


def states(w: Any, xs: Array) -> Array:
    """Those of a gated recurrent network."""

    def step(h: Array, x: Array) -> Any:
        gate, new = jnp.split(x + h @ w, 2, -1)
        h = h + jax.nn.sigmoid(gate) * (jnp.tanh(new) - h)
        return h, h

    return lax.scan(step, jnp.zeros((xs.shape[1], w.shape[0]), w.dtype), xs)[1]


def training(axis: str | None) -> Callable[..., Any]:
    """A step of training with a part of the batch on each device."""

    def step(w: Array, xs: Array, ys: Array) -> Any:
        value, gradient = jax.value_and_grad(lambda w: ((states(w, xs)[-1] - ys) ** 2).mean())(w)
        return w - 0.1 * mean(gradient, axis), mean(value, axis)

    return step


def rollouts(axis: str | None) -> Callable[..., Any]:
    """Proximal policy optimisation: rollouts and advantages on each device, steps with mean gradients."""

    def logits(w: Array, state: Array) -> Array:
        return jax.nn.log_softmax(jnp.tanh(state @ w))

    def picked(table: Array, action: Array) -> Array:
        return jnp.take_along_axis(table, action[..., None], -1)[..., 0]

    def loss(w: Array, seen: Array, actions: Array, old: Array, gains: Array) -> Array:
        ratio = jnp.exp(picked(logits(w, seen), actions) - old)
        return -jnp.minimum(ratio * gains, jnp.clip(ratio, 0.8, 1.2) * gains).mean()

    def act(w: Array, state: Array, noise: Array) -> Any:
        table = logits(w, state)
        action = jnp.argmax(table + noise, -1)
        following = state * 0.9 + 0.1 * jax.nn.one_hot(action, state.shape[-1])
        return following, (state, action, picked(table, action), -jnp.abs(following).sum(-1))

    def optimised(w: Array, state: Array, noise: Array) -> Any:
        _, (seen, actions, old, rewards) = lax.scan(partial(act, w), state, noise)
        _, gains = lax.scan(lambda g, r: (r + 0.95 * g,) * 2, rewards[0] * 0, rewards, reverse=True)

        def update(w: Array, _: None) -> Any:
            value, gradient = jax.value_and_grad(loss)(w, seen, actions, old, gains - gains.mean())
            return w - 0.01 * mean(gradient, axis), mean(value, axis)

        return lax.scan(update, w, None, length=4)

    return optimised


def independent(_: str | None) -> Callable[..., Any]:
    """A scan over a batch that is divided, without communication."""
    return lambda w, xs: states(w, xs).sum(-1)


def gradient(_: str | None) -> Callable[..., Any]:
    """Of weights that all devices have, by a batch that is divided."""
    return lambda w, xs: jax.grad(lambda w: (states(w, xs) ** 2).mean())(w)


def chains(_: str | None) -> Callable[..., Any]:
    """Each takes its own number of steps."""

    def chain(w: Array, x: Array, trips: Array) -> Array:
        return lax.while_loop(lambda c: c[1] < trips, lambda c: (jnp.sin(c[0] @ w), c[1] + 1), (x, 0))[0]

    return jax.vmap(chain, (None, 0, 0))


def decoded(_: str | None) -> Callable[..., Any]:
    """Attention to the steps before, for each head alone."""

    def decode(w: Array, xs: Array) -> Array:
        def step(cache: Array, i: Array) -> Any:
            x = jnp.tanh(xs[i] @ w)
            cache = cache.at[:, i].set(x)
            scores = jnp.where(jnp.arange(xs.shape[0]) <= i, jnp.einsum("hd,htd->ht", x, cache), -1e9)
            return cache, jnp.einsum("ht,htd->hd", jax.nn.softmax(scores), cache)

        cache = jnp.zeros((xs.shape[1], xs.shape[0], xs.shape[2]))
        return lax.scan(step, cache, jnp.arange(xs.shape[0]))[1]

    return decode


def batch(n: int, width: int = 64) -> tuple[Any, ...]:
    return normal(0, width, 2 * width, scale=0.1), normal(1, 200, 8 * n, 2 * width)


ROWS = (
    Row(
        "training",
        training,
        lambda n: (normal(0, 64, 128, scale=0.1), normal(1, 100, 4 * n, 128), normal(2, 4 * n, 64)),
        (P(), P(None, AXIS), P(AXIS)),
        (P(), P()),
    ),
    Row(
        "rollouts",
        rollouts,
        lambda n: (normal(0, 16, 16, scale=0.3), normal(1, 32 * n, 16), normal(2, 64, 32 * n, 16)),
        (P(), P(AXIS), P(None, AXIS)),
        (P(), P()),
    ),
    Row(
        "scan",
        independent,
        batch,
        (P(), P(None, AXIS)),
        P(None, AXIS),
    ),
    Row("scan, sharded", independent, batch, (P(), P(None, AXIS)), P(None, AXIS), mapped=False),
    Row("gradient, sharded", gradient, batch, (P(), P(None, AXIS)), P(), mapped=False),
    Row(
        "chains, sharded",
        chains,
        lambda n: (normal(0, 64, 64, scale=0.1), normal(1, 32 * n, 64), 60 * (1 + jnp.arange(32 * n) % 3)),
        (P(), P(AXIS), P(AXIS)),
        P(AXIS),
        mapped=False,
    ),
    Row(
        "decoder, sharded",
        decoded,
        lambda n: (normal(0, 64, 64, scale=0.1), normal(1, 100, 16 * n, 64)),
        (P(), P(None, AXIS)),
        P(None, AXIS),
        mapped=False,
    ),
)


# ---- one process ------------------------------------------------------------------------------------------


def ours(function: Any) -> Any:
    return jax_cocktail.jit(function, options={"force": "cocktail", "compile": "now"})


def placed(row: Row, devices: int, times: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A row's function on so many devices, and its arguments where they belong; on one, it is alone."""
    arguments = row.arguments(devices * times)
    if devices == 1:
        return row.program(None), arguments
    mesh = Mesh(np.array(jax.devices()[:devices]), (AXIS,))
    places = [NamedSharding(mesh, spec) for spec in row.inputs]
    arguments = tuple(map(jax.device_put, arguments, places))
    if not row.mapped:
        return row.program(None), arguments
    specs = {"in_specs": row.inputs, "out_specs": row.outputs}
    return jax.shard_map(row.program(AXIS), mesh=mesh, check_vma=False, **specs), arguments


def checked(row: Row, devices: int, times: int) -> tuple[dict[str, Callable[[], Any]], str]:
    """The ways to run a row, whose results agree, and what our program has captured."""
    function, arguments = placed(row, devices, times)
    ways = {"stock": jax.jit(function), "ours": ours(function)}
    results = {name: jax.tree.leaves(way(*arguments)) for name, way in ways.items()}
    for mine, stock in zip(results["ours"], results["stock"], strict=True):
        np.testing.assert_allclose(mine, stock, rtol=1e-3, atol=1e-4, err_msg=f"{row.name} differs")
    whole = jax.tree.leaves(jax.jit(row.program(None))(*row.arguments(devices * times)))
    if row.name != "rollouts":  # whose advantages have the mean of each device
        for mine, stock in zip(results["ours"], whole, strict=True):
            np.testing.assert_allclose(mine, stock, rtol=1e-3, atol=1e-4, err_msg=f"{row.name} is another")
    report = jax_cocktail.explain(ways["ours"])(*arguments)
    reports = (report, *report.inner)
    captured = sum(len(each.captured) for each in reports), sum(len(each.left) for each in reports)
    return {name: partial(way, *arguments) for name, way in ways.items()}, "{}/{}".format(*captured)


def serve(devices: int, names: list[str], seconds: float, times: int) -> None:
    """A process: measures all rows each time a line comes, and answers with a line."""
    rows = {row.name: checked(row, devices, times) for row in ROWS if row.name in names}
    print(json.dumps({name: captured for name, (_, captured) in rows.items()}), flush=True)
    for _ in sys.stdin:
        found = {}
        for name, (ways, _) in rows.items():
            timed = interleaved_samples([*ways.values()], seconds=seconds)
            found[name] = dict(zip(ways, timed.medians, strict=True))
        print(json.dumps(found), flush=True)


# ---- all of them ------------------------------------------------------------------------------------------


class Process:
    """A process with so many devices on these cores."""

    def __init__(
        self, devices: int, cores: list[int], names: list[str], seconds: float, times: int
    ) -> None:
        flags = f"--xla_force_host_platform_device_count={devices}"
        command = ["taskset", "-c", ",".join(map(str, cores)), sys.executable, "-m"]
        command += ["benchmarks.several_devices", "--serve", str(devices), "--seconds", str(seconds)]
        command += ["--times", str(times), "--only", *names]
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        )
        self.captured: dict[str, str] = self.read()

    def read(self) -> Any:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"the process with {self._child.args} ended")

    def measure(self) -> Any:
        assert self._child.stdin is not None
        self._child.stdin.write("go\n")
        self._child.stdin.flush()
        return self.read()


def measure(
    devices: int, names: list[str], rounds: int, seconds: float, times: int
) -> list[tuple[str, ...]]:
    """The lines of the table."""
    cores = sorted(os.sched_getaffinity(0))
    share = cores[: max(len(cores) // devices, 1)]
    together, alone = (
        Process(n, on, names, seconds, times) for n, on in ((devices, cores), (1, share))
    )
    found = [(together.measure(), alone.measure()) for _ in range(rounds)]

    def middle(which: int, name: str, way: str) -> float:
        return median(each[which][name][way] for each in found)

    lines = []
    for name in names:
        stock, mine = middle(0, name, "stock"), middle(0, name, "ours")
        one, one_stock = middle(1, name, "ours"), middle(1, name, "stock")
        taken = (f"{1e3 * each:.3f}" for each in (stock, mine, one_stock, one))
        ratios = f"{stock / mine:.2f}", f"{mine / one:.2f}"
        lines.append((name, *taken, *ratios, together.captured[name], alone.captured[name]))
    return lines


TIMES = ("stock ms", "ours ms", "stock, alone", "ours, alone", "stock/ours", "ours/alone")
HEADS = ("row", *TIMES, "captured/left", "alone")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each process")
    parser.add_argument("--seconds", type=float, default=1.0, help="for a row in a turn")
    parser.add_argument("--times", type=int, default=1, help="larger batches")
    parser.add_argument("--only", nargs="+", choices=[row.name for row in ROWS], help="these rows")
    parser.add_argument("--serve", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    names = given.only or [row.name for row in ROWS]
    if given.serve:
        serve(given.serve, names, given.seconds, given.times)
        return
    lines = measure(given.devices, names, given.rounds, given.seconds, given.times)
    version, cores = jax_cocktail.__version__, len(os.sched_getaffinity(0))
    print(f"jax {jax.__version__}, jax_cocktail {version}, {given.devices} devices on {cores} cores")
    for line in (HEADS, *lines):
        print("  " + "".join(f"{each:>18}" for each in line))


if __name__ == "__main__":
    main()
