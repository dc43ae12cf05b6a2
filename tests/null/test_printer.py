"""Printed text and fingerprints of uPrograms."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jax_cocktail.stitch.fuse import fuse
from jax_cocktail.utask.ir import Region, UOperator
from jax_cocktail.utask.printer import fingerprint, print_program, print_statement
from jax_cocktail.utask.types import Source
from tests.null.programs import (
    branch,
    build,
    counted,
    elementwise,
    random_program,
    renumbered,
    while_loop,
)


def _everything(b, s, x):
    one = b.constant(1.5, "float32")
    (y,) = counted(b, 4, [x], lambda i, c: [elementwise(b, "add", c, b.broadcast(one, (2,), ()))])
    (z,) = branch(b, s, lambda: [y], lambda: [elementwise(b, "neg", y)])
    (w,) = while_loop(
        b,
        [z],
        lambda c: b.emit(
            "reduce", (elementwise(b, "lt", c, x, dtype="bool"),), "bool", (), axes=(0,), op="or"
        ),
        lambda c: [elementwise(b, "exp", c)],
    )
    return [w, elementwise(b, "sub", w, y)]


TEXT = """\
program test(input %0: int32[], input %1: float32[2]) donated [1] {
  constant %2: float32[] = constant() data=0x0000c03f  # 1.5
  temporary %7: float32[2] = loop trips 4 from (%1) {
    body (induction %3: int64[], carried %4: float32[2]) {
      temporary %5: float32[2] = broadcast(%2) dimensions=()
      temporary %6: float32[2] = add(%4, %5)
      yield %6
    }
  }
  temporary %9: float32[2] = branch %0 {
    case 0 {
      yield %7
    }
    case 1 {
      temporary %8: float32[2] = neg(%7)
      yield %8
    }
  }
  output %15: float32[2] = loop from (%9) {
    while (carried %10: float32[2]) {
      temporary %12: bool[2] = lt(%10, %1)
      temporary %13: bool[] = reduce(%12) axes=(0) op='or'
      yield %13
    }
    body (carried %11: float32[2]) {
      temporary %14: float32[2] = exp(%11)
      yield %14
    }
  }
  output %16: float32[2] = sub(%15, %7)
  yield %15, %16
}
"""


def test_text_of_every_construct():
    assert print_program(build(["int32[]", "float32[2]"], _everything, donated=(1,))) == TEXT


def test_text_of_groups():
    program = build(["float32[4]"], lambda b, x: [elementwise(b, "exp", elementwise(b, "neg", x))])
    assert print_program(fuse(program)) == (
        "program test(input %0: float32[4]) {\n"
        "  stitched (%0) {\n"
        "    temporary %1: float32[4] = neg(%0)\n"
        "    output %2: float32[4] = exp(%1)\n"
        "    yield %2\n"
        "  }\n"
        "  yield %2\n"
        "}\n"
    )


def test_programs_without_results_or_carries():
    text = print_program(build([], lambda b: counted(b, 2, [], lambda i: [])))
    assert text == "program test() {\n  loop trips 2 from () {\n    body (induction %0: int64[]) {\n" + (
        "      yield\n    }\n  }\n  yield\n}\n"
    )
    text = print_program(build(["int32[]"], lambda b, s: branch(b, s, lambda: [], lambda: [])))
    assert "  branch %0 {\n    case 0 {\n      yield\n    }\n" in text


def test_one_statement():
    program = build(["float32[2]"], lambda b, x: [elementwise(b, "integer_pow", x, exponent=3)])
    (statement,) = program.entry.body
    assert print_statement(statement) == "temporary %1: float32[2] = integer_pow(%0) exponent=3"


@pytest.mark.parametrize(
    ("dtype", "number", "shown"),
    [
        ("bool", True, "True"),
        ("int8", -3, "-3"),
        ("uint64", 2**63, "9223372036854775808"),
        ("float16", 0.5, "0.5"),
    ],
)
def test_scalar_constants_show_their_number(dtype, number, shown):
    assert f"  # {shown}\n" in print_program(build([], lambda b: [b.constant(number, dtype)]))


def test_long_data_appear_as_digest():
    first = build([], lambda b: [b.constant(list(range(100)), "int32")])
    second = build([], lambda b: [b.constant([*range(99), 0], "int32")])
    assert "sha256:" in print_program(first) and "/400" in print_program(first)
    assert fingerprint(first) != fingerprint(second)


@pytest.mark.parametrize("seed", range(20))
def test_fingerprint_knows_no_numbers_names_or_positions(seed):
    program = random_program(seed)
    assert len(fingerprint(program)) == 64
    assert fingerprint(renumbered(program)) == fingerprint(program)
    assert fingerprint(replace(program, name="another")) == fingerprint(program)
    assert print_program(program) == print_program(random_program(seed))


def test_fingerprint_knows_no_source_and_no_order_of_attributes():
    def body(b, x):
        return [b.emit("slice", (x,), "float32", (2,), starts=(1,), strides=(2,))]

    program = build(["float32[4]"], body)
    (operator,) = program.entry.body
    assert isinstance(operator, UOperator)
    moved = replace(operator, source=Source("f.py", 3), attributes=operator.attributes[::-1])
    other = replace(program, entry=replace(program.entry, body=(moved,)))
    assert fingerprint(other) == fingerprint(program)
    assert "f.py" not in print_program(other)


def test_fingerprint_knows_everything_else():
    def base(b, s, x):
        return _everything(b, s, x)

    def swapped(b, s, x):
        return _everything(b, s, x)[::-1]

    parameters = ["int32[]", "float32[2]"]
    programs = [
        build(parameters, base),
        build(parameters, swapped),
        build(parameters, base, donated=(1,)),
        build(["float32[2]"], lambda b, x: [elementwise(b, "exp", x)]),
        build(["float32[3]"], lambda b, x: [elementwise(b, "exp", x)]),
        build(["float64[3]"], lambda b, x: [elementwise(b, "exp", x)]),
        build(["float32[3]"], lambda b, x: [elementwise(b, "log", x)]),
        build(["float32[3]"], lambda b, x: [elementwise(b, "integer_pow", x, exponent=2)]),
        build(["float32[3]"], lambda b, x: [elementwise(b, "integer_pow", x, exponent=3)]),
        build(["float32[3]"] * 2, lambda b, x, y: [elementwise(b, "sub", x, y)]),
        build(["float32[3]"] * 2, lambda b, x, y: [elementwise(b, "sub", y, x)]),
        build(["float32[3]"], lambda b, x: counted(b, 2, [x], lambda i, c: [c])),
        build(["float32[3]"], lambda b, x: counted(b, 3, [x], lambda i, c: [c])),
        build([], lambda b: [b.constant(0.0, "float32")]),
        build([], lambda b: [b.constant(-0.0, "float32")]),
        build([], lambda b: [b.constant(0, "int32")]),
    ]
    assert len({fingerprint(p) for p in programs}) == len(programs)


def test_stitching_changes_the_fingerprint():
    program = build(["float32[4]"], lambda b, x: [elementwise(b, "exp", elementwise(b, "neg", x))])
    assert fingerprint(fuse(program)) != fingerprint(program)
    assert isinstance(program.entry, Region)
