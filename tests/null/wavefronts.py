"""Programs with several recurrences in one loop, for tests of pipelining."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jax_cocktail.device.tuning import LoopTuning
from jax_cocktail.schedule.loops.wavefront.pipeline import pipeline
from jax_cocktail.schedule.simplify.hoist import hoist
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, UProgram, walk
from jax_cocktail.utask.remarks import Listener, nobody
from jax_cocktail.utask.types import Value
from tests.null.programs import branch, build, counted, elementwise, matmul

ALWAYS = LoopTuning(flops=0, trips=1)


def pipelined(program: UProgram, limits: LoopTuning = ALWAYS, remark: Listener = nobody) -> UProgram:
    return pipeline(hoist(simplify(program)), limits, remark)


def diagonals(program: UProgram) -> list[LoopUTask]:
    """The loops over diagonals."""
    loops = (s for s in walk(program.entry) if isinstance(s, LoopUTask))
    return [loop for loop in loops if any(is_outlined(s) for s in loop.body.body)]


def is_outlined(statement: object) -> bool:
    return isinstance(statement, BranchUTask) and statement.stage is not None


def row(b: Builder, rows: Value, index: Value) -> Value:
    """rows[index]."""
    zero, shape = b.constant(0, "int64"), rows.type.shape[1:]
    starts = (index, *[zero] * len(shape))
    return b.reshape(b.emit("dynamic_slice", (rows, *starts), rows.type.dtype, (1, *shape)), shape)


def put_row(b: Builder, rows: Value, value: Value, index: Value) -> Value:
    zero = b.constant(0, "int64")
    starts = (index, *[zero] * value.type.rank)
    update = b.reshape(value, (1, *value.type.shape))
    return b.emit("dynamic_update_slice", (rows, update, *starts), rows.type.dtype, rows.type.shape)


def lstm_cell(b: Builder, x: Value, h: Value, c: Value, weights: Sequence[Value]) -> tuple[Value, Value]:
    """One step; gates in the order input, forget, candidate, output."""
    w, u = weights
    gates = elementwise(b, "add", matmul(b, x, w), matmul(b, h, u))
    rows, n = h.type.shape
    i, f, g, o = (
        b.emit("slice", (gates,), "float32", (rows, n), starts=(0, k * n), strides=(1, 1)) for k in range(4)
    )
    kept = elementwise(b, "mul", elementwise(b, "logistic", f), c)
    new = elementwise(b, "mul", elementwise(b, "logistic", i), elementwise(b, "tanh", g))
    c = elementwise(b, "add", kept, new)
    return elementwise(b, "mul", elementwise(b, "logistic", o), elementwise(b, "tanh", c)), c


def stacked_lstm(depth: int, trips: int, batch: int = 1, size: int = 16) -> UProgram:
    """The last hidden state of all layers, and every one of the last layer."""

    def body(b, xs, *weights):
        zero = b.full(0.0, "float32", (batch, size))
        rows = b.full(0.0, "float32", (trips, batch, size))

        def step(t, ys, *state):
            x, new = row(b, xs, t), []
            for k in range(depth):
                h, c = lstm_cell(b, x, *state[2 * k : 2 * k + 2], weights[2 * k : 2 * k + 2])
                new += [h, c]
                x = h
            return [put_row(b, ys, x, t), *new]

        ys, *state = counted(b, trips, [rows, *[zero] * (2 * depth)], step)
        return [ys, *state[::2]]

    matrix = f"float32[{size},{4 * size}]"
    return build([f"float32[{trips},{batch},{size}]", *[matrix] * (2 * depth)], body)


class RandomChain:
    """Layers of different kinds, one feeding the next, with what makes it hard: residual connections, skips
    over layers, values of the step before, counters, sums, stacked results, branches inside layers."""

    def __init__(self, seed: int, size: int = 4) -> None:
        self.random = np.random.default_rng(seed)
        self.depth = int(self.random.integers(2, 7))
        self.trips = int(self.random.choice([1, 2, 7]))
        self.batch, self.size = int(self.random.integers(1, 3)), size

    def chance(self, share: float) -> bool:
        return bool(self.random.random() < share)

    def program(self) -> UProgram:
        shapes = [f"float32[{self.trips},{self.batch},{self.size}]"]
        shapes += [f"float32[{self.size},{self.size}]"] * (3 * self.depth)
        return build(shapes, self.body)

    def body(self, b, xs, *weights):
        self.b, self.weights = b, weights
        zero = b.full(0.0, "float32", (self.batch, self.size))
        rows = b.full(0.0, "float32", (self.trips + 1, self.batch, self.size))
        kinds = [int(self.random.integers(6)) for _ in range(self.depth)]
        stacks = [self.chance(0.4) for _ in range(self.depth)]
        state = self.random.bit_generator.state

        def step(t, count, total, *carried):
            self.random.bit_generator.state = state
            hs, ys = carried[: self.depth], carried[self.depth :]
            x, new, rows = row(b, xs, t), [], []
            outputs = [x]
            for k, kind in enumerate(kinds):
                h = self.layer(kind, k, x, hs[k], outputs, hs)
                new.append(h)
                x = h if self.chance(0.6) else elementwise(b, "add", h, outputs[-1])
                outputs.append(x)
                if stacks[k]:
                    rows.append(put_row(b, ys[len(rows)], x, t))
            one = b.emit("convert", (count,), "float32", ())
            sum_ = b.emit("reduce", (outputs[-1],), "float32", (), axes=(0, 1), op="sum")
            total = elementwise(b, "add", total, elementwise(b, "mul", sum_, one))
            count = elementwise(b, "add", count, b.constant(2, "int32"))
            return [count, total, *new, *rows]

        initial = [b.constant(3, "int32"), b.constant(0.0, "float32")]
        initial += [zero] * self.depth + [rows] * sum(stacks)
        return counted(b, self.trips, initial, step)

    def layer(self, kind, k, x, h, outputs, before):
        b = self.b
        w, u, v = self.weights[3 * k : 3 * k + 3]
        if kind == 1:  # reads an output of any earlier layer, too
            x = elementwise(b, "max", x, outputs[int(self.random.integers(len(outputs)))])
        if kind == 2 and k:  # and the state of the layer below, a step before
            x = elementwise(b, "sub", x, before[k - 1])
        sum_ = elementwise(b, "add", matmul(b, x, w), matmul(b, h, u))
        if kind == 3:  # a second product, on the cycle
            sum_ = matmul(b, elementwise(b, "tanh", sum_), v)
        if kind == 4:  # a product on no cycle
            sum_ = elementwise(b, "add", sum_, matmul(b, elementwise(b, "tanh", matmul(b, x, v)), w))
        if kind == 5:  # a branch
            low = b.emit("reduce", (h,), "float32", (), axes=(0, 1), op="min")
            small = elementwise(b, "lt", low, b.constant(0.0, "float32"), dtype="bool")
            selector = b.emit("convert", (small,), "int32", ())
            (sum_,) = branch(
                b, selector, lambda: [elementwise(b, "neg", sum_)], lambda: [elementwise(b, "sin", sum_)]
            )
        return elementwise(b, "tanh", sum_)
