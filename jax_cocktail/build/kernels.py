"""The common part of compilers for GPUs: the compiler, the compiled program, and what its kernels take."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from jax_cocktail.build.command import answer
from jax_cocktail.build.job import NO_MEMORY, Facts, Job, Toolchain
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.errors import BuildError


@dataclass(frozen=True, slots=True)
class DeviceToolchain(Toolchain):
    """A compiler for GPUs. `kind`: "nvcc", "nvrtc", "hipcc", "hiprtc" or "zig"; `arches`: the supported
    architectures, empty if unknown; `platform`: that of `DeviceSpec`. The first line of `version` is the
    release alone ("13.0.88")."""

    kind: str = "nvcc"
    arches: tuple[str, ...] = ()
    platform: str = "cuda"

    def __str__(self) -> str:
        return f"{self.kind} {self.release}"

    @property
    def release(self) -> str:
        """The release, such as "13.0.88"."""
        return self.version.splitlines()[0]

    def knows(self, arch: str) -> bool:
        """True if it compiles for an architecture such as "sm_90" or "gfx90a"; the suffix of "sm_90a" is
        ignored."""
        plain = arch.rstrip("af") if arch.startswith("sm_") else arch
        return not self.arches or plain in self.arches


@dataclass(frozen=True, slots=True)
class Compilers:
    """The compilers of a platform.

    Attributes:
      platform: that of `DeviceSpec`.
      arch: the pattern of its architectures' names.
      find: the architecture, or "" -> the compiler to use. Raises BuildError if there is none.
      job: (text, compiler, architecture, further arguments) -> the compilation.
      install: how to get a newer compiler.
    """

    platform: str
    arch: re.Pattern[str]
    find: Callable[[str], DeviceToolchain]
    job: Callable[[str, DeviceToolchain, str, tuple[str, ...]], Job]
    install: str


def runtime_compiler(kind: str, platform: str, library: str) -> DeviceToolchain | None:
    """The toolchain of a library with NVRTC or HIPRTC; None if it cannot be loaded."""
    command = (sys.executable, "-I", "-S", str(Path(__file__).with_name("rtc.py")), library)
    said = answer([*command, "--version"]).splitlines() if sys.executable else []
    if not said:
        return None
    arches = tuple(" ".join(said[1:]).split())
    return DeviceToolchain(command, said[0], "", kind=kind, arches=arches, platform=platform)


def unknown_arch(arch: str, toolchain: DeviceToolchain, install: str) -> BuildError:
    """The error for an architecture that a compiler does not know. `install`: see `Compilers`."""
    return BuildError(
        f"{toolchain} does not compile for {arch!r}, only for {', '.join(toolchain.arches)}",
        f"a newer compiler: {install}; or the option gpu_arch",
    )


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """Resources of a kernel: registers per thread, of vectors on AMD's cards; bytes per thread that are
    spilled to and reloaded from memory, in the kernel and in the functions it calls, counted once each, on
    AMD's cards all private memory of a thread; bytes per thread of the deepest call's stack; bytes per block
    of static shared memory."""

    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int


def stored(kernels: Mapping[str, KernelFacts]) -> Facts:
    """The facts of a cache entry, from which `kernels_of` reads the kernels."""
    return {"kernels": {name: asdict(facts) for name, facts in kernels.items()}}


def kernels_of(facts: Facts) -> Mapping[str, KernelFacts]:
    """The kernels of a cache entry. Raises ValueError, TypeError or KeyError if the facts are invalid."""
    said = facts["kernels"]
    if not isinstance(said, dict) or not said:
        raise ValueError("no kernels")
    kernels = {str(name): KernelFacts(**values) for name, values in said.items()}
    if any(
        type(value) is not int or value < 0 for each in kernels.values() for value in asdict(each).values()
    ):
        raise ValueError("no numbers")
    return kernels


FRAMES_BYTES = 64  # [E] on AMD's cards, 16 for each function that calls another


@dataclass(frozen=True, slots=True)
class DeviceBuilt:
    """A compiled program. `binary`: a fatbin with machine code and PTX from nvcc, a cubin from NVRTC, a code
    object from AMD's compilers; `digest`: its SHA-256; `kernels`: facts by kernel name; `seconds`: the time
    to compile or read it; `key`: of its entry in the cache, "" if it has none."""

    binary: bytes
    digest: str
    path: str
    seconds: float
    cached: bool
    arch: str = ""
    kernels: Mapping[str, KernelFacts] = field(default_factory=dict)
    key: str = ""

    @property
    def spills(self) -> Mapping[str, int]:
        """The kernels that spill, with the bytes they spill."""
        return {name: facts.spill_bytes for name, facts in self.kernels.items() if facts.spill_bytes}


# ---- compilers ---------------------------------------------------------------------------------------------
_OF_ALL = {
    NO_MEMORY: "a smaller program, or a machine with more memory (compilers may take half)",
    r"stopped after": "fewer operators in one loop (the text of the program is too long)",
}


def programs_named(name: str, path: str, folders: Iterable[Path]) -> Iterator[str]:
    """All installed programs of this name, that on `path` first."""
    on_path = shutil.which(name, path=path)
    if on_path:
        yield on_path
    programs = (folder / "bin" / name for folder in folders)
    yield from (str(program) for program in programs if os.access(program, os.X_OK))


def remedy_for(remedies: Mapping[str, str], otherwise: str, log: str) -> str:
    """The advice for a compiler failure with this log. `remedies`: by patterns; `otherwise`: without any."""
    found = (remedy for pattern, remedy in {**remedies, **_OF_ALL}.items() if re.search(pattern, log))
    return next(found, otherwise)


# ---- registers ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RegisterCheck:
    """The verdict on launching every kernel, and on spills. `remark`: both, as text."""

    launches: bool
    spills: bool
    remark: str


def beside_arrays(built: DeviceBuilt, own: int) -> DeviceBuilt:
    """The facts of kernels whose threads have `own` bytes of arrays. AMD's compilers do not tell them from
    what is spilled."""
    kernels = dict(built.kernels)
    for name, facts in kernels.items():
        if own and facts.spill_bytes == facts.stack_bytes:
            rest = facts.spill_bytes - own
            kernels[name] = replace(facts, spill_bytes=rest if rest > FRAMES_BYTES else 0)
    return replace(built, kernels=kernels)


def check_registers(built: DeviceBuilt, spec: DeviceSpec, threads: int) -> RegisterCheck:
    """Checks that the register file has room for a block of `threads`, and reports spills."""
    launches, words = True, []
    for name, facts in sorted(built.kernels.items()):
        needed = spec.block_registers(threads, facts.registers)
        text = f"{name} uses {facts.registers} registers in each of {threads} threads"
        if needed > spec.registers:
            launches = False
            text += f", which takes {needed} of the {spec.registers} in a unit: it cannot be launched"
        if facts.spill_bytes:
            text += f" and spills {facts.spill_bytes} bytes of each thread to memory"
            room = spec.most_registers(threads // 2 if threads > spec.warp else threads)
            if room > facts.registers:
                text += f" (half the threads could have {room} registers)"
        words.append(text)
    return RegisterCheck(launches, bool(built.spills), "; ".join(words))
