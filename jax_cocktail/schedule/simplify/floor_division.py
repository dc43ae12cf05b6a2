"""Floor division of signed integers by a power of two.

    r = rem(x, 8);  select(r < 0 and r != 0, r + 8, r)                  ->      x & 7
    q = div(x, 8);  select(sign(x) != 1 and rem(x, 8) != 0, q - 1, q)   ->      x >> 3

`jax.numpy` writes `x % 8` and `x // 8` like this, since the operators of XLA truncate towards zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jax_cocktail.schedule.simplify.peephole import splat
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import Statement, UOperator, is_a
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import SIGNED, Value

Definitions = Mapping[Value, UOperator]


def floor_division(
    operator: UOperator, definitions: Definitions, fresh: FreshValues
) -> Sequence[Statement] | None:
    """Operators that define the result of `operator`, the last of a floor division; None if it is none."""
    if not is_a(operator, "select"):
        return None
    predicate, corrected, truncated = operator.inputs
    division = definitions.get(truncated)
    if not is_a(division, "div", "rem") or truncated.type.dtype not in SIGNED:
        return None
    x, divisor = division.inputs
    by = _number(divisor, definitions)
    if by is None or by <= 0 or by & (by - 1):
        return None
    step, other = ("add", by) if division.kind == "rem" else ("sub", 1)
    found = definitions.get(corrected)
    if not is_a(found, step) or found.inputs[0] != truncated:
        return None
    if _number(found.inputs[1], definitions) != other:
        return None
    tests = definitions.get(predicate)
    if not is_a(tests, "and"):
        return None
    below = _is_negative_remainder if division.kind == "rem" else _is_not_positive
    negative, uneven = tests.inputs
    if not below(negative, division, definitions) or not _is_uneven(uneven, division, definitions):
        return None
    builder = Builder(fresh, operator.source)
    bits = "and", by - 1
    kind, number = bits if division.kind == "rem" else ("shift_right_arithmetic", by.bit_length() - 1)
    builder.define(operator.outputs, kind, (x, builder.full(number, x.type.dtype, x.type.shape)))
    return builder.out


def _number(value: Value, definitions: Definitions) -> int | None:
    """The integer that a constant repeats."""
    element = splat(value, definitions)
    return None if element is None else int.from_bytes(element, "little", signed=True)


def _is_uneven(value: Value, division: UOperator, definitions: Definitions) -> bool:
    """True for `rem != 0`, of the operands of the division."""
    test = definitions.get(value)
    if not is_a(test, "ne") or _number(test.inputs[1], definitions) != 0:
        return False
    remainder = definitions.get(test.inputs[0])
    return is_a(remainder, "rem") and _same(remainder, division, definitions)


def _same(one: UOperator, other: UOperator, definitions: Definitions) -> bool:
    """True if both divide the same by the same."""
    numbers = [_number(o.inputs[1], definitions) for o in (one, other)]
    return one.inputs[0] == other.inputs[0] and numbers[0] == numbers[1]


def _is_negative_remainder(value: Value, division: UOperator, definitions: Definitions) -> bool:
    """True for `rem < 0`, of this remainder."""
    test = definitions.get(value)
    if not is_a(test, "lt") or test.inputs[0] != division.output:
        return False
    return _number(test.inputs[1], definitions) == 0


def _is_not_positive(value: Value, division: UOperator, definitions: Definitions) -> bool:
    """True for `sign(x) != 1`, of the numerator."""
    test = definitions.get(value)
    if not is_a(test, "ne") or _number(test.inputs[1], definitions) != 1:
        return False
    sign = definitions.get(test.inputs[0])
    return is_a(sign, "sign") and sign.inputs[0] == division.inputs[0]
