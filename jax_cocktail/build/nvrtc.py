"""NVRTC as a command: ``python -I -S nvrtc.py LIBRARY [OPTION...] -o OUTPUT SOURCE``, or ``--version``.

It is a separate process, so that a compilation can be stopped, cannot crash the user's program, and does not
conflict with the NVRTC that XLA may have loaded. It imports nothing from jax_cocktail, because the import
would take longer than compiling.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path


class _Failure(Exception):
    """An error of NVRTC or of the file system."""


def _open(library: str) -> ctypes.CDLL:
    """Opens the library, after its builtins, which the library from a wheel does not find itself."""
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
    """Two lines: the version, and the supported architectures."""
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
    """Runs the command. Returns the exit status, 0 on success. All messages go to standard output."""
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
