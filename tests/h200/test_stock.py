"""What is said of stock XLA on an H200 is what its executable does: kernels that are counted in the module's
text are the steps of the thunk sequence."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from benchmarks.gpu import peer
from benchmarks.gpu.peers import COMMAND_BUFFERS
from benchmarks.gpu.rows import ROWS
from jax_cocktail.cost.hlo import Module
from jax_cocktail.device.nvidia import H200
from tests.h200.card import compiled

X = jnp.zeros((128, 128), jnp.float32)
NESTING = ("kWhile", "kConditional", "kCommandBuffer", "kSequential")
TRIPS = 7


def straight(x):
    return jnp.sort(jnp.tanh(x @ x) @ x)


def counted(x):
    return lax.fori_loop(0, TRIPS, lambda _, y: jnp.tanh(y @ x) @ x, x)


def branching(x):
    return lax.cond(x[0, 0] > 0, lambda x: jnp.tanh(x @ x) @ x, lambda x: x * 2, x)


def kernels(steps, trips=1):
    """Launches and copies of a sequence: a loop's so many times, of a branch those of its longest side."""
    total = 0
    for step in steps:
        inner = step.inner
        if step.kind == "kWhile":
            total += trips * kernels(inner)
        elif step.kind == "kConditional":
            sides = {each.part for each in inner}
            total += max(kernels([each for each in inner if each.part == side]) for side in sides)
        elif step.kind in NESTING:
            total += kernels(inner, trips)
        else:
            total += 1
    return total


@pytest.mark.parametrize("function", [straight, counted, branching])
def test_kernels_are_the_steps_of_the_executable(function, tmp_path):
    module = Module(peer.compile_for(H200, function, (X,)))
    cost, found = module.cost, compiled(jax.jit(function), (X,), tmp_path)
    assert cost.kernels == kernels(found.steps, TRIPS) > 2
    assert cost.decisions == (TRIPS if function is counted else function is branching) and not cost.unknown
    assert module.unrolled_nodes == (cost.kernels if function is counted else 0)


def test_bytes_are_operands_and_results():
    cost = Module(peer.compile_for(H200, jnp.tanh, (X,))).cost
    assert (cost.kernels, cost.bytes) == (1, 2 * X.nbytes)


def test_loops_in_graphs_hold_the_same_kernels(tmp_path):
    """Capturing changes who launches, not what."""
    plain, captured = (
        compiled(jax.jit(counted), (X,), tmp_path / name, options=options)
        for name, options in (("plain", None), ("graphs", COMMAND_BUFFERS))
    )
    assert kernels(plain.steps, TRIPS) == kernels(captured.steps, TRIPS)
    assert "kWhile" in captured.captured and "kWhile" not in plain.captured


# Kernels of one iteration of the model's loop under stock XLA, at least (they change a little from one XLA to
# the next), and the iterations.
PER_STEP = {
    "lstm/1": (25, 64),
    "lstm/64": (25, 64),
    "nasrnn/1": (4, 1000),
    "nasrnn/64": (5, 1000),
    "attention/1": (6, 32),
    "attention/64": (8, 32),
}


@pytest.mark.parametrize("row", PER_STEP)
def test_models_launch_kernels_in_every_step(row):
    function, arguments = ROWS[row].make(False)
    cost = Module(peer.compile_for(H200, function, arguments)).cost
    least, trips = PER_STEP[row]
    assert least * trips <= cost.kernels <= 2 * least * trips and not cost.unknown
    parameters = sum(leaf.nbytes for leaf in jax.tree.leaves(arguments))
    assert cost.bytes > parameters / 2
