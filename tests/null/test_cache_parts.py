"""Units take parts that their caches keep, one after the other, and their price says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jax_cocktail.compiler import emit, transform
from jax_cocktail.cost.cpu import our_price
from jax_cocktail.device.host import SERVER
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.candidate import SINGLE, Candidate, way
from jax_cocktail.utask.ir import UProgram, is_a, is_parallel, walk
from jax_cocktail.utask.types import Value
from tests.null.programs import build, elementwise, matmul

TWO = way(units=2, distribute=True)


def softmax(b: Builder, x: Value) -> Value:
    rows, shape = x.type.shape[:1], x.type.shape

    def spread(value: Value) -> Value:
        return b.broadcast(value, shape, (0,))

    top = b.emit("reduce", (x,), "float32", rows, axes=(1,), op="max")
    e = elementwise(b, "exp", elementwise(b, "sub", x, spread(top)))
    return elementwise(b, "div", e, spread(b.emit("reduce", (e,), "float32", rows, axes=(1,), op="sum")))


def of_rows(rows: int, columns: int, donated: tuple[int, ...] = ()) -> UProgram:
    return build([f"float32[{rows},{columns}]"], lambda b, x: (softmax(b, x),), donated)


def parts(program: UProgram, candidate: Candidate = TWO) -> list[int | None]:
    placed = transform(program, candidate=candidate)
    return [s.trip_count for s in walk(placed.entry) if is_parallel(s)]


def test_rows_that_leave_the_cache_are_taken_by_parts():
    """Each computes a value of at most a third of 768 KB, and reads it again."""
    (found,) = parts(of_rows(4096, 1024))
    assert found is not None and found > 2 and 4 * 1024 * (4096 // found) <= 256 << 10


def test_one_unit_takes_the_same_parts():
    program = of_rows(4096, 1024)
    assert parts(program, SINGLE) == parts(program)
    assert parts(of_rows(64, 256), SINGLE) == []


@pytest.mark.parametrize("program", [of_rows(64, 256), of_rows(256, 256)])
def test_rows_in_cache_are_divided_once(program):
    assert parts(program) == [2]


def test_a_product_reads_its_matrix_for_every_part():
    """So rows with a product stay together."""

    def body(b, x, w):
        return (softmax(b, softmax(b, matmul(b, x, w))),)

    assert parts(build(["float32[4096,512]", "float32[512,1024]"], body)) == [2]


def test_two_units_are_faster_than_one():
    program = of_rows(4096, 1024)
    one, two = (our_price(emit(program, candidate=c).program, c.units, SERVER) for c in (SINGLE, TWO))
    assert two.seconds < 0.6 * one.seconds


@pytest.mark.parametrize("donated", [(), (0,)])
def test_only_what_the_caller_gives_away_is_overwritten(donated):
    program = replace(of_rows(4096, 1024), donated=donated)
    placed = transform(program, candidate=TWO)
    (loop,) = (s for s in walk(placed.entry) if is_parallel(s))
    new = {s.output for s in walk(placed.entry) if is_a(s, "empty")}
    assert (loop.initial == placed.entry.parameters) == bool(donated) == (not new)
