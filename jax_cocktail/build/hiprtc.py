"""HIPRTC as a command: ``python -I -S hiprtc.py LIBRARY [OPTION...] -o OUTPUT SOURCE``, or ``--version``.

It is a separate process for the reasons that `nvrtc` is one, and imports nothing from jax_cocktail either.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


class _Failure(Exception):
    """An error of HIPRTC or of the file system."""


def _open(library: str) -> ctypes.CDLL:
    hiprtc = ctypes.CDLL(library)
    hiprtc.hiprtcGetErrorString.restype = ctypes.c_char_p
    return hiprtc


def _check(hiprtc: ctypes.CDLL, status: int, log: str = "") -> None:
    if status != 0:
        message = hiprtc.hiprtcGetErrorString(status).decode()
        raise _Failure(f"{log}\nerror: {message}" if log else f"error: {message}")


def _version(hiprtc: ctypes.CDLL, library: str) -> str:
    """Two lines: the release, which stands in the library's file name, and the supported architectures, empty
    if they cannot be asked for."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(hiprtc, hiprtc.hiprtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    file = _file(Path(library).name.partition(".so")[0])
    release = file.name.partition(".so.")[2] or f"{major.value}.{minor.value}"
    arches: list[str] = []
    with suppress(OSError, AttributeError, StopIteration):
        arches = _arches(_code_manager(file.parent))
    return f"{release}\n{' '.join(arches)}"


def _file(name: str) -> Path:
    """The file of a library that is loaded."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    paths = (Path(line.split(maxsplit=5)[-1]) for line in lines)
    return next((path for path in paths if path.name.startswith(f"{name}.so")), Path(name))


def _code_manager(folder: Path) -> ctypes.CDLL:
    """The library with the compiler, which HIPRTC opens when it needs it."""
    beside = sorted(folder.glob("libamd_comgr.so*"), reverse=True)
    return ctypes.CDLL(str(next(iter(beside), ctypes.util.find_library("amd_comgr"))))


def _arches(manager: ctypes.CDLL) -> list[str]:
    """The architectures by their names in options: of "amdgcn-amd-amdhsa--gfx90a" the last part."""
    count, name, found = ctypes.c_size_t(), ctypes.c_char_p(), []
    if manager.amd_comgr_get_isa_count(ctypes.byref(count)) != 0:
        return []
    for number in range(count.value):
        if manager.amd_comgr_get_isa_name(ctypes.c_size_t(number), ctypes.byref(name)) == 0 and name.value:
            found.append(name.value.decode().rpartition("-")[2])
    return found


def _compile(hiprtc: ctypes.CDLL, options: Sequence[str], source: Path, output: Path) -> str:
    """Writes the code object and returns the log."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    text, name = source.read_bytes(), source.name.encode()
    _check(hiprtc, hiprtc.hiprtcCreateProgram(ctypes.byref(program), text, name, 0, None, None))
    words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    status = hiprtc.hiprtcCompileProgram(program, len(options), words)
    _check(hiprtc, hiprtc.hiprtcGetProgramLogSize(program, ctypes.byref(size)))
    log = ctypes.create_string_buffer(size.value + 1)
    _check(hiprtc, hiprtc.hiprtcGetProgramLog(program, log))
    said = log.value.decode(errors="replace")
    _check(hiprtc, status, said)
    _check(hiprtc, hiprtc.hiprtcGetCodeSize(program, ctypes.byref(size)))
    code = ctypes.create_string_buffer(size.value)
    _check(hiprtc, hiprtc.hiprtcGetCode(program, code))
    output.write_bytes(code.raw)
    return said


def main(arguments: Sequence[str]) -> int:
    """Runs the command. Returns the exit status, 0 on success. All messages go to standard output."""
    library, *rest = arguments
    try:
        hiprtc = _open(library)
        if rest == ["--version"]:
            print(_version(hiprtc, library))
        else:
            *options, _, output, source = rest
            print(_compile(hiprtc, options, Path(source), Path(output)))
    except (_Failure, OSError, AttributeError) as problem:
        print(problem)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
