"""The CUDA driver's functions and numbers, for measuring a card without JAX (`card`)."""

from __future__ import annotations

import ctypes as c
from collections.abc import Mapping
from typing import Any

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
CAPTURE_RELAXED = 2


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
    """A launch for the driver. `cluster`: the number of blocks per cluster, 0 without clusters."""
    chosen = [(LAUNCH_COOPERATIVE, (1, 0, 0))] if cooperative else []
    chosen += [(LAUNCH_CLUSTER, (cluster, 1, 1))] if cluster else []
    attributes = (LaunchAttribute * len(chosen))()
    for attribute, (kind, value) in zip(attributes, chosen, strict=True):
        attribute.id, attribute.value[:3] = kind, value
    return LaunchConfig((grid, 1, 1), (threads, 1, 1), shared_bytes, stream, attributes, len(chosen))


_P, _I, _U, _S, _A = c.c_void_p, c.c_int, c.c_uint, c.c_size_t, c.c_uint64
FUNCTIONS: Mapping[str, tuple[Any, ...]] = {  # the types of parameters
    "cuInit": (_U,),
    "cuDriverGetVersion": (_P,),
    "cuGetErrorName": (_I, _P),
    "cuStreamSynchronize": (_P,),
    "cuCtxPushCurrent_v2": (_P,),
    "cuCtxPopCurrent_v2": (_P,),
    "cuDeviceGetAttribute": (_P, _I, _I),
    "cuModuleLoadData": (_P, _P),
    "cuModuleUnload": (_P,),
    "cuModuleGetFunction": (_P, _P, c.c_char_p),
    "cuFuncSetAttribute": (_P, _I, _I),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (_P, _P, _I, _S),
    "cuMemsetD8Async": (_A, c.c_ubyte, _S, _P),
    "cuLaunchKernelEx": (_P, _P, _P, _P),
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
MAX_CLUSTERS = "cuOccupancyMaxActiveClusters"  # which older drivers lack
OPTIONAL: Mapping[str, tuple[Any, ...]] = {MAX_CLUSTERS: (_P, _P, _P)}
