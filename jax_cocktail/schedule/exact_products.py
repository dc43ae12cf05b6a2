"""Makes products of float32 exact where the device has no matrix instructions for them.

Elsewhere the precision `default` lets a product take matrix instructions, which may round its factors. Here
all later passes and prices know that it takes none.
"""

from __future__ import annotations

from dataclasses import replace

from jax_cocktail.utask.ir import Statement, UOperator, UProgram, operators_in
from jax_cocktail.utask.rewrite import rewrite


def exact_products(program: UProgram) -> UProgram:
    """Returns its argument if no product of float32 may round."""
    if not any(map(_may_round, operators_in(program.entry))):
        return program
    return rewrite(program, lambda statement: _exact(statement) if _may_round(statement) else statement)


def _may_round(statement: Statement) -> bool:
    if not isinstance(statement, UOperator) or not statement.may_round:
        return False
    return {value.type.dtype for value in statement.inputs} == {"float32"}


def _exact(statement: Statement) -> Statement:
    assert isinstance(statement, UOperator)
    kept = tuple((name, value) for name, value in statement.attributes if name != "precision")
    return replace(statement, attributes=kept)
