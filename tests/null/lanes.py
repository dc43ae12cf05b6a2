"""Loops in lock-step, as `jax.vmap` makes them, and what `recover` makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.device.tuning import BatchTuning
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.vmap.recover import recover
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import LoopUTask, UProgram, walk
from jax_cocktail.utask.types import Value
from tests.null.programs import arguments, build, elementwise, while_loop
from tests.oracle.interpreter.run import run

EAGER = BatchTuning(slots=4, rows=2, rounds=2, branch_flops=16.0, parallel_flops=1.0)
Step = Callable[..., Sequence[Value]]


def lock_step(
    b: Builder, initial: Sequence[Value], test: Callable[..., Value], step: Step
) -> tuple[Value, ...]:
    """What translation makes of a vmapped while loop."""

    def condition(*carried: Value) -> Value:
        predicate = test(*carried)
        axes = tuple(range(predicate.type.rank))
        return b.emit("reduce", (predicate,), "bool", (), axes=axes, op="or")

    def body(*carried: Value) -> list[Value]:
        following = step(*carried)
        active = test(*carried)
        axes = tuple(range(active.type.rank))
        return [
            elementwise(b, "select", b.broadcast(active, new.type.shape, axes), new, old)
            for new, old in zip(following, carried, strict=True)
        ]

    return while_loop(b, initial, condition, body)


def less(b: Builder, x: Value, y: Value) -> Value:
    return elementwise(b, "lt", x, y, dtype="bool")


def add_one(b: Builder, x: Value) -> Value:
    return elementwise(b, "add", x, b.full(1, x.type.dtype, x.type.shape))


def counting(lanes: int, *row: int) -> UProgram:
    """Every lane counts to its own limit and changes a row on the way."""

    def body(b, limit, x):
        def step(n, y):
            return [add_one(b, n), elementwise(b, "mul", y, b.full(1.5, "float32", y.type.shape))]

        start = b.full(0, "int32", limit.type.shape)
        return lock_step(b, [start, x], lambda n, y: less(b, n, limit), step)

    shape = ",".join(map(str, (lanes, *row)))
    return simplify(build([f"int32[{lanes}]", f"float32[{shape}]"], body))


def loops(program: UProgram) -> list[LoopUTask]:
    return [s for s in walk(program.entry) if isinstance(s, LoopUTask)]


def agree(program: UProgram, after: UProgram, inputs: Sequence[np.ndarray]) -> None:
    for x, y in zip(run(program, inputs), run(after, inputs), strict=True):
        np.testing.assert_array_equal(x, y)


def check(program: UProgram, changes: bool = True, units: int = 1, limits: BatchTuning = EAGER) -> UProgram:
    """Recovers, verifies, compares on several arguments."""
    after = recover(program, units, limits=limits)
    assert (after is not program) == changes
    verify(after)
    tidy = simplify(after)
    verify(tidy)
    for seed in range(3):
        given = arguments(program, seed)
        agree(program, after, given)
        agree(program, tidy, given)
    return tidy
