"""Custom calls on GPUs: device look-up, handler registration, and the attributes of a call."""

from __future__ import annotations

import ctypes
import importlib.util
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from jax_cocktail.build.executable import Executable
from jax_cocktail.build.host import build_gpu_handler, host_toolchain
from jax_cocktail.build.library import provided
from jax_cocktail.device.cards import DEFAULTS, card_like
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.errors import BuildError
from jax_cocktail.runtime import trust
from jax_cocktail.runtime.drivers import DRIVERS

TARGET = "jax_cocktail_gpu"
# Runs at every execution, never from a command buffer. XLA attaches this trait to the target's name.
TARGET_WITHOUT_GRAPH = "jax_cocktail_gpu_nograph"
CUDA = "cuda"


@dataclass(frozen=True, slots=True)
class Platform:
    """A kind of GPU between jax and us.

    Attributes:
      xla: XLA's name of the platform, for registrations.
      plugins: modules of jax's plugins, any of which says that there may be a device.
      arch_prefix: what precedes the compute capability, as jax tells it, in the name of an architecture.
      captures_cooperative: launches of blocks that wait for each other can be captured in command buffers.
      captures_loops: XLA captures loops in command buffers.
      is_measured: a card's figures are measured when it is first used; else those of a table are used.
      doubt: why only forced calls are compiled, "" if all are.
    """

    xla: str
    plugins: tuple[str, ...]
    arch_prefix: str = ""
    captures_cooperative: bool = False
    captures_loops: bool = False
    is_measured: bool = False
    doubt: str = ""


_PLATFORMS = {  # by jax's names
    CUDA: Platform(
        xla="CUDA",
        plugins=(
            "jax_plugins.xla_cuda13",
            "jax_plugins.xla_cuda12",
            "jax_cuda13_plugin",
            "jax_cuda12_plugin",
        ),
        arch_prefix="sm_",
        captures_cooperative=True,
        captures_loops=True,
        is_measured=True,
    ),
    "rocm": Platform(
        xla="ROCM",
        plugins=(
            "jax_plugins.xla_rocm7",
            "jax_plugins.xla_rocm60",
            "jax_rocm7_plugin",
            "jax_rocm60_plugin",
        ),
        # HIP 6.2 starts such a launch at once while a stream is captured; later releases capture it.
        captures_cooperative=False,
        doubt='no program has run on an AMD card yet; the option force="cocktail" runs them',
    ),
}
PLATFORMS = tuple(_PLATFORMS)

_lock = threading.Lock()
_handlers: dict[str, ctypes.CDLL] = {}  # by platform: the library, which lives as long as the process
_binaries: dict[str, bytes] = {}  # by platform: its file
_carried: dict[str, bytes] = {}  # by platform: one that another process has built


@dataclass(frozen=True, slots=True)
class Gpu:
    """The device to generate code for.

    Attributes:
      kind: jax's name of the device, "" if there is none.
      arch: the architecture, such as ``"sm_90"`` or ``"gfx942"``.
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


def gpu(arch: str = "", platform: str = CUDA) -> Gpu:
    """The first GPU of this process. `arch`: overrides the device's own architecture."""
    default = DEFAULTS[platform].arch
    try:
        device = jax.local_devices(backend=platform)[0]
    except (RuntimeError, IndexError):
        return Gpu("", arch or default)
    # A capability is "9.0" on NVIDIA's GPUs, and "gfx90a:sramecc+:xnack-" on AMD's, or its first word alone.
    capability = str(getattr(device, "compute_capability", "")).partition(":")[0].replace(".", "")
    own = f"{_PLATFORMS[platform].arch_prefix}{capability}" if capability else default
    units, ordinal = (int(getattr(device, k, 0) or 0) for k in ("core_count", "local_hardware_id"))
    return Gpu(str(device.device_kind), arch or own, units, ordinal)


def captures_loops(platform: str) -> bool:
    """True if XLA captures loops in command buffers on a platform."""
    return _PLATFORMS[platform].captures_loops


def doubt(platform: str) -> str:
    """The reason why only forced calls are compiled for a platform, "" if all are."""
    return _PLATFORMS[platform].doubt if platform in _PLATFORMS else ""


def driver_version(platform: str) -> int:
    """The version of the platform's driver as it tells it, 0 if there is none."""
    return DRIVERS[platform].installed()


def measure_once(arch: str = "", platform: str = CUDA) -> None:
    """Measures the GPU to generate code for, if it is this process's own and has not been measured."""
    found = _measurable(arch, platform)
    if found is not None:
        from jax_cocktail.runtime.cuda import measure as gpu_measure

        gpu_measure.measure_once(found.kind, found.arch, found.ordinal)


def is_measured(arch: str = "", platform: str = CUDA) -> bool:
    """True if `measure_once` has nothing to do."""
    found = _measurable(arch, platform)
    if found is None:
        return True
    from jax_cocktail.runtime.cuda import measure as gpu_measure

    return gpu_measure.done(found.kind, found.arch)


def _measurable(arch: str, platform: str) -> Gpu | None:
    """This process's own GPU if it is the one to generate code for and can be measured."""
    if not _PLATFORMS[platform].is_measured:
        return None
    found = gpu(platform=platform)
    return found if found.kind and found.arch == (arch or found.arch) else None


def spec_of(arch: str = "", platform: str = CUDA, measured: bool = True) -> DeviceSpec:
    """The performance figures of the GPU: those of its kind, or measured on this device if wanted and known.
    Raises BuildError if no known card has the architecture, or none of the platform."""
    found = gpu(arch, platform)
    spec = card_like(found.kind, found.arch)
    if spec.platform != platform:
        default = DEFAULTS[platform].arch
        remedy = f"unset the option gpu_arch (or JAX_COCKTAIL_GPU_ARCH), or choose one as {default}"
        raise BuildError(f"{found.arch} is no architecture of the platform {platform}", remedy)
    if not found.kind:
        return spec
    known = None
    if measured and _PLATFORMS[platform].is_measured:
        from jax_cocktail.runtime.cuda import measure as gpu_measure

        known = gpu_measure.kept(found.kind, found.arch)
    return known or replace(spec, name=found.kind, units=found.units or spec.units)


def expected() -> tuple[str, ...]:
    """The platforms of GPUs that this process probably uses: jax_platforms names them, or it is unset and a
    plugin of jax for them is installed."""
    chosen = jax.config.jax_platforms
    if chosen:
        named = set(str(chosen).split(","))
        return tuple(name for name in PLATFORMS if not {name, "gpu"}.isdisjoint(named))
    return tuple(name for name, platform in _PLATFORMS.items() if any(map(_installed, platform.plugins)))


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # its package is not there
        return False


def register(platform: str = CUDA) -> None:
    """Registers the handlers of a platform with XLA, once per process. Needs neither a GPU nor its driver.

    Raises:
      BuildError: the library with the handlers cannot be built or loaded.
    """
    with _lock:
        if platform in _handlers:
            return
        carried = _carried.get(platform, b"")
        library, binary = provided("the handler of GPU calls", carried, lambda: _built(platform))
        trust.guard(library)
        for target, execute in (
            (TARGET, library.ck_gpu_execute),
            (TARGET_WITHOUT_GRAPH, library.ck_gpu_execute_nograph),
        ):
            stages = {
                "initialize": jax.ffi.pycapsule(library.ck_gpu_initialize),
                "execute": jax.ffi.pycapsule(execute),
            }
            jax.ffi.register_ffi_target(target, stages, platform=_PLATFORMS[platform].xla)
        _handlers[platform], _binaries[platform] = library, binary


def _built(platform: str) -> str:
    """The path of the library with the handlers. Raises BuildError."""
    try:
        return build_gpu_handler(jax.ffi.include_dir(), host_toolchain(), platform)
    except BuildError as error:
        what = f"the handler of GPU calls cannot be built: {error.reason}"
        raise BuildError(what, error.remedy, error.log) from error


def carry(binaries: Mapping[str, bytes]) -> None:
    """Gives this process the handlers that another one has built, by platform. They need no host compiler.
    Those that are registered stay: XLA takes no others."""
    _carried.update(binaries)


def handler_binaries() -> Mapping[str, bytes]:
    """The libraries with the handlers that this process has registered, by platform."""
    return dict(_binaries)


def target_of(executable: Executable, sync: bool, platform: str) -> str:
    """The target to call. A program that can fail or is waited for must not run from a command buffer, nor
    must one whose launch the platform does not capture."""
    launch = executable.launch
    assert launch is not None
    captured = _PLATFORMS[platform].captures_cooperative or not launch.cooperative
    return TARGET if captured and not (sync or launch.can_fail) else TARGET_WITHOUT_GRAPH


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
