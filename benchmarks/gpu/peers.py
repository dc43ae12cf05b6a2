"""The ways to run a row: stock XLA in its forms, cuDNN, torch, and ours. Each is a function without arguments
that starts one call; what cannot be had raises `NoPeer` with the reason. The differences of torch in half
precision to stock XLA are recorded like all others, and judged by nobody."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_cocktail
from benchmarks.gpu.unroll import CannotUnroll, unrolled
from jax_cocktail.lowering.choice.stock_forms import MOST_NODES, worth_unrolling
from jax_cocktail.lowering.run.stopwatch import CAPTURE, UNROLL

Run = Callable[[], Any]
Form = Callable[[str, Callable[..., Any], tuple[Any, ...]], Run]
COMMAND_BUFFERS = dict(CAPTURE)
UNROLLED_COMMAND_BUFFERS = dict(UNROLL)
MODES: dict[str, dict[str, Any]] = {
    "stock": {},
    "graphs": COMMAND_BUFFERS,
    "graphs_unrolled": UNROLLED_COMMAND_BUFFERS,
}


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


def graphs_unrolled(name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Run:
    """The same, with unrolled loops in the graphs."""
    plain = jax.jit(function).lower(*arguments).compile()
    if not worth_unrolling(str(plain.as_text())):
        raise NoPeer(f"no loop of known trip count, or more than {MOST_NODES} nodes of a graph")
    return compiled(function, arguments, **UNROLLED_COMMAND_BUFFERS)


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
    """A call as `jax_cocktail.jit` decides it unforced."""
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


def torch_lstm(
    name: str, function: Callable[..., Any], arguments: tuple[Any, ...], dtype: str = "float32"
) -> Run:
    """torch.nn.LSTM through cuDNN, with TF32 where JAX has it. In half precision the work is another one: the
    difference to stock XLA is what it costs."""
    torch = _torch(name)
    xs, layers = arguments
    module = torch.nn.LSTM(xs.shape[-1], layers[0][1].shape[0], len(layers))
    with torch.no_grad():
        for key, value in torch_weights(layers).items():
            getattr(module, key).copy_(torch.from_numpy(value))
    kind = getattr(torch, dtype)
    module = module.to("cuda", kind).eval()
    given = torch.from_numpy(np.array(xs)).to("cuda", kind)

    def run() -> Any:
        with torch.no_grad():
            return _Torch(module(given)[0][-1])

    return run


def torch_weights(layers: Any) -> dict[str, np.ndarray]:
    """The weights by torch's names; its matrices are transposed."""
    kinds = "weight_ih", "weight_hh", "bias_ih", "bias_hh"
    pairs = (
        (n, kind, value) for n, layer in enumerate(layers) for kind, value in zip(kinds, layer, strict=True)
    )
    return {f"{kind}_l{n}": np.array(value).T.copy() for n, kind, value in pairs}


def torch_compiled(name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Run:
    """The LSTM cell by cell: torch compiles the cell, which is quick, and a CUDA graph holds all of them."""
    torch = _torch(name)
    xs, layers = jax.tree.map(lambda leaf: torch.from_numpy(np.array(leaf)).cuda(), arguments)
    zeros = torch.zeros(xs.shape[1], layers[0][1].shape[0], device="cuda")

    @torch.compile
    def cell(*operands: Any) -> Any:
        return lstm_cell(torch.sigmoid, torch.tanh, *operands)

    with torch.no_grad():
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):  # torch asks for calls on another stream before it captures
            for _ in range(3):
                lstm_by_cells(cell, xs, layers, zeros)
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = lstm_by_cells(cell, xs, layers, zeros)
    return _Replay(graph, result, (xs, layers, zeros))


@dataclass(frozen=True, slots=True)
class _Replay:
    """A graph of torch as a call. `held`: what the graph reads."""

    graph: Any
    result: Any
    held: Any

    def __call__(self) -> _Torch:
        self.graph.replay()
        return _Torch(self.result)


def lstm_by_cells(cell: Callable[..., Any], xs: Any, layers: Sequence[Any], zeros: Any) -> Any:
    """The row's loop, written out: the last layer's hidden state after the last step."""
    states = [(zeros, zeros) for _ in layers]
    for x in xs:
        for number, weights in enumerate(layers):
            states[number] = cell(x, *states[number], *weights)
            x = states[number][0]
    return states[-1][0]


def lstm_cell(
    sigmoid: Callable[[Any], Any],
    tanh: Callable[[Any], Any],
    x: Any,
    h: Any,
    c: Any,
    w_ih: Any,
    w_hh: Any,
    b_ih: Any,
    b_hh: Any,
) -> tuple[Any, Any]:
    """One step of one layer, for arrays of any library."""
    gates = x @ w_ih + b_ih + h @ w_hh + b_hh
    units = h.shape[-1]
    i, f, g, o = (gates[:, k * units : (k + 1) * units] for k in range(4))
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


def _torch(name: str) -> Any:
    """The module, set to JAX's precision."""
    if not name.startswith("lstm/"):
        raise NoPeer("only the LSTM is written for torch")
    try:
        import torch
    except ImportError as error:
        raise NoPeer("torch is not installed") from error
    if not torch.cuda.is_available():
        raise NoPeer("torch finds no GPU")
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = not _exact()
    return torch


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
        return np.asarray(self.value.float().cpu().numpy(), dtype)  # NumPy has no bfloat16


FORMS: dict[str, Form] = {
    "ours": ours,
    "stock": stock,
    "graphs": graphs,
    "graphs_unrolled": graphs_unrolled,
    "unrolled": full_unroll,
    "cudnn": cudnn,
    "torch": torch_lstm,
    "torch_bfloat16": partial(torch_lstm, dtype="bfloat16"),
    "torch_float16": partial(torch_lstm, dtype="float16"),
    "torch_compiled": torch_compiled,
}
