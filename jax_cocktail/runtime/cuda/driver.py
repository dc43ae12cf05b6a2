"""The CUDA driver through ctypes: its functions and numbers.

The counterpart of `cuda_src/handler_driver.h`.
"""

from __future__ import annotations

import ctypes as c
import functools
from typing import Any

from jax_cocktail.device.spec import PORTABLE_CLUSTER
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
ATTRIBUTES = {
    "threads_per_block": 1,
    "warp": 10,
    "clock_khz": 13,
    "units": 16,
    "memory_clock_khz": 36,
    "bus_bits": 37,
    "l2_bytes": 38,
    "threads_per_unit": 39,
    "major": 75,
    "minor": 76,
    "shared_per_unit": 81,
    "registers": 82,
    "cooperative": 95,
    "shared_bytes": 97,
    "blocks_per_unit": 106,
}
FIRST_WITH_CLUSTERS = 9  # the major compute capability
DYNAMIC_SHARED_BYTES, NON_PORTABLE_CLUSTER = 8, 14
LAUNCH_COOPERATIVE, LAUNCH_CLUSTER = 2, 4


class LaunchAttribute(c.Structure):
    _fields_ = (("id", c.c_int), ("pad", c.c_char * 4), ("value", c.c_int * 16))


class LaunchConfig(c.Structure):
    _fields_ = (
        ("grid", c.c_uint * 3),
        ("block", c.c_uint * 3),
        ("shared_bytes", c.c_uint),
        ("stream", c.c_void_p),
        ("attributes", c.POINTER(LaunchAttribute)),
        ("num_attributes", c.c_uint),
    )


def launch_config(
    grid: int, threads: int, shared_bytes: int, stream: int, *, cooperative: bool, cluster: int
) -> LaunchConfig:
    """How a kernel is launched. `cluster`: the number of blocks per cluster, 0 without clusters."""
    chosen = [(LAUNCH_COOPERATIVE, (1, 0, 0))] if cooperative else []
    chosen += [(LAUNCH_CLUSTER, (cluster, 1, 1))] if cluster else []
    attributes = (LaunchAttribute * len(chosen))()
    for attribute, (kind, value) in zip(attributes, chosen, strict=True):
        attribute.id, attribute.value[:3] = kind, value
    return LaunchConfig((grid, 1, 1), (threads, 1, 1), shared_bytes, stream, attributes, len(chosen))


_P, _I, _U, _S, _A = c.c_void_p, c.c_int, c.c_uint, c.c_size_t, c.c_uint64
NEEDED: dict[str, tuple[Any, ...]] = {  # by the handler
    "cuInit": (_U,),
    "cuDriverGetVersion": (_P,),
    "cuGetErrorName": (_I, _P),
    "cuGetErrorString": (_I, _P),
    "cuStreamGetCtx": (_P, _P),
    "cuStreamSynchronize": (_P,),
    "cuCtxGetCurrent": (_P,),
    "cuCtxPushCurrent_v2": (_P,),
    "cuCtxPopCurrent_v2": (_P,),
    "cuCtxGetDevice": (_P,),
    "cuDeviceGetAttribute": (_P, _I, _I),
    "cuModuleLoadData": (_P, _P),
    "cuModuleUnload": (_P,),
    "cuModuleGetFunction": (_P, _P, c.c_char_p),
    "cuFuncSetAttribute": (_P, _I, _I),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (_P, _P, _I, _S),
    "cuMemHostAlloc": (_P, _S, _U),
    "cuMemFreeHost": (_P,),
    "cuMemHostGetDevicePointer_v2": (_P, _P, _U),
    "cuMemsetD8Async": (_A, c.c_ubyte, _S, _P),
    "cuLaunchKernelEx": (_P, _P, _P, _P),
    "cuThreadExchangeStreamCaptureMode": (_P,),
}
OPTIONAL: dict[str, tuple[Any, ...]] = {
    "cuOccupancyMaxActiveClusters": (_P, _P, _P),
    "cuCtxGetId": (_P, _P),
    "cuFuncGetParamInfo": (_P, _S, _P, _P),
}
OF_CARDS: dict[str, tuple[Any, ...]] = {  # what `card` needs beside the above
    "cuDeviceGetCount": (_P,),
    "cuDeviceGet": (_P, _I),
    "cuDeviceGetName": (_P, _I, _I),
    "cuDeviceTotalMem_v2": (_P, _I),
    "cuDevicePrimaryCtxRetain": (_P, _I),
    "cuDevicePrimaryCtxRelease_v2": (_I,),
    "cuStreamCreate": (_P, _U),
    "cuStreamDestroy_v2": (_P,),
    "cuEventCreate": (_P, _U),
    "cuEventDestroy_v2": (_P,),
    "cuEventRecord": (_P, _P),
    "cuEventSynchronize": (_P,),
    "cuEventElapsedTime": (_P, _P, _P),
    "cuMemAlloc_v2": (_P, _S),
    "cuMemFree_v2": (_A,),
    "cuMemcpyHtoDAsync_v2": (_A, _P, _S, _P),
    "cuMemcpyDtoHAsync_v2": (_P, _A, _S, _P),
    "cuMemcpyDtoDAsync_v2": (_A, _A, _S, _P),
    "cuStreamBeginCapture_v2": (_P, _I),
    "cuStreamEndCapture": (_P, _P),
    "cuGraphInstantiateWithFlags": (_P, _P, _A),
    "cuGraphLaunch": (_P, _P),
    "cuGraphExecDestroy": (_P,),
    "cuGraphDestroy": (_P,),
}
WORDS = Words(
    platform="CUDA",
    oldest="11.8",
    driver="CUDA driver",
    of_vendor="NVIDIA's driver",
    libraries=("libcuda.so.1",),
    variable="JAX_COCKTAIL_CUDA_DRIVER",
    no_device="there is no NVIDIA GPU here, or CUDA_VISIBLE_DEVICES hides it",
    tool="nvidia-smi",
    refusers="MPS, a partition, a debugger?",
    init="cuInit",
    version="cuDriverGetVersion",
    error_name="cuGetErrorName",
    error_text="cuGetErrorString",
)


def driver_version() -> int:
    """The driver's version: 13000 for CUDA 13.0, 0 if there is none."""
    return version_of(WORDS)


class CudaDriver(Driver):
    """The CUDA driver as the handler needs it."""

    vendor = WORDS
    symbols = Symbols(
        load="cuModuleLoadData",
        unload="cuModuleUnload",
        find="cuModuleGetFunction",
        host_alloc="cuMemHostAlloc",
        host_free="cuMemFreeHost",
        host_address="cuMemHostGetDevicePointer_v2",
        memset="cuMemsetD8Async",
        wait="cuStreamSynchronize",
        capture_mode="cuThreadExchangeStreamCaptureMode",
    )
    host_flags = HOST_PORTABLE | HOST_DEVICE_MAP

    def __init__(self) -> None:
        super().__init__(NEEDED, OPTIONAL)

    @property
    def release(self) -> str:
        return f"CUDA {self.version // 1000}.{self.version % 1000 // 10}"

    def enter(self, call: Call, stream: int) -> tuple[tuple[int, int], int | None]:
        context, before, identity = c.c_void_p(), c.c_void_p(), c.c_ulonglong()
        self.call(call, "cuStreamGetCtx", stream, c.byref(context))
        if "cuCtxGetId" in self.functions:
            self.functions["cuCtxGetId"](context, c.byref(identity))
        self.functions["cuCtxGetCurrent"](c.byref(before))
        place = context.value or 0, identity.value
        if before.value == context.value:
            return place, None
        self.call(call, "cuCtxPushCurrent_v2", context)
        return place, before.value or 0

    def leave(self, before: int | None) -> None:
        if before is not None:
            self.functions["cuCtxPopCurrent_v2"](c.byref(c.c_void_p()))

    def _attribute(self, call: Call, name: str) -> int:
        device, value = c.c_int(), c.c_int()
        self.call(call, "cuCtxGetDevice", c.byref(device))
        self.call(call, "cuDeviceGetAttribute", c.byref(value), ATTRIBUTES[name], device)
        return value.value

    def describe(self, call: Call) -> DeviceFacts:
        major, minor = self._attribute(call, "major"), self._attribute(call, "minor")
        # Since CUDA 12.1 a kernel may have more parameters (from Volta on).
        limit = 32764 if self.version >= 12010 and major >= 7 else 4096
        units, shared_bytes, cooperative = (
            self._attribute(call, name) for name in ("units", "shared_bytes", "cooperative")
        )
        return DeviceFacts(units, shared_bytes, cooperative, limit, f"sm_{major}{minor}")

    def _allow_shared(self, call: Call, launch: Launch) -> None:
        self.call(call, "cuFuncSetAttribute", launch.function, DYNAMIC_SHARED_BYTES, launch.shared_bytes)

    def co_resident(self, call: Call, launch: Launch) -> int:
        self._allow_shared(call, launch)
        blocks, name = c.c_int(), "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        self.call(call, name, c.byref(blocks), launch.function, launch.threads, launch.shared_bytes)
        return blocks.value

    def fits_cluster(self, call: Call, launch: Launch) -> bool:
        ask = self.functions.get("cuOccupancyMaxActiveClusters")
        if ask is None or self._attribute(call, "major") < FIRST_WITH_CLUSTERS:
            return False
        self._allow_shared(call, launch)
        allow = self.functions["cuFuncSetAttribute"]
        if launch.grid > PORTABLE_CLUSTER and allow(launch.function, NON_PORTABLE_CLUSTER, 1):
            return False
        found = c.c_int()
        return ask(c.byref(found), launch.function, c.byref(_config(launch, 0))) == 0 and found.value > 0

    def parameter_bytes(self, function: int) -> int:
        offset, size = c.c_size_t(), c.c_size_t()
        ask = self.functions.get("cuFuncGetParamInfo")
        known = ask is not None and ask(function, 0, c.byref(offset), c.byref(size)) == 0
        return size.value if known else 0

    def start(self, call: Call, launch: Launch, stream: int, parameters: Any) -> None:
        config = _config(launch, stream)
        self.call(call, "cuLaunchKernelEx", c.byref(config), launch.function, parameters, None)


def _config(launch: Launch, stream: int) -> LaunchConfig:
    sizes = launch.grid, launch.threads, launch.shared_bytes
    cluster = launch.grid if launch.cluster else 0
    return launch_config(*sizes, stream, cooperative=launch.cooperative, cluster=cluster)


@functools.cache
def the_driver() -> CudaDriver:
    """The driver, opened once per process."""
    return CudaDriver()
