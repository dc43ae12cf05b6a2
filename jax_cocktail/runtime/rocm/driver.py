"""The HIP runtime through ctypes: its functions and numbers.

The counterpart of `rocm_src/handler_driver.h`, which says where the numbers come from.
"""

from __future__ import annotations

import ctypes as c
import functools
from typing import Any

from jax_cocktail.runtime.ffi import Call
from jax_cocktail.runtime.gpu.driver import (
    HOST_DEVICE_MAP,
    HOST_PORTABLE,
    DeviceFacts,
    Driver,
    Launch,
    Symbols,
    Words,
    version_of,
)

# The attributes of a device that are asked for, by our names.
ATTRIBUTES = {"units": 63, "shared_bytes": 74, "cooperative": 10}
HOST_COHERENT = 1 << 30
PARAMETER_LIMIT = 4096  # HIP names none; this is the one that every release of CUDA has

_P, _I, _U, _S, _A = c.c_void_p, c.c_int, c.c_uint, c.c_size_t, c.c_uint64
_LAUNCH = (_P, _U, _U, _U, _U, _U, _U, _U, _P, _P)  # function, grid, block, shared bytes, stream, parameters
NEEDED: dict[str, tuple[Any, ...]] = {
    "hipInit": (_U,),
    "hipRuntimeGetVersion": (_P,),
    "hipDrvGetErrorName": (_I, _P),
    "hipDrvGetErrorString": (_I, _P),
    "hipStreamGetDevice": (_P, _P),
    "hipStreamSynchronize": (_P,),
    "hipGetDevice": (_P,),
    "hipSetDevice": (_I,),
    "hipDeviceGetName": (_P, _I, _I),
    "hipDeviceGetAttribute": (_P, _I, _I),
    "hipModuleLoadData": (_P, _P),
    "hipModuleUnload": (_P,),
    "hipModuleGetFunction": (_P, _P, c.c_char_p),
    "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor": (_P, _P, _I, _S),
    "hipHostMalloc": (_P, _S, _U),
    "hipHostFree": (_P,),
    "hipHostGetDevicePointer": (_P, _P, _U),
    "hipMemsetD8Async": (_A, c.c_ubyte, _S, _P),
    "hipModuleLaunchKernel": (*_LAUNCH, _P),
    "hipModuleLaunchCooperativeKernel": _LAUNCH,
    "hipThreadExchangeStreamCaptureMode": (_P,),
}
WORDS = Words(
    platform="HIP",
    oldest="6.0",
    driver="HIP runtime",
    of_vendor="AMD's ROCm",
    libraries=("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"),
    variable="JAX_COCKTAIL_HIP_LIBRARY",
    no_device="there is no AMD GPU here, or HIP_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES hides it",
    tool="rocm-smi",
    refusers="a partition, a mask of compute units, a debugger?",
    init="hipInit",
    version="hipRuntimeGetVersion",
    error_name="hipDrvGetErrorName",
    error_text="hipDrvGetErrorString",
)


def driver_version() -> int:
    """The runtime's version: 70051831 for HIP 7.0.51831, 0 if there is none."""
    return version_of(WORDS)


def release_of(version: int) -> str:
    """The release of a runtime, such as ``"HIP 7.0"``."""
    return f"HIP {version // 10_000_000}.{version // 100_000 % 100}"


class HipDriver(Driver):
    """The HIP runtime as the handler needs it."""

    vendor = WORDS
    symbols = Symbols(
        load="hipModuleLoadData",
        unload="hipModuleUnload",
        find="hipModuleGetFunction",
        host_alloc="hipHostMalloc",
        host_free="hipHostFree",
        host_address="hipHostGetDevicePointer",
        memset="hipMemsetD8Async",
        wait="hipStreamSynchronize",
        capture_mode="hipThreadExchangeStreamCaptureMode",
    )
    host_flags = HOST_PORTABLE | HOST_DEVICE_MAP | HOST_COHERENT  # the host reads it while kernels run

    def __init__(self) -> None:
        super().__init__(NEEDED, {})

    @property
    def release(self) -> str:
        return release_of(self.version)

    def _current(self, call: Call) -> int:
        device = c.c_int()
        self.call(call, "hipGetDevice", c.byref(device))
        return device.value

    def enter(self, call: Call, stream: int) -> tuple[tuple[int, int], int | None]:
        device = c.c_int()
        self.call(call, "hipStreamGetDevice", stream, c.byref(device))
        before = self._current(call)
        if before == device.value:
            return (device.value, 0), None
        self.call(call, "hipSetDevice", device)
        return (device.value, 0), before

    def leave(self, before: int | None) -> None:
        if before is not None:
            self.functions["hipSetDevice"](before)

    def describe(self, call: Call) -> DeviceFacts:
        device, name = self._current(call), c.create_string_buffer(128)
        units, shared_bytes, cooperative = (
            self._attribute(call, wanted, device) for wanted in ("units", "shared_bytes", "cooperative")
        )
        self.call(call, "hipDeviceGetName", name, len(name), device)
        told = name.value.decode(errors="replace")
        return DeviceFacts(units, shared_bytes, cooperative, PARAMETER_LIMIT, told)

    def _attribute(self, call: Call, name: str, device: int) -> int:
        value = c.c_int()
        self.call(call, "hipDeviceGetAttribute", c.byref(value), ATTRIBUTES[name], device)
        return value.value

    def co_resident(self, call: Call, launch: Launch) -> int:
        blocks, name = c.c_int(), "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor"
        self.call(call, name, c.byref(blocks), launch.function, launch.threads, launch.shared_bytes)
        return blocks.value

    def fits_cluster(self, call: Call, launch: Launch) -> bool:
        """There are no clusters."""
        return False

    def parameter_bytes(self, function: int) -> int:
        """HIP does not say."""
        return 0

    def start(self, call: Call, launch: Launch, stream: int, parameters: Any) -> None:
        sizes = launch.grid, 1, 1, launch.threads, 1, 1, launch.shared_bytes
        arguments = launch.function, *sizes, stream, parameters
        if launch.cooperative:
            self.call(call, "hipModuleLaunchCooperativeKernel", *arguments)
        else:
            self.call(call, "hipModuleLaunchKernel", *arguments, None)


@functools.cache
def the_driver() -> HipDriver:
    """The runtime, opened once per process."""
    return HipDriver()
