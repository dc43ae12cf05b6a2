"""The CUDA driver through ctypes: its functions and numbers, and the errors of the handler in Python.

The counterpart of handler_driver.h.
"""

from __future__ import annotations

import ctypes as c
import functools
import os
from collections.abc import Callable
from typing import Any

from jax_cocktail.runtime.ffi import FAILED_PRECONDITION, INTERNAL, RESOURCE_EXHAUSTED, Call

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
HOST_PORTABLE, HOST_DEVICE_MAP = 1, 2


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
_OPTIONAL: dict[str, tuple[Any, ...]] = {
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
_NO_GPU = "there is no NVIDIA GPU here, or CUDA_VISIBLE_DEVICES hides it"
_NOT_THIS_GPU = (
    "the program was compiled for another GPU or a newer driver; compile it again on this machine, or update"
    " NVIDIA's driver"
)
_INSTALLATION = "the driver's installation is at fault; see whether nvidia-smi works"
_KERNEL_FAILED = (
    'a kernel of this process failed, ours or another; start again with the option errors="sync", which finds'
    " out whether it is ours"
)
_COOPERATIVE_REFUSED = (
    "the cooperative launch was refused: fewer blocks can be on the device at once than the driver said (MPS,"
    ' a partition, a debugger?); use the option force="stock" or another device'
)
_CAPTURED = (
    "not allowed while XLA captures a command buffer; XLA_FLAGS=--xla_gpu_enable_command_buffer= switches"
    " capturing off; please report this"
)
_ADVICE = {
    2: "the device or the pinned host memory is full; lower XLA_PYTHON_CLIENT_MEM_FRACTION, so that the"
    " driver has some left, or free arrays",
    100: _NO_GPU,
    **dict.fromkeys((34, 802, 803, 804), _INSTALLATION),
    **dict.fromkeys((200, 209, 218, 221, 222, 223, 300), _NOT_THIS_GPU),
    701: "the kernel wants more registers or shared memory than this device has; compile it again on this"
    " machine",
    **dict.fromkeys((700, 702, 710, *range(714, 720)), _KERNEL_FAILED),
    **dict.fromkeys((720, 801), _COOPERATIVE_REFUSED),
    **dict.fromkeys(range(900, 909), _CAPTURED),
}
NO_BINARY = 209
_FATAL = frozenset((700, *range(703, 720))) - {701, 702}


def driver_path() -> str:
    """The name or path of the driver's library."""
    return os.environ.get("JAX_COCKTAIL_CUDA_DRIVER") or "libcuda.so.1"


def driver_version() -> int:
    """The driver's version: 13000 for CUDA 13.0, 0 if there is none. Does not initialise the driver."""
    version = c.c_int()
    try:
        failed = c.CDLL(driver_path()).cuDriverGetVersion(c.byref(version))
    except (OSError, AttributeError):
        return 0
    return 0 if failed else version.value


class Functions:
    """The functions of the driver's library, as far as it has them. Raises OSError if there is none."""

    def __init__(self) -> None:
        self.functions: dict[str, Callable[..., int]] = {}
        library = c.CDLL(driver_path())
        for name, types in {**NEEDED, **_OPTIONAL, **OF_CARDS}.items():
            if hasattr(library, name):
                function = getattr(library, name)
                function.argtypes, function.restype = types, c.c_int
                self.functions[name] = function

    def words(self, function: str, result: int) -> str:
        """The name or the description of a result, or ""."""
        text = c.c_char_p()
        self.functions[function](result, c.byref(text))
        return (text.value or b"").decode(errors="replace")


class Driver(Functions):
    """The driver as the handler needs it. `problem`: the reason why it cannot be used, or ""."""

    def __init__(self) -> None:
        self.problem, self.version = "", 0
        try:
            super().__init__()
        except OSError as error:
            self.problem = (
                f"the CUDA driver cannot be loaded ({error}): install NVIDIA's driver, or name its library in"
                " JAX_COCKTAIL_CUDA_DRIVER"
            )
            return
        if "cuDriverGetVersion" in self.functions:
            self.version = self._number("cuDriverGetVersion")
        missing = [name for name in NEEDED if name not in self.functions]
        if missing:
            self.problem = (
                f"the CUDA driver {driver_path()} is too old"
                f" (CUDA {self.version // 1000}.{self.version % 1000 // 10}, without {missing[-1]}):"
                " CUDA 11.8 or newer is needed; update NVIDIA's driver"
            )
            return
        result = self.functions["cuInit"](0)
        if result != 0:
            advice = _NO_GPU if result == 100 else "see whether nvidia-smi works"
            name = self.words("cuGetErrorName", result) or "unknown error"
            self.problem = f"the CUDA driver does not start: cuInit: {name}: {advice}"

    def _number(self, name: str) -> int:
        value = c.c_int()
        self.functions[name](c.byref(value))
        return value.value

    def call(self, call: Call, name: str, *arguments: Any) -> None:
        """Calls a function of the driver. Raises Refused if it fails."""
        self.check(call, self.functions[name](*arguments), name)

    def check(self, call: Call, result: int, name: str) -> None:
        """Raises Refused if `result` of the driver's function `name` is an error."""
        if result == 0:
            return
        out_of_room = RESOURCE_EXHAUSTED if result in (2, 701) else FAILED_PRECONDITION
        error = self.words("cuGetErrorName", result) or "unknown error"
        text = self.words("cuGetErrorString", result) or "no description"
        advice = _ADVICE.get(result, 'the option force="stock" runs stock XLA')
        what = f"{name.removesuffix('_v2')}: {error} ({result}, {text}): {advice}"
        raise call.refused(INTERNAL if result in _FATAL else out_of_room, what)


@functools.cache
def the_driver() -> Driver:
    return Driver()
