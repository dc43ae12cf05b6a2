"""Custom calls on NVIDIA GPUs: device look-up, handler registration, and the attributes of a call."""

from __future__ import annotations

import importlib.util
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from jax_cocktail.build.host import build_gpu_handler, host_toolchain
from jax_cocktail.build.library import open_built
from jax_cocktail.compiler import Executable
from jax_cocktail.device.cards import DEFAULT, card_like, spec_for
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.errors import BuildError, CocktailWarning
from jax_cocktail.runtime import trust
from jax_cocktail.runtime.cuda import measure as gpu_measure

TARGET = "jax_cocktail_gpu"
# Runs at every execution, never from a command buffer. XLA attaches this trait to the target's name.
TARGET_WITHOUT_GRAPH = "jax_cocktail_gpu_nograph"
PLATFORM = "CUDA"
_PLUGINS = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12", "jax_cuda13_plugin", "jax_cuda12_plugin")

_lock = threading.Lock()
_handlers: Any = None  # the library, or the module with the callbacks: they must live as long as the process


@dataclass(frozen=True, slots=True)
class Gpu:
    """The device to generate code for.

    Attributes:
      kind: jax's name of the device, "" if there is none.
      arch: the architecture, such as ``"sm_90"``.
      units: the number of multiprocessors, 0 if unknown.
      ordinal: the driver's number of the device.
    """

    kind: str
    arch: str
    units: int = 0
    ordinal: int = 0

    @property
    def name(self) -> str:
        """A name for people and for keys: two kinds of one architecture differ in memory and units."""
        return f"{self.kind or 'no device'} ({self.arch})"


def gpu(arch: str = "") -> Gpu:
    """The first GPU of this process. `arch`: overrides the device's own architecture."""
    try:
        device = jax.local_devices(backend="cuda")[0]
    except (RuntimeError, IndexError):
        return Gpu("", arch or DEFAULT.arch)
    capability = str(getattr(device, "compute_capability", "")).replace(".", "")
    own = f"sm_{capability}" if capability else DEFAULT.arch
    units, ordinal = (int(getattr(device, k, 0) or 0) for k in ("core_count", "local_hardware_id"))
    return Gpu(str(device.device_kind), arch or own, units, ordinal)


def measure_once(arch: str = "") -> None:
    """Measures the GPU to generate code for, if it is this process's own and has not been measured."""
    found = gpu()
    if found.kind and found.arch == (arch or found.arch):
        gpu_measure.measure_once(found.kind, found.arch, found.ordinal)


def is_measured(arch: str = "") -> bool:
    """True if `measure_once` has nothing to do."""
    found = gpu()
    return not (found.kind and found.arch == (arch or found.arch)) or gpu_measure.done(found.kind, found.arch)


def spec_of(arch: str = "") -> DeviceSpec:
    """The performance figures of the GPU: measured on this device if available, else those of its kind."""
    found = gpu(arch)
    if not found.kind:
        return spec_for(found.arch)
    spec = card_like(found.kind, found.arch)
    measured = gpu_measure.kept(found.kind, found.arch)
    return measured or replace(spec, name=found.kind, units=found.units or spec.units)


def expected() -> bool:
    """True if this process probably uses an NVIDIA GPU: jax_platforms names it, or it is unset and jax's CUDA
    plugin is installed."""
    chosen = jax.config.jax_platforms
    if chosen:
        return not {"cuda", "gpu"}.isdisjoint(str(chosen).split(","))
    return any(map(_installed, _PLUGINS))


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # its package is not there
        return False


def register() -> None:
    """Registers the handlers with XLA, once per process. Needs neither a GPU nor CUDA.

    Without a host compiler the handlers are Python functions, which add tens of microseconds to each call.
    """
    global _handlers
    with _lock:
        if _handlers is not None:
            return
        initialize, execute, execute_nograph, handlers = _built() or _in_python()
        for target, function in ((TARGET, execute), (TARGET_WITHOUT_GRAPH, execute_nograph)):
            stages = {"initialize": jax.ffi.pycapsule(initialize), "execute": jax.ffi.pycapsule(function)}
            jax.ffi.register_ffi_target(target, stages, platform=PLATFORM)
        _handlers = handlers


def _built() -> tuple[Any, Any, Any, Any] | None:
    try:
        library, _ = open_built(lambda: build_gpu_handler(jax.ffi.include_dir(), host_toolchain()))
        trust.guard(library)
    except (BuildError, OSError) as error:
        warnings.warn(
            f"each call on a GPU starts slower, by tens of microseconds: {error}",
            CocktailWarning,
            stacklevel=3,
        )
        return None
    return library.ck_gpu_initialize, library.ck_gpu_execute, library.ck_gpu_execute_nograph, library


def _in_python() -> tuple[Any, Any, Any, Any]:
    from jax_cocktail.runtime.cuda import handler as module  # not imported if there is a host compiler

    return module.initialize, module.execute, module.execute_nograph, module


def target_of(executable: Executable, sync: bool) -> str:
    """The target to call. A program that can fail or is waited for must not run from a command buffer."""
    assert executable.launch is not None
    return TARGET_WITHOUT_GRAPH if sync or executable.launch.can_fail else TARGET


def failures_of(executable: Executable) -> Mapping[str, str]:
    """The messages for the handler, one line for every error code; nothing if the program cannot fail."""
    return {"failures": "\n".join(executable.failures)} if executable.failures else {}


def attributes_of(executable: Executable, name: str, sync: bool, log: bool = False) -> Mapping[str, Any]:
    """Attributes for the handler. `name`: the program's name, for errors; `sync`: wait for every call; `log`:
    write a line when it begins and when it ends, too."""
    assert executable.launch is not None
    return {
        "name": name,
        "sync": np.int64(2 if log else sync),
        **(failures_of(executable) if executable.launch.can_fail else {}),
    }
