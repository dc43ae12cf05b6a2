"""The computation of a jaxpr as text: equal for programs that differ only in names, files and lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import jax.extend.core as jex

from jax_cocktail.lowering.state import read_mark
from jax_cocktail.primitives.jaxprs import is_jaxpr, open_jaxpr

_ADDRESS = re.compile(r"\b0x[0-9a-f]+")
_NAMES = frozenset({"name", "source"})  # parameters, and fields of a recursion's task


def jaxpr_text(jaxpr: Any) -> str:
    """One line for every equation, values numbered in order of first appearance.

    Functions among the parameters are left out: what they compute is in the jaxprs beside them.
    """
    return "\n".join(_lines(jaxpr))


def _lines(jaxpr: Any) -> Iterator[str]:
    opened, numbers = open_jaxpr(jaxpr), dict[Any, int]()

    def told(atom: Any) -> str:
        if isinstance(atom, jex.Literal):
            return f"{atom.val}:{atom.aval}"
        if atom in numbers:
            return str(numbers[atom])
        numbers[atom] = len(numbers)
        return f"{numbers[atom]}:{atom.aval}"

    yield f"{{ {[*map(told, opened.constvars)]} {[*map(told, opened.invars)]}"
    for equation in opened.eqns:
        operands, results = [*map(told, equation.invars)], [*map(told, equation.outvars)]
        yield f"{results} = {equation.primitive.name} {operands} {_parameter(equation.params)}"
    yield f"{[*map(told, opened.outvars)]} }}"


def _parameter(value: Any) -> str:
    """A value of a parameter, without the names in it."""
    if is_jaxpr(value):
        return jaxpr_text(value)
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value) if field.repr}
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {_named(k, value[k])}" for k in sorted(value, key=str)) + "}"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_parameter, value))})"
    if isinstance(value, set | frozenset):
        return f"({', '.join(sorted(map(_parameter, value)))})"
    if hasattr(value, "call_wrapped") or (callable(value) and not isinstance(value, type)):
        return "function"
    return _ADDRESS.sub("", str(value))


def _named(name: Any, value: Any) -> str:
    """A parameter with its name. Of the name of a function only the options of `jit` count."""
    if name in _NAMES and isinstance(value, str):
        mark = read_mark(value)
        return "" if mark is None else mark.options.token
    return _parameter(value)
