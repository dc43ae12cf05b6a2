"""Layers of the two branching networks: NHWC convolutions with folded batch normalisation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_cocktail_tools.models.model import normal


def convolve(x: Any, layer: Any, stride: int = 1) -> Any:
    """Convolution with torch's padding (kernel // 2 on both sides), then the affine form of batch norm."""
    kernel, scale, shift = layer
    pad = kernel.shape[0] // 2
    y = lax.conv_general_dilated(
        x, kernel, (stride, stride), ((pad, pad), (pad, pad)), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return y * scale + shift


def average_pool(x: Any, size: int) -> Any:
    """Non-overlapping average pooling."""
    window = (1, size, size, 1)
    total = lax.reduce_window(x, jnp.zeros((), x.dtype), lax.add, window, window, "VALID")
    return total * (1.0 / size**2)


def max_pool(x: Any) -> Any:
    """3x3 max pooling with stride 2 and one row of padding."""
    low = jnp.array(-jnp.inf, x.dtype)
    return lax.reduce_window(x, low, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0)))


def convolution(random: np.random.Generator, size: int, inputs: int, outputs: int, gain: float = 1.0) -> Any:
    """Weights of `convolve`: a He-initialised kernel, and a scale of about ``gain`` with a small shift."""
    kernel = normal(random, size, size, inputs, outputs, scale=(2.0 / (size * size * inputs)) ** 0.5)
    scale = gain * (1.0 + normal(random, outputs, scale=0.1))
    shift = normal(random, outputs, scale=0.1)
    return jax.tree.map(jnp.asarray, (kernel, scale, shift))
