"""The loops of `scalar` in C++ (by_hand.cc), compiled as one compiles them for the processor at hand."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jax_cocktail.build.host import host_toolchain

FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-ffp-contract=fast", "-fopenmp", "-shared", "-fPIC")


@functools.cache
def _library() -> ctypes.CDLL:
    """Raises ImportError if the compiler here, or its OpenMP, cannot make it."""
    source = Path(__file__).with_suffix(".cc")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "by_hand.so"
        tools = host_toolchain()
        command = [*tools.command, *FLAGS, str(source), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ImportError(f"the C++ compiler did not compile {source.name}:\n{done.stderr}")
        return ctypes.CDLL(str(made))


def _passed(value: Any) -> Any:
    """Arrays as pointers, integers as int64, and scalars of NumPy as they are."""
    if isinstance(value, np.ndarray):
        return ctypes.c_void_p(value.ctypes.data)
    if isinstance(value, np.float32):
        return ctypes.c_float(float(value))
    return ctypes.c_uint32(int(value)) if isinstance(value, np.uint32) else ctypes.c_int64(value)


def loop(name: str, found: np.ndarray, *arguments: Any) -> Callable[[], np.ndarray]:
    """A run of the function `name`, which writes `found`. Raises ImportError."""
    function, passed = getattr(_library(), name), [*map(_passed, (*arguments, found))]
    function.restype = None

    def run(_: Any = arguments) -> np.ndarray:  # keeps the arrays
        function(*passed)
        return found

    return run
