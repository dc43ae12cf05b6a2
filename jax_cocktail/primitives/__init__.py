"""One rule per JAX primitive: equations in, uTask IR out. Importing this package registers every rule."""

from jax_cocktail.primitives import (
    contraction as contraction,
)
from jax_cocktail.primitives import (
    elementwise as elementwise,
)
from jax_cocktail.primitives import (
    failure as failure,
)
from jax_cocktail.primitives import (
    indexing as indexing,
)
from jax_cocktail.primitives import (
    movement as movement,
)
from jax_cocktail.primitives import (
    random as random,
)
from jax_cocktail.primitives import (
    reduction as reduction,
)
from jax_cocktail.primitives.control import CONTROL_FLOW
from jax_cocktail.primitives.rule import LIBRARY, RULES, Rule, physical_type
from jax_cocktail.primitives.translate import inline, translate, why_unsupported

__all__ = [
    "CONTROL_FLOW",
    "LIBRARY",
    "RULES",
    "Rule",
    "inline",
    "physical_type",
    "translate",
    "why_unsupported",
]
