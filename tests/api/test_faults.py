"""The table of faults: whatever is wrong with the compiler or the environment, importing never raises, and a
call gives the results of stock XLA with one warning that names the cause and a remedy."""

from __future__ import annotations

import errno
import json
import os
import pwd
import resource
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail import cache
from jax_cocktail.build import command, job
from jax_cocktail.build.host import host_toolchain
from jax_cocktail.lowering.edge import custom_call
from jax_cocktail.memory import MEMORY
from tests.process import python
from tests.told import silent, told

TARGET = "jax_cocktail_cpu"
FORCED = {"force": "cocktail"}


def function(x):
    return lax.fori_loop(0, 3, lambda i, a: a + x, x)


def another(x):
    return lax.fori_loop(0, 5, lambda i, a: a * x, x)


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    """Every cause is new, and nothing is in the cache."""
    jax_cocktail.load()
    job._private_root.cache_clear()
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "cache"))
    MEMORY.warned.clear()
    yield
    MEMORY.stuck.clear()


# ---- compilers ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """A compiler that does not do its work.

    Attributes:
      name: what is wrong.
      words: what the warning says.
      compiles: the shell's commands in the place of a compilation; it shall write the file $out.
      version: the same, when it is asked for its version.
      cxx: the value of $CXX, if it is not such a script. {folder} is a folder of the test.
    """

    name: str
    words: tuple[str, ...]
    compiles: str = "exit 4"
    version: str = "echo fake 1.0"
    cxx: str = ""


COMPILERS = [
    Fault("an unclosed quote", ("No closing quotation", "correct or unset CXX"), cxx='"g++'),
    Fault("no words", ("was not found", "CXX"), cxx="''"),
    Fault("a missing file", ("/no/such/compiler", "was not found", "CXX"), cxx="/no/such/compiler"),
    Fault("a folder", ("was not found", "CXX"), cxx="{folder}"),
    Fault("not executable", ("was not found", "CXX"), cxx="{folder}/text"),
    Fault("a name that is not UTF-8", ("was not found", "CXX"), cxx="g\udcff++"),
    Fault("of another processor", ("does not run", "CXX"), cxx="{folder}/foreign"),
    Fault("no version", ("does not run", "CXX"), version="exit 3"),
    Fault("a crash before its version", ("does not run", "CXX"), version="kill -SEGV $$"),
    Fault("a version that never comes", ("does not tell its version", "CXX"), version="sleep 1019"),
    Fault("a version that is not UTF-8", ("failed with status 4",), version=r"printf '\377\376 1.0'"),
    Fault("a version without end", ("does not run", "CXX"), version="yes"),
    Fault("a long version", ("failed with status 4",), version="head -c 3000000 /dev/zero | tr '\\0' v"),
    Fault("an error", ("status 4", "CXX", "internal error"), "echo 'internal error' >&2; exit 4"),
    Fault("an error that is not UTF-8", ("status 5", "CXX", "error"), r"printf '\377 error\n'; exit 5"),
    Fault("messages without end", ("16 MB of messages", "CXX"), "yes error"),
    Fault("a compilation without end", ("does not end", "10 minutes", "clear_cache"), "sleep 1019"),
    Fault("killed", ("was killed by signal 9", "CXX"), "kill -9 $$"),
    Fault("out of memory", ("failed with status", "CXX"), 'ulimit -v 20000; exec $real "$@"'),
    Fault("a full disk", ("No space left", "TMPDIR"), "echo 'No space left on device'; exit 1"),
    Fault("no file", ("wrote no file", "CXX"), "exit 0"),
    Fault("an empty file", ("not a complete shared object", "CXX"), ': > "$out"'),
    Fault("a folder for a file", ("wrote no file", "CXX"), 'mkdir "$out"'),
    Fault("rubbish", ("not a complete shared object", "CXX"), 'head -c 9999 /dev/urandom > "$out"'),
    Fault("half a file", ("not a complete shared object", "CXX"), 'head -c $half "$other" > "$out"'),
    Fault("another program", ("does not define ck_", "CXX"), 'cp "$other" "$out"'),
]


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A shared object that is none of ours."""
    folder = tmp_path_factory.mktemp("other")
    (folder / "other.cc").write_text("int other = 7;\n")
    words = [*host_toolchain().command, "-shared", "-fPIC", "-o", str(folder / "other.so")]
    subprocess.run([*words, str(folder / "other.cc")], check=True)
    return folder / "other.so"


def compiler(fault, folder, other):
    """The value of $CXX."""
    (folder / "text").write_text("no program")
    (folder / "foreign").write_bytes(b"\x7fELF\2\2\1" + bytes(11) + b"\x16" + bytes(100))
    (folder / "foreign").chmod(0o755)
    script = f"""#!/bin/sh
case "$*" in *--version*) echo version >> {folder}/log; {fault.version}; exit $?;; esac
echo compilation >> {folder}/log
real={shlex.quote(host_toolchain().command[0])}
other={shlex.quote(str(other))} half={other.stat().st_size // 2}
last=; for word; do [ "$last" = -o ] && out=$word; last=$word; done
{fault.compiles}
"""
    (folder / "compiler").write_text(script)
    (folder / "compiler").chmod(0o755)
    return fault.cxx.replace("{folder}", str(folder)) or str(folder / "compiler")


@pytest.mark.sampled(17)
@pytest.mark.parametrize("when", ["at import", "in a call"])
@pytest.mark.parametrize("fault", COMPILERS, ids=lambda fault: fault.name)
def test_compiler(fault, when, tmp_path, monkeypatch, other):
    monkeypatch.setenv("CXX", compiler(fault, tmp_path, other))
    hangs = "sleep" in fault.version + fault.compiles
    if hangs:
        monkeypatch.setattr(command, "ANSWER_SECONDS", 1.0)
        monkeypatch.setattr(job, "_PATIENCE_SECONDS", 1.0)
    if when == "at import":
        monkeypatch.setattr(custom_call, "_library", None)
        custom_call.register_quietly()
    x = jnp.arange(3.0)
    result, text = told(jax_cocktail.jit(function, options=FORCED if when == "at import" else {}), x)
    assert jnp.array_equal(result, jax.jit(function)(x))
    assert all(word in text for word in fault.words), text
    assert len(text) < 6000
    log = tmp_path / "log"
    before = log.read_text() if log.exists() else ""
    assert jnp.array_equal(silent(jax_cocktail.jit(another, options=FORCED), x), jax.jit(another)(x))
    if hangs:
        assert log.read_text() == before, "nobody waits again"
    with pytest.raises(jax_cocktail.BuildError):
        jax_cocktail.jit(function, options={**FORCED, "strict": True})(x)


# ---- the environment ---------------------------------------------------------------------------------------


@contextmanager
def limited(kind, number):
    """A lower limit of this process, and of what it starts."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (number, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def no_home(folder, patch):
    def no_entry(uid):
        raise KeyError(uid)

    for name in ("HOME", "XDG_CACHE_HOME", "TEST_TMPDIR", "JAX_COCKTAIL_CACHE_DIR"):
        patch.delenv(name, raising=False)
    patch.setattr(pwd, "getpwuid", no_entry)


def cache_is(place, folder, patch):
    (folder / "file").write_text("")
    patch.setenv("JAX_COCKTAIL_CACHE_DIR", place.format(folder=folder))


def nothing_to_write_to(folder, patch):
    patch.setenv("JAX_COCKTAIL_CACHE_DIR", "/proc/nowhere")
    patch.setattr(tempfile, "tempdir", "/proc")


def full_disk(folder, patch):
    cache.lock_path(cache.prepare_root(), "entries", "")

    def mkdir(path, *rest, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)  # mostly a new one

    patch.setattr(os, "mkdir", mkdir)


def no_more_threads(folder, patch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    patch.setattr(threading.Thread, "start", start)


@dataclass(frozen=True)
class Surroundings:
    """An environment in which something is missing.

    Attributes:
      name: what is wrong.
      words: what the warning says.
      breaks: (a folder, monkeypatch) -> nothing.
      limit: a limit of the process, and its value.
      ours: whether our program runs nevertheless.
    """

    name: str
    words: tuple[str, ...]
    breaks: Callable[[Path, pytest.MonkeyPatch], None] = lambda folder, patch: None
    limit: tuple[int, int] | None = None
    ours: bool = False


SURROUNDINGS = [
    Surroundings("no home", ("no home folder", "JAX_COCKTAIL_CACHE_DIR"), no_home, ours=True),
    Surroundings(
        "a read-only cache", ("cannot be created", "CACHE_DIR"), partial(cache_is, "/proc/x"), ours=True
    ),
    Surroundings(
        "a file for a cache",
        ("cannot be created", "CACHE_DIR"),
        partial(cache_is, "{folder}/file"),
        ours=True,
    ),
    Surroundings("a full disk", ("No space left on device", "TMPDIR"), full_disk),
    Surroundings("nothing to write to", ("no folder to compile in", "TMPDIR"), nothing_to_write_to),
    Surroundings("no more threads", ("can't start new thread", "ulimit"), no_more_threads),
    Surroundings("small files only", ("File size limit", "CXX"), limit=(resource.RLIMIT_FSIZE, 1024)),
    Surroundings("few descriptors", ("Too many open files", "ulimit"), limit=(resource.RLIMIT_NOFILE, 0)),
]


@pytest.mark.parametrize("fault", SURROUNDINGS, ids=lambda fault: fault.name)
def test_surroundings(fault, tmp_path, monkeypatch):
    x = jnp.arange(3.0)
    wrapped = jax_cocktail.jit(function, options=FORCED)
    with ExitStack() as held:
        fault.breaks(tmp_path, monkeypatch)
        if fault.limit is not None:
            held.enter_context(limited(*fault.limit))
        module, text = told(lambda: wrapped.lower(x).as_text())
        result = silent(wrapped, x)
        if not fault.ours:  # Python's own filter tells the rest once
            silent(jax_cocktail.jit(another, options=FORCED), x)
    assert (TARGET in module) == fault.ours
    assert jnp.array_equal(result, jax.jit(function)(x))
    assert all(word in text for word in fault.words), text


# ---- at import, in a process of its own --------------------------------------------------------------------


def test_import_without_home_and_compiler(tmp_path):
    """Nothing is built, so this is quick."""
    program = """
        import os, pwd, warnings

        def no_entry(uid):
            raise KeyError(uid)

        for name in ("HOME", "XDG_CACHE_HOME", "TEST_TMPDIR", "JAX_COCKTAIL_CACHE_DIR"):
            os.environ.pop(name, None)
        pwd.getpwuid = no_entry
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import jax_cocktail
            from jax import lax
            double = jax_cocktail.jit(lambda x: lax.fori_loop(0, 3, lambda i, a: a + a, x))
            print(double(1.0), double(2), [str(w.message) for w in caught])
    """
    out = python(program, CXX="/no/such/compiler")
    assert out.startswith("8.0 16 [") and out.count("/no/such/compiler") == 1


# Folders in $NOEXEC do not allow execution; with $NO_MEMFD there are no files in memory.
REFUSING = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static __thread int refused;

void* dlopen(const char* path, int flags) {
  char at[4096];
  const char* folder = getenv("NOEXEC");
  refused = path != 0 && realpath(path, at) != 0;
  for (; refused && folder && *folder; folder += strcspn(folder, ":"), folder += *folder == ':') {
    if (strncmp(at, folder, strcspn(folder, ":")) == 0) return 0;
  }
  refused = 0;
  return ((void* (*)(const char*, int))dlsym(RTLD_NEXT, "dlopen"))(path, flags);
}

char* dlerror(void) {
  if (!refused) return ((char* (*)(void))dlsym(RTLD_NEXT, "dlerror"))();
  refused = 0;
  return "failed to map segment from shared object";
}

int memfd_create(const char* name, unsigned flags) {
  errno = ENOSYS;
  if (getenv("NO_MEMFD")) return -1;
  return ((int (*)(const char*, unsigned))dlsym(RTLD_NEXT, "memfd_create"))(name, flags);
}
"""


def test_folders_without_execution(tmp_path):
    """Any one of the cache, TMPDIR and the memory suffices. A program that cannot be loaded is found out
    before it is called."""
    (tmp_path / "refusing.c").write_text(REFUSING)
    library = tmp_path / "refusing.so"
    words = [*host_toolchain().command, "-x", "c", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([*words, str(tmp_path / "refusing.c"), "-ldl"], check=True)
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "later").mkdir(mode=0o700)
    program = """
        import json, os, warnings

        cache, tmp = os.environ["JAX_COCKTAIL_CACHE_DIR"], os.environ["TMPDIR"]
        told = []

        def call(power, folders, no_memfd=False):
            os.environ["NOEXEC"] = ":".join(folders)
            if no_memfd:
                os.environ["NO_MEMFD"] = "1"
            function = jax_cocktail.jit(
                lambda x: lax.fori_loop(0, 3, lambda i, a: a * x**power, x), options={"force": "cocktail"}
            )
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                ours = "jax_cocktail_cpu" in function.lower(2).as_text()
                told.append([ours, int(function(2)), [str(w.message) for w in caught]])

        os.environ["NOEXEC"] = cache
        import jax_cocktail
        from jax import lax
        call(1, [cache])
        call(2, [cache, tmp])
        call(3, [tmp], no_memfd=True)
        call(4, [cache, tmp], no_memfd=True)
        os.environ["JAX_COCKTAIL_CACHE_DIR"] = os.environ["LATER"]
        call(5, [cache, tmp], no_memfd=True)
        print(json.dumps(told))
    """
    environment = {"JAX_COCKTAIL_CACHE_DIR": str(tmp_path / "cache"), "TMPDIR": str(tmp_path / "tmp")}
    environment["LATER"] = str(tmp_path / "later")
    first, second, third, fourth, fifth = json.loads(python(program, LD_PRELOAD=str(library), **environment))
    assert first == [True, 16, []] and second == [True, 128, []] and third == [True, 1024, []]
    assert fourth[:2] == [False, 8192] and fifth[:2] == [False, 65536]
    for text, words in ((fourth[2], "failed to map segment"), (fifth[2], "the program cannot be loaded")):
        assert len(text) == 1 and words in text[0] and "TMPDIR" in text[0]
