"""Gradients of recursive models: of the sum of their results.

Stock XLA runs a recursion as an explicit stack machine (the result of `jax.jit` on `jax_cocktail.recursive`),
one batch element after the other under `vmap`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jax_cocktail_tools.models import calls, trees
from jax_cocktail_tools.models.model import Instance, Model

TOLERANCE = 1e-4

# model -> batch, and the positions of the arguments to differentiate by
_WANTED: dict[str, tuple[int, tuple[int, ...]]] = {
    "rae_recursive": (1, (0, 5, 6)),
    "tree_lstm": (64, (5, 6, 7)),
    "child_sum_tree_lstm": (64, (3, 4, 5, 6, 7)),
    "simpson": (1, (0,)),
}


def _gradient(model: Model) -> Model:
    only, wanted = _WANTED[model.name]

    def build(batch: int, small: bool) -> Instance:
        function, arguments = model.make(batch, small=small)
        return jax.grad(lambda *x: jnp.sum(function(*x)), wanted), arguments

    return Model(f"{model.name}_gradient", f"gradient: {model.description}", (only,), TOLERANCE, build)


GRADIENTS: dict[str, Model] = {
    gradient.name: gradient
    for gradient in (_gradient(model) for model in (*trees.MODELS, *calls.MODELS) if model.name in _WANTED)
}
