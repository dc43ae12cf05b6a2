"""What a row of the comparison is, and what all rows use."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Run = Callable[[], Any]  # starts the work, and returns its results
CORES = len(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class Row:
    """A program with its arguments, and the same in other systems.

    Attributes:
      function, arguments: for `jax.jit` and ours.
      peers: by name, what makes a run. It raises ImportError if the system is not installed.
      tolerance: of a peer's results, relative to the largest of JAX's.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    peers: Mapping[str, Callable[[], Run]] = field(default_factory=dict)
    tolerance: float = 1e-4


def library(name: str) -> Any:
    """A module that need not be installed."""
    return importlib.import_module(name)


def normal(random: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Random numbers, float32."""
    return (scale * random.standard_normal(shape)).astype(np.float32)


