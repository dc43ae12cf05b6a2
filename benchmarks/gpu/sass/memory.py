"""Loads, stores and copies, and what they ask of the memories: conflicts of banks, sectors of lines."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.gpu.sass.decode import Instruction, UnknownInstruction
from benchmarks.gpu.sass.operands import Binder, Locate, is_predicate
from benchmarks.gpu.sass.state import (
    LANES,
    LOCAL_WORDS,
    SHARED_BASE,
    SHARED_SPAN,
    UNWRITTEN,
    Addresses,
    Mask,
    State,
    Words,
)

BANKS = 32
SHARED = ("LDS", "STS")
SECTOR_BITS = 5  # 32 bytes
LINE_BITS = 7


@dataclass(frozen=True, slots=True)
class Access:
    """What one warp's instruction asks for. `wavefronts`: turns of the shared memory; `sectors`: of global
    memory; `remote`: shared memory by a generic address."""

    wavefronts: int = 0
    sectors: tuple[int, ...] = ()
    remote: bool = False


NOTHING = Access()
Touch = Callable[[Mask], Sequence[Access]]


def width_of(i: Instruction) -> int:
    """Words that a lane reads or writes."""
    return 4 if "128" in i.suffixes else 2 if "64" in i.suffixes else 1


def shared_accesses(address: Addresses, mask: Mask, width: int) -> list[Access]:
    """Of each warp."""
    words = address >> 2
    base = words.min() & ~(BANKS - 1)
    relative = (words - base).astype(np.int32)
    return list(_turns(relative.tobytes(), mask.tobytes(), width))


@functools.lru_cache(maxsize=1 << 16)
def _turns(words: bytes, mask: bytes, width: int) -> tuple[Access, ...]:
    """The shared memory serves 32, 16 or 8 lanes at a time; of the words in a bank, one in a turn."""
    at = np.frombuffer(words, np.int32).reshape(-1, LANES).tolist()
    on = np.frombuffer(mask, np.bool_).reshape(-1, LANES).tolist()
    found = []
    for lanes, active in zip(at, on, strict=True):
        turns = 0
        for first in range(0, LANES, LANES // width):
            banks: dict[int, set[int]] = {}
            for lane in range(first, first + LANES // width):
                for word in range(lanes[lane], lanes[lane] + width) if active[lane] else ():
                    banks.setdefault(word % BANKS, set()).add(word)
            turns += max(map(len, banks.values()), default=0)
        found.append(Access(turns))
    return tuple(found)


def global_accesses(address: Addresses, mask: Mask, width: int) -> list[Access]:
    """Of each warp. Generic addresses of shared memory count as remote."""
    remote = (address >= SHARED_BASE) & (address < SHARED_BASE + SHARED_SPAN)
    first, last = address >> SECTOR_BITS, (address + 4 * width - 1) >> SECTOR_BITS
    found = []
    for warp, active in enumerate(mask):
        if not active.any():
            found.append(NOTHING)
        elif remote[warp][active][0]:
            found.append(Access(1, remote=True))
        else:
            sectors = {*first[warp][active].tolist(), *last[warp][active].tolist()}
            found.append(Access(sectors=tuple(sorted(sectors))))
    return found


# ---- values ------------------------------------------------------------------------------------------------


def _shared_index(state: State, address: Addresses) -> Addresses:
    return (address >> 2) % len(state.shared)


def _read(state: State, address: Addresses, mask: Mask, generic: bool) -> Words:
    shared: Words = state.shared[_shared_index(state, address)]
    if not generic:
        return shared
    near: Mask = (address >= SHARED_BASE) & (address < SHARED_BASE + SHARED_SPAN)
    far = state.memory.read(address, mask & ~near)
    return np.where(near, shared, far) if near.any() else far


def _write(state: State, address: Addresses, value: Words, mask: Mask, generic: bool) -> None:
    near = mask & (address >= SHARED_BASE) & (address < SHARED_BASE + SHARED_SPAN) if generic else mask
    if near.any():
        value = np.broadcast_to(value, address.shape)
        state.shared[_shared_index(state, address)[near]] = value[near]
    if generic and (far := mask & ~near).any():
        state.memory.write(address, value, far)


def _narrow(i: Instruction) -> tuple[int, bool] | None:
    """Bits, and whether signed, of a load or store of a part of a word."""
    names = {"U8": (8, False), "S8": (8, True), "U16": (16, False), "S16": (16, True)}
    return next((names[each] for each in i.suffixes if each in names), None)


def _part(value: Words, address: Addresses, narrow: tuple[int, bool]) -> Words:
    bits, is_signed = narrow
    part = (value >> ((address & 3) * 8).astype(np.uint32)) & np.uint32((1 << bits) - 1)
    if not is_signed:
        return part
    sign = np.uint32(1 << (bits - 1))
    return (part ^ sign) - sign


def _merged(old: Words, value: Words, address: Addresses, bits: int) -> Words:
    shift = ((address & 3) * 8).astype(np.uint32)
    ones = np.uint32((1 << bits) - 1)
    merged: Words = (old & ~(ones << shift)) | ((value & ones) << shift)
    return merged


def _located(bind: Binder, i: Instruction, text: str) -> tuple[Locate, int]:
    """Where the first word of an access is, and how far from it the next one."""
    if i.kind not in ("LDL", "STL"):
        return bind.address(text, wide=i.kind not in SHARED), 4
    state, offset = bind.state, bind.address(text, wide=False)
    thread = np.arange(state.grid.threads).reshape(-1, LANES)

    def locate() -> Addresses:
        at = offset()
        return state.local + ((at >> 2) % LOCAL_WORDS * state.grid.threads + thread) * 4 + (at & 3)

    return locate, 4 * state.grid.threads


# ---- instructions ------------------------------------------------------------------------------------------


def load(bind: Binder, i: Instruction) -> Touch:
    """LDS, LDG, LD, LDL. What is polled (STRONG) has come: words of 0.5, each with the tag that was sent last
    behind it. As a counter of arrivals, 0.5 is large."""
    state, width, narrow = bind.state, width_of(i), _narrow(i)
    operands = [each for each in i.operands if not is_predicate(each)]
    generic, polled = i.kind not in SHARED, "STRONG" in i.suffixes
    locate, step = _located(bind, i, operands[1])
    stores = [] if operands[0] == "RZ" else [bind.store(operands[0], k) for k in range(width)]

    def touch(mask: Mask) -> Sequence[Access]:
        address = locate()
        for k, store in enumerate(stores):
            if polled:
                value = np.where(address + 4 * k & 4, np.uint32(state.tag), np.uint32(UNWRITTEN))
            else:
                value = _read(state, address + step * k, mask, generic)
            store(_part(value, address, narrow) if narrow else value, mask)
        if polled:
            return [NOTHING] * state.warps
        return (global_accesses if generic else shared_accesses)(address, mask, width)

    return touch


def store(bind: Binder, i: Instruction) -> Touch:
    """STS, STG, ST, STL."""
    state, width, narrow = bind.state, width_of(i), _narrow(i)
    generic, sent = i.kind not in SHARED, "STRONG" in i.suffixes and width_of(i) == 2
    locate, step = _located(bind, i, i.operands[0])
    rows = [bind.row(i.operands[1], k) for k in range(width)]

    def touch(mask: Mask) -> Sequence[Access]:
        address = locate()
        for k, row in enumerate(rows):
            at, value = address + step * k, row
            if narrow:
                value = _merged(_read(state, at, mask, generic), value, at, narrow[0])
            _write(state, at, value, mask, generic)
        if sent and mask.any():
            state.tag = int(np.broadcast_to(rows[1], mask.shape)[mask][0])
        return (global_accesses if generic else shared_accesses)(address, mask, width)

    return touch


def copy(bind: Binder, i: Instruction) -> Touch:
    """LDGSTS: global to shared memory."""
    state, width = bind.state, width_of(i)
    to, source = bind.address(i.operands[0], wide=False), bind.address(i.operands[1], wide=True)

    def touch(mask: Mask) -> Sequence[Access]:
        target, address = to(), source()
        for k in range(width):
            _write(state, target + 4 * k, _read(state, address + 4 * k, mask, True), mask, False)
        return global_accesses(address, mask, width)

    return touch


def load_matrix(bind: Binder, i: Instruction) -> Touch:
    """LDSM: matrices of 8 rows of 16 bytes; lane 8 m + r says where row r of matrix m is."""
    state, count = bind.state, next((int(each) for each in i.suffixes if each in ("2", "4")), 1)
    if "MT88" in i.suffixes or "T" in i.suffixes:
        raise UnknownInstruction(i.opcode)
    locate = bind.address(i.operands[1], wide=False)
    stores = [bind.store(i.operands[0], k) for k in range(count)]
    lane = np.arange(LANES)

    def touch(mask: Mask) -> Sequence[Access]:
        address = locate()
        for k, out in enumerate(stores):
            at = address[:, 8 * k + lane // 4] + 4 * (lane % 4)
            out(state.shared[_shared_index(state, at)], mask)
        rows = mask & (lane < 8 * count)
        return shared_accesses(address, rows, 4)

    return touch


_ATOMIC: dict[str, Callable[[int, int], int]] = {
    "ADD": lambda old, new: (old + new) & 0xFFFFFFFF,
    "MIN": min,
    "MAX": max,
    "OR": lambda old, new: old | new,
    "AND": lambda old, new: old & new,
    "XOR": lambda old, new: old ^ new,
    "EXCH": lambda old, new: new,
}


def atomic(bind: Binder, i: Instruction) -> Touch:
    """ATOM, ATOMG, ATOMS, RED: lane after lane, on unsigned words. Counters of other blocks count as met."""
    state, name = bind.state, next((each for each in i.suffixes if each in _ATOMIC), "")
    operands = [each for each in i.operands if not is_predicate(each)]
    place = next(k for k, each in enumerate(operands) if "[" in each)
    generic = i.kind != "ATOMS"
    if not name or "64" in i.suffixes or "S32" in i.suffixes:
        raise UnknownInstruction(i.opcode)
    locate: Locate = bind.address(operands[place], wide=generic)
    value = bind.integer(operands[place + 1])
    out = bind.store(operands[0]) if place else None

    def touch(mask: Mask) -> Sequence[Access]:
        address, new = locate(), np.broadcast_to(value(), mask.shape)
        found = np.zeros(mask.shape, np.uint32)
        for warp, lane in np.argwhere(mask).tolist():
            one = mask & False
            one[warp, lane] = True
            old = _read(state, address, one, generic)
            found[warp, lane] = old[warp, lane]
            result = _ATOMIC[name](int(old[warp, lane]), int(new[warp, lane]))
            _write(state, address, np.full(mask.shape, result, np.uint32), one, generic)
        if out is not None:
            out(found, mask)
        return [NOTHING] * state.warps if generic else shared_accesses(address, mask, 1)

    return touch


OPERATIONS: dict[str, Callable[[Binder, Instruction], Touch]] = {
    **dict.fromkeys(("LDS", "LDG", "LD", "LDL"), load),
    **dict.fromkeys(("STS", "STG", "ST", "STL"), store),
    **dict.fromkeys(("ATOM", "ATOMG", "ATOMS", "RED", "REDG"), atomic),
    "LDGSTS": copy,
    "LDSM": load_matrix,
}
