"""NVRTC or HIPRTC as a command: ``python -I -S rtc.py LIBRARY [OPTION...] -o OUTPUT SOURCE|--version``.

It is a separate process, so that a compilation can be stopped, cannot crash the user's program, and does not
conflict with the compiler that XLA may have loaded. It imports nothing from jax_cocktail, because the import
would take longer than compiling.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_BINARY = {"nvrtc": "CUBIN", "hiprtc": "Code"}  # the names of what is compiled, by prefixes of functions


class _Failure(Exception):
    """An error of the compiler or of the file system."""


class _Library:
    """A library with either compiler, whose functions have the same names behind a prefix."""

    def __init__(self, path: str) -> None:
        folder = Path(path).parent
        if folder != Path("."):  # a library from a wheel does not find its builtins itself
            for builtins in sorted(folder.glob("libnvrtc-builtins.so*")):
                ctypes.CDLL(str(builtins))
        self._library = ctypes.CDLL(path)
        self.prefix = "nvrtc" if hasattr(self._library, "nvrtcVersion") else "hiprtc"

    def __call__(self, name: str, *arguments: object) -> int:
        """Calls a function, and returns its status."""
        return int(getattr(self._library, self.prefix + name)(*arguments))

    def check(self, status: int, log: str = "") -> None:
        """Raises _Failure if a status is an error."""
        if status != 0:
            describe = getattr(self._library, f"{self.prefix}GetErrorString")
            describe.restype = ctypes.c_char_p
            message = f"error: {describe(status).decode()}"
            raise _Failure(f"{log}\n{message}" if log else message)

    def bytes_of(self, what: str, program: ctypes.c_void_p) -> bytes:
        """A part of a compiled program: its log or its binary."""
        size = ctypes.c_size_t()
        self.check(self(f"Get{what}Size", program, ctypes.byref(size)))
        found = ctypes.create_string_buffer(size.value + 1)
        self.check(self(f"Get{what}", program, found))
        return found.raw[: size.value]


def _version(library: _Library, path: str) -> str:
    """Two lines: the version, and the supported architectures, empty if they cannot be asked for."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.check(library("Version", ctypes.byref(major), ctypes.byref(minor)))
    release = f"{major.value}.{minor.value}"
    if library.prefix == "nvrtc":
        return f"{release}\n{' '.join(_nvidia_arches(library))}"
    file = _file(Path(path).name.partition(".so")[0])
    arches: list[str] = []
    with suppress(OSError, AttributeError, StopIteration):
        arches = _amd_arches(_code_manager(file.parent))
    return f"{file.name.partition('.so.')[2] or release}\n{' '.join(arches)}"  # HIP's is in the file's name


def _nvidia_arches(library: _Library) -> list[str]:
    count = ctypes.c_int()
    library.check(library("GetNumSupportedArchs", ctypes.byref(count)))
    arches = (ctypes.c_int * count.value)()
    library.check(library("GetSupportedArchs", arches))
    return [f"sm_{arch}" for arch in arches]


def _file(name: str) -> Path:
    """The file of a library that is loaded."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    paths = (Path(line.split(maxsplit=5)[-1]) for line in lines)
    return next((path for path in paths if path.name.startswith(f"{name}.so")), Path(name))


def _code_manager(folder: Path) -> ctypes.CDLL:
    """The library with AMD's compiler, which HIPRTC opens when it needs it."""
    from ctypes.util import find_library  # takes longer than all else, and NVRTC does without

    beside = sorted(folder.glob("libamd_comgr.so*"), reverse=True)
    return ctypes.CDLL(str(next(iter(beside), find_library("amd_comgr"))))


def _amd_arches(manager: ctypes.CDLL) -> list[str]:
    """The architectures by their names in options: of "amdgcn-amd-amdhsa--gfx90a" the last part."""
    count, name, found = ctypes.c_size_t(), ctypes.c_char_p(), []
    if manager.amd_comgr_get_isa_count(ctypes.byref(count)) != 0:
        return []
    for number in range(count.value):
        if manager.amd_comgr_get_isa_name(ctypes.c_size_t(number), ctypes.byref(name)) == 0 and name.value:
            found.append(name.value.decode().rpartition("-")[2])
    return found


def _compile(library: _Library, options: Sequence[str], source: Path, output: Path) -> str:
    """Writes the binary and returns the log."""
    program, text, name = ctypes.c_void_p(), source.read_bytes(), source.name.encode()
    library.check(library("CreateProgram", ctypes.byref(program), text, name, 0, None, None))
    words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    status = library("CompileProgram", program, len(options), words)
    log = library.bytes_of("ProgramLog", program).partition(b"\0")[0].decode(errors="replace")
    library.check(status, log)
    output.write_bytes(library.bytes_of(_BINARY[library.prefix], program))
    return log


def main(arguments: Sequence[str]) -> int:
    """Runs the command. Returns the exit status, 0 on success. All messages go to standard output."""
    path, *rest = arguments
    try:
        library = _Library(path)
        if rest == ["--version"]:
            print(_version(library, path))
        else:
            *options, _, output, source = rest
            print(_compile(library, options, Path(source), Path(output)))
    except (_Failure, OSError, AttributeError) as problem:
        print(problem)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
