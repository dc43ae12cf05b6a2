"""Functions and references: text, rules, meaning, inlining."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.codegen.machines import HOST
from jax_cocktail.compiler import emit, transform
from jax_cocktail.errors import UnsupportedError, VerificationError
from jax_cocktail.schedule.simplify.inline import inline
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.interpreter.run import run
from jax_cocktail.utask.ir import FunctionUTask, UProgram, UTaskRef, free_values, reads, walk
from jax_cocktail.utask.printer import fingerprint, print_program, print_statement
from jax_cocktail.utask.substitute import FreshValues, with_reads
from jax_cocktail.utask.types import Value
from tests.null.programs import arguments, branch, counted, elementwise, fresh, region, tensor, while_loop

F3 = "float32[3]"


class Maker:
    """Builds a program with functions; one builder numbers all values."""

    def __init__(self) -> None:
        self.b = Builder()
        self.functions: list[FunctionUTask] = []

    def function(self, name: str, parameters: Sequence[str], body) -> None:
        """`body(*parameters)` gives the results."""
        values = [fresh(self.b, tensor(p)) for p in parameters]
        self.functions.append(FunctionUTask(name, region(self.b, values, body, *values)))

    def call(self, name: str, arguments: Sequence[Value], *results: str) -> tuple[Value, ...]:
        outputs = tuple(fresh(self.b, tensor(r)) for r in results)
        self.b.out.append(UTaskRef(name, tuple(arguments), outputs))
        return outputs

    def op(self, kind: str, *operands: Value, **rest) -> Value:
        return elementwise(self.b, kind, *operands, **rest)

    def program(self, parameters: Sequence[str], body) -> UProgram:
        values = [fresh(self.b, tensor(p)) for p in parameters]
        results = body(*values)
        return UProgram("test", self.b.finish(values, results), functions=tuple(self.functions))


def twice() -> UProgram:
    m = Maker()
    m.function("double", [F3], lambda x: [m.op("add", x, x)])
    m.function("both", [F3, F3], lambda x, y: [m.op("mul", *m.call("double", [x], F3), y), y])

    def body(x, y):
        z, w = m.call("both", [x, y], F3, F3)
        (z,) = m.call("double", [z], F3)
        return [m.op("sub", z, w), x]

    program = m.program([F3, F3], body)
    verify(program)
    return program


def factorial(name: str = "factorial") -> UProgram:
    """n! by recursion: a branch on n < 2."""
    m = Maker()

    def body(n):
        one, two = m.b.constant(1, "int32"), m.b.constant(2, "int32")
        more = m.b.convert(m.op("ge", n, two, dtype="bool"), "int32")

        def again():
            (rest,) = m.call(name, [m.op("sub", n, one)], "int32[]")
            return [m.op("mul", n, rest)]

        return branch(m.b, more, lambda: [one], again)

    m.function(name, ["int32[]"], body)
    program = m.program(["int32[]"], lambda n: m.call(name, [n], "int32[]"))
    verify(program)
    return program


def even_and_odd() -> UProgram:
    """Two functions that call each other, and one that they call."""
    m = Maker()
    m.function("before", ["int32[]"], lambda n: [m.op("sub", n, m.b.constant(1, "int32"))])

    def body(other, at_zero):
        def function(n):
            zero = m.b.constant(0, "int32")
            more = m.b.convert(m.op("ne", n, zero, dtype="bool"), "int32")

            def again():
                return m.call(other, m.call("before", [n], "int32[]"), "bool[]")

            return branch(m.b, more, lambda: [m.b.constant(at_zero, "bool")], again)

        return function

    m.function("even", ["int32[]"], body("odd", True))
    m.function("odd", ["int32[]"], body("even", False))
    program = m.program(["int32[]"], lambda n: m.call("even", [n], "bool[]"))
    verify(program)
    return program


# -- meaning -------------------------------------------------------------------------------------------------
def test_references_run_the_body():
    x, y = np.array([1, 2, 3], np.float32), np.array([4, 5, 6], np.float32)
    found = run(twice(), [x, y])
    np.testing.assert_array_equal(found[0], 4 * x * y - y)
    np.testing.assert_array_equal(found[1], x)


def test_functions_may_call_themselves():
    for n, expected in ((0, 1), (1, 1), (5, 120), (12, 479001600)):
        assert run(factorial(), [np.int32(n)])[0] == expected


def test_values_of_the_caller_outlive_the_call():
    """Fibonacci needs the first result after the second call: every call has values of its own."""
    m = Maker()

    def body(n):
        one, two = m.b.constant(1, "int32"), m.b.constant(2, "int32")
        more = m.b.convert(m.op("ge", n, two, dtype="bool"), "int32")

        def again():
            (a,) = m.call("fibonacci", [m.op("sub", n, one)], "int32[]")
            (c,) = m.call("fibonacci", [m.op("sub", n, two)], "int32[]")
            return [m.op("add", a, c)]

        return branch(m.b, more, lambda: [n], again)

    m.function("fibonacci", ["int32[]"], body)
    program = m.program(["int32[]"], lambda n: m.call("fibonacci", [n], "int32[]"))
    verify(program)
    assert [int(run(program, [np.int32(n)])[0]) for n in range(10)] == [0, 1, 1, 2, 3, 5, 8, 13, 21, 34]


def test_functions_may_call_each_other():
    assert [bool(run(even_and_odd(), [np.int32(n)])[0]) for n in range(6)] == [True, False] * 3


def test_endless_recursion_says_so():
    with pytest.raises(VerificationError, match="without end"):
        m = Maker()
        m.function("f", [F3], lambda x: m.call("f", [x], F3))
        run(m.program([F3], lambda x: m.call("f", [x], F3)), [np.zeros(3, np.float32)])


# -- text ----------------------------------------------------------------------------------------------------
TEXT = """\
function double(input %0: float32[3]) {
  temporary %1: float32[3] = add(%0, %0)
  yield %1
}
function both(input %2: float32[3], input %3: float32[3]) {
  temporary %4: float32[3] = call double(%2)
  temporary %5: float32[3] = mul(%4, %3)
  yield %5, %3
}
program test(input %6: float32[3], input %7: float32[3]) {
  temporary %8: float32[3], temporary %9: float32[3] = call both(%6, %7)
  temporary %10: float32[3] = call double(%8)
  output %11: float32[3] = sub(%10, %9)
  yield %11, %6
}
"""


def test_text():
    assert print_program(twice()) == TEXT
    assert print_statement(twice().entry.body[0]).endswith("= call both(%6, %7)")


def test_fingerprints_know_no_names():
    assert fingerprint(factorial()) == fingerprint(factorial("other"))
    program = twice()
    assert fingerprint(program) != fingerprint(replace(program, functions=program.functions[::-1]))
    double, both = program.functions
    changed = replace(double.body, results=double.parameters)
    other = replace(program, functions=(replace(double, body=changed), both))
    assert fingerprint(program) != fingerprint(other)


# -- rules ---------------------------------------------------------------------------------------------------
def refuses(program: UProgram, message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        verify(program)


def test_unknown_functions():
    refuses(replace(twice(), functions=twice().functions[:1]), "there is no function both")


def test_names_are_unique():
    m = Maker()
    m.function("f", [F3], lambda x: [x])
    m.function("f", [F3], lambda x: [x])
    refuses(m.program([F3], lambda x: [x]), "two functions have one name")


def test_types_of_arguments_and_results():
    def call(given, results):
        m = Maker()
        m.function("f", [F3], lambda x: [x])
        types = [F3, "float32[2]"]
        return m.program(types, lambda x, y: m.call("f", [(x, y)[k] for k in given], *results))

    verify(call([0], [F3]))
    refuses(call([1], [F3]), r"arguments are float32\[2\]; f has float32\[3\]")
    refuses(call([0, 0], [F3]), "arguments are")
    refuses(call([0], ["float32[2]"]), "results are")
    refuses(call([0], []), "results are")


def test_functions_see_their_parameters_only():
    m = Maker()
    outer = fresh(m.b, tensor(F3))
    m.function("f", [F3], lambda x: [m.op("add", x, outer)])
    entry = m.b.finish([outer], m.call("f", [outer], F3))
    refuses(UProgram("test", entry, functions=tuple(m.functions)), "used outside its scope")


def test_values_are_defined_once_in_the_whole_program():
    m = Maker()
    m.function("f", [F3], lambda x: [x])
    parameters = m.functions[0].parameters
    entry = m.b.finish(parameters, parameters)
    refuses(UProgram("test", entry, functions=tuple(m.functions)), "defined twice")


# -- helpers of passes ---------------------------------------------------------------------------------------
def test_helpers():
    program = twice()
    reference = program.entry.body[0]
    assert isinstance(reference, UTaskRef)
    assert reads(reference) == reference.arguments == program.entry.parameters
    assert free_values(program.entry) == ()
    assert [type(s).__name__ for s in walk(program.entry)] == ["UTaskRef", "UTaskRef", "UOperator"]
    assert [len(r.body) for r in program.regions] == [3, 1, 2]
    x, y = program.entry.parameters
    assert with_reads(reference, {x: y}).inputs == (y, y)


def test_fresh_values_are_fresh_in_functions_too():
    m = Maker()
    program = m.program([F3], lambda x: [x])
    m.function("f", [F3], lambda x: [m.op("add", x, x)])
    program = replace(program, functions=tuple(m.functions))
    used = {v.id for r in program.regions for s in walk(r) for v in s.outputs}
    assert FreshValues(program).make(tensor(F3)).id not in used | {v.id for v in m.functions[0].parameters}


def test_simplify_leaves_references_and_replaces_their_arguments():
    m = Maker()
    m.function("f", [F3, F3], lambda x, y: [m.op("sub", x, y)])

    def body(x):
        return m.call("f", [m.op("exp", x), m.op("exp", x)], F3)

    program = m.program([F3], body)
    after = simplify(program)
    verify(after)
    _, reference = after.entry.body
    assert reference.arguments[0] == reference.arguments[1]


# -- inlining ------------------------------------------------------------------------------------------------
def references(program: UProgram) -> list[str]:
    return [s.function for r in program.regions for s in walk(r) if isinstance(s, UTaskRef)]


def same(program: UProgram, after: UProgram) -> None:
    verify(after)
    given = arguments(program)
    for x, y in zip(run(after, given), run(program, given), strict=True):
        np.testing.assert_array_equal(x, y)


def test_inlining():
    program = twice()
    after = inline(program)
    assert after.functions == () and references(after) == []
    assert [s.kind for s in after.entry.body] == ["add", "mul", "add", "sub"]
    same(program, after)


def test_programs_without_functions_stay():
    m = Maker()
    program = m.program([F3], lambda x: [m.op("exp", x)])
    assert inline(program) is program


def test_inlining_in_loops_and_branches():
    m = Maker()

    def step(x, n):
        (x,) = counted(m.b, 3, [x], lambda i, c: [m.op("sin", c)])
        return branch(m.b, n, lambda: [x], lambda: [m.op("neg", x)])

    def below(x):
        total = m.b.emit("reduce", (x,), "float32", (), axes=(0,), op="sum")
        return [m.op("lt", total, m.b.constant(50.0, "float32"), dtype="bool")]

    m.function("step", [F3, "int32[]"], step)
    m.function("below", [F3], below)
    m.function("more", [F3], lambda x: [m.op("add", x, m.b.full(1.0, "float32", (3,))), x])

    def body(x, n):
        def again(y):
            y, _ = m.call("more", [y], F3, F3)
            return branch(m.b, n, lambda: m.call("more", [y], F3, F3)[:1], lambda: [y])

        (y,) = while_loop(m.b, [x], lambda y: m.call("below", [y], "bool[]")[0], again)
        (z,) = m.call("step", [y, n], F3)
        return [*m.call("step", [z, n], F3), y]

    program = m.program([F3, "int32[]"], body)
    verify(program)
    after = inline(program)
    assert references(after) == [] and after.functions == ()
    same(program, after)
    same(program, transform(program))


def test_recursion_stays_and_what_it_calls_is_inlined():
    program = even_and_odd()
    after = inline(program)
    assert [f.name for f in after.functions] == ["even", "odd"]
    assert sorted(references(after)) == ["even", "even", "odd"]
    verify(after)
    for n in range(5):
        assert run(after, [np.int32(n)]) == run(program, [np.int32(n)])
    assert inline(after) is after
    assert inline(factorial()).functions == factorial().functions


def test_functions_that_nothing_names_go():
    m = Maker()
    m.function("f", [F3], lambda x: m.call("f", [x], F3))
    program = m.program([F3], lambda x: [m.op("exp", x)])
    assert inline(program).functions == ()


def test_the_compiler_inlines_first():
    program = twice()
    emitted = emit(program)
    assert emitted.fired[0] == "inline"
    assert "call" not in print_program(emitted.program)
    same(program, emitted.program)


def test_recursion_is_not_emitted():
    with pytest.raises(UnsupportedError, match="factorial calls itself"):
        emit(factorial(), HOST)
