"""Buffers in one piece of memory: live ones never overlap, and the smallest packing is taken."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jax_cocktail.codegen.machines import HOST
from jax_cocktail.compiler import emit
from jax_cocktail.schedule.memory import packing
from jax_cocktail.schedule.memory.packing import (
    ALWAYS,
    STRATEGIES,
    Item,
    first_gap,
    lower_bound,
    pack,
    peak_of,
    smallest_gap,
)
from jax_cocktail.utask.sizes import Size, parameter
from tests.null.programs import branch, build, elementwise

POSITIONS = 12
FIRST, *_, BUMP = STRATEGIES

sizes = st.integers(1, 9).map(lambda n: 64 * n)
masks = st.one_of(
    st.just(ALWAYS),
    st.integers(1, (1 << POSITIONS) - 1),  # with holes, as branches and loops make them
    st.tuples(st.integers(0, POSITIONS - 1), st.integers(1, POSITIONS)).map(
        lambda t: ((1 << t[1]) - 1) << t[0]
    ),
)
item_lists = st.lists(st.builds(Item, sizes, masks), max_size=10)


def overlaps(items, offsets):
    """The pairs that are live together and share memory."""
    placed = list(zip(items, offsets, strict=True))
    return [
        (a, b)
        for number, (a, low) in enumerate(placed)
        for b, high in placed[:number]
        if a.live & b.live and low < high + b.size and high < low + a.size
    ]


def live_bytes(items):
    """Position by position."""
    at = [[item.size for item in items if item.live == ALWAYS or item.live >> p & 1] for p in range(64)]
    return max((sum(found) for found in at), default=0)


@pytest.mark.parametrize("name", STRATEGIES)
@settings(max_examples=200, deadline=None)
@given(item_lists)
def test_live_items_never_overlap(name, items):
    offsets = STRATEGIES[name](items)
    assert not overlaps(items, offsets)
    assert min(offsets, default=0) >= 0
    assert live_bytes(items) <= peak_of(items, offsets) <= sum(item.size for item in items)


@settings(max_examples=300, deadline=None)
@given(item_lists)
@example([])
def test_bound_is_the_largest_live_set(items):
    assert lower_bound(items) == live_bytes(items)


@settings(max_examples=300, deadline=None)
@given(item_lists)
def test_the_smallest_packing_is_taken(items):
    found = pack(items)
    peaks = {name: peak_of(items, strategy(items)) for name, strategy in STRATEGIES.items()}
    close = found.bound * 101 // 100
    assert found.peak == peak_of(items, found.offsets) == peaks[found.strategy]
    assert found.peak <= max(close, min(peaks.values()))
    before = list(peaks)[: list(peaks).index(found.strategy)]
    assert all(peaks[name] > max(close, found.peak) for name in before), "the first of equal ones is taken"


def live(*positions):
    return sum(1 << p for p in positions)


def test_first_fit_of_the_largest_is_preferred():
    items = [Item(128, live(0, 1)), Item(128, live(2, 3)), Item(64, live(1, 2))]
    found = pack(items)
    assert (found.strategy, tuple(found.offsets), found.peak, found.bound) == (FIRST, (0, 0, 128), 192, 192)


# All but `repair` place the second one at the bottom, and then nothing has room below it.
FOUR = [Item(256, live(5, 6)), Item(192, live(0, 1, 2, 3)), Item(128, live(3, 4, 5, 6)), Item(256, live(2))]


def test_repair_places_what_is_too_high_first():
    peaks = {name: peak_of(FOUR, strategy(FOUR)) for name, strategy in STRATEGIES.items()}
    assert peaks.pop("repair") == lower_bound(FOUR) == 448
    assert peaks.pop(BUMP) == 832
    assert set(peaks.values()) == {576}
    assert pack(FOUR).strategy == "repair"


def test_looking_ends_with_enough_bytes():
    assert pack(FOUR, enough=576).strategy == FIRST
    assert pack(FOUR, enough=575).strategy == "repair"


def test_what_is_close_to_the_bound_is_taken():
    """One percent more is not worth the time to look further."""
    large = [Item(25600, ALWAYS), *FOUR]
    assert pack(large).strategy == FIRST
    assert lower_bound(large) < pack(large).peak <= 1.01 * lower_bound(large)


def test_best_fit_leaves_large_gaps():
    taken = [(0, 64), (256, 320), (384, 448)]  # gaps of 192 and 64 bytes
    assert (first_gap(64, taken), smallest_gap(64, taken)) == (64, 320)
    assert first_gap(256, taken) == smallest_gap(256, taken) == 448
    assert first_gap(64, []) == smallest_gap(64, []) == 0


def test_merge_and_extend():
    merge = STRATEGIES["merge and extend"]
    neighbours = [Item(64, live(0)), Item(64, live(0)), Item(64, live(0, 1)), Item(128, live(1))]
    assert merge(neighbours) == [0, 64, 128, 0], "two free neighbours are one block"
    end = [Item(64, live(0, 1)), Item(64, live(0)), Item(128, live(1))]
    assert merge(end) == [0, 64, 64], "a free block at the end is extended"
    hole = [Item(64, live(0, 2)), Item(64, live(1))]
    assert merge(hole) == [0, 64], "an allocator does not see that memory is free for a while"
    assert STRATEGIES[FIRST](hole) == [0, 0]


def test_repair_is_bounded(monkeypatch):
    """Rounds for long lists would take longer than they gain."""
    rounds = []
    monkeypatch.setattr(packing, "fit", partial(_counted, rounds, packing.fit))
    five = [Item(64, live(n, (n + 1) % 5)) for n in range(5)]  # an odd ring needs three
    assert peak_of(five, STRATEGIES["repair"](five)) == 192 > lower_bound(five) == 128
    assert len(rounds) == 3 * 16
    rounds.clear()
    STRATEGIES["repair"](five * 1000)
    assert not rounds


def _counted(rounds, fit, *arguments):
    rounds.append(arguments)
    return fit(*arguments)


# ---- plans -------------------------------------------------------------------------------------------------


def sides(b, flag, x):
    """Each side of a branch has three arrays of its own."""

    def side(rows):
        wide = b.emit("cumulative", (x,), x.type.dtype, x.type.shape, axis=0, op="sum", reverse=False)
        for _ in range(2):
            axis = {"axis": 0, "op": "sum", "reverse": rows > 1}
            wide = b.emit("cumulative", (wide,), wide.type.dtype, wide.type.shape, **axis)
        return (elementwise(b, "sin", wide),)

    return branch(b, flag, lambda: side(1), lambda: side(2))


def test_sides_of_a_branch_share_memory():
    plan = emit(build(["int32[]", "float32[1024]"], sides)).plan
    (used,) = plan.usage.values()
    array = 4 * 1024
    assert used.peak == used.bound == plan.workspace_bytes == 2 * array, "two at a time"
    assert used.total == 6 * array


def test_usage_counts_scratch_where_it_is_in_use():
    def body(b, x):
        (y,) = b.emit_many("sort", (x,), [("float32", (64,))], dimension=0, num_keys=1)
        axis = {"axis": 0, "op": "sum", "reverse": False}
        for _ in range(3):
            y = b.emit("cumulative", (y,), "float32", (64,), **axis)
        return (y,)

    plan = emit(build(["float32[64]"], body), HOST).plan
    used = plan.usage["workspace"]
    array, scratch = 4 * 64, 2 * 4 * 64
    assert used.peak == plan.workspace_bytes == 2 * array + scratch
    assert used.bound == array + scratch, "nothing but its result is live with a sort"
    assert used.total == 3 * array + scratch


@pytest.mark.parametrize("strategy", ["first fit, largest first", "best fit, largest first"])
def test_what_sizes_follow_from_is_added_up_once_for_each_item(strategy, monkeypatch):
    sums, count = [], 40
    added = Size.__add__
    monkeypatch.setattr(Size, "__add__", lambda a, b: sums.append(b) or added(a, b))
    items = [
        Item(64 * parameter(8 + n), 1) for n in range(count)
    ]  # all live together: as many places to pass
    offsets = STRATEGIES[strategy](items)
    assert peak_of(items, offsets) == sum(int(item.size) for item in items)
    assert len(sums) <= 3 * count
