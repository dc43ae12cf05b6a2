"""Runs one compilation with any compiler, in a private folder, and stores the result in the cache on disk."""

from __future__ import annotations

import atexit
import errno
import functools
import importlib.util
import logging
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path

import filelock

from jax_cocktail import cache
from jax_cocktail.build import command, stuck
from jax_cocktail.build.workers import MOST, Workers
from jax_cocktail.device.processor import cores
from jax_cocktail.errors import BuildError
from jax_cocktail.memory import MEMORY
from jax_cocktail.portable import digest_of
from jax_cocktail.warning import warn

_LOG = logging.getLogger("jax_cocktail")
_CACHE_FORMAT = "4"
_COMPILE_SECONDS = 900.0
_PATIENCE_SECONDS = 20.0  # then the compiler must prove that it works
_LOCK_SECONDS = 900.0
_LONG_SECONDS = 1.0
_LEAST_MEMORY = 2 << 30  # bytes of a compiler; most programs take 0.2 GB
_MEMORY_SHARE = 1 / 2  # of the machine, which all compilers may take together
NO_MEMORY = r"out of memory|[Vv]irtual memory exhausted|annot allocate memory|bad_alloc"  # in their messages
_FULL_DISK = "No space left on device"
_NOT_OF_PROGRAMS = ("runtime_", "handler")  # prefixes of headers of the handlers alone
_FACTS = "facts"  # the key in the entry's `cache.META`


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler on this machine. `command`: program and leading arguments; `version`: its version text;
    `processor`: the processor, if the output depends on it."""

    command: tuple[str, ...]
    version: str
    processor: str
    environment: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{Path(self.command[0]).name} ({self.version.splitlines()[0] if self.version else 'unknown'})"


Facts = Mapping[str, object]  # values that JSON can represent


@dataclass(frozen=True, slots=True)
class Built:
    """A compiled program. `digest`: SHA-256 of `binary`; `seconds`: the time to compile or read it; `facts`:
    properties of the binary, recorded at compilation; `key`: of its entry in the cache, "" if it has none."""

    binary: bytes
    digest: str
    path: str
    seconds: float
    cached: bool
    facts: Facts = field(default_factory=dict)
    key: str = ""


@dataclass(frozen=True, slots=True)
class Language:
    """The compilation of one source language.

    Attributes:
      file: the name of the source file.
      compiler: the compiler's name in error messages.
      remedy: log of a failure -> advice.
      inspect: (path, log) of a new binary -> facts. Raises BuildError if the binary is unusable.
      check: raises ValueError, KeyError or TypeError for facts that `inspect` cannot have made.
      extra: arguments that follow from the toolchain and thus are no part of the key; found only to compile.
      part: arguments for the first part of a compilation alone. The rest may take long at first use: zig
        compiles the libraries that it links.
      parts: text -> the number of parts in which it is compiled side by side, see `CK_IN_PART`.
      object: the ending of the name of what a part becomes.
      join: texts of what the parts became -> the text that the last command takes in their place; None if it
        takes all of them.
      then: commands after the compiler's, each without its last arguments: the output, and what the command
        before it wrote. The last one makes the binary.
    """

    file: str
    compiler: str
    remedy: Callable[[str], str]
    inspect: Callable[[Path, str], Facts]
    check: Callable[[Facts], object]
    extra: Callable[[Toolchain], tuple[str, ...]] = lambda toolchain: ()
    part: tuple[str, ...] = ()
    parts: Callable[[str], int] = lambda source: 1
    object: str = ".o"
    join: Callable[[Sequence[str]], str] | None = None
    then: tuple[tuple[str, ...], ...] = ()

    @property
    def joined(self) -> str:
        """The name of the file with what the parts became together."""
        return Path(self.file).with_suffix(self.object).name


@dataclass(frozen=True, slots=True)
class Job:
    """One translation unit to compile. `last`: arguments of the command that makes the binary alone, such as
    libraries; `key` covers everything that the binary depends on."""

    source: str
    arguments: tuple[str, ...]
    last: tuple[str, ...]
    toolchain: Toolchain
    language: Language
    key: str


def make_job(
    source: str,
    flags: tuple[str, ...],
    last: tuple[str, ...],
    includes: Sequence[str],
    headers: Sequence[Path],
    toolchain: Toolchain,
    language: Language,
) -> Job:
    """Makes a job and its key. `includes`: the arguments with header folders. The key contains the headers'
    contents but not their paths, so two checkouts share a cache."""
    parts: list[str | bytes] = [_CACHE_FORMAT, source, *flags, *last, *chain(*language.then)]
    parts += [*toolchain.command, toolchain.version, toolchain.processor]
    for header in headers:
        parts += [header.name, header.read_bytes()]
    return Job(source, (*flags, *includes), last, toolchain, language, digest_of(parts))


# ---- sources and programs on this machine ------------------------------------------------------------------


def source_folder(name: str) -> Path:
    """The folder of C++ sources called `name`, in the installed package or next to it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_src" / name, package.parent / name):
        if folder.is_dir():
            return folder
    raise BuildError(f"the source folder {name} is missing from the installation", "reinstall jax_cocktail")


def program_folders(target_folder: str) -> tuple[Path, ...]:
    """The header folders of programs: the target's, that of all GPUs for a GPU, and that of all targets."""
    shared = ("common_src",) if target_folder == "cpu_src" else ("gpu_src", "common_src")
    return tuple(map(source_folder, (target_folder, *shared)))


def headers_of(folders: Sequence[Path]) -> list[Path]:
    """All headers in the folders, in a fixed order."""
    return [path for folder in folders for path in sorted(folder.glob("*.h"))]


def program_headers(folders: Sequence[Path]) -> list[Path]:
    """The headers in the folders that programs may include."""
    return [path for path in headers_of(folders) if not path.name.startswith(_NOT_OF_PROGRAMS)]


def package_folders(name: str) -> tuple[str, ...]:
    """The folders of the package `name`, found without importing it; several for a namespace package."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return ()
    return tuple(spec.submodule_search_locations or ()) if spec else ()


# ---- the cache ---------------------------------------------------------------------------------------------

def is_done(job: Job) -> bool:
    """True if `obtain` finds the result of a job in the cache."""
    return cache.peek(cache.entry_folder(cache.cache_dir(), job.key), job.key) is not None


def obtain(job: Job, limit_bytes: int) -> Built:
    """The result of a job: from the cache, else compiled into it. If the cache is unusable, it uses a private
    folder and warns.

    Raises:
      BuildError: at once, if the job or its compiler failed a short time ago in this process, after a long
        wait.
    """
    start, folder = time.perf_counter(), str(cache.cache_dir())
    names = [(folder, job.key), (folder, stuck.name_of(job.toolchain.command))]
    for since, *known in [MEMORY.failures[name] for name in names if name in MEMORY.failures]:
        if start - since < stuck.RETRY_SECONDS:
            raise BuildError(*known)
    try:
        found = _obtain(job, limit_bytes)
    except BuildError as error:
        if time.perf_counter() - start > _LONG_SECONDS:
            concerned = names if _fails(job) else names[:1]
            failure = start, error.reason, error.remedy, error.log
            MEMORY.failures.update(dict.fromkeys(concerned, failure))
        raise
    return replace(found, seconds=time.perf_counter() - start)


def _obtain(job: Job, limit_bytes: int) -> Built:
    """The result of a job, from the cache or from a private folder. Raises BuildError."""
    try:
        return _obtain_in(cache.prepare_root(), job, limit_bytes)
    except (OSError, RuntimeError) as problem:  # the latter: a file system without locks
        try:
            found = replace(_obtain_in(private_root(), job, limit_bytes), key="")
        except (OSError, RuntimeError) as error:
            raise BuildError(
                f"there is no folder to compile in ({_reason(problem)}; {_reason(error)})",
                "free some disk space, or set TMPDIR and JAX_COCKTAIL_CACHE_DIR to writable folders",
            ) from error
        if not isinstance(problem, FileNotFoundError):  # another process removes the cache meanwhile
            text = f"the cache of compiled programs is not used: {_reason(problem)}"
            advice = "every process compiles its programs again; set JAX_COCKTAIL_CACHE_DIR to another folder"
            warn((text, ""), f"{text}; {advice}")
        return found


def _reason(problem: Exception) -> str:
    """The problem without the name of a temporary folder, so that equal ones are told once."""
    return getattr(problem, "strerror", None) or str(problem)


def _obtain_in(root: Path, job: Job, limit_bytes: int) -> Built:
    """The result of a job, from the cache in `root` or compiled into it. Raises BuildError or OSError."""
    target = cache.entry_folder(root, job.key)
    found = _load(job, target)
    if found is not None:
        return found
    with filelock.FileLock(cache.lock_path(root, "entries", job.key), timeout=_LOCK_SECONDS):
        found = _load(job, target)  # another process may have built it meanwhile
        if found is not None:
            return found
        _refuse_stuck(job)
        with cache.build_folder(root) as folder:
            _compile(job, folder)
            found = _load(job, folder)
            if found is None:
                raise OSError(errno.EIO, f"the new entry in {folder} cannot be read back")
            cache.publish(folder, target)
    with suppress(OSError):  # the limit can wait for the next build
        cache.make_room(root, job.key, limit_bytes)
    return replace(found, path=str(target / cache.BINARY), cached=False)


def _load(job: Job, folder: Path) -> Built | None:
    """The build in `folder`; None if it is missing, damaged, of another job, or has invalid facts."""
    entry = cache.load(folder, job.key)
    if entry is None:
        return None
    try:
        facts = entry.meta[_FACTS]
        job.language.check(facts)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return Built(entry.binary, entry.digest, entry.path, entry.seconds, True, facts, job.key)


def private_root() -> Path:
    """A folder for this process, removed when it ends. Raises OSError."""
    return _private_root(os.getpid())


@functools.cache
def _private_root(process: int) -> Path:
    del process  # part of the key: a forked child must not share its parent's folder
    folder = Path(tempfile.mkdtemp(prefix="jax_cocktail-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def memory_limit(compilers: int) -> int:
    """The bytes of address space of each of so many compilers that work on one program."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return _LEAST_MEMORY
    return max(int(memory * _MEMORY_SHARE) // (MOST * compilers), _LEAST_MEMORY)


# ---- running the compiler ----------------------------------------------------------------------------------


def _compile(job: Job, folder: Path) -> None:
    """Compiles into `folder` and completes the entry. Raises OSError if the folder is the problem, and
    FileNotFoundError if it has vanished."""
    start = time.perf_counter()
    ended = _run(job, folder)
    seconds, binary = time.perf_counter() - start, folder / cache.BINARY
    if ended.status != 0 or not binary.is_file():
        if not folder.is_dir():
            raise FileNotFoundError(errno.ENOENT, "another process has removed the folder of the build")
        if _FULL_DISK in ended.output:
            raise OSError(errno.ENOSPC, _FULL_DISK)
        how = f"failed with status {ended.status}" if ended.status else "wrote no file"
        if ended.status < 0:
            how = f"was killed by signal {-ended.status}"
        problem = f"the {job.language.compiler} {job.toolchain} {how}"
        raise BuildError(problem, job.language.remedy(ended.output), shortened(ended.output))
    (folder / "log.txt").write_text(ended.output, encoding="utf-8")
    facts = job.language.inspect(binary, ended.output)
    meta = {"compiler": job.toolchain.version, "seconds": seconds, "flags": list(job.arguments)}
    cache.seal(folder, job.key, {**meta, _FACTS: facts})


def _run(job: Job, folder: Path) -> command.Ended:
    """Runs the compiler. Raises BuildError if it does not end in time."""
    (folder / job.language.file).write_text(job.source, encoding="utf-8")
    commands = commands_of(job)
    lines = "".join(shlex.join(words) + "\n" for words in commands)
    (folder / "command.txt").write_text(lines, encoding="utf-8", errors="surrogateescape")
    objects = [folder / name for name in _objects(job)]
    ended = _side_by_side(job, folder, commands[: len(objects)]) if objects else command.Ended(0, "")
    if ended.status != 0 or not all(path.is_file() for path in objects):
        return ended
    between = [*objects, *(folder / name for name in _stages(job)[:-1])]
    if objects and job.language.join is not None:
        text = job.language.join([path.read_text(encoding="utf-8", errors="replace") for path in objects])
        between.append(folder / job.language.joined)
        between[-1].write_text(text, encoding="utf-8")
    for words in commands[len(objects) :]:
        last = _run_one(job, folder, words)
        ended = replace(last, output=ended.output + last.output)
        if ended.status != 0:
            break
    for path in between:
        path.unlink(missing_ok=True)
    return ended


def _stages(job: Job) -> list[str]:
    """The names of what the commands write that follow each other."""
    return [*(f"stage{number}" for number in range(len(job.language.then))), cache.BINARY]


def _objects(job: Job) -> list[str]:
    """The names of what the parts become; none if there is one part only."""
    count = job.language.parts(job.source)
    return [f"part{number}{job.language.object}" for number in range(count)] if count > 1 else []


def commands_of(job: Job) -> list[tuple[str, ...]]:
    """The compiler's commands: those of the parts, if there are several, the one that takes them all, and
    what follows it."""
    language, objects, stages = job.language, _objects(job), _stages(job)
    begin = (*job.toolchain.command, *job.arguments, *language.extra(job.toolchain))
    parts = [
        (*begin, f"-DCK_PART_NUMBER={number}", *language.part, "-o", each, language.file)
        for number, each in enumerate(objects)
    ]
    files = objects or [language.file]
    if objects and language.join is not None:
        files = [language.joined]
    then = [
        (*words, "-o", output, file)
        for words, (file, output) in zip(language.then, pairwise(stages), strict=True)
    ]
    return [*parts, (*begin, "-o", stages[0], *files, *job.last), *then]


def _side_by_side(job: Job, folder: Path, commands: Sequence[Sequence[str]]) -> command.Ended:
    """Runs commands, as many at once as there are cores. Returns one that failed, else all messages."""
    with Workers(min(len(commands), cores())) as workers:
        futures = [workers.submit(partial(_run_one, job, folder, words)) for words in commands]
        try:
            ended = [future.result() for future in futures]
        finally:  # those that have not begun need not, if one is late or this thread is interrupted
            for future in futures:
                future.cancel()
    failed = next((each for each in ended if each.status != 0), None)
    return failed or command.Ended(0, "".join(each.output for each in ended))


def _run_one(job: Job, folder: Path, words: Sequence[str]) -> command.Ended:
    """Runs one of the commands. Raises BuildError if it does not end in time."""

    def more() -> float:
        if _on_nothing(job).late:
            return 0.0
        _LOG.warning(
            "jax_cocktail: the %s has worked on one program for %.0f s; later processes find the result",
            job.language.compiler,
            _PATIENCE_SECONDS,
        )
        return _COMPILE_SECONDS - _PATIENCE_SECONDS

    environment = dict(job.toolchain.environment)
    seconds, memory = _PATIENCE_SECONDS, memory_limit(min(job.language.parts(job.source), cores()))
    ended = command.run(words, environment, seconds, folder=folder, more=more, memory_bytes=memory)
    if ended.late:
        stuck.remember(job.key)
        raise _too_late(job)
    return ended


def _on_nothing(job: Job) -> command.Ended:
    """The compiler's end on an empty text. If it does not end, it is no use for other programs either."""
    arguments = (*job.arguments, *job.language.part, "-o", cache.BINARY, job.language.file)
    words = (*job.toolchain.command, *arguments)
    with tempfile.TemporaryDirectory(prefix="jax_cocktail-") as folder:
        Path(folder, job.language.file).write_text("", encoding="utf-8")
        environment = dict(job.toolchain.environment)
        ended = command.run(words, environment, command.ANSWER_SECONDS, folder=Path(folder))
    if ended.late:
        stuck.remember(stuck.name_of(job.toolchain.command))
    return ended


def _fails(job: Job) -> bool:
    """True if the compiler fails on an empty text as well, so that other programs need not wait for it."""
    if stuck.remembered(stuck.name_of(job.toolchain.command)):
        return True
    try:
        return _on_nothing(job).status != 0
    except (OSError, BuildError):  # it cannot be asked
        return False


def _refuse_stuck(job: Job) -> None:
    """Raises BuildError if this job, or its compiler, took too long a short time ago."""
    if stuck.remembered(job.key) or stuck.remembered(stuck.name_of(job.toolchain.command)):
        raise _too_late(job)


def _too_late(job: Job) -> BuildError:
    return BuildError(
        f"the {job.language.compiler} {job.toolchain} does not end",
        f"{job.language.remedy(command.STOPPED)}; it is tried again after {stuck.RETRY_SECONDS / 60:.0f}"
        " minutes, or after jax_cocktail.clear_cache()",
    )


def shortened(log: str, most: int = 1900) -> str:
    """The most useful part of a compiler's log: from the first error on, and the end."""
    lines = log.strip().splitlines()
    first = next((k for k, line in enumerate(lines) if "error" in line.lower()), 0)
    text = "\n".join(lines[max(first - 2, 0) :])
    if len(text) <= most:
        return text
    return f"{text[: most - 400]}\n... ({len(text) - most} characters left out) ...\n{text[-400:]}"
