"""Random JAX programs through the interpreter after every pass: a pass must not change a meaning."""

from __future__ import annotations

import jax
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.compiler import transform
from jax_cocktail.device.tuning import LoopTuning
from jax_cocktail.lowering.edge import adapter
from jax_cocktail.primitives import translate
from jax_cocktail.schedule.loops.distribution.distribute import distribute
from jax_cocktail.schedule.simplify.hoist import hoist
from jax_cocktail.schedule.simplify.simplify import simplify
from tests.oracle.interpreter.run import run as interpret
from tests.strategies import check_state, initial_state, programs, run


def _stages(program):
    """(pass, program after it), the translated program first."""
    stages = [("translate", program)]
    transform(program, [lambda name, after, _: stages.append((name, after.program))])
    return stages


@settings(
    max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
@given(programs(), st.integers(0, 5))
def test_every_pass_keeps_the_meaning(program, seed):
    state = initial_state(seed)

    def function(*s):
        return run(program, s)

    translated = translate(adapter.program(jax.make_jaxpr(function)(*state)), "random")
    expected = jax.tree.map(np.asarray, jax.jit(function)(*state))
    operands = [np.asarray(x) for x in state]
    for name, after in _stages(translated):
        check_state(interpret(after, operands), expected, name)
    for kept_bytes in (1 << 20, 64):
        always = LoopTuning(flops=0, trips=2, strip_bytes=kept_bytes)
        divided = distribute(hoist(simplify(translated)), always)
        verify(divided)
        check_state(interpret(divided, operands), expected, "distribute")
