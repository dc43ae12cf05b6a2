"""Rows for recursive programs: the models of `jax_cocktail.models.RECURSIVE`, and gradients.

Stock XLA runs a recursion as an explicit stack machine (the result of `jax.jit` on `jax_cocktail.recursive`),
one batch element after the other under `vmap`. `LOOPS` has the tree model of the paper in the usual form, a
while loop over the nodes in post-order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jax_cocktail.models import MODELS, RECURSIVE

Program = tuple[Callable[..., Any], tuple[Any, ...]]

# (model, batch) -> positions of the arguments to differentiate by
GRADIENTS: dict[tuple[str, int], tuple[int, ...]] = {
    ("rae_recursive", 1): (0, 5, 6),
    ("tree_lstm", 64): (5, 6, 7),
    ("child_sum_tree_lstm", 64): (3, 4, 5, 6, 7),
    ("simpson", 1): (0,),
}

LOOPS: dict[str, Callable[..., Any]] = {"rae_recursive": MODELS["rae"].make(small=True)[0]}


def gradient(name: str, batch: int, small: bool) -> Program:
    """The gradient of the sum of the model's results."""
    function, arguments = RECURSIVE[name].make(batch, small=small)
    wanted = GRADIENTS[name, batch]
    return jax.grad(lambda *x: jnp.sum(function(*x)), wanted), arguments


def rows(small: bool) -> dict[str, Callable[[], Program]]:
    """Row name -> function and arguments, built on demand."""
    values = {
        f"{model.name}/{batch}": lambda model=model, batch=batch: model.make(batch, small=small)
        for model in RECURSIVE.values()
        for batch in model.batches
    }
    gradients = {
        f"{name}_gradient/{batch}": lambda name=name, batch=batch: gradient(name, batch, small)
        for name, batch in GRADIENTS
    }
    return values | gradients
