"""Element-wise primitives: operands and result have one shape (jax.lax, "Operators")."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jax_cocktail.errors import UnsupportedError
from jax_cocktail.primitives.equation import Equation
from jax_cocktail.primitives.rule import (
    ON_BOOL,
    bitcast,
    constant_like,
    output_type,
    rule,
    spread,
)
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.types import FLOATS, INTEGERS, ITEM_SIZE, SIGNED, Value

_UNARY = (
    "neg abs sign floor ceil population_count clz sqrt rsqrt exp exp2 expm1 log log1p tanh logistic sin cos"
    " erf cbrt tan asin acos atan sinh cosh asinh acosh atanh erfc erf_inv lgamma digamma bessel_i0e"
    " bessel_i1e not is_finite"
)
_BINARY = (
    "add add_any sub mul div rem max min and or xor atan2 nextafter shift_left shift_right_logical"
    " shift_right_arithmetic"
)
_LOG2_E = 1.4426950408889634


@rule(*_UNARY.split())
def unary(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    result = output_type(equation)
    return builder.emit(equation.primitive, inputs, result.dtype, result.shape)


@rule(*_BINARY.split())
def binary(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    kind, result = equation.primitive.removesuffix("_any"), output_type(equation)
    # `out_dtype` of mul and similar operators widens the operands before the operation
    x, y = (builder.convert(spread(builder, v, result.shape), result.dtype) for v in inputs)
    name = ON_BOOL.get(kind, kind) if result.dtype == "bool" else kind
    if result.dtype == "bool" and name not in ("and", "or", "xor"):
        raise UnsupportedError(f"{kind} of bool operands")
    return builder.binary(name, x, y)


@rule("eq", "ne", "lt", "le", "gt", "ge")
def comparison(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    kind, shape = equation.primitive, output_type(equation).shape
    if not equation.inputs[0].key_impl:
        x, y = (spread(builder, v, shape) for v in inputs)
        return builder.compare(kind, x, y)
    x, y = (builder.broadcast(v, (*shape, 2), _trailing(v, len(shape) + 1)) for v in inputs)
    words = builder.compare(kind, x, y)
    op = "and" if kind == "eq" else "or"
    return builder.emit("reduce", (words,), "bool", shape, axes=(len(shape),), op=op)


def _trailing(x: Value, rank: int) -> tuple[int, ...]:
    """The axes of a key operand in the result. A scalar key has only the word axis, which is the last one."""
    return (*range(x.type.rank - 1), rank - 1)


@rule("eq_to", "le_to", "lt_to")
def total_comparison(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    shape = output_type(equation).shape
    x, y = (_total_order(builder, spread(builder, v, shape)) for v in inputs)
    return builder.compare(equation.primitive.removesuffix("_to"), x, y)


def _total_order(builder: Builder, x: Value) -> Value:
    """Maps floats to integers in the order of IEEE 754 totalOrder; integers and bools are unchanged."""
    if x.type.dtype not in FLOATS:
        return x
    width = 8 * ITEM_SIZE[x.type.dtype]
    bits = bitcast(builder, x, f"int{width}")
    negative = builder.compare("lt", bits, constant_like(builder, bits, 0))
    flipped = builder.binary("xor", bits, constant_like(builder, bits, np.iinfo(f"int{width}").max))
    return builder.select(negative, flipped, bits)


@rule("round")
def round_(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    (x,) = inputs
    method = equation.params.get("rounding_method", 0)
    kind = "round_even" if int(getattr(method, "value", method)) == 1 else "round_away"
    return builder.emit(kind, (x,), x.type.dtype, x.type.shape)


@rule("square")
def square(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    return builder.binary("mul", inputs[0], inputs[0])


@rule("one_minus_square")
def one_minus_square(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    (x,) = inputs
    one = constant_like(builder, x, 1)
    return builder.binary("mul", builder.binary("add", one, x), builder.binary("sub", one, x))


@rule("log2")
def log2(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    (x,) = inputs
    natural = builder.emit("log", (x,), x.type.dtype, x.type.shape)
    return builder.binary("mul", natural, constant_like(builder, x, _LOG2_E))


@rule("integer_pow")
def integer_pow(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    (x,) = inputs
    exponent = int(equation.params["y"])
    if exponent < 0 and x.type.dtype in INTEGERS:
        raise UnsupportedError("a negative power of an integer")
    return builder.emit("integer_pow", (x,), x.type.dtype, x.type.shape, exponent=exponent)


@rule("pow")
def pow_(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    result = output_type(equation)
    if result.dtype not in FLOATS:
        raise UnsupportedError("pow of two integer arrays")
    x, y = (builder.convert(spread(builder, v, result.shape), result.dtype) for v in inputs)
    return builder.binary("pow", x, y)


@rule("mulhi")
def mulhi(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    result = output_type(equation)
    width = 8 * ITEM_SIZE[result.dtype]
    if width == 64:
        raise UnsupportedError("mulhi of 64-bit integers")
    wide = "int64" if result.dtype in SIGNED else "uint64"
    x, y = (builder.convert(spread(builder, v, result.shape), wide) for v in inputs)
    product = builder.binary("mul", x, y)
    shift = "shift_right_arithmetic" if result.dtype in SIGNED else "shift_right_logical"
    high = builder.binary(shift, product, constant_like(builder, product, width))
    return builder.convert(high, result.dtype)


@rule("polynomial")
def polynomial(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    """Horner's scheme, with the coefficients in order from the constant term up."""
    shape = output_type(equation).shape
    x, *coefficients = (spread(builder, v, shape) for v in inputs)
    if not coefficients:
        return constant_like(builder, x, 0)
    total = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        total = builder.binary("add", builder.binary("mul", total, x), coefficient)
    return total


@rule("clamp")
def clamp(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    result = output_type(equation)
    low, x, high = (spread(builder, v, result.shape) for v in inputs)
    return builder.emit("clamp", (low, x, high), result.dtype, result.shape)


@rule("select_n")
def select_n(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    which, *cases = inputs
    shape = output_type(equation).shape
    cases = [spread(builder, case, shape) for case in cases]
    if which.type.dtype == "bool" and len(cases) == 2:
        return builder.select(spread(builder, which, shape), cases[1], cases[0])
    return _search(builder, which, 0, cases)


def _search(builder: Builder, which: Value, offset: int, cases: Sequence[Value]) -> Value:
    """Binary search in the same order as stock XLA, so that an index out of range picks the same case."""
    if len(cases) == 1:
        return cases[0]
    middle = len(cases) // 2
    lower = builder.compare("lt", which, constant_like(builder, which, offset + middle))
    left = _search(builder, which, offset, cases[:middle])
    right = _search(builder, which, offset + middle, cases[middle:])
    return builder.select(spread(builder, lower, left.type.shape), left, right)


@rule("convert_element_type")
def convert_element_type(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    return builder.convert(inputs[0], output_type(equation).dtype)


@rule("reduce_precision")
def reduce_precision(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    (x,) = inputs
    exponent, mantissa = int(equation.params["exponent_bits"]), int(equation.params["mantissa_bits"])
    return builder.emit(
        "reduce_precision",
        (x,),
        x.type.dtype,
        x.type.shape,
        exponent_bits=exponent,
        mantissa_bits=mantissa,
    )


@rule("bitcast_convert_type")
def bitcast_convert_type(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    (x,) = inputs
    result = output_type(equation)
    if "bool" in (x.type.dtype, result.dtype) and x.type.dtype != result.dtype:
        raise UnsupportedError("bitcast of bool")
    old, new = ITEM_SIZE[x.type.dtype], ITEM_SIZE[result.dtype]
    if old == new:
        return bitcast(builder, x, result.dtype)
    return (_split_bits if old > new else _join_bits)(builder, x, result.dtype, result.shape)


def _bit_offsets(builder: Builder, dtype: str, shape: Sequence[int], step: int) -> Value:
    axis = builder.emit("iota", (), dtype, shape, dimension=len(shape) - 1)
    return builder.binary("mul", axis, constant_like(builder, axis, step))


def _split_bits(builder: Builder, x: Value, dtype: str, shape: Sequence[int]) -> Value:
    """Splits each wide element into a trailing axis of narrow ones, least significant first."""
    width = 8 * ITEM_SIZE[dtype]
    wide = spread(builder, bitcast(builder, x, f"uint{8 * ITEM_SIZE[x.type.dtype]}"), shape)
    offsets = _bit_offsets(builder, wide.type.dtype, shape, width)
    words = builder.convert(builder.binary("shift_right_logical", wide, offsets), f"uint{width}")
    return bitcast(builder, words, dtype)


def _join_bits(builder: Builder, x: Value, dtype: str, shape: Sequence[int]) -> Value:
    """The inverse of `_split_bits`."""
    narrow, unsigned = 8 * ITEM_SIZE[x.type.dtype], f"uint{8 * ITEM_SIZE[dtype]}"
    words = builder.convert(bitcast(builder, x, f"uint{narrow}"), unsigned)
    offsets = _bit_offsets(builder, unsigned, x.type.shape, narrow)
    shifted = builder.binary("shift_left", words, offsets)
    axes = (x.type.rank - 1,)
    return bitcast(builder, builder.emit("reduce", (shifted,), unsigned, shape, axes=axes, op="or"), dtype)
