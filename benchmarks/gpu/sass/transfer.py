"""Instructions that move values between lanes and kinds of registers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.gpu.sass.decode import Instruction, UnknownInstruction
from benchmarks.gpu.sass.integer import Step
from benchmarks.gpu.sass.operands import CONSTANT, Binder, is_predicate
from benchmarks.gpu.sass.state import LANES, SHARED_BASE, Mask, State, Words

_LANE = np.arange(LANES)


def shuffle(bind: Binder, i: Instruction) -> Step:
    """SHFL: predicate of success, destination, source, lane, limits."""
    out, store = bind.store_predicate(i.operands[0]), bind.store(i.operands[1])
    source, lane, limits = map(bind.integer, i.operands[2:5])
    how = i.suffixes[0]

    def step(mask: Mask) -> None:
        by, bounds = lane().astype(np.int64), limits().astype(np.int64)
        segment, clamp = bounds >> 8 & 31, bounds & 31
        least = _LANE & segment
        most = least | (clamp & ~segment)
        if how == "IDX":
            at = least | (by & 31 & ~segment)
        else:
            at = _LANE ^ by if how == "BFLY" else _LANE - by if how == "UP" else _LANE + by
        within = at >= most if how == "UP" else at <= most
        at = np.where(within, at, _LANE)
        value = np.broadcast_to(source(), mask.shape)
        store(np.take_along_axis(value, np.broadcast_to(at, mask.shape), axis=-1), mask)
        out(np.broadcast_to(within, mask.shape), mask)

    return step


def _ballot(values: Mask) -> Words:
    bits = values.astype(np.uint64) << _LANE.astype(np.uint64)
    found: Words = bits.sum(axis=-1, keepdims=True).astype(np.uint32)
    return found


def vote(bind: Binder, i: Instruction) -> Step:
    """VOTE, VOTEU: ALL, ANY or EQ of a predicate, and the ballot."""
    stores = [bind.store(each) for each in i.operands[:-1] if not is_predicate(each)]
    outs = [bind.store_predicate(each) for each in i.operands[:-1] if is_predicate(each)]
    fetch, how = bind.predicate(i.operands[-1]), i.suffixes[0]

    def step(mask: Mask) -> None:
        value = np.broadcast_to(fetch(), mask.shape)
        yes, no = (value & mask).any(-1, keepdims=True), (~value & mask).any(-1, keepdims=True)
        found = yes if how == "ANY" else ~no if how == "ALL" else ~(yes & no)
        for store in stores:
            store(np.broadcast_to(_ballot(value & mask), mask.shape), mask)
        for out in outs:
            out(np.broadcast_to(found, mask.shape), mask)

    return step


_REDUCTIONS: dict[str, np.ufunc] = {
    "OR": np.bitwise_or,
    "AND": np.bitwise_and,
    "XOR": np.bitwise_xor,
    "SUM": np.add,
    "MIN": np.minimum,
    "MAX": np.maximum,
}
_START = {"AND": 0xFFFFFFFF, "MIN": 0xFFFFFFFF}


def reduce(bind: Binder, i: Instruction) -> Step:
    """REDUX: one value of all active lanes."""
    name = next((each for each in i.suffixes if each in _REDUCTIONS), "OR")
    is_signed = "S32" in i.suffixes and name in ("MIN", "MAX")
    function, store, fetch = _REDUCTIONS[name], bind.store(i.operands[0]), bind.integer(i.operands[1])
    flip = np.uint32(0x80000000 if is_signed else 0)  # the order of signed numbers is that of these

    def step(mask: Mask) -> None:
        value = np.where(mask, fetch() ^ flip, np.uint32(_START.get(name, 0)))
        found = function.reduce(value, axis=-1, keepdims=True) ^ flip
        store(np.broadcast_to(found.astype(np.uint32), mask.shape), mask)

    return step


def match(bind: Binder, i: Instruction) -> Step:
    """MATCH.ANY: the lanes with the same value."""
    store, fetch = bind.store(i.operands[-2]), bind.integer(i.operands[-1])

    def step(mask: Mask) -> None:
        value = np.broadcast_to(fetch(), mask.shape)
        same = (value[..., :, None] == value[..., None, :]) & mask[..., None, :]
        store(_ballot(same)[..., 0], mask)

    return step


def _special_value(state: State, name: str) -> Words:
    warps = state.warps
    lane = np.broadcast_to(_LANE.astype(np.uint32), (warps, LANES))
    numbers = {
        "SR_CTAID.X": state.grid.index,
        "SR_SWINHI": SHARED_BASE >> 32,
        "SR_CgaCtaId": state.grid.rank,
    }
    if name == "SR_TID.X":
        return lane + np.arange(warps, dtype=np.uint32)[:, None] * np.uint32(LANES)
    if name == "SR_LANEID":
        return lane
    if name.endswith("MASK"):
        row = _LANE[:, None]
        relations = {"EQ": row == _LANE, "LT": row > _LANE, "LE": row >= _LANE, "GT": row < _LANE}
        chosen = relations.get(name[3:5], row <= _LANE)
        return np.broadcast_to(_ballot(chosen)[:, 0], (warps, LANES))
    return np.full((warps, 1), numbers.get(name, 0), np.uint32)


def special_register(bind: Binder, i: Instruction) -> Step:
    """S2R, S2UR, CS2R: clocks and others that do not matter here read as 0."""
    value = _special_value(bind.state, i.operands[1])
    stores = [bind.store(i.operands[0])]
    if i.kind == "CS2R" and "32" not in i.suffixes:
        stores.append(bind.store(i.operands[0], 1))

    def step(mask: Mask) -> None:
        for store in stores:
            store(value, mask)

    return step


def to_uniform(bind: Binder, i: Instruction) -> Step:
    names = [each for each in i.operands if not is_predicate(each)]
    store, fetch = bind.store(names[0]), bind.integer(names[1])
    return lambda mask: store(np.broadcast_to(fetch(), mask.shape), mask)


def constant(bind: Binder, i: Instruction) -> Step:
    """LDC, ULDC: one or more words of a constant bank."""
    width = 4 if "128" in i.suffixes else 2 if "64" in i.suffixes else 1
    text = i.operands[1]
    found = CONSTANT.fullmatch(text)
    if found is None:
        raise UnknownInstruction(f"{i.opcode} {text}")
    fetches = []
    for k in range(width):
        place = CONSTANT.fullmatch(f"c[{found[1]}][{found[2]}+{hex(4 * k)}]")
        assert place is not None
        fetches.append(bind.constant(place))
    stores = [bind.store(i.operands[0], k) for k in range(width)]

    def step(mask: Mask) -> None:
        for store, value in zip(stores, [fetch() for fetch in fetches], strict=True):
            store(value, mask)

    return step


def map_address(bind: Binder, i: Instruction) -> Step:
    """MAPA: the address of another block's shared memory; other blocks do not exist, so this one's."""
    store, fetch = bind.store(i.operands[0]), bind.integer(i.operands[1])
    return lambda mask: store(fetch(), mask)


def query_space(bind: Binder, i: Instruction) -> Step:
    """QSPC: whether a generic address is of shared (S) or global (G) memory."""
    locate = bind.address(i.operands[-1] if "[" in i.operands[-1] else f"[{i.operands[-1]}.64]", wide=True)
    outs = [bind.store_predicate(each) for each in i.operands[:-1] if is_predicate(each)]

    def step(mask: Mask) -> None:
        is_shared = locate() >> 32 == SHARED_BASE >> 32
        for out in outs:
            out(is_shared if "S" in i.suffixes else ~is_shared, mask)

    return step


def nothing(bind: Binder, i: Instruction) -> Step:
    """What changes no value here: fences, hints, barriers between blocks that do not exist."""
    return lambda mask: None


OPERATIONS: dict[str, Callable[[Binder, Instruction], Step]] = {
    "SHFL": shuffle,
    **dict.fromkeys(("VOTE", "VOTEU"), vote),
    **dict.fromkeys(("REDUX", "CREDUX"), reduce),
    "MATCH": match,
    **dict.fromkeys(("S2R", "S2UR", "CS2R"), special_register),
    "R2UR": to_uniform,
    **dict.fromkeys(("LDC", "ULDC", "LDCU"), constant),
    "MAPA": map_address,
    "QSPC": query_space,
    **dict.fromkeys(
        (
            *(
                "NOP",
                "YIELD",
                "NANOSLEEP",
                "WARPSYNC",
                "BSYNC",
                "MEMBAR",
                "ERRBAR",
                "CGAERRBAR",
                "CCTL",
                "DEPBAR",
            ),
            *("LDGDEPBAR", "UCGABAR_ARV", "UCGABAR_WAIT", "FENCE", "BMOV", "WARPGROUP", "ACQBULK", "PREEXIT"),
            "ENDCOLLECTIVE",
        ),
        nothing,
    ),
}
