"""Symbolic sizes of a jaxpr (`jax.export.symbolic_shape`): samples of it, which have numbers for them.

A sample has the same equations in the same order. So what is captured of it tells what to exchange in the
symbolic jaxpr.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import jax.extend.core as jex
from jax.export import is_symbolic_dim

from jax_cocktail.primitives.jaxprs import constants, equations_in, is_jaxpr, open_jaxpr

_NAME = re.compile(r"[A-Za-z_]\w*")
_POWER = re.compile(r"[A-Za-z_]\w*(?:\^(\d+))?")
# Quotients, remainders and bounds, as JAX prints them: what is found for a few samples need not hold for all.
_NO_POLYNOMIAL = "("


def sizes_in(jaxpr: Any) -> dict[str, Any]:
    """The symbolic sizes of all values and parameters, at any depth, by their texts."""
    found: dict[str, Any] = {}
    for value in _values_in(jaxpr):
        found.update((str(size), size) for size in _symbolic(value))
    return found


def degree_of(jaxpr: Any) -> int:
    """The highest degree of a symbolic size, or of the number of elements of a value."""
    return max(map(_degree, _values_in(jaxpr)), default=0)


def _degree(value: Any) -> int:
    """The degree of a polynomial, as JAX prints it, or of the product of those in a shape."""
    if is_symbolic_dim(value):
        terms = re.split(r" [+-] ", str(value))
        return max(sum(int(n or 1) for n in _POWER.findall(term)) for term in terms)
    if isinstance(value, jax.core.ShapedArray):
        return _degree(value.shape)
    if not isinstance(value, tuple | list):
        return 0
    degrees = [*map(_degree, value), 0]
    return sum(degrees) if any(map(is_symbolic_dim, value)) else max(degrees)


def _values_in(jaxpr: Any) -> Iterator[Any]:
    opened = open_jaxpr(jaxpr)
    yield from (v.aval for v in (*opened.invars, *opened.constvars))
    for equation in equations_in(opened):
        yield from (v.aval for v in equation.outvars)
        yield from equation.params.values()


def _symbolic(value: Any) -> Iterator[Any]:
    """The symbolic sizes in the type of a value, or in a parameter."""
    if is_symbolic_dim(value):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _symbolic(each)
    elif isinstance(value, jax.core.ShapedArray):
        yield from _symbolic(value.shape)


def names_in(sizes: Iterable[str]) -> tuple[str, ...]:
    """The names of which sizes are made."""
    return tuple(sorted({name for text in sizes for name in _NAME.findall(text)}))


def obstacle(sizes: Iterable[str]) -> str:
    """The reason why samples tell nothing about other sizes, or ""."""
    text = next((text for text in sizes if _NO_POLYNOMIAL in text), "")
    return text and f"the size {text} is neither a sum nor a product of sizes"


def admits(sizes: Mapping[str, Any], numbers: Mapping[str, int]) -> bool:
    """True unless the constraints of symbolic sizes exclude numbers for their names."""
    return not any(
        _is_true(partial(compare, size, value_of(text, numbers)))
        for text, size in sizes.items()
        for compare in (operator.gt, operator.lt)
    )


def value_of(text: str, numbers: Mapping[str, int]) -> int:
    """The value of a polynomial, as JAX prints it."""
    return int(eval(text.replace("^", "**"), {"__builtins__": {}}, dict(numbers)))


def _is_true(compare: Callable[[], bool]) -> bool:
    try:
        return compare()
    except jax.errors.InconclusiveDimensionOperation:
        return False


def sample(jaxpr: Any, numbers: Mapping[str, int]) -> Any:
    """The jaxpr with numbers in the place of symbolic sizes."""
    return _Sample(numbers).jaxpr(jaxpr)



class _Sample:
    def __init__(self, numbers: Mapping[str, int]) -> None:
        self._numbers = numbers
        self._new = jex.gensym()
        self._vars: dict[Any, Any] = {}

    def jaxpr(self, jaxpr: Any) -> Any:
        opened = open_jaxpr(jaxpr)
        made = opened.replace(
            constvars=[*map(self._atom, opened.constvars)],
            invars=[*map(self._atom, opened.invars)],
            eqns=[*map(self._equation, opened.eqns)],
            outvars=[*map(self._atom, opened.outvars)],
        )
        consts = list(constants(jaxpr))  # in jax >= 0.11, an open jaxpr may have them
        return jex.ClosedJaxpr(made, consts) if consts or jaxpr is not opened else made

    def _equation(self, equation: Any) -> Any:
        return equation.replace(
            invars=[*map(self._atom, equation.invars)],
            outvars=[*map(self._atom, equation.outvars)],
            params={name: self._value(value) for name, value in equation.params.items()},
        )

    def _atom(self, atom: Any) -> Any:
        if isinstance(atom, jex.Literal):
            return atom
        if atom not in self._vars:
            self._vars[atom] = self._new(self._value(atom.aval))
        return self._vars[atom]

    def _value(self, value: Any) -> Any:
        if is_symbolic_dim(value):
            return value_of(str(value), self._numbers)
        if is_jaxpr(value):
            return self.jaxpr(value)
        if isinstance(value, jax.core.ShapedArray):
            sizes = tuple(map(self._value, value.shape))
            return value if sizes == value.shape else value.update(shape=sizes)
        if isinstance(value, tuple | list):
            items = [*map(self._value, value)]
            if not all(map(operator.is_, items, value)):
                return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        return value
