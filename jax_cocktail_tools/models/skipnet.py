"""SkipNet: a ResNet-101 in which a small LSTM decides after each block whether the next one runs.

Each gate reads activations that were just computed, so the 32 branches depend on fresh data. A per-block
offset overrides the random gates, so that the stated share of the blocks (22 of 32) runs.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_cocktail_tools.models.layers import convolution, convolve, max_pool
from jax_cocktail_tools.models.lstm import cell, cell_weights
from jax_cocktail_tools.models.model import Instance, Model, generator, normal

EXPANSION = 4


def bottleneck(x: Any, residual: Any, block: Any, stride: int) -> Any:
    """1x1, 3x3, 1x1 convolutions; the stride is on the 3x3 one."""
    reduce, spatial, expand = block
    y = jax.nn.relu(convolve(x, reduce))
    y = jax.nn.relu(convolve(y, spatial, stride))
    return jax.nn.relu(convolve(y, expand) + residual)


def gate(x: Any, h: Any, c: Any, embedding: Any, offset: Any, controller: Any) -> tuple[Any, Any, Any]:
    """The mask (batch, 1) for the next block, and the controller's new state."""
    weights, w_out, b_out = controller
    w_embed, b_embed = embedding
    h, c = cell(jnp.mean(x, axis=(1, 2)) @ w_embed + b_embed, h, c, weights)
    probability = jax.nn.sigmoid(h @ w_out + b_out + offset)
    return (probability > 0.5).astype(x.dtype), h, c


def guarded(mask: Any, x: Any, residual: Any, block: Any, stride: int) -> Any:
    """The block where the mask selects it, else its residual."""

    def run(x: Any, residual: Any, mask: Any, block: Any) -> Any:
        weight = mask[:, :, None, None]
        return weight * bottleneck(x, residual, block, stride) + (1.0 - weight) * residual

    def skip(x: Any, residual: Any, mask: Any, block: Any) -> Any:
        return residual

    return lax.cond(jnp.sum(mask) > 0, run, skip, x, residual, mask, block)


def skipnet(images: Any, offsets: Any, params: Any) -> Any:
    """``images`` is (batch, 224, 224, 3), ``offsets`` has one number per gate; returns logits."""
    x = max_pool(jax.nn.relu(convolve(images, params["stem"], 2)))
    size = params["controller"][0][1].shape[0]
    h = c = jnp.zeros((x.shape[0], size), x.dtype)
    mask, number = None, 0
    for index, group in enumerate(params["groups"]):
        stride = 1 if index == 0 else 2
        residual = convolve(x, group["downsample"], stride)
        for block, embedding in zip(group["blocks"], group["gates"], strict=True):
            run = bottleneck if mask is None else functools.partial(guarded, mask)
            x = run(x, residual, block, stride)
            if embedding is not None:
                mask, h, c = gate(x, h, c, embedding, offsets[number], params["controller"])
                number += 1
            residual, stride = x, 1
    w_out, b_out = params["head"]
    return jnp.mean(x, axis=(1, 2)) @ w_out + b_out


def weights(
    random: np.random.Generator, repeats: tuple[int, ...], width: int, embed: int, classes: int
) -> Any:
    """All parameters; the last block has no gate, since no block follows it."""
    groups, channels = [], width
    for index, count in enumerate(repeats):
        inner = width * 2**index
        outer = inner * EXPANSION
        group: dict[str, Any] = {
            "downsample": convolution(random, 1, channels, outer, 0.7),
            "blocks": (),
            "gates": (),
        }
        for _ in range(count):
            block = (
                convolution(random, 1, channels, inner),
                convolution(random, 3, inner, inner),
                convolution(random, 1, inner, outer, 0.2),
            )
            embedding = (
                jnp.asarray(normal(random, outer, embed, scale=outer**-0.5)),
                jnp.zeros(embed, jnp.float32),
            )
            group["blocks"] += (block,)
            group["gates"] += (embedding,)
            channels = outer
        groups.append(group)
    groups[-1]["gates"] = (*groups[-1]["gates"][:-1], None)
    controller = (
        cell_weights(random, embed, embed),
        jnp.asarray(normal(random, embed, 1, scale=embed**-0.5)),
        jnp.zeros(1, jnp.float32),
    )
    head = (
        jnp.asarray(normal(random, channels, classes, scale=channels**-0.5)),
        jnp.zeros(classes, jnp.float32),
    )
    stem = convolution(random, 7, 3, width)
    return {"stem": stem, "groups": tuple(groups), "controller": controller, "head": head}


def gate_offsets(gates: int, running: int) -> np.ndarray:
    """+6 for blocks that run and -6 for the others, evenly spread. A gate without offset is within +-3.5."""
    run = np.diff(np.arange(gates + 1) * running // gates)
    return np.where(run > 0, 6.0, -6.0).astype(np.float32)


def build(batch: int, small: bool) -> Instance:
    repeats, width, side, classes = ((2, 2, 2, 1), 4, 32, 10) if small else ((3, 4, 23, 3), 64, 224, 1000)
    random = generator("skipnet")
    params = weights(random, repeats, width, 10, classes)
    gates = sum(repeats) - 1
    images = jnp.asarray(normal(random, batch, side, side, 3))
    return skipnet, (images, jnp.asarray(gate_offsets(gates, gates * 22 // 32)), params)


MODEL = Model("skipnet", "SkipNet, ResNet-101, 32 gated blocks of which 22 run: cond", (1,), 1e-4, build)
