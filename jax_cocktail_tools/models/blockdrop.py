"""BlockDrop: a CIFAR ResNet-32 that runs only those of its 15 residual blocks that a given policy selects.

The policy is an input, as in COCKTAILER's benchmark. A single image follows the alternating policy (7 of 15
blocks run). In a batch, some images drop one more, so that an image runs 6.92 blocks on average, as with the
published policies. A block is skipped if no image of the batch selects it.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_cocktail_tools.models.layers import average_pool, convolution, convolve
from jax_cocktail_tools.models.model import Instance, Model, generator, normal

MEAN_BLOCKS = 6.92  # of 15; the alternating policy runs 7


def shortcut(x: Any, channels: int) -> Any:
    """The residual path, with average pooling and zero channels where a group widens."""
    missing = channels - x.shape[-1]
    if missing == 0:
        return x
    return jnp.pad(average_pool(x, 2), ((0, 0), (0, 0), (0, 0), (0, missing)))


def block(first: Any, second: Any, stride: int, x: Any, residual: Any, action: Any) -> Any:
    """Two 3x3 convolutions and the residual, for the images whose action is one."""
    y = convolve(jax.nn.relu(convolve(x, first, stride)), second)
    y = jax.nn.relu(residual + y)
    mask = action[:, None, None, None]
    return y * mask + residual * (1.0 - mask)


def skip(x: Any, residual: Any, action: Any) -> Any:
    """The replacement of a skipped block: its residual."""
    return residual


def blockdrop(images: Any, policy: Any, stem: Any, blocks: Any, w_out: Any, b_out: Any) -> Any:
    """``images`` is (batch, 32, 32, 3), ``policy`` is (batch, 15) of zeros and ones; returns logits."""
    x = jax.nn.relu(convolve(images, stem))
    for number, (first, second) in enumerate(blocks):
        channels = second[0].shape[-1]
        stride = 1 if channels == x.shape[-1] else 2
        residual = shortcut(x, channels)
        action = policy[:, number]
        run = functools.partial(block, first, second, stride)
        x = lax.cond(jnp.sum(action) > 0, run, skip, x, residual, action)
    x = jnp.mean(x, axis=(1, 2))
    return x @ w_out + b_out


def policies(random: np.random.Generator, batch: int, blocks: int) -> np.ndarray:
    """(batch, blocks) of zeros and ones: every second block, thinned to `MEAN_BLOCKS` if rounding permits."""
    policy = np.tile(np.arange(blocks) % 2, (batch, 1)).astype(np.float32)
    running = np.flatnonzero(policy)
    kept = round(len(running) * MEAN_BLOCKS / 7)
    policy.flat[random.choice(running, len(running) - kept, replace=False)] = 0
    return policy


def build(batch: int, small: bool) -> Instance:
    repeats, widths, side = (2, (4, 8, 16), 8) if small else (5, (16, 32, 64), 32)
    random = generator("blockdrop")
    stem = convolution(random, 3, 3, widths[0])
    blocks, channels = [], widths[0]
    for width in widths:
        for _ in range(repeats):
            blocks.append(
                (convolution(random, 3, channels, width), convolution(random, 3, width, width, 0.5))
            )
            channels = width
    policy = policies(random, batch, len(blocks))
    images = jnp.asarray(normal(random, batch, side, side, 3))
    head = (jnp.asarray(normal(random, channels, 10, scale=channels**-0.5)), jnp.zeros(10, jnp.float32))
    return blockdrop, (images, jnp.asarray(policy), stem, tuple(blocks), *head)


MODEL = Model("blockdrop", "BlockDrop, CIFAR ResNet-32, 15 blocks of which 7 run: cond", (1, 64), 5e-5, build)
