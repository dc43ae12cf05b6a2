"""Long runs of the strategies that the tests use, by `python -m tests.fuzz`.

Targets: cpu, cuda, cuda-thread (in emulation; every access is watched for races, which is slower by far), or
recursion (random recursive functions and their gradients, on the CPU, and on two units where calls can run
side by side).
"""

from __future__ import annotations

from functools import partial
from unittest import mock

from hypothesis import HealthCheck, given, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st

from jax_cocktail import passes
from jax_cocktail.placement.place import place
from jax_cocktail.recursion import levels as recursion_levels
from jax_cocktail.recursion import primitive as recursion
from jax_cocktail.recursion import siblings as recursion_siblings
from jax_cocktail.recursion import unroll as recursion_unroll
from tests.cpu import emulated
from tests.cpu.runner import EAGER
from tests.null.grids import EagerGrids
from tests.recursion_compare import check_recursion
from tests.recursion_strategies import recursions
from tests.strategies import check_program, programs


def fuzz_strategies(target: str, examples: int, seed: int) -> None:
    """Runs `examples` programs. Raises what hypothesis finds, with the smallest example."""
    target, _, sanitizer = target.partition("-")
    quiet = list(HealthCheck)

    @with_seed(seed)
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=quiet)
    @given(recursions() if target == "recursion" else programs(), st.integers(0, 50), st.integers(1, 3))
    def fuzz(program, state, units):
        if target == "recursion":
            # level by level where that can be, whether it pays or not
            with mock.patch.object(recursion, "worth", lambda levels: True):
                check_recursion(program, state)
        elif target == "cpu":
            check_program(program, state, units)
        else:
            kernel = ("ck_resident", "ck_portable")[state % 2]
            how = {"kernel": kernel, "sanitizer": sanitizer or None, "outline_limit": 32 * (state % 3)}
            how["cluster"] = state % 4 < 2
            how["limits"] = (EAGER, EagerGrids(), EagerGrids(last=True))[state // 4 % 3]
            emulated.check_program(program, state, units, **how)

    recursion_siblings.FRONTIER, recursion_siblings.ROOM = 4, 16  # smaller than most of the trees
    passes.place = partial(place, limits=EAGER)
    recursion_unroll.MOST_CALLS = 2 * recursion_unroll.MOST_CALLS
    recursion_levels.WIDTHS, recursion_levels.FOREST_WIDTHS = (1, 2, 8), (1, 8)

    fuzz()
