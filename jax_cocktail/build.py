"""From C++ text to a shared object: the host compiler, its flags, and the way through the cache.

The flags keep strict IEEE semantics (no -ffast-math); a product and a sum may contract, as in XLA.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import functools
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import filelock

from jax_cocktail import cache
from jax_cocktail.cache import DEFAULT_LIMIT_BYTES, cache_dir, clear_cache
from jax_cocktail.errors import BuildError, CocktailWarning

__all__ = [
    "Built",
    "Toolchain",
    "build_program",
    "build_runtime",
    "cache_dir",
    "clear_cache",
    "host_toolchain",
    "source_folder",
]

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
_RUNTIME = "runtime_"  # begins the names of headers that programs do not include
_CACHE_FORMAT = "1"
_COMPILE_SECONDS = 900.0
_LOCK_SECONDS = 900.0
_FULL_DISK = "No space left on device"


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A C++ compiler of this machine. `command`: program and leading arguments; `version`: its own words."""

    command: tuple[str, ...]
    version: str
    processor: str
    environment: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{Path(self.command[0]).name} ({self.version.splitlines()[0] if self.version else 'unknown'})"


@dataclass(frozen=True, slots=True)
class Built:
    """A compiled program. `digest`: SHA-256 of `binary`; `seconds`: spent here, compiling or reading."""

    binary: bytes
    digest: str
    path: str
    seconds: float
    cached: bool


@dataclass(frozen=True, slots=True)
class _Job:
    """One translation unit to compile. `key` covers all that the binary depends on."""

    source: str
    arguments: tuple[str, ...]
    libraries: tuple[str, ...]
    toolchain: Toolchain
    key: str


def source_folder(name: str) -> Path:
    """The folder of C++ sources called `name`: in the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent
    for folder in (package / "_src" / name, package.parent / name):
        if folder.is_dir():
            return folder
    raise BuildError(f"the source folder {name} is missing from the installation", "reinstall jax_cocktail")


def program_folders(target_folder: str) -> tuple[Path, Path]:
    """Where the headers of programs lie: those of the target, and those that all targets share."""
    return source_folder(target_folder), source_folder("common_src")


def headers_of(folders: Sequence[Path]) -> list[Path]:
    """Every header in the folders, in a fixed order."""
    return [path for folder in folders for path in sorted(folder.glob("*.h"))]


# ---- the compiler ------------------------------------------------------------------------------------------


@functools.cache
def _processor() -> str:
    """What -march=native depends on."""
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
    """What the compiler says about itself; "" if it does not run."""
    argument = ["version"] if command[1:2] == ["c++"] else ["--version"]
    words = [command[0], *argument] if argument == ["version"] else [*command, *argument]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **environment}
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _zig() -> tuple[tuple[str, ...], dict[str, str]] | None:
    """The clang inside the `ziglang` package. Called directly: `python -m ziglang` costs 0.15 s more."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or not spec.submodule_search_locations:
        return None
    binary = Path(spec.submodule_search_locations[0]) / "zig"
    if not binary.is_file():
        return None
    folder = cache_dir() / "zig"
    environment = {"ZIG_GLOBAL_CACHE_DIR": str(folder), "ZIG_LOCAL_CACHE_DIR": str(folder)}
    return (str(binary), "c++", "-nostdlib++"), environment


def host_toolchain() -> Toolchain:
    """The C++ compiler to use: $CXX, else c++, g++ or clang++ on PATH, else the `ziglang` package."""
    return _find_toolchain(os.environ.get("CXX", ""), os.environ.get("PATH", ""), str(cache_dir()))


@functools.lru_cache(maxsize=8)
def _find_toolchain(chosen: str, path: str, cache_folder: str) -> Toolchain:
    del cache_folder  # part of the key: the ziglang compiler keeps its files there
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


def _key(parts: Sequence[str | bytes]) -> str:
    """SHA-256 over length-prefixed parts."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def _job(
    source: str,
    flags: tuple[str, ...],
    libraries: tuple[str, ...],
    includes: Sequence[Path],
    headers: Sequence[Path],
    toolchain: Toolchain,
) -> _Job:
    """Headers count by content, not by place: two checkouts share a cache."""
    parts: list[str | bytes] = [_CACHE_FORMAT, source, *flags, *libraries]
    parts += [*toolchain.command, toolchain.version, toolchain.processor]
    for header in headers:
        parts += [header.name, header.read_bytes()]
    arguments = (*flags, *(f"-I{folder}" for folder in includes))
    return _Job(source, arguments, libraries, toolchain, _key(parts))


def build_program(
    source: str, toolchain: Toolchain, *, cache_limit_bytes: int = DEFAULT_LIMIT_BYTES
) -> Built:
    """Compiles the text of a program to a shared object, or takes it from the cache."""
    folders = program_folders("cpu_src")
    headers = [path for path in headers_of(folders) if not path.name.startswith(_RUNTIME)]
    job = _job(source, PROGRAM_FLAGS, PROGRAM_LIBRARIES, folders, headers, toolchain)
    return _obtain(job, cache_limit_bytes)


def build_runtime(include_dir: str, toolchain: Toolchain) -> str:
    """Path of the shared library with the FFI handlers. `include_dir`: ``jax.ffi.include_dir()``."""
    folder, common = program_folders("cpu_src")
    interface = Path(include_dir) / "xla" / "ffi" / "api" / "c_api.h"
    if not interface.is_file():
        raise BuildError(f"{interface} is missing", "reinstall jaxlib")
    source = (folder / "runtime.cc").read_text(encoding="utf-8")
    names = ("cocktail_base.h", "cocktail_features.h", "cocktail_units.h")
    own = [*(folder / name for name in names), *sorted(folder.glob(f"{_RUNTIME}*.h"))]
    headers = [interface, common / "cocktail_types.h", *own]
    includes = (folder, common, Path(include_dir))
    job = _job(source, RUNTIME_FLAGS, RUNTIME_LIBRARIES, includes, headers, toolchain)
    return _obtain(job, DEFAULT_LIMIT_BYTES).path


def _obtain(job: _Job, limit_bytes: int) -> Built:
    """The cache first; a private folder, with a warning, if the cache cannot be used."""
    start = time.perf_counter()
    try:
        root = cache.prepare_root()
        found = cache.load(cache.entry_folder(root, job.key))
        cached = found is not None
        if found is None:
            found, cached = _build_locked(job, root, limit_bytes)
    except _CompilerFailure as failure:
        raise failure.error from None
    except (BuildError, OSError, filelock.Timeout) as problem:
        warnings.warn(
            f"the cache of compiled programs is not used: {problem}; programs are compiled again in every"
            " process until JAX_COCKTAIL_CACHE_DIR names a folder that works",
            CocktailWarning,
            stacklevel=4,
        )
        found, cached = _build_private(job)
    return Built(found.binary, found.digest, found.path, time.perf_counter() - start, cached)


class _CompilerFailure(Exception):
    """The compiler rejected the program: no other folder will help."""

    def __init__(self, error: BuildError) -> None:
        self.error = error
        super().__init__(str(error))


def _build_locked(job: _Job, root: Path, limit_bytes: int) -> tuple[cache.Entry, bool]:
    target = cache.entry_folder(root, job.key)
    with filelock.FileLock(cache.lock_path(root, job.key), timeout=_LOCK_SECONDS):
        found = cache.load(target)  # another process may have been first
        if found is not None:
            return found, True
        folder = cache.build_folder(root)
        try:
            _compile(job, folder)
            cache.publish(folder, target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        found = cache.load(target)
        if found is None:
            raise OSError(errno.EIO, f"the new entry {target} cannot be read back")
        cache.evict(root, limit_bytes, job.key)
    return found, False


@functools.cache
def _private_root(process: int) -> Path:
    """A folder for this process alone, removed at its end."""
    del process  # part of the key: a forked child must not share its parent's folder
    folder = Path(tempfile.mkdtemp(prefix="jax_cocktail-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _build_private(job: _Job) -> tuple[cache.Entry, bool]:
    try:
        target = _private_root(os.getpid()) / job.key
        found = cache.load(target)
        if found is not None:
            return found, True
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(mode=0o700)
        _compile(job, target)
        found = cache.load(target)
    except _CompilerFailure as failure:
        raise failure.error from None
    except OSError as error:
        raise BuildError(
            f"there is no place to compile in ({error.strerror or error})",
            "free some disk space, or set TMPDIR and JAX_COCKTAIL_CACHE_DIR to folders that can be written",
        ) from error
    if found is None:
        raise BuildError("the compiled program cannot be read back", "set TMPDIR to another folder")
    return found, False


def _compile(job: _Job, folder: Path) -> None:
    """Compiles into `folder` and completes the entry. OSError: the place is at fault."""
    (folder / "program.cc").write_text(job.source, encoding="utf-8")
    command = [*job.toolchain.command, *job.arguments, "-o", cache.BINARY, "program.cc", *job.libraries]
    (folder / "command.txt").write_text(shlex.join(command) + "\n", encoding="utf-8")
    environment = {**os.environ, "LC_ALL": "C", **dict(job.toolchain.environment)}
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_COMPILE_SECONDS,
            check=False,
        )
        status, log = done.returncode, done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired:
        status, log = -1, f"stopped after {_COMPILE_SECONDS:.0f} s"
    except OSError as error:
        status, log = -1, f"{command[0]}: {error.strerror}"
    seconds = time.perf_counter() - start
    if status != 0 or not (folder / cache.BINARY).is_file():
        if _FULL_DISK in log:
            raise OSError(errno.ENOSPC, _FULL_DISK)
        raise _CompilerFailure(
            BuildError(
                f"the C++ compiler {job.toolchain} failed with status {status}",
                "choose another compiler with CXX, and report the log below",
                log,
            )
        )
    _check_loads(job, folder / cache.BINARY, log)
    (folder / "log.txt").write_text(log, encoding="utf-8")
    cache.seal(folder, {"compiler": job.toolchain.version, "seconds": seconds, "flags": list(job.arguments)})


def _check_loads(job: _Job, path: Path, log: str) -> None:
    """What was built must load here, now: later it would stop the user's program instead of a build. It is
    closed again, so that nothing of the file stays mapped if somebody damages it."""
    try:
        handle = ctypes.CDLL(str(path))._handle
        ctypes.CDLL(None).dlclose(ctypes.c_void_p(handle))
    except OSError as error:
        raise _CompilerFailure(
            BuildError(
                f"what the C++ compiler {job.toolchain} built cannot be loaded ({error})",
                "choose another compiler with CXX",
                log,
            )
        ) from error
