"""How long planning takes, pass by pass, and programs of any length to show how it grows. Needs no jax."""

from __future__ import annotations

import time
from collections import Counter

from jax_cocktail.codegen.machines import HOST
from jax_cocktail.compiler import emit
from jax_cocktail.device.machine import Machine
from jax_cocktail.schedule.sync.plan_tail import Planned
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.candidate import SINGLE, Candidate
from jax_cocktail.utask.ir import UProgram

WEIGHTS = 4  # of a straight program
AXES = {"lhs_contract": (1,), "rhs_contract": (0,), "lhs_batch": (), "rhs_batch": ()}


def planning_seconds(
    program: UProgram, machine: Machine = HOST, candidate: Candidate = SINGLE
) -> Counter[str]:
    """CPU seconds of every pass, and under "all" of everything up to the source text."""
    found: Counter[str] = Counter()
    start = last = time.process_time()

    def observe(name: str, _: Planned, __: float) -> None:
        nonlocal last
        now = time.process_time()
        found[name] += now - last
        last = now

    emit(program, machine, (observe,), candidate)
    found["all"] = time.process_time() - start
    return found


def straight(statements: int, size: int = 32) -> UProgram:
    """A program of about so many statements: layers of a product, an activation and a sum, in a line."""
    builder, shape = Builder(), (size, size)
    x, *weights = parameters = [builder.value("float32", shape) for _ in range(1 + WEIGHTS)]
    for number in range(statements // 3):
        product = builder.emit("dot", (x, weights[number % WEIGHTS]), "float32", shape, **AXES)
        x = builder.emit("add", (x, builder.emit("tanh", (product,), "float32", shape)), "float32", shape)
    return UProgram("straight", builder.finish(parameters, (x,)))
