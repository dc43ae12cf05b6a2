"""Makes products of float32 exact where the device has no matrix instructions for them.

Elsewhere the precision `default` lets a product take matrix instructions, which may round its factors. Here
all later passes and prices know that it takes none.
"""

from __future__ import annotations

from dataclasses import replace

from jax_cocktail.utask.ir import Statement, UOperator, UProgram
from jax_cocktail.utask.rewrite import rewrite


def exact_products(program: UProgram) -> UProgram:
    """Returns its argument if no product of float32 may round."""
    return rewrite(program, _exact)


def _exact(statement: Statement) -> Statement:
    if not isinstance(statement, UOperator) or not statement.may_round:
        return statement
    if {value.type.dtype for value in statement.inputs} != {"float32"}:
        return statement
    kept = tuple((name, value) for name, value in statement.attributes if name != "precision")
    return replace(statement, attributes=kept)
