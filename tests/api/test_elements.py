"""Random programs of batch elements, before and after `threads`, in the interpreter, against stock."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.device.tuning import ElementTuning
from jax_cocktail.lowering.edge import adapter
from jax_cocktail.primitives import translate
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.vmap.threads import threads
from jax_cocktail.utask.ir import by_threads, walk
from tests.oracle.interpreter.run import run as interpreted
from tests.selection import ALL
from tests.strategies import check_state, initial_state, programs, run

EAGER = ElementTuning(fewest=2, branch_flops=1.0)
EVERY = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
BATCH = 3


def states(seed):
    """The states of a few elements, element axis first."""
    found = [initial_state(100 * seed + k) for k in range(BATCH)]
    return tuple(np.stack(parts) for parts in zip(*found, strict=True))


def taken(function, state):
    """Compares the program after the pass with stock. Returns the number of loops by threads."""
    program = simplify(translate(adapter.program(jax.make_jaxpr(function)(*state)), "elements"))
    after = simplify(threads(program, limits=EAGER))
    verify(after, "placed")
    check_state(interpreted(after, list(state)), jax.jit(function)(*state))
    return sum(map(by_threads, walk(after.entry)))


@pytest.mark.one_jax
def test_random_elements():
    """Many random programs have a thread for each element, and all agree with stock."""
    found = []

    @settings(EVERY, max_examples=200 if ALL else 15)
    @given(programs(), st.integers(0, 5))
    def each(program, seed):
        function = jax.vmap(lambda *state: run((("fori", 3, seed % 2 > 0, program),), state))
        found.append(taken(function, states(seed)))

    each()
    assert sum(n > 0 for n in found) >= len(found) // 3, found
