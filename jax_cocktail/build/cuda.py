"""Compiles CUDA text for one GPU architecture with nvcc or else NVRTC, through the same cache as CPU
programs.

Compilation needs neither a GPU nor a driver. As on the CPU, fast math is off, but a product and a sum may
contract to a fused multiply-add.
"""

from __future__ import annotations

import ctypes.util
import functools
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from jax_cocktail.build import ptx
from jax_cocktail.build.command import answer, settings_of
from jax_cocktail.build.job import (
    Facts,
    Job,
    Language,
    make_job,
    package_folders,
    program_folders,
    program_headers,
)
from jax_cocktail.build.kernels import (
    Compilers,
    DeviceToolchain,
    KernelFacts,
    kernels_of,
    programs_named,
    remedy_for,
    runtime_compiler,
    stored,
    unknown_arch,
)
from jax_cocktail.errors import BuildError

STANDARD = "c++17"
NVCC_FLAGS = (
    f"-std={STANDARD}",
    "-O3",
    "--disable-warnings",
    "-Xptxas",
    "-v",
    # The names of static symbols contain the source's path, which differs in every build. The same text must
    # give the same binary, because executables that embed it are looked up by content.
    "-Xcudafe",
    "--orig_src_path_name,program.cu",
)
NVRTC_FLAGS = (f"--std={STANDARD}", "--disable-warnings", "--ptxas-options=-v")
# ptxas compiles functions side by side. The machine code is the same for every number of threads. nvcc has an
# option of this name too, which also optimizes functions without their callers: that takes more registers.
_PTXAS_THREADS = "--ptxas-options=--split-compile=16"
_FIRST_WITH_THREADS = 13  # release of CUDA
PART_BYTES = 8 << 10  # [M] of text: each part reads the headers, which takes nvcc 0.25 s
_ENTRIES = re.compile(r"^CK_ENTRIES$", re.MULTILINE)
_MAGIC = (bytes.fromhex("50ed55ba"), b"\x7fELF")  # of a fatbin and of a cubin
_VARIABLES = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")  # nvcc reads them
_INSTALL = "pip install '.[cuda]' in a checkout (nvcc, beside g++) or nvidia-cuda-nvrtc, or set CUDA_HOME"


# ---- the compiler ------------------------------------------------------------------------------------------


def find(arch: str = "") -> DeviceToolchain:
    """The CUDA compiler to use: nvcc on PATH, in $CUDA_HOME, in $CUDA_PATH or from wheels, else NVRTC from a
    wheel or the system. `arch`: an architecture that it must support. Raises BuildError if there is none."""
    return _find_toolchain(arch, *_places(), package_folders("nvidia"), settings_of(_VARIABLES))


def installed() -> Iterator[DeviceToolchain]:
    """All compilers that run, in order of preference."""
    return _candidates(*_places(), package_folders("nvidia"), settings_of(_VARIABLES))


def _places() -> tuple[str, str, str, str]:
    path, home, other_home, host = (
        os.environ.get(name, "") for name in ("PATH", "CUDA_HOME", "CUDA_PATH", "NVCC_CCBIN")
    )
    return path, home, other_home, host


@functools.lru_cache(maxsize=32)
def _find_toolchain(
    arch: str,
    path: str,
    home: str,
    other_home: str,
    host: str,
    wheels: tuple[str, ...],
    settings: tuple[str, ...],
) -> DeviceToolchain:
    seen: list[DeviceToolchain] = []
    for found in _candidates(path, home, other_home, host, wheels, settings):
        if not arch or found.knows(arch):
            return found
        seen.append(found)
    if seen:
        raise unknown_arch(arch, seen[0], _INSTALL)
    program = next(_nvcc_programs(path, _homes(home, other_home), wheels), None)
    if program and not _host_compiler(path, host)[1]:
        problem = f"{program} needs a C++ compiler, and none was found on PATH"
        raise BuildError(f"{problem}, and there is no NVRTC", "apt install g++, or set NVCC_CCBIN")
    raise BuildError(
        "no CUDA compiler was found (nvcc on PATH, in CUDA_HOME or CUDA_PATH, or from nvidia-cuda-nvcc;"
        " NVRTC from nvidia-cuda-nvrtc or the system)",
        _INSTALL,
    )


def _candidates(
    path: str,
    home: str,
    other_home: str,
    host: str,
    wheels: tuple[str, ...],
    settings: tuple[str, ...],
) -> Iterator[DeviceToolchain]:
    """The compilers that run, in order of preference; each is asked when its turn comes."""
    homes, (host_arguments, host_version) = _homes(home, other_home), _host_compiler(path, host)
    programs = _nvcc_programs(path, homes, wheels) if host_version else ()
    yield from filter(None, (_nvcc(each, host_arguments, host_version, settings) for each in programs))
    yield from filter(None, map(_nvrtc, _nvrtc_libraries(homes, wheels)))


def _homes(*folders: str) -> list[Path]:
    return [Path(folder) for folder in folders if folder]


def _host_compiler(path: str, chosen: str) -> tuple[tuple[str, ...], str]:
    """The host compiler of nvcc: the arguments that select it, and its version ("" if there is none)."""
    if chosen:  # nvcc itself reads NVCC_CCBIN
        return (), answer([chosen, "--version"]) or chosen
    for name in ("g++", "c++", "clang++"):
        program = shutil.which(name, path=path)
        version = answer([program, "--version"]) if program else ""
        if program and version:
            return (() if name == "g++" else ("-ccbin", program)), version
    return (), ""


def _nvcc_programs(path: str, homes: list[Path], wheels: tuple[str, ...]) -> Iterator[str]:
    """All installed nvcc programs, in order of preference."""
    return programs_named("nvcc", path, (*homes, *_toolkits(wheels, "cuda_nvcc")))


def _nvrtc_libraries(homes: list[Path], wheels: tuple[str, ...]) -> Iterator[str]:
    """All installed NVRTC libraries, in order of preference."""
    for folder in (*_toolkits(wheels, "cuda_nvrtc"), *homes):
        for library in ("lib64", "lib"):
            yield from map(str, sorted((folder / library).glob("libnvrtc.so*"), reverse=True))
    system = ctypes.util.find_library("nvrtc")
    if system:
        yield system


def _toolkits(wheels: tuple[str, ...], older: str) -> Iterator[Path]:
    """The CUDA folders in Python packages: one for all since CUDA 13 (nvidia/cu13), earlier one for each."""
    for wheel in map(Path, wheels):
        yield from sorted(wheel.glob("cu[0-9]*"), reverse=True)
        yield from wheel.glob(older)


def _nvcc(
    program: str, host_arguments: tuple[str, ...], host_version: str, settings: tuple[str, ...] = ()
) -> DeviceToolchain | None:
    """The toolchain of an nvcc program; None if it does not run. `settings`: of variables that it reads."""
    release = re.search(r"\bV(\d[\w.]*)", answer([program, "--version"]))
    if release is None:
        return None
    arches = answer([program, "--list-gpu-code"]).split()
    version = "\n".join((release[1], host_version.splitlines()[0], *settings))
    known = tuple(word for word in arches if word.startswith("sm_"))
    return DeviceToolchain((program, *host_arguments), version, "", kind="nvcc", arches=known)


_nvrtc = partial(runtime_compiler, "nvrtc", "cuda")


# ---- building ----------------------------------------------------------------------------------------------


def job(source: str, toolchain: DeviceToolchain, arch: str, options: tuple[str, ...] = ()) -> Job:
    """The compilation of a text for an architecture that the toolchain knows."""
    folders = program_folders("cuda_src")
    headers = program_headers(folders)
    threads = (_PTXAS_THREADS,) if has_threads(toolchain) else ()
    if toolchain.kind == "nvcc":
        images = f"arch=compute_{arch[3:]},code=[{arch},compute_{arch[3:]}]"
        flags = (*NVCC_FLAGS, *threads, "-gencode", images, *options)
        includes = [f"-I{folder}" for folder in folders]
        headers.append(Path(ptx.__file__))  # what joins the parts belongs to the compiler, too
        language = replace(NVCC, parts=NVRTC.parts) if options else NVCC  # source lines cannot be joined
        return make_job(source, flags, ("-fatbin",), includes, headers, toolchain, language)
    flags = (*NVRTC_FLAGS, f"--gpu-architecture={arch}", *threads, *options)
    includes = [f"--include-path={folder}" for folder in folders]
    headers.append(Path(toolchain.command[3]))  # the script is part of the compiler
    return make_job(source, flags, (), includes, headers, toolchain, NVRTC)


def has_threads(toolchain: DeviceToolchain) -> bool:
    """True if the compiler's ptxas can use several threads."""
    major = toolchain.release.partition(".")[0]
    return major.isdecimal() and int(major) >= _FIRST_WITH_THREADS


def _parts(source: str) -> int:
    """The number of parts in which nvcc takes a text: if it is long, each kernel is one."""
    return 2 if len(source) >= PART_BYTES and _ENTRIES.search(source) else 1


_REMEDIES = {
    r"unsupported (GNU|clang) version": "set NVCC_CCBIN to an older g++, or CUDA_HOME to a newer CUDA",
    r"(gcc|g\+\+|cc1plus)\W+(No such file|not found)": "apt install g++, or set NVCC_CCBIN",
    r"(cuda_runtime|crt/|nv/target).*No such file|cicc\W+not found|ptxas\W+not found": _INSTALL,
    r"[Uu]nsupported gpu architecture|invalid value for --gpu-architecture": "another gpu_arch",
    r"BUILTIN_OPERATION|libnvrtc-builtins": "pip install --upgrade nvidia-cuda-nvrtc",
}
_OTHERWISE = "another CUDA compiler with CUDA_HOME or PATH, and report this with the compiler's log"
_remedy = partial(remedy_for, _REMEDIES, _OTHERWISE)


def _inspect(path: Path, log: str) -> Facts:
    """The facts to store, from the report of ptxas in the log. Raises BuildError if the binary is invalid."""
    with path.open("rb") as file:
        beginning = file.read(4)
    kernels = parse_report(log)
    if beginning not in _MAGIC or not kernels:
        what = "contains no kernel from the log" if beginning in _MAGIC else "is not GPU code"
        raise BuildError(f"the CUDA compiler's output {what}", "another CUDA compiler with CUDA_HOME", log)
    return stored(kernels)


NVRTC = Language("program.cu", "CUDA compiler", _remedy, _inspect, kernels_of)
NVCC = replace(NVRTC, part=("-ptx",), parts=_parts, object=".ptx", join=ptx.joined)
COMPILERS = Compilers("cuda", re.compile(r"sm_\d+[af]?"), find, job, _INSTALL)

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_STACK = re.compile(r"(\d+) bytes cumulative stack size")
_SHARED = re.compile(r"(\d+)(?:\+\d+)? bytes smem")


def parse_report(log: str) -> dict[str, KernelFacts]:
    """Parses the output of ``ptxas -v`` for each kernel, which lists a kernel's functions after it."""
    kernels: dict[str, KernelFacts] = {}
    _, *sections = _ENTRY.split(log)
    for name, text in zip(sections[::2], sections[1::2], strict=True):
        frames = [[int(number) for number in frame] for frame in _FRAME.findall(text)]
        used, shared, stack = _USED.search(text), _SHARED.search(text), _STACK.search(text)
        if used is None or not frames:
            continue
        kernels[name] = KernelFacts(
            registers=int(used[1]),
            spill_bytes=sum(stores + loads for _, stores, loads in frames),
            stack_bytes=int(stack[1]) if stack else max(frame for frame, _, _ in frames),
            shared_bytes=int(shared[1]) if shared else 0,
        )
    return kernels
