"""Stacks of LSTM and GRU layers. Each layer scans over time; the result is all states of the last one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.peers import onnx
from benchmarks.peers.rows import CORES, Row, Run, library, normal

# layers, units, steps, batch
LSTMS = ((10, 256, 64, 1), (10, 256, 64, 64), (2, 512, 100, 1), (2, 128, 200, 8))
Weights = list[tuple[np.ndarray, np.ndarray, np.ndarray]]  # of each layer: input, recurrent, bias


def lstm(x: Any, weights: Any) -> Any:
    """Gates in the order input, output, forget, candidate, as in ONNX."""
    for w, r, b in weights:

        def step(state: Any, row: Any, w: Any = w, r: Any = r, b: Any = b) -> tuple[Any, Any]:
            h, c = state
            i, o, f, g = jnp.split(row @ w + h @ r + b, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((x.shape[1], r.shape[0]), x.dtype)
        _, x = lax.scan(step, (zeros, zeros), x)
    return x


def gru(x: Any, weights: Any) -> Any:
    """Gates in the order update, reset, candidate, as in ONNX; the reset gate comes before the product."""
    for w, r, b in weights:
        units = r.shape[0]

        def step(h: Any, row: Any, w: Any = w, r: Any = r, b: Any = b, units: int = units) -> tuple[Any, Any]:
            given = row @ w + b
            gates = jax.nn.sigmoid(given[:, : 2 * units] + h @ r[:, : 2 * units])
            z, reset = gates[:, :units], gates[:, units:]
            candidate = jnp.tanh(given[:, 2 * units :] + (reset * h) @ r[:, 2 * units :])
            h = (1 - z) * candidate + z * h
            return h, h

        _, x = lax.scan(step, jnp.zeros((x.shape[1], units), x.dtype), x)
    return x


def _weights(random: np.random.Generator, layers: int, units: int, gates: int) -> Weights:
    wide, scale = gates * units, units**-0.5
    made = partial(normal, random, units, wide, scale=scale)
    return [(made(), made(), normal(random, wide, scale=0.1)) for _ in range(layers)]


def _graph(kind: str, x: np.ndarray, weights: Weights) -> bytes:
    """The ONNX graph of a stack."""
    make = library("onnx").helper.make_node
    nodes, given, last = [], {"one": np.array([1])}, "x"
    for number, (w, r, b) in enumerate(weights):
        names = [f"{name}{number}" for name in "wrb"]
        bias = np.concatenate([b, np.zeros_like(b)])[None]
        given |= dict(zip(names, (w.T[None].copy(), r.T[None].copy(), bias), strict=True))
        nodes.append(make(kind, [last, *names], [f"y{number}"], hidden_size=r.shape[0]))
        nodes.append(make("Squeeze", [f"y{number}", "one"], [f"x{number}"]))
        last = f"x{number}"
    return onnx.model(nodes, {"x": x}, last, x.shape, given)


def _torch(x: np.ndarray, weights: Weights) -> Run:
    """`nn.LSTM` of PyTorch, whose gates have the order input, forget, candidate, output."""
    torch = library("torch")
    torch.set_num_threads(CORES)
    net = torch.nn.LSTM(x.shape[2], weights[0][1].shape[0], len(weights))
    with torch.no_grad():
        for number, (w, r, b) in enumerate(weights):
            for name, value in (("weight_ih", w.T), ("weight_hh", r.T), ("bias_ih", b), ("bias_hh", 0 * b)):
                i, o, f, g = np.split(value, 4)
                getattr(net, f"{name}_l{number}").copy_(torch.from_numpy(np.concatenate([i, f, g, o])))
    given = torch.from_numpy(x)

    def run() -> Any:
        with torch.inference_mode():
            return net(given)[0].numpy()

    return run


def row(kind: str, sizes: tuple[int, int, int, int], seed: int) -> Row:
    """A stack as a row. `kind`: LSTM or GRU."""
    layers, units, steps, batch = sizes
    random = np.random.default_rng(seed)
    weights = _weights(random, layers, units, 4 if kind == "LSTM" else 3)
    x = normal(random, steps, batch, units)
    peers: dict[str, Callable[[], Run]] = onnx.runs(partial(_graph, kind, x, weights), {"x": x})
    if kind == "LSTM":
        peers["PyTorch"] = partial(_torch, x, weights)
    name = f"{kind} {layers}x{units}, {steps} steps, batch {batch}"
    return Row(name, lstm if kind == "LSTM" else gru, jax.device_put((x, weights)), peers)


def rows(seed: int) -> Iterator[Row]:
    """The named sizes, then sizes that the seed draws."""
    for sizes in LSTMS:
        yield row("LSTM", sizes, seed)
    random = np.random.default_rng(seed)
    for kind in ("LSTM", "GRU"):
        for batch in (1, 4, 16, 64):
            units, layers, steps = (int(random.integers(*ends)) for ends in ((64, 400), (1, 5), (30, 150)))
            yield row(kind, (layers, units, steps, batch), seed)
