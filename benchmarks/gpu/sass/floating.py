"""What instructions on floats compute. Roundings other than to nearest, and flushes to zero, are left out."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from benchmarks.gpu.sass.decode import Instruction, UnknownInstruction
from benchmarks.gpu.sass.integer import Step, comparison_of, low_words, store_comparison
from benchmarks.gpu.sass.operands import Binder, Floats
from benchmarks.gpu.sass.state import LANES, Mask, Words

Doubles = npt.NDArray[np.float64]


def _bits(value: npt.NDArray[np.floating]) -> Words:
    return np.ascontiguousarray(value, np.float32).view(np.uint32)


def arithmetic(bind: Binder, i: Instruction) -> Step:
    store = bind.store(i.operands[0])
    a, b = map(bind.float, i.operands[1:3])
    if i.kind == "FADD":
        return lambda mask: store(_bits(a() + b()), mask)
    if i.kind == "FMUL":
        return lambda mask: store(_bits(a() * b()), mask)
    c = bind.float(i.operands[3])
    return lambda mask: store(_bits(a().astype(np.float64) * b() + c()), mask)


def extreme(bind: Binder, i: Instruction) -> Step:
    """The least of two or three values, or the largest."""
    store, values = bind.store(i.operands[0]), [bind.float(each) for each in i.operands[1:-1]]
    least = bind.predicate(i.operands[-1])
    low, high = (np.minimum, np.maximum) if "NAN" in i.suffixes else (np.fmin, np.fmax)

    def step(mask: Mask) -> None:
        first, *others = (value() for value in values)
        small = functools.reduce(low, others, first)
        store(_bits(np.where(least(), small, functools.reduce(high, others, first))), mask)

    return step


def double_arithmetic(bind: Binder, i: Instruction) -> Step:
    fetches = [bind.double(each) for each in i.operands[1:]]
    low, high = bind.store(i.operands[0]), bind.store(i.operands[0], 1)

    def step(mask: Mask) -> None:
        values = [each() for each in fetches]
        if i.kind == "DADD":
            found = values[0] + values[1]
        else:
            found = values[0] * values[1] + (values[2] if i.kind == "DFMA" else 0.0)
        _store_double(low, high, found, mask)

    return step


def _store_double(
    low: Callable[[Words, Mask], None], high: Callable[[Words, Mask], None], value: Doubles, mask: Mask
) -> None:
    bits = np.ascontiguousarray(value).view(np.int64)
    low(low_words(bits), mask)
    high(low_words(bits >> 32), mask)


_RELATIONS: dict[str, Callable[[npt.NDArray[np.floating], npt.NDArray[np.floating]], Mask]] = {
    "LT": np.less,
    "GT": np.greater,
    "LE": np.less_equal,
    "GE": np.greater_equal,
    "EQ": np.equal,
    "NE": lambda a, b: (a < b) | (a > b),
    "NUM": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "NAN": lambda a, b: np.isnan(a) | np.isnan(b),
}


def compare(bind: Binder, i: Instruction) -> Step:
    """FSETP, DSETP: a relation that ends in U also holds for what is not a number."""
    name, how = i.suffixes[0], comparison_of(i)
    unordered = name not in _RELATIONS
    relation = _RELATIONS[name[:-1] if unordered else name]
    fetch = bind.double if i.kind == "DSETP" else bind.float
    a, b = fetch(i.operands[2]), fetch(i.operands[3])
    outs = [bind.store_predicate(each) for each in i.operands[:2]]
    other = bind.predicate(i.operands[4])

    def step(mask: Mask) -> None:
        x, y = a(), b()
        found = relation(x, y)
        if unordered:
            found = found | np.isnan(x) | np.isnan(y)
        store_comparison(outs, how, found, other(), mask)

    return step


def select(bind: Binder, i: Instruction) -> Step:
    a, b = map(bind.float, i.operands[1:3])
    chosen, store = bind.predicate(i.operands[3]), bind.store(i.operands[0])
    return lambda mask: store(_bits(np.where(chosen(), a(), b())), mask)


_SPECIAL: dict[str, Callable[[Floats], npt.NDArray[np.floating]]] = {
    "RCP": lambda x: np.float32(1) / x,
    "RSQ": lambda x: np.float32(1) / np.sqrt(x),
    "SQRT": np.sqrt,
    "EX2": np.exp2,
    "LG2": np.log2,
    "SIN": np.sin,
    "COS": np.cos,
    "TANH": np.tanh,
}


def special(bind: Binder, i: Instruction) -> Step:
    """MUFU: exact here, approximate there. On the upper half of a float64, RCP64H and RSQ64H."""
    name, store = i.suffixes[0], bind.store(i.operands[0])
    if name.endswith("64H"):
        high = bind.integer(i.operands[1])

        def upper(mask: Mask) -> None:
            value = (high().astype(np.uint64) << np.uint64(32)).view(np.float64)
            found = 1 / value if name.startswith("RCP") else 1 / np.sqrt(value)
            store((found.view(np.uint64) >> np.uint64(32)).astype(np.uint32), mask)

        return upper
    function, fetch = _SPECIAL[name], bind.float(i.operands[1])
    return lambda mask: store(_bits(function(fetch())), mask)


def check_division(bind: Binder, i: Instruction) -> Step:
    """FCHK: whether a quotient needs the slow way, by the exponents."""
    out = bind.store_predicate(i.operands[0])
    a, b = map(bind.float, i.operands[1:3])

    def step(mask: Mask) -> None:
        above, below = (np.abs(each()) for each in (a, b))
        quotient = above.astype(np.float64) / below
        slow = ~((below > 2.0**-126) & (below < 2.0**126)) | ~((above < 2.0**126) | (above == 0))
        slow |= (above != 0) & ~((quotient > 2.0**-125) & (quotient < 2.0**126) & (above > 2.0**-102))
        out(slow, mask)

    return step


_ROUND: dict[str, Callable[[Doubles], Doubles]] = {
    "FLOOR": np.floor,
    "CEIL": np.ceil,
    "TRUNC": np.trunc,
}


def _rounding(i: Instruction) -> Callable[[Doubles], Doubles]:
    return next((_ROUND[each] for each in i.suffixes if each in _ROUND), np.rint)


def round_float(bind: Binder, i: Instruction) -> Step:
    fetch, store, way = bind.float(i.operands[1]), bind.store(i.operands[0]), _rounding(i)
    return lambda mask: store(_bits(way(fetch().astype(np.float64))), mask)


def to_float(bind: Binder, i: Instruction) -> Step:
    """I2F, I2FP: from a signed integer unless the name says U32, U16 or U8; with RP alone, unsigned."""
    fetch = bind.integer(i.operands[1])
    plain = any(each.startswith("U") for each in i.suffixes) or i.suffixes == ("RP",)
    if "F64" in i.suffixes:
        low, high = bind.store(i.operands[0]), bind.store(i.operands[0], 1)

        def step(mask: Mask) -> None:
            value = fetch() if plain else fetch().view(np.int32)
            _store_double(low, high, value.astype(np.float64), mask)

        return step
    store = bind.store(i.operands[0])
    return lambda mask: store(_bits((fetch() if plain else fetch().view(np.int32)).astype(np.float32)), mask)


def to_integer(bind: Binder, i: Instruction) -> Step:
    """F2I: what is too large becomes the largest."""
    fetch = bind.double(i.operands[1]) if "F64" in i.suffixes else bind.float(i.operands[1])
    store, way = bind.store(i.operands[0]), _rounding(i)
    plain = "U32" in i.suffixes
    least, most = (0, 2**32 - 1) if plain else (-(2**31), 2**31 - 1)

    def step(mask: Mask) -> None:
        value = np.nan_to_num(way(np.asarray(fetch(), np.float64)))
        store(low_words(np.clip(value, least, most).astype(np.int64)), mask)

    return step


def convert(bind: Binder, i: Instruction) -> Step:
    """F2F between float32 and float64."""
    if i.suffixes[:2] == ("F64", "F32"):
        single = bind.float(i.operands[1])
        low, high = bind.store(i.operands[0]), bind.store(i.operands[0], 1)
        return lambda mask: _store_double(low, high, single().astype(np.float64), mask)
    if i.suffixes[:2] == ("F32", "F64"):
        double, store = bind.double(i.operands[1]), bind.store(i.operands[0])
        return lambda mask: store(_bits(double()), mask)
    raise UnknownInstruction(i.opcode)


def half_constant(bind: Binder, i: Instruction) -> Step:
    """HFMA2 as compilers use it to load a constant: the sum of 0 * 0 and two halves."""
    zeros = [each.lstrip("-") for each in i.operands[1:3]]
    if zeros != ["RZ", "RZ"] or len(i.operands) != 5:
        raise UnknownInstruction(i.opcode)
    halves = np.array([[[float(i.operands[4]), float(i.operands[3])]]], np.float16)
    word, store = halves.view(np.uint32)[..., 0], bind.store(i.operands[0])
    return lambda mask: store(word, mask)


def matrix_product(bind: Binder, i: Instruction) -> Step:
    """HMMA: 16x8 += 16xK Kx8 for each warp, of TF32, bfloat16 or float16 operands, in float32."""
    depth = {"1688": 8, "1684": 4, "16816": 16}.get(i.suffixes[0])
    narrow = "TF32" not in i.suffixes
    if depth is None or "F32" not in i.suffixes or (depth == 16) != narrow:
        raise UnknownInstruction(i.opcode)
    lefts = [bind.row(i.operands[1], k) for k in range(2 if depth == 4 else 4)]
    rights = [bind.row(i.operands[2], k) for k in range(1 if depth == 4 else 2)]
    addends = [bind.row(i.operands[3], k) for k in range(4)]
    stores = [bind.store(i.operands[0], k) for k in range(4)]
    half = np.dtype(np.float16) if narrow and "BF16" not in i.suffixes else None

    def values(rows: list[Words]) -> Floats:
        """By warp, group of four lanes, lane, register (and half): what a lane holds."""
        stacked = np.stack(rows, -1)
        if not narrow:
            return stacked.view(np.float32).reshape(-1, 8, 4, len(rows), 1)
        if half is not None:
            return stacked.view(half).astype(np.float32).reshape(-1, 8, 4, len(rows), 2)
        pairs = stacked.view(np.uint16).astype(np.uint32) << np.uint32(16)
        return pairs.view(np.float32).reshape(-1, 8, 4, len(rows), 2)

    def step(mask: Mask) -> None:
        left, right = values(lefts), values(rights)
        # registers of the left operand: rows g, g + 8 for each half of the depth; of the right one: halves
        left = left.reshape(-1, 8, 4, len(lefts) // 2, 2, left.shape[-1])
        a = left.transpose(0, 4, 1, 3, 2, 5).reshape(-1, 16, depth)
        b = right.transpose(0, 3, 2, 4, 1).reshape(-1, depth, 8)
        product = (a.astype(np.float64) @ b).reshape(-1, 2, 8, 4, 2)  # half of the rows, g, lane, pair
        for k, (store, addend) in enumerate(zip(stores, addends, strict=True)):
            part = product[:, k // 2, :, :, k % 2].reshape(-1, LANES)
            store(_bits(part + addend.view(np.float32)), mask)

    return step


OPERATIONS: dict[str, Callable[[Binder, Instruction], Step]] = {
    **dict.fromkeys(("FADD", "FMUL", "FFMA"), arithmetic),
    **dict.fromkeys(("FMNMX", "FMNMX3"), extreme),
    **dict.fromkeys(("DADD", "DMUL", "DFMA"), double_arithmetic),
    **dict.fromkeys(("FSETP", "DSETP"), compare),
    **dict.fromkeys(("I2F", "I2FP"), to_float),
    "FSEL": select,
    "MUFU": special,
    "FCHK": check_division,
    "FRND": round_float,
    "F2I": to_integer,
    "F2F": convert,
    "HFMA2": half_constant,
    "HMMA": matrix_product,
}
