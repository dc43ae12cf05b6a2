"""The CUDA target: a unit is a thread block."""

from __future__ import annotations

from functools import cache

from jax_cocktail.codegen.gpu import gpu_target
from jax_cocktail.device.target import Target
from jax_cocktail.device.tuning import BLOCK


@cache
def cuda(threads: int = BLOCK.threads) -> Target:
    """The spellings for blocks of this many threads."""
    return gpu_target("cuda", threads)
