"""Independent trips of counted loops go to the units, and programs that ask how many units there are."""

from __future__ import annotations

import numpy as np
import pytest

from jax_cocktail.analysis.trips import loop_with_unknown_trips, side_by_side
from jax_cocktail.analysis.verifier import verify
from jax_cocktail.placement.limits import Limits
from jax_cocktail.placement.mesh import UnitMesh
from jax_cocktail.placement.place import place
from jax_cocktail.schedule.simplify.hoist import hoist
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.unit_count import asks_units, fix_unit_count, needs_measurement
from jax_cocktail.utask.ir import LoopUTask, is_parallel, walk
from tests.null.programs import arguments, branch, build, counted, elementwise, while_loop
from tests.oracle.interpreter.run import run

LANES = 6
TWO = UnitMesh(units=2)
NEVER = Limits(flops=1e9, bytes=1e9)  # nothing else is worth dividing


def lanes(body, lanes=LANES, carries=False):
    """A loop over lanes: `body` makes a scalar of the element that the trip reads."""

    def make(b, xs):
        whole = b.emit("empty", (), "float32", (lanes,))

        def step(i, *state):
            x = b.reshape(b.emit("dynamic_slice", (xs, i), "float32", (1,)), ())
            y = body(b, x)
            if carries:
                y = elementwise(b, "add", y, state[1])
            written = b.emit(
                "dynamic_update_slice", (state[0], b.reshape(y, (1,)), i), "float32", state[0].type.shape
            )
            return (written, y) if carries else (written,)

        initial = (whole, b.full(0.0, "float32", ())) if carries else (whole,)
        return counted(b, lanes, initial, step)

    return build([f"float32[{lanes}]"], make)


def halved(b, x):
    """Halves until it is small: how often, only the run tells."""
    (y,) = while_loop(
        b,
        (x,),
        lambda y: b.emit("gt", (y, b.full(0.25, "float32", ())), "bool", ()),
        lambda y: (elementwise(b, "mul", y, b.full(0.5, "float32", ())),),
    )
    return y


def by_stack(b, x):
    """The same with what it sees in an array, which every lane fills anew."""
    stack = b.emit("empty", (), "float32", (4,))
    first = b.emit(
        "dynamic_update_slice",
        (stack, b.constant(np.ones(1), "float32"), b.constant(0, "int64")),
        "float32",
        (4,),
    )

    def more(y, seen):
        row = b.reshape(y, (1,))
        seen = b.emit("dynamic_update_slice", (seen, row, b.constant(1, "int64")), "float32", (4,))
        return elementwise(b, "mul", y, b.full(0.5, "float32", ())), seen

    y, seen = while_loop(
        b, (x, first), lambda y, _: b.emit("gt", (y, b.full(0.25, "float32", ())), "bool", ()), more
    )
    last = b.emit("dynamic_slice", (seen, b.constant(0, "int64")), "float32", (1,))
    return elementwise(b, "add", y, b.reshape(last, ()))


def outer(program):
    return next(s for s in program.entry.body if isinstance(s, LoopUTask))


def parallel(program):
    return [s for s in walk(program.entry) if is_parallel(s)]


def same(after, program):
    verify(after)
    given = arguments(program)
    for x, y in zip(run(after, given), run(program, given), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)


@pytest.mark.parametrize("body", [halved, by_stack])
def test_trips_with_a_while_loop_go_to_units(body):
    program = lanes(body)
    notes = []
    after = place(program, TWO, notes, NEVER)
    same(after, program)
    assert [loop.trip_count for loop in parallel(after)] == [LANES]
    assert f"{LANES} trips side by side, which never wait for each other" in notes


def test_trips_that_hand_on_stay():
    program = lanes(halved, carries=True)
    assert side_by_side(outer(program), {}) is None
    assert place(program, TWO, limits=NEVER) is program


def test_fewer_trips_than_units_are_not_forced():
    loop = outer(lanes(halved))
    assert loop_with_unknown_trips(loop, LANES) is not None
    assert loop_with_unknown_trips(loop, LANES + 1) is None


def test_light_trips_of_known_length_stay():
    program = lanes(lambda b, x: elementwise(b, "tanh", x))
    assert side_by_side(outer(program), {}) is not None and loop_with_unknown_trips(outer(program), 2) is None
    assert place(program, TWO, limits=NEVER) is program
    assert parallel(place(program, TWO, limits=Limits(flops=20, light=4)))


def test_arrays_to_be_filled_stay_in_the_loop():
    """Outside, every trip would copy what the last one left."""
    program = simplify(lanes(by_stack))
    after = hoist(program)
    kinds = [getattr(s, "kind", "") for s in outer(after).body.body]
    assert "empty" in kinds and "dynamic_update_slice" in kinds
    same(after, program)


# -- how many units ------------------------------------------------------------------------------------------
def two_ways(b, xs):
    """Adds one, or ten where there are several units."""
    units = b.emit("units", (), "int32", ())
    several = b.emit("gt", (units, b.constant(1, "int32")), "bool", ())
    selector = b.emit("convert", (several,), "int32", ())
    one, ten = b.full(1.0, "float32", (4,)), b.full(10.0, "float32", (4,))
    ways = [lambda y=y: (elementwise(b, "add", xs, y),) for y in (one, ten)]
    return branch(b, selector, *ways)


@pytest.mark.parametrize("units, added", [(1, 1.0), (2, 10.0), (132, 10.0)])
def test_known_units(units, added):
    program = build(["float32[4]"], two_ways)
    after = simplify(fix_unit_count(program, units))
    verify(after)
    assert asks_units(program) and not asks_units(after)
    assert len(list(walk(after.entry))) <= 3  # one way is left
    (x,) = arguments(program)
    np.testing.assert_allclose(run(after, [x])[0], x + added)
    np.testing.assert_allclose(run(program, [x])[0], x + 1.0)


def test_trips_of_a_parallel_loop_have_one_unit():
    def body(b, x):
        units = b.emit("units", (), "int32", ())
        return elementwise(b, "add", halved(b, x), b.convert(units, "float32"))

    program = lanes(body)
    (x,) = arguments(program)
    few, many = fix_unit_count(program, 2), fix_unit_count(program, LANES + 1)
    np.testing.assert_allclose(run(few, [x])[0], run(program, [x])[0])
    np.testing.assert_allclose(run(many, [x])[0], run(program, [x])[0] + LANES)


def pairs(body, outside):
    """A loop of which every trip fills two places, from twice its index on. `outside`: where that two is."""

    def make(b, xs):
        two = b.constant(2, "int64") if outside else None

        def step(i, whole):
            at = b.emit("mul", (i, two or b.constant(2, "int64")), "int64", ())
            x = b.reshape(b.emit("dynamic_slice", (xs, i), "float32", (1,)), ())
            made = b.broadcast(body(b, x), (2,), ())
            return (b.emit("dynamic_update_slice", (whole, made, at), "float32", (2 * LANES,)),)

        return counted(b, LANES, (b.emit("empty", (), "float32", (2 * LANES,)),), step)

    return build([f"float32[{LANES}]"], make)


@pytest.mark.parametrize("outside", [False, True])
def test_who_asks_knows_the_constants_that_placement_knows(outside):
    """Such a loop goes to units by trips; what is in it runs on one."""

    def body(b, x):
        units = b.emit("units", (), "int32", ())
        return elementwise(b, "add", halved(b, x), b.convert(units, "float32"))

    program = pairs(body, outside)
    (x,) = arguments(program)
    known = fix_unit_count(program, 2)
    np.testing.assert_allclose(run(known, [x])[0], run(program, [x])[0])
    assert len(parallel(place(known, TWO, limits=NEVER))) == 1
    assert needs_measurement(pairs(halved, outside))


def test_who_does_not_ask():
    program = lanes(halved)
    assert fix_unit_count(program, 2) is program


def test_what_no_price_tells():
    light = lanes(lambda b, x: elementwise(b, "tanh", x))
    assert needs_measurement(lanes(halved)) and needs_measurement(build(["float32[4]"], two_ways))
    assert not needs_measurement(light) and not needs_measurement(lanes(halved, carries=True))
