"""A GPU's driver through ctypes: its library, and the errors of the handler in Python.

The counterpart of handler_library.h. What is of one vendor alone is in `runtime.cuda` and `runtime.rocm`.
"""

from __future__ import annotations

import ctypes as c
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from jax_cocktail.runtime.ffi import FAILED_PRECONDITION, INTERNAL, RESOURCE_EXHAUSTED, Call

CAPTURE_RELAXED = 2
HOST_PORTABLE, HOST_DEVICE_MAP = 1, 2
NO_DEVICE, NO_BINARY = 100, 209
_FATAL = frozenset((700, *range(703, 720))) - {701, 702}
Prototypes = Mapping[str, tuple[Any, ...]]  # the types of parameters by the name of a function


@dataclass(frozen=True, slots=True)
class Words:
    """What a vendor calls things, and where its library is.

    Attributes:
      platform: what has releases; oldest: the first of them that is enough.
      driver, of_vendor: the driver, in the middle of a sentence.
      libraries: names of the library, the preferred one first; variable: names it instead.
      no_device: why there may be no device; tool: tells whether the installation works.
      refusers: what may take room for blocks.
      init, version, error_name, error_text: functions.
    """

    platform: str
    oldest: str
    driver: str
    of_vendor: str
    libraries: tuple[str, ...]
    variable: str
    no_device: str
    tool: str
    refusers: str
    init: str
    version: str
    error_name: str
    error_text: str


@dataclass(frozen=True, slots=True)
class Symbols:
    """The functions of a driver that the handler calls in the same way on every GPU."""

    load: str
    unload: str
    find: str
    host_alloc: str
    host_free: str
    host_address: str
    memset: str
    wait: str
    capture_mode: str


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What the device of a stream is. `cooperative`: 0 or 1; `parameter_limit`: bytes of a kernel's
    parameters; `name`: for people."""

    units: int
    shared_bytes: int
    cooperative: int
    parameter_limit: int
    name: str


@dataclass(frozen=True, slots=True)
class Launch:
    """How a kernel is launched. `cluster`: all blocks are one."""

    function: int
    grid: int
    threads: int
    shared_bytes: int
    cooperative: bool = False
    cluster: bool = False


def opened(words: Words) -> tuple[c.CDLL, str]:
    """The library that this process has loaded already, else the first one that is there, and its name.
    Raises OSError if there is none."""
    if chosen := os.environ.get(words.variable):
        return c.CDLL(chosen), chosen
    for name in words.libraries:
        with suppress(OSError):
            return c.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW), name
    for name in words.libraries[:-1]:
        with suppress(OSError):
            return c.CDLL(name), name
    return c.CDLL(words.libraries[-1]), words.libraries[-1]


def version_of(words: Words) -> int:
    """The driver's version as it tells it, 0 if there is none. Does not initialise the driver of CUDA."""
    version = c.c_int()
    try:
        failed = getattr(opened(words)[0], words.version)(c.byref(version))
    except (OSError, AttributeError):
        return 0
    return 0 if failed else version.value


class Functions:
    """The functions of a driver's library, as far as it has them. Raises OSError if there is none."""

    def __init__(self, words: Words, prototypes: Prototypes) -> None:
        self.functions: dict[str, Callable[..., int]] = {}
        library, self.path = opened(words)
        for name, types in prototypes.items():
            if hasattr(library, name):
                function = getattr(library, name)
                function.argtypes, function.restype = types, c.c_int
                self.functions[name] = function

    def words(self, function: str, result: int) -> str:
        """The name or the description of a result, or ""."""
        text = c.c_char_p()
        self.functions[function](result, c.byref(text))
        return (text.value or b"").decode(errors="replace")


class Driver(Functions, ABC):
    """A driver as the handler needs it. `problem`: the reason why it cannot be used, or ""."""

    vendor: Words
    symbols: Symbols
    host_flags: int

    def __init__(self, needed: Prototypes, optional: Prototypes) -> None:
        vendor = self.vendor
        self.problem, self.version = "", 0
        try:
            super().__init__(vendor, {**needed, **optional})
        except OSError as error:
            self.problem = (
                f"the {vendor.driver} cannot be loaded ({error}): install {vendor.of_vendor}, or name its"
                f" library in {vendor.variable}"
            )
            return
        if vendor.version in self.functions:
            self.version = self.number(vendor.version)
        missing = [name for name in needed if name not in self.functions]
        if missing:
            self.problem = (
                f"the {vendor.driver} {self.path} is too old ({self.release}, without {missing[-1]}):"
                f" {vendor.platform} {vendor.oldest} or newer is needed; update {vendor.of_vendor}"
            )
            return
        result = self.functions[vendor.init](0)
        if result != 0:
            advice = vendor.no_device if result == NO_DEVICE else f"see whether {vendor.tool} works"
            self.problem = (
                f"the {vendor.driver} does not start: {vendor.init}: {self.name_of(result)}: {advice}"
            )

    def number(self, name: str) -> int:
        """The value that a function writes to its only argument."""
        value = c.c_int()
        self.functions[name](c.byref(value))
        return value.value

    def name_of(self, result: int) -> str:
        """The driver's name of an error."""
        return self.words(self.vendor.error_name, result) or "unknown error"

    def call(self, call: Call, name: str, *arguments: Any) -> None:
        """Calls a function of the driver. Raises Refused if it fails."""
        self.check(call, self.functions[name](*arguments), name)

    def check(self, call: Call, result: int, name: str) -> None:
        """Raises Refused if `result` of the driver's function `name` is an error."""
        if result == 0:
            return
        out_of_room = RESOURCE_EXHAUSTED if result in (2, 701) else FAILED_PRECONDITION
        text = self.words(self.vendor.error_text, result) or "no description"
        told = f"{self.name_of(result)} ({result}, {text})"
        what = f"{name.removesuffix('_v2')}: {told}: {self._advice(result)}"
        raise call.refused(INTERNAL if result in _FATAL else out_of_room, what)

    def _advice(self, result: int) -> str:
        vendor = self.vendor
        table = {
            2: "the device or the pinned host memory is full; lower XLA_PYTHON_CLIENT_MEM_FRACTION, so that"
            " the driver has some left, or free arrays",
            NO_DEVICE: vendor.no_device,
            **dict.fromkeys(
                (34, 802, 803, 804),
                f"the driver's installation is at fault; see whether {vendor.tool} works",
            ),
            **dict.fromkeys(
                (200, NO_BINARY, 218, 221, 222, 223, 300, 303),
                "the program was compiled for another GPU or a newer driver; compile it again on this"
                f" machine, or update {vendor.of_vendor}",
            ),
            701: "the kernel wants more registers or shared memory than this device has; compile it again on"
            " this machine",
            **dict.fromkeys(
                (700, 702, 710, *range(714, 720)),
                'a kernel of this process failed, ours or another; start again with the option errors="sync",'
                " which finds out whether it is ours",
            ),
            **dict.fromkeys(
                (720, 801),
                "the cooperative launch was refused: fewer blocks can be on the device at once than the"
                f' driver said ({vendor.refusers}); use the option force="stock" or another device',
            ),
            **dict.fromkeys(
                range(900, 909),
                "not allowed while XLA captures a command buffer; XLA_FLAGS=--xla_gpu_enable_command_buffer="
                " switches capturing off; please report this",
            ),
        }
        return table.get(result, 'the option force="stock" runs stock XLA')

    @property
    @abstractmethod
    def release(self) -> str:
        """The release, such as ``"CUDA 13.0"``."""

    @abstractmethod
    def enter(self, call: Call, stream: int) -> tuple[tuple[int, int], int | None]:
        """Makes the place of a stream current. Returns the place and what `leave` needs."""

    @abstractmethod
    def leave(self, before: int | None) -> None:
        """Makes current what was so before `enter`."""

    @abstractmethod
    def describe(self, call: Call) -> DeviceFacts:
        """Says what the current device is."""

    @abstractmethod
    def co_resident(self, call: Call, launch: Launch) -> int:
        """How many blocks can be on a multiprocessor at once."""

    @abstractmethod
    def fits_cluster(self, call: Call, launch: Launch) -> bool:
        """Whether the device has room for all blocks as one cluster."""

    @abstractmethod
    def parameter_bytes(self, function: int) -> int:
        """What a kernel takes, 0 if the driver cannot say."""

    @abstractmethod
    def start(self, call: Call, launch: Launch, stream: int, parameters: Any) -> None:
        """Enqueues a launch."""
