"""Sizes: integers that remember how they follow from launch parameters.

A launch parameter is a number that a call gives to its program, such as the length of a sequence (ATB calls
this tiling data). A size is an int, so every pass decides on its value. Only the emitter asks for the rest:
it writes `4 * size0` in the place of 200. The program for another length may then have the same text, and
needs no compiler.

A launch parameter is identified by its value, and the value of a size follows from its terms. So the terms
are right wherever the size gets to. Arithmetic that cannot keep them gives a plain int.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from math import prod

MOST_TERMS = 4  # of a form; a longer one is forgotten


@dataclass(frozen=True, slots=True)
class Parameter:
    """A launch parameter. `role`: "" for a length, or the memory in which it is the place of an array; two of
    equal value but different roles are not one."""

    value: int
    role: str = ""

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


def _size(terms: tuple[Term, ...], value: int) -> Size:
    size = int.__new__(Size, value)
    size.terms = terms
    return size


def parameter(value: int, role: str = "") -> Size:
    """The size that is a launch parameter."""
    return Size((((Parameter(int(value), role),), 1),))


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
    return size if 0 < depends <= MOST_TERMS else int(size)
