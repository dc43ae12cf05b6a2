"""The CUDA driver through ctypes, for the handler in Python; the counterpart of handler_driver.h."""

from __future__ import annotations

import ctypes as c
import functools
import os
from collections.abc import Callable
from typing import Any

from jax_cocktail.runtime.ffi import FAILED_PRECONDITION, INTERNAL, RESOURCE_EXHAUSTED, Call

MULTIPROCESSORS, MAJOR, MINOR, COOPERATIVE, SHARED_OPT_IN = 16, 75, 76, 95, 97
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


_P = c.c_void_p
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c.c_uint,),
    "cuDriverGetVersion": (_P,),
    "cuGetErrorName": (c.c_int, _P),
    "cuGetErrorString": (c.c_int, _P),
    "cuStreamGetCtx": (_P, _P),
    "cuStreamSynchronize": (_P,),
    "cuCtxGetCurrent": (_P,),
    "cuCtxPushCurrent_v2": (_P,),
    "cuCtxPopCurrent_v2": (_P,),
    "cuCtxGetDevice": (_P,),
    "cuDeviceGetAttribute": (_P, c.c_int, c.c_int),
    "cuModuleLoadData": (_P, _P),
    "cuModuleUnload": (_P,),
    "cuModuleGetFunction": (_P, _P, c.c_char_p),
    "cuFuncSetAttribute": (_P, c.c_int, c.c_int),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (_P, _P, c.c_int, c.c_size_t),
    "cuMemHostAlloc": (_P, c.c_size_t, c.c_uint),
    "cuMemFreeHost": (_P,),
    "cuMemHostGetDevicePointer_v2": (_P, _P, c.c_uint),
    "cuMemsetD8Async": (c.c_uint64, c.c_ubyte, c.c_size_t, _P),
    "cuLaunchKernelEx": (_P, _P, _P, _P),
    "cuThreadExchangeStreamCaptureMode": (_P,),
}
_OPTIONAL: dict[str, tuple[Any, ...]] = {
    "cuOccupancyMaxActiveClusters": (_P, _P, _P),
    "cuCtxGetId": (_P, _P),
    "cuFuncGetParamInfo": (_P, c.c_size_t, _P, _P),
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


class Driver:
    """The driver's library. `problem`: the reason why it cannot be used, or ""."""

    def __init__(self) -> None:
        path = driver_path()
        self.problem, self.version = "", 0
        self.functions: dict[str, Callable[..., int]] = {}
        try:
            library = c.CDLL(path)
        except OSError as error:
            self.problem = (
                f"the CUDA driver cannot be loaded ({error}): install NVIDIA's driver, or name its library in"
                " JAX_COCKTAIL_CUDA_DRIVER"
            )
            return
        for name, types in {**_SIGNATURES, **_OPTIONAL}.items():
            if hasattr(library, name):
                function = getattr(library, name)
                function.argtypes, function.restype = types, c.c_int
                self.functions[name] = function
        if "cuDriverGetVersion" in self.functions:
            self.version = self._number("cuDriverGetVersion")
        missing = [name for name in _SIGNATURES if name not in self.functions]
        if missing:
            self.problem = (
                f"the CUDA driver {path} is too old (CUDA {self.version // 1000}.{self.version % 1000 // 10},"
                f" without {missing[-1]}): CUDA 11.8 or newer is needed; update NVIDIA's driver"
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

    def words(self, function: str, result: int) -> str:
        """The name or the description of a result, or ""."""
        text = c.c_char_p()
        self.functions[function](result, c.byref(text))
        return (text.value or b"").decode(errors="replace")

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
