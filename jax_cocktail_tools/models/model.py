"""The type of a benchmark model: a pure function, its arguments, and the tolerance between two runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Instance = tuple[Callable[..., Any], tuple[Any, ...]]

SEED = 20230710  # one seed for all weights and inputs, so that all machines run the same numbers


@dataclass(frozen=True, slots=True)
class Model:
    """One benchmark model.

    Attributes:
      name: the key in ``MODELS`` and on the command line.
      description: one line for tables and help texts.
      batches: the batch sizes that the model supports.
      tolerance: the largest accepted |difference| of two float results, relative to max(1, largest |result|).
      build: ``(batch, small)`` -> function and arguments; call ``make`` instead.
    """

    name: str
    description: str
    batches: tuple[int, ...]
    tolerance: float
    build: Callable[[int, bool], Instance]

    def make(self, batch: int = 1, *, small: bool = False) -> Instance:
        """The function and its arguments. ``small`` keeps the structure and shrinks all sizes.

        Raises:
          ValueError: the model does not support this batch size.
        """
        if batch not in self.batches:
            raise ValueError(f"model {self.name!r} is defined for batch {self.batches}, not {batch}")
        return self.build(batch, small)


def generator(name: str) -> np.random.Generator:
    """The random number generator of one model, which depends only on the model's name."""
    return np.random.default_rng([SEED, *name.encode()])


def normal(random: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    """float32 normal numbers with the given standard deviation."""
    values = random.standard_normal(shape, dtype=np.float32)
    values *= np.float32(scale)
    return values
