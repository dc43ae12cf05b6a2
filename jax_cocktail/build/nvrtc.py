"""NVRTC as a command: ``python -I -S nvrtc.py LIBRARY [OPTION...] -o OUTPUT SOURCE``, or ``--version``.

A process of its own, so that a compilation can be stopped, cannot take the user's program down with it, and
does not meet the NVRTC that XLA may have loaded. It imports nothing of jax_cocktail, which would cost more
time than compiling.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path


class _Failure(Exception):
    """What NVRTC or the file system says."""


def _open(library: str) -> ctypes.CDLL:
    """The library, with its builtins loaded before it: from a wheel it does not find them by itself."""
    path = Path(library)
    if path.parent != Path("."):
        for builtins in sorted(path.parent.glob("libnvrtc-builtins.so*")):
            ctypes.CDLL(str(builtins))
    nvrtc = ctypes.CDLL(library)
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    return nvrtc


def _check(nvrtc: ctypes.CDLL, status: int, log: str = "") -> None:
    if status != 0:
        message = nvrtc.nvrtcGetErrorString(status).decode()
        raise _Failure(f"{log}\nerror: {message}" if log else f"error: {message}")


def _version(nvrtc: ctypes.CDLL) -> str:
    """Two lines: the version, and the architectures that it compiles for."""
    major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    _check(nvrtc, nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    _check(nvrtc, nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
    arches = (ctypes.c_int * count.value)()
    _check(nvrtc, nvrtc.nvrtcGetSupportedArchs(arches))
    return f"{major.value}.{minor.value}\n{' '.join(f'sm_{arch}' for arch in arches)}"


def _compile(nvrtc: ctypes.CDLL, options: Sequence[str], source: Path, output: Path) -> str:
    """Writes the cubin and returns the log."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    text, name = source.read_bytes(), source.name.encode()
    _check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name, 0, None, None))
    words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    status = nvrtc.nvrtcCompileProgram(program, len(options), words)
    _check(nvrtc, nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
    log = ctypes.create_string_buffer(size.value)
    _check(nvrtc, nvrtc.nvrtcGetProgramLog(program, log))
    said = log.value.decode(errors="replace")
    _check(nvrtc, status, said)
    _check(nvrtc, nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
    cubin = ctypes.create_string_buffer(size.value)
    _check(nvrtc, nvrtc.nvrtcGetCUBIN(program, cubin))
    output.write_bytes(cubin.raw)
    return said


def main(arguments: Sequence[str]) -> int:
    """The exit status: 0 if all went well. Everything is said on standard output."""
    library, *rest = arguments
    try:
        nvrtc = _open(library)
        if rest == ["--version"]:
            print(_version(nvrtc))
        else:
            *options, _, output, source = rest
            print(_compile(nvrtc, options, Path(source), Path(output)))
    except (_Failure, OSError, AttributeError) as problem:
        print(problem)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
