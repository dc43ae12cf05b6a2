"""Long functions in pieces, and long programs in parts."""

from __future__ import annotations

import re

import pytest

from jax_cocktail.codegen import program
from jax_cocktail.codegen.cpu import CPU
from jax_cocktail.codegen.cuda import cuda
from jax_cocktail.codegen.divide import LENGTH, Length, divide
from jax_cocktail.codegen.kernel import Load, Name, Pointer, SizeName, Store, printed, text
from jax_cocktail.codegen.outline import Outer, OutlineTable
from jax_cocktail.codegen.parts import PART_BYTES, Function, arranged
from jax_cocktail.codegen.writer import code
from jax_cocktail.compiler import emit
from jax_cocktail.device.machine import Machine
from jax_cocktail.device.nvidia import H200
from jax_cocktail.utask.sizes import Parameter
from tests.null.programs import build, long_program, matmul


@pytest.fixture
def short(monkeypatch):
    """Everything counts as long."""
    monkeypatch.setattr(program, "LENGTH", Length(most=20, piece=10, least=2))
    monkeypatch.setattr(program, "PART_BYTES", 512)


def lengths(source):
    """The lines of each function."""
    found = re.findall(r"^CK_\w+ \w+ (\w+)\([^;{]*\{\n(.*?)^\}", source, re.MULTILINE | re.DOTALL)
    return {name: body.count("\n") for name, body in found}


def test_no_function_is_long(short):
    found = lengths(emit(long_program()).source)
    assert sum(name.startswith("piece") for name in found) > 1
    assert max(found.values()) < 60


def test_usual_programs_stay_whole():
    source = emit(long_program()).source
    assert "piece" not in source and "CK_IN_PART" not in source
    assert source.count("\n") < LENGTH.most


def test_programs_for_gpus_stay_whole(short):
    source = emit(long_program(), Machine(cuda(128), H200)).source
    assert "piece" not in source and "CK_IN_PART" not in source


def test_each_function_is_in_one_part(short):
    source = emit(long_program()).source
    shares = re.findall(r"^#if CK_IN_PART\((\d+)\)\n(.*?)^#endif", source, re.MULTILINE | re.DOTALL)
    assert len({number for number, _ in shares}) > 1
    defined = [name for _, text in shares for name in lengths(text)]
    assert sorted(defined) == sorted({*lengths(source)})


def test_what_calls_a_template_is_in_one_part():
    functions = [Function(f"CK_NOINLINE void f{n}() {{", "  //", ["", "dot"][n % 2]) for n in range(9)]
    lines = arranged([], [], functions, ["int main()"], 60)
    shares = "\n".join(lines).split("#if ")[1:]
    assert len(shares) > 2
    assert sum(any(f" f{n}() {{" in share for n in range(1, 9, 2)) for share in shares) == 1


def shares_of(functions, entry=("int main()",)):
    """The texts of the parts of a program."""
    return "\n".join(arranged([], [], functions, entry, PART_BYTES)).split("#if ")[1:]


def test_a_template_and_a_loop_are_compiled_side_by_side():
    loops = "  CK_LANES\n" * 26
    product = Function("CK_NOINLINE void f0() {", "  ck_dot_fixed<>();", "dot")
    assert shares_of([product]) == []
    assert shares_of([Function("CK_NOINLINE void f0() {", loops)]) == []
    first, second = shares_of([product], ("int main() {", loops, "}"))
    assert ("ck_dot" in first, "CK_LANES" in second) == (True, True)


def test_no_part_is_empty():
    functions = [Function(f"CK_NOINLINE void f{n}() {{", "  ck_dot_fixed<>();", "dot") for n in range(40)]
    assert len(shares_of(functions)) == 2


def test_products_are_functions():
    source = emit(build(["float32[40,40]", "float32[40,40]"], lambda b, x, w: (matmul(b, x, w),))).source
    functions = re.findall(r"^CK_NOINLINE (.*?)^}", source, re.MULTILINE | re.DOTALL)
    assert any("ck_dot" in text for text in functions)


def test_tables_longer_than_the_program_are_compiled_once():
    functions = [Function(f"CK_NOINLINE void f{n}() {{", "  return;") for n in range(9)]
    assert not any("CK_IN_PART" in line for line in arranged([], ["0," * 9999], functions, [], 60))
    assert any("CK_IN_PART" in line for line in arranged([], ["0"], functions, [], 60))


def test_products_are_in_one_part(short):
    source = emit(long_program()).source
    shares = re.findall(r"^#if CK_IN_PART\(\d+\)\n(.*?)^#endif", source, re.MULTILINE | re.DOTALL)
    assert sum("ck_dot" in share for share in shares) == 1


@pytest.mark.parametrize("where", ["address", "statement"])
def test_launch_parameters_are_given_to_pieces(where):
    """Even if one piece alone has them: only the program's function can read them."""
    size, array = SizeName("size 7", True, Parameter(7)), Name("w0_f32", outer=True)
    address = code("workspace + {}", size if where == "address" else "64")
    index = "0" if where == "address" else code("{}", size)
    store = Store(Load(Pointer(array, "f32", "workspace"), index), "f32(1)")
    known = {array: Outer("f32*", address=address), size: Outer("i64")}
    table = OutlineTable(CPU)
    nodes = [*[store] * 6, code(";"), code(";")]
    (called, *_), _ = divide(nodes, known.__getitem__, table, Length(most=4, piece=6, least=4))
    (function,) = table.functions()
    (parameter,) = re.findall(r", i64 (x\d+)\) \{$", function.head)
    assert re.search(rf"\b{parameter}\b", function.body) and f"i64 {parameter};" not in function.body
    assert text(printed([called]), {size: "size0"}).strip().endswith(", size0);")
