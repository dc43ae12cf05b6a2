"""The rows of the table: the seven models at the batch sizes of the paper, two recursions, the loops of
`loops`, and the batches of loops of `ensembles`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from benchmarks.gpu.ensembles import ENSEMBLES, Ensemble
from benchmarks.gpu.loops import LOOPS
from benchmarks.gpu.packed import without_strays
from jax_cocktail_tools.models import MODELS, RECURSIVE, largest_difference

TF32_TOLERANCE = 1e-2  # of products of TF32
OF_STOCK = 4.0  # a difference to float64 may be so many times that of stock XLA
Program = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Row:
    """A program to check and time.

    make: ``small -> (function, arguments)``. tolerance: of exact float32 results, relative to
    max(1, largest). ensemble: what is known of it as a batch of loops, if it is one.
    """

    name: str
    make: Callable[[bool], Program]
    tolerance: float
    ensemble: Ensemble | None = None

    @property
    def strays(self) -> float:
        """The share of a result's elements that may be far from the reference."""
        return self.ensemble.strays if self.ensemble else 0.0

    def difference(self, found: Any, expected: Any) -> float:
        """The largest difference of two results. Strays do not count."""
        pairs = zip(jax.tree.leaves(found), map(np.asarray, jax.tree.leaves(expected)), strict=True)
        kept = [(without_strays(np.asarray(a), b, self.strays), b) for a, b in pairs]
        return largest_difference([a for a, _ in kept], [b for _, b in kept])


def widened(leaf: Any) -> Any:
    """An argument of the same program in float64."""
    return leaf.astype(np.float64) if leaf.dtype == np.float32 else leaf


def _rows() -> dict[str, Row]:
    found = {}
    for model in MODELS.values():
        for batch in model.batches:
            name = f"{model.name}/{batch}"
            make = lambda small, model=model, batch=batch: model.make(batch, small=small)  # noqa: E731
            found[name] = Row(name, make, model.tolerance)
    for name in ("rae_recursive", "fibonacci"):
        model = RECURSIVE[name]
        make = lambda small, model=model: model.make(1, small=small)  # noqa: E731
        found[f"{name}/1"] = Row(f"{name}/1", make, model.tolerance)
    for name, make in LOOPS.items():
        found[name] = Row(name, make, 2e-5)
    for name, ensemble in ENSEMBLES.items():
        found[name] = Row(name, ensemble.make, ensemble.tolerance, ensemble)
    return found


ROWS = _rows()
QUICK = ("lstm/1", "nasrnn/1", "rae/1", "vmapped_while")
