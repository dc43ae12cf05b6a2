"""The primitive `units`: the number of units that a program is planned for.

A program can use it to choose between an algorithm for one unit and one for several. Our compiler replaces it
by a constant before all other passes; for stock XLA it is 1.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from jax_cocktail.primitives.equation import Equation
from jax_cocktail.primitives.rule import rule
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.types import Value

units_p = jex.Primitive("units")
units_p.def_abstract_eval(lambda: jax.core.ShapedArray((), np.dtype("int32")))
units_p.def_impl(lambda: jnp.int32(1))
mlir.register_lowering(units_p, mlir.lower_fun(lambda: jnp.int32(1), multiple_results=False))


def unit_count() -> Any:
    """The number of units, an int32 scalar."""
    return units_p.bind()


@rule("units")
def _units(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    return builder.emit("units", (), "int32", ())
