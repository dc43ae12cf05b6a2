"""Barriers of loops that run until the data say stop: how many a trip takes, and that each is needed."""

from __future__ import annotations

import numpy as np
import pytest

from jax_cocktail.placement.limits import Limits
from jax_cocktail.placement.mesh import UnitMesh
from jax_cocktail.placement.place import place
from jax_cocktail.schedule import copies, sharing, unroll
from jax_cocktail.schedule.barriers import ALL, FIRST, Access
from jax_cocktail.schedule.barriers import waits as run_waits
from jax_cocktail.schedule.simplify import simplify
from jax_cocktail.schedule.unroll import guarded, out_of_place, unroll_pairs
from jax_cocktail.utask.guard import stopping_branch
from jax_cocktail.utask.interpreter import run
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, UOperator, UProgram, walk
from jax_cocktail.utask.mesh_interpreter import barrier_count, run_mesh, simulate
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.verifier import verify
from tests.null.meshes import Planned, block, empty, mapped, parts, planned, put
from tests.null.programs import branch, build, counted, elementwise, matmul, same_results, while_loop

PRODUCTS = Limits(flops=200, light=400)  # alone are worth dividing
EAGER = Limits(flops=0, bytes=0, light=20.0, again=1.0, pack_trips=2)


def below(b, x, bound, dtype="int32"):
    return elementwise(b, "lt", x, b.constant(bound, dtype), dtype="bool")


def following(b, count):
    return elementwise(b, "add", count, b.constant(1, "int32"))


def row(b, table, at):
    zero = b.constant(0, "int32")
    width = table.type.shape[1]
    return b.reshape(b.emit("dynamic_slice", (table, at, zero), "float32", (1, width)), (width,))


# -- programs ------------------------------------------------------------------------------------------------
def greedy(hidden=12, words=20, bound=7):
    """h = tanh(table[token] + h @ w), token = argmax(h @ out), until a token is 0."""

    def body(b, table, w, out, h):
        def going(count, token, h):
            ended = elementwise(b, "ne", token, b.constant(0, "int32"), dtype="bool")
            return elementwise(b, "and", below(b, count, bound), ended)

        def step(count, token, h):
            h = elementwise(b, "tanh", elementwise(b, "add", row(b, table, token), matmul(b, h, w)))
            logits = elementwise(b, "tanh", matmul(b, h, out))
            token = b.emit("arg_reduce", (logits,), "int32", (), axis=0, op="max")
            return following(b, count), token, h

        start = b.constant(0, "int32"), b.constant(1, "int32"), h
        return while_loop(b, start, going, step)

    shapes = (words, hidden), (hidden, hidden), (hidden, words), (hidden,)
    return build([f"float32[{','.join(map(str, s))}]" for s in shapes], body)


def conjugate_gradients(size=12, bound=5):
    """Of which only x is a result; r, p and the numbers are as small as x."""

    def body(b, a, right):
        def times(scalar, x):
            return elementwise(b, "mul", b.broadcast(scalar, (size,), ()), x)

        def going(x, r, p, rs, count):
            tiny = elementwise(b, "gt", rs, b.constant(1e-9, "float32"), dtype="bool")
            return elementwise(b, "and", tiny, below(b, count, bound))

        def step(x, r, p, rs, count):
            q = matmul(b, a, p)
            alpha = elementwise(b, "div", rs, matmul(b, p, q))
            x = elementwise(b, "add", x, times(alpha, p))
            r = elementwise(b, "sub", r, times(alpha, q))
            new = matmul(b, r, r)
            p = elementwise(b, "add", r, times(elementwise(b, "div", new, rs), p))
            return x, r, p, new, following(b, count)

        zero, count = b.full(0.0, "float32", (size,)), b.constant(0, "int32")
        return while_loop(b, (zero, right, right, matmul(b, right, right), count), going, step)[:1]

    return build([f"float32[{size},{size}]", f"float32[{size}]"], body)


def newton(size=24, bound=5):
    """Square roots, all of them until the last one is good: x is updated in place, and read by all."""

    def body(b, a):
        def going(x, count):
            wrong = elementwise(b, "abs", elementwise(b, "sub", elementwise(b, "mul", x, x), a))
            most = b.emit("reduce", (wrong,), "float32", (), axes=(0,), op="max")
            far = elementwise(b, "gt", most, b.constant(1e-6, "float32"), dtype="bool")
            return elementwise(b, "and", far, below(b, count, bound))

        def step(x, count):
            half = b.full(0.5, "float32", (size,))
            better = elementwise(b, "add", x, elementwise(b, "div", a, x))
            return elementwise(b, "mul", half, better), following(b, count)

        return while_loop(b, (a, b.constant(0, "int32")), going, step)[:1]

    return build([f"float32[{size}]"], body)


def tree(nodes=9, size=12, bound=6):
    """Every row from the two before it: rows[n] = tanh((rows[n - 1] + rows[n - 2]) @ w)."""

    def body(b, rows, w):
        def step(count, rows):
            zero, one = b.constant(0, "int32"), b.constant(1, "int32")
            left = elementwise(b, "sub", count, one)
            pair = elementwise(b, "add", row(b, rows, left), row(b, rows, elementwise(b, "sub", left, one)))
            new = b.reshape(elementwise(b, "tanh", matmul(b, pair, w)), (1, size))
            rows = b.emit("dynamic_update_slice", (rows, new, count, zero), "float32", (nodes, size))
            return following(b, count), rows

        start = b.constant(2, "int32"), elementwise(b, "neg", rows)
        _, rows = while_loop(b, start, lambda count, _: below(b, count, bound), step)
        return (row(b, rows, b.constant(bound - 1, "int32")),)

    return build([f"float32[{nodes},{size}]", f"float32[{size},{size}]"], body)


# limits, barriers per trip when one buffer is all that there is, and now
PROGRAMS = {
    "greedy": (greedy, PRODUCTS, 3, 2),
    "conjugate gradients": (conjugate_gradients, PRODUCTS, 2, 1),
    "newton": (newton, EAGER, 2, 1),
    "tree": (tree, PRODUCTS, 2, 1),
}


def arguments(program: UProgram, seed: int) -> list[np.ndarray]:
    """Positive definite where square, positive everywhere else."""
    random = np.random.default_rng(seed)
    found = []
    for value in program.entry.parameters:
        x = random.uniform(0.1, 1.0, size=value.type.shape).astype(np.float32)
        square = x.ndim == 2 and x.shape[0] == x.shape[1]
        found.append((x @ x.T / len(x) + np.eye(len(x), dtype=np.float32)) if square else x)
    return found


def divided(name: str, units: int) -> UProgram:
    make, limits, *_ = PROGRAMS[name]
    return place(simplify(make()), UnitMesh(units=units), limits=limits)


def per_trip(program: UProgram) -> list[float]:
    """Barriers per trip of the loop that was written, of every loop with a condition."""
    found = []
    for loop in walk(program.entry):
        if isinstance(loop, LoopUTask) and loop.condition is not None:
            twice = 1 if stopping_branch(loop) is None else 2
            found.append(sum(run_waits(s) for r in loop.regions for s in r.body) / twice)
    return found


def agrees(program: UProgram, ready: Planned, seed: int, units: int) -> None:
    values = arguments(program, seed)
    expected = run(program, values)
    for order in (None, list(range(units))[::-1], np.random.default_rng(seed)):
        found = run_mesh(*ready, values, units, order=order)
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_array_equal(x, y)
