"""The patterns of the census: functions as users write them, and their operands.

They are what AStitch (Zheng et al., ASPLOS'22, section 2) stitches: reductions beside element-wise operators,
softmax and normalisations, their gradients, and many small arrays. Each has full sizes, which no cache holds,
and small ones for tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

EPSILON = 1e-5
PARAMETERS = 40  # arrays that the optimiser updates
Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Array:
    """An operand. `values`: "normal", "positive", or "labels" below `below`."""

    full: tuple[int, ...]
    small: tuple[int, ...]
    values: str = "normal"
    below: tuple[int, int] = (0, 0)

    def make(self, rng: np.random.Generator, small: bool) -> np.ndarray[Any, Any]:
        shape = self.small if small else self.full
        if self.values == "labels":
            return rng.integers(0, self.below[small], shape).astype(np.int32)
        array = rng.standard_normal(shape, np.float32)
        return np.abs(array) + np.float32(0.1) if self.values == "positive" else array


@dataclass(frozen=True, slots=True)
class Pattern:
    """A function and its operands."""

    name: str
    function: Function
    arrays: tuple[Any, ...]

    def operands(self, small: bool = False) -> tuple[Any, ...]:
        """Values, the same in every run."""
        rng = np.random.default_rng(7)
        is_array = lambda leaf: isinstance(leaf, Array)  # noqa: E731
        return jax.tree.map(lambda array: array.make(rng, small), self.arrays, is_leaf=is_array)


def in_loop(function: Function, trips: int) -> Function:
    """The pattern as the body of a loop: an operand of each trip depends on a result of the one before."""

    def looped(*operands: Any) -> Any:
        leaves, tree = jax.tree.flatten(operands)
        moved = next(n for n, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.inexact))

        def results(array: Any) -> Any:
            return function(*jax.tree.unflatten(tree, [*leaves[:moved], array, *leaves[moved + 1 :]]))

        def step(_: Any, carry: Any) -> Any:
            array, _ = carry
            found = results(array)
            first = jnp.ravel(jax.tree.leaves(found)[0])[0].astype(array.dtype)
            return array + 1e-6 * first, found

        shapes = jax.eval_shape(results, leaves[moved])
        empty = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
        return lax.fori_loop(0, trips, step, (leaves[moved], empty))[1]

    return looped


def softmax(x: Any) -> Any:
    return jax.nn.softmax(x, axis=-1)


def _layer_norm(x: Any, scale: Any, shift: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + EPSILON) * scale + shift


def layer_norm_backward(x: Any, scale: Any, shift: Any, cotangent: Any) -> Any:
    """Gradients by `x`, `scale` and `shift`."""
    return jax.vjp(_layer_norm, x, scale, shift)[1](cotangent)


def rms_norm_backward(x: Any, scale: Any, cotangent: Any) -> Any:
    def forward(x: Any, scale: Any) -> Any:
        return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + EPSILON) * scale

    return jax.vjp(forward, x, scale)[1](cotangent)


def batch_norm(x: Any, scale: Any, shift: Any) -> Any:
    """NHWC, with the statistics of the batch."""
    mean = x.mean((0, 1, 2))
    variance = jnp.square(x).mean((0, 1, 2)) - jnp.square(mean)
    return (x - mean) * lax.rsqrt(variance + EPSILON) * scale + shift, mean, variance


def batch_norm_backward(x: Any, scale: Any, shift: Any, cotangent: Any) -> Any:
    return jax.vjp(lambda *operands: batch_norm(*operands)[0], x, scale, shift)[1](cotangent)


def group_norm(x: Any, scale: Any, shift: Any) -> Any:
    """NHWC, channels in 32 groups."""
    groups = x.reshape(*x.shape[:-1], 32, -1)
    mean = groups.mean((1, 2, 4), keepdims=True)
    variance = jnp.square(groups - mean).mean((1, 2, 4), keepdims=True)
    return ((groups - mean) * lax.rsqrt(variance + EPSILON)).reshape(x.shape) * scale + shift


def cross_entropy(logits: Any, labels: Any) -> Any:
    """The loss and its gradient."""

    def loss(logits: Any) -> Any:
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=-1)
        return -chosen.mean()

    return jax.value_and_grad(loss)(logits)


def layer_norm_statistics(x: Any, scale: Any, shift: Any) -> Any:
    """With the mean and the inverse deviation, as a training step saves them."""
    mean = x.mean(-1)
    inverse = lax.rsqrt(jnp.square(x - mean[:, None]).mean(-1) + EPSILON)
    return (x - mean[:, None]) * inverse[:, None] * scale + shift, mean, inverse


def quantise(x: Any) -> Any:
    """Rows to int8 by their largest element."""
    unit = jnp.abs(x).max(-1, keepdims=True) / 127
    return jnp.round(x / unit).astype(jnp.int8), unit


def standardise(x: Any) -> Any:
    return (x - x.mean()) / x.std()


def standardise_columns(x: Any) -> Any:
    return (x - x.mean(0)) / x.std(0)


def divergence(x: Any, y: Any) -> Any:
    """Kullback-Leibler, of the softmax of each row."""
    logs = jax.nn.log_softmax(x)
    return jnp.sum(jnp.exp(logs) * (logs - jax.nn.log_softmax(y)), axis=-1)


def several_consumers(x: Any) -> Any:
    return x - x.max(-1, keepdims=True), x / x.sum(-1, keepdims=True), jnp.sum(x * x, axis=-1)


def clip_and_adam(parameters: Any, gradients: Any, first: Any, second: Any) -> Any:
    """One step of Adam after gradients are clipped by their global norm."""
    norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in gradients))
    gradients = [g * jnp.minimum(1.0, 1.0 / norm) for g in gradients]
    first = [0.9 * m + 0.1 * g for m, g in zip(first, gradients, strict=True)]
    second = [0.999 * v + 0.001 * g * g for v, g in zip(second, gradients, strict=True)]
    steps = [1e-3 * m / (jnp.sqrt(v) + 1e-8) for m, v in zip(first, second, strict=True)]
    return [p - s for p, s in zip(parameters, steps, strict=True)], first, second


def row_reduce(x: Any) -> Any:
    return jnp.sum(x * x, axis=-1)


def figure_7(x: Any) -> Any:
    """Row reduction, column reduction, an expensive operator before a broadcast, row reduction (figure 7)."""
    shares = x / x.sum(-1, keepdims=True)
    return jnp.sum(shares * jnp.power(shares.sum(0), 1.7), axis=-1)


def _optimiser(values: str = "normal") -> list[Array]:
    """Matrices and vectors in turn."""
    kinds = (Array((256, 256), (24, 32), values), Array((256,), (32,), values))
    return [kinds[number % 2] for number in range(PARAMETERS)]


_ROWS, _COLUMN = Array((4096, 1024), (64, 96)), Array((1024,), (96,))
_IMAGES, _CHANNELS = Array((32, 56, 56, 64), (2, 8, 8, 16)), Array((64,), (16,))
_GROUPED, _GROUPED_CHANNELS = Array((4, 64, 64, 320), (2, 8, 8, 64)), Array((320,), (64,))
_LABELS = Array((256,), (8,), "labels", (50257, 1009))
_ADAM = (_optimiser(), _optimiser(), _optimiser(), _optimiser("positive"))
_ALL = (
    Pattern("softmax 50257", softmax, (Array((64, 50257), (3, 5003)),)),
    Pattern("softmax 30000", softmax, (Array((64, 30000), (4, 3000)),)),
    Pattern("layer norm backward", layer_norm_backward, (_ROWS, _COLUMN, _COLUMN, _ROWS)),
    Pattern("rms norm backward", rms_norm_backward, (_ROWS, _COLUMN, _ROWS)),
    Pattern("batch norm", batch_norm, (_IMAGES, _CHANNELS, _CHANNELS)),
    Pattern("batch norm backward", batch_norm_backward, (_IMAGES, _CHANNELS, _CHANNELS, _IMAGES)),
    Pattern("group norm", group_norm, (_GROUPED, _GROUPED_CHANNELS, _GROUPED_CHANNELS)),
    Pattern("cross entropy", cross_entropy, (Array((256, 50257), (8, 1009)), _LABELS)),
    Pattern("layer norm statistics", layer_norm_statistics, (_ROWS, _COLUMN, _COLUMN)),
    Pattern("quantise", quantise, (_ROWS,)),
    Pattern("standardise", standardise, (_ROWS,)),
    Pattern("standardise columns", standardise_columns, (Array((100_000, 64), (500, 16)),)),
    Pattern("divergence", divergence, (Array((4096, 1000), (64, 100)), Array((4096, 1000), (64, 100)))),
    Pattern("several consumers", several_consumers, (Array((4096, 1024), (64, 96), "positive"),)),
    Pattern("clip and adam", clip_and_adam, _ADAM),
    Pattern("rows of 32", row_reduce, (Array((750_000, 32), (300, 32)),)),
    Pattern("rows of 30000", row_reduce, (Array((64, 30000), (4, 3000)),)),
    Pattern("figure 7", figure_7, (Array((2048, 256), (64, 80), "positive"),)),
)
PATTERNS: Mapping[str, Pattern] = {pattern.name: pattern for pattern in _ALL}
