"""Wavefronts on the CUDA target, emulated: every stage on units of its own, which keep their slices of
weights and state, against `jax.jit` on the host."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_cocktail
from jax_cocktail.utask.ir import LoopUTask, walk
from jax_cocktail_tools.models.lstm import cell_weights, lstm
from jax_cocktail_tools.models.model import generator, normal
from tests.cpu.emulated import Emulation
from tests.cpu.runner import EAGER

# What `limits_for` says of a device, where work of any size is divided.
NEAR = replace(EAGER, takes_operands=False)
KERNELS = ("ck_resident", "ck_portable")


def instance(batch: int, hidden: int, depth: int, steps: int = 5) -> tuple[Any, ...]:
    random = generator(f"lstm {batch} {hidden} {depth}")
    layers = tuple(cell_weights(random, hidden, hidden) for _ in range(depth))
    return jnp.asarray(normal(random, steps, batch, hidden)), layers


def check(arguments: tuple[Any, ...], units: int, monkeypatch: Any, **how: Any) -> Emulation:
    stock = jax.jit(lstm)(*arguments)
    monkeypatch.setattr("jax_cocktail.passes.limits_for", lambda *_: NEAR)
    emulation = Emulation(launches=[], pipeline=True, **how).install(monkeypatch)
    options = {"force": "cocktail", "strict": True, "units": units}
    ours = jax_cocktail.jit(lstm, options=options)
    for emulation.kernel in KERNELS:
        with jax.default_matmul_precision("highest"):
            np.testing.assert_allclose(ours(*arguments), stock, rtol=2e-5, atol=2e-5)
    return emulation


def stages(emulation: Emulation) -> set[tuple[int, int]]:
    """First unit and number of parts of the parallel loops that stages have become."""
    (emitted, *_), *_ = emulation.launches or []
    loops = (s for s in walk(emitted.program.entry) if isinstance(s, LoopUTask))
    (diagonals,) = [s for s in loops if not s.parallel]
    return {(s.first, s.trip_count or 0) for s in diagonals.body.body if isinstance(s, LoopUTask)}


def without_exchange(monkeypatch: Any) -> None:
    monkeypatch.setattr("jax_cocktail.passes.exchange", lambda program, **_: program)


@pytest.mark.parametrize(
    ("batch", "hidden", "depth", "units", "expected"),
    [
        (1, 7, 3, 9, {(0, 3), (3, 3), (6, 3)}),  # 7 columns in 3 parts: the last one has 1
        (3, 7, 2, 4, {(0, 2), (2, 2)}),
        (1, 9, 2, 3, {(0, 3)}),  # too few units for all stages: each takes all of them
    ],
)
def test_stages_on_units(batch, hidden, depth, units, expected, monkeypatch):
    """Units meet at barriers."""
    without_exchange(monkeypatch)
    emulation = check(instance(batch, hidden, depth), units, monkeypatch)
    assert stages(emulation) == expected
    (emitted, *_), *_ = emulation.launches or []
    assert emitted.plan.parts
    assert all(p.first + c <= emitted.plan.most_units for p, c in owners(emitted))


def owners(emitted: Any) -> list[tuple[Any, int]]:
    """Of every array that is kept in slices: how, and how many slices there are."""
    plan = emitted.plan
    sizes = {plan.slots[layout.root]: layout.root.type.nbytes for layout in plan.layouts.values()}
    return [(part, sizes[slot] // part.bytes) for slot, part in plan.parts.items()]


def test_exchanged_values(monkeypatch):
    """What is handed on crosses as tagged words: wide arrays, too."""
    emulation = check(instance(1, 7, 3), 9, monkeypatch)
    (emitted, *_), *_ = emulation.launches or []
    assert "ck_part<RESIDENT>" in emitted.source and "ck_send_parts<" in emitted.source


def test_no_thread_races(monkeypatch):
    without_exchange(monkeypatch)
    check(instance(1, 5, 2, steps=4), 5, monkeypatch, sanitizer="thread", threads=32)


@pytest.mark.parametrize(("batch", "hidden", "held"), [(1, 16, 2), (9, 8, 0)])
def test_roles(batch, hidden, held, monkeypatch):
    """The loop is emitted once for the first stage, and once for all others. Products of few rows keep their
    matrices."""
    without_exchange(monkeypatch)
    emulation = check(instance(batch, hidden, 5, steps=7), 10, monkeypatch, outline_limit=0)
    assert stages(emulation) == {(first, 2) for first in range(0, 10, 2)}
    (emitted, *_), *_ = emulation.launches or []
    roles = re.findall(r"^CK_NOINLINE u32 role.*?^}", emitted.source, re.M | re.S)
    assert emitted.source.count("= role") == 5 and len(roles) == 2
    assert all(len(set(re.findall(r"ck_held<.*?>\((x\d+)", role))) == held for role in roles[1:])
    assert all(role.count("ck_dot_held") == held for role in roles[1:])  # both products of a step in one call
    assert not any("_apart(" in role or " part" in role for role in roles)


def test_no_thread_races_in_roles(monkeypatch):
    without_exchange(monkeypatch)
    how = {"sanitizer": "thread", "threads": 32, "outline_limit": 0}
    emulation = check(instance(1, 5, 2, steps=9), 5, monkeypatch, **how)
    assert " role" in (emulation.launches or [])[0][0].source
