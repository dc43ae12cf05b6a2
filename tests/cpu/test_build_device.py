"""CUDA programs: which compiler is found, what it reports, the way through the cache. No GPU is needed."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from jax_cocktail.build import cuda as build_cuda
from jax_cocktail.build import host as build
from jax_cocktail.build import job as build_job
from jax_cocktail.build.device import build_device_program, device_toolchain
from jax_cocktail.build.kernels import DeviceBuilt, DeviceToolchain, KernelFacts, check_registers
from jax_cocktail.device import nvidia as device
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.errors import BuildError, CocktailWarning
from jax_cocktail.memory import MEMORY
from tests.cpu import cuda_text, sass
from tests.cpu.cuda_compilers import EACH_COMPILER, SPILLING, Choose, nvrtc, program


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder in use."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(folder))
    return folder


def _script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


REPORT = """ptxas info    : Compiling entry function 'ck_portable' for 'sm_90'
ptxas info    : Function properties for ck_portable
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 16 bytes smem
"""


def _fake_nvcc(path: Path, *, version: str = "13.9.1", arches: str = "sm_80 sm_90", text: str = "") -> Path:
    """An nvcc that counts its runs in `runs` beside it, and compiles anything to a fatbin of four bytes."""
    compile_ = (
        text
        or f"""for word; do [ "$last" = -o ] && output=$word; last=$word; done
printf '\\120\\355\\125\\272' > "$output"; cat <<'END'
{REPORT}END"""
    )
    return _script(
        path,
        f"""case "$1" in
--version) echo "Cuda compilation tools, release 13.9, V{version}"; exit ;;
--list-gpu-code) printf '%s\\n' {arches}; exit ;;
esac
echo run >> "{path.parent}/runs"
{compile_}""",
    )


def _fake(path: Path, text: str = "") -> DeviceToolchain:
    found = build_cuda._nvcc(str(_fake_nvcc(path, text=text)), (), "g++ 1.0")
    assert found
    return found


def _commands(built: DeviceBuilt) -> str:
    return (Path(built.path).parent / "command.txt").read_text(encoding="utf-8")


def _runs(path: Path) -> int:
    runs = path.parent / "runs"
    return len(runs.read_text().splitlines()) if runs.exists() else 0


# ---- compiling ---------------------------------------------------------------------------------------------


@EACH_COMPILER
def test_cold_build_then_warm_hit(choose: Choose, root: Path) -> None:
    toolchain = choose()
    first = build_device_program(program(), toolchain, device.H200)
    second = build_device_program(program(), toolchain, "sm_90")
    assert (first.cached, second.cached) == (False, True)
    assert replace(second, cached=False, seconds=first.seconds) == first
    assert hashlib.sha256(first.binary).hexdigest() == first.digest and first.arch == "sm_90"
    assert Path(first.path).read_bytes() == first.binary
    portable, resident = first.kernels["ck_portable"], first.kernels["ck_resident"]
    assert (portable.shared_bytes, resident.shared_bytes) == (0, 256)
    assert 8 <= portable.registers < 64 and 8 <= resident.registers < 64
    assert not first.spills and portable.stack_bytes == 0
    check = check_registers(first, device.H200, 256)
    assert check.launches and not check.spills and "ck_resident uses" in check.remark
    assert not list(root.glob("build-*"))


@pytest.mark.parametrize("spec", [device.A100, device.B200], ids=lambda spec: spec.arch)
@EACH_COMPILER
def test_other_architectures(choose: Choose, spec: DeviceSpec) -> None:
    built = build_device_program(program(), choose(), spec)
    assert built.kernels.keys() == {"ck_portable", "ck_resident"} and built.arch == spec.arch


@EACH_COMPILER
def test_text_as_it_is_emitted(choose: Choose) -> None:
    text = cuda_text.program(
        "((f32*)results[0])[ck_lane()] = ((const f32*)operands[0])[ck_lane()];", threads=64
    )
    facts = build_device_program(text, choose(), "sm_90").kernels
    assert facts.keys() == {"ck_portable", "ck_resident"}
    assert all(kernel.spill_bytes == 0 and kernel.shared_bytes == 0 for kernel in facts.values())


@EACH_COMPILER
def test_spills_are_told(choose: Choose) -> None:
    built = build_device_program(SPILLING, choose(), "sm_90")
    facts = built.kernels["ck_portable"]
    assert facts.registers == 64 and facts.spill_bytes > 100 and facts.stack_bytes > 0
    assert built.spills == {"ck_portable": facts.spill_bytes}
    check = check_registers(built, device.H200, 1024)
    assert check.launches and check.spills
    assert f"spills {facts.spill_bytes} bytes" in check.remark and "could have 128 registers" in check.remark
    assert build_device_program(SPILLING, choose(), "sm_90").spills == built.spills


@EACH_COMPILER
def test_the_same_text_gives_the_same_binary(
    choose: Choose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the folders differ, and a function keeps a name made of where it stands."""
    first = build_device_program(program(), choose(), "sm_90")
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "other" / "cache"))
    second = build_device_program(program(), choose(), "sm_90")
    assert not second.cached and second.digest == first.digest


@pytest.mark.skipif(not sass.tools(), reason=sass.NO_TOOLS)
@EACH_COMPILER
def test_threads_of_ptxas_change_no_instruction(choose: Choose) -> None:
    toolchain = choose()
    assert build_cuda.has_threads(toolchain)
    alone = replace(toolchain, version=f"12.9.0{toolchain.version.removeprefix(toolchain.release)}")
    one, many = (build_device_program(program(), each, "sm_90") for each in (alone, toolchain))
    assert one.kernels == many.kernels and sass.kernels(one.binary) == sass.kernels(many.binary)
    assert ("split-compile" in _commands(many), "split-compile" in _commands(one)) == (True, False)


@EACH_COMPILER
def test_failure_reports_the_log(choose: Choose, root: Path) -> None:
    toolchain = choose()
    text = program().replace("ck_block_barrier()", "ck_meat()")
    with pytest.raises(BuildError, match=f"{toolchain} failed with status 1") as caught:
        build_device_program(text, toolchain, "sm_90")
    assert "program.cu(" in caught.value.log and "ck_meat" in caught.value.log
    assert caught.value.remedy and len(caught.value.log) < 2000
    assert not list(root.glob("build-*")) and not list(root.glob("entries/*"))


def test_long_logs_begin_with_the_first_error(tmp_path: Path) -> None:
    long = "for k in $(seq 500); do echo note $k; done; echo 'a.cu(7): error: the first'; seq 2000; exit 2"
    toolchain = _fake(tmp_path / "bin" / "nvcc", long)
    with pytest.raises(BuildError, match="status 2") as caught:
        build_device_program(program(), toolchain, "sm_90")
    log = caught.value.log
    assert "error: the first" in log and "left out" in log and log.endswith("\n2000") and len(log) < 2000
    assert "note 3\n" not in log and log in str(caught.value)


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("#error -- unsupported GNU version! gcc versions later than 15", "NVCC_CCBIN"),
        ("sh: 1: gcc: not found", "g\\+\\+"),
        ("fatal error: cuda_runtime.h: No such file or directory", r"pip install '\.\[cuda\]' in a checkout"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_90'", "gpu_arch"),
        ("something else", "report this"),
    ],
)
def test_what_to_try(tmp_path: Path, said: str, remedy: str) -> None:
    toolchain = _fake(tmp_path / "bin" / "nvcc", f'echo "{said}"; exit 1')
    with pytest.raises(BuildError, match=remedy):
        build_device_program(program(), toolchain, "sm_90")


def test_unknown_architectures(tmp_path: Path) -> None:
    toolchain = _fake(tmp_path / "bin" / "nvcc")
    with pytest.raises(BuildError, match=r"nvcc 13.9.1 does not compile for 'sm_100', only for sm_80, sm_90"):
        build_device_program(program(), toolchain, device.B200)
    with pytest.raises(BuildError, match="nvcc 13.9.1 does not compile for 'gfx942'.*ROCm"):
        build_device_program(program(), toolchain, "gfx942")
    for arch in ("sm_", "gfx", "90", ""):
        with pytest.raises(BuildError, match="not an architecture of a GPU.*sm_100"):
            build_device_program(program(), toolchain, arch)
    assert _runs(tmp_path / "bin" / "nvcc") == 0
    assert build_device_program(program(), toolchain, "sm_90a").arch == "sm_90a"


def test_registers_that_do_not_fit() -> None:
    kernels = {"a": KernelFacts(72, 0, 0, 0), "b": KernelFacts(64, 0, 0, 0)}
    built = DeviceBuilt(b"", "", "", 0.0, True, "sm_90", kernels)
    check = check_registers(built, device.H200, 1024)
    assert not check.launches and not check.spills
    assert "73728 of the 65536" in check.remark and check.remark.count("cannot be launched") == 1
    assert check_registers(built, device.H200, 512).launches


def test_report_of_ptxas() -> None:
    nested = """    8 bytes stack frame, 100 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 52 bytes cumulative stack size, 1024+256 bytes smem
ptxas info    : Function properties for helper
ptxas         .     24 bytes stack frame, 4 bytes spill stores, 6 bytes spill loads
"""
    log = f"ptxas info : 8 bytes gmem\n{REPORT}x: Compiling entry function 'ck_b' for 'sm_90'\n{nested}"
    assert build_cuda.parse_report(log) == {
        "ck_portable": KernelFacts(40, 20, 16, 16),
        "ck_b": KernelFacts(255, 110, 52, 1024),
    }
    assert build_cuda.parse_report("no report") == {}


# ---- the cache ---------------------------------------------------------------------------------------------


def test_source_arch_compiler_and_headers_are_in_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvcc = tmp_path / "bin" / "nvcc"
    toolchain = _fake(nvcc)
    builds = [
        build_device_program("a", toolchain, "sm_90"),
        build_device_program("b", toolchain, "sm_90"),
        build_device_program("a", toolchain, "sm_80"),
        build_device_program("a", replace(toolchain, version="13.9.2\ng++ 1.0"), "sm_90"),
        build_device_program("a", replace(toolchain, version="13.9.1\ng++ 2.0"), "sm_90"),
    ]
    folders = [tmp_path / name for name in ("cuda_src", "gpu_src", "common_src")]
    for folder in folders:
        folder.mkdir()
    header = folders[0] / "cocktail_units.h"
    monkeypatch.setattr(build_cuda, "program_folders", lambda name: tuple(folders))
    for text in ("one", "two"):
        header.write_text(text)
        builds.append(build_device_program("a", toolchain, "sm_90"))
    assert len({built.path for built in builds}) == 7 == _runs(nvcc)
    (folders[0] / "handler_driver.h").write_text("no part of programs")
    (folders[-1] / "runtime_ffi.h").write_text("no part of programs")
    assert build_device_program("a", toolchain, "sm_90").cached


def _drop(meta: Path, change: Callable[[dict[str, object]], object]) -> None:
    values = json.loads(meta.read_text())
    change(values)
    meta.write_text(json.dumps(values))


@pytest.mark.parametrize(
    "damage",
    [
        lambda binary, meta: binary.write_bytes(b"\x50\xed\x55\xbb"),
        lambda binary, meta: binary.write_bytes(b""),
        lambda binary, meta: meta.write_text("{"),
        lambda binary, meta: _drop(meta, lambda values: values.pop("facts")),
        lambda binary, meta: _drop(meta, lambda values: values["facts"].clear()),
        lambda binary, meta: _drop(meta, lambda values: values.update(facts=3)),
        lambda binary, meta: _drop(meta, lambda values: values["facts"].update(kernels={})),
        lambda binary, meta: _drop(meta, lambda values: values["facts"]["kernels"].update(x={"a": 1})),
        lambda binary, meta: _drop(
            meta, lambda values: values["facts"]["kernels"]["ck_portable"].update(spill_bytes="0")
        ),
    ],
)
def test_damaged_entries_are_built_again(tmp_path: Path, damage: Callable[[Path, Path], object]) -> None:
    nvcc = tmp_path / "bin" / "nvcc"
    toolchain = _fake(nvcc)
    first = build_device_program("text", toolchain, "sm_90")
    assert first.kernels == {"ck_portable": KernelFacts(40, 20, 16, 16)} and first.spills
    damage(Path(first.path), Path(first.path).with_name("meta.json"))
    again = build_device_program("text", toolchain, "sm_90")
    assert not again.cached and _runs(nvcc) == 2 and again.kernels == first.kernels
    assert build_device_program("text", toolchain, "sm_90").cached and _runs(nvcc) == 2


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ('printf x > "$output"', "is not GPU code"),
        ("printf '\\120\\355\\125\\272' > \"$output\"", "contains no kernel"),
        (": ", "wrote no file"),
    ],
)
def test_output_of_no_use(tmp_path: Path, script: str, problem: str) -> None:
    find = 'for word; do [ "$last" = -o ] && output=$word; last=$word; done\n'
    with pytest.raises(BuildError, match=problem):
        build_device_program("text", _fake(tmp_path / "bin" / "nvcc", find + script), "sm_90")


def test_cache_that_cannot_be_used(root: Path, tmp_path: Path) -> None:
    root.mkdir()
    root.chmod(0o777)
    nvcc = tmp_path / "bin" / "nvcc"
    toolchain = _fake(nvcc)
    for cached in (False, True):
        MEMORY.warned.clear()  # another process
        with pytest.warns(CocktailWarning, match="JAX_COCKTAIL_CACHE_DIR"):
            built = build_device_program("private", toolchain, "sm_90")
        assert built.cached == cached and built.kernels
    assert _runs(nvcc) == 1 and not any(root.iterdir())


def test_a_compiler_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its children hold the pipe that it wrote to: they are ended too, or the wait would last as long."""
    monkeypatch.setattr(build_job, "_PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(build_job.command, "ANSWER_SECONDS", 0.3)
    toolchain = _fake(tmp_path / "bin" / "nvcc", "sleep 30 & wait")
    start = time.monotonic()
    with pytest.raises(BuildError, match="does not end; try: fewer operators"):
        build_device_program("text", toolchain, "sm_90")
    assert time.monotonic() - start < 15


# ---- which compiler ----------------------------------------------------------------------------------------


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a g++, and no CUDA until somebody puts it there."""
    for name in ("CUDA_HOME", "CUDA_PATH", "NVCC_CCBIN"):
        monkeypatch.delenv(name, raising=False)
    _script(tmp_path / "bin" / "g++", "echo 'g++ 1.2.3'")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(build_cuda, "package_folders", lambda name: (str(tmp_path / "wheels"),))
    monkeypatch.setattr(build_cuda.ctypes.util, "find_library", lambda name: None)
    build_cuda._find_toolchain.cache_clear()
    return tmp_path


def _found(arch: str = "") -> tuple[str, str]:
    """The program and release of the compiler that is found now."""
    build_cuda._find_toolchain.cache_clear()
    toolchain = device_toolchain(arch)
    return toolchain.command[0], toolchain.release


def test_order_of_the_search(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_PATH", str(bare / "other home"))
    monkeypatch.setenv("CUDA_HOME", str(bare / "home"))
    folders = ("wheels/cuda_nvcc/bin", "wheels/cu13/bin", "other home/bin", "home/bin", "bin")
    for number, folder in enumerate(folders):  # each is preferred to those before it
        place = _fake_nvcc(bare / folder / "nvcc", version=f"13.{number}.1")
        assert _found() == (str(place), f"13.{number}.1")
    toolchain = device_toolchain()
    assert toolchain.version == "13.4.1\ng++ 1.2.3" and str(toolchain) == "nvcc 13.4.1"
    assert toolchain.arches == ("sm_80", "sm_90")
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-O1")  # nvcc reads it
    assert device_toolchain().version == f"{toolchain.version}\nNVCC_APPEND_FLAGS=-O1"


def test_a_compiler_that_is_broken_is_passed_over(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _script(bare / "bin" / "nvcc", "exit 1")
    monkeypatch.setenv("CUDA_HOME", str(bare / "home"))
    good = _fake_nvcc(bare / "home" / "bin" / "nvcc")
    assert _found() == (str(good), "13.9.1")


def test_the_architecture_decides(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = _fake_nvcc(bare / "bin" / "nvcc", version="11.8.1")
    new = _fake_nvcc(bare / "wheels" / "cu13" / "bin" / "nvcc", arches="sm_90 sm_100")
    assert _found()[0] == _found("sm_80")[0] == str(old)
    assert _found("sm_100")[0] == _found("sm_100a")[0] == str(new)
    with pytest.raises(BuildError, match="nvcc 11.8.1 does not compile for 'sm_130'.*gpu_arch"):
        _found("sm_130")


def test_no_compiler(bare: Path) -> None:
    with pytest.raises(
        BuildError, match=r"no CUDA compiler was found.*pip install '\.\[cuda\]' in a checkout"
    ):
        _found()


def test_nvcc_without_a_host_compiler(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc = _fake_nvcc(bare / "bin" / "nvcc")
    (bare / "bin" / "g++").unlink()
    with pytest.raises(BuildError, match="needs a C\\+\\+ compiler.*apt install g\\+\\+"):
        _found()
    other = _script(bare / "bin" / "clang++", "echo 'clang 19'")
    assert device_toolchain().command == (str(nvcc), "-ccbin", str(other))
    monkeypatch.setenv("NVCC_CCBIN", str(other))
    assert device_toolchain().command == (str(nvcc),)


def test_nvrtc_where_there_is_no_nvcc(bare: Path) -> None:
    library = Path(nvrtc().command[-1])
    if not library.is_absolute():
        pytest.skip("this NVRTC is the system's, not a wheel's")
    folder = bare / "wheels" / "cu13" / "lib"
    folder.parent.mkdir(parents=True)
    folder.symlink_to(library.parent)
    build_cuda._find_toolchain.cache_clear()
    toolchain = device_toolchain("sm_90")
    assert toolchain.kind == "nvrtc" and toolchain.command[0] == sys.executable
    assert toolchain.command[-1].startswith(str(folder)) and re.fullmatch(r"\d+\.\d+", toolchain.release)
    assert "sm_90" in toolchain.arches and str(toolchain) == f"nvrtc {toolchain.release}"


def test_nvrtc_that_cannot_be_loaded(bare: Path) -> None:
    _script(bare / "wheels" / "cuda_nvrtc" / "lib" / "libnvrtc.so.12", "not a library")
    with pytest.raises(BuildError, match="no CUDA compiler was found"):
        _found()


# ---- the handler -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("platform", ["cuda", "rocm"])
def test_handler_is_built_by_the_host_compiler(root: Path, platform: str) -> None:
    jax = pytest.importorskip("jax")
    path = build.build_gpu_handler(jax.ffi.include_dir(), build.host_toolchain(), platform)
    assert Path(path).is_relative_to(root)
    assert build.build_gpu_handler(jax.ffi.include_dir(), build.host_toolchain(), platform) == path
    command = Path(path).with_name("command.txt").read_text()
    assert not any(words in command for words in ("nvcc", "-lcuda", "hipcc", "-lamdhip64"))


def test_handler_without_its_parts(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="c_api.h is missing.*reinstall jaxlib"):
        build.build_gpu_handler(str(tmp_path), build.host_toolchain(), "cuda")
