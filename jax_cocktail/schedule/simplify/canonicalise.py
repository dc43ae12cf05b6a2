"""Brings contractions to the forms that the templates take, once no pass looks for sums any more.

dot: several contracted axes become one (by a reshape, and a transpose unless they are adjacent); a product of
one term is a multiplication, as in XLA, so it keeps a negative zero; one of two long vectors is a reduction,
which passes over memory share and units divide. conv: channels last, kernel (spatial, input feature,
output feature), batch groups as feature groups. A transpose is a view if memory allows, else a copy: `stitch`
decides. reduce: of one element is no arithmetic, as in XLA. slice: of one element of a reshaped array is one
of the array itself, which may then be divided along any axis.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import cast

import numpy as np

from jax_cocktail.schedule.simplify.dead_code import remove_dead_code
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import Attribute, Statement, UOperator, UProgram, is_a, operators_in
from jax_cocktail.utask.operators import PRODUCTS
from jax_cocktail.utask.rewrite import rewrite
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import TensorType, Value


def canonicalise(program: UProgram) -> UProgram:
    """Returns its argument if every dot, conv, reduce and slice is canonical already."""
    fresh = FreshValues(program)
    reshaped = {o.output: o.inputs[0] for o in operators_in(program.entry) if o.kind == "reshape"}

    def change(statement: Statement) -> Statement | list[Statement]:
        if is_a(statement, *PRODUCTS):
            b = Builder(fresh, statement.source)
            found = _dot(b, statement) if statement.kind == "dot" else _conv(b, statement)
            return b.out if found else statement
        if is_a(statement, "reduce") and _has_one_term(statement):
            return replace(statement, kind="reshape", attributes=())
        if is_a(statement, "slice") and statement.output.type.size == 1 and statement.inputs[0] in reshaped:
            return _element(Builder(fresh, statement.source), statement, reshaped[statement.inputs[0]])
        return statement

    found = rewrite(program, change)
    return program if found is program else remove_dead_code(found)


def _element(b: Builder, operator: UOperator, x: Value) -> list[Statement]:
    """The element of `x` that is the only one of a slice of the reshaped `x`."""
    place = np.ravel_multi_index(operator.ints("starts"), operator.inputs[0].type.shape)
    starts = tuple(int(n) for n in np.unravel_index(place, x.type.shape))
    b.define(operator.outputs, "reshape", (b.slice(x, starts, (1,) * x.type.rank),))
    return b.out


def _has_one_term(reduction: UOperator) -> bool:
    return all(reduction.inputs[0].type.shape[d] == 1 for d in reduction.ints("axes"))


# ---- dot ---------------------------------------------------------------------------------------------------


def _dot(b: Builder, operator: UOperator) -> bool:
    """Appends the canonical product; False if it is canonical already."""
    if prod(operator.inputs[0].type.shape[d] for d in operator.ints("lhs_contract")) == 1:
        _multiply(b, operator)
        return True
    if _is_inner(operator):
        _reduce(b, operator)
        return True
    if len(operator.ints("lhs_contract")) == 1:
        return False
    pairs = sorted(zip(operator.ints("lhs_contract"), operator.ints("rhs_contract"), strict=True))
    attributes = dict(operator.attributes)
    inputs = []
    for name, x, axes in zip(("lhs", "rhs"), operator.inputs, zip(*pairs, strict=True), strict=True):
        merged, axis = _gather_axes(b, x, axes)
        inputs.append(merged)
        attributes[f"{name}_contract"] = (axis,)
        attributes[f"{name}_batch"] = _shifted(operator.ints(f"{name}_batch"), axes, axis)
    b.define(operator.outputs, "dot", inputs, **attributes)
    return True


def _multiply(b: Builder, operator: UOperator) -> None:
    """Appends a product of one term: batch axes are aligned, free axes of one operand repeat the other."""
    result, spread, first = operator.output.type, [], len(operator.ints("lhs_batch"))
    for name, x in zip(("lhs", "rhs"), operator.inputs, strict=True):
        batch, contracted = operator.ints(f"{name}_batch"), operator.ints(f"{name}_contract")
        free = [d for d in range(x.type.rank) if d not in (*batch, *contracted)]
        plain = b.reshape(
            b.transpose(x, [*batch, *free, *contracted]), [x.type.shape[d] for d in (*batch, *free)]
        )
        axes = [*range(len(batch)), *range(first, first + len(free))]
        spread.append(b.broadcast(b.convert(plain, result.dtype), result.shape, axes))
        first += len(free)
    b.define(operator.outputs, "and" if result.dtype == "bool" else "mul", spread)


def _is_inner(operator: UOperator) -> bool:
    """True for the inner product of arrays whose axes correspond, if their products need no wider type."""
    x, y = (value.type for value in operator.inputs)
    pairs = sorted(zip(operator.ints("lhs_contract"), operator.ints("rhs_contract"), strict=True))
    plain = x == y and operator.output.type.dtype == x.dtype and x.dtype in ("float32", "float64")
    return plain and pairs == [(axis, axis) for axis in range(x.rank)]


def _reduce(b: Builder, operator: UOperator) -> None:
    x, y = operator.inputs
    products = b.binary("mul", x, y)
    axes = tuple(range(x.type.rank))
    b.define(operator.outputs, "reduce", (products,), axes=axes, op="sum")


def _gather_axes(b: Builder, x: Value, axes: tuple[int, ...]) -> tuple[Value, int]:
    """Merges the axes, in order: in place if they are adjacent, else after all others."""
    first, kept = axes[0], [d for d in range(x.type.rank) if d not in axes]
    place = first if axes == tuple(range(first, first + len(axes))) else len(kept)
    moved = b.transpose(x, [*kept[:place], *axes, *kept[place:]])
    shape = [x.type.shape[d] for d in kept]
    shape.insert(place, prod(x.type.shape[d] for d in axes))
    return b.reshape(moved, shape), place


def _shifted(axes: tuple[int, ...], removed: tuple[int, ...], added: int) -> tuple[int, ...]:
    """The positions of axes after others have become one, `added`."""
    left = (d - sum(r < d for r in removed) for d in axes)
    return tuple(d + (d >= added) for d in left)


# ---- conv --------------------------------------------------------------------------------------------------


def _conv(b: Builder, operator: UOperator) -> bool:
    """Appends the canonical convolution; False if it is canonical already."""
    rank = operator.inputs[0].type.rank
    last = (0, rank - 1, *range(1, rank - 1))
    kernel = (rank - 1, rank - 2, *range(rank - 2))
    specs = tuple(operator.ints(n) for n in ("lhs_spec", "rhs_spec", "out_spec"))
    groups = operator.number("batch_group_count")
    if specs == (last, kernel, last) and groups == 1:
        return False
    lhs_spec, rhs_spec, out_spec = specs
    x = b.transpose(operator.inputs[0], (lhs_spec[0], *lhs_spec[2:], lhs_spec[1]))
    w = b.transpose(operator.inputs[1], (*rhs_spec[2:], rhs_spec[1], rhs_spec[0]))
    if groups > 1:
        x = _batch_groups(b, x, groups)
    order = (out_spec[0], *out_spec[2:], out_spec[1])
    shape = tuple(operator.output.type.shape[d] for d in order)
    result = b.fresh.make(TensorType(operator.output.type.dtype, shape))
    changes = {"lhs_spec": last, "rhs_spec": kernel, "out_spec": last, "batch_group_count": 1}
    if groups > 1:
        changes["feature_group_count"] = groups
    attributes = tuple((n, cast(Attribute, changes.get(n, v))) for n, v in operator.attributes)
    b.out.append(replace(operator, inputs=(x, w), outputs=(result,), attributes=attributes))
    restored = tuple(order.index(axis) for axis in range(rank))
    b.define(operator.outputs, "transpose", (result,), permutation=restored)
    return True


def _batch_groups(b: Builder, x: Value, groups: int) -> Value:
    """(g * N, spatial, C) -> (N, spatial, g * C): group j of the result reads batch group j."""
    n, *spatial, c = x.type.shape
    split = b.reshape(x, [groups, n // groups, *spatial, c])
    rank = len(spatial)
    moved = b.transpose(split, [1, *range(2, 2 + rank), 0, 2 + rank])
    return b.reshape(moved, [n // groups, *spatial, groups * c])
