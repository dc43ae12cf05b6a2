"""Long programs for a GPU: nvcc compiles the kernels side by side, and they are joined. Needs no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.device_compile import compiled
from jax_cocktail.build import cuda as build_cuda
from jax_cocktail.build import job as build_job
from jax_cocktail.build import ptx
from jax_cocktail.build.device import build_device_program, device_job
from jax_cocktail.build.kernels import DeviceBuilt
from jax_cocktail.errors import BuildError
from tests.cpu import cuda_text, sass
from tests.cpu.cuda_compilers import nvcc

# Both kernels call a function, read a table, and need functions of CUDA that are not inlined.
TEXT = cuda_text.program(
    """i32 at = ck_lane() + i32(RESIDENT);
f64 x = ((const f64*)operands[0])[at];
x = ck_log_gamma(x) + __builtin_pow(x, table[at % 3]);
((f64*)results[0])[at] = x + ck_total<RESIDENT>(&table[1], at);""",
    headers=("cocktail_block.h", "cocktail_math.h"),
    prelude="""CK_TABLE f64 table[] = {1.0, 2.5, 3.0};
template <bool RESIDENT>
CK_NOINLINE f64 ck_total(const f64* x, i32 n) {
  f64 sum = RESIDENT;
  CK_NO_UNROLL for (i32 i = 0; i < n; ++i) sum += x[i % 2] * x[(n - i) % 2];
  return sum;
}""",
)


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder in use. Every program is long."""
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(build_cuda, "PART_BYTES", 0)
    return tmp_path


def _commands(built: DeviceBuilt) -> list[str]:
    return (Path(built.path).parent / "command.txt").read_text(encoding="utf-8").splitlines()


def test_kernels_are_those_of_the_whole_program(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    joined = build_device_program(TEXT, nvcc(), "sm_90")
    assert len(_commands(joined)) == 3 and not list(Path(joined.path).parent.glob("*.ptx"))
    monkeypatch.setattr(build_cuda, "PART_BYTES", len(TEXT) + 1)
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(root / "another"))
    whole = build_device_program(TEXT, nvcc(), "sm_90")
    assert len(_commands(whole)) == 1
    assert joined.kernels == whole.kernels and joined.kernels.keys() == {"ck_resident", "ck_portable"}
    if sass.tools():
        assert sass.opcodes(joined.binary, "ck_resident") == sass.opcodes(whole.binary, "ck_resident")
        assert sass.opcodes(joined.binary, "ck_portable") == sass.opcodes(whole.binary, "ck_portable")


def test_the_same_text_gives_the_same_binary(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_device_program(TEXT, nvcc(), "sm_90")
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(root / "another"))
    second = build_device_program(TEXT, nvcc(), "sm_90")
    assert not second.cached and second.digest == first.digest


def test_source_lines_are_those_of_the_whole_program() -> None:
    assert len(_commands(build_device_program(TEXT, nvcc(), "sm_90", options=("-lineinfo",)))) == 1


def test_what_the_phases_take() -> None:
    job = device_job(TEXT, nvcc(), "sm_90")
    found = compiled(job)
    *parts, last = found.commands
    assert [each.keys() - {"ptxas"} for each in parts] == [{"gcc", "cicc"}] * 2  # it may check the text
    assert last.keys() == {"ptxas", "fatbinary"}
    assert 0 < last.total() < found.longest < found.seconds.total()
    assert found.functions >= 4 and found.lines > 100


def test_a_kernel_that_fails_is_told() -> None:
    with pytest.raises(BuildError, match="missing"):
        build_device_program(TEXT.replace("CK_ENTRIES", "f32 x = missing;\nCK_ENTRIES"), nvcc(), "sm_90")


@pytest.mark.parametrize("options", [(), ("-lineinfo",)], ids=["parts", "whole"])
def test_a_failure_is_that_of_one_program(options: tuple[str, ...]) -> None:
    assert not build_job._fails(device_job("missing", nvcc(), "sm_90", options))


def test_a_kernel_that_is_not_written_is_told(tmp_path: Path) -> None:
    compiler = tmp_path / "nvcc"
    compiler.write_text("#!/bin/sh\necho release 13.9, V13.9.1 sm_90\n", encoding="utf-8")
    compiler.chmod(0o755)
    toolchain = build_cuda._nvcc(str(compiler), (), "g++ 1.0")
    assert toolchain is not None
    with pytest.raises(BuildError, match="wrote no file"):
        build_device_program(TEXT, toolchain, "sm_90")


HEADER = ".version 9.0\n.target sm_90\n.address_size 64\n"


def _module(name: str, *variables: str) -> str:
    helper = ".func  (.param .b64 func_retval0) helper(\n\t.param .b64 helper_param_0\n)\n{\n\tret;\n}\n"
    body = "{\n\tmov.u64 %rd1, table;\n\tcall.uni (retval0), \n\thelper, \n\t(param0);\n}\n"
    return f"//\n// {name}\n//\n{HEADER}{''.join(variables)}.visible .entry {name}()\n{body}{helper}"


def test_modules_are_joined() -> None:
    shared, table = (
        ".extern .shared .align 128 .b8 memory[];\n",
        ".global .align 8 .b8 table[3] = {1, 2, 3};\n",
    )
    text = ptx.joined([_module("one", shared, table), _module("two", shared, table)])
    assert text.count(HEADER) == text.count(shared) == text.count(table) == 1
    one, two = text.split("// one\n")[1].split(".visible .entry two")
    assert "helper_1" not in one and "\thelper, " in one
    assert "\thelper_1, " in two and ") helper_1(" in two and "mov.u64 %rd1, table;" in two
    assert "\thelper, " not in two and "helper_param_0" in two


def test_variables_that_differ_are_kept_apart() -> None:
    tables = (f".global .align 8 .b8 table[3] = {{{values}}};\n" for values in ("1, 2, 3", "4, 5, 6"))
    text = ptx.joined([_module(name, table) for name, table in zip(("one", "two"), tables, strict=True)])
    one, two = text.split(".global .align 8 .b8 table_1[3] = {4, 5, 6};\n")
    assert "table[3] = {1, 2, 3}" in one and "mov.u64 %rd1, table;" in one
    assert "mov.u64 %rd1, table_1;" in two


def test_what_got_another_name_is_not_taken_for_the_first() -> None:
    first, other = (f".global .align 8 .b8 table[3] = {{{values}}};\n" for values in ("1, 2, 3", "4, 5, 6"))
    modules = (_module(name, table) for name, table in (("one", first), ("two", other), ("three", other)))
    text = ptx.joined(list(modules))
    assert ".b8 table_1[3] = {4, 5, 6};" in text and ".b8 table_2[3] = {4, 5, 6};" in text
    assert "mov.u64 %rd1, table_2;" in text.split(".visible .entry three")[1]
