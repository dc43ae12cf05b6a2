"""What instructions on integers and predicates compute."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from benchmarks.gpu.sass.decode import Instruction
from benchmarks.gpu.sass.operands import Binder, Fetch, FetchMask, Locate, StoreMask, is_predicate
from benchmarks.gpu.sass.state import Mask, Words

Step = Callable[[Mask], None]
Longs = npt.NDArray[np.int64]
_LOW = np.int64(0xFFFFFFFF)


def shift_of(text: str) -> int:
    """A number of places, in hexadecimal or decimal."""
    return int(text, 0)


def carried(operands: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """The operands behind the destination: leading predicates, which receive carries, and the others."""
    rest = list(operands[1:])
    carries = []
    while rest and is_predicate(rest[0]):
        carries.append(rest.pop(0))
    return carries, rest


def low_words(value: Longs) -> Words:
    return (value & _LOW).astype(np.uint32)


def signed(fetch: Fetch) -> Locate:
    return lambda: fetch().view(np.int32).astype(np.int64)


def _unsigned(fetch: Fetch) -> Locate:
    return lambda: fetch().astype(np.int64)


def move(bind: Binder, i: Instruction) -> Step:
    fetch, store = bind.integer(i.operands[1]), bind.store(i.operands[0])
    return lambda mask: store(fetch(), mask)


def multiply_add(bind: Binder, i: Instruction) -> Step:
    if "WIDE" in i.suffixes or "HI" in i.suffixes:
        return _multiply_wide(bind, i)
    carries, rest = carried(i.operands)
    a, b, c = map(bind.integer, rest[:3])
    store = bind.store(i.operands[0])
    if not carries and "X" not in i.suffixes:
        return lambda mask: store(a() * b() + c(), mask)
    return _add(bind, i, [lambda: _unsigned(a)() * _unsigned(b)(), _addend(bind, rest[2])], carries, rest[3:])


def _multiply_wide(bind: Binder, i: Instruction) -> Step:
    carries, rest = carried(i.operands)
    a, b = map(bind.integer, rest[:2])
    widen = _unsigned if "U32" in i.suffixes else signed
    wide_a, wide_b = widen(a), widen(b)
    low, high = bind.pair(rest[2])
    negative = rest[2].startswith("-")
    places = () if i.operands[0] in ("RZ", "URZ") else (0, 1) if "WIDE" in i.suffixes else (1,)
    stores = [bind.store(i.operands[0], place if "WIDE" in i.suffixes else 0) for place in places]
    outs = [bind.store_predicate(each) for each in carries]

    def step(mask: Mask) -> None:
        addend = low().astype(np.int64) + (high().astype(np.int64) << 32)
        product = wide_a() * wide_b()
        total = product - addend if negative else product + addend
        for store, place in zip(stores, places, strict=True):
            store(low_words(total >> 32 * place), mask)
        for out in outs:
            out(total.view(np.uint64) < product.view(np.uint64), mask)

    return step


def add(bind: Binder, i: Instruction) -> Step:
    carries, rest = carried(i.operands)
    width = 2 if i.kind == "VIADD" else 3
    if not carries and "X" not in i.suffixes:
        terms, store = [bind.integer(each) for each in rest[:width]], bind.store(i.operands[0])
        if rest[2:3] in ([], ["RZ"], ["URZ"]):
            a, b = terms[:2]
            return lambda mask: store(a() + b(), mask)
        a, b, c = terms
        return lambda mask: store(a() + b() + c(), mask)
    return _add(bind, i, [_addend(bind, each) for each in rest[:width]], carries, rest[width:])


def _addend(bind: Binder, text: str) -> Locate:
    """As the adder sees it: a negative one is its complement, and one more."""
    fetch, modifiers = bind.bits(text)
    if modifiers == "-":
        return lambda: (~fetch().astype(np.int64) & _LOW) + 1
    if modifiers == "~":
        return lambda: ~fetch().astype(np.int64) & _LOW
    return _unsigned(fetch)


def _add(bind: Binder, i: Instruction, terms: list[Locate], carries: list[str], ins: list[str]) -> Step:
    """A sum with carries: the first one out tells of one carry, the second of two."""
    store = bind.store(i.operands[0])
    outs = [bind.store_predicate(each) for each in carries]
    carry_in = [bind.predicate(each) for each in ins if is_predicate(each)] if "X" in i.suffixes else []

    def step(mask: Mask) -> None:
        total = sum((term() for term in terms[1:]), terms[0]())
        for each in carry_in:
            total = total + each()
        store(low_words(total), mask)
        for count, out in enumerate(outs):
            out((total >> 32) > count, mask)

    return step


def scaled_add(bind: Binder, i: Instruction) -> Step:
    """LEA: a shifted to the left, plus b; with HI the high word of it."""
    carries, rest = carried(i.operands)
    high, extends = "HI" in i.suffixes, "SX32" in i.suffixes
    a, b = bind.integer(rest[0]), _addend(bind, rest[1])
    upper: Fetch | None = bind.integer(rest[2]) if high and not extends else None
    tail = rest[3:] if upper else rest[2:]
    shift = shift_of(tail[0])

    def shifted() -> Longs:
        value = signed(a)() if extends else a().astype(np.int64)
        if upper is not None:
            value = value | (upper().astype(np.int64) << 32)
        return (value >> (32 - shift) if high else value << shift) & _LOW

    return _add(bind, i, [shifted, b], carries, tail[1:])


def shift(bind: Binder, i: Instruction) -> Step:
    """SHF: the 64 bits of two words, shifted; the high or the low word of them."""
    a, count, c = map(bind.integer, i.operands[1:4])
    store = bind.store(i.operands[0])
    left, high = "L" in i.suffixes, "HI" in i.suffixes
    is_signed, wide = "S32" in i.suffixes or "S64" in i.suffixes, bool({"U64", "S64"} & set(i.suffixes))
    most, wraps = np.int64(63 if wide or not left else 32), "W" in i.suffixes
    ones = np.int64(63 if wide else 31)

    def step(mask: Mask) -> None:
        places = count().astype(np.int64)
        places = places & ones if wraps else np.minimum(places, most)
        lower, upper = a().astype(np.uint64), c().astype(np.uint64)
        if left and not (high or wide):
            value = np.where(places >= 32, np.uint64(0), lower << np.minimum(places, 31).astype(np.uint64))
        elif left:
            value = (((upper << np.uint64(32)) | lower) << places.astype(np.uint64)) >> np.uint64(32)
        elif high and is_signed:
            value = (c().view(np.int32).astype(np.int64) >> np.minimum(places, 31)).view(np.uint64)
        elif high:
            value = np.where(places >= 32, np.uint64(0), upper >> np.minimum(places, 31).astype(np.uint64))
        else:
            full = (upper << np.uint64(32)) | lower
            value = (
                (full.view(np.int64) >> places).view(np.uint64)
                if is_signed
                else full >> places.view(np.uint64)
            )
        store((value & np.uint64(0xFFFFFFFF)).astype(np.uint32), mask)

    return step


def logic(bind: Binder, i: Instruction) -> Step:
    """LOP3: any function of three words, by its truth table."""
    operands = list(i.operands)
    out = bind.store_predicate(operands.pop(0)) if is_predicate(operands[0]) else None
    store = bind.store(operands[0])
    function = _TABLES.get(int(operands[4], 16)) or _by_table(int(operands[4], 16))
    a, b, c = map(bind.integer, operands[1:4])

    def step(mask: Mask) -> None:
        value = function(a(), b(), c())
        store(value, mask)
        if out is not None:
            out(value != 0, mask)

    return step


def _by_table(table: int) -> Callable[[Words, Words, Words], Words]:
    rows = [k for k in range(8) if table >> k & 1]

    def function(a: Words, b: Words, c: Words) -> Words:
        found = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), a.dtype)
        for k in rows:
            found |= (a if k & 4 else ~a) & (b if k & 2 else ~b) & (c if k & 1 else ~c)
        return found

    return function


_TABLES: dict[int, Callable[[Words, Words, Words], Words]] = {
    0xC0: lambda a, b, c: a & b,
    0xFC: lambda a, b, c: a | b,
    0x3C: lambda a, b, c: a ^ b,
    0x96: lambda a, b, c: a ^ b ^ c,
    0xF8: lambda a, b, c: a | (b & c),
    0xFE: lambda a, b, c: a | b | c,
    0x30: lambda a, b, c: a & ~b,
}


def predicate_logic(bind: Binder, i: Instruction) -> Step:
    """PLOP3: likewise of three predicates, two results."""
    outs = [bind.store_predicate(each) for each in i.operands[:2]]
    a, b, c = map(bind.predicate, i.operands[2:5])
    tables = [_by_table(int(each, 16)) for each in i.operands[5:7]]

    def step(mask: Mask) -> None:
        values: list[Words] = [each().astype(np.uint8) * np.uint8(255) for each in (a, b, c)]
        found = [table(*values) != 0 for table in tables]
        for out, value in zip(outs, found, strict=False):
            out(value, mask)

    return step


def combine(how: str, value: Mask, other: Mask) -> Mask:
    """A comparison and a predicate."""
    return value & other if how == "AND" else value | other if how == "OR" else value ^ other


def comparison_of(i: Instruction) -> str:
    return next((each for each in i.suffixes if each in ("OR", "XOR")), "AND")


def compare(bind: Binder, i: Instruction) -> Step:
    relation, how = i.suffixes[0], comparison_of(i)
    outs = [bind.store_predicate(each) for each in i.operands[:2]]
    a, b = map(bind.integer, i.operands[2:4])
    other = bind.predicate(i.operands[4])
    equal_too: FetchMask | None = None
    if "EX" in i.suffixes:  # the high words: equal ones leave it to the comparison of the low words
        equal_too = bind.predicate(i.operands[5])
    kind = np.uint32 if "U32" in i.suffixes else np.int32

    def step(mask: Mask) -> None:
        found = _related(relation, a().view(kind), b().view(kind), equal_too)
        store_comparison(outs, how, found, other(), mask)

    return step


def store_comparison(outs: list[StoreMask], how: str, found: Mask, other: Mask, mask: Mask) -> None:
    """The comparison and its opposite, each combined with a predicate."""
    first, second = combine(how, found, other), combine(how, ~found, other)
    outs[0](first, mask)
    outs[1](second, mask)


def _related(
    relation: str, a: npt.NDArray[np.generic], b: npt.NDArray[np.generic], equal_too: FetchMask | None
) -> Mask:
    strict: Mask = {"L": a < b, "G": a > b}.get(relation[0], np.zeros(1, np.bool_))  # type: ignore[operator]
    equal: Mask = np.equal(a, b)
    if relation in ("T", "F"):
        return np.broadcast_to(np.bool_(relation == "T"), equal.shape)
    if equal_too is not None:
        both = equal & equal_too()
        return (~equal) | equal_too() if relation == "NE" else both if relation == "EQ" else strict | both
    if relation in ("EQ", "NE"):
        return equal if relation == "EQ" else ~equal
    return strict | equal if relation in ("LE", "GE") else strict


def select(bind: Binder, i: Instruction) -> Step:
    a, b = map(bind.integer, i.operands[1:3])
    chosen, store = bind.predicate(i.operands[3]), bind.store(i.operands[0])
    return lambda mask: store(np.where(chosen(), a(), b()), mask)


def extreme(bind: Binder, i: Instruction) -> Step:
    """Minimum where the predicate holds, else maximum; VIADDMNMX adds the first two operands before."""
    kind = np.uint32 if "U32" in i.suffixes else np.int32
    fetches = [bind.integer(each) for each in i.operands[1:-1] if not is_predicate(each)]
    least, store = bind.predicate(i.operands[-1]), bind.store(i.operands[0])
    adds = i.kind == "VIADDMNMX"

    def step(mask: Mask) -> None:
        values = [each() for each in fetches]
        if adds:
            values = [values[0] + values[1], values[2]]
        found, *others = (each.view(kind) for each in values)
        for other in others:
            found = np.where(least(), np.minimum(found, other), np.maximum(found, other))
        store(found.view(np.uint32), mask)

    return step


def absolute(bind: Binder, i: Instruction) -> Step:
    fetch, store = bind.integer(i.operands[1]), bind.store(i.operands[0])
    return lambda mask: store(np.abs(fetch().view(np.int32)).view(np.uint32), mask)


def population(bind: Binder, i: Instruction) -> Step:
    fetch, store = bind.integer(i.operands[1]), bind.store(i.operands[0])
    return lambda mask: store(np.bitwise_count(fetch()).astype(np.uint32), mask)


def reverse(bind: Binder, i: Instruction) -> Step:
    """BREV: the bits in the opposite order."""
    fetch, store = bind.integer(i.operands[1]), bind.store(i.operands[0])
    halves = ((16, 0x0000FFFF), (8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555))

    def step(mask: Mask) -> None:
        value = fetch()
        for places, low in halves:
            shift, kept = np.uint32(places), np.uint32(low)
            value = ((value >> shift) & kept) | ((value & kept) << shift)
        store(value, mask)

    return step


def leading(bind: Binder, i: Instruction) -> Step:
    """FLO: the highest bit that is set, from below, or with SH from above; all ones if there is none."""
    fetch, store = bind.integer(i.operands[1]), bind.store(i.operands[0])
    above = "SH" in i.suffixes

    def step(mask: Mask) -> None:
        value = fetch()
        place = np.frexp(value.astype(np.float64))[1].astype(np.int64) - 1
        found = np.where(value == 0, -1, 31 - place if above else place)
        store(low_words(found), mask)

    return step


def permute(bind: Binder, i: Instruction) -> Step:
    """PRMT: four of eight bytes."""
    a, selector, c = map(bind.integer, i.operands[1:4])
    store = bind.store(i.operands[0])

    def step(mask: Mask) -> None:
        full = a().astype(np.uint64) | (c().astype(np.uint64) << np.uint64(32))
        chosen = selector().astype(np.uint64)
        found = np.zeros_like(full)
        for k in range(4):
            nibble = (chosen >> np.uint64(4 * k)) & np.uint64(15)
            byte = (full >> ((nibble & np.uint64(7)) * np.uint64(8))) & np.uint64(255)
            sign = np.where(byte >> np.uint64(7), np.uint64(255), np.uint64(0))
            found = found | (np.where(nibble >> np.uint64(3), sign, byte) << np.uint64(8 * k))
        store(found.astype(np.uint32), mask)

    return step


def predicates_to_register(bind: Binder, i: Instruction) -> Step:
    wanted, store, place = bind.integer(i.operands[3]), bind.store(i.operands[0]), _byte(i.operands[0])
    rows = bind.state.uniform_predicates if i.operands[1] == "UPR" else bind.state.predicates
    base = bind.integer(i.operands[2])

    def step(mask: Mask) -> None:
        bits = sum(
            (rows[k].astype(np.uint32) << np.uint32(k) for k in range(7)), np.zeros_like(rows[0], np.uint32)
        )
        kept = base() & ~(wanted() << np.uint32(place))
        store(kept | ((bits & wanted()) << np.uint32(place)), mask)

    return step


def register_to_predicates(bind: Binder, i: Instruction) -> Step:
    fetch, wanted, rows = bind.integer(i.operands[1]), bind.integer(i.operands[2]), bind.state.predicates
    place = _byte(i.operands[1])

    def step(mask: Mask) -> None:
        value, bits = fetch() >> np.uint32(place), int(wanted().flat[0])
        for k in range(7):
            if bits >> k & 1:
                np.copyto(rows[k], (value >> np.uint32(k) & np.uint32(1)).astype(np.bool_), where=mask)

    return step


def _byte(text: str) -> int:
    """The first bit of the byte that an operand such as "R3.B1" names."""
    return 8 * int(text[text.index(".B") + 2]) if ".B" in text else 0


def bit_mask(bind: Binder, i: Instruction) -> Step:
    """BMSK: so many ones from a place on."""
    start, width, store = bind.integer(i.operands[1]), bind.integer(i.operands[2]), bind.store(i.operands[0])

    def step(mask: Mask) -> None:
        ones = (np.int64(1) << np.minimum(width().astype(np.int64), 32)) - 1
        store(low_words(ones << np.minimum(start().astype(np.int64), 32)), mask)

    return step


def sign_extend(bind: Binder, i: Instruction) -> Step:
    """SGXT: the lowest bits, extended by their sign, or by zeros."""
    fetch, width, store = bind.integer(i.operands[1]), bind.integer(i.operands[2]), bind.store(i.operands[0])
    plain = "U32" in i.suffixes

    def step(mask: Mask) -> None:
        bits = np.minimum(width().astype(np.int64), 32)
        value = fetch().astype(np.int64) & ((np.int64(1) << bits) - 1)
        is_negative = (value >> np.maximum(bits - 1, 0)) & 1
        store(low_words(value if plain else value - (is_negative << bits)), mask)

    return step


OPERATIONS: dict[str, Callable[[Binder, Instruction], Step]] = {
    "MOV": move,
    "IMAD": multiply_add,
    "IADD3": add,
    "VIADD": add,
    "LEA": scaled_add,
    "SHF": shift,
    "LOP3": logic,
    "PLOP3": predicate_logic,
    "ISETP": compare,
    "SEL": select,
    "IMNMX": extreme,
    "VIMNMX": extreme,
    "VIMNMX3": extreme,
    "VIADDMNMX": extreme,
    "IABS": absolute,
    "POPC": population,
    "FLO": leading,
    "BREV": reverse,
    "PRMT": permute,
    "P2R": predicates_to_register,
    "R2P": register_to_predicates,
    "BMSK": bit_mask,
    "SGXT": sign_extend,
}
OPERATIONS |= {f"U{name}": operation for name, operation in OPERATIONS.items()}
OPERATIONS["UP2UR"] = predicates_to_register
