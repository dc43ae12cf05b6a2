"""Sizes as numbers, for a runtime that evaluates them in each call (common_src/runtime_forms.h reads them).

A module with symbolic sizes (`jax.export`) is compiled once, and called with operands of many shapes. So what
a call gives to its program is not known when it is compiled. Its form is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jax_cocktail.errors import UnsupportedError
from jax_cocktail.utask.sizes import COMPARISONS, Atom, Decision, Parameter, Quotient, Size, Term, size_of

Place = tuple[int, int]  # an operand and an axis


class Forms:
    """Collects forms. `places`: for each general parameter, an axis that is as long."""

    def __init__(self, places: Mapping[Parameter, Place]) -> None:
        self._places = places
        self._numbers: dict[tuple[int, ...], int] = {}
        self._guards: list[int] = []

    def number(self, number: int) -> int:
        """The number itself, or -2 - k if it is form k."""
        if not isinstance(number, Size) or not number.is_general:
            return int(number)
        return -2 - self._form(number)

    def parameter(self, parameter: Parameter) -> int:
        """The value of a launch parameter, in the same way."""
        return self.number(Size(parameter.follows) if parameter.follows else size_of(parameter))

    def guard(self, decision: Decision) -> None:
        """Adds a comparison that must come out as it did."""
        how, left, right = decision.how, self._form(decision.left), self._form(decision.right)
        if how in (">", ">="):
            how, left, right = how.replace(">", "<"), right, left
        if not decision.outcome:
            how = {"==": "!=", "!=": "==", "<": "<=", "<=": "<"}[how]
            left, right = (right, left) if "<" in how else (left, right)
        self._guards += [COMPARISONS.index(how), left, right]

    @property
    def encoded(self) -> tuple[int, ...]:
        """All forms and guards."""
        forms = (n for form in self._numbers for n in form)
        return len(self._numbers), len(self._guards) // 3, *forms, *self._guards

    def _form(self, number: int) -> int:
        terms = number.terms if isinstance(number, Size) else (((), int(number)),)
        return self._numbers.setdefault(tuple(self._terms(terms)), len(self._numbers))

    def _terms(self, terms: Iterable[Term]) -> list[int]:
        terms = tuple(terms)
        found = [len(terms)]
        for product, coefficient in terms:
            found += [int(coefficient), len(product)]
            for atom in product:
                found += self._atom(atom)
        return found

    def _atom(self, atom: Atom) -> list[int]:
        if isinstance(atom, Quotient):
            return [atom.divisor, *self._terms(atom.dividend.terms)]
        if atom.least and atom not in self._places:
            raise UnsupportedError(f"no operand has the size for which {atom.value} stands")
        if atom.least:
            return [0, *self._places[atom]]
        return [1, *self._terms(atom.follows or (((), atom.value),))]
