"""The ways to run a row: stock XLA in its forms, cuDNN, torch, and ours. Each is a function without arguments
that starts one call; what cannot be had raises `NoPeer` with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_cocktail
from benchmarks.gpu.unroll import CannotUnroll, unrolled
from jax_cocktail.lowering.stopwatch import CAPTURE

Run = Callable[[], Any]
COMMAND_BUFFERS = dict(CAPTURE)
MODES: dict[str, dict[str, Any]] = {"stock": {}, "graphs": COMMAND_BUFFERS}


class NoPeer(RuntimeError):
    """There is no such form of this row, or not here."""


def compiled(function: Callable[..., Any], arguments: tuple[Any, ...], **options: Any) -> Run:
    """A call of stock XLA's executable."""
    executable = jax.jit(function).lower(*arguments).compile(compiler_options=options or None)
    return lambda: executable(*arguments)


def stock(name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Run:
    """With XLA's defaults."""
    return compiled(function, arguments)


def graphs(name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Run:
    """With everything captured in command buffers."""
    return compiled(function, arguments, **COMMAND_BUFFERS)


def full_unroll(name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Run:
    """Without loops."""
    try:
        straight = unrolled(function, arguments)
    except CannotUnroll as error:
        raise NoPeer(str(error)) from error
    return compiled(straight, arguments)


def ours(name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Run:
    """Our calls, whatever a measurement would say."""
    jitted = jax_cocktail.jit(function, options={"force": "cocktail", "strict": True})
    return lambda: jitted(*arguments)


def auto(name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Run:
    """What `jax_cocktail.jit` does unforced."""
    jitted = jax_cocktail.jit(function)
    return lambda: jitted(*arguments)


def cudnn(name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Run:
    """cuDNN's LSTM through `jax.experimental.rnn`."""
    if not name.startswith("lstm/"):
        raise NoPeer("cuDNN has no such layer")
    if jax.default_backend() != "gpu":
        raise NoPeer("cuDNN needs a GPU")
    from jax.experimental import rnn

    xs, layers = arguments
    x, weights, lengths, state = cudnn_arguments(xs, layers)
    features, hidden = layers[0][0].shape[0], layers[0][1].shape[0]

    def layer(x: Any, weights: Any, state: Any, lengths: Any) -> Any:
        size = (features, hidden, len(layers))
        _, h, _ = rnn.lstm(x, state, state, weights, lengths, *size, dropout=0.0, bidirectional=False)
        return h[-1]

    return compiled(layer, (x, weights, state, lengths))


def cudnn_arguments(xs: Any, layers: Any) -> tuple[Any, Any, Any, Any]:
    """Inputs (batch, steps, features), all weights in cuDNN's order, lengths, and the zero state."""
    steps, batch, _ = xs.shape
    matrices = [jnp.ravel(w.T) for layer in layers for w in layer[:2]]
    biases = [b for layer in layers for b in layer[2:]]
    state = jnp.zeros((len(layers), batch, layers[0][1].shape[0]), xs.dtype)
    lengths = jnp.full(batch, steps, jnp.int32)
    return jnp.swapaxes(xs, 0, 1), jnp.concatenate([*matrices, *biases]), lengths, state


def torch_lstm(name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Run:
    """torch.nn.LSTM, with TF32 where JAX has it."""
    if not name.startswith("lstm/"):
        raise NoPeer("only the LSTM is written for torch")
    try:
        import torch
    except ImportError as error:
        raise NoPeer("torch is not installed") from error
    if not torch.cuda.is_available():
        raise NoPeer("torch finds no GPU")
    xs, layers = arguments
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = not _exact()
    module = torch.nn.LSTM(xs.shape[-1], layers[0][1].shape[0], len(layers)).cuda().eval()
    with torch.no_grad():
        for number, layer in enumerate(layers):
            for kind, value in zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), layer, strict=True):
                getattr(module, f"{kind}_l{number}").copy_(torch.from_numpy(np.array(value).T.copy()))
    given = torch.from_numpy(np.array(xs)).cuda()

    def run() -> Any:
        with torch.no_grad():
            return _Torch(module(given)[0][-1])

    return run


def _exact() -> bool:
    return str(jax.config.jax_default_matmul_precision) in ("highest", "float32")


class _Torch:
    """A result of torch, which `jax.block_until_ready` can wait for, and NumPy can read."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def block_until_ready(self) -> _Torch:
        import torch

        torch.cuda.synchronize()
        return self

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self.value.cpu().numpy(), dtype)


FORMS: dict[str, Callable[[str, Callable[..., Any], tuple[Any, ...]], Run]] = {
    "ours": ours,
    "stock": stock,
    "graphs": graphs,
    "unrolled": full_unroll,
    "cudnn": cudnn,
    "torch": torch_lstm,
}
