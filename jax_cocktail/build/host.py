"""Compiles C++ text to a shared object: the host compiler, its flags, and the use of the cache.

The flags keep strict IEEE semantics (no -ffast-math), except that a product and a sum may contract to a fused
multiply-add, as in XLA.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from jax_cocktail.build.command import ANSWER_SECONDS, STOPPED, answer
from jax_cocktail.build.features import features_argument, tuning_argument
from jax_cocktail.build.job import (
    NO_MEMORY,
    Built,
    Facts,
    Job,
    Language,
    Toolchain,
    headers_of,
    is_done,
    make_job,
    obtain,
    program_folders,
    program_headers,
    source_folder,
)
from jax_cocktail.build.library import problem_with
from jax_cocktail.build.zig import zig
from jax_cocktail.cache import DEFAULT_LIMIT_BYTES, cache_dir
from jax_cocktail.errors import BuildError

# Compilers prefer half of a 64-byte register, lest the clock drop. Products use all of it anyway.
_WIDE = ("-mprefer-vector-width=512",) if platform.machine() in ("x86_64", "AMD64") else ()
_BASELINE = "-march="
PROGRAM_FLAGS = (
    "-std=c++17",
    "-O3",
    f"{_BASELINE}native",
    *_WIDE,
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fno-exceptions",
    "-fno-rtti",
    "-fvisibility=hidden",
    "-fPIC",
    "-shared",
    "-Wl,--as-needed",
)
# GCC makes branches of selects between constants, then masks of the branches: exp takes 1.4 times as long.
_GCC_FLAGS = ("-fno-thread-jumps",)
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
_PROGRAM_SYMBOLS = ("ck_program",)
_RUNTIME_SYMBOLS = ("ck_cpu_instantiate", "ck_cpu_execute", "ck_cpu_failure", "ck_cpu_load")
_GPU_SYMBOLS = ("ck_gpu_initialize", "ck_gpu_execute", "ck_gpu_execute_nograph")
_PART = re.compile(r"^#if CK_IN_PART\((\d+)\)$", re.MULTILINE)
_RUNTIME = "runtime_"  # the prefix of headers that handlers include but programs do not


# ---- the compiler ------------------------------------------------------------------------------------------


@functools.cache
def _processor() -> str:
    """A description of the processor here, on which the result of -march=native depends."""
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
    return answer(words, environment)[:4096]


def host_toolchain() -> Toolchain:
    """The C++ compiler to use: $CXX, else c++, g++ or clang++ on PATH, else the `ziglang` package.

    Raises:
      BuildError: there is no compiler, or the one of $CXX does not run.
    """
    return _find_toolchain(os.environ.get("CXX", ""), os.environ.get("PATH", ""), str(cache_dir()))


def _program(name: str, path: str) -> str | None:
    """The absolute path of a program: it runs in other folders than this process."""
    found = shutil.which(name, path=path)
    return os.path.abspath(found) if found else None


def _chosen_toolchain(chosen: str, path: str) -> Toolchain:
    what, remedy = f"the compiler of $CXX ({chosen})", "correct or unset CXX"
    try:
        first, *arguments = shlex.split(chosen)
    except ValueError as error:
        raise BuildError(f"{what} is no command: {error}", remedy) from error
    program = _program(first, path)
    if program is None:
        raise BuildError(f"{what} was not found", remedy)
    version = _version([program, *arguments], {})
    if not version:
        problem = f"does not run, or does not tell its version within {ANSWER_SECONDS:.0f} s"
        raise BuildError(f"{what} {problem}", remedy)
    named = next((each for each in reversed(arguments) if each.startswith(_BASELINE)), "")
    native = not named or any(each.endswith("=native") for each in arguments)
    return Toolchain((program, *arguments), version, _processor() if native else named)


@functools.lru_cache(maxsize=8)
def _find_toolchain(chosen: str, path: str, cache_folder: str) -> Toolchain:
    del cache_folder  # part of the key: the ziglang compiler stores its files there
    if chosen.strip():
        return _chosen_toolchain(chosen, path)
    for name in ("c++", "g++", "clang++"):
        program = _program(name, path)
        version = _version([program], {}) if program else ""
        if program and version:
            return Toolchain((program,), version, _processor())
    found = zig()
    if found is not None:
        binary, environment = found
        command = (binary, "c++", "-nostdlib++")
        version = _version(command, environment)
        if version:
            return Toolchain(command, f"zig {version}", _processor(), tuple(sorted(environment.items())))
    raise BuildError(
        "no C++ compiler was found ($CXX, c++, g++, clang++, the package ziglang)",
        "apt install g++, or pip install ziglang, or set CXX",
    )


def program_flags(toolchain: Toolchain) -> tuple[str, ...]:
    """The flags with which this compiler compiles programs: for the processor here, unless its command names
    another one, such as `g++ -march=x86-64-v3`."""
    is_gcc = "Free Software Foundation" in toolchain.version
    named = any(word.startswith(_BASELINE) for word in toolchain.command)
    flags = tuple(flag for flag in PROGRAM_FLAGS if not (named and flag.startswith(_BASELINE)))
    return (*flags, *_GCC_FLAGS) if is_gcc else flags


# ---- building ----------------------------------------------------------------------------------------------


def _remedy(log: str) -> str:
    """The advice for a compiler failure with this log."""
    if log.startswith(STOPPED):
        return "choose another compiler with CXX, or make the loop smaller"
    if re.search(NO_MEMORY, log):
        return "a smaller program, a machine with more memory (compilers may take half), or another CXX"
    return "choose another compiler with CXX, and report this with the compiler's log"


def _language(symbols: Sequence[str], flags: tuple[str, ...]) -> Language:
    """C++ text that must define `symbols`, compiled with `flags`."""

    def inspect(path: Path, log: str) -> Facts:
        problem = problem_with(path, symbols)
        if problem:
            remedy = "choose another compiler with CXX, or a folder that allows execution with TMPDIR"
            raise BuildError(f"the C++ compiler's output cannot be used: {problem}", remedy, log)
        return {}

    return Language(
        file="program.cc",
        compiler="C++ compiler",
        remedy=_remedy,
        inspect=inspect,
        check=lambda facts: facts.keys(),
        extra=lambda toolchain: (*tuning_argument(toolchain), *features_argument(toolchain, flags)),
        part=("-c",),
        parts=_parts,
    )


def _parts(source: str) -> int:
    """The number of parts in which a text is compiled: its own, lest the binary depend on the cores here."""
    return 1 + max((int(number) for number in _PART.findall(source)), default=0)


def _include(folders: Sequence[Path]) -> list[str]:
    return [f"-I{folder}" for folder in folders]


def build_program(
    source: str,
    toolchain: Toolchain,
    *,
    symbols: Sequence[str] = _PROGRAM_SYMBOLS,
    cache_limit_bytes: int = DEFAULT_LIMIT_BYTES,
) -> Built:
    """Compiles a program's text to a shared object, or takes it from the cache. Raises BuildError.

    `symbols`: what the object must define.
    """
    return obtain(_program_job(source, toolchain, symbols), cache_limit_bytes)


def program_is_built(source: str, toolchain: Toolchain) -> bool:
    """True if `build_program` finds the text in the cache."""
    return is_done(_program_job(source, toolchain, _PROGRAM_SYMBOLS))


def _program_job(source: str, toolchain: Toolchain, symbols: Sequence[str]) -> Job:
    folders = program_folders("cpu_src")
    headers = program_headers(folders)
    flags = program_flags(toolchain)
    includes, language = _include(folders), _language(symbols, flags)
    return make_job(source, flags, PROGRAM_LIBRARIES, includes, headers, toolchain, language)


def build_runtime(include_dir: str, toolchain: Toolchain) -> str:
    """Builds the shared library with the FFI handlers and returns its path. Raises BuildError.

    `include_dir`: ``jax.ffi.include_dir()``.
    """
    folder, common = program_folders("cpu_src")
    names = ("cocktail_base.h", "cocktail_features.h", "cocktail_routines.h", "cocktail_units.h")
    own = [*(folder / name for name in names), *sorted(folder.glob(f"{_RUNTIME}*.h"))]
    headers = [common / "cocktail_types.h", *sorted(common.glob(f"{_RUNTIME}*.h")), *own]
    source, symbols = folder / "runtime.cc", _RUNTIME_SYMBOLS
    return _build_handlers(source, (folder, common), headers, include_dir, toolchain, symbols)


def build_gpu_handler(include_dir: str, toolchain: Toolchain, platform: str) -> str:
    """Builds the shared library with a GPU's FFI handlers and returns its path. Raises BuildError.

    The handlers load the driver with dlopen, so the build needs no part of CUDA or ROCm. `include_dir`:
    ``jax.ffi.include_dir()``; `toolchain`: `host_toolchain()`; `platform`: jax's name, "cuda" or "rocm".
    """
    folders = program_folders(f"{platform}_src")
    source, headers = source_folder("gpu_src") / "handler.cc", headers_of(folders)
    return _build_handlers(source, folders, headers, include_dir, toolchain, _GPU_SYMBOLS)


def _build_handlers(
    source: Path,
    folders: Sequence[Path],
    headers: Sequence[Path],
    include_dir: str,
    toolchain: Toolchain,
    symbols: Sequence[str],
) -> str:
    interface = Path(include_dir) / "xla" / "ffi" / "api" / "c_api.h"
    if not interface.is_file():
        raise BuildError(f"{interface} is missing", "reinstall jaxlib")
    if not source.is_file():
        raise BuildError(f"{source} is missing from the installation", "reinstall jax_cocktail")
    text = source.read_text(encoding="utf-8")
    includes, language = _include((*folders, Path(include_dir))), _language(symbols, RUNTIME_FLAGS)
    headers = [interface, *headers]
    job = make_job(text, RUNTIME_FLAGS, RUNTIME_LIBRARIES, includes, headers, toolchain, language)
    return obtain(job, DEFAULT_LIMIT_BYTES).path
