"""Identities and steps of the reduction operators, as C expressions."""

from __future__ import annotations

from jax_cocktail.codegen.kernel import Expression
from jax_cocktail.codegen.text import COMPUTE
from jax_cocktail.codegen.writer import call, joined
from jax_cocktail.utask.types import FLOATS

_INFIX = {"sum": "+", "prod": "*", "and": "&", "or": "|", "xor": "^"}
_INFINITY = {"float64": "__builtin_inf()"}


def identity(op: str, dtype: str) -> str:
    """The neutral element of `op` in the compute type of `dtype`."""
    compute = COMPUTE[dtype]
    if op in ("sum", "or", "xor"):
        return f"{compute}(0)"
    if op == "prod":
        return f"{compute}(1)"
    if op == "and":
        return "true" if dtype == "bool" else f"{compute}(~{compute}(0))"
    lowest = op == "max"
    if dtype in FLOATS:
        text = _INFINITY.get(dtype, "__builtin_inff()")
        return f"-{text}" if lowest else text
    return f"{'ck_lowest' if lowest else 'ck_highest'}<{compute}>()"


def functor(op: str) -> str:
    """The functor by which a group of threads combines its results."""
    return f"Ck{op.capitalize()}"


def step(op: str, total: Expression, element: Expression) -> Expression:
    """total op element."""
    return joined(f" {_INFIX[op]} ", (total, element)) if op in _INFIX else call(f"ck_{op}", total, element)
