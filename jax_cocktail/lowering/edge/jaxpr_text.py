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
    """One line for every equation, values numbered in order of first appearance. A nested jaxpr is mentioned
    by number, and they follow in this order: a recursion into them would take too much of Python's stack.

    Functions among the parameters are left out: what they compute is in the jaxprs beside them.
    """
    mentioned = [jaxpr]
    return "\n".join(line for each in mentioned for line in _lines(each, mentioned))


def _lines(jaxpr: Any, mentioned: list[Any]) -> Iterator[str]:
    opened, numbers = open_jaxpr(jaxpr), dict[Any, int]()

    def atom_text(atom: Any) -> str:
        if isinstance(atom, jex.Literal):
            return f"{atom.val}:{atom.aval}"
        if atom in numbers:
            return str(numbers[atom])
        numbers[atom] = len(numbers)
        return f"{numbers[atom]}:{atom.aval}"

    yield f"{{ {[*map(atom_text, opened.constvars)]} {[*map(atom_text, opened.invars)]}"
    for equation in opened.eqns:
        operands, results = [*map(atom_text, equation.invars)], [*map(atom_text, equation.outvars)]
        yield f"{results} = {equation.primitive.name} {operands} {_parameter(equation.params, mentioned)}"
    yield f"{[*map(atom_text, opened.outvars)]} }}"


def _parameter(value: Any, mentioned: list[Any]) -> str:
    """A value of a parameter, without the names in it."""
    if is_jaxpr(value):
        mentioned.append(value)
        return f"jaxpr {len(mentioned) - 1}"
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value) if field.repr}
    if isinstance(value, Mapping):
        named = (f"{key}: {_named(key, value[key], mentioned)}" for key in sorted(value, key=str))
        return "{" + ", ".join(named) + "}"
    if isinstance(value, tuple | list):
        return f"({', '.join(_parameter(each, mentioned) for each in value)})"
    if isinstance(value, set | frozenset):
        return f"({', '.join(sorted(_parameter(each, mentioned) for each in value))})"
    if hasattr(value, "call_wrapped") or (callable(value) and not isinstance(value, type)):
        return "function"
    return _ADDRESS.sub("", str(value))


def _named(name: Any, value: Any, mentioned: list[Any]) -> str:
    """A parameter with its name. Of the name of a function only the options of `jit` count."""
    if name in _NAMES and isinstance(value, str):
        mark = read_mark(value)
        return "" if mark is None else mark.options.token
    return _parameter(value, mentioned)
