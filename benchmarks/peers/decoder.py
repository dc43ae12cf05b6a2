"""Greedy decoding: a layer of attention with a cache of keys and values, a feed-forward layer, an argmax."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.peers import onnx
from benchmarks.peers.rows import Row, Run, library, normal

Weights = dict[str, np.ndarray]


def decode(token: Any, weights: Any, steps: int) -> Any:
    """The logits of the last of so many tokens that follow a token. One sequence."""
    table = weights["table"]
    width = table.shape[1]

    def step(state: Any, at: Any) -> tuple[Any, None]:
        token, keys, values, _ = state
        x = table[token]
        keys = lax.dynamic_update_index_in_dim(keys, x @ weights["k"], at, 0)
        values = lax.dynamic_update_index_in_dim(values, x @ weights["v"], at, 0)
        scores = keys @ (x @ weights["q"]) * width**-0.5
        chosen = jax.nn.softmax(jnp.where(jnp.arange(steps) <= at, scores, -1e9))
        x = x + (chosen @ values) @ weights["o"]
        x = x + jax.nn.relu(x @ weights["up"]) @ weights["down"]
        logits = x @ weights["out"]
        return (jnp.argmax(logits), keys, values, logits), None

    cache = jnp.zeros((steps, width))
    state = token, cache, cache, jnp.zeros(weights["out"].shape[1])
    return lax.scan(step, state, jnp.arange(steps))[0][3]


def _weights(random: np.random.Generator, width: int, words: int) -> Weights:
    scale = width**-0.5
    made = {name: normal(random, width, width, scale=scale) for name in "qkvo"}
    made["up"] = normal(random, width, 4 * width, scale=scale)
    made["down"] = normal(random, 4 * width, width, scale=scale / 2)
    return made | {"table": normal(random, words, width), "out": normal(random, width, words, scale=scale)}


def _graph(token: np.ndarray, weights: Weights, steps: int) -> bytes:
    """The loop as an ONNX graph."""
    helper = library("onnx").helper
    node, value, types = helper.make_node, helper.make_tensor_value_info, library("onnx").TensorProto
    words, width = weights["table"].shape
    nodes = [
        node("Gather", ["table", "token"], ["x"]),
        node("Reshape", ["at", "place_shape"], ["place"]),
        node("LessOrEqual", ["places", "at"], ["seen"]),
        *(node("MatMul", ["x", name], [f"x_{name}"]) for name in "qkv"),
    ]
    for name, cache in (("k", "keys"), ("v", "values")):
        nodes.append(node("Unsqueeze", [f"x_{name}", "zero"], [f"row_{name}"]))
        nodes.append(node("ScatterND", [cache, "place", f"row_{name}"], [f"{cache}_out"]))
    nodes += [
        node("MatMul", ["keys_out", "x_q"], ["products"]),
        node("Mul", ["products", "scale"], ["scores"]),
        node("Where", ["seen", "scores", "never"], ["masked"]),
        node("Softmax", ["masked"], ["chosen"], axis=-1),
        node("MatMul", ["chosen", "values_out"], ["mixed"]),
        node("MatMul", ["mixed", "o"], ["attended"]),
        node("Add", ["x", "attended"], ["first"]),
        node("MatMul", ["first", "up"], ["wide"]),
        node("Relu", ["wide"], ["positive"]),
        node("MatMul", ["positive", "down"], ["narrow"]),
        node("Add", ["first", "narrow"], ["last"]),
        node("MatMul", ["last", "out"], ["logits_out"]),
        node("ArgMax", ["logits_out"], ["token_out"], axis=0, keepdims=0),
        node("Identity", ["going"], ["going_out"]),
    ]
    carried = {"token": (types.INT64, []), **dict.fromkeys(("keys", "values"), (types.FLOAT, [steps, width]))}
    carried["logits"] = types.FLOAT, [words]
    inputs = [value("at", types.INT64, []), value("going", types.BOOL, [])]
    inputs += [value(name, *facts) for name, facts in carried.items()]
    outputs = [value("going_out", types.BOOL, [])]
    outputs += [value(f"{name}_out", *facts) for name, facts in carried.items()]
    body = helper.make_graph(nodes, "step", inputs, outputs)
    ends = [f"{name}_end" for name in ("token", "keys", "values")]
    begins = ["steps", "true", "first_token", "empty", "empty", "no_logits"]
    loop = node("Loop", begins, [*ends, "result"], body=body)
    numbers = {
        "steps": np.array(steps),
        "true": np.array(True),
        "empty": np.zeros((steps, width), np.float32),
        "no_logits": np.zeros(words, np.float32),
        "places": np.arange(steps),
        "place_shape": np.array([1, 1]),
        "zero": np.array([0]),
        "scale": np.array(width**-0.5, np.float32),
        "never": np.array(-1e9, np.float32),
    }
    return onnx.model([loop], {"first_token": token}, "result", (words,), {**weights, **numbers})


def rows(seed: int) -> Iterator[Row]:
    """Three decoders of sizes from a seed."""
    random = np.random.default_rng(seed)
    for _ in range(3):
        width, words, steps = (int(random.integers(*ends)) for ends in ((48, 320), (200, 2000), (24, 120)))
        weights, token = _weights(random, width, words), np.array(1)
        peers = onnx.runs(partial(_graph, token, weights, steps), {"first_token": token})
        peers["numba"] = partial(_numba, token, weights, steps)
        name = f"decoder, {width} wide, {words} words, {steps} tokens"
        given = jax.device_put((np.int32(1), weights))
        yield Row(name, partial(decode, steps=steps), given, peers, tolerance=1e-3)


def _numba(token: np.ndarray, weights: Weights, steps: int) -> Run:
    ordered = (weights[name] for name in ("table", "q", "k", "v", "o", "up", "down", "out"))
    return partial(library("benchmarks.peers.numba_loops").decode, int(token), steps, *ordered)
