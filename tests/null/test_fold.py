"""Folding of integers and bools against the interpreter, which computes in NumPy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from jax_cocktail.utask.arrays import numpy_dtype
from jax_cocktail.utask.fold import fold
from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.operators import ELEMENTWISE, KINDS
from jax_cocktail.utask.types import INTEGERS, ITEM_SIZE, TensorType, Value
from tests.oracle.interpreter.run import EVALUATE

BITS = INTEGERS | {"bool"}
DTYPES = {"numbers": INTEGERS, "integers": INTEGERS, "bits": BITS, "any": BITS}  # by what a kind takes
PLAIN = sorted((k, d) for k in ELEMENTWISE for d in DTYPES.get(KINDS[k].takes, ()))


def numbers(dtype: str) -> list[int]:
    """Numbers around 0, the limits of a type and its width."""
    if dtype == "bool":
        return [0, 1]
    limits, width = np.iinfo(dtype), 8 * ITEM_SIZE[dtype]
    found = {*range(-3, 8), width - 1, width, width + 1, 85, limits.max // 2, limits.max - 1}
    found |= {int(limits.min), int(limits.min) + 1, int(limits.max)}
    return sorted(n for n in found if limits.min <= n <= limits.max)


def check(kind: str, dtypes: list[str], result: str, choices=None, **attributes) -> None:
    """Compares results for all combinations of operands."""
    values = [Value(k, TensorType(dtype)) for k, dtype in enumerate((*dtypes, result))]
    operator = UOperator(kind, tuple(values[:-1]), (values[-1],), tuple(sorted(attributes.items())))
    for case in product(*(choices or map(numbers, dtypes))):
        arrays = [np.asarray(n, numpy_dtype(dtype)) for n, dtype in zip(case, dtypes, strict=True)]
        with np.errstate(all="ignore"):
            expected = np.asarray(EVALUATE[kind](operator, arrays))
        data = fold(operator, [a.astype(a.dtype.newbyteorder("<")).tobytes() for a in arrays])
        assert data == expected.astype(expected.dtype.newbyteorder("<")).tobytes(), (kind, dtypes, case)


@pytest.mark.parametrize(("kind", "dtype"), PLAIN)
def test_kinds_of_one_type(kind, dtype):
    arity = KINDS[kind].arity
    few = [numbers(dtype)[::2]] * arity if arity == 3 else None
    check(kind, [dtype] * arity, KINDS[kind].gives or dtype, few)


@pytest.mark.parametrize("dtype", sorted(BITS))
def test_kinds_of_several_types(dtype):
    for target in sorted(BITS):
        check("convert", [dtype], target)
    for target in sorted(d for d in INTEGERS if ITEM_SIZE[d] == ITEM_SIZE[dtype] and dtype != "bool"):
        check("bitcast", [dtype], target)
    check("select", ["bool", dtype, dtype], dtype)
    if dtype != "bool":
        for exponent in (0, 1, 2, 5, 31, 1 << 40):
            check("integer_pow", [dtype], dtype, exponent=exponent)


@pytest.mark.parametrize("word", [0, 1])
def test_random_bits(word):
    numbers = [0, 1, 0x13198A2E, 0xFFFFFFFF]
    check("threefry2x32", ["uint32"] * 4, "uint32", [numbers] * 4, word=word)


def test_floats_are_not_folded():
    x, y = (Value(k, TensorType("float32")) for k in range(2))
    assert fold(UOperator("neg", (x,), (y,)), [bytes(4)]) is None
    i = Value(2, TensorType("int32"))
    assert fold(UOperator("convert", (i,), (y,)), [bytes(4)]) is None
    assert fold(UOperator("convert", (x,), (i,)), [bytes(4)]) is None


def test_every_kind_that_takes_integers_is_folded():
    several = {"convert", "bitcast", "select", "integer_pow", "threefry2x32"}
    for kind in sorted({k for k, _ in PLAIN} | several):
        dtype = "uint32"
        values = tuple(Value(k, TensorType(dtype)) for k in range(KINDS[kind].arity))
        attributes = tuple((name, 1) for name in KINDS[kind].attributes)
        operator = UOperator(kind, values, (Value(9, TensorType(dtype)),), attributes)
        assert fold(operator, [bytes(4)] * len(values)) is not None
