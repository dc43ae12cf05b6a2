"""Direct access to a card through the CUDA driver: memory, modules, launches and events, without JAX."""

from __future__ import annotations

import contextlib
import ctypes as c
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jax_cocktail.device.cards import NVIDIA, card_like
from jax_cocktail.device.spec import PORTABLE_CLUSTER, DeviceSpec
from jax_cocktail.errors import BuildError
from jax_cocktail.runtime.cuda.driver import (
    ATTRIBUTES,
    CAPTURE_RELAXED,
    DYNAMIC_SHARED_BYTES,
    FIRST_WITH_CLUSTERS,
    FUNCTIONS,
    MAX_CLUSTERS,
    NON_PORTABLE_CLUSTER,
    OPTIONAL,
    LaunchConfig,
    launch_config,
)
from jax_cocktail.runtime.drivers import CUDA

Array = np.ndarray[Any, Any]

_NON_BLOCKING = 1  # the stream does not wait for the default stream
_P, _S, _A = c.c_void_p, c.c_size_t, c.c_uint64


class CudaError(RuntimeError):
    """Raised if a function of the driver fails. `code`: its result."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Facts:
    """A card's properties from the driver. `driver`: 13000 is CUDA 13.0; `attributes`: by our names."""

    name: str
    driver: int
    memory_bytes: int
    attributes: dict[str, int]

    @property
    def arch(self) -> str:
        """The architecture, such as ``"sm_90"``."""
        return f"sm_{self.attributes['major']}{self.attributes['minor']}"


class Library:
    """The driver's functions, each of which raises `CudaError` on failure."""

    def __init__(self) -> None:
        try:
            library, path = CUDA.opened()
        except OSError as error:
            raise CudaError(f"the CUDA driver cannot be loaded ({error})") from error
        self.functions: dict[str, Callable[..., int]] = {}
        for name, types in {**FUNCTIONS, **OPTIONAL}.items():
            if hasattr(library, name):
                function = getattr(library, name)
                function.argtypes, function.restype = types, c.c_int
                self.functions[name] = function
            elif name in FUNCTIONS:
                raise CudaError(f"the CUDA driver {path} is too old: it has no {name}")
        self("cuInit", 0)

    def __call__(self, name: str, *arguments: Any) -> None:
        result = self.functions[name](*arguments)
        if result:
            error = c.c_char_p()
            self.functions["cuGetErrorName"](result, c.byref(error))
            told = (error.value or b"unknown error").decode(errors="replace")
            raise CudaError(f"{name}: {told} ({result})", result)

    def number(self, name: str, *arguments: Any, kind: Any = c.c_int, before: tuple[Any, ...] = ()) -> int:
        """The value that a function writes to the argument between `before` and `arguments`."""
        value = kind()
        self(name, *before, c.byref(value), *arguments)
        return int(value.value or 0)


def count() -> tuple[int, str]:
    """The number of cards, and the reason if it is 0."""
    try:
        return Library().number("cuDeviceGetCount"), "the driver lists no card"
    except CudaError as error:
        return 0, str(error)


def describe(ordinal: int = 0) -> Facts:
    """The driver's description of a card. Nothing runs on it. Raises CudaError."""
    library = Library()
    return _facts(library, library.number("cuDeviceGet", ordinal))


def _facts(library: Library, device: int) -> Facts:
    name = c.create_string_buffer(256)
    library("cuDeviceGetName", name, 256, device)
    attributes = {
        key: library.number("cuDeviceGetAttribute", number, device) for key, number in ATTRIBUTES.items()
    }
    memory = library.number("cuDeviceTotalMem_v2", device, kind=_S)
    return Facts(name.value.decode(), library.number("cuDriverGetVersion"), memory, attributes)


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch of a kernel. `pointers`: its only parameter, addresses and launch parameters; `cluster`: the
    number of blocks per cluster."""

    function: int
    grid: int
    threads: int
    shared_bytes: int
    pointers: tuple[int, ...]
    cooperative: bool = False
    cluster: int = 1


class Card:
    """A card in its primary context, which JAX uses too; a context manager that frees everything.

    It is for one thread. All work is in a stream of its own and does not wait for other streams. `ordinal`:
    the driver's number of the card among those visible to this process.
    """

    def __init__(self, ordinal: int = 0) -> None:
        self.library = Library()
        self.device = self.library.number("cuDeviceGet", ordinal)
        self._memory: list[int] = []
        self._modules: list[int] = []
        self._events: list[int] = []
        self.stream = 0
        context = self.library.number("cuDevicePrimaryCtxRetain", self.device, kind=_P)
        self.library("cuCtxPushCurrent_v2", context)
        try:
            self.facts = _facts(self.library, self.device)
            self.stream = self.library.number("cuStreamCreate", _NON_BLOCKING, kind=_P)
            self._events = [self.library.number("cuEventCreate", 0, kind=_P) for _ in range(2)]
        except CudaError:
            self.__exit__()
            raise

    def __enter__(self) -> Card:
        return self

    def __exit__(self, *_: object) -> None:
        """Frees everything. After a kernel failure the context is unusable and frees its contents itself."""
        with contextlib.suppress(CudaError):
            self.release()
            for event in self._events:
                self.library("cuEventDestroy_v2", event)
            if self.stream:
                self.library("cuStreamDestroy_v2", self.stream)
        with contextlib.suppress(CudaError):
            self.library.number("cuCtxPopCurrent_v2", kind=_P)
        with contextlib.suppress(CudaError):
            self.library("cuDevicePrimaryCtxRelease_v2", self.device)

    def release(self) -> None:
        """Frees all memory and modules."""
        while self._memory:
            self.library("cuMemFree_v2", self._memory.pop())
        while self._modules:
            self.library("cuModuleUnload", self._modules.pop())

    # -- memory ------------------------------------------------------------------------------------------
    def allocate(self, size: int) -> int:
        """Allocates `size` bytes and returns their address."""
        address = self.library.number("cuMemAlloc_v2", max(size, 16), kind=_A)
        self._memory.append(address)
        return address

    def upload(self, array: Array, tiles: int = 1) -> int:
        """Copies an array to the card, `tiles` times in sequence, and returns the address."""
        array = np.ascontiguousarray(array)
        address = self.allocate(array.nbytes * tiles)
        self.write(address, array)
        for tile in range(1, tiles):
            self.copy(address + tile * array.nbytes, address, array.nbytes)
        return address

    def write(self, address: int, array: Array) -> None:
        """Copies a contiguous array to an address."""
        if array.nbytes:
            self.library("cuMemcpyHtoDAsync_v2", address, array.ctypes.data, array.nbytes, self.stream)
            self.wait()

    def download(self, address: int, array: Array) -> Array:
        """Copies from an address into the array and returns the array."""
        if array.nbytes:
            self.library("cuMemcpyDtoHAsync_v2", array.ctypes.data, address, array.nbytes, self.stream)
            self.wait()
        return array

    def copy(self, target: int, source: int, size: int) -> None:
        """Enqueues a copy of `size` bytes."""
        self.library("cuMemcpyDtoDAsync_v2", target, source, size, self.stream)

    def fill(self, address: int, value: int, size: int) -> None:
        """Enqueues a fill of `size` bytes."""
        self.library("cuMemsetD8Async", address, value, size, self.stream)

    # -- kernels -----------------------------------------------------------------------------------------
    def load(self, binary: bytes) -> int:
        """Loads a cubin or fatbin and returns the module."""
        module = self.library.number("cuModuleLoadData", binary, kind=_P)
        self._modules.append(module)
        return module

    def function(self, module: int, name: str, shared_bytes: int = 0) -> int:
        """A kernel of a module, with `shared_bytes` of dynamic shared memory allowed."""
        found = self.library.number("cuModuleGetFunction", module, name.encode(), kind=_P)
        self.library("cuFuncSetAttribute", found, DYNAMIC_SHARED_BYTES, shared_bytes)
        return found

    def co_resident(self, function: int, threads: int, shared_bytes: int) -> int:
        """The number of blocks of a kernel that can be resident at once."""
        name = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        return self.library.number(name, function, threads, shared_bytes) * self.facts.attributes["units"]

    def fits_cluster(self, launch: Launch) -> bool:
        """True if the card can run the launch's blocks as clusters, as the handler asks it."""
        ask = self.library.functions.get(MAX_CLUSTERS)
        if ask is None or self.facts.attributes["major"] < FIRST_WITH_CLUSTERS:
            return False
        allow = self.library.functions["cuFuncSetAttribute"]
        if launch.cluster > PORTABLE_CLUSTER and allow(launch.function, NON_PORTABLE_CLUSTER, 1):
            return False
        found = c.c_int()
        return ask(c.byref(found), launch.function, c.byref(self._config(launch))) == 0 and found.value > 0

    def _config(self, launch: Launch) -> LaunchConfig:
        cluster = launch.cluster if launch.cluster > 1 else 0
        sizes = launch.grid, launch.threads, launch.shared_bytes
        return launch_config(*sizes, self.stream, cooperative=launch.cooperative, cluster=cluster)

    def launch(self, launch: Launch) -> None:
        """Enqueues a launch."""
        if launch.cluster > PORTABLE_CLUSTER:
            self.library("cuFuncSetAttribute", launch.function, NON_PORTABLE_CLUSTER, 1)
        config = self._config(launch)
        pointers = (c.c_void_p * len(launch.pointers))(*launch.pointers)
        parameters = (c.c_void_p * 1)(c.addressof(pointers))
        self.library("cuLaunchKernelEx", c.byref(config), launch.function, parameters, None)

    def wait(self) -> None:
        """Waits until the stream is empty."""
        self.library("cuStreamSynchronize", self.stream)

    def between_events(self, work: Callable[[], None]) -> float:
        """The seconds that the work enqueued by `work` takes."""
        self.library("cuEventRecord", self._events[0], self.stream)
        work()
        self.library("cuEventRecord", self._events[1], self.stream)
        self.library("cuEventSynchronize", self._events[1])
        milliseconds = c.c_float()
        self.library("cuEventElapsedTime", c.byref(milliseconds), *self._events)
        return milliseconds.value * 1e-3

    def seconds(
        self,
        launch: Launch,
        before: Callable[[], None] = lambda: None,
        times: int = 5,
        pick: Callable[[Sequence[float]], float] = statistics.median,
    ) -> float:
        """The median seconds between events around a launch; `pick` can select another statistic. `before`
        enqueues work before the first event."""
        found = []
        for _ in range(times):
            before()
            found.append(self.between_events(lambda: self.launch(launch)))
        return pick(found)

    def many_seconds(self, launch: Launch, number: int) -> float:
        """The mean seconds of consecutive launches, after one warm-up launch."""
        self.launch(launch)

        def work() -> None:
            for _ in range(number):
                self.launch(launch)

        return self.between_events(work) / number

    def graph_seconds(
        self, work: Callable[[], None], number: int, pick: Callable[[Sequence[float]], float] = min
    ) -> float:
        """The seconds that the work enqueued by `work` takes if a graph holds it `number` times, so that the
        host has no share in them; the least of five runs, or what `pick` selects."""
        work()  # loads the code, which a capture cannot do
        self.wait()
        self.library("cuStreamBeginCapture_v2", self.stream, CAPTURE_RELAXED)
        for _ in range(number):
            work()
        graph = self.library.number("cuStreamEndCapture", kind=_P, before=(self.stream,))
        try:
            executable = self.library.number("cuGraphInstantiateWithFlags", graph, 0, kind=_P)

            def run() -> None:
                self.library("cuGraphLaunch", executable, self.stream)

            run()
            found = pick([self.between_events(run) for _ in range(5)]) / number
            self.library("cuGraphExecDestroy", executable)
        finally:
            self.library("cuGraphDestroy", graph)
        return found


_ARCHES = tuple(dict.fromkeys(spec.arch for spec in NVIDIA))
_SIZES = (
    "threads_per_block",
    "threads_per_unit",
    "blocks_per_unit",
    "units",
    "warp",
    "registers",
    "shared_bytes",
    "shared_per_unit",
    "l2_bytes",
)


def spec_of(facts: Facts, known: Sequence[str] = _ARCHES) -> DeviceSpec:
    """The card's specification for the planner: sizes from the driver, times of the nearest known card.

    Raises:
      BuildError: the card is older than all known cards.
    """
    arch = facts.arch
    if arch not in known:
        older = [a for a in known if int(a[3:]) <= int(arch[3:])]
        if not older:
            raise BuildError(f"{facts.name} ({arch}) is older than every known card", "a newer card")
        arch = max(older, key=lambda a: int(a[3:]))
    sizes: dict[str, Any] = {name: facts.attributes[name] for name in _SIZES}
    sizes["memory_bytes"] = facts.memory_bytes
    if clock := facts.attributes.get("clock_khz"):  # 0 where the driver hides it
        sizes["clock_rate"] = 1e3 * clock
    return replace(card_like(facts.name, arch), name=facts.name, **sizes)
