"""One rule per JAX primitive: equations in, uTask IR out. Importing this package registers every rule."""

from jax_cocktail.primitives import (
    contraction,
    elementwise,
    failure,
    indexing,
    linalg,
    movement,
    random,
    reduction,
)
from jax_cocktail.primitives.control import CONTROL_FLOW
from jax_cocktail.primitives.rule import LIBRARY, RULES, Rule, physical_type
from jax_cocktail.primitives.side_exit import SIDE_EXIT
from jax_cocktail.primitives.translate import inline, translate, why_unsupported

MOVEMENT = frozenset(name for name, each in RULES.items() if each.__module__ == movement.__name__)
# What XLA makes a part of any kernel that reads or writes its operands.
FUSIBLE = MOVEMENT | {name for name, each in RULES.items() if each.__module__ == elementwise.__name__}

__all__ = [
    "CONTROL_FLOW",
    "FUSIBLE",
    "LIBRARY",
    "MOVEMENT",
    "RULES",
    "SIDE_EXIT",
    "Rule",
    "contraction",
    "elementwise",
    "failure",
    "indexing",
    "inline",
    "linalg",
    "movement",
    "physical_type",
    "random",
    "reduction",
    "translate",
    "why_unsupported",
]
