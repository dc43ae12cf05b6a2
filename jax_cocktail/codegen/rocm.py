"""The ROCm target: a unit is a thread block, a workgroup by AMD's name.

COCKTAILER (OSDI'23, section 5) translates CUDA to HIP. This emits HIP from the same table of spellings, so
there is nothing to translate.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from jax_cocktail.codegen.gpu import gpu_target
from jax_cocktail.device.target import Target
from jax_cocktail.device.tuning import BLOCK


@cache
def rocm(threads: int = BLOCK.threads, warp: int = 64, dies: int = 1) -> Target:
    """The spellings for blocks of this many threads, in waves of `warp`, on a device of so many dies."""
    target = gpu_target("rocm", threads, warp)
    several = (f"#define CK_DIES {dies}",) if dies > 1 else ()
    return replace(target, prologue=(f"#define CK_WARP {warp}", *several, *target.prologue))
