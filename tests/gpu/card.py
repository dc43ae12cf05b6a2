"""What runs programs for a GPU in these tests: the card, or the emulation of one on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_cocktail
from jax_cocktail.build.device import build_device_program, device_toolchain
from jax_cocktail.config import Options
from jax_cocktail.lowering.edge import custom_call, gpu_call
from jax_cocktail.utask.plan import LaunchPlan
from tests.cpu.emulated import Emulation
from tests.cpu.emulation import emulator
from tests.cpu.emulation.emulator import EmulationError

Failure = (jax.errors.JaxRuntimeError, EmulationError, ValueError)  # what a launch that goes wrong raises
EPSILON = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10, "float64": 2.0**-52}
# Everything that can be is captured, loops included, however little it is.
COMMAND_BUFFERS = {
    "xla_gpu_enable_command_buffer": (
        "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,CONDITIONAL,DYNAMIC_SLICE_FUSION,WHILE"
    ),
    "xla_gpu_graph_min_graph_size": 1,
}


@functools.cache
def why_no_gpu() -> str:
    """Why there is no NVIDIA GPU to test on; "" if there is one."""
    try:
        return "" if jax.devices("cuda") else "jax has no CUDA device"
    except RuntimeError as error:
        return f"no NVIDIA GPU: {str(error).splitlines()[0]}"


@dataclass(frozen=True, slots=True)
class Card:
    """`emulation`: what stands for the card, None if there is one."""

    emulation: Emulation | None = None

    @property
    def most_units(self) -> int:
        """Units of a program that uses all there are."""
        return 3 if self.emulation else gpu_call.gpu().units or gpu_call.spec_of().units

    def jit(self, function: Callable[..., Any], units: int = 0, how: Any = None, **options: Any) -> Any:
        """`jax_cocktail.jit` that takes no way out. `units`: 0 for all; `how`: arguments of `jax.jit`."""
        given = {"force": "cocktail", "strict": True, "units": units or self.most_units, **options}
        return jax_cocktail.jit(function, options=given, **(how or {}))

    def launch(
        self,
        text: str,
        operands: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
        plan: LaunchPlan,
        *,
        sync: bool = True,
    ) -> list[np.ndarray]:
        """One launch of a program text written by hand, with `plan.most_units` units; `results`: of the
        shapes and types that the program gives."""
        if self.emulation is None:
            return [np.asarray(r) for r in call_by_hand(text, results, plan, sync)(*operands)]
        found = [np.zeros_like(r) for r in results]
        emulator.build(text).launch([np.array(x) for x in operands], found, plan.most_units, "ck_portable")
        return found


def call_by_hand(text: str, results: Sequence[Any], plan: LaunchPlan, sync: bool) -> Callable[..., Any]:
    """The program text as a jitted function, through the handler. `results`: with shapes and types."""
    spec = gpu_call.spec_of()
    limit = Options().cache_limit_bytes
    built = build_device_program(text, device_toolchain(spec.arch), spec, cache_limit_bytes=limit)
    artifact: Any = SimpleNamespace(binary=built.binary, digest=built.digest, launch=plan, aliases=())
    gpu_call.register()
    attributes = gpu_call.attributes_of(artifact, "by_hand", sync)
    shapes = [jax.ShapeDtypeStruct(r.shape, r.dtype) for r in results]
    shapes += [jax.ShapeDtypeStruct((plan.workspace_bytes,), np.uint8)] * (plan.workspace_bytes > 0)
    function = jax.ffi.ffi_call(gpu_call.target_of(artifact, sync, gpu_call.CUDA), shapes)

    def call(*operands: Any) -> list[Any]:
        bound = custom_call._bound(artifact, plan.attribute, operands, shapes)
        binary = np.frombuffer(built.binary, np.uint8)
        return function(*operands, binary=binary, **bound, **attributes)[: len(results)]

    return jax.jit(call)


# ---- how close is close enough -----------------------------------------------------------------------------


def in_float64(function: Callable[..., Any], arguments: Any) -> Any:
    """The results with every float widened, on the host where there is one for jax."""

    def widen(leaf: Any) -> Any:
        array = np.asarray(leaf)
        return array.astype(np.float64) if jnp.issubdtype(array.dtype, jnp.floating) else array

    with jax.enable_x64(True), jax.default_device(_host()):
        return jax.tree.map(np.asarray, jax.jit(function)(*jax.tree.map(widen, arguments)))


def _host() -> Any:
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # jax was told to use the card alone
        return None


def check_exact(ours: Any, stock: Any) -> None:
    """Equal bit for bit, with the same types and structure."""
    assert jax.tree.structure(ours) == jax.tree.structure(stock)
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(stock), strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def check_close(ours: Any, stock: Any, exact: Any, times: float = 2.0) -> None:
    """No float is further from the float64 result than `times` stock's worst and a few roundings; what is no
    float is equal. Errors are relative to the largest element of a result, or to 1."""
    assert jax.tree.structure(ours) == jax.tree.structure(stock)
    for position, leaves in enumerate(zip(*map(jax.tree.leaves, (ours, stock, exact)), strict=True)):
        x, y, z = map(np.asarray, leaves)
        assert x.dtype == y.dtype and x.shape == y.shape, position
        if not jnp.issubdtype(y.dtype, jnp.floating):
            assert np.array_equal(x, y), position
            continue
        rounding = 8 * EPSILON[y.dtype.name]
        mine, theirs = (_error(array, z) for array in (x, y))
        assert mine <= times * theirs + rounding, f"result {position}: {mine} and stock {theirs}"


def _error(array: np.ndarray, exact: np.ndarray) -> float:
    """Largest difference; infinite where one has a NaN or an infinity and the other has none."""
    array = array.astype(np.float64)
    finite = np.isfinite(exact)
    scale = max(1.0, float(np.max(np.abs(exact), where=finite, initial=0.0)))
    with np.errstate(invalid="ignore"):
        same = (array == exact) | (np.isnan(array) & np.isnan(exact))
        gap = np.where(same, 0.0, np.abs(array - exact))
    return float(np.nan_to_num(gap, nan=np.inf).max(initial=0.0)) / scale


def check(card: Card, function: Callable[..., Any], *arguments: Any, units: int = 0, **options: Any) -> Any:
    """Ours against stock and float64, both with exact products; returns our results."""
    with jax.default_matmul_precision("highest"):
        stock = jax.jit(function)(*arguments)
        ours = card.jit(function, units, **options)(*arguments)
        exact = in_float64(function, arguments)
    check_close(ours, stock, exact)
    return ours
