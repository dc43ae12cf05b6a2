"""Packs buffers into one piece of memory, so that it is as small as possible.

A buffer is its bytes and a mask of the positions at which they must be intact (see `liveness`), so sides of a
branch, loops and frames are all the same here. Two buffers may overlap if their masks are disjoint. To find
the smallest memory is NP-hard, so `pack` tries heuristics, as ATB does, until one needs no more than the
largest live set: no packing needs less.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from jax_cocktail.utask.sizes import Size, Term, form_of, is_general

ALWAYS = -1  # the mask of a buffer that overlaps no other


@dataclass(frozen=True, slots=True)
class Item:
    """A buffer of `size` bytes that is live at the positions of a mask."""

    size: int
    live: int


Offsets = Sequence[int]  # of the items, in their order
Place = tuple[int, int]  # begin and end
Key = Callable[[Item], int]  # items with smaller values are placed earlier
Gap = Callable[[int, Iterable[Place]], int]  # (size, places that are taken) -> where to begin
Strategy = Callable[[Sequence[Item]], Offsets]

_CLOSE = 101, 100  # this ratio to the lower bound is close enough: to look further takes longer than it gains
_REPAIRS = 16  # most rounds of `repair` for each order,
_REPAIRED = 4096  # and most items that these place


@dataclass(frozen=True, slots=True)
class Packing:
    """The places of items. `peak`: bytes that they take; `bound`: those of the largest live set; `strategy`:
    the name of the one that found it."""

    offsets: Offsets
    peak: int
    bound: int
    strategy: str


def pack(items: Sequence[Item], enough: int = 0) -> Packing:
    """The smallest packing that a strategy finds; of equal ones that of the first in `STRATEGIES`. The first
    one that needs no more than `enough` bytes, or hardly more than the lower bound, is taken at once."""
    if any(is_general(item.size) for item in items):
        return _pack_by_form(items)
    bound = lower_bound(items)
    best: Packing | None = None
    for name, strategy in STRATEGIES.items():
        offsets = strategy(items)
        peak = peak_of(items, offsets)
        if best is None or peak < best.peak:
            best = Packing(offsets, peak, bound, name)
        if best.peak <= enough or best.peak * _CLOSE[1] <= bound * _CLOSE[0]:
            break
    assert best is not None
    return best


def _pack_by_form(items: Sequence[Item]) -> Packing:
    """Packs items whose sizes differ from call to call. Those that always are in proportion share memory;
    each such group is behind the last one."""
    groups: dict[tuple[Term, ...], list[int]] = {}
    for number, item in enumerate(items):
        groups.setdefault(form_of(item.size)[0], []).append(number)
    offsets, end, bound, found = [0] * len(items), 0, 0, ""
    for terms, numbers in sorted(groups.items(), key=lambda group: bool(group[0])):
        unit = Size(terms) if terms else 1
        packing = pack([Item(form_of(items[n].size)[1], items[n].live) for n in numbers])
        for number, offset in zip(numbers, packing.offsets, strict=True):
            offsets[number] = end + unit * offset
        end, bound, found = end + unit * packing.peak, bound + unit * packing.bound, packing.strategy
    return Packing(offsets, end, bound, found)


def peak_of(items: Sequence[Item], offsets: Offsets) -> int:
    """The bytes that items at these offsets take."""
    return max((begin + item.size for item, begin in zip(items, offsets, strict=True)), default=0)


def lower_bound(items: Sequence[Item]) -> int:
    """The bytes of the largest live set."""
    change: dict[int, int] = defaultdict(int)
    always = sum(item.size for item in items if item.live == ALWAYS)
    for item in items:
        for begin, end in () if item.live == ALWAYS else _runs(item.live):
            change[begin] = change[begin] + item.size
            change[end] = change[end] - item.size
    live = most = 0
    for position in sorted(change):
        live = live + change[position]
        most = max(most, live)
    return always + most


def _runs(mask: int) -> Iterator[Place]:
    """The runs of set bits of a mask, each as its first position and the one after its last."""
    done = 0
    while mask:
        zeros = (mask & -mask).bit_length() - 1
        mask >>= zeros
        ones = (~mask & (mask + 1)).bit_length() - 1
        mask >>= ones
        yield done + zeros, done + zeros + ones
        done += zeros + ones


# ---- strategies --------------------------------------------------------------------------------------------


def bump(items: Sequence[Item]) -> Offsets:
    """One item behind the other: no memory is used again."""
    offsets, end = [], 0
    for item in items:
        offsets.append(end)
        end = end + item.size
    return offsets


def fit(items: Sequence[Item], order: Iterable[int], gap: Gap) -> Offsets:
    """Places one item after the other, each in a gap among those placed before that are live with it."""
    live: dict[Place, int] = {}  # place -> positions at which an item lies there
    offsets = [0] * len(items)
    for number in order:
        item = items[number]
        begin = gap(item.size, (place for place, mask in live.items() if mask & item.live))
        place = begin, begin + item.size
        live[place] = live.get(place, 0) | item.live
        offsets[number] = begin
    return offsets


def sorted_fit(items: Sequence[Item], key: Key, gap: Gap) -> Offsets:
    """Places items by their keys. Of items with equal keys, the one that is given first comes first."""
    return fit(items, _ordered(items, key), gap)


def _ordered(items: Sequence[Item], key: Key) -> list[int]:
    return sorted(range(len(items)), key=lambda n: (key(items[n]), n))


def repair(items: Sequence[Item]) -> Offsets:
    """First fit again and again: an item that ends above the lower bound comes first the next time."""
    bound, best = lower_bound(items), bump(items)
    for key in _KEYS.values():
        order = _ordered(items, key)
        for _ in range(min(_REPAIRS, _REPAIRED // max(len(items), 1))):
            offsets = fit(items, order, first_gap)
            best = min(best, offsets, key=lambda found: peak_of(items, found))
            above = [n for n in order if offsets[n] + items[n].size > bound]
            if not above:
                return offsets
            order.remove(above[0])
            order.insert(0, above[0])
    return best


def merge_and_extend(items: Sequence[Item]) -> Offsets:
    """Packs as an allocator does at run time: position after position, an item takes the first block of free
    memory that is large enough, and gives it back behind its last position. Free neighbours are one block;
    without a block that is large enough, the memory is extended, from the free block at its end on."""
    offsets = [0] * len(items)
    taken: list[tuple[int, int, int]] = []  # begin, end, last position
    for number in _ordered(items, _first):
        item = items[number]
        taken = [each for each in taken if each[2] >= _first(item)]
        begin = first_gap(item.size, ((low, high) for low, high, _ in taken))
        last = sys.maxsize if item.live == ALWAYS else item.live.bit_length() - 1
        taken.append((begin, begin + item.size, last))
        offsets[number] = begin
    return offsets


def first_gap(size: int, taken: Iterable[Place]) -> int:
    """The first offset at which `size` bytes overlap none of the places."""
    begin, size = 0, int(size)  # no result depends on the size, so what it follows from is not added up
    for low, high in sorted(taken):
        if int(begin) + size <= low:
            break
        begin = max(begin, high)
    return begin


def smallest_gap(size: int, taken: Iterable[Place]) -> int:
    """The begin of the smallest gap among the places that has `size` bytes; their end if none has."""
    begin, size, found = 0, int(size), list[tuple[int, int]]()
    for low, high in sorted(taken):
        if int(begin) + size <= low:
            found.append((int(low) - int(begin), begin))
        begin = max(begin, high)
    return min(found)[1] if found else begin


def _largest(item: Item) -> int:
    return -item.size


def _longest(item: Item) -> int:
    return 0 if item.live == ALWAYS else -item.live.bit_count()


def _first(item: Item) -> int:
    """The first position at which it is live."""
    return -1 if item.live == ALWAYS else (item.live & -item.live).bit_length() - 1


_KEYS: Mapping[str, Key] = {"largest": _largest, "longest": _longest, "earliest": _first}

_GAPS: Mapping[str, Gap] = {"first fit": first_gap, "best fit": smallest_gap}

# By name, in the order of preference.
STRATEGIES: Mapping[str, Strategy] = {
    **{
        f"{how}, {first} first": partial(sorted_fit, key=key, gap=gap)
        for how, gap in _GAPS.items()
        for first, key in _KEYS.items()
    },
    "merge and extend": merge_and_extend,
    "repair": repair,
    "bump": bump,
}
