"""Lanes: loops in lock-step and selects between computed sides, before and after, in the interpreter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.device.tuning import BatchTuning
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.vmap.cut import Cut, Uncuttable
from jax_cocktail.schedule.vmap.lockstep import element_loop
from jax_cocktail.schedule.vmap.recover import recover
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import BranchUTask, Region, UProgram, walk
from jax_cocktail.utask.types import Value
from tests.null.lanes import EAGER, add_one, agree, check, counting, less, lock_step, loops
from tests.null.programs import arguments, build, counted, elementwise, while_loop
from tests.oracle.interpreter.run import run


# -- loops ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("units", [1, 2])
@pytest.mark.parametrize("lanes", [5, 7, 8, 17, 33])
def test_small_lanes_take_turns_in_slots(lanes, units):
    program = counting(lanes)
    after = check(program, units=units)
    assert any(s.parallel for s in loops(after)) == (units > 1 and lanes > 8)
    assert not any(element_loop(s) and s.body.parameters[0].type.shape == (lanes,) for s in loops(after))


@pytest.mark.parametrize("units", [1, 2])
def test_large_lanes_run_one_by_one_without_selects(units):
    after = check(counting(5, 100), units=units)
    (outer,) = [s for s in loops(after) if s.trip_count == 5]
    assert outer.parallel == (units > 1)
    kinds = [getattr(s, "kind", "") for s in walk(outer.body)]
    assert "select" not in kinds and "reduce" not in kinds


@pytest.mark.parametrize("trips", [[0] * 9, [3] * 9, [0, 9, 0, 0, 1, 2, 0, 0, 30], [40] + [0] * 8])
@pytest.mark.parametrize("row", [(), (100,)])
def test_trip_counts(trips, row):
    program = counting(9, *row)
    after = check(program)
    x = np.arange(1, 1 + 9 * int(np.prod(row)), dtype=np.float32).reshape(9, *row)
    agree(program, after, [np.array(trips, np.int32), x])
    counted_to, _ = run(after, [np.array(trips, np.int32), x])
    np.testing.assert_array_equal(counted_to, trips)


def test_few_lanes_stay():
    check(counting(4), changes=False)
    check(counting(1, 100), changes=False)


def test_zero_lanes_stay():
    check(counting(0), changes=False)


def test_predicates_that_are_not_numbers_end_their_lane():
    def body(b, x):
        limit = b.full(100.0, "float32", x.type.shape)
        return lock_step(
            b, [x], lambda y: less(b, y, limit), lambda y: [add_one(b, elementwise(b, "mul", y, y))]
        )

    program = simplify(build(["float32[9]"], body))
    after = check(program)
    x = np.array([np.nan, 1, 2, np.inf, 3, np.nan, 99, 100, 5], np.float32)
    agree(program, after, [x])


def test_lanes_along_a_later_axis_and_a_shared_operand():
    def body(b, limit, x, w):
        def step(n, y):
            return [add_one(b, n), elementwise(b, "add", y, b.broadcast(w, y.type.shape, (1,)))]

        start = b.full(0, "int32", limit.type.shape)
        turned = b.emit("transpose", (x,), "float32", (9, 3), permutation=(1, 0))
        return lock_step(b, [start, turned], lambda n, y: less(b, n, limit), step)

    check(simplify(build(["int32[9]", "float32[3,9]", "float32[3]"], body)))


def test_products_with_shared_and_with_own_weights():
    def body(b, limit, x, w, own):
        names = {"lhs_contract": (1,), "lhs_batch": (), "rhs_batch": (), "rhs_contract": (0,)}

        def step(n, y):
            shared = b.emit("dot", (y, w), "float32", y.type.shape, **names)
            each = {"lhs_contract": (1,), "lhs_batch": (0,), "rhs_batch": (0,), "rhs_contract": (1,)}
            return [add_one(b, n), b.emit("dot", (shared, own), "float32", y.type.shape, **each)]

        start = b.full(0, "int32", limit.type.shape)
        return lock_step(b, [start, x], lambda n, y: less(b, n, limit), step)

    program = simplify(build(["int32[9]", "float32[9,3]", "float32[3,3]", "float32[9,3,3]"], body))
    after = recover(program, limits=EAGER)
    verify(after)
    given = arguments(program)
    for x, y in zip(run(program, given), run(after, given), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)


def test_constants_and_positions_that_differ_from_lane_to_lane():
    def body(b, limit):
        start = b.emit("iota", (), "int32", (9,), dimension=0)
        steps = b.constant(np.arange(1, 10), "int32")

        def step(n, y):
            place = b.emit("iota", (), "int32", (9,), dimension=0)
            return [elementwise(b, "add", n, steps), elementwise(b, "add", y, place)]

        return lock_step(b, [start, start], lambda n, y: less(b, n, limit), step)

    check(simplify(build(["int32[9]"], body)))


@pytest.mark.parametrize("row", [(), (100,)])
def test_loops_in_loops(row):
    def body(b, limit, x):
        def inner(n, y):
            def step(m, z):
                return [add_one(b, m), add_one(b, z)]

            zero = b.full(0, "int32", limit.type.shape)
            return lock_step(b, [zero, y], lambda m, z: less(b, m, n), step)[1]

        start = b.full(0, "int32", limit.type.shape)
        return lock_step(
            b, [start, x], lambda n, y: less(b, n, limit), lambda n, y: [add_one(b, n), inner(n, y)]
        )

    shape = ",".join(map(str, (9, *row)))
    after = check(simplify(build(["int32[9]", f"float32[{shape}]"], body)))
    assert not any((found := element_loop(s)) and found.predicate.type.size == 9 for s in loops(after))


def test_counted_loops_and_branches_inside():
    def body(b, limit, x, flag):
        def step(n, y):
            (y,) = counted(b, 3, [y], lambda i, z: [elementwise(b, "add", z, y)])
            out = b.value("float32", y.type.shape)
            with b.region() as yes:
                doubled = elementwise(b, "add", y, y)
            with b.region() as no:
                other = elementwise(b, "neg", y)
            regions = (Region((), tuple(no), (other,)), Region((), tuple(yes), (doubled,)))
            b.out.append(BranchUTask(flag, regions, (out,)))
            return [add_one(b, n), out]

        start = b.full(0, "int32", limit.type.shape)
        return lock_step(b, [start, x], lambda n, y: less(b, n, limit), step)

    check(simplify(build(["int32[9]", "float32[9]", "int32[]"], body)))
    check(simplify(build(["int32[9]", "float32[9,100]", "int32[]"], body)))


def test_inside_a_counted_loop_and_a_branch():
    def body(b, limit, x):
        def step(i, y):
            start = b.full(0, "int32", limit.type.shape)
            return lock_step(
                b, [start, y], lambda n, y: less(b, n, limit), lambda n, y: [add_one(b, n), add_one(b, y)]
            )[1:]

        return counted(b, 3, [x], step)

    check(simplify(build(["int32[9]", "float32[9]"], body)), units=2)


def test_lanes_along_two_axes():
    def body(b, limit, x):
        start = b.full(0, "int32", (3, 9))
        return lock_step(
            b, [start, x], lambda n, y: less(b, n, limit), lambda n, y: [add_one(b, n), add_one(b, y)]
        )

    for units in (1, 2):
        after = check(simplify(build(["int32[3,9]", "float32[3,9,2]"], body)), units=units)
        assert any(s.trip_count == 3 for s in loops(after))


def reversing(b: Builder, y: Value) -> Value:
    return b.emit("reverse", (y,), y.type.dtype, y.type.shape, dimensions=(0,))


def summing(b: Builder, y: Value) -> Value:
    total = b.emit("reduce", (y,), y.type.dtype, (), axes=(0,), op="max")
    return b.broadcast(total, y.type.shape, ())


@pytest.mark.parametrize("mix", [reversing, summing])
@pytest.mark.parametrize("row", [(), (100,)])
def test_lanes_that_meet_stay_in_lock_step(mix, row):
    def body(b, limit, x):
        start = b.full(0, "int32", limit.type.shape)
        return lock_step(
            b, [start, x], lambda n, y: less(b, n, limit), lambda n, y: [add_one(b, n), mix(b, y)]
        )

    if mix is summing and row:
        return
    shape = ",".join(map(str, (9, *row)))
    found = []
    program = simplify(build(["int32[9]", f"float32[{shape}]"], body))
    assert recover(program, remark=found.append, limits=EAGER) is program
    assert any(not r.fired for r in found)


def unselected(b, limit, x):
    """A carry that goes on in lanes that are done."""

    def condition(n, y):
        return b.emit("reduce", (less(b, n, limit),), "bool", (), axes=(0,), op="or")

    def body(n, y):
        return [elementwise(b, "select", less(b, n, limit), add_one(b, n), n), add_one(b, y)]

    return while_loop(b, [b.full(0, "int32", (9,)), x], condition, body)


def otherwise_selected(b, limit, x):
    """A select by another predicate than the condition's."""

    def condition(n, y):
        return b.emit("reduce", (less(b, n, limit),), "bool", (), axes=(0,), op="or")

    def body(n, y):
        flag = elementwise(b, "le", n, limit, dtype="bool")
        return [
            elementwise(b, "select", flag, new, old) for new, old in ((add_one(b, n), n), (add_one(b, y), y))
        ]

    return while_loop(b, [b.full(0, "int32", (9,)), x], condition, body)


def all_active(b, limit, x):
    """A loop that ends with its first lane."""

    def condition(n, y):
        return b.emit("reduce", (less(b, n, limit),), "bool", (), axes=(0,), op="and")

    def body(n, y):
        flag = less(b, n, limit)
        return [
            elementwise(b, "select", flag, new, old) for new, old in ((add_one(b, n), n), (add_one(b, y), y))
        ]

    return while_loop(b, [b.full(0, "int32", (9,)), x], condition, body)


@pytest.mark.parametrize("body", [unselected, otherwise_selected, all_active])
def test_loops_that_are_not_proven_stay(body):
    program = simplify(build(["int32[9]", "float32[9]"], body))
    assert not any(map(element_loop, loops(program)))
    check(program, changes=False)


def test_cutting_needs_the_same_lanes():
    def body(b, x):
        return [b.reshape(x, (2, 9))]

    program = build(["float32[18]"], body)
    (reshape,) = program.entry.body
    with pytest.raises(Uncuttable):
        Cut([reshape], [(reshape.outputs[0], 1)], 9, 1)


# -- branches ------------------------------------------------------------------------------------------------
def product(b: Builder, x: Value, w: Value) -> Value:
    names = {"lhs_contract": (1,), "lhs_batch": (), "rhs_batch": (), "rhs_contract": (0,)}
    return b.emit("dot", (x, w), "float32", x.type.shape, **names)


def choose(b: Builder, flag: Value, x: Value, y: Value) -> Value:
    return elementwise(b, "select", b.broadcast(flag, x.type.shape, (0,)), x, y)


def close(program: UProgram, units: int = 1, limits: BatchTuning = EAGER) -> UProgram:
    """As `check`, for programs with products, whose sums may be taken in another order."""
    after = recover(program, units, limits=limits)
    assert after is not program
    verify(after)
    tidy = simplify(after)
    verify(tidy)
    for seed in range(3):
        given = arguments(program, seed)
        for x, y in zip(run(program, given), run(tidy, given), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
    return tidy


@pytest.mark.parametrize("units", [1, 2])
@pytest.mark.parametrize("lanes", [2, 3, 8])
@pytest.mark.parametrize("both", [False, True])
def test_sides_are_computed_for_their_own_lanes(lanes, units, both):
    def body(b, flag, x, w, v):
        other = product(b, x, v) if both else x
        return [choose(b, flag, product(b, x, w), other), choose(b, flag, x, elementwise(b, "neg", other))]

    types = [f"bool[{lanes}]", f"float32[{lanes},4]", "float32[4,4]", "float32[4,4]"]
    program = simplify(build(types, body))
    after = close(program, units)
    assert sum(s.condition is not None for s in loops(after)) == 1 + both
    given = arguments(program)
    for flag in (np.zeros(lanes, bool), np.ones(lanes, bool)):
        for x, y in zip(run(program, [flag, *given[1:]]), run(after, [flag, *given[1:]]), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


def test_an_untaken_side_is_not_seen():
    def body(b, flag, x, w):
        return [choose(b, flag, product(b, x, w), x)]

    program = simplify(build(["bool[4]", "float32[4,4]", "float32[4,4]"], body))
    after = close(program)
    x = np.full((4, 4), np.nan, np.float32)
    x[1] = 1
    given = [np.array([False, True, False, False]), x, np.ones((4, 4), np.float32)]
    for first, second in zip(run(program, given), run(after, given), strict=True):
        np.testing.assert_array_equal(first, second)


def test_one_predicate_for_all_becomes_a_branch():
    def body(b, flag, x, w):
        wide = b.broadcast(flag, x.type.shape, ())
        return [elementwise(b, "select", wide, product(b, x, w), x)]

    after = close(simplify(build(["bool[]", "float32[3,4]", "float32[4,4]"], body)))
    assert any(isinstance(s, BranchUTask) for s in walk(after.entry))


def switched(b: Builder, which: Value, x: Value, weights: Sequence[Value]) -> Value:
    """What translation makes of a vmapped switch: the index is broadcast first."""
    wide = b.broadcast(which, x.type.shape, (0,))
    result = product(b, x, weights[-1])
    for number in range(len(weights) - 2, -1, -1):
        below = less(b, wide, b.full(number + 1, "int32", x.type.shape))
        result = elementwise(b, "select", below, product(b, x, weights[number]), result)
    return result


@pytest.mark.parametrize("units", [1, 2])
def test_switches(units):
    def body(b, which, x, *weights):
        return [switched(b, which, x, weights)]

    after = close(simplify(build(["int32[8]", "float32[8,4]", *["float32[4,4]"] * 4], body)), units)
    assert len([s for s in loops(after) if s.condition is not None]) == 4


def test_weights_that_vmap_has_spread_are_shared_again():
    def body(b, which, x, w):
        spread = b.broadcast(w, (8, 4, 4), (1, 2))
        names = {"lhs_contract": (1,), "lhs_batch": (0,), "rhs_batch": (0,), "rhs_contract": (1,)}
        return [switched(b, which, b.emit("dot", (x, spread), "float32", (8, 4), **names), [w, w])]

    after = close(simplify(build(["int32[8]", "float32[8,4]", "float32[4,4]"], body)))
    dots = [s for s in walk(after.entry) if getattr(s, "kind", "") == "dot"]
    assert dots and all(not s["lhs_batch"] for s in dots)


def test_lanes_of_a_branch_along_two_axes():
    def body(b, flag, x, w):
        wide = b.broadcast(flag, x.type.shape, (0, 1))
        names = {"lhs_contract": (2,), "lhs_batch": (), "rhs_batch": (), "rhs_contract": (0,)}
        return [elementwise(b, "select", wide, b.emit("dot", (x, w), "float32", x.type.shape, **names), x)]

    after = close(simplify(build(["bool[3,8]", "float32[3,8,4]", "float32[4,4]"], body)))
    assert any(s.trip_count == 3 for s in loops(after))


def test_values_that_others_read_are_computed_for_all():
    def body(b, flag, x, w):
        y = product(b, x, w)
        return [choose(b, flag, y, x), y]

    check(simplify(build(["bool[8]", "float32[8,4]", "float32[4,4]"], body)), changes=False)


def test_a_mask_inside_a_loop_stays():
    def body(b, flag, x, w):
        return counted(b, 3, [x], lambda i, c: [choose(b, flag, product(b, c, w), c)])

    check(simplify(build(["bool[8]", "float32[8,4]", "float32[4,4]"], body)), changes=False)


def test_cheap_selects_stay():
    def body(b, flag, x):
        return [choose(b, flag, elementwise(b, "add", x, x), x)]

    check(simplify(build(["bool[8]", "float32[8,4]"], body)), changes=False, limits=BatchTuning())


def test_a_loop_on_one_side():
    def body(b, flag, limit, x):
        start = b.full(0, "int32", limit.type.shape)
        looped = lock_step(
            b, [start, x], lambda n, y: less(b, n, limit), lambda n, y: [add_one(b, n), add_one(b, y)]
        )[1]
        return [choose(b, flag, looped, x)]

    program = simplify(build(["bool[9]", "int32[9]", "float32[9,100]"], body))
    after = check(program)
    assert not any(map(element_loop, loops(after)))


def test_a_side_that_mixes_lanes_stays():
    def body(b, flag, x):
        total = b.emit("reduce", (x,), "float32", (4,), axes=(0,), op="max")
        return [choose(b, flag, elementwise(b, "exp", b.broadcast(total, (8, 4), (1,))), reversing(b, x))]

    program = simplify(build(["bool[8]", "float32[8,4]"], body))
    verify(recover(program, limits=EAGER))
    agree(program, recover(program, limits=EAGER), arguments(program))
