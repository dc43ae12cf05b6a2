"""Compiles C++ text to a shared object: the host compiler, its flags, and the use of the cache.

The flags keep strict IEEE semantics (no -ffast-math), except that a product and a sum may contract to a fused
multiply-add, as in XLA.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from jax_cocktail.build.job import (
    Built,
    Facts,
    Language,
    Toolchain,
    answer,
    headers_of,
    make_job,
    obtain,
    package_folders,
    program_folders,
)
from jax_cocktail.cache import DEFAULT_LIMIT_BYTES, cache_dir
from jax_cocktail.errors import BuildError

PROGRAM_FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fopenmp-simd",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fno-exceptions",
    "-fno-rtti",
    "-fvisibility=hidden",
    "-fPIC",
    "-shared",
    "-Wl,--as-needed",
)
RUNTIME_FLAGS = (
    "-std=c++17",
    "-O2",
    "-fno-exceptions",
    "-fno-rtti",
    "-fvisibility=hidden",
    "-fPIC",
    "-shared",
    "-Wl,--as-needed",
)
PROGRAM_LIBRARIES = ("-lm",)
RUNTIME_LIBRARIES = ("-lpthread", "-ldl")
_RUNTIME = "runtime_"  # the prefix of headers that handlers include but programs do not


# ---- the compiler ------------------------------------------------------------------------------------------


@functools.cache
def _processor() -> str:
    """A description of the processor, on which the result of -march=native depends."""
    lines = [platform.machine()]
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "\n".join([*lines, platform.processor()])
    wanted = ("flags", "Features", "model name", "cpu family", "model", "stepping", "CPU part")
    for line in text.split("\n\n")[0].splitlines():
        if line.split(":")[0].strip() in wanted:
            lines.append(line)
    return "\n".join(lines)


def _version(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """The compiler's version text; "" if it does not run."""
    words = [command[0], "version"] if command[1:2] == ["c++"] else [*command, "--version"]
    return answer(words, environment)


def _zig() -> tuple[tuple[str, ...], dict[str, str]] | None:
    """The clang in the `ziglang` package, called directly because `python -m ziglang` takes 0.15 s longer."""
    folders = package_folders("ziglang")
    binary = Path(folders[0]) / "zig" if folders else None
    if binary is None or not binary.is_file():
        return None
    folder = cache_dir() / "zig"
    environment = {"ZIG_GLOBAL_CACHE_DIR": str(folder), "ZIG_LOCAL_CACHE_DIR": str(folder)}
    return (str(binary), "c++", "-nostdlib++"), environment


def host_toolchain() -> Toolchain:
    """The C++ compiler to use: $CXX, else c++, g++ or clang++ on PATH, else the `ziglang` package.

    Raises:
      BuildError: there is no compiler, or the one of $CXX does not run.
    """
    return _find_toolchain(os.environ.get("CXX", ""), os.environ.get("PATH", ""), str(cache_dir()))


@functools.lru_cache(maxsize=8)
def _find_toolchain(chosen: str, path: str, cache_folder: str) -> Toolchain:
    del cache_folder  # part of the key: the ziglang compiler stores its files there
    if chosen.strip():
        words = shlex.split(chosen)
        program = shutil.which(words[0], path=path)
        version = _version([program, *words[1:]], {}) if program else ""
        if program is None or not version:
            problem = "does not run" if program else "was not found"
            raise BuildError(f"the compiler of $CXX ({chosen}) {problem}", "correct or unset CXX")
        return Toolchain((program, *words[1:]), version, _processor())
    for name in ("c++", "g++", "clang++"):
        program = shutil.which(name, path=path)
        version = _version([program], {}) if program else ""
        if program and version:
            return Toolchain((program,), version, _processor())
    zig = _zig()
    if zig is not None:
        command, environment = zig
        version = _version(command, environment)
        if version:
            return Toolchain(command, f"zig {version}", _processor(), tuple(sorted(environment.items())))
    raise BuildError(
        "no C++ compiler was found ($CXX, c++, g++, clang++, the package ziglang)",
        "apt install g++, or pip install ziglang, or set CXX",
    )


# ---- building ----------------------------------------------------------------------------------------------


def _check_loads(path: Path, log: str) -> Facts:
    """Loads a new binary, so that a bad one fails its build and not the user's program later. It is unloaded
    again, so that damage to the file cannot affect this process. Raises BuildError if it does not load."""
    try:
        handle = ctypes.CDLL(str(path))._handle
        ctypes.CDLL(None).dlclose(ctypes.c_void_p(handle))
    except OSError as error:
        raise BuildError(
            f"the C++ compiler's output cannot be loaded ({error})", "choose another compiler with CXX", log
        ) from error
    return {}


HOST = Language(
    file="program.cc",
    compiler="C++ compiler",
    remedy=lambda log: "choose another compiler with CXX, and report the log below",
    inspect=_check_loads,
    check=lambda facts: facts.keys(),
)


def _include(folders: Sequence[Path]) -> list[str]:
    return [f"-I{folder}" for folder in folders]


def build_program(
    source: str, toolchain: Toolchain, *, cache_limit_bytes: int = DEFAULT_LIMIT_BYTES
) -> Built:
    """Compiles a program's text to a shared object, or takes it from the cache. Raises BuildError."""
    folders = program_folders("cpu_src")
    headers = [path for path in headers_of(folders) if not path.name.startswith(_RUNTIME)]
    includes = _include(folders)
    job = make_job(source, PROGRAM_FLAGS, PROGRAM_LIBRARIES, includes, headers, toolchain, HOST)
    return obtain(job, cache_limit_bytes)


def build_runtime(include_dir: str, toolchain: Toolchain) -> str:
    """Builds the shared library with the FFI handlers and returns its path. Raises BuildError.

    `include_dir`: ``jax.ffi.include_dir()``.
    """
    folder, common = program_folders("cpu_src")
    names = ("cocktail_base.h", "cocktail_features.h", "cocktail_units.h")
    own = [*(folder / name for name in names), *sorted(folder.glob(f"{_RUNTIME}*.h"))]
    headers = [common / "cocktail_types.h", *sorted(common.glob(f"{_RUNTIME}*.h")), *own]
    return _build_handlers(folder / "runtime.cc", (folder, common), headers, include_dir, toolchain)


def build_gpu_handler(include_dir: str, toolchain: Toolchain) -> str:
    """Builds the shared library with the GPU's FFI handlers and returns its path. Raises BuildError.

    The handlers load the driver with dlopen, so the build needs no part of CUDA. `include_dir`:
    ``jax.ffi.include_dir()``; `toolchain`: `host_toolchain()`.
    """
    folders = program_folders("cuda_src")
    return _build_handlers(folders[0] / "handler.cc", folders, headers_of(folders), include_dir, toolchain)


def _build_handlers(
    source: Path, folders: Sequence[Path], headers: Sequence[Path], include_dir: str, toolchain: Toolchain
) -> str:
    interface = Path(include_dir) / "xla" / "ffi" / "api" / "c_api.h"
    if not interface.is_file():
        raise BuildError(f"{interface} is missing", "reinstall jaxlib")
    if not source.is_file():
        raise BuildError(f"{source} is missing from the installation", "reinstall jax_cocktail")
    text = source.read_text(encoding="utf-8")
    includes = _include((*folders, Path(include_dir)))
    job = make_job(text, RUNTIME_FLAGS, RUNTIME_LIBRARIES, includes, [interface, *headers], toolchain, HOST)
    return obtain(job, DEFAULT_LIMIT_BYTES).path
