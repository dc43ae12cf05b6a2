"""Tiling: a parallel loop over parts gives what the statements give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jax_cocktail.analysis.axes import rule
from jax_cocktail.analysis.verifier import verify
from jax_cocktail.errors import VerificationError
from jax_cocktail.placement.parts import Tiling, balanced
from jax_cocktail.placement.tile import Sources, tile
from jax_cocktail.utask.ir import LoopUTask, Region, UProgram, is_parallel
from jax_cocktail.utask.substitute import FreshValues
from tests.null.operators import SAMPLES, Sample
from tests.null.programs import arguments, branch, build, counted, elementwise, matmul, while_loop
from tests.oracle.interpreter.run import run


def replaced_body(program: UProgram, body, results=None) -> UProgram:
    entry = Region(program.entry.parameters, tuple(body), results or program.entry.results)
    return replace(program, entry=entry)


def divisors(n: int) -> list[int]:
    return [d for d in range(2, n + 1) if n % d == 0]


def same(before: UProgram, after: UProgram, seed: int = 0) -> None:
    verify(after)
    given = arguments(before, seed)
    for x, y in zip(run(after, given), run(before, given), strict=True):
        if x.dtype.kind in "iub":
            np.testing.assert_array_equal(x, y)
        else:
            np.testing.assert_allclose(x.astype(np.float64), y.astype(np.float64), rtol=1e-6, atol=1e-6)


def tiled(program: UProgram, classes, parts: int, sources: Sources | None = None) -> UProgram:
    fresh = FreshValues(program)
    return replaced_body(
        program,
        tile(program.entry.body, program.entry.results, classes, Tiling(parts), fresh, sources=sources),
    )


def the_loop(program: UProgram) -> LoopUTask:
    loop = program.entry.body[-1]
    assert is_parallel(loop)
    return loop


def test_parts_of_an_axis():
    even, padded = Tiling(3, across=2, rest_unit=5), Tiling(3, length=4)
    assert (even.trips, even.step(10), even.size(10), even.reach) == (6, 3, 3, 0)
    assert (even.rest.trips, even.rest.first, even.rest.step(10), even.rest.size(10)) == (1, 5, 3, 1)
    assert (padded.trips, padded.step(10), padded.size(10), padded.reach) == (3, 4, 4, 12)
    lines = Tiling(3, rest_unit=2, line=4)
    assert (lines.trips, lines.step(26), lines.size(26), lines.left(26)) == (2, 8, 8, 10)
    assert (lines.rest.trips, lines.rest.first, lines.rest.size(26)) == (1, 2, 10)


@pytest.mark.parametrize("line", [1, 4, 16])
@pytest.mark.parametrize("parts", [2, 3, 8])
def test_the_longest_of_balanced_parts_is_short(parts, line):
    for extent in range(1, 300):
        step = balanced(extent, parts, line)
        if extent >= parts * line:
            assert 0 < step * (parts - 1) < extent and step % line == 0
            assert max(step, extent - step * (parts - 1)) < extent / parts + parts * line


@pytest.mark.parametrize("hidden", [33, 45])
def test_a_last_part_of_another_length(hidden):
    types = [f"float32[2,{hidden}]", f"float32[{hidden},{hidden}]"]
    program = build(types, lambda b, x, w: [matmul(b, x, w)])
    body, results = program.entry.body, program.entry.results
    tiling = Tiling(2, rest_unit=1, line=16)
    after = replaced_body(program, tile(body, results, {results[0]: 1}, tiling, FreshValues(program)))
    found = [s for s in after.entry.body if is_parallel(s)]
    assert [(s.trip_count, s.first) for s in found] == [(1, 0), (1, 1)]
    same(program, after)


@pytest.mark.parametrize("case", SAMPLES, ids=str)
def test_every_kind_along_every_tie(case: Sample):
    program = case.program()
    (operator,) = program.entry.body
    for tie in rule(operator).ties:
        for parts in divisors(tie.parts):
            classes = dict(zip(operator.outputs, tie.outputs, strict=True))
            after = tiled(program, classes, parts)
            assert the_loop(after).trip_count == parts
            if case.kind != "empty":
                same(program, after)


@pytest.mark.parametrize("case", SAMPLES, ids=str)
def test_every_kind_with_something_left_over(case: Sample):
    program = case.program()
    (operator,) = program.entry.body
    for tie in rule(operator).ties:
        values = [*zip(operator.outputs, tie.outputs, strict=True)]
        values += [p for p in zip(operator.inputs, tie.inputs, strict=True) if p[1] is not None]
        extents = {v.type.shape[d] for v, d in values}
        if extents == {tie.parts} and tie.parts > 3 and case.kind != "empty":
            parts = 3 if tie.parts == 4 else 4
            same(program, tiled(program, dict(zip(operator.outputs, tie.outputs, strict=True)), parts))


def test_only_what_leaves_a_remainder_has_one():
    program = build(
        ["float32[6]", "float32[4]"], lambda b, x, y: (elementwise(b, "neg", x), elementwise(b, "neg", y))
    )
    after = tiled(program, dict.fromkeys(program.entry.results, 0), 3)
    same(program, after)
    assert all(value.type.size for statement in after.entry.body for value in statement.outputs)


def test_consuming_operator_is_refused():
    def body(b, x):
        y = elementwise(b, "neg", x)
        return (b.emit("reverse", (y,), "float32", (4,), dimensions=(0,)),)

    program = build(["float32[4]"], body)
    y, z = (s.outputs[0] for s in program.entry.body)
    with pytest.raises(VerificationError, match="reverse cannot be cut"):
        tiled(program, {y: 0, z: 0}, 2)


def test_parts_that_do_not_divide_are_refused():
    program = build(["float32[4,2]"], lambda b, x: (b.reshape(x, (8,)),))
    with pytest.raises(VerificationError, match="into 3 parts"):
        tiled(program, {program.entry.results[0]: 0}, 3)


def test_reading_whole_is_refused():
    def body(b, x, w):
        y = elementwise(b, "neg", x)
        axes = {"lhs_batch": (), "lhs_contract": (0,), "rhs_batch": (), "rhs_contract": (0,)}
        return (b.emit("dot", (y, w), "float32", (4,), **axes),)

    program = build(["float32[4]", "float32[4,4]"], body)
    y, z = (s.outputs[0] for s in program.entry.body)
    with pytest.raises(VerificationError, match="read whole"):
        tiled(program, {y: 0, z: 0}, 2)


def test_nested_loop_and_counter():
    """A loop over time inside every part; its counter is computed in each."""

    def body(b, xs, w):
        zero, one = b.constant(0, "int32"), b.constant(1, "int32")
        start = b.full(0.0, "float32", (6, 3))
        kept = b.emit("empty", (), "float32", (5, 6, 3))

        def step(i, count, h, ys):
            none = b.constant(0, "int64")
            x = b.reshape(b.emit("dynamic_slice", (xs, i, none, none), "float32", (1, 6, 3)), (6, 3))
            axes = {"lhs_batch": (), "lhs_contract": (1,), "rhs_batch": (), "rhs_contract": (0,)}
            z = b.emit("dot", (h, w), "float32", (6, 3), **axes)
            scale = b.broadcast(b.convert(count, "float32"), (6, 3), ())
            h = elementwise(b, "tanh", elementwise(b, "add", elementwise(b, "add", x, z), scale))
            row = b.reshape(h, (1, 6, 3))
            ys = b.emit("dynamic_update_slice", (ys, row, i, none, none), "float32", (5, 6, 3))
            return elementwise(b, "add", count, one), h, ys

        _, h, ys = counted(b, 5, (zero, start, kept), step)
        return h, ys

    program = build(["float32[5,6,3]", "float32[3,3]"], body)
    for parts in (2, 3, 6):
        after = tiled(program, batch_axes(program, 6), parts)
        same(program, after)
        inner = [s for s in the_loop(after).body.body if isinstance(s, LoopUTask)]
        assert len(inner) == 1 and not inner[0].parallel


def batch_axes(program: UProgram, size: int) -> dict:
    """The axis of extent `size` of every value that has one; sizes in these tests are unlike."""
    from jax_cocktail.utask.ir import regions_of, walk

    values = [v for s in walk(program.entry) for v in s.outputs]
    values += [v for s in walk(program.entry) for r in regions_of(s) for v in r.parameters]
    return {v: v.type.shape.index(size) for v in values if size in v.type.shape}


def test_while_with_scalar_condition_and_branch():
    def body(b, x, limit):
        zero, one = b.constant(0, "int32"), b.constant(1, "int32")

        def step(count, y):
            two = b.constant(2, "int32")
            odd = b.convert(elementwise(b, "rem", count, two), "int32")
            (y,) = branch(
                b, odd, lambda: (elementwise(b, "sin", y),), lambda: (x,), lambda: (elementwise(b, "neg", y),)
            )
            y = elementwise(b, "add", y, b.full(0.5, "float32", (6, 2)))
            return elementwise(b, "add", count, one), y

        _, y = while_loop(b, (zero, x), lambda c, y: elementwise(b, "lt", c, limit, dtype="bool"), step)
        return (y,)

    program = build(["float32[6,2]", "int32[]"], body)
    same(program, tiled(program, batch_axes(program, 6), 3))


def test_condition_on_the_class_is_refused():
    def body(b, x):
        def below(y):
            total = b.emit("reduce", (y,), "float32", (), axes=(0,), op="sum")
            return b.emit("lt", (total, b.constant(9.0, "float32")), "bool", ())

        return while_loop(b, (x,), below, lambda y: (elementwise(b, "add", y, y),))

    program = build(["float32[6]"], body)
    with pytest.raises(VerificationError, match="read whole"):
        tiled(program, batch_axes(program, 6), 2)


def test_parts_of_different_extents():
    """A class may hold axes of several extents, as reshapes make them: parts are what they share."""

    def body(b, x):
        y = elementwise(b, "sin", b.reshape(x, (24,)))
        return (b.reshape(y, (8, 3)),)

    program = build(["float32[4,6]"], body)
    classes = {s.outputs[0]: 0 for s in program.entry.body}
    for parts in (2, 4):
        same(program, tiled(program, classes, parts))


def test_small_inside_values_are_read_by_parts():
    """A value that is computed whole in every part may be read by parts there."""

    def body(b, x):
        bias = b.emit("iota", (), "float32", (6,), dimension=0)
        flipped = b.emit("reverse", (bias,), "float32", (6,), dimensions=(0,))
        return (elementwise(b, "add", x, flipped),)

    program = build(["float32[6]"], body)
    same(program, tiled(program, {program.entry.results[0]: 0}, 3))


def test_updates_in_place():
    def body(b, c, x):
        return (elementwise(b, "add", elementwise(b, "mul", c, c), x),)

    program = build(["float32[6]", "float32[6]"], body)
    (result,), c = program.entry.results, program.entry.parameters[0]
    classes = {s.outputs[0]: 0 for s in program.entry.body}
    after = tiled(program, classes, 3, Sources(bases={result: c}))
    same(program, after)
    loop = the_loop(after)
    assert loop.initial == (c,) and after.entry.body == (loop,)
    assert c not in [v for s in loop.body.body for v in s.inputs]


def test_in_place_needs_reads_of_the_own_part():
    def body(b, c):
        flipped = b.emit("reverse", (c,), "float32", (6,), dimensions=(0,))
        return (elementwise(b, "add", c, flipped),)

    program = build(["float32[6]"], body)
    (result,), c = program.entry.results, program.entry.parameters[0]
    with pytest.raises(VerificationError, match="updated in place"):
        tiled(program, {result: 0}, 3, Sources(bases={result: c}))
