"""Sizes are ints with a form in launch parameters, and the form always has the value of the int."""

from __future__ import annotations

import copy
import json
import math
import operator
import pickle
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_cocktail.codegen.kernel import Index, Name, SizeName, nodes_in, printed, spelled, text
from jax_cocktail.codegen.writer import code
from jax_cocktail.compiler import emit, transform
from jax_cocktail.schedule import general
from jax_cocktail.schedule.launch_parameters import known_lengths, launch_parameters
from jax_cocktail.utask.ir import LoopUTask, walk
from jax_cocktail.utask.layout import dense
from jax_cocktail.utask.sizes import (
    MOST_TERMS,
    Parameter,
    Quotient,
    Size,
    at,
    form_of,
    integer,
    is_integer,
    least_of,
    parameter,
    place_in,
    size_in,
    sized,
    within,
)
from jax_cocktail.utask.sizes import value_of as value_of_parameter
from jax_cocktail.utask.types import TensorType, Value
from tests.null.programs import arguments, build, counted, elementwise, matmul
from tests.oracle.interpreter.run import run

N = parameter(50)
OPERATIONS = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod)


def value_of(size: int) -> int:
    """The value of the form, whatever the int says."""

    def atom(each) -> int:
        return value_of(each.dividend) // each.divisor if isinstance(each, Quotient) else each.value

    if not isinstance(size, Size):
        return size
    return sum(n * prod(map(atom, product)) for product, n in size.terms)


def c_text(size: int) -> str:
    """C text with the values of the parameters."""
    expression = code("{}", size)
    names = {n: str(n.parameter.value) for n in nodes_in(expression) if isinstance(n, SizeName)}
    return text(printed([expression], 0), names)


def c_value(size: int) -> int:
    """What C computes, whose quotients round to zero."""

    class Number(int):
        def __truediv__(self, other):
            return Number(abs(self) // abs(other) * (1 if self * other >= 0 else -1))

        def __add__(self, other):
            return Number(int(self) + int(other))

        def __sub__(self, other):
            return Number(int(self) - int(other))

        def __mul__(self, other):
            return Number(int(self) * int(other))

        def __neg__(self):
            return Number(-int(self))

    def numbered(characters: str) -> str:
        characters = characters.replace("i64", "")  # numbers here have as many bits as they need
        pieces = "".join(c if c.isdigit() else f" {c} " for c in characters).split()
        return "".join(f"Number({p})" if p.isdigit() else p for p in pieces)

    return int(eval(numbered(c_text(size)), {"Number": Number}))


@st.composite
def sizes(draw):
    """A size or an int, made by a few operations."""
    pool = [parameter(draw(st.integers(1, 200))), parameter(draw(st.integers(1, 200)), "other"), N]
    pool += draw(st.lists(st.integers(-20, 300), min_size=1, max_size=3))
    for _ in range(draw(st.integers(0, 6))):
        operation, a, b = draw(st.sampled_from(OPERATIONS)), draw(st.sampled_from(pool)), 0
        b = draw(st.sampled_from(pool))
        if b != 0 or operation not in (operator.floordiv, operator.mod):
            pool.append(operation(a, b))
    return draw(st.sampled_from(pool))


@given(sizes(), sizes())
def test_operations_are_those_of_ints(a, b):
    for operation in OPERATIONS:
        if b != 0 or operation not in (operator.floordiv, operator.mod):
            found = operation(a, b)
            assert found == operation(int(a), int(b)) == value_of(found) == c_value(found)
            if operation is operator.mod:
                assert divmod(a, b) == divmod(int(a), int(b)) == tuple(map(c_value, divmod(a, b)))
    assert -a == -int(a) == value_of(-a)
    assert -(-a // 7) == -(-int(a) // 7) == c_value(-(-a // 7))
    assert (a < b, a == b, hash(a), str(a), bool(a)) == (
        int(a) < int(b),
        int(a) == int(b),
        hash(int(a)),
        str(int(a)),
        bool(int(a)),
    )


@pytest.mark.parametrize(
    ("size", "written"),
    [
        (N, "50"),
        (N * 1 + 0, "50"),
        (4 * N, "(4 * 50)"),
        (N - 1, "(50 - 1)"),
        (2 * (N + 3) - N, "(50 + 6)"),
        (-N, "(-50)"),
        (5 - N, "(-50 + 5)"),
        (N * N, "(50 * 50)"),
        (4 * N // 2, "(2 * 50)"),
        (N // 7, "(50 / 7)".join(("(", ")"))),
        (N % 7, "(50 - 7 * (50 / 7))"),
        (-(-N // 16), "(((50 + 15) / 16))"),
        (12 * N // N, "12"),
        (N * N // N, "50"),
        (N - N, "0"),
        (N // N, "1"),
    ],
)
def test_text(size, written):
    assert c_text(size) == written


def test_equal_sizes_have_equal_texts():
    assert spelled(3 * N + 4 + N) == spelled(2 * (2 * N + 2)) == spelled(4 + N * 4)
    assert spelled(N) != spelled(parameter(50, "offset"))
    assert spelled(Size(N.terms)) == spelled(N)


@pytest.mark.parametrize("number", [int(N), N + 0.0, N / 2, N**2, abs(N), N | 1, np.int64(2) * N, 100 // N])
def test_other_operations_forget_the_form(number):
    assert not isinstance(number, Size)


def test_long_forms_are_forgotten():
    names = [parameter(10 + k) for k in range(MOST_TERMS + 1)]
    assert isinstance(sum(names[:-1]), Size) and not isinstance(sum(names), Size)
    assert sum(names) == sum(range(10, 11 + MOST_TERMS))


# ---- general parameters ------------------------------------------------------------------------------------
ANY = Parameter(1031, least=32)
A = Size((((ANY,), 1),))


@given(st.integers(32, 3000), st.integers(1, 70), st.integers(-3, 3), st.integers(-90, 90))
def test_values_in_calls_and_their_bounds(number, divisor, factor, more):
    parts = A // divisor * factor, number // divisor * factor
    for made, of in ((A * factor + more, number * factor + more), parts):
        if isinstance(made, Size):
            assert made.at({ANY: number}) == of and made.at({}) == made and made.least <= of
    rest = A - A // divisor * divisor
    left = A - A // divisor
    assert at(rest, {ANY: number}) == number % divisor and least_of(left) <= number - number // divisor
    assert not isinstance(rest, Size) or rest.least > -1
    assert divisor == 1 or within(A // divisor, A)


def test_bounds_are_close():
    assert A.least == 32 and (A - A // 2).least == 16 and (64 * (A // 64)).least == 0
    assert (N - A).least == -math.inf and (A * A - 5).least == 32 * 32 - 5 and (N - 1).least == 49


def test_places_follow_from_general_parameters():
    begin = place_in(64 * A + 128, "workspace")
    (parameter,) = begin.parameters
    assert value_of_parameter(parameter, {ANY: 40}) == 64 * 40 + 128 and int(begin) == 64 * 1031 + 128
    assert place_in(64 * N, "workspace") == place_in(64 * 50, "workspace")
    (fixed,) = place_in(64 * N, "workspace").parameters
    assert fixed.follows == () and value_of_parameter(fixed, {ANY: 40}) == 3200


def test_forms():
    assert form_of(192 * A) == (A.terms, 192) and form_of(64 * N) == ((), 3200) and form_of(7) == ((), 7)
    terms, factor = form_of(12 * A * N + 6 * A)
    assert factor == 6 and Size(terms) == 2 * A * N + A


def test_constants_remember_sizes():
    data = sized((1031).to_bytes(4, "little"), A)
    assert size_in(data) is A and size_in(copy.deepcopy(data)) == A and size_in(bytes(data)) is None
    assert size_in(sized(b"1234", N)) is None, "it has this value in all calls"


def test_copies_keep_the_form():
    for size in (N, 4 * N + 2, N // 7):
        for other in (copy.copy(size), copy.deepcopy(size), pickle.loads(pickle.dumps(size))):
            assert isinstance(other, Size) and other == size and other.terms == size.terms


def test_sizes_pass_for_ints():
    assert is_integer(N) and is_integer(3) and not is_integer(True) and not is_integer(3.0)
    assert integer(N) is N and type(integer(np.int64(3))) is int
    assert json.dumps([N]) == "[50]" and f"{N}" == repr(N) == "50"
    assert np.zeros(N).shape == (50,) and np.asarray([N]).dtype == np.int64
    type_ = TensorType("float32", (N, 4))
    assert type_ == TensorType("float32", (50, 4)) and str(type_) == "float32[50,4]"
    assert c_text(type_.size) == "(4 * 50)" and c_text(type_.nbytes) == "(16 * 50)"


def test_indices_print_sizes():
    index = Index(N - 1, ((Name("i"), 4 * N), (Name("j"), 1)))
    assert c_text(0) == "0"
    names = {n: "n" for n in nodes_in(index) if isinstance(n, SizeName)}
    assert text(printed([code("{}", index)], 0), names) == "(4 * n) * i + j + (n - 1)"


# -- the pass ------------------------------------------------------------------------------------------------
def scanned(trips, hidden=24, reverse=False):
    """A recurrence over rows, and the rows times a matrix, as one axis."""

    def make(b, xs, w):
        made = b.emit("empty", (), "float32", (trips, hidden))

        def step(i, h, ys):
            at = elementwise(b, "sub", b.full(trips - 1, "int64", ()), i) if reverse else i
            zero = b.full(0, "int64", ())
            x = b.reshape(b.emit("dynamic_slice", (xs, at, zero), "float32", (1, hidden)), (hidden,))
            h = elementwise(b, "tanh", elementwise(b, "add", h, x))
            row = b.reshape(h, (1, hidden))
            return h, b.emit("dynamic_update_slice", (ys, row, at, zero), "float32", (trips, hidden))

        h, ys = counted(b, trips, (b.full(0.0, "float32", (hidden,)), made), step)
        rows = b.reshape(ys, (trips * 2, hidden // 2))
        return h, matmul(b, rows, w)

    return build([f"float32[{trips},{hidden}]", f"float32[{hidden // 2},16]"], make)


def test_trip_counts_and_what_follows_from_them_become_sizes():
    marked = launch_parameters(scanned(50))
    loop = next(s for s in walk(marked.entry) if isinstance(s, LoopUTask))
    assert isinstance(loop.trip_count, Size)
    kinds = {s.kind: s.output.type.shape for s in marked.entry.body if not isinstance(s, LoopUTask)}
    assert isinstance(kinds["dot"][0], Size) and kinds["dot"] == (100, 16)
    shapes = [v.type.shape for s in walk(marked.entry) for v in s.outputs]
    assert not any(isinstance(n, Size) for shape in shapes for n in shape[1:])


def test_what_needs_64_bits_is_computed_in_as_many():
    length = parameter(1 << 20)
    assert c_text(length * 2000) == "(2000 * 1048576)"
    assert c_text(length * 4096 - 7) == "(4096 * i64(1048576) - 7)"


def test_lengths_are_numbers_again_where_they_cost_something():
    """On a GPU: in functions of their own, and where a loop over a sequence was divided."""

    def is_sized(program):
        shapes = [v.type.shape for s in walk(program.entry) for v in s.outputs]
        trips = [s.trip_count for s in walk(program.entry) if isinstance(s, LoopUTask)]
        return any(isinstance(n, Size) for n in (*trips, *(n for shape in shapes for n in shape)))

    stitched = transform(scanned(50))
    assert is_sized(stitched) and known_lengths(stitched, 9) is stitched
    known = known_lengths(stitched, 0)
    assert known == stitched and not is_sized(known) and known_lengths(known, 0) is known
    (loop,) = (s for s in stitched.entry.body if isinstance(s, LoopUTask))
    body = tuple(replace(s, trip_count=25) if s is loop else s for s in stitched.entry.body)
    divided = replace(stitched, entry=replace(stitched.entry, body=body))
    assert not is_sized(known_lengths(divided, 9))


def test_short_loops_stay():
    program = scanned(8)
    assert launch_parameters(program) is program and emit(program).sizes == ()


@pytest.mark.parametrize("reverse", [False, True])
def test_one_text_serves_many_lengths(reverse):
    known = {n: emit(scanned(n, reverse=reverse)) for n in (70, 90, 123, 1000)}
    assert len({each.source for each in known.values()}) == 1
    assert len({len(each.sizes) for each in known.values()}) == 1
    for n, each in known.items():
        assert n in each.sizes and str(n) not in each.source


def test_the_interpreter_takes_sizes():
    program = scanned(20)
    given = arguments(program)
    for mine, theirs in zip(run(program, given), run(launch_parameters(program), given), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_layouts_and_scalars_are_recognised_by_numbers_alone(monkeypatch):
    value = Value(0, TensorType("float32", (parameter(20), parameter(30))))
    layout = dense(value)
    monkeypatch.setattr(Size, "__mul__", lambda *_: pytest.fail("a form is computed that nobody reads"))
    monkeypatch.setattr(Size, "__rmul__", Size.__mul__)
    assert layout.is_whole and layout.is_dense and not value.type.is_scalar


def test_stand_ins_ascend():
    """Two numbers that vary have stand-ins in the same order in both plans."""
    for _, groups in (*general.RANGES, *general.GPU_RANGES):
        for group in groups:
            assert list(group[:3]) == sorted(group[:3]) and len(group) > 3
            assert all(n % d for n in group for d in range(2, int(n**0.5) + 1))
