"""The edges of planned programs, worked out by hand: scheme, reason, bytes."""

from __future__ import annotations

import pytest

from jax_cocktail.codegen.machines import HOST, machine_of
from jax_cocktail.compiler import emit
from jax_cocktail.device.nvidia import H200
from jax_cocktail.stitch.edges import GLOBAL, LOCAL, REGIONAL, edges
from jax_cocktail.utask.candidate import Candidate, way
from jax_cocktail.utask.ir import operators_in
from jax_cocktail.utask.operators import BARRIERS
from tests.null.gpus import plan_for, recurrence
from tests.null.programs import build, counted, elementwise

F = 4  # bytes of an element
SHARED = "shared memory"


def found(program, units=1, machine=HOST):
    emitted = emit(program, machine, candidate=Candidate(units=units))
    listed = edges(emitted.program, emitted.plan, SHARED if machine.is_gpu else "")
    assert [e.saved_bytes for e in listed] == sorted((e.saved_bytes for e in listed), reverse=True)
    return emitted, listed


def told(listed):
    """The edges by kinds: scheme, bytes, bytes saved."""
    return sorted((f"{e.made.kind} -> {e.read.kind}", e.scheme, e.bytes, e.saved_bytes) for e in listed)


def reason(listed, made, read):
    (why,) = {e.why for e in listed if (e.made.kind, e.read.kind) == (made, read)}
    return why


def total(b, x, axis):
    shape = tuple(n for d, n in enumerate(x.type.shape) if d != axis)
    return b.emit("reduce", (x,), "float32", shape, op="sum", axes=(axis,))


def test_a_cheap_chain_stays_in_registers():
    """The difference of 512 bytes is spared its store and both loads, the square its store and its load."""

    def body(b, x, y):
        far = elementwise(b, "sub", x, y)
        square = elementwise(b, "mul", far, far)
        return [elementwise(b, "add", square, x)]

    _, listed = found(build(["float32[8,16]", "float32[8,16]"], body))
    assert told(listed) == [
        ("mul -> add", LOCAL, 128 * F, 2 * 128 * F),
        ("sub -> mul", LOCAL, 128 * F, 2 * 128 * F),
    ]
    assert reason(listed, "sub", "mul") == "the loop that computes an element reads it"


def softmax(b, x):
    shape = x.type.shape
    e = elementwise(b, "exp", x)
    return [elementwise(b, "div", e, b.broadcast(total(b, e, 1), shape, (0,)))]


def test_the_exponentials_of_a_softmax_are_stored_on_the_way():
    """The sum takes them from registers, and is spared one load. The division loads them: to compute them
    again would cost too much. One unit computes everything, in memory like any other."""
    _, listed = found(build(["float32[8,16]"], softmax))
    assert told(listed) == [
        ("exp -> div", REGIONAL, 128 * F, 0.0),
        ("exp -> reduce", LOCAL, 128 * F, 128 * F),
        ("reduce -> div", REGIONAL, 8 * F, 0.0),
    ]
    assert "stored as well: consumers would compute it again, at" in reason(listed, "exp", "reduce")
    assert reason(listed, "reduce", "div").startswith("a reduction has no element before its pass ends")
    assert reason(listed, "exp", "div").endswith("one unit runs everything")


def test_what_two_loops_compute_again():
    """The sum and the last product each compute the difference: 128 elements of 1 flop, twice."""

    def body(b, x, y):
        far = elementwise(b, "sub", x, y)
        sums = b.broadcast(total(b, far, 1), (8, 16), (0,))
        return [elementwise(b, "mul", far, sums)]

    _, listed = found(build(["float32[8,16]", "float32[8,16]"], body))
    again = [e for e in listed if e.made.kind == "sub"]
    assert {e.why for e in again} == {"2 loops compute it again, at 1 flop an element"}
    assert sorted(e.saved_bytes for e in again) == [128 * F, 2 * 128 * F]  # one store, two loads


def test_a_loop_multiplies():
    def body(b, x):
        def step(b, i, x):
            return [elementwise(b, "tanh", elementwise(b, "mul", x, x))]

        return counted(b, 10, (x,), lambda i, x: step(b, i, x))

    _, listed = found(build(["float32[64]"], body))
    assert told(listed) == [
        ("mul -> tanh", LOCAL, 10 * 64 * F, 2 * 10 * 64 * F),
        ("tanh -> mul", REGIONAL, 10 * 64 * F, 0.0),
    ]


def whole(b, x):
    """Every element over the sum of all."""
    sums = total(b, elementwise(b, "mul", x, x), 0)
    return [elementwise(b, "div", x, b.broadcast(sums, x.type.shape, ()))]


@pytest.mark.parametrize("machine", [HOST, machine_of(H200)], ids=["cpu", "gpu"])
def test_a_reduction_over_a_divided_axis_is_global(machine):
    size = 1 << 20
    emitted, listed = found(build([f"float32[{size}]"], whole), 2, machine)
    assert any(o.kind in BARRIERS for o in operators_in(emitted.program.entry))
    crossing = [e for e in listed if e.scheme == GLOBAL]
    assert crossing and {e.why for e in crossing} == {"a reduction over a divided axis; other units read it"}
    assert all(e.read.kind == "reduce" and e.saved_bytes == 0 for e in crossing)
    squares = next(e for e in listed if e.made.kind == "mul")
    assert (squares.scheme, squares.saved_bytes) == (LOCAL, 2 * size * F)


@pytest.mark.parametrize("machine", [HOST, machine_of(H200)], ids=["cpu", "gpu"])
def test_one_unit_knows_no_barrier(machine):
    emitted, listed = found(build([f"float32[{1 << 20}]"], whole), 1, machine)
    assert not any(o.kind in BARRIERS for o in operators_in(emitted.program.entry))
    assert {e.scheme for e in listed} <= {LOCAL, REGIONAL}


def test_rows_over_units_need_no_barrier():
    """The sums of a unit's rows are in memory of its own."""
    emitted, listed = found(build(["float32[512,256]"], softmax), 2)
    assert emitted.plan.most_units > 1
    assert not any(o.kind in BARRIERS for o in operators_in(emitted.program.entry))
    assert {e.scheme for e in listed} == {LOCAL, REGIONAL}
    assert reason(listed, "exp", "div").endswith("units read what they stored")


def test_shared_memory_saves_what_fits():
    """Of a row of 1,024 floats, the exponentials are in shared memory: stored once, loaded twice."""
    emitted, listed = found(build(["float32[64,1024]"], softmax), 64, machine_of(H200))
    assert emitted.plan.most_units == 64
    size = 64 * 1024 * F
    assert ("exp -> div", REGIONAL, size) in [row[:3] for row in told(listed)]
    assert sum(e.saved_bytes for e in listed if e.made.kind == "exp") == 3 * size
    assert reason(listed, "exp", "div").endswith("; it fits in shared memory")


def test_too_large_for_shared_memory():
    """The exponentials of a row have 400 kB, which no block has."""
    columns = 100_000
    emitted, listed = found(build([f"float32[4,{columns}]"], softmax), 4, machine_of(H200))
    assert columns * F > H200.shared_bytes
    edge = next(e for e in listed if (e.made.kind, e.read.kind) == ("exp", "div"))
    assert edge.saved_bytes == 0
    assert emitted.plan.slot(edge.made.output).space == "private"
    assert edge.scheme == REGIONAL and edge.why.endswith("too large for shared memory")


def test_what_units_send_each_other_is_global():
    """Eight states of 1,024 floats, in tagged words instead of behind a barrier."""
    planned = plan_for(recurrence(1, 1024, 8), way(16, cluster=True))
    assert any(o.kind == "exchange" for o in operators_in(planned.program.entry))
    listed = edges(planned.program, planned.plan, SHARED)
    assert told(listed) == [
        ("dot -> tanh", REGIONAL, 8 * 1024 * F, 2 * 8 * 1024 * F),
        ("tanh -> dot", GLOBAL, 8 * 1024 * F, 0.0),
    ]
    assert reason(listed, "tanh", "dot").endswith("every unit is sent all of it")


def test_positions_have_no_edges():
    """What counts iterations and finds slices is left out."""

    def body(b, x):
        def step(i, x):
            row = b.emit("rem", (i, b.constant(4, "int64")), "int64", ())
            at = b.emit("add", (row, b.constant(1, "int64")), "int64", ())
            part = b.emit("dynamic_slice", (x, at, b.constant(0, "int64")), "float32", (1, 8))
            return [elementwise(b, "add", x, b.broadcast(part, (8, 8), (0, 1)))]

        return counted(b, 4, (x,), step)

    _, listed = found(build(["float32[8,8]"], body))
    assert {(e.made.kind, e.read.kind) for e in listed} == {("add", "add")}
    assert {e.made.output.type.shape for e in listed} == {(8, 8)}
