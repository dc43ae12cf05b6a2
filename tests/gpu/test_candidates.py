"""One program in all the ways that the policy may choose."""

from __future__ import annotations

import pytest

from tests.gpu import programs
from tests.gpu.card import Card, check, check_exact

WAYS = {
    "one unit": (1, {"distribute": True}),
    "one unit, loops undivided": (1, {"distribute": False}),
    "all units": (0, {"distribute": True}),
    "all units, loops undivided": (0, {"distribute": False}),
    "all units, pipelined": (0, {"pipeline": True}),
    "one cluster": (8, {"cluster": True}),
    "one large cluster": (16, {"cluster": True}),
    "not divided": (0, {"units": 1}),
}


@pytest.mark.emulated
@pytest.mark.parametrize("way", WAYS)
def test_way(card: Card, eager, candidate, way):
    units, fields = WAYS[way]
    candidate(**fields)
    check(card, programs.two_layers, *programs.two_layer_arguments(), units=units)


@pytest.mark.parametrize("name", [pytest.param("decoder", marks=pytest.mark.emulated), "mixed"])
def test_data_decides(card: Card, eager, name):
    check(card, getattr(programs, name), *getattr(programs, f"{name}_arguments")())


@pytest.mark.emulated
@pytest.mark.parametrize("units", [2, 8, 0])
def test_grids(card: Card, eager, candidate, units):
    """However many units share a program: what adds nothing up is equal bit for bit, and products, whose
    terms may come in another order, as close."""
    candidate()
    units = min(units, card.most_units)
    arguments = programs.floats(6, 16, 24), programs.floats(24, 24)
    check(card, programs.cells, *arguments, units=units)
    alone, together = (card.jit(programs.moves, n)(*arguments) for n in (1, units))
    check_exact(together, alone)


@pytest.mark.emulated
def test_runs_give_the_same_bits(card: Card, eager):
    arguments = programs.floats(6, 16, 24), programs.floats(24, 24)
    ours = card.jit(programs.cells)
    first = ours(*arguments)
    for seed in range(1, 4 if card.emulation else 20):
        if card.emulation:
            card.emulation.seed = seed
        check_exact(ours(*arguments), first)


@pytest.mark.emulated
@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_small_devices_give_the_same_bits(card: Card, eager, few_blocks, blocks):
    """Without the shared memory that was planned, and with fewer blocks: the portable kernel."""
    arguments = programs.floats(6, 16, 24), programs.floats(24, 24)
    first = card.jit(programs.cells, 3)(*arguments)
    few_blocks(blocks)
    check_exact(card.jit(lambda x, w: programs.cells(x, w), 3)(*arguments), first)
