"""The CUDA target: a unit is a block of threads that run the same text."""

from __future__ import annotations

from functools import cache

from jax_cocktail.codegen.gpu import THREADS, gpu_target
from jax_cocktail.device.target import Target


@cache
def cuda(threads: int = THREADS) -> Target:
    """The spellings for blocks of so many threads."""
    return gpu_target("cuda", threads)
