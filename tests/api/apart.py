"""Programs of batch elements, before and after the passes that run them apart, in the interpreter."""

from __future__ import annotations

import jax

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.device.tuning import ElementTuning
from jax_cocktail.lowering.edge import adapter
from jax_cocktail.primitives import translate
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.vmap.recover import recover
from jax_cocktail.schedule.vmap.threads import threads
from jax_cocktail.utask.ir import by_threads, walk
from jax_cocktail.utask.remarks import Remark
from tests.oracle.interpreter.run import run as interpreted
from tests.strategies import check_state

EAGER = ElementTuning(fewest=2, branch_flops=1.0)


def translated(function, state):
    return simplify(translate(adapter.program(jax.make_jaxpr(function)(*state)), "elements"))


def taken(function, state, limits=EAGER):
    """Compares the program after the pass with stock. Returns the number of loops by threads."""
    after = simplify(threads(translated(function, state), limits=limits))
    verify(after, "placed")
    check_state(interpreted(after, list(state)), jax.jit(function)(*state))
    return sum(map(by_threads, walk(after.entry)))


def recovered(function, state):
    """Compares the program after `recover`, for a CPU, with stock. Returns the remarks."""
    notes = list[Remark]()
    after = simplify(recover(translated(function, state), remark=notes.append))
    verify(after, "placed")
    check_state(interpreted(after, list(state)), jax.jit(function)(*state))
    return notes
