"""Programs for AMD's cards: which compiler is found, what it reports, the way through the cache. No GPU is
needed."""

from __future__ import annotations

import struct
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from jax_cocktail.build import code_object, kernels
from jax_cocktail.build import rocm as build_rocm
from jax_cocktail.build.device import build_device_program, device_job, device_toolchain
from jax_cocktail.build.job import commands_of
from jax_cocktail.build.kernels import DeviceBuilt, DeviceToolchain, check_registers
from jax_cocktail.cache import BINARY
from jax_cocktail.device.amd import MI250X, MI300X
from jax_cocktail.device.cards import AMD
from jax_cocktail.errors import BuildError
from tests.cpu.rocm_compilers import EACH_COMPILER, SPILLING, Choose, hipcc, hiprtc, program, zig


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder in use."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(folder))
    return folder


def _commands(built: DeviceBuilt) -> str:
    return (Path(built.path).parent / "command.txt").read_text(encoding="utf-8")


# ---- compiling ---------------------------------------------------------------------------------------------


@EACH_COMPILER
def test_cold_build_then_warm_hit(choose: Choose, root: Path) -> None:
    toolchain = choose()
    first = build_device_program(program(), toolchain, MI250X)
    second = build_device_program(program(), toolchain, "gfx90a")
    assert (first.cached, second.cached) == (False, True) and first.arch == "gfx90a"
    assert replace(second, cached=False, seconds=first.seconds) == first
    assert first.kernels.keys() == {"ck_portable", "ck_resident"} and not first.spills
    for facts in first.kernels.values():
        assert 8 <= facts.registers < 128 and facts.stack_bytes == facts.shared_bytes == 0
    check = check_registers(first, MI250X, 64)
    assert check.launches and not check.spills and "ck_resident uses" in check.remark
    left = {path.name for path in Path(first.path).parent.iterdir()}
    assert not {name for name in left if name.startswith("stage")} and "log.txt" in left


@EACH_COMPILER
def test_the_same_text_gives_the_same_binary(
    choose: Choose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build_device_program(program(), choose(), "gfx90a")
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "other" / "cache"))
    second = build_device_program(program(), choose(), "gfx90a")
    assert not second.cached and second.digest == first.digest


@pytest.mark.parametrize("spec", AMD, ids=lambda spec: spec.arch)
def test_every_card_has_a_compiler(spec) -> None:
    """Without ROCm, too: the clang of the extra knows all of them."""
    built = build_device_program(program(warp=spec.warp), zig(), spec)
    assert built.kernels.keys() == {"ck_portable", "ck_resident"} and not built.spills


@EACH_COMPILER
def test_spills_are_told(choose: Choose) -> None:
    built = build_device_program(SPILLING, choose(), "gfx90a")
    facts = built.kernels["ck_portable"]
    assert facts.registers <= 128 and facts.spill_bytes > 100 and facts.stack_bytes == facts.spill_bytes
    check = check_registers(built, MI250X, 1024)
    assert check.launches and check.spills and f"spills {facts.spill_bytes} bytes" in check.remark


FUNCTIONS = [
    "acos",
    "asin",
    "atan",
    "cbrt",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "expm1",
    "log",
    "log1p",
    "sin",
    "sinh",
    "tan",
    "tanh",
]
CALLS = " + ".join(f"__builtin_{name}(d)" for name in FUNCTIONS)
DOUBLE = f"f64 d = f64(x[ck_lane()]);\ny[ck_lane()] = f32({CALLS} + __builtin_pow(d, d) + ck_log_gamma(d));"


@pytest.mark.parametrize("choose", [hipcc, hiprtc], ids=["hipcc", "hiprtc"])
def test_functions_of_float64_are_those_of_rocm(choose: Choose) -> None:
    built = build_device_program(program(DOUBLE), choose(), "gfx90a")
    assert built.kernels.keys() == {"ck_portable", "ck_resident"}


def test_functions_of_float64_need_rocm() -> None:
    with pytest.raises(BuildError, match="functions of float64.*install ROCm") as caught:
        build_device_program(program(DOUBLE), zig(), "gfx90a")
    assert "symbol: __ocml_" in caught.value.log


@EACH_COMPILER
def test_failure_reports_the_log(choose: Choose, root: Path) -> None:
    toolchain = choose()
    with pytest.raises(BuildError, match=f"the HIP compiler {toolchain} failed with status 1") as caught:
        build_device_program(program("ck_meat();"), toolchain, "gfx90a")
    assert "ck_meat" in caught.value.log and len(caught.value.log) < 2000
    assert not list(root.glob("build-*")) and not list(root.glob("entries/*"))


def test_the_platform_and_the_compiler_decide() -> None:
    toolchain = DeviceToolchain(("hipcc",), "5.2.3\nclang", "", (), "hipcc", ("gfx908", "gfx90a"), "rocm")
    with pytest.raises(BuildError, match=r"hipcc 5.2.3 does not compile for 'gfx942', only for gfx908.*ROCm"):
        build_device_program(program(), toolchain, MI300X)
    anything = replace(toolchain, kind="hiprtc", arches=())
    with pytest.raises(BuildError, match="hiprtc 5.2.3 does not compile for 'sm_90'"):
        build_device_program(program(), anything, "sm_90")


def test_what_follows_the_compiler_is_in_the_key() -> None:
    toolchain = DeviceToolchain(("zig", "clang"), "1", "", (), "zig", (), "rocm")
    jobs = [
        device_job("text", each, arch)
        for each in (
            toolchain,
            replace(toolchain, command=("other", "clang")),
            replace(toolchain, version="2"),
        )
        for arch in ("gfx90a", "gfx942")
    ]
    assert len({job.key for job in jobs}) == len(jobs)
    compile_, assemble, link = commands_of(jobs[0])
    assert "-DCK_FREESTANDING" in compile_ and compile_[-3:] == ("-o", "stage0", "program.hip")
    assert "-mcpu=gfx90a" in assemble and assemble[-3:] == ("-o", "stage1", "stage0")
    assert link == ("zig", "ld.lld", "-shared", "--no-undefined", "-o", BINARY, "stage1")


# ---- what the compiler writes ------------------------------------------------------------------------------


def _script(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


VERSION = "echo 'HIP version: 6.1.2-3'; echo 'AMD clang version 17.0.0'; exit"


def _fake_hipcc(path: Path, text: str = ":", *, version: str = VERSION, arches: str = "908 90a") -> str:
    """A hipcc that compiles with the shell commands `text`, with a device library of its own."""
    library = path.parent / "bitcode"
    library.mkdir(parents=True, exist_ok=True)
    for arch in arches.split():
        (library / f"oclc_isa_version_{arch}.bc").touch()
    return _script(
        path,
        f"""[ "$HIP_PLATFORM" = amd ] || {{ echo "nvcc: NVIDIA (R) Cuda compiler driver"; exit 0; }}
case "$*" in
--version) {version};;
*-###*) echo '"-mlink-builtin-bitcode" "{library}/oclc_isa_version_90a.bc"' >&2; exit ;;
esac
echo run >> "{path.parent}/runs"
for word; do [ "$last" = -o ] && output=$word; last=$word; done
{text}""",
    )


def _fake(path: Path, text: str = ":") -> DeviceToolchain:
    found = build_rocm._hipcc(_fake_hipcc(path, text))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("nvcc fatal   : Unknown option '--offload-arch=gfx90a'", "this hipcc calls nvcc: set ROCM_PATH"),
        ("lld: error: undefined hidden symbol: __ocml_exp_f64", "functions of float64.*install ROCm"),
        ("lld: error: undefined symbol: __ocml_exp_f64", "functions of float64.*install ROCm"),
        ("clang: error: cannot find ROCm device library for gfx1100", "rocm-device-libs"),
        ("clang: error: invalid target ID 'gfx942'; format is", "newer compiler.*gpu_arch"),
        ("sh: 1: /usr/bin/clang++-15: not found", "install ROCm"),
        ("LLVM ERROR: out of memory", "more memory"),
        ("something else", "report this"),
    ],
)
def test_what_to_try(tmp_path: Path, said: str, remedy: str) -> None:
    toolchain = _fake(tmp_path / "bin" / "hipcc", f'echo "{said}"; exit 1')
    with pytest.raises(BuildError, match=remedy):
        build_device_program(program(), toolchain, "gfx90a")


def _elf(machine: int, notes: bytes = b"") -> bytes:
    """An ELF file with one section of notes."""
    header = b"\x7fELF\x02\x01" + bytes(10) + struct.pack("<HHI", 3, machine, 1)
    header += struct.pack("<QQQIHHHHHH", 0, 0, 64 + len(notes), 0, 64, 0, 0, 64, 1, 0)
    return header + notes + struct.pack("<IIQQQQIIQQ", 0, 7, 0, 0, 64, len(notes), 0, 0, 4, 0)


def _note(body: bytes, kind: int = 32) -> bytes:
    padded = body + bytes(-len(body) % 4)
    return struct.pack("<III", 7, len(body), kind) + b"AMDGPU\0\0" + padded


def _packed(value: object) -> bytes:
    """MessagePack, with the long form where a length has one."""
    if isinstance(value, bool) or value is None:
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        return bytes([value]) if 0 <= value < 128 else b"\xd2" + struct.pack(">i", value)
    if isinstance(value, str):
        return b"\xd9" + bytes([len(value)]) + value.encode()
    if isinstance(value, list):
        return b"\xdc" + struct.pack(">H", len(value)) + b"".join(map(_packed, value))
    assert isinstance(value, dict)
    return (
        b"\x80"[:0]
        + bytes([0x80 + len(value)])
        + b"".join(_packed(v) for pair in value.items() for v in pair)
    )


KERNEL = {
    ".name": "ck_portable",
    ".vgpr_count": 300,
    ".private_segment_fixed_size": 16,
    ".group_segment_fixed_size": 0,
    ".uses_dynamic_stack": False,
    ".other": [None, True, -5],
}
NOTES = _note(b"other", 1) + _note(_packed({"amdhsa.kernels": [KERNEL]}))


def _bundle(*images: bytes) -> bytes:
    name = b"hipv4-amdgcn-amd-amdhsa--gfx90a"
    start = 32 + len(images) * (24 + len(name))
    entries, at = b"", start
    for image in images:
        entries += struct.pack("<QQQ", at, len(image), len(name)) + name
        at += len(image)
    return b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(images)) + entries + b"".join(images)


@pytest.mark.parametrize("wrap", [bytes, lambda code: _bundle(b"", code)], ids=["plain", "bundle"])
def test_facts_stand_in_the_code_object(wrap) -> None:
    facts = code_object.facts_of(wrap(_elf(224, NOTES)))
    assert facts.keys() == {"ck_portable"}
    found = facts["ck_portable"]
    assert (found.registers, found.stack_bytes, found.spill_bytes) == (300, 16, 0)  # the frame of a call
    assert code_object.resources(_elf(224, NOTES))["ck_portable"][".other"] == [None, True, -5]


@pytest.mark.parametrize(
    ("binary", "problem"),
    [
        (b"x", "not code of an AMD GPU"),
        (_elf(62, NOTES), "not code of an AMD GPU"),
        (_bundle(b""), "not code of an AMD GPU"),
        (_elf(224, NOTES)[:200], "damaged"),
        (_elf(224, _note(b"\xc7")), "value of the kind 0xc7"),
        (_elf(224, _note(_packed({"amdhsa.kernels": [{".name": "k"}]}))), "does not tell .vgpr_count"),
        (_elf(224), "no kernel"),
    ],
)
def test_output_of_no_use(tmp_path: Path, binary: bytes, problem: str) -> None:
    (tmp_path / "written").write_bytes(binary)
    toolchain = _fake(tmp_path / "bin" / "hipcc", f'cp "{tmp_path}/written" "$output"')
    with pytest.raises(BuildError, match=problem):
        build_device_program("text", toolchain, "gfx90a")


def test_a_command_that_fails_ends_the_build(tmp_path: Path) -> None:
    """The assembler is not asked for what the compiler did not write, nor the linker."""
    binary = _script(
        tmp_path / "zig",
        f"""echo "$*" >> "{tmp_path}/asked"
case "$*" in *-mcpu*) echo no assembler; exit 3;; esac
touch stage0""",
    )
    toolchain = DeviceToolchain((binary, "clang"), "1", "", (), "zig", (), "rocm")
    with pytest.raises(BuildError, match="zig 1 failed with status 3") as caught:
        build_device_program("text", toolchain, "gfx90a")
    assert "no assembler" in caught.value.log
    assert len((tmp_path / "asked").read_text().splitlines()) == 2


# ---- which compiler ----------------------------------------------------------------------------------------


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any compiler for AMD's cards."""
    for name in ("ROCM_PATH", "HIP_PATH", "HIP_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin")
    monkeypatch.setattr(kernels.shutil, "which", lambda name, path: _on_path(tmp_path, name))
    monkeypatch.setattr(build_rocm, "_USUAL", tmp_path / "usual")
    monkeypatch.setattr(build_rocm, "zig", lambda: None)
    monkeypatch.setattr(build_rocm.ctypes.util, "find_library", lambda name: None)
    build_rocm._find_toolchain.cache_clear()
    return tmp_path


def _on_path(folder: Path, name: str) -> str | None:
    place = folder / "bin" / name
    return str(place) if place.exists() else None


def _found(arch: str = "") -> str:
    """The program of the compiler that is found now."""
    build_rocm._find_toolchain.cache_clear()
    return device_toolchain(arch, "rocm").command[0]


def test_order_of_the_search(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIP_PATH", str(bare / "hip"))
    monkeypatch.setenv("ROCM_PATH", str(bare / "rocm"))
    for folder in ("usual/bin", "hip/bin", "rocm/bin", "bin"):  # each is preferred to those before it
        place = _fake_hipcc(bare / folder / "hipcc")
        assert _found() == place
    toolchain = device_toolchain("gfx90a")
    assert str(toolchain) == "hipcc 6.1.2" and toolchain.version == "6.1.2\nAMD clang version 17.0.0"
    assert toolchain.arches == ("gfx908", "gfx90a") and toolchain.environment == (("HIP_PLATFORM", "amd"),)


def test_what_else_changes_a_binary(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags in variables that hipcc reads, and another device library, give another version."""
    _fake_hipcc(bare / "bin" / "hipcc")
    versions = [device_toolchain("gfx90a").version]
    monkeypatch.setenv("HIPCC_COMPILE_FLAGS_APPEND", "-O1")
    versions.append(device_toolchain("gfx90a").version)
    for content in (b"old", b"newer"):
        (library,) = {path.parent for path in bare.rglob("oclc_isa_version_*.bc")}
        (library / "ocml.bc").write_bytes(content)
        build_rocm._find_toolchain.cache_clear()  # as in the next process
        versions.append(device_toolchain("gfx90a").version)
    assert len(set(versions)) == len(versions)


def test_the_architecture_decides(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = _fake_hipcc(bare / "bin" / "hipcc")
    new = _fake_hipcc(bare / "usual" / "bin" / "hipcc", arches="90a 942 950")
    assert _found() == _found("gfx908") == old
    assert _found("gfx942") == new
    with pytest.raises(BuildError, match="hipcc 6.1.2 does not compile for 'gfx1100'.*compiler.*gpu_arch"):
        _found("gfx1100")


@pytest.mark.parametrize("version", ["exit 1", "echo 'HIP version: 5'; echo 'nvcc: NVIDIA (R)'; exit"])
def test_a_compiler_that_is_broken_is_passed_over(bare: Path, version: str) -> None:
    _fake_hipcc(bare / "bin" / "hipcc", version=version)
    good = _fake_hipcc(bare / "usual" / "bin" / "hipcc")
    assert _found() == good


def test_no_compiler(bare: Path) -> None:
    with pytest.raises(BuildError, match=r"no compiler for AMD's cards was found.*pip install ziglang=="):
        _found()


def test_the_clang_of_the_extra_comes_last(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last = zig_program = _script(
        bare / "zig",
        'case "$*" in version) echo 0.17.0;; *) echo "gfx90a gfx942 gfx9-generic verde" >&2;; esac',
    )
    monkeypatch.setattr(build_rocm, "zig", lambda: (zig_program, {"A": "b"}))
    assert _found() == last
    first = _fake_hipcc(bare / "bin" / "hipcc")
    assert (_found(), _found("gfx942")) == (first, last)
    toolchain = device_toolchain("gfx942")
    assert toolchain.arches == ("gfx90a", "gfx942") and str(toolchain) == "zig 0.17.0"


@pytest.fixture
def library() -> Path:
    """The file of the system's HIPRTC."""
    name = Path(hiprtc().command[-1]).name
    folders = (Path("/usr") / folder for folder in ("lib/x86_64-linux-gnu", "lib64", "lib"))
    found = next((folder / name for folder in folders if (folder / name).exists()), None)
    if found is None:
        pytest.skip("HIPRTC is in no usual folder")
    return found


def test_hiprtc_where_there_is_no_hipcc(library: Path, bare: Path) -> None:
    folder = bare / "usual" / "lib"
    folder.mkdir(parents=True)
    (folder / library.name).symlink_to(library)
    build_rocm._find_toolchain.cache_clear()
    toolchain = device_toolchain("gfx90a")
    assert toolchain.kind == "hiprtc" and toolchain.command[0] == sys.executable
    assert "gfx908" in toolchain.arches and toolchain.release[0].isdecimal()


def test_hiprtc_that_cannot_be_loaded(bare: Path) -> None:
    _script(bare / "usual" / "lib" / "libhiprtc.so.6", "not a library")
    with pytest.raises(BuildError, match="no compiler for AMD's cards was found"):
        _found()
