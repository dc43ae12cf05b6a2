"""Unrolling: the same trips in another arrangement, and two buffers in turn around parallel loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.device.tuning import PROGRAM
from jax_cocktail.placement.limits import Limits
from jax_cocktail.placement.mesh import UnitMesh
from jax_cocktail.placement.place import place
from jax_cocktail.schedule.loops.repeat import unrolled as repeated
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.sync import double_buffer as buffering
from jax_cocktail.utask.ir import LoopUTask, Region, is_parallel, walk
from jax_cocktail.utask.substitute import FreshValues
from tests.null.meshes import double_buffer
from tests.null.programs import branch, build, counted, elementwise, same_results, while_loop

V = "float32[3]"


def unrolled(program, factor):
    """The program with its first loop unrolled."""
    fresh = FreshValues(program)
    body = []
    for statement in program.entry.body:
        is_loop = isinstance(statement, LoopUTask)
        body += repeated(statement, factor, fresh) if is_loop else (statement,)
    entry = program.entry
    after = replace(program, entry=Region(entry.parameters, tuple(body), entry.results))
    verify(after)
    return after


def trip_counts(program):
    return [s.trip_count for s in walk(program.entry) if isinstance(s, LoopUTask)]


def _mixed(b, x, y):
    """Carries that swap, that stay, that follow the index, and that come from nested statements."""

    def step(i, c, d, e, n):
        scale = b.broadcast(b.convert(i, "float32"), (3,), ())
        (inner,) = counted(b, 2, [c], lambda j, v: [elementwise(b, "add", v, scale)])
        pick = b.convert(n, "int32")
        (chosen,) = branch(b, pick, lambda: [inner], lambda: [elementwise(b, "neg", d)])
        return d, chosen, e, i

    return counted(b, TRIPS[0], [x, y, y, b.constant(7, "int64")], step)


TRIPS = [0]


@pytest.mark.parametrize("trips", [0, 1, 2, 3, 5, 6, 7])
@pytest.mark.parametrize("factor", [1, 2, 3, 7, 20])
def test_same_results(trips, factor):
    TRIPS[0] = trips
    program = build([V, V], _mixed)
    after = unrolled(program, factor)
    same_results(program, after)
    same_results(program, simplify(after))


def test_remainder_stands_behind_the_loop():
    program = build([V], lambda b, x: counted(b, 7, [x], lambda i, c: [elementwise(b, "neg", c)]))
    assert trip_counts(unrolled(program, 3)) == [2]
    assert trip_counts(unrolled(program, 4)) == []
    assert trip_counts(unrolled(program, 7)) == []


def test_one_result_in_two_carries():
    def body(b, x, y):
        def step(i, c, d):
            new = elementwise(b, "add", c, d)
            return new, new

        return counted(b, 4, [x, y], step)

    program = build([V, V], body)
    for factor in (2, 3, 4):
        same_results(program, unrolled(program, factor))


# -- two buffers ---------------------------------------------------------------------------------------------
def _parallel(b, whole, source, parts=3):
    """A parallel loop that writes element i of `whole` from all of `source`."""

    def part(i, w):
        total = b.emit("reduce", (source,), "float32", (), axes=(0,), op="sum")
        one = b.reshape(elementwise(b, "add", total, b.convert(i, "float32")), (1,))
        return [b.emit("dynamic_update_slice", (w, one, i), "float32", (3,))]

    (out,) = counted(b, parts, [whole], part)
    loop = b.out[-1]
    b.out[-1] = replace(loop, parallel=True)
    return out


def _around(trips, in_place=False):
    def body(b, x):
        def step(i, c):
            target = c if in_place else b.emit("empty", (), "float32", (3,))
            source = x if in_place else c
            return [_parallel(b, target, source)]

        return counted(b, trips, [x], step)

    return build([V], body)


@pytest.mark.parametrize("trips", [4, 5, 9])
def test_pairs(trips):
    program = _around(trips)
    after = double_buffer(program)
    verify(after)
    assert trip_counts(after)[0] == trips // 2
    assert len(trip_counts(after)) == 1 + 2 + trips % 2
    parts = [s for s in walk(after.entry) if is_parallel(s)]
    assert len(parts) == 2 + trips % 2
    same_results(program, after)


def test_loops_that_need_no_second_buffer_stay():
    for program in (_around(3), _around(8, in_place=True)):
        assert double_buffer(program) is program
    sequential = build([V], lambda b, x: counted(b, 8, [x], lambda i, c: [elementwise(b, "neg", c)]))
    assert double_buffer(sequential) is sequential


def test_unrolling_an_index_that_is_carried_on():
    program = build(["int64[]"], lambda b, n: counted(b, 5, [n], lambda i, c: [i]))
    after = simplify(unrolled(program, 2))
    same_results(program, after)
    assert np.prod([t or 1 for t in trip_counts(after)]) in (1, 2)


# -- loops whose trips only the run counts -------------------------------------------------------------------
def steps(b, x, trips, body):
    """`x` after so many steps, as a loop with a condition."""

    def going(count, _):
        return elementwise(b, "lt", count, b.constant(trips, "int32"), dtype="bool")

    def step(count, x):
        return elementwise(b, "add", count, b.constant(1, "int32")), body(x)

    return while_loop(b, (b.constant(0, "int32"), x), going, step)[1]


def roots(b, a):
    """In steps of several, in each of which all units read what all of them have written."""

    def better(x):
        top = b.broadcast(b.emit("reduce", (x,), "float32", (), axes=(0,), op="max"), (24,), ())
        return elementwise(b, "sub", elementwise(b, "add", x, elementwise(b, "div", a, x)), top)

    return [steps(b, a, 3, lambda x: steps(b, x, 5, better))]


def test_a_loop_may_become_too_long_by_what_it_holds(monkeypatch):
    limits = Limits(flops=0, bytes=0, light=20.0, again=1.0)
    once = place(simplify(build(["float32[24]"], roots)), UnitMesh(units=2), limits=limits)
    outer = next(s for s in walk(once.entry) if isinstance(s, LoopUTask) and s.condition)
    statements = sum(1 for region in outer.regions for _ in walk(region))
    monkeypatch.setattr(buffering, "PROGRAM", replace(PROGRAM, doubled_statements=statements))
    after = double_buffer(once)
    verify(after)
    assert after is not once, "the inner loop is short enough"
    same_results(once, after)
