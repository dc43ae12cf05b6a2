"""The compile cache and its failure modes."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest

from jax_cocktail import cache, files
from jax_cocktail.build import features, job, library
from jax_cocktail.build import host as build
from jax_cocktail.errors import BuildError, CocktailWarning
from jax_cocktail.memory import MEMORY
from jax_cocktail_tools import ceilings

SOURCE = """#include "cocktail_base.h"
CK_EXPORT int ck_program(const void* const*, void* const*, u8*, CkUnit*) { return %d; }
"""


def _program(code: int = 0) -> str:
    return SOURCE % code


def _code(path: str) -> int:
    return int(ctypes.CDLL(path).ck_program(None, None, None, None))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder in use."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(folder))
    return folder


def _compiler(tmp_path: Path, script: str) -> build.Toolchain:
    """A toolchain that counts its compilations in `runs` and then does `script`."""
    path = tmp_path / "compiler"
    count = f'case "$*" in *program.so*) echo run >> "{tmp_path}/runs";; esac'
    path.write_text(f"#!/bin/sh\n{count}\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return build.Toolchain((str(path),), "test compiler 1.0", "any")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="of x86-64 processors")
@pytest.mark.parametrize(
    ("arch", "tune", "found"),
    [
        ("cooperlake", "generic", ("-mtune=cooperlake",)),
        ("sapphirerapids", "sapphirerapids", ()),
        ("x86-64-v3", "generic", ()),
    ],
)
def test_processors_newer_than_the_compiler(
    tmp_path: Path, arch: str, tune: str, found: tuple[str, ...]
) -> None:
    says = f"printf '  -march=  \\t{arch}\\n  -mtune=  \\t{tune}\\n  Known arguments for -mtune= option:\\n'"
    assert features.tuning_argument(_compiler(tmp_path, says)) == found


def _assembly(folder: Path, program: str, needed: str = "", more: tuple[str, ...] = ()) -> str:
    """The assembly text of a program. Skips the test on a processor without the feature `needed`."""
    toolchain = build.host_toolchain()
    if needed and needed not in (features.names_of(toolchain, build.PROGRAM_FLAGS) or ()):
        pytest.skip("no such processor")
    text = f'#include "cocktail_base.h"\n#include "cocktail_math.h"\n{program}\n'
    (folder / "program.cc").write_text(text, encoding="utf-8")
    flags = (*build.program_flags(toolchain), *features.tuning_argument(toolchain))
    includes = [f"-I{folder}" for folder in job.program_folders("cpu_src")]
    command = [*toolchain.command, *flags, *includes, *more, "-S", "-o", "-", "program.cc"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def test_tables_are_read_in_vector_lanes(tmp_path: Path) -> None:
    """On processors that can, also where they are newer than the compiler."""
    program = (
        "CK_EXPORT void looked_up(f32* x, const f32* table, const i32* at) {"
        " CK_LANES for (i64 i = 0; i < 4096; ++i) x[i] = table[at[i]]; }"
    )
    assert "gather" in _assembly(tmp_path, program, "AVX512F")


def _mapped(function: str) -> str:
    loop = f"CK_LANES for (i64 i = 0; i < 4096; ++i) x[i] = ck_{function}(x[i]);"
    return f"CK_EXPORT void mapped(f32* x) {{ {loop} }}"


FUNCTIONS = pytest.mark.parametrize("function", ["sin", "cos", "exp", "log", "tanh"])


@FUNCTIONS
def test_functions_run_in_vector_lanes(tmp_path: Path, function: str) -> None:
    """They multiply and add whole registers at once, and call nothing."""
    text = _assembly(tmp_path, _mapped(function), "AVX2")
    assert re.search(r"vfmadd\w+\s.*%[yz]mm", text) and not re.search(r"\bcall", text)


@FUNCTIONS
@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have fused multiply-adds")
def test_functions_call_nothing_on_old_processors(tmp_path: Path, function: str) -> None:
    text = _assembly(tmp_path, _mapped(function), more=("-march=x86-64",))
    assert re.search(r"\bmulp[sd]\b", text) and not re.search(r"\bcall", text)


def _counting(tmp_path: Path) -> build.Toolchain:
    command = " ".join(build.host_toolchain().command)
    return _compiler(tmp_path, f'exec {command} "$@"')


def _runs(tmp_path: Path) -> int:
    path = tmp_path / "runs"
    return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0


def test_cold_build_then_warm_hit(root: Path, tmp_path: Path) -> None:
    toolchain = _counting(tmp_path)
    first = build.build_program(_program(3), toolchain)
    second = build.build_program(_program(3), toolchain)
    assert (first.cached, second.cached, _runs(tmp_path)) == (False, True, 1)
    assert first.binary == second.binary and first.digest == hashlib.sha256(first.binary).hexdigest()
    assert Path(first.path).read_bytes() == first.binary and _code(first.path) == 3
    names = {path.name for path in Path(first.path).parent.iterdir()}
    assert names == {"program.cc", "command.txt", "log.txt", "program.so", "meta.json"}
    assert not list(root.glob("build-*"))


def test_source_flags_and_compiler_are_in_the_key(root: Path, tmp_path: Path) -> None:
    toolchain = build.host_toolchain()
    first = build.build_program(_program(1), toolchain)
    assert build.build_program(_program(2), toolchain).path != first.path
    other = build.Toolchain(toolchain.command, toolchain.version + " patched", toolchain.processor)
    assert build.build_program(_program(1), other).path != first.path
    other = build.Toolchain(toolchain.command, toolchain.version, toolchain.processor + " avx1024")
    assert build.build_program(_program(1), other).path != first.path


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "no binary", "no meta", "bad meta"])
def test_damaged_entries_are_rebuilt_and_never_loaded(root: Path, tmp_path: Path, damage: str) -> None:
    toolchain = _counting(tmp_path)
    first = build.build_program(_program(4), toolchain)
    path = Path(first.path)
    if damage == "flip":
        path.write_bytes(first.binary[:-9] + bytes([first.binary[-9] ^ 1]) + first.binary[-8:])
    elif damage in ("truncate", "empty"):
        path.write_bytes(first.binary[: len(first.binary) // 2] if damage == "truncate" else b"")
    elif damage == "no binary":
        path.unlink()
    elif damage == "no meta":
        path.with_name("meta.json").unlink()
    else:
        path.with_name("meta.json").write_text("{", encoding="utf-8")
    again = build.build_program(_program(4), toolchain)
    assert not again.cached and _runs(tmp_path) == 2
    assert hashlib.sha256(again.binary).hexdigest() == again.digest and _code(again.path) == 4
    assert build.build_program(_program(4), toolchain).cached


@pytest.mark.parametrize("what", ["program.so", "meta.json", "entry"])
def test_files_that_others_can_write_are_refused(root: Path, tmp_path: Path, what: str) -> None:
    toolchain = _counting(tmp_path)
    folder = Path(build.build_program(_program(5), toolchain).path).parent
    (folder if what == "entry" else folder / what).chmod(0o777)
    assert cache.load(folder, folder.name) is None
    again = build.build_program(_program(5), toolchain)
    assert not again.cached and _runs(tmp_path) == 2
    assert cache.load(folder, folder.name) is not None


def test_symbolic_link_instead_of_a_binary_is_refused(root: Path, tmp_path: Path) -> None:
    path = Path(build.build_program(_program(6), build.host_toolchain()).path)
    copy = tmp_path / "elsewhere.so"
    path.rename(copy)
    path.symlink_to(copy)
    assert cache.load(path.parent, path.parent.name) is None
    assert not build.build_program(_program(6), build.host_toolchain()).cached


def test_foreign_owner_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(build.build_program(_program(7), build.host_toolchain()).path).parent
    if os.getuid() == 0:
        try:
            os.chown(folder / "program.so", 12345, -1)
        except OSError as error:
            pytest.skip(f"files cannot be given to another user here: {error}")
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(OSError, match="another user"), files.opened(folder) as handle:
        files.read(handle, "program.so", 1 << 30)
    assert cache.load(folder, folder.name) is None


def test_cache_folder_that_others_can_write_falls_back(root: Path, tmp_path: Path) -> None:
    root.mkdir()
    root.chmod(0o777)
    toolchain = _counting(tmp_path)
    with pytest.warns(CocktailWarning, match="writable by other users"):
        built = build.build_program(_program(8), toolchain)
    assert _code(built.path) == 8 and not built.path.startswith(str(root)) and not any(root.iterdir())
    assert build.build_program(_program(8), toolchain).cached  # within this process, which is told once
    assert _runs(tmp_path) == 1


def test_cache_folder_that_cannot_be_made_falls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(CocktailWarning, match="JAX_COCKTAIL_CACHE_DIR"):
        assert _code(build.build_program(_program(9), build.host_toolchain()).path) == 9


@pytest.mark.skipif(os.getuid() == 0, reason="root writes everywhere")
def test_read_only_cache_falls_back_and_still_serves(root: Path, tmp_path: Path) -> None:
    toolchain = _counting(tmp_path)
    build.build_program(_program(10), toolchain)
    folders = [root, root / "entries", root / "locks"]
    for folder in folders:
        folder.chmod(0o500)
    try:
        assert build.build_program(_program(10), toolchain).cached
        with pytest.warns(CocktailWarning):
            assert _code(build.build_program(_program(11), toolchain).path) == 11
    finally:
        for folder in folders:
            folder.chmod(0o700)


def test_write_errors_fall_back(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root, where modes do not bind: the file system itself refuses."""

    make = cache.build_folder

    def refuse(folder: Path) -> AbstractContextManager[Path]:
        if folder == root:
            raise OSError(30, "Read-only file system")
        return make(folder)

    monkeypatch.setattr(cache, "build_folder", refuse)
    with pytest.warns(CocktailWarning, match="Read-only file system"):
        assert _code(build.build_program(_program(12), build.host_toolchain()).path) == 12


def test_full_disk_everywhere_is_a_build_error(root: Path, tmp_path: Path) -> None:
    toolchain = _compiler(tmp_path, "echo 'fatal error: error writing: No space left on device' >&2; exit 1")
    with pytest.raises(BuildError, match="No space left.*disk space"):
        build.build_program(_program(13), toolchain)


def test_failing_compiler_reports_its_log(root: Path, tmp_path: Path) -> None:
    toolchain = _compiler(tmp_path, "echo 'program.cc:1: internal compiler error' >&2; exit 4")
    with pytest.raises(BuildError, match="status 4") as caught:
        build.build_program(_program(14), toolchain)
    assert "internal compiler error" in caught.value.log and caught.value.remedy
    with pytest.raises(BuildError, match="was not declared|undeclared"):
        build.build_program("int f() { return missing; }", build.host_toolchain())
    assert not list(root.glob("build-*"))


@pytest.mark.parametrize("name", ["runtime_own.h", "../common_src/runtime_shared.h", "runtime.cc"])
def test_handlers_are_built_again_when_their_text_changes(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    interface = tmp_path / "include" / "xla" / "ffi" / "api" / "c_api.h"
    folders = (tmp_path / "cpu_src", tmp_path / "common_src")
    for folder in (*folders, interface.parent):
        folder.mkdir(parents=True)
    own = ("cocktail_base.h", "cocktail_features.h", "cocktail_routines.h", "cocktail_units.h")
    own += ("cocktail_dot.h", "runtime_own.h")
    files = [folders[0] / file for file in (*own, "runtime.cc")]
    files += [folders[1] / file for file in ("cocktail_types.h", "runtime_shared.h")]
    for path in (*files, interface):
        path.write_text("// 1\n", encoding="utf-8")
    visible = 'extern "C" __attribute__((visibility("default"))) int'
    text = "".join(f"{visible} {name};\nint {name} = 1;\n" for name in build._RUNTIME_SYMBOLS)
    (folders[0] / "runtime.cc").write_text(text)
    monkeypatch.setattr(build, "program_folders", lambda name: folders)
    toolchain = _counting(tmp_path)
    first = build.build_runtime(str(tmp_path / "include"), toolchain)
    (folders[0] / "cocktail_dot.h").write_text("// for programs only\n", encoding="utf-8")
    assert build.build_runtime(str(tmp_path / "include"), toolchain) == first
    path = folders[0] / name
    path.write_text(path.read_text() + "// 2\n", encoding="utf-8")
    assert build.build_runtime(str(tmp_path / "include"), toolchain) != first and _runs(tmp_path) == 2


def test_the_runtime_is_built_again_if_the_cache_is_cleared_meanwhile(root: Path, tmp_path: Path) -> None:
    """By another process, before this one has loaded what it built."""
    toolchain, paths = _counting(tmp_path), []

    def built() -> str:
        paths.append(build.build_program(_program(32), toolchain).path)
        if len(paths) == 1:
            cache.clear_cache()
        return paths[-1]

    assert library.open_built(built)[0].ck_program(None, None, None, None) == 32
    assert len(paths) == 2 and _runs(tmp_path) == 2
    (tmp_path / "rubbish").write_bytes(b"rubbish")
    with pytest.raises(OSError, match="file too short|invalid ELF"):
        library.open_built(lambda: str(tmp_path / "rubbish"))


def test_runtime_without_its_parts(root: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="c_api.h is missing; try: reinstall jaxlib"):
        build.build_runtime(str(tmp_path), build.host_toolchain())


def test_a_slow_failure_is_not_repeated(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of the runtime library, which every program needs; a quick one is."""
    toolchain = _compiler(tmp_path, "echo 'internal compiler error' >&2; exit 4")

    def runs() -> int:
        with pytest.raises(BuildError, match="status 4.*\n*internal compiler error"):
            build.build_program(_program(31), toolchain)
        return _runs(tmp_path)

    assert [runs(), runs()] == [1, 2]
    monkeypatch.setattr(job, "_LONG_SECONDS", 0.0)
    assert [runs(), runs(), runs()] == [4, 4, 4], "on its text, and on an empty one"
    with pytest.raises(BuildError, match="status 4"):
        build.build_program(_program(33), toolchain)
    assert _runs(tmp_path) == 4, "other programs do not wait for this compiler"
    MEMORY.failures.clear()
    assert runs() == 6


def test_a_slow_failure_on_one_program_concerns_no_other(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_LONG_SECONDS", 0.0)
    command = " ".join(build.host_toolchain().command)
    toolchain = _compiler(tmp_path, f'grep -q BAD program.cc && exit 4\nexec {command} "$@"')
    for _ in range(2):
        with pytest.raises(BuildError, match="status 4"):
            build.build_program("// BAD\n" + _program(34), toolchain)
        assert _runs(tmp_path) == 2, "on its text, and on an empty one"
    assert _code(build.build_program(_program(34), toolchain).path) == 34


def test_only_the_program_that_takes_too_long_is_refused(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The compiler gets more time, which is told, since it works on an empty text; other programs are still
    compiled."""
    monkeypatch.setattr(job, "_PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(job, "_COMPILE_SECONDS", 0.4)
    command = " ".join(build.host_toolchain().command)
    toolchain = _compiler(tmp_path, f'grep -q SLOW program.cc && sleep 1023\nexec {command} "$@"')
    for _ in range(2):
        with pytest.raises(BuildError, match="does not end; try:.*make the loop smaller.*10 minutes"):
            build.build_program("// SLOW\n" + _program(30), toolchain)
        assert _runs(tmp_path) == 2, "on its text, and on an empty one"
    assert [record.name for record in caplog.records] == ["jax_cocktail"]
    assert "C++ compiler has worked on one program" in caplog.text
    monkeypatch.setattr(job, "_PATIENCE_SECONDS", 20.0)
    assert _code(build.build_program(_program(30), toolchain).path) == 30


def test_compiler_that_vanished(root: Path) -> None:
    toolchain = build.Toolchain(("/nowhere/c++",), "gone", "any")
    with pytest.raises(BuildError, match="failed") as caught:
        build.build_program(_program(15), toolchain)
    assert "not found" in caught.value.log


def test_no_compiler_at_all(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build, "zig", lambda: None)
    build._find_toolchain.cache_clear()
    with pytest.raises(BuildError, match="no C\\+\\+ compiler") as caught:
        build.host_toolchain()
    assert "ziglang" in caught.value.remedy
    build._find_toolchain.cache_clear()


def test_cxx_is_respected(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain = _counting(tmp_path)
    monkeypatch.setenv("CXX", f"{toolchain.command[0]} -DEXTRA=1")
    assert build.host_toolchain().command == (toolchain.command[0], "-DEXTRA=1")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BuildError, match="CXX"):
        build.host_toolchain()


def test_other_compilers_get_no_flags_of_gcc() -> None:
    gcc, clang = "g++ 12.2.0\nCopyright (C) 2022 Free Software Foundation, Inc.", "clang version 16.0.6"
    flags = [build.program_flags(job.Toolchain(("c++",), version, "")) for version in (gcc, clang)]
    assert set(flags[0]) - set(flags[1]) == {"-fno-thread-jumps"} and set(flags[1]) <= set(flags[0])


def test_loops_that_measure_the_machine(root: Path) -> None:
    library, data = ceilings.loops(), np.ones(4096, np.float32)
    assert library.ck_read(data.ctypes.data, data.nbytes, 3) == 3 * data.nbytes
    assert library.ck_multiply_add(8) == 8 * library.ck_multiply_add(1) > 0


def test_size_limit_evicts_the_least_recently_used(root: Path) -> None:
    toolchain = build.host_toolchain()
    paths = [Path(build.build_program(_program(code), toolchain).path) for code in (20, 21, 22)]
    now = time.time()
    for age, path in zip((30, 10, 20), paths, strict=True):
        os.utime(path.with_name("meta.json"), (now - age, now - age))
    size = sum(file.stat().st_size for file in paths[0].parent.iterdir())
    kept = Path(build.build_program(_program(23), toolchain, cache_limit_bytes=3 * size).path)
    assert [path.exists() for path in (*paths, kept)] == [False, True, False, True]
    tiny = Path(build.build_program(_program(24), toolchain, cache_limit_bytes=1).path)
    assert tiny.exists() and not kept.exists()


def test_exchanged_entries_are_built_again(root: Path, tmp_path: Path) -> None:
    """A restored backup that mixes up folders must never make one program run for another."""
    toolchain = _counting(tmp_path)
    one, two = (Path(build.build_program(_program(code), toolchain).path).parent for code in (27, 28))
    one.rename(root / "entries" / "aside")
    two.rename(one)
    (root / "entries" / "aside").rename(two)
    assert [_code(build.build_program(_program(code), toolchain).path) for code in (27, 28)] == [27, 28]
    assert _runs(tmp_path) == 4


@pytest.mark.parametrize("how", ["clear_cache", "rm -rf"])
def test_a_build_survives_the_loss_of_the_cache(
    root: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder, how: str
) -> None:
    """`clear_cache` leaves the folder of a build alone; without it, a build begins again elsewhere."""
    command = " ".join(build.host_toolchain().command)
    waiting = f'[ -e "{tmp_path}/go" ] || {{ touch "{tmp_path}/here"; sleep 0.5; touch "{tmp_path}/go"; }}'
    compiling = f'case "$*" in *program.so*) {waiting};; esac'
    toolchain = _compiler(tmp_path, f'{compiling}\nexec {command} "$@"')
    built: list[build.Built] = []
    thread = threading.Thread(target=lambda: built.append(build.build_program(_program(29), toolchain)))
    thread.start()
    while not (tmp_path / "here").exists():
        time.sleep(0.01)
    if how == "clear_cache":
        cache.clear_cache()
    else:
        shutil.rmtree(root)
    thread.join()
    assert _code(built[0].path) == 29 and not recwarn.list
    assert _runs(tmp_path) == (1 if how == "clear_cache" else 2)
    assert built[0].path.startswith(str(root)) == (how == "clear_cache")


def test_clear_cache(root: Path) -> None:
    path = Path(build.build_program(_program(25), build.host_toolchain()).path)
    (root / "other").write_text("stays", encoding="utf-8")
    cache.clear_cache()
    assert not path.exists() and (root / "other").exists()


def test_cache_folder_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAX_COCKTAIL_CACHE_DIR", "TEST_TMPDIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert build.cache_dir() == tmp_path / "home" / ".cache" / "jax_cocktail"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert build.cache_dir() == tmp_path / "xdg" / "jax_cocktail"
    monkeypatch.setenv("TEST_TMPDIR", str(tmp_path / "test"))
    assert build.cache_dir() == tmp_path / "test" / "jax_cocktail"
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "own"))
    assert build.cache_dir() == tmp_path / "own"


def test_eight_processes_compile_once(root: Path, tmp_path: Path) -> None:
    toolchain = _counting(tmp_path)
    script = (
        "import sys; from jax_cocktail.build import host as build\n"
        "toolchain = build.Toolchain((sys.argv[1],), 'test compiler 1.0', 'any')\n"
        "print(build.build_program(sys.argv[2], toolchain).digest)\n"
    )
    command = [sys.executable, "-c", script, toolchain.command[0], _program(26)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    children = [
        subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) for _ in range(8)
    ]
    digests = {child.communicate(timeout=120)[0].strip() for child in children}
    assert all(child.returncode == 0 for child in children) and len(digests) == 1 and len(digests.pop()) == 64
    assert _runs(tmp_path) == 1


def test_a_small_program_compiles_quickly(root: Path) -> None:
    """The budget is generous: about 0.05 s on an idle machine."""
    source = (
        '#include "cocktail_math.h"\n#include "cocktail_dot.h"\n#include "cocktail_sort.h"\n' + _program()
    )
    assert build.build_program(source, build.host_toolchain()).seconds < 3.0
