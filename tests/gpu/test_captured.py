"""Programs inside of XLA's control flow and command buffers, in several threads, and what fails in them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.gpu import programs
from tests.gpu.card import (
    COMMAND_BUFFERS,
    Card,
    Failure,
    call_by_hand,
    check_close,
    check_exact,
    in_float64,
)
from tests.gpu.handmade import ALONE, FAILING, HANGING, ONE, TOGETHER, number
from tests.process import python

CALLS = 6  # the first runs thunk by thunk, the second is captured, later ones are updated and replayed


def around(inner):
    """A branch around a call: stock's, if only `inner` is compiled by us."""

    def function(flag, x, w):
        y = lax.cond(flag, lambda: inner(x, w), lambda: (x[0], x.sum(-1)))
        return y[0] * 2, y[1]

    return function


def buffers(call: int):
    """Other values in each call, and most often at other addresses: those before are still in use."""
    return np.array(call % 3 != 1), programs.floats(4, 8, 16, seed=call), programs.floats(16, 16, seed=call)


@pytest.mark.parametrize("options", [{}, COMMAND_BUFFERS], ids=["default", "everything captured"])
def test_in_a_branch_of_stock(gpu: Card, eager, options):
    ours = jax.jit(around(gpu.jit(programs.cells)), compiler_options=options or None)
    kept = []
    with jax.default_matmul_precision("highest"):
        stock = jax.jit(around(programs.cells))
        for call in range(CALLS):
            arguments = [jnp.asarray(x) for x in buffers(call)]
            kept.append((arguments, ours(*arguments)))
        for arguments, found in kept:  # all were under way together
            check_close(found, stock(*arguments), in_float64(around(programs.cells), arguments))


@pytest.mark.parametrize("options", [{}, COMMAND_BUFFERS], ids=["default", "everything captured"])
def test_beside_stock(gpu: Card, eager, options):
    """Between operators of stock, which are captured with it."""

    def function(inner):
        return lambda x, w: jnp.sort(inner(jnp.sin(x), w)[0] @ w, axis=-1)

    ours = jax.jit(function(gpu.jit(programs.cells)), compiler_options=options or None)
    with jax.default_matmul_precision("highest"):
        stock = jax.jit(function(programs.cells))
        for call in range(CALLS):
            arguments = buffers(call)[1:]
            exact = in_float64(function(programs.cells), arguments)
            check_close(ours(*arguments), stock(*arguments), exact)


@pytest.mark.emulated
def test_changing_inputs(card: Card, eager):
    ours = card.jit(programs.cells)
    with jax.default_matmul_precision("highest"):
        stock = jax.jit(programs.cells)
        for call in range(CALLS):
            arguments = buffers(call)[1:]
            exact = in_float64(programs.cells, arguments)
            check_close(ours(*arguments), stock(*arguments), exact)


def test_waited_for(card: Card, eager):
    """`errors="sync"`: the same results."""
    ours = card.jit(programs.cells, errors="sync")
    arguments = buffers(0)[1:]
    with jax.default_matmul_precision("highest"):
        stock = jax.jit(programs.cells)(*arguments)
        check_close(ours(*arguments), stock, in_float64(programs.cells, arguments))


def test_two_programs_at_once(gpu: Card, eager):
    """Grids that each want the whole card, from two threads: neither waits for what cannot run."""
    functions = [gpu.jit(programs.cells), gpu.jit(programs.two_layers)]
    arguments = [buffers(0)[1:], programs.two_layer_arguments(12, 64, 32)]
    start = threading.Barrier(2)

    def run(k):
        start.wait()
        for _ in range(20):
            found = functions[k](*arguments[k])
        return jax.block_until_ready(found)

    expected = [f(*a) for f, a in zip(functions, arguments, strict=True)]
    with ThreadPoolExecutor(2) as pool:
        for found, once in zip(pool.map(run, range(2)), expected, strict=True):
            check_exact(found, once)


# ---- programs that fail ------------------------------------------------------------------------------------


@pytest.mark.emulated
def test_a_failure_is_told(card: Card):
    assert card.launch(FAILING, number(4), [ONE], ALONE)[0] == 8
    with pytest.raises(Failure, match="code 5 in this call|error word: 5"):
        card.launch(FAILING, number(-4), [ONE], ALONE)
    assert card.launch(FAILING, number(3), [ONE], ALONE)[0] == 6


def test_a_failure_is_told_later(gpu: Card):
    """By the next execution, and only once."""
    function = call_by_hand(FAILING, [ONE], ALONE, sync=False)
    jax.block_until_ready(function(*number(-4)))
    with pytest.raises(Failure, match="by_hand: stopped with code 5 in an earlier call"):
        jax.block_until_ready(function(*number(4)))
    assert function(*number(4))[0] == 8


@pytest.mark.emulated
def test_waiting_has_a_limit_where_asked_for(card: Card):
    """On a card the launch is ended by a trap, after which a process can use it no more: another process."""
    if card.emulation:
        with pytest.raises(Failure, match="block 0 spun too long in phase 1"):
            card.launch(HANGING, number(1), [ONE], TOGETHER)
        return
    said = python(
        """
        from tests.gpu.card import Card
        from tests.gpu.handmade import HANGING, ONE, TOGETHER, number
        try:
            Card().launch(HANGING, number(1), [ONE], TOGETHER)
        except Exception as error:
            print(error)
        """,
        JAX_PLATFORMS="",
    )
    assert "block 0 waited too long for the others in phase 1" in said
