"""Builds a program's text for a GPU on the host and launches it on fibers: as on a card, but failing loudly.

Shared memory and workspace hold NaNs before a launch and are watched behind their ends, as are the arrays;
the order of threads follows from a seed; a standstill is reported. Under `sanitizer="thread"` every thread of
the grid is one for the sanitizer too, ordered only by what orders threads on a device; under `"address"`
every access is checked. Sanitized programs run in processes of their own.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import getpass
import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CANARY = 256  # bytes watched on both sides of an array; arrays begin on borders of as many
REPORT = 1 << 16
Sanitizer = Literal["address", "thread"]

_BASE = ("-std=c++17", "-g1", "-fPIC", "-w", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden")
# Half the time of -O1, most of which goes to compile: a program runs once, on small arrays.
_PROGRAM = ("-Og", "-DCK_EMULATED", "-fwrapv", "-fno-strict-aliasing", "-ffp-contract=off", "-fno-math-errno")
_RUNTIME = ("-O2", "-fno-builtin", "-fno-omit-frame-pointer")
_LAUNCHES = threading.Lock()  # a program's emulated card holds one grid at a time


@dataclass(frozen=True, slots=True)
class Gpu:
    """What is emulated: a platform, the lanes of its warps, and its dies."""

    platform: str = "cuda"
    warp: int = 32
    dies: int = 1

    @property
    def flags(self) -> tuple[str, ...]:
        """Beside what an emitted text says, for texts that are written by hand."""
        if self.platform == "cuda":
            return ()
        numbers = {"CK_WARP": self.warp, "CK_EMULATED_WARP": self.warp, "CK_DIES": self.dies}
        return tuple(f"-D{name}={number}" for name, number in numbers.items())

    def __str__(self) -> str:
        return self.platform if self.platform == "cuda" else f"{self.platform}{self.warp}"


CUDA, WAVES_OF_64, WAVES_OF_32 = Gpu(), Gpu("rocm", 64, 8), Gpu("rocm", 32)
EVERY_GPU = (CUDA, WAVES_OF_64, WAVES_OF_32)


class EmulationError(RuntimeError):
    """A launch went wrong. `report`: what and where; `code`: the error word (0: the program wrote none)."""

    def __init__(self, report: str, code: int = 0) -> None:
        super().__init__(report)
        self.report = report
        self.code = code


class _Order(ctypes.Structure):
    _fields_ = (
        ("pointers", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("shared_bytes", ctypes.c_int64),
        ("seed", ctypes.c_uint64),
        ("stack_bytes", ctypes.c_int64),
        ("report", ctypes.c_char_p),
        ("report_bytes", ctypes.c_int64),
        ("units", ctypes.c_int32),
        ("resident", ctypes.c_int32),
        ("cluster", ctypes.c_int32),
        ("error", ctypes.c_uint32),
    )


@dataclass(frozen=True, slots=True)
class Program:
    """A built program: a library to be called here, or, sanitized, an executable."""

    path: Path
    sanitizer: Sanitizer | None

    def launch(
        self,
        operands: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
        units: int = 2,
        kernel: str = "ck_portable",
        seed: int = 0,
        *,
        cluster: int = 1,
        stack_bytes: int | None = None,
        sizes: Sequence[int] = (),
        shared_bytes: int = 0,
    ) -> None:
        """One launch with a grid of `units` blocks; `results` are written in place.

        A result that shares its memory with an operand is donated. `cluster`: blocks of a cluster. `sizes`:
        the launch parameters; `shared_bytes`: of the workspace, if they follow from those. Raises
        EmulationError.
        """
        if kernel not in ("ck_resident", "ck_portable"):
            raise ValueError(f"no kernel {kernel!r}: ck_resident or ck_portable")
        arrays = _Arrays.of(operands, results)
        stack = stack_bytes or (1 << 18 if self.sanitizer else 1 << 16)
        numbers = (units, int(kernel == "ck_resident"), cluster, seed, stack, shared_bytes)
        run = self._process if self.sanitizer else self._call
        status, code, report = run(arrays, numbers, tuple(sizes))
        if status or code:
            raise EmulationError(report or _words(code), code)
        arrays.check()
        arrays.copy_results()

    def _call(
        self, arrays: _Arrays, numbers: tuple[int, ...], sizes: tuple[int, ...]
    ) -> tuple[int, int, str]:
        library = _library(self.path)
        units, resident, cluster, seed, stack, shared = numbers
        pointers = (ctypes.c_void_p * max(len(arrays.given), 1))(*arrays.pointers())
        words = (ctypes.c_int64 * max(len(sizes), 1))(*sizes)
        report = ctypes.create_string_buffer(REPORT)
        order = _Order(ctypes.addressof(pointers), ctypes.addressof(words), None, shared, seed, stack)
        order.report, order.report_bytes = ctypes.addressof(report), REPORT
        order.units, order.resident, order.cluster = units, resident, cluster
        with _LAUNCHES:
            status = library.ck_emulation_launch(ctypes.byref(order))
        return status, order.error, _with_word(report.value.decode(), order.error)

    def _process(
        self, arrays: _Arrays, numbers: tuple[int, ...], sizes: tuple[int, ...]
    ) -> tuple[int, int, str]:
        words = (*numbers, len(sizes), len(arrays.given), *sizes, *arrays.bytes(), *arrays.same)
        request = struct.pack(f"<{len(words)}q", *words)
        with tempfile.TemporaryDirectory() as folder:
            asked, answered = Path(folder, "request"), Path(folder, "answer")
            asked.write_bytes(request + b"".join(view.tobytes() for view in arrays.views))
            command = [str(self.path), str(asked), str(answered)]
            done = subprocess.run(
                command, capture_output=True, text=True, env=_environment(), errors="replace", check=False
            )
            data = answered.read_bytes() if answered.exists() else b""
        if done.returncode or len(data) < 8 + REPORT:
            return 1, 0, f"exit status {done.returncode}\n{done.stderr}"
        status, code = struct.unpack("<iI", data[:8])
        report = data[8 : 8 + REPORT].split(b"\0")[0].decode()
        at = 8 + REPORT
        for view in arrays.views:
            view[...] = np.frombuffer(data, np.uint8, view.size, at)
            at += view.size
        return status, code, _with_word(report, code)


@dataclass(frozen=True, slots=True)
class _Arrays:
    """Copies of a launch's arrays, each between canaries; donated ones are one copy."""

    given: tuple[np.ndarray, ...]
    operands: int
    same: tuple[int, ...]  # of each, the first array of its memory
    buffers: tuple[np.ndarray, ...]  # u8
    views: tuple[np.ndarray, ...]  # u8, without the canaries

    @staticmethod
    def of(operands: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> _Arrays:
        given = (*operands, *results)
        for array in given:
            if not array.flags.c_contiguous:
                raise ValueError(f"an array of shape {array.shape} is not contiguous: copy it first")
        keys = [array.ctypes.data if array.nbytes else -1 - i for i, array in enumerate(given)]
        same = tuple(keys.index(key) for key in keys)
        buffers, views = [], []
        for array in given:
            raw = np.full(array.nbytes + 3 * CANARY, 0xFF, np.uint8)
            start = CANARY + -raw.ctypes.data % CANARY
            raw[start : start + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
            buffers.append(raw)
            views.append(raw[start : start + array.nbytes])
        return _Arrays(given, len(operands), same, tuple(buffers), tuple(views))

    def bytes(self) -> list[int]:
        return [view.size for view in self.views]

    def pointers(self) -> list[int]:
        return [self.views[i].ctypes.data for i in self.same]

    def check(self) -> None:
        """No canary was written, and no operand that is not donated."""
        donated = set(self.same[self.operands :])
        for number, (raw, view) in enumerate(zip(self.buffers, self.views, strict=True)):
            name = f"operand {number}" if number < self.operands else f"result {number - self.operands}"
            start = view.ctypes.data - raw.ctypes.data
            if np.any(raw[:start] != 0xFF) or np.any(raw[start + view.size :] != 0xFF):
                raise EmulationError(f"memory beside {name} was written")
            kept = number >= self.operands or number in donated
            if not kept and view.tobytes() != self.given[number].tobytes():
                raise EmulationError(f"{name} was written")

    def copy_results(self) -> None:
        for number in range(self.operands, len(self.given)):
            array, view = self.given[number], self.views[self.same[number]]
            array[...] = view.view(array.dtype).reshape(array.shape)


def _words(code: int) -> str:
    if code >> 31:
        return f"error word: block {code >> 16 & 0x7FFF} spun too long in phase {code & 0xFFFF}"
    return f"error word: {code}" if code else ""


def _with_word(report: str, code: int) -> str:
    return "\n".join(filter(None, [report, _words(code)]))


def _environment() -> dict[str, str]:
    """Sanitizers stop at the first report; leaks are none of ours (the operating system takes back all)."""
    return {
        **os.environ,
        "TSAN_OPTIONS": "halt_on_error=1:exitcode=66:report_signal_unsafe=0",
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
    }


@functools.cache
def _library(path: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(path))


@functools.cache
def compiler() -> str:
    """The host compiler: $CXX, g++ or clang++."""
    found = next((c for c in (os.environ.get("CXX"), "g++", "clang++") if c and shutil.which(c)), None)
    if found is None:
        raise FileNotFoundError("the emulation needs g++ or clang++ (or $CXX)")
    return found


@functools.cache
def _processor_flags() -> tuple[str, ...]:
    """Fused multiply-add is a library call without this."""
    try:
        return ("-mfma",) if " fma " in Path("/proc/cpuinfo").read_text() else ()
    except OSError:
        return ()


def _cache_folder() -> Path:
    chosen = os.environ.get("TEST_TMPDIR") or os.environ.get("JAX_COCKTAIL_CACHE_DIR")
    folder = Path(
        chosen or Path(tempfile.gettempdir(), f"jax_cocktail-tests-{getpass.getuser()}"), "emulated"
    )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run(command: Sequence[str], folder: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EmulationError(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


def _made(source: str, flags: Sequence[str], suffix: str, platform: str) -> Path:
    """What the compiler makes of a text, from the cache: found by the text that the preprocessor leaves."""
    folders = (ROOT / f"{platform}_src", ROOT / "gpu_src", ROOT / "common_src", HERE)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "program.cc").write_text(source, encoding="utf-8")
        command = [compiler(), *_BASE, *(f"-I{path}" for path in folders), "program.cc"]
        text = _run([*command, *(flag for flag in flags if not flag.endswith(".o")), "-E", "-g0"], folder)
        key = hashlib.sha256(repr((compiler(), flags, text)).encode()).hexdigest()[:32]
        target = _cache_folder() / (key + suffix)
        if target.exists():
            return target
        with open(target.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                _run([*command, *flags, "-o", "output"], folder)
                shutil.move(str(Path(folder, "output")), f"{target}.new")
                os.replace(f"{target}.new", target)
    return target


@functools.cache
def _runtime(flags: tuple[str, ...], process: bool, platform: str) -> list[str]:
    """Objects of the runtime: never instrumented, so that the sanitizers see the program alone."""
    files = ["gpu_emulation.cc", *(["gpu_emulation_main.cc"] if process else [])]
    return [
        str(_made((HERE / file).read_text(), (*_RUNTIME, *flags, "-c"), ".o", platform)) for file in files
    ]


def build(
    source: str,
    flags: Sequence[str] = (),
    *,
    sanitizer: Sanitizer | None = None,
    gpu: Gpu = CUDA,
) -> Program:
    """The program of a text for a GPU, from the cache if it was built before."""
    flags = (*flags, *gpu.flags)
    checks = (f"-fsanitize={sanitizer}", f"-DCK_{sanitizer[0].upper()}SAN") if sanitizer else ()
    runtime = _runtime((*flags, *checks[1:]), sanitizer is not None, gpu.platform)
    shape = () if sanitizer else ("-shared", "-Wl,-Bsymbolic", "-Wl,-z,defs")
    every = (*_PROGRAM, *_processor_flags(), *flags, *checks, *runtime, *shape, "-lm")
    return Program(_made(source, every, "" if sanitizer else ".so", gpu.platform), sanitizer)
