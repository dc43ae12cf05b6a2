"""Barriers of loops that run until the data say stop: how many a trip takes, and that each is needed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jax_cocktail.analysis.parallel import scalar_constants
from jax_cocktail.analysis.verifier import verify
from jax_cocktail.cost.work import waits as run_waits
from jax_cocktail.device.tuning import PROGRAM
from jax_cocktail.placement.limits import Limits
from jax_cocktail.placement.mesh import UnitMesh
from jax_cocktail.placement.place import place
from jax_cocktail.schedule.loops.repeat import guarded, out_of_place
from jax_cocktail.schedule.memory import sharing
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.sync import double_buffer as buffering
from jax_cocktail.schedule.sync.hazards import ALL, FIRST, Access
from jax_cocktail.utask.guard import stopping_branch
from jax_cocktail.utask.ir import LoopUTask, Region, UOperator, UProgram, operators_in, walk
from jax_cocktail.utask.substitute import FreshValues
from tests.null.meshes import Planned, block, double_buffer, empty, mapped, parts, planned, put
from tests.null.programs import build, elementwise, matmul, same_results, while_loop
from tests.oracle.interpreter.run import run
from tests.oracle.mesh_interpreter import barrier_count, run_mesh, simulate

PRODUCTS = Limits(flops=200, light=400)  # alone are worth dividing
EAGER = Limits(flops=0, bytes=0, light=20.0, again=1.0)


def below(b, x, bound, dtype="int32"):
    return elementwise(b, "lt", x, b.constant(bound, dtype), dtype="bool")


def following(b, count):
    return elementwise(b, "add", count, b.constant(1, "int32"))


def inner(b, x, y):
    """A reduction, which simplification makes of inner products: the same bits in every plan."""
    return b.emit("reduce", (elementwise(b, "mul", x, y),), "float32", (), axes=(0,), op="sum")


def row(b, table, at):
    zero = b.constant(0, "int32")
    width = table.type.shape[1]
    return b.reshape(b.emit("dynamic_slice", (table, at, zero), "float32", (1, width)), (width,))


# -- programs ------------------------------------------------------------------------------------------------
def greedy(hidden=12, words=20, bound=7):
    """h = tanh(table[token] + h @ w), token = argmax(h @ out), until a token is 0."""

    def body(b, table, w, out, h):
        def going(count, token, h):
            ended = elementwise(b, "ne", token, b.constant(0, "int32"), dtype="bool")
            return elementwise(b, "and", below(b, count, bound), ended)

        def step(count, token, h):
            h = elementwise(b, "tanh", elementwise(b, "add", row(b, table, token), matmul(b, h, w)))
            logits = elementwise(b, "tanh", matmul(b, h, out))
            token = b.emit("arg_reduce", (logits,), "int32", (), axis=0, op="max")
            return following(b, count), token, h

        start = b.constant(0, "int32"), b.constant(1, "int32"), h
        return while_loop(b, start, going, step)

    shapes = (words, hidden), (hidden, hidden), (hidden, words), (hidden,)
    return build([f"float32[{','.join(map(str, s))}]" for s in shapes], body)


def conjugate_gradients(size=12, bound=5):
    """Of which only x is a result; r, p and the numbers are as small as x."""

    def body(b, a, right):
        def times(scalar, x):
            return elementwise(b, "mul", b.broadcast(scalar, (size,), ()), x)

        def going(x, r, p, rs, count):
            tiny = elementwise(b, "gt", rs, b.constant(1e-9, "float32"), dtype="bool")
            return elementwise(b, "and", tiny, below(b, count, bound))

        def step(x, r, p, rs, count):
            q = matmul(b, a, p)
            alpha = elementwise(b, "div", rs, inner(b, p, q))
            x = elementwise(b, "add", x, times(alpha, p))
            r = elementwise(b, "sub", r, times(alpha, q))
            new = inner(b, r, r)
            p = elementwise(b, "add", r, times(elementwise(b, "div", new, rs), p))
            return x, r, p, new, following(b, count)

        zero, count = b.full(0.0, "float32", (size,)), b.constant(0, "int32")
        return while_loop(b, (zero, right, right, inner(b, right, right), count), going, step)[:1]

    return build([f"float32[{size},{size}]", f"float32[{size}]"], body)


def newton(size=24, bound=5):
    """Square roots, all of them until the last one is good: x is updated in place, and read by all."""

    def body(b, a):
        def going(x, count):
            wrong = elementwise(b, "abs", elementwise(b, "sub", elementwise(b, "mul", x, x), a))
            most = b.emit("reduce", (wrong,), "float32", (), axes=(0,), op="max")
            far = elementwise(b, "gt", most, b.constant(1e-6, "float32"), dtype="bool")
            return elementwise(b, "and", far, below(b, count, bound))

        def step(x, count):
            half = b.full(0.5, "float32", (size,))
            better = elementwise(b, "add", x, elementwise(b, "div", a, x))
            return elementwise(b, "mul", half, better), following(b, count)

        return while_loop(b, (a, b.constant(0, "int32")), going, step)[:1]

    return build([f"float32[{size}]"], body)


def tree(nodes=9, size=12, bound=6):
    """Every row from the two before it: rows[n] = tanh((rows[n - 1] + rows[n - 2]) @ w)."""

    def body(b, rows, w):
        def step(count, rows):
            zero, one = b.constant(0, "int32"), b.constant(1, "int32")
            left = elementwise(b, "sub", count, one)
            pair = elementwise(b, "add", row(b, rows, left), row(b, rows, elementwise(b, "sub", left, one)))
            new = b.reshape(elementwise(b, "tanh", matmul(b, pair, w)), (1, size))
            rows = b.emit("dynamic_update_slice", (rows, new, count, zero), "float32", (nodes, size))
            return following(b, count), rows

        start = b.constant(2, "int32"), elementwise(b, "neg", rows)
        _, rows = while_loop(b, start, lambda count, _: below(b, count, bound), step)
        return (row(b, rows, b.constant(bound - 1, "int32")),)

    return build([f"float32[{nodes},{size}]", f"float32[{size},{size}]"], body)


# limits, barriers per trip when one buffer is all that there is, and now
PROGRAMS = {
    "greedy": (greedy, PRODUCTS, 3, 2),
    "conjugate gradients": (conjugate_gradients, PRODUCTS, 2, 1),
    "newton": (newton, EAGER, 2, 1),
    "tree": (tree, PRODUCTS, 2, 1),
}


def arguments(program: UProgram, seed: int) -> list[np.ndarray]:
    """Positive definite where square, positive everywhere else."""
    random = np.random.default_rng(seed)
    found = []
    for value in program.entry.parameters:
        x = random.uniform(0.1, 1.0, size=value.type.shape).astype(np.float32)
        square = x.ndim == 2 and x.shape[0] == x.shape[1]
        found.append((x @ x.T / len(x) + np.eye(len(x), dtype=np.float32)) if square else x)
    return found


def divided(name: str, units: int) -> UProgram:
    make, limits, *_ = PROGRAMS[name]
    return place(simplify(make()), UnitMesh(units=units), limits=limits)


def per_trip(program: UProgram) -> list[float]:
    """Barriers per trip of the loop that was written, of every loop with a condition."""
    found = []
    for loop in walk(program.entry):
        if isinstance(loop, LoopUTask) and loop.condition is not None:
            twice = 1 if stopping_branch(loop) is None else 2
            found.append(sum(run_waits(s) for r in loop.regions for s in r.body) / twice)
    return found


def agrees(program: UProgram, ready: Planned, seed: int, units: int) -> None:
    values = arguments(program, seed)
    expected = run(program, values)
    for order in (None, list(range(units))[::-1], np.random.default_rng(seed)):
        found = run_mesh(*ready, values, units, order=order)
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_array_equal(x, y)


# -- barriers per trip ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("units", range(2, 7))
@pytest.mark.parametrize("name", PROGRAMS)
def test_barriers_per_trip(name, units):
    program = PROGRAMS[name][0]()
    once = divided(name, units)
    twice = double_buffer(once)
    verify(twice)
    assert per_trip(planned(once)[0]) == [PROGRAMS[name][2]]
    ready = planned(twice)
    assert ready[1].most_units >= units
    assert per_trip(ready[0]) == [PROGRAMS[name][3]]
    for seed in range(2):
        agrees(program, ready, seed, units)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_barrier_is_needed(name):
    program, ready = PROGRAMS[name][0](), planned(double_buffer(divided(name, 3)))
    needed = set()
    for seed in range(4):
        values = arguments(program, seed)
        for number in set(range(barrier_count(ready[0]))) - needed:
            runs = (simulate(*ready, values, 3, drop_barrier=number, order=o) for o in (None, [2, 1, 0]))
            needed |= {number} if any(run.races for run in runs) else set()
    assert len(needed) == barrier_count(ready[0]) > 0


@pytest.mark.parametrize("bound", range(7))
@pytest.mark.parametrize("name", ["conjugate gradients", "newton"])
def test_odd_and_even_trips(name, bound):
    make, limits, *_ = PROGRAMS[name]
    program = make(bound=bound)
    twice = double_buffer(place(simplify(program), UnitMesh(units=2), limits=limits))
    assert any(stopping_branch(s) is not None for s in walk(twice.entry) if isinstance(s, LoopUTask))
    same_results(program, twice)
    agrees(program, planned(twice), bound, 2)


# -- two trips in one ----------------------------------------------------------------------------------------
def test_long_loops_are_compiled_once(monkeypatch):
    once = divided("greedy", 2)
    assert double_buffer(once) is not once
    (loop,) = [s for s in walk(once.entry) if isinstance(s, LoopUTask) and s.condition]
    statements = sum(1 for region in loop.regions for _ in walk(region))
    monkeypatch.setattr(buffering, "PROGRAM", replace(PROGRAM, doubled_statements=statements - 1))
    assert double_buffer(once) is once
    monkeypatch.setattr(buffering, "PROGRAM", replace(PROGRAM, doubled_statements=statements))
    assert double_buffer(once) is not once


def whiles(program: UProgram) -> list[LoopUTask]:
    return [s for s in walk(program.entry) if isinstance(s, LoopUTask) and s.condition is not None]


def twice(program: UProgram, change=lambda loop, fresh: loop) -> UProgram:
    """The first statement that is a loop, two trips in one."""
    fresh, entry, body = FreshValues(program), program.entry, []
    for statement in entry.body:
        is_loop = isinstance(statement, LoopUTask) and not statement.parallel
        body += guarded(change(statement, fresh), fresh) if is_loop else (statement,)
    after = UProgram(program.name, Region(entry.parameters, tuple(body), entry.results))
    verify(after)
    return after


def swapping(bound):
    """Carries that swap, that stay, that parts write, and that parts update."""

    def body(b, x, y):
        def step(count, p, q, r, s, t):
            new = mapped(b, p, lambda v: elementwise(b, "sin", v), 2)

            def part(i, out):
                return (put(b, out, elementwise(b, "neg", block(b, out, i, 0, 2)), i, 0, 2),)

            return following(b, count), q, p, r, new, *parts(b, 2, (t,), part)

        start = (b.constant(0, "int32"), x, y, y, x, y)
        return while_loop(b, start, lambda count, *_: below(b, count, bound), step)

    return build(["float32[4]"] * 2, body)


@pytest.mark.parametrize("bound", range(6))
def test_two_trips_in_one(bound):
    program = swapping(bound)
    after = twice(program)
    same_results(program, after)
    same_results(program, simplify(after))
    for units in (2, 3):
        agrees(program, planned(after), bound, units)


def test_only_what_parts_write_elsewhere_has_two_buffers():
    before, after = swapping(3), twice(swapping(3))
    (one,), (two,) = whiles(before), whiles(after)
    added = [v.type for v in two.carried[len(one.carried) :]]
    assert [str(t) for t in added] == ["bool[]", "float32[4]"]


def test_in_place_becomes_out_of_place():
    program = swapping(3)
    after = twice(program, lambda loop, fresh: out_of_place(loop, constants_of(program), fresh))
    same_results(program, after)
    empties = [s for s in whiles(after)[0].body.body if isinstance(s, UOperator) and s.kind == "empty"]
    assert len(empties) == 2


def constants_of(program):
    return scalar_constants(program.entry)


def test_parts_of_an_array_stay_in_place():
    """Half of it is never written, so its old content has to stay."""

    def body(b, x):
        def step(count, t):
            def part(i, out):
                return (put(b, out, elementwise(b, "neg", block(b, out, i)), i),)

            return following(b, count), *parts(b, 2, (t,), part)

        return while_loop(b, (b.constant(0, "int32"), x), lambda count, _: below(b, count, 3), step)

    program = build(["float32[4]"], body)
    (loop,) = whiles(program)
    assert out_of_place(loop, constants_of(program), FreshValues(program)) is loop


def test_loops_that_save_nothing_stay():
    def body(b, x):
        def step(count, t):
            def part(i, out):
                return (put(b, out, elementwise(b, "neg", block(b, out, i, 0, 2)), i, 0, 2),)

            return following(b, count), *parts(b, 2, (t,), part)

        return while_loop(b, (b.constant(0, "int32"), x), lambda count, _: below(b, count, 3), step)

    program = build(["float32[4]"], body)
    assert double_buffer(program) is program


def test_loops_in_loops():
    """The inner loop is unrolled where it stands."""

    def body(b, x):
        def total(x):
            return b.emit("reduce", (x,), "float32", (), axes=(0,), op="max")

        def step(_, x):
            shift = b.broadcast(total(x), (2,), ())
            return _, mapped(b, x, lambda v: elementwise(b, "sub", v, shift), 2)

        def inner(x, bound):
            start = b.constant(0, "int32")
            return while_loop(
                b,
                (start, x),
                lambda count, _: below(b, count, bound),
                lambda count, x: (following(b, count), step(count, x)[1]),
            )[1]

        outer = while_loop(
            b,
            (b.constant(0, "int32"), x),
            lambda count, _: below(b, count, 3),
            lambda count, x: (following(b, count), inner(step(count, x)[1], 3)),
        )
        return outer[1:]

    program = build(["float32[4]"], body)
    after = double_buffer(program)
    verify(after)
    assert [stopping_branch(loop) is not None for loop in whiles(after)] == [False, True]
    same_results(program, after)
    for units in (2, 3):
        agrees(program, planned(after), 0, units)


# -- strips that are left over -------------------------------------------------------------------------------
def test_other_columns_do_not_conflict():
    left = Access("workspace", 0, 240, True, ("part", 0, 2), ((40, 0, 32),))
    right = Access("workspace", 0, 240, True, FIRST, ((240, 0, 120), (40, 32, 40)))
    assert not left.conflicts(right) and not right.conflicts(left)
    for other in (
        Access("workspace", 0, 240, False, ALL),
        Access("workspace", 0, 240, False, ALL, ((40, 28, 36),)),
        Access("workspace", 0, 240, False, ALL, ((80, 32, 40),)),
        Access("workspace", 40, 280, False, ALL, ((40, 32, 40),)),
    ):
        assert left.conflicts(other) and other.conflicts(left)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_strip_beside_the_parts_waits_for_nobody(axis):
    """Parts of an array, and one unit what they leave over: one barrier, before all of it is read."""
    shape = (5, 7)

    def body(b, x):
        strip = [5, 7]
        strip[axis] = 1
        count = shape[axis] // 2

        def part(i, out):
            return (put(b, out, elementwise(b, "neg", block(b, x, i, axis, 2)), i, axis, 2),)

        (made,) = parts(b, count, (empty(b, x),), part)
        at = [b.constant(2 * count if d == axis else 0, "int64") for d in range(2)]
        starts = tuple(2 * count if d == axis else 0 for d in range(2))
        rest = b.emit("slice", (x,), "float32", strip, starts=starts, strides=(1, 1))
        made = b.emit("dynamic_update_slice", (made, elementwise(b, "exp", rest), *at), "float32", shape)
        return b.emit("reduce", (made,), "float32", (), axes=(0, 1), op="sum"), made

    program = build(["float32[5,7]"], body)
    ready = planned(program)
    assert barrier_count(ready[0]) == 1
    agrees(program, ready, 0, 2)
    assert simulate(*ready, arguments(program, 0), 2, drop_barrier=0).races


# -- whose memory --------------------------------------------------------------------------------------------
def spaces(ready: Planned) -> set[str]:
    """Where the arrays lie that loops with a condition carry."""
    program, plan = ready
    found = {v for loop in whiles(program) for v in loop.carried if not v.type.is_scalar}
    return {plan.slots[plan.layouts[v].root].space for v in found}


def test_results_of_loops_are_copied_once():
    name = "conjugate gradients"
    ready = planned(double_buffer(divided(name, 2)))
    assert spaces(ready) == {"own"}
    copied = [s for s in ready[0].entry.body if isinstance(s, UOperator) and s.kind == "copy"]
    assert [s.output for s in copied if s.output in ready[0].entry.results] == list(ready[0].entry.results)


def test_donated_operands_still_become_results():
    program = conjugate_gradients()
    program = UProgram(program.name, program.entry, donated=(1,))
    final, plan = planned(place(simplify(program), UnitMesh(units=2), limits=PRODUCTS))
    assert not any(
        s.kind == "copy" and s.output in final.entry.results for s in operators_in(final.entry) if s.outputs
    )
    agrees(program, (final, plan), 0, 2)


def test_arrays_updated_by_rows_are_each_units_own(monkeypatch):
    monkeypatch.setattr(sharing, "PROGRAM", replace(PROGRAM, replicated_bytes=64))
    once = divided("tree", 2)
    assert spaces(planned(once)) == {"own"}
    monkeypatch.setattr(sharing, "PROGRAM", replace(PROGRAM, replicated_bytes=64, updated_bytes=64))
    assert spaces(planned(once)) == {"workspace"}


def test_arrays_rewritten_in_a_loop_are_shared(monkeypatch):
    monkeypatch.setattr(sharing, "PROGRAM", replace(PROGRAM, replicated_bytes=64))

    def body(b, x, w):
        def step(count, rows):
            zero = b.constant(0, "int32")
            new = mapped(b, row(b, rows, count), lambda v: elementwise(b, "tanh", v), 2)
            rows = b.emit("reverse", (rows,), "float32", (9, 12), dimensions=(1,))
            rows = elementwise(b, "neg", rows)
            new = b.reshape(new, (1, 12))
            rows = b.emit("dynamic_update_slice", (rows, new, count, zero), "float32", (9, 12))
            return following(b, count), rows

        start = b.constant(0, "int32"), elementwise(b, "neg", x)
        _, rows = while_loop(b, start, lambda count, _: below(b, count, 3), step)
        return (row(b, rows, b.constant(1, "int32")),)

    program = build(["float32[9,12]", "float32[2]"], body)
    ready = planned(program)
    assert "own" not in spaces(ready)
    agrees(program, ready, 0, 2)
