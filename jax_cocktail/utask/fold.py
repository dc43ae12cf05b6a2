"""Elementwise operators of scalar integers and bools: computed in Python's integers, then wrapped."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.sizes import is_general, size_in, sized
from jax_cocktail.utask.types import FLOATS, ITEM_SIZE, SIGNED

_LINEAR = frozenset({"add", "sub", "mul", "neg", "convert"})  # of sizes they make sizes


def fold(operator: UOperator, operands: Sequence[bytes]) -> bytes | None:
    """The scalar that an elementwise operator gives for scalars, as bytes; None if a float is among them."""
    values = (*operator.inputs, operator.output)
    compute = _COMPUTE.get(operator.kind)
    if compute is None or any(value.type.shape or value.type.dtype in FLOATS for value in values):
        return None
    pairs = zip(operands, operator.inputs, strict=True)
    numbers = [number_of(data, x.type.dtype) for data, x in pairs]
    if any(map(is_general, numbers)) and operator.kind not in _LINEAR:
        return None
    made = compute(operator, *numbers)
    number = made & ((1 << _width(operator)) - 1)
    return sized(number.to_bytes(ITEM_SIZE[operator.output.type.dtype], "little"), made)


def number_of(data: bytes, dtype: str) -> int:
    """The integer in the bytes of a constant."""
    size = size_in(data)
    return int.from_bytes(data, "little", signed=dtype in SIGNED) if size is None else size


def _width(operator: UOperator) -> int:
    """The bits of the result."""
    dtype = operator.output.type.dtype
    return 1 if dtype == "bool" else 8 * ITEM_SIZE[dtype]


def _bits(operator: UOperator, x: int) -> int:
    """An operand of the result's type, read as an unsigned integer."""
    return x & ((1 << _width(operator)) - 1)


def _divide(x: int, y: int) -> int:
    if y == 0:
        return -1
    quotient = abs(x) // abs(y)
    return quotient if (x < 0) == (y < 0) else -quotient


def _remainder(x: int, y: int) -> int:
    return x - _divide(x, y) * y if y else x


def _convert(operator: UOperator, x: int) -> int:
    return int(x != 0) if operator.output.type.dtype == "bool" else x


def _shift_left(operator: UOperator, x: int, y: int) -> int:
    amount = _bits(operator, y)
    return x << amount if amount < _width(operator) else 0


def _shift_right_arithmetic(operator: UOperator, x: int, y: int) -> int:
    bits, sign = _bits(operator, x), 1 << (_width(operator) - 1)
    signed = (bits ^ sign) - sign
    return signed >> min(_bits(operator, y), _width(operator))


def _threefry2x32(operator: UOperator, key0: int, key1: int, x0: int, x1: int) -> int:
    """The 20-round block cipher Threefry-2x32 (Salmon et al., SC'11)."""
    mask = (1 << 32) - 1
    keys = (key0, key1, key0 ^ key1 ^ 0x1BD11BDA)
    rotations = ((13, 15, 26, 6), (17, 29, 16, 24))
    x0, x1 = (x0 + key0) & mask, (x1 + key1) & mask
    for group in range(5):
        for by in rotations[group % 2]:
            x0 = (x0 + x1) & mask
            x1 = ((x1 << by) & mask | (x1 >> (32 - by))) ^ x0
        x0 = (x0 + keys[(group + 1) % 3]) & mask
        x1 = (x1 + keys[(group + 2) % 3] + group + 1) & mask
    return x1 if operator.number("word") else x0


# Results may have any number of bits: `fold` takes the low ones.
_COMPUTE: dict[str, Callable[..., int]] = {
    "neg": lambda _, x: -x,
    "abs": lambda _, x: abs(x),
    "sign": lambda _, x: (x > 0) - (x < 0),
    "not": lambda _, x: ~x,
    "population_count": lambda operator, x: _bits(operator, x).bit_count(),
    "clz": lambda operator, x: _width(operator) - _bits(operator, x).bit_length(),
    "integer_pow": lambda operator, x: pow(x, operator.number("exponent"), 1 << _width(operator)),
    "convert": _convert,
    "bitcast": lambda _, x: x,
    "add": lambda _, x, y: x + y,
    "sub": lambda _, x, y: x - y,
    "mul": lambda _, x, y: x * y,
    "max": lambda _, x, y: max(x, y),
    "min": lambda _, x, y: min(x, y),
    "and": lambda _, x, y: x & y,
    "or": lambda _, x, y: x | y,
    "xor": lambda _, x, y: x ^ y,
    "eq": lambda _, x, y: x == y,
    "ne": lambda _, x, y: x != y,
    "lt": lambda _, x, y: x < y,
    "le": lambda _, x, y: x <= y,
    "gt": lambda _, x, y: x > y,
    "ge": lambda _, x, y: x >= y,
    "shift_left": _shift_left,
    "shift_right_logical": lambda operator, x, y: _bits(operator, x) >> _bits(operator, y),
    "shift_right_arithmetic": _shift_right_arithmetic,
    "div": lambda _, x, y: _divide(x, y),
    "rem": lambda _, x, y: _remainder(x, y),
    "select": lambda _, predicate, on_true, on_false: on_true if predicate else on_false,
    "clamp": lambda _, low, x, high: min(max(x, low), high),
    "threefry2x32": _threefry2x32,
}
