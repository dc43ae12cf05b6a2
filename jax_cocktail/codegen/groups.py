"""Emits stitched groups, by what closes them."""

from __future__ import annotations

from jax_cocktail.codegen.context import Context
from jax_cocktail.codegen.contraction import emit_dot
from jax_cocktail.codegen.lanes import (
    emit_concatenate,
    emit_lanes,
    emit_scalars,
    product_place,
)
from jax_cocktail.codegen.reduce_nest import emit_reductions
from jax_cocktail.cost.footprint import written
from jax_cocktail.utask.ir import StitchedUTask
from jax_cocktail.utask.layout import core


def emit_group(context: Context, group: StitchedUTask) -> None:
    closer = group.members[-1]
    if group.members[0].kind == "dot":
        emit_dot(context, group.members[0], product_place(context, group))
    elif group.reductions:
        emit_reductions(context, group)
    elif closer.kind == "concatenate" and closer.output in group.outputs:
        emit_concatenate(context, group, closer)
    elif not core(written(closer).type.shape):
        emit_scalars(context, group)
    else:
        emit_lanes(context, group)
