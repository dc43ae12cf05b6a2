"""How many units a program is planned for: what a value may depend on that is better found in another way by
several units than by one. Our compiler knows the number before it does anything else; for stock XLA it is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from jax_cocktail.primitives.builder import Builder
from jax_cocktail.primitives.equation import Equation
from jax_cocktail.primitives.rule import rule
from jax_cocktail.utask.types import Value

units_p = jex.Primitive("units")
units_p.def_abstract_eval(lambda: jax.core.ShapedArray((), np.dtype("int32")))
units_p.def_impl(lambda: jnp.int32(1))
mlir.register_lowering(units_p, mlir.lower_fun(lambda: jnp.int32(1), multiple_results=False))


def unit_count() -> Any:
    """int32 scalar."""
    return units_p.bind()


@rule("units")
def _units(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Sequence[Value]:
    return (builder.emit("units", (), "int32", ()),)
