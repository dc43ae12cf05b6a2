"""Element-wise operators in NumPy, with XLA's edge semantics (see the comments of `operators`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jax_cocktail.utask.arrays import Array, numpy_dtype
from jax_cocktail.utask.ir import UOperator
from tests.oracle.interpreter.common import Evaluate, doubled, dtype_name, is_float, rounded, widened

_MANTISSA = {"bfloat16": 7, "float16": 10, "float32": 23, "float64": 52}


def _bits(x: Array) -> Array:
    """The bit pattern as unsigned integers of the same width."""
    return np.asarray(x, order="C").view(f"u{x.dtype.itemsize}")


def _as(bits: Array, dtype: np.dtype[Any]) -> Array:
    return np.asarray(bits, order="C").view(dtype)


# -- one operand ---------------------------------------------------------------------------------------------
def _sign(x: Array) -> Array:
    if dtype_name(x).startswith("uint"):
        return (x > 0).astype(x.dtype)
    if not is_float(x):
        return np.sign(x)
    wide = widened(x)
    keep = (wide == 0) | np.isnan(wide)
    return rounded(np.where(keep, wide, np.copysign(wide.dtype.type(1), wide)), x.dtype)


def _round_away(x: Array) -> Array:
    wide = widened(x)
    whole = np.trunc(wide)
    up = np.abs(wide - whole) >= 0.5
    one = wide.dtype.type(1)
    result = np.where(up, whole + np.copysign(one, wide), whole)
    return rounded(np.copysign(result, wide), x.dtype)


def _count_leading_zeros(x: Array) -> Array:
    bits, width = _bits(x), 8 * x.dtype.itemsize
    result = np.full(x.shape, width, np.int64)
    for position in range(width):
        set_ = (bits >> bits.dtype.type(position)) & bits.dtype.type(1)
        result = np.where(set_ != 0, width - 1 - position, result)
    return result.astype(x.dtype)


def _sqrt(x: Array) -> Array:
    return rounded(np.sqrt(widened(x)), x.dtype)


def _logistic(x: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


_EXACT_UNARY: dict[str, Callable[[Array], Array]] = {
    "neg": lambda x: -x,
    "abs": lambda x: x if dtype_name(x).startswith("uint") else np.abs(x),
    "sign": _sign,
    "floor": lambda x: rounded(np.floor(widened(x)), x.dtype),
    "ceil": lambda x: rounded(np.ceil(widened(x)), x.dtype),
    "round_away": _round_away,
    "round_even": lambda x: rounded(np.rint(widened(x)), x.dtype),
    "is_finite": lambda x: np.isfinite(widened(x)),
    "not": np.invert,
    "population_count": lambda x: np.bitwise_count(_bits(x)).astype(x.dtype),
    "clz": _count_leading_zeros,
    "sqrt": _sqrt,
}
_MATH_UNARY: dict[str, Callable[[Array], Array]] = {
    "rsqrt": lambda x: np.asarray(1.0 / np.sqrt(x)),
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "logistic": _logistic,
    "sin": np.sin,
    "cos": np.cos,
    "cbrt": np.cbrt,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
}


def integer_pow(operator: UOperator, operands: Sequence[Array]) -> Array:
    """Repeated squaring in the order of JAX's lowering. A negative exponent divides at the end."""
    (x,) = operands
    wide, exponent = widened(x), operator.number("exponent")
    power, square, rest = np.ones_like(wide), wide, abs(exponent)
    while rest:
        if rest & 1:
            power = power * square
        rest >>= 1
        square = square * square if rest else square
    return rounded(1 / power if exponent < 0 else power, x.dtype)


def convert(operator: UOperator, operands: Sequence[Array]) -> Array:
    (x,) = operands
    target = operator.output.type.dtype
    if target == "bool":
        return np.asarray(x != 0)
    dtype = numpy_dtype(target)
    if not is_float(x) or dtype.kind not in "iu":
        return rounded(widened(x), dtype)
    wide, limits = np.trunc(doubled(x)), np.iinfo(dtype)
    low, high = float(limits.min), float(limits.max)
    # float(max) of 64-bit integers is max + 1: values from there upwards saturate
    inside = np.where((wide > low) & (wide < high), wide, 0.0).astype(dtype)
    result = np.where(wide >= high, limits.max, np.where(wide <= low, limits.min, inside).astype(dtype))
    return result.astype(dtype)


def bitcast(operator: UOperator, operands: Sequence[Array]) -> Array:
    return _as(operands[0], numpy_dtype(operator.output.type.dtype))


def reduce_precision(operator: UOperator, operands: Sequence[Array]) -> Array:
    """Rounds to fewer mantissa bits (ties to even), then to fewer exponent bits (overflow to infinity,
    below the normal range to zero)."""
    (x,) = operands
    bits = _bits(x)
    word = bits.dtype.type
    mantissa = _MANTISSA[dtype_name(x)]
    exponent = 8 * x.dtype.itemsize - 1 - mantissa
    new_mantissa, new_exponent = operator.number("mantissa_bits"), operator.number("exponent_bits")
    if new_mantissa < mantissa:
        drop = mantissa - new_mantissa
        odd = (bits >> word(drop)) & word(1)
        bits = bits + odd + word((1 << (drop - 1)) - 1)
        bits = bits & ~word((1 << drop) - 1)
    if new_exponent < exponent:
        top = word(((1 << exponent) - 1) << mantissa)
        bias, new_bias = (1 << (exponent - 1)) - 1, (1 << (new_exponent - 1)) - 1
        found, sign = bits & top, bits & word(1 << (mantissa + exponent))
        bits = np.where(found > word((bias + new_bias) << mantissa), sign | top, bits)
        bits = np.where(found <= word((bias - new_bias) << mantissa), sign, bits)
    return np.where(np.isnan(widened(x)), x, _as(bits, x.dtype))


# -- two operands --------------------------------------------------------------------------------------------
def _divide(x: Array, y: Array) -> Array:
    if is_float(x):
        return rounded(widened(x) / widened(y), x.dtype)
    minus_one = np.invert(x.dtype.type(0))
    signed = x.dtype.kind == "i"
    special = (y == 0) | (y == minus_one) if signed else y == 0
    safe = np.where(special, x.dtype.type(1), y)
    quotient = x // safe
    remainder = x - quotient * safe
    if signed:
        quotient = quotient + ((remainder != 0) & ((x < 0) != (safe < 0)))
        quotient = np.where(y == minus_one, -x, quotient)
    return np.where(y == 0, minus_one, quotient).astype(x.dtype)


def _remainder(x: Array, y: Array) -> Array:
    if is_float(x):
        return rounded(np.fmod(widened(x), widened(y)), x.dtype)
    product = _divide(x, y) * y
    return np.where(y == 0, x, x - product).astype(x.dtype)


def _shift(x: Array, y: Array, apply: Callable[[Array, Array], Array], filler: Array) -> Array:
    """A shift. Amounts of `width` or more, and negative ones, give `filler`."""
    amount, width = _bits(y), 8 * x.dtype.itemsize
    inside = amount < width
    safe = np.where(inside, amount, amount.dtype.type(0))
    return np.where(inside, _as(apply(x, safe.astype(x.dtype)), x.dtype), filler).astype(x.dtype)


def _shift_left(x: Array, y: Array) -> Array:
    return _shift(x, y, lambda a, n: _bits(a) << _bits(n), np.zeros_like(x))


def _shift_right_logical(x: Array, y: Array) -> Array:
    return _shift(x, y, lambda a, n: _bits(a) >> _bits(n), np.zeros_like(x))


def _shift_right_arithmetic(x: Array, y: Array) -> Array:
    signed = f"i{x.dtype.itemsize}"
    filler = _as(np.where(_bits(x).view(signed) < 0, -1, 0).astype(signed), x.dtype)
    return _shift(x, y, lambda a, n: _bits(a).view(signed) >> _bits(n).view(signed), filler)


def maximum(x: Array, y: Array) -> Array:
    """NaN wins, and 0 is above -0 (IEEE 754-2019 maximum)."""
    result = np.maximum(x, y)
    if not is_float(x):
        return result
    return np.where((x == 0) & (y == 0), x + y, result)


def minimum(x: Array, y: Array) -> Array:
    return -maximum(-x, -y) if is_float(x) else np.minimum(x, y)


def _nextafter(x: Array, y: Array) -> Array:
    """The next float, computed on bit patterns so that it works for all float widths."""
    bits, word = _bits(x), f"u{x.dtype.itemsize}"
    one = bits.dtype.type(1)
    sign = bits & bits.dtype.type(1 << (8 * x.dtype.itemsize - 1))
    a, b = doubled(x), doubled(y)
    away = (a < b) == (sign == 0)
    stepped = np.where(away, bits + one, bits - one)
    towards = np.where(b < 0, bits.dtype.type(1 << (8 * x.dtype.itemsize - 1)), bits.dtype.type(0)) | one
    result = np.where(a == 0, towards, stepped).astype(word)
    result = np.where(a == b, _bits(y), result)
    nan = np.isnan(a) | np.isnan(b)
    return np.where(nan, x.dtype.type(np.nan), _as(result, x.dtype)).astype(x.dtype)


def _wide(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Computes 16-bit floats in float32."""
    return lambda x, y: rounded(function(widened(x), widened(y)), x.dtype)


def _math(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda x, y: rounded(function(doubled(x), doubled(y)), x.dtype)


def _compare(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda x, y: function(widened(x), widened(y))


_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": _wide(np.add),
    "sub": _wide(np.subtract),
    "mul": _wide(np.multiply),
    "max": _wide(maximum),
    "min": _wide(minimum),
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "eq": _compare(np.equal),
    "ne": _compare(np.not_equal),
    "lt": _compare(np.less),
    "le": _compare(np.less_equal),
    "gt": _compare(np.greater),
    "ge": _compare(np.greater_equal),
    "shift_left": _shift_left,
    "shift_right_logical": _shift_right_logical,
    "shift_right_arithmetic": _shift_right_arithmetic,
    "div": _divide,
    "rem": _remainder,
    "pow": _math(np.power),
    "atan2": _math(np.arctan2),
    "nextafter": _nextafter,
}


# -- more operands -------------------------------------------------------------------------------------------
def select(operator: UOperator, operands: Sequence[Array]) -> Array:
    predicate, on_true, on_false = operands
    return np.where(predicate, on_true, on_false)


def clamp(operator: UOperator, operands: Sequence[Array]) -> Array:
    low, x, high = map(widened, operands)
    return rounded(minimum(maximum(x, low), high), operands[1].dtype)


def _rotate(x: Array, by: int) -> Array:
    return (x << np.uint32(by)) | (x >> np.uint32(32 - by))


def threefry2x32(operator: UOperator, operands: Sequence[Array]) -> Array:
    """The 20-round block cipher Threefry-2x32 (Salmon et al., SC'11)."""
    key0, key1, x0, x1 = operands
    keys = (key0, key1, key0 ^ key1 ^ np.uint32(0x1BD11BDA))
    rotations = ((13, 15, 26, 6), (17, 29, 16, 24))
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for group in range(5):
        for by in rotations[group % 2]:
            x0 = x0 + x1
            x1 = _rotate(x1, by) ^ x0
        x0 = x0 + keys[(group + 1) % 3]
        x1 = x1 + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x1 if operator.number("word") else x0


def unary(function: Callable[[Array], Array], exact: bool) -> Evaluate:
    """An evaluator from a function of one array. Inexact functions are computed in float64."""

    def evaluate(operator: UOperator, operands: Sequence[Array]) -> Array:
        (x,) = operands
        return function(x) if exact else rounded(function(doubled(x)), x.dtype)

    return evaluate


def _binary(function: Callable[[Array, Array], Array]) -> Evaluate:
    return lambda operator, operands: function(operands[0], operands[1])


ELEMENTWISE: dict[str, Evaluate] = {
    **{name: unary(function, True) for name, function in _EXACT_UNARY.items()},
    **{name: unary(function, False) for name, function in _MATH_UNARY.items()},
    **{name: _binary(function) for name, function in _BINARY.items()},
    "integer_pow": integer_pow,
    "convert": convert,
    "bitcast": bitcast,
    "reduce_precision": reduce_precision,
    "select": select,
    "clamp": clamp,
    "threefry2x32": threefry2x32,
}
