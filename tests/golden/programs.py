"""Programs whose IR and source text are pinned: each shows one thing that must not get worse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.candidate import Candidate, way
from jax_cocktail.utask.ir import UProgram
from jax_cocktail.utask.types import Value
from tests.null.gpus import recurrence
from tests.null.lanes import lock_step
from tests.null.programs import branch, build, counted, elementwise, while_loop
from tests.null.wavefronts import stacked_lstm


def _dot(b: Builder, x: Value, w: Value) -> Value:
    n = w.type.shape[1]
    attributes = {"lhs_batch": (), "lhs_contract": (0,), "rhs_batch": (), "rhs_contract": (0,)}
    return b.emit("dot", (x, w), "float32", (n,), **attributes)


def _part(b: Builder, x: Value, start: int, size: int) -> Value:
    return b.emit("slice", (x,), "float32", (size,), starts=(start,), strides=(1,))


def lstm_cell() -> UProgram:
    """One matmul, one lane loop, no copy: gates are views, both carries are updated in place."""

    def body(b: Builder, w: Value, h: Value, c: Value) -> tuple[Value, ...]:
        def step(_: Value, h: Value, c: Value) -> tuple[Value, ...]:
            z = _dot(b, h, w)
            i, f, g, o = (_part(b, z, 8 * k, 8) for k in range(4))
            keep = elementwise(b, "mul", elementwise(b, "logistic", f), c)
            new = elementwise(b, "mul", elementwise(b, "logistic", i), elementwise(b, "tanh", g))
            cell = elementwise(b, "add", keep, new)
            return elementwise(b, "mul", elementwise(b, "logistic", o), elementwise(b, "tanh", cell)), cell

        return counted(b, 64, (h, c), step)

    return build(["float32[8,32]", "float32[8]", "float32[8]"], body, donated=(1, 2))


def greedy_decoder() -> UProgram:
    """A data-dependent while: token in a register, row of the embedding as a view, argmax."""

    def body(b: Builder, table: Value, w: Value, start: Value) -> tuple[Value, ...]:
        zero = b.constant(0, "int32")

        def test(token: Value, count: Value) -> Value:
            going = b.emit("ne", (token, zero), "bool", ())
            short = b.emit("lt", (count, b.constant(50, "int32")), "bool", ())
            return b.emit("and", (going, short), "bool", ())

        def step(token: Value, count: Value) -> tuple[Value, ...]:
            row = b.reshape(b.emit("dynamic_slice", (table, token, zero), "float32", (1, 16)), (16,))
            logits = _dot(b, elementwise(b, "tanh", row), w)
            best = b.emit("arg_reduce", (logits,), "int32", (), axis=0, op="max")
            return best, b.emit("add", (count, b.constant(1, "int32")), "int32", ())

        return while_loop(b, (start, zero), test, step)

    return build(["float32[11,16]", "float32[16,11]", "int32[]"], body)


def skipped_branch() -> UProgram:
    """A branch that passes its operand through: the untaken side moves no byte."""

    def body(b: Builder, flags: Value, x: Value) -> tuple[Value, ...]:
        def step(i: Value, x: Value) -> tuple[Value, ...]:
            flag = b.reshape(b.emit("dynamic_slice", (flags, i), "bool", (1,)), ())
            return branch(b, b.convert(flag, "int32"), lambda: (x,), lambda: (elementwise(b, "sin", x),))

        return counted(b, 32, (x,), step)

    return build(["bool[32]", "float32[64]"], body, donated=(1,))


def swapped_carries() -> UProgram:
    """Two carries change places: rotated element by element, without a temporary array."""

    def body(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
        return counted(b, 5, (x, y), lambda _, x, y: (y, x))

    return build(["float32[16]", "float32[16]"], body)


def updated_row() -> UProgram:
    """A row of a carry is read, changed and written in place."""

    def body(b: Builder, x: Value) -> tuple[Value, ...]:
        zero = b.constant(0, "int64")

        def step(i: Value, x: Value) -> tuple[Value, ...]:
            row = b.emit("dynamic_slice", (x, i, zero), "float32", (1, 8))
            new = elementwise(b, "add", elementwise(b, "mul", row, row), row)
            return (b.emit("dynamic_update_slice", (x, new, i, zero), "float32", (6, 8)),)

        return counted(b, 6, (x,), step)

    return build(["float32[6,8]"], body, donated=(0,))


def softmax() -> UProgram:
    """Two reductions; exp is computed once and stored, the rest fuses."""

    def body(b: Builder, x: Value) -> tuple[Value, ...]:
        def step(_: Value, x: Value) -> tuple[Value, ...]:
            top = b.emit("reduce", (x,), "float32", (4,), op="max", axes=(1,))
            shifted = elementwise(b, "sub", x, b.broadcast(top, (4, 8), (0,)))
            e = elementwise(b, "exp", shifted)
            total = b.emit("reduce", (e,), "float32", (4,), op="sum", axes=(1,))
            return (elementwise(b, "div", e, b.broadcast(total, (4, 8), (0,))),)

        return counted(b, 3, (x,), step)

    return build(["float32[4,8]"], body)


def collatz(count: int) -> UProgram:
    """`vmap` of a while loop of two scalars, as many threads as elements: no block barrier, no array."""

    def body(b: Builder, numbers: Value) -> tuple[Value, ...]:
        def all_of(value: int) -> Value:
            return b.full(value, "int32", (count,))

        def step(n: Value, steps: Value) -> tuple[Value, ...]:
            rest = elementwise(b, "rem", n, all_of(2))
            even = elementwise(b, "eq", rest, all_of(0), dtype="bool")
            half = elementwise(b, "div", n, all_of(2))
            odd = elementwise(b, "add", elementwise(b, "mul", n, all_of(3)), all_of(1))
            return elementwise(b, "select", even, half, odd), elementwise(b, "add", steps, all_of(1))

        def going(n: Value, _: Value) -> Value:
            return elementwise(b, "gt", n, all_of(1), dtype="bool")

        return lock_step(b, (numbers, all_of(0)), going, step)[1:]

    return build([f"int32[{count}]"], body)


def lorenz(count: int) -> UProgram:
    """`vmap` of 500 Runge-Kutta steps of three numbers, a thread for each element: its state in registers."""

    def body(b: Builder, states: Value) -> tuple[Value, ...]:
        def scaled(factor: float, x: Value) -> Value:
            return elementwise(b, "mul", b.full(factor, "float32", x.type.shape), x)

        def moved(s: Value, h: float, slope: Value) -> Value:
            return elementwise(b, "add", s, scaled(h, slope))

        def slope(s: Value) -> Value:
            def column(k: int) -> Value:
                part = b.emit("slice", (s,), "float32", (count, 1), starts=(0, k), strides=(1, 1))
                return b.reshape(part, (count,))

            x, y, z = map(column, range(3))
            right = scaled(10.0, elementwise(b, "sub", y, x))
            falling = elementwise(b, "sub", b.full(28.0, "float32", (count,)), z)
            up = elementwise(b, "sub", elementwise(b, "mul", x, falling), y)
            out = elementwise(b, "sub", elementwise(b, "mul", x, y), scaled(8 / 3, z))
            rows = tuple(b.reshape(v, (count, 1)) for v in (right, up, out))
            return b.emit("concatenate", rows, "float32", (count, 3), dimension=1)

        def step(_: Value, s: Value) -> tuple[Value, ...]:
            first = slope(s)
            second = slope(moved(s, 0.005, first))
            third = slope(moved(s, 0.005, second))
            fourth = slope(moved(s, 0.01, third))
            inner = elementwise(b, "add", scaled(2.0, second), scaled(2.0, third))
            outer = elementwise(b, "add", first, fourth)
            return (moved(s, 0.01 / 6, elementwise(b, "add", inner, outer)),)

        return counted(b, 500, (states,), step)

    return build([f"float32[{count},3]"], body)


def factors(count: int) -> UProgram:
    """Three steps, each of which factors a matrix of 12 rows and solves with it: a thread for each element,
    with the matrix in memory of its own."""

    def body(b: Builder, matrices: Value, start: Value) -> tuple[Value, ...]:
        def step(_: Value, x: Value) -> tuple[Value, ...]:
            scale = b.broadcast(x, (count, 12, 12), (0, 1))
            factor = b.emit("cholesky", (elementwise(b, "mul", matrices, scale),), matrices.type)
            right = b.reshape(x, (count, 12, 1))
            solved = b.emit("triangular_solve", (factor, right), right.type, lower=True, unit_diagonal=False)
            return (b.reshape(solved, (count, 12)),)

        return counted(b, 3, (start,), step)

    return build([f"float32[{count},12,12]", f"float32[{count},12]"], body)


PROGRAMS: dict[str, Callable[[], UProgram]] = {
    f.__name__: f for f in (lstm_cell, greedy_decoder, skipped_branch, swapped_carries, updated_row, softmax)
}


@dataclass(frozen=True)
class Divided:
    """A program planned for several units: cores, or thread blocks of a GPU."""

    program: Callable[[], UProgram]
    candidate: Candidate
    on_gpu: bool = False


DIVIDED = {
    # the rows of a batch are independent: one parallel loop around the loop over time
    "batch_2_cores": Divided(partial(recurrence, 64, 256, 5), Candidate(2)),
    "batch_4_blocks": Divided(partial(recurrence, 64, 256, 5), Candidate(4), on_gpu=True),
    # each thread runs the loop of one element: no barrier, not even of a block
    "collatz_132_blocks": Divided(partial(collatz, 10**4), Candidate(132), on_gpu=True),
    "lorenz_132_blocks": Divided(partial(lorenz, 10**5), Candidate(132), on_gpu=True),
    # the same with arrays in the memory of each thread
    "factors_132_blocks": Divided(partial(factors, 10**5), Candidate(132), on_gpu=True),
    # features of one LSTM layer: one barrier per step, with work between its arrive and its wait
    "lstm_2_cores": Divided(partial(stacked_lstm, 1, 4, 1, 128), Candidate(2)),
    # the same on a GPU: an exchange of the hidden state replaces the barrier
    "exchange_4_blocks": Divided(partial(stacked_lstm, 1, 4, 1, 256), Candidate(4), on_gpu=True),
    # three LSTM layers, each one step behind the layer below: one barrier per diagonal
    "wavefront_2_cores": Divided(partial(stacked_lstm, 3, 4, 1, 128), way(2, pipeline=True)),
    # one layer on blocks 0 and 1, the other on blocks 2 and 3: one exchange per diagonal
    "wavefront_4_blocks": Divided(partial(stacked_lstm, 2, 4, 1, 256), way(4, pipeline=True), on_gpu=True),
    # blocks that synchronise by the hardware barrier of a thread-block cluster
    "cluster_4_blocks": Divided(partial(stacked_lstm, 1, 4, 16, 256), way(4, cluster=True), on_gpu=True),
}
