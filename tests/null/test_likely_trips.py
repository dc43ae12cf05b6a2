"""How long while loops may be, as far as they show it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.codegen.machines import HOST, machine_of
from jax_cocktail.compiler import emit
from jax_cocktail.cost.price import our_price, stock_price
from jax_cocktail.cost.work import runs, sure_runs
from jax_cocktail.device.nvidia import H100
from jax_cocktail.device.tuning import MODEL, LoopTuning
from jax_cocktail.schedule.loops.distribution.distribute import distribute
from jax_cocktail.schedule.simplify.hoist import hoist
from jax_cocktail.schedule.simplify.likely_trips import expect_trips
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.simplify.trip_counts import count_loops, counters_of, trips_of
from jax_cocktail.utask.ir import LoopUTask, walk
from jax_cocktail.utask.printer import fingerprint, print_program
from tests.null.programs import branch, build, counted, elementwise, matmul, while_loop


def search(step=1, test="lt", start=0, bound=50, kind="and", rows=9, reads=False, nested=False):
    """A loop that stops when a number is large, or (`kind`) when a counter is."""

    def body(b, x, table, first):
        def going(count, x):
            small = b.compare("lt", x, b.constant(1e3, "float32"))
            limit = b.constant(bound, "int32") if bound is not None else first
            return b.binary(kind, small, b.compare(test, count, limit))

        def trip(count, x):
            if reads:
                after = b.binary("add", count, b.constant(rows, "int32"))
                at = b.select(b.compare("lt", count, b.constant(0, "int32")), after, count)
                x = b.binary("add", x, b.reshape(b.emit("dynamic_slice", (table, at), "float32", (1,)), ()))
            return b.binary("add", count, b.constant(step, "int32")), elementwise(b, "sin", x)

        def loop(x):
            origin = first if start is None else b.constant(start, "int32")
            return while_loop(b, (origin, x), going, trip)[1:]

        if nested:
            return counted(b, 3, (x,), lambda _, x: branch(b, first, lambda: loop(x), lambda: (x,)))
        return loop(x)

    return build(["float32[]", f"float32[{rows}]", "int32[]"], body)


def recurrence(test="lt"):
    """while test(i, n): h = tanh(xs[i] @ w + h); i += 1, over nine rows."""

    def body(b, xs, w, last):
        def trip(i, h):
            row = b.reshape(b.emit("dynamic_slice", (xs, i, b.constant(0, "int32")), "float32", (1, 4)), (4,))
            h = elementwise(b, "tanh", elementwise(b, "add", matmul(b, row, w), h))
            return b.binary("add", i, b.constant(1, "int32")), h

        start = b.constant(0, "int32"), b.full(0.0, "float32", (4,))
        return while_loop(b, start, lambda i, h: b.compare(test, i, last), trip)

    return build(["float32[9,4]", "float32[4,4]", "int32[]"], body)


def divided(program):
    """In chunks of four trips."""
    return distribute(hoist(simplify(program)), LoopTuning(flops=0, trips=2, chunk=4))


def whiles(program):
    return [s for s in walk(program.entry) if isinstance(s, LoopUTask) and s.condition is not None]


def likely(program):
    (loop,) = whiles(program)
    return loop.likely_trips


BOUNDED = [
    ({}, 50),
    ({"nested": True}, 50),
    ({"step": 7}, 8),
    ({"step": 7, "bound": 49}, 7),
    ({"step": 7, "test": "le", "bound": 49}, 8),
    ({"step": -2, "start": 11, "test": "ge", "bound": 2}, 5),
    ({"bound": 10**6}, MODEL.likely_trips),
    ({"bound": None, "reads": True}, 9),
    ({"start": None, "reads": True}, 9),
    ({"step": 2, "bound": None, "reads": True, "rows": 9}, 5),
    ({"bound": 4, "reads": True}, 4),
    ({"kind": "or", "reads": True}, 9),
]
UNBOUNDED = [
    {"bound": None},
    {"start": None},
    {"kind": "or"},
    {"step": -1},  # away from the bound
    {"step": 0, "reads": True, "bound": None},
]


@pytest.mark.parametrize(("facts", "trips"), BOUNDED)
@pytest.mark.parametrize("simple", [False, True])
def test_what_bounds_a_loop(facts, trips, simple):
    program = simplify(search(**facts)) if simple else search(**facts)
    found = expect_trips(program)
    verify(found)
    assert likely(found) == trips
    assert expect_trips(found) == found


@pytest.mark.parametrize("facts", UNBOUNDED)
def test_what_does_not_bound_a_loop(facts):
    program = search(**facts)
    assert expect_trips(program) is program and likely(program) is None


def test_the_text_says_so():
    program = search()
    found = expect_trips(program)
    assert "loop of about 50 trips from" in print_program(found) and "about" not in print_program(program)
    assert fingerprint(found) != fingerprint(program)


def test_a_counted_loop_has_none():
    def body(b, x):
        def below(count, x):
            return b.compare("lt", count, b.constant(7, "int32"))

        def trip(count, x):
            return b.binary("add", count, b.constant(1, "int32")), elementwise(b, "sin", x)

        return while_loop(b, (b.constant(0, "int32"), x), below, trip)

    program = expect_trips(build(["float32[]"], body))
    assert likely(program) == 7
    (loop,) = (s for s in count_loops(program).entry.body if isinstance(s, LoopUTask))
    assert (loop.trip_count, loop.likely_trips) == (7, None)
    with pytest.raises(ValueError, match="likely trips"):
        replace(loop, likely_trips=7)


def test_a_loop_by_chunks_has_as_many_trips():
    """Two chunks, and one trip."""
    assert [loop.likely_trips for loop in whiles(divided(expect_trips(recurrence())))] == [2, 1]
    assert [loop.likely_trips for loop in whiles(divided(recurrence()))] == [None, None]


def test_products_that_run_ahead_have_as_many_trips():
    """The first four trips, then at most two chunks of four."""
    assert [loop.likely_trips for loop in whiles(divided(expect_trips(recurrence("gt"))))] == [4, 2, 4]
    assert [loop.likely_trips for loop in whiles(divided(recurrence("gt")))] == [None, None, None]


def ours(program, machine):
    return our_price(emit(program, machine=machine).program, 1, machine)


def stocks(program, machine):
    return stock_price(program, 1, machine)


@pytest.mark.parametrize("price", [ours, stocks])
@pytest.mark.parametrize("machine", [HOST, machine_of(H100)], ids=["host", "gpu"])
def test_prices_assume_that_a_loop_takes_all_its_trips(price, machine):
    programs = search(bound=4), search(bound=4, kind="or"), search(bound=160)
    few, unknown, many = (price(expect_trips(p), machine).seconds for p in programs)
    assert few < unknown < many
    assert many - unknown == pytest.approx((160 - 16) / (16 - 4) * (unknown - few), rel=1e-3)


def test_a_bound_promises_no_trips():
    (loop,) = whiles(expect_trips(search(bound=200)))
    assert (runs(loop), sure_runs(loop)) == (200, MODEL.unknown_trips)


class Asked(dict):
    """Definitions of a whole program, which nobody copies for one loop."""

    def __iter__(self):
        raise AssertionError("all definitions are read")

    keys = items = values = __or__ = __iter__


def test_a_counter_is_found_without_reading_all_definitions():
    statements = [*walk(search().entry)]
    (loop,) = (s for s in statements if isinstance(s, LoopUTask))
    definitions = Asked({v: s for s in statements for v in s.outputs})
    (counter,) = counters_of(loop, definitions)
    assert trips_of(loop, counter, definitions) == 50
