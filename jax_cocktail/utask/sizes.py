"""Sizes: integers that remember how they follow from launch parameters.

A launch parameter is a number that a call gives to its program, such as the length of a sequence (ATB calls
this tiling data). A size is an int, so every pass decides on its value. Only the emitter asks for the rest:
it writes `4 * size0` in the place of 200. The program for another length may then have the same text, and
needs no compiler.

A launch parameter is identified by its value, and the value of a size follows from its terms. So the terms
are right wherever the size gets to. Arithmetic that cannot keep them gives a plain int.

A *general* parameter has a value that stands for many: the program is planned for it, and a call gives
another number, from `least` on (`schedule.general`).
"""

from __future__ import annotations

import operator
import sys
import threading
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, inf, prod
from typing import Any

MOST_TERMS = 8  # of a form; a longer one is forgotten, but for general ones: memory must suffice in all calls


@dataclass(frozen=True, slots=True)
class Parameter:
    """A launch parameter. `role`: "" for a length, or the memory in which it is the place of an array; two of
    equal value but different roles are not one. `least`: the smallest number that a call may give in place of
    the value, 0 if it gives the value itself; `most`: the largest one, 0 if there is none; `follows`: for a
    place, how it follows from general ones."""

    value: int
    role: str = ""
    least: int = 0
    follows: tuple[Term, ...] = ()
    most: int = 0

    def __int__(self) -> int:
        return self.value


@dataclass(frozen=True, slots=True)
class Quotient:
    """The floor of a non-negative size by a positive number."""

    dividend: Size
    divisor: int

    def __int__(self) -> int:
        return int(self.dividend) // self.divisor


Atom = Parameter | Quotient
Term = tuple[tuple[Atom, ...], int]  # a product of atoms and its coefficient; the empty product is 1


class Size(int):
    """The sum of `terms`, of which each has another product. Sums, differences, products, quotients and
    remainders of sizes and ints are sizes, or ints if they depend on no launch parameter or are too long."""

    terms: tuple[Term, ...]

    def __new__(cls, terms: tuple[Term, ...]) -> Size:
        return _size(terms, sum(n * prod(map(int, product)) for product, n in terms))

    @property
    def parameters(self) -> frozenset[Parameter]:
        """The launch parameters that it follows from."""
        atoms = [atom for product, _ in self.terms for atom in product]
        inner = (atom.dividend.parameters for atom in atoms if isinstance(atom, Quotient))
        return frozenset(atom for atom in atoms if isinstance(atom, Parameter)).union(*inner)

    @property
    def is_general(self) -> bool:
        """True if it follows from a general parameter."""
        return any(each.least for each in self.parameters)

    @property
    def least(self) -> float:
        """A lower bound of its value in all calls; minus infinity if none is known."""
        slopes, constant = _below(self, 1)
        least = constant + sum(_below_at(each, slope) for each, slope in slopes.items())
        if all(n > 0 for product, n in self.terms if product):
            least = max(least, sum(n * prod(map(_least, product)) for product, n in self.terms))
        return least

    def at(self, given: Mapping[Parameter, int]) -> int:
        """Its value in a call that gives other numbers for some parameters."""
        return sum(n * prod(_at(atom, given) for atom in product) for product, n in self.terms)

    def __getnewargs__(self) -> tuple[tuple[Term, ...]]:  # type: ignore[override]
        return (self.terms,)

    def __add__(self, other: int) -> int:
        return _sum((*self.terms, *_terms(other))) if isinstance(other, int) else NotImplemented

    def __sub__(self, other: int) -> int:
        return self + other * -1 if isinstance(other, int) else NotImplemented

    def __rsub__(self, other: int) -> int:
        return self * -1 + other if isinstance(other, int) else NotImplemented

    def __mul__(self, other: int) -> int:
        if isinstance(other, Size):
            return _sum(((*a, *b), m * n) for a, m in self.terms for b, n in other.terms)
        if not isinstance(other, int):
            return NotImplemented
        if other == 0 or other == 1:  # passes multiply sizes by ints all the time
            return self if other else 0
        return _size(tuple((product, n * int(other)) for product, n in self.terms), int(self) * int(other))

    def __neg__(self) -> int:
        return self * -1

    def __floordiv__(self, other: int) -> int:
        if isinstance(other, Size):
            return self._over(other)
        if not isinstance(other, int) or other <= 0:
            return int.__floordiv__(self, other)
        if self < 0:  # -(-n // d) rounds up
            return (other - 1 - self) // other * -1
        even = [(product, n // other) for product, n in self.terms if n % other == 0]
        rest = _sum(term for term in self.terms if term[1] % other)
        if not isinstance(rest, Size):
            return _sum([*even, ((), rest // other)])
        return int(self) // other if rest < 0 else _sum([*even, ((Quotient(rest, other),), 1)])

    def __mod__(self, other: int) -> int:
        if not isinstance(other, int) or isinstance(other, Size) or other <= 0:
            return int.__mod__(self, other)
        return self - self // other * other

    def __divmod__(self, other: int) -> tuple[int, int]:
        return self // other, self % other

    __radd__, __rmul__ = __add__, __mul__

    def __bool__(self) -> bool:
        return _noted(self, 0, "!=", int(self) != 0)

    def __eq__(self, other: object) -> bool:
        return _noted(self, other, "==", int.__eq__(self, other))

    def __ne__(self, other: object) -> bool:
        return _noted(self, other, "!=", int.__ne__(self, other))

    __hash__ = int.__hash__

    def __lt__(self, other: int) -> bool:
        return _noted(self, other, "<", int.__lt__(self, other))

    def __le__(self, other: int) -> bool:
        return _noted(self, other, "<=", int.__le__(self, other))

    def __gt__(self, other: int) -> bool:
        return _noted(self, other, ">", int.__gt__(self, other))

    def __ge__(self, other: int) -> bool:
        return _noted(self, other, ">=", int.__ge__(self, other))

    def _over(self, other: Size) -> int:
        """The quotient by another size, which is one term: exact if all terms have its atoms."""
        value, found = int(self) // int(other), list[Term]()
        (atoms, scale), *more = other.terms
        for product, n in self.terms:
            left = list(product)
            for atom in atoms:
                if more or n % scale or atom not in left:
                    return value
                left.remove(atom)
            found.append((tuple(left), n // scale))
        return _sum(found)


# ---- decisions ---------------------------------------------------------------------------------------------

_COMPARE = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le}
COMPARISONS = tuple(_COMPARE)  # enum Comparison of the runtime
_COMPARE |= {">": operator.gt, ">=": operator.ge}
# These compare sizes to tell what is fast, or to bring arrays into an order. Whatever they decide is right.
_ONLY_SPEED = (
    *("cost", "device", "placement", "schedule.policy", "stitch.splitting", "utask.layout"),
    *("schedule.memory.packing", "schedule.memory.plan", "schedule.memory.sharing", "schedule.products"),
)


@dataclass(frozen=True, slots=True)
class Decision:
    """A comparison of two numbers with its outcome: a program that was planned with it suits the calls in
    which it has this outcome."""

    left: int
    right: int
    how: str
    outcome: bool

    def holds(self, given: Mapping[Parameter, int]) -> bool:
        return bool(self.tested(given))

    def tested(self, given: Mapping[Parameter, Any]) -> Any:
        """True where the comparison has this outcome. `given`: ints, or arrays of them."""
        return _COMPARE[self.how](at(self.left, given), at(self.right, given)) == self.outcome


class _Deciding(threading.local):
    """Per thread: the decisions so far, by the forms of what was compared; None if nobody asks."""

    found: dict[Hashable, Decision] | None = None


_DECIDING = _Deciding()


@contextmanager
def deciding() -> Iterator[Mapping[Hashable, Decision]]:
    """Collects the comparisons of general sizes that may come out otherwise in another call, and on which
    more than speed depends."""
    before, found = _DECIDING.found, dict[Hashable, Decision]()
    _DECIDING.found = found
    try:
        yield found
    finally:
        _DECIDING.found = before


def _noted(left: Size, right: object, how: str, outcome: bool) -> bool:
    found = _DECIDING.found
    if found is None or not isinstance(right, int):
        return outcome
    where = sys._getframe(2).f_globals.get("__name__", "").partition(".")[2]
    if where.startswith(_ONLY_SPEED) or not (left.is_general or is_general(right)):
        return outcome
    if how in ("==", "!="):
        differ = outcome == (how == "!=")
        if differ and int.__gt__(left, 1):
            return outcome  # what is taken for different may be equal, and what has elements may have none
    elif (how in "<=") != outcome and int(right) <= 1 + (how in ("<", ">=")):
        return outcome  # it has more than one element: a loop over them suits fewer as well
    other = right.terms if isinstance(right, Size) else int(right)
    if left.terms == other:
        return outcome
    key = left.terms, other, how
    if key not in found:
        found[key] = Decision(left, right, how, outcome)
    return outcome


def _size(terms: tuple[Term, ...], value: int) -> Size:
    size = int.__new__(Size, value)
    size.terms = terms
    return size


def _least(atom: Atom) -> float:
    if isinstance(atom, Parameter):
        return atom.least or atom.value
    return atom.dividend.least // atom.divisor


def _below(size: Size, scale: Fraction | int) -> tuple[dict[Parameter, Fraction | int], float]:
    """A linear function that `scale` times the size is nowhere below: its slopes, and its value at zero."""
    slopes, constant = dict[Parameter, Fraction | int](), 0.0
    for product, n in size.terms:
        factor = n * scale
        if len(product) > 1:  # the product of the least of its factors
            bounds = [Size((((atom,), 1),)).least for atom in product]
            constant += float(factor) * prod(bounds) if factor > 0 else -inf
        elif not product:
            constant += float(factor)
        elif isinstance(product[0], Parameter):
            slopes[product[0]] = slopes.get(product[0], 0) + factor
        else:
            dividend, divisor = product[0].dividend, product[0].divisor
            inner, least = _below(dividend, Fraction(factor) / divisor)
            for each, slope in inner.items():
                slopes[each] = slopes.get(each, 0) + slope
            constant += least - (float(factor) * (divisor - 1) / divisor if factor > 0 else 0)
    return slopes, constant


def _below_at(parameter: Parameter, slope: Fraction | int) -> float:
    """The smallest product of a slope and a parameter."""
    if slope < 0 and parameter.least:
        return float(slope * parameter.most) if parameter.most else -inf
    return float(slope * (parameter.least or parameter.value))


def _at(atom: Atom, given: Mapping[Parameter, int]) -> int:
    if isinstance(atom, Quotient):
        return atom.dividend.at(given) // atom.divisor
    if atom.follows:
        return Size(atom.follows).at(given)
    return given.get(atom, atom.value)


def value_of(parameter: Parameter, given: Mapping[Parameter, int]) -> int:
    """The number that a call gives for a parameter. `given`: those for general ones."""
    return _at(parameter, given)


def at(number: int, given: Mapping[Parameter, int]) -> int:
    """An int, or the value of a size in a call."""
    return number.at(given) if isinstance(number, Size) else number


def magnitude(number: int, given: Mapping[Parameter, int]) -> int:
    """No less than any sum that comes up while a size is computed in a call, or is the value of an int."""
    if not isinstance(number, Size):
        return abs(int(number))
    return sum(abs(n) * prod(_at(atom, given) for atom in product) for product, n in number.terms)


def size_of(parameter: Parameter) -> Size:
    """The size that is a launch parameter."""
    return Size((((parameter,), 1),))


def parameter(value: int, role: str = "") -> Size:
    """The size that is a launch parameter of this value."""
    return size_of(Parameter(int(value), role))


def place_in(offset: int, space: str) -> Size:
    """The launch parameter that is the place of an array in a memory."""
    follows = offset.terms if isinstance(offset, Size) and offset.is_general else ()
    return size_of(Parameter(int(offset), space, 0, follows))


class SizeData(bytes):
    """The bytes of a constant that follows from a general parameter."""

    size: Size

    def __new__(cls, data: bytes, size: Size) -> SizeData:
        made = super().__new__(cls, data)
        made.size = size
        return made

    def __getnewargs__(self) -> tuple[bytes, Size]:  # type: ignore[override]
        return bytes(self), self.size


def sized(data: bytes, number: object) -> bytes:
    """The bytes of a number, which remember how it follows from general parameters."""
    return SizeData(data, number) if isinstance(number, Size) and number.is_general else data


def size_in(data: bytes) -> Size | None:
    """The size that a constant is, if it follows from general parameters."""
    return data.size if isinstance(data, SizeData) else None


def is_general(number: int) -> bool:
    """True for a size that follows from a general parameter."""
    return isinstance(number, Size) and number.is_general


def is_integer(x: object) -> bool:
    """True for an int or a size, but not for a bool."""
    return type(x) is int or type(x) is Size


def integer(number: int) -> int:
    """The number, of any integer type, as an int or a size."""
    return number if isinstance(number, Size) else int(number)


def _terms(number: int) -> tuple[Term, ...]:
    return number.terms if isinstance(number, Size) else (((), int(number)),)


def _sum(terms: Iterable[Term]) -> int:
    """The sum, with equal products merged."""
    merged = dict[Hashable, Term]()
    for product, n in terms:
        key: Hashable = product if len(product) < 2 else frozenset(Counter(product).items())
        merged[key] = product, n + (merged[key][1] if key in merged else 0)
    kept = tuple(term for term in merged.values() if term[1])
    size, depends = Size(kept), sum(bool(product) for product, _ in kept)
    return size if 0 < depends <= MOST_TERMS or size.is_general else int(size)


def least_of(number: int) -> float:
    """A lower bound in all calls."""
    return number.least if isinstance(number, Size) else number


def most_of(number: int) -> float:
    """An upper bound in all calls; infinity if none is known."""
    return -least_of(-number) if is_general(number) else number


def enough(numbers: Iterable[int]) -> int:
    """A number that none of these is above in any call: the largest one, or else their sum."""
    each = dict.fromkeys(numbers)
    most = max(each, default=0)
    return most if all(least_of(most - n) >= 0 for n in each) else sum(each)


def within(number: int, most: int) -> bool:
    """True if a number is surely neither negative nor above another one, in all calls."""
    return least_of(number) >= 0 and least_of(most - number) >= 0


def form_of(number: int) -> tuple[tuple[Term, ...], int]:
    """The terms of a number that follows from general parameters without their common factor, and this
    factor; no terms, and the number itself, for any other."""
    if not isinstance(number, Size) or not number.is_general:
        return (), int(number)
    common = gcd(*(n for _, n in number.terms))
    return tuple((product, n // common) for product, n in number.terms), common
