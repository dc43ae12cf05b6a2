"""Gives concatenated gates an axis of their own, so that units can compute them column by column.

    concatenate(a, b)            ->      reshape(concatenate(reshape(a), reshape(b)))
    [n, k], [n, k] -> [n, 2 k]           [n, 1, k], [n, 1, k] -> [n, 2, k] -> [n, 2 k]

The gradient of a recurrent cell concatenates the gradients of its gates for the product with the weights.
Column j of each gate comes from hidden unit j, but these columns are far apart in the concatenated array, so
tiles of it would not match tiles of the gates. With the gates on an axis, column j of all gates is one tile.
The product reads all of it either way, and the last reshape moves nothing. (`placement.push_slices` does the
same for gates that are taken apart.)
"""

from __future__ import annotations

from collections.abc import Sequence

from jax_cocktail.device.tuning import PROGRAM
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import LoopUTask, Region, Statement, UOperator, UProgram, is_a
from jax_cocktail.utask.rewrite import map_body, map_regions
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import Value


def concat_gates(program: UProgram) -> UProgram:
    """Returns its argument if no loop concatenates equal parts for a product."""
    fresh = FreshValues(program)

    def change(region: Region, inside: bool) -> Region:
        multiplied = _multiplied(region.body) if inside else set[Value]()

        def statement(s: Statement) -> Statement | list[Statement]:
            if isinstance(s, UOperator) and _joins(s, multiplied):
                return _stacked(s, Builder(fresh, s.source))
            return map_regions(s, lambda inner: change(inner, inside or isinstance(s, LoopUTask)))

        return map_body(region, statement)

    return map_regions(program, lambda region: change(region, inside=False))


def _multiplied(statements: Sequence[Statement]) -> set[Value]:
    return {v for s in statements if is_a(s, "dot") for v in s.inputs}


def _joins(operator: UOperator, multiplied: set[Value]) -> bool:
    """True if an operator concatenates equal parts for a product and is too large to replicate."""
    if operator.kind != "concatenate" or operator.output not in multiplied:
        return False
    if int(operator.output.type.nbytes) <= PROGRAM.replicated_bytes:
        return False
    axis = operator.number("dimension")
    lengths = {v.type.shape[axis] for v in operator.inputs}
    return len(operator.inputs) > 1 and len(lengths) == 1 and max(lengths) > 1


def _stacked(join: UOperator, b: Builder) -> list[Statement]:
    axis, type_ = join.number("dimension"), join.inputs[0].type
    before, after = type_.shape[:axis], type_.shape[axis:]
    apart = [b.emit("reshape", (v,), type_.dtype, (*before, 1, *after)) for v in join.inputs]
    joined = b.emit("concatenate", apart, type_.dtype, (*before, len(apart), *after), dimension=axis)
    b.define(join.outputs, "reshape", (joined,))
    return b.out
