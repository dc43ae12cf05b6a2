"""The libraries of GPUs' drivers, which `gpu_src/handler_library.h` opens too, and their versions."""

from __future__ import annotations

import ctypes as c
import os
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Driver:
    """A vendor's driver.

    Attributes:
      name: what has releases.
      libraries: names of the library, the preferred one first; `variable`: names it instead.
      version: the function that tells the version; `major`, `minor`: a version is a multiple of each.
    """

    name: str
    libraries: tuple[str, ...]
    variable: str
    version: str
    major: int
    minor: int

    def opened(self) -> tuple[c.CDLL, str]:
        """The library that this process has loaded already, else the first one that is there, and its name.
        Raises OSError if there is none."""
        if chosen := os.environ.get(self.variable):
            return c.CDLL(chosen), chosen
        for name in self.libraries:
            with suppress(OSError):
                return c.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW), name
        for name in self.libraries[:-1]:
            with suppress(OSError):
                return c.CDLL(name), name
        return c.CDLL(self.libraries[-1]), self.libraries[-1]

    def installed(self) -> int:
        """The version, such as 13000 for CUDA 13.0; 0 if there is none. CUDA's driver is not initialised."""
        version = c.c_int()
        try:
            failed = getattr(self.opened()[0], self.version)(c.byref(version))
        except (OSError, AttributeError):
            return 0
        return 0 if failed else version.value

    def release(self, version: int) -> str:
        """The release of a version, such as ``"CUDA 13.0"``."""
        return f"{self.name} {version // self.major}.{version % self.major // self.minor}"


CUDA = Driver("CUDA", ("libcuda.so.1",), "JAX_COCKTAIL_CUDA_DRIVER", "cuDriverGetVersion", 1000, 10)
HIP = Driver(
    "HIP",
    ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"),
    "JAX_COCKTAIL_HIP_LIBRARY",
    "hipRuntimeGetVersion",
    10_000_000,
    100_000,
)
DRIVERS = {"cuda": CUDA, "rocm": HIP}  # by jax's names of platforms
