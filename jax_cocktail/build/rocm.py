"""Compiles HIP text for one architecture of AMD's cards with hipcc, or else HIPRTC, or else the clang of the
`compiler` extra, through the same cache as CPU programs.

Compilation needs neither a GPU nor a driver. As on the CPU, fast math is off, but a product and a sum may
contract to a fused multiply-add.
"""

from __future__ import annotations

import ctypes.util
import functools
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from jax_cocktail.build.code_object import facts_of
from jax_cocktail.build.command import answer, settings_of
from jax_cocktail.build.job import (
    Facts,
    Job,
    Language,
    make_job,
    program_folders,
    program_headers,
)
from jax_cocktail.build.kernels import (
    Compilers,
    DeviceToolchain,
    kernels_of,
    programs_named,
    remedy_for,
    runtime_compiler,
    stored,
    unknown_arch,
)
from jax_cocktail.build.zig import zig
from jax_cocktail.cache import cache_dir
from jax_cocktail.errors import BuildError

# Shared memory is the launch plan's, which does not know of arrays that the compiler would put there.
_NO_ARRAYS_IN_SHARED = ("-mllvm", "-disable-promote-alloca-to-lds")
# The name of a program's file must not be part of its binary: executables that embed it are looked up by
# content.
FLAGS = ("-std=c++17", "-O3", "-w", "-ffp-contract=fast", *_NO_ARRAYS_IN_SHARED)
# Functions that are not inlined are meant so; hipcc inlined all before ROCm 6. A bundle would hold one image.
HIPCC_FLAGS = ("--genco", "--no-gpu-bundle-output", "--hipcc-func-supp", "-nogpuinc", "-fuse-cuid=none")
_FREESTANDING = ("-x", "hip", "--cuda-device-only", "-nogpuinc", "-nogpulib", "-fuse-cuid=none", "-S")
ZIG_FLAGS = (*_FREESTANDING, "-DCK_FREESTANDING")
_VARIABLES = ("HIPCC_COMPILE_FLAGS_APPEND", "HIPCC_LINK_FLAGS_APPEND")  # hipcc reads them
# Without this, and with nvcc on PATH, hipcc becomes a wrapper of nvcc.
_FOR_AMD = (("HIP_PLATFORM", "amd"),)
_PROBE = ("--genco", "-###", "--offload-arch=gfx90a", "-x", "hip", os.devnull)
_DEVICE_LIBRARY = re.compile(r'"([^"]*)/oclc_isa_version_\w+\.bc"')
_USUAL = Path("/opt") / "rocm"
_LIBRARIES = ("hiprtc", "amdhip64")  # the latter has HIPRTC in itself before ROCm 6
_INSTALL = "install ROCm (hipcc with its device library), or set ROCM_PATH"
_INSTALL_ANY = f"{_INSTALL}; without float64 functions pip install ziglang==0.17.0 suffices"


# ---- the compiler ------------------------------------------------------------------------------------------


def find(arch: str = "") -> DeviceToolchain:
    """The compiler to use: hipcc on PATH, in $ROCM_PATH, in $HIP_PATH or in ROCm's usual folder, else HIPRTC
    from there or the system, else the clang in the package ziglang, which lacks the functions of float64.
    `arch`: an architecture that it must support. Raises BuildError if there is none."""
    return _find_toolchain(arch, *_places(), str(cache_dir()), settings_of(_VARIABLES))


def installed() -> Iterator[DeviceToolchain]:
    """All compilers that run, in order of preference."""
    return _candidates(*_places(), settings_of(_VARIABLES))


def _places() -> tuple[str, str, str]:
    path, home, other_home = (os.environ.get(name, "") for name in ("PATH", "ROCM_PATH", "HIP_PATH"))
    return path, home, other_home


@functools.lru_cache(maxsize=32)
def _find_toolchain(
    arch: str, path: str, home: str, other_home: str, cache_folder: str, settings: tuple[str, ...]
) -> DeviceToolchain:
    del cache_folder  # part of the key: zig stores its files there
    seen: list[DeviceToolchain] = []
    for found in _candidates(path, home, other_home, settings):
        if not arch or found.knows(arch):
            return found
        seen.append(found)
    if seen:
        raise unknown_arch(arch, seen[0], _INSTALL_ANY)
    raise BuildError(
        "no compiler for AMD's cards was found (hipcc on PATH, in ROCM_PATH, HIP_PATH or its usual folder;"
        " HIPRTC there or in the system; the package ziglang)",
        _INSTALL_ANY,
    )


def _candidates(
    path: str, home: str, other_home: str, settings: tuple[str, ...]
) -> Iterator[DeviceToolchain]:
    """The compilers that run, in order of preference; each is asked when its turn comes."""
    homes = [*(Path(folder) for folder in (home, other_home) if folder), _USUAL]
    candidates = chain(
        (_hipcc(program, settings) for program in programs_named("hipcc", path, homes)),
        map(_hiprtc, _hiprtc_libraries(homes)),
        (make() for make in (_freestanding,)),
    )
    return filter(None, candidates)


def _hiprtc_libraries(homes: list[Path]) -> Iterator[str]:
    """All installed libraries with HIPRTC, in order of preference."""
    for name in _LIBRARIES:
        for folder in homes:
            yield from map(str, sorted((folder / "lib").glob(f"lib{name}.so*"), reverse=True))
        system = ctypes.util.find_library(name)
        if system:
            yield system


def _hipcc(program: str, settings: tuple[str, ...] = ()) -> DeviceToolchain | None:
    """The toolchain of a hipcc program; None if it does not run, calls nvcc, or has no device library.
    `settings`: of the variables that it reads."""
    version = answer([program, "--version"], dict(_FOR_AMD))
    release = re.search(r"^HIP version: (\d[\w.]*)", version, re.MULTILINE)
    clang = re.search(r"^.*clang version .*$", version, re.MULTILINE)
    commands = answer([program, *_PROBE], dict(_FOR_AMD), errors=True)
    if release is None or clang is None or not commands:
        return None
    library = _DEVICE_LIBRARY.search(commands)
    folder = Path(library[1]) if library else None
    arches, identity = (_arches(folder), _identity(folder)) if folder else ((), ())
    said = "\n".join((release[1], clang[0], *identity, *settings))
    return DeviceToolchain((program,), said, "", _FOR_AMD, kind="hipcc", arches=arches, platform="rocm")


def _identity(library: Path) -> tuple[str, ...]:
    """The mark that tells one device library from another one of the same release."""
    found = [(path, path.stat()) for path in library.glob("ocml.bc")]
    return tuple(f"{path} {state.st_size} {state.st_mtime_ns}" for path, state in found)


def _arches(library: Path) -> tuple[str, ...]:
    """The architectures that a device library has a file for. The clang beside it knows them all."""
    names = (path.stem.removeprefix("oclc_isa_version_") for path in library.glob("oclc_isa_version_*.bc"))
    return tuple(sorted(f"gfx{name}" for name in names))


_hiprtc = partial(runtime_compiler, "hiprtc", "rocm")


def _freestanding() -> DeviceToolchain | None:
    """The toolchain of the package ziglang; None if it is not installed or does not run."""
    found = zig()
    if found is None:
        return None
    binary, environment = found
    release = answer([binary, "version"], environment)
    question = ("--target=amdgcn-amd-amdhsa", "--print-supported-cpus")
    listed = answer([binary, "clang", *question], environment, errors=True)
    if not release:
        return None
    arches = tuple(word for word in listed.split() if re.fullmatch(_ARCH, word))
    settings = tuple(sorted(environment.items()))
    command = (binary, "clang")
    return DeviceToolchain(command, release, "", settings, kind="zig", arches=arches, platform="rocm")


# ---- building ----------------------------------------------------------------------------------------------


def job(source: str, toolchain: DeviceToolchain, arch: str, options: tuple[str, ...] = ()) -> Job:
    """The compilation of a text for an architecture that the toolchain knows."""
    folders = program_folders("rocm_src")
    headers = program_headers(folders)
    includes = [f"-I{folder}" for folder in folders]
    own = {"hipcc": HIPCC_FLAGS, "zig": ZIG_FLAGS}.get(toolchain.kind, ())
    flags = (*own, *FLAGS, f"--offload-arch={arch}", *options)
    language = HIP
    if toolchain.kind == "hiprtc":
        headers.append(Path(toolchain.command[3]))  # the script is part of the compiler
    elif toolchain.kind == "zig":
        language = replace(HIP, then=_assembling(toolchain, arch))
    return make_job(source, flags, (), includes, headers, toolchain, language)


def _assembling(toolchain: DeviceToolchain, arch: str) -> tuple[tuple[str, ...], ...]:
    """The commands after clang's, which does not find the linker by itself."""
    assemble = (*toolchain.command, "--target=amdgcn-amd-amdhsa", f"-mcpu={arch}", "-c", "-x", "assembler")
    return assemble, (toolchain.command[0], "ld.lld", "-shared", "--no-undefined")


_REMEDIES = {
    r"\bnvcc\b": "this hipcc calls nvcc: set ROCM_PATH to a ROCm for AMD's cards, or PATH",
    r"undefined (hidden )?symbol: _*ocml": f"functions of float64 are ROCm's: {_INSTALL}",
    r"cannot find (ROCm|HIP)": f"apt install rocm-device-libs, or {_INSTALL}",
    r"clang\S*\W+(No such file|not found)": _INSTALL,
    r"invalid target ID|[Uu]nsupported \w+ gpu architecture|(unknown target|not a recognized) \w+": (
        f"a newer compiler: {_INSTALL}; or another gpu_arch"
    ),
}
_OTHERWISE = "another ROCm with ROCM_PATH or PATH, and report this with the compiler's log"
_remedy = partial(remedy_for, _REMEDIES, _OTHERWISE)


def _inspect(path: Path, log: str) -> Facts:
    """The facts to store, from the code object. Raises BuildError if it is none."""
    remedy = "another ROCm with ROCM_PATH"
    try:
        kernels = facts_of(path.read_bytes())
    except ValueError as problem:
        raise BuildError(f"the HIP compiler's output cannot be used: {problem}", remedy, log) from problem
    if not kernels:
        raise BuildError("the HIP compiler's output contains no kernel", remedy, log)
    return stored(kernels)


HIP = Language("program.hip", "HIP compiler", _remedy, _inspect, kernels_of)
_ARCH = re.compile(r"gfx[0-9a-f]+")
COMPILERS = Compilers("rocm", _ARCH, find, job, _INSTALL_ANY)
