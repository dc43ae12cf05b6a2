"""Small programs for tests, built with the rules' own builder (no jax)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jax_cocktail.analysis.verifier import verify
from jax_cocktail.utask.arrays import numpy_dtype
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, UProgram, walk
from jax_cocktail.utask.types import TensorType, Value
from tests.oracle.interpreter.run import run

Body = Callable[..., Sequence[Value]]


def tensor(text: str) -> TensorType:
    """A type from its printed form: "float32[2,3]"."""
    dtype, _, rest = text.partition("[")
    return TensorType(dtype, tuple(int(n) for n in rest.rstrip("]").split(",") if n))


def build(parameters: Sequence[str], body: Body, donated: tuple[int, ...] = ()) -> UProgram:
    """A verified program; `body(builder, *parameters)` gives the results."""
    program = unverified(parameters, body, donated)
    verify(program)
    return program


def unverified(parameters: Sequence[str], body: Body, donated: tuple[int, ...] = ()) -> UProgram:
    builder = Builder()
    values = [fresh(builder, tensor(p)) for p in parameters]
    results = body(builder, *values)
    return UProgram("test", builder.finish(values, results), donated)


def fresh(builder: Builder, type_: TensorType) -> Value:
    return builder.value(type_.dtype, type_.shape)


def like(builder: Builder, values: Sequence[Value]) -> tuple[Value, ...]:
    return tuple(fresh(builder, value.type) for value in values)


def elementwise(builder: Builder, kind: str, *operands: Value, dtype: str = "", **attributes: Any) -> Value:
    x = operands[-1]
    return builder.emit(kind, operands, dtype or x.type.dtype, x.type.shape, **attributes)


def matmul(b: Builder, x: Value, w: Value) -> Value:
    rank = x.type.rank
    shape = (*x.type.shape[:-1], *w.type.shape[1:])
    axes = {"lhs_batch": (), "lhs_contract": (rank - 1,), "rhs_batch": (), "rhs_contract": (0,)}
    return b.emit("dot", (x, w), x.type.dtype, shape, **axes)


def region(builder: Builder, parameters: Sequence[Value], body: Body, *arguments: Value) -> Region:
    with builder.region() as statements:
        results = body(*arguments)
    return Region(tuple(parameters), tuple(statements), tuple(results))


def counted(builder: Builder, trips: int, initial: Sequence[Value], body: Body) -> tuple[Value, ...]:
    """A counted loop; `body(index, *carried)` gives the next carried values."""
    index, carried = builder.value("int64"), like(builder, initial)
    inner = region(builder, (index, *carried), body, index, *carried)
    outputs = like(builder, initial)
    builder.out.append(LoopUTask(tuple(initial), outputs, inner, trip_count=trips))
    return outputs


def lstm(batch: int, hidden: int, steps: int = 5, keeps: bool = True) -> UProgram:
    """One layer with a split of the gates, and the rows of all steps."""

    def body(b: Builder, xs: Value, w: Value, bias: Value) -> tuple[Value, ...]:
        zero = b.full(0.0, "float32", (batch, hidden))
        ys = b.emit("empty", (), "float32", (steps, batch, hidden))

        def step(i: Value, h: Value, c: Value, ys: Value) -> tuple[Value, ...]:
            none = b.constant(0, "int64")
            x = b.emit("dynamic_slice", (xs, i, none, none), "float32", (1, batch, 4 * hidden))
            z = elementwise(b, "add", b.reshape(x, (batch, 4 * hidden)), matmul(b, h, w))
            z = elementwise(b, "add", z, b.broadcast(bias, (batch, 4 * hidden), (1,)))
            gates = [
                b.emit("slice", (z,), "float32", (batch, hidden), starts=(0, k * hidden), strides=(1, 1))
                for k in range(4)
            ]
            i_, f, g, o = (
                elementwise(b, kind, v)
                for kind, v in zip(("logistic", "logistic", "tanh", "logistic"), gates, strict=True)
            )
            c = elementwise(b, "add", elementwise(b, "mul", f, c), elementwise(b, "mul", i_, g))
            h = elementwise(b, "mul", o, elementwise(b, "tanh", c))
            row = b.reshape(h, (1, batch, hidden))
            return (
                h,
                c,
                b.emit("dynamic_update_slice", (ys, row, i, none, none), ys.type.dtype, ys.type.shape),
            )

        h, _, ys = counted(b, steps, (zero, zero, ys), step)
        return (h, ys) if keeps else (h,)

    return build(
        [
            f"float32[{steps},{batch},{4 * hidden}]",
            f"float32[{hidden},{4 * hidden}]",
            f"float32[{4 * hidden}]",
        ],
        body,
    )


def while_loop(
    builder: Builder, initial: Sequence[Value], condition: Callable[..., Value], body: Body
) -> tuple[Value, ...]:
    tested, carried = like(builder, initial), like(builder, initial)
    test = region(builder, tested, lambda *values: (condition(*values),), *tested)
    inner = region(builder, carried, body, *carried)
    outputs = like(builder, initial)
    builder.out.append(LoopUTask(tuple(initial), outputs, inner, condition=test))
    return outputs


def branch(builder: Builder, selector: Value, *bodies: Callable[[], Sequence[Value]]) -> tuple[Value, ...]:
    regions = tuple(region(builder, (), body) for body in bodies)
    outputs = like(builder, regions[0].results)
    builder.out.append(BranchUTask(selector, regions, outputs))
    return outputs


def shape_text(array: np.ndarray) -> str:
    """The printed form of an array's type."""
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"


def apply(kind: str, arrays: Sequence[Any], result: str, **attributes: Any) -> np.ndarray:
    """One operator on arrays, verified and run."""
    return apply_many(kind, arrays, [result], **attributes)[0]


def apply_many(
    kind: str, arrays: Sequence[Any], results: Sequence[str], **attributes: Any
) -> list[np.ndarray]:
    operands = [np.asarray(a) for a in arrays]
    types = [shape_text(a) for a in operands]
    outputs = [(t.dtype, t.shape) for t in map(tensor, results)]
    program = build(types, lambda b, *values: b.emit_many(kind, values, outputs, **attributes))
    return run(program, operands)


def arguments(program: UProgram, seed: int = 0) -> list[np.ndarray]:
    """Random arguments for a program."""
    random = np.random.default_rng(seed)
    result = []
    for value in program.entry.parameters:
        dtype = numpy_dtype(value.type.dtype)
        if value.type.dtype == "bool":
            result.append(random.random(value.type.shape) < 0.5)
        elif dtype.kind in "iu":
            result.append(random.integers(0, 5, value.type.shape).astype(dtype))
        else:
            result.append(random.normal(size=value.type.shape).astype(dtype))
    return result


def same_results(first: UProgram, second: UProgram, seed: int = 0) -> None:
    """Asserts that both programs give the same bits."""
    given = arguments(first, seed)
    for x, y in zip(run(first, given), run(second, given), strict=True):
        np.testing.assert_array_equal(x, y)


def renumbered(program: UProgram, offset: int = 1000) -> UProgram:
    """The same program with other value ids."""

    def new(values: Sequence[Value]) -> tuple[Value, ...]:
        return tuple(Value(offset - value.id, value.type) for value in values)

    def visit(inner: Region) -> Region:
        body = []
        for statement in inner.body:
            if isinstance(statement, LoopUTask):
                condition = statement.condition and visit(statement.condition)
                changed: Any = replace(
                    statement,
                    initial=new(statement.initial),
                    condition=condition,
                    body=visit(statement.body),
                    outputs=new(statement.outputs),
                )
            elif isinstance(statement, BranchUTask):
                changed = replace(
                    statement,
                    selector=new([statement.selector])[0],
                    outputs=new(statement.outputs),
                    branches=tuple(map(visit, statement.branches)),
                )
            else:
                changed = replace(statement, inputs=new(statement.inputs), outputs=new(statement.outputs))
            body.append(changed)
        return Region(new(inner.parameters), tuple(body), new(inner.results))

    return replace(program, entry=visit(program.entry))


def kinds(program: UProgram) -> list[str]:
    """Kind of every operator, "loop" and "branch" for nested uTasks, in order."""
    names = {LoopUTask: "loop", BranchUTask: "branch"}
    return [names.get(type(s)) or getattr(s, "kind", "stitched") for s in walk(program.entry)]


def random_program(seed: int) -> UProgram:
    """A small random program over float32[3], with nested loops, branches, dead and repeated parts."""
    return _Random(seed).program()


class _Random:
    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.builder = Builder()

    def program(self) -> UProgram:
        builder = self.builder
        parameters = [builder.value("float32", (3,)) for _ in range(2)] + [builder.value("int32")]
        self.selector = parameters[-1]
        pool = self.statements(list(parameters[:2]), 2)
        results = [self.pick(pool) for _ in range(2)]
        program = UProgram("random", builder.finish(parameters, results))
        verify(program)
        return program

    def pick(self, pool: list[Value]) -> Value:
        return pool[int(self.random.integers(len(pool)))]

    def statements(self, pool: list[Value], depth: int) -> list[Value]:
        for _ in range(int(self.random.integers(2, 6))):
            choice = self.random.integers(10)
            if choice < 2 and depth:
                pool = pool + self.loop(pool, depth)
            elif choice < 4 and depth:
                pool = pool + self.branch(pool, depth)
            else:
                pool = pool + [self.operator(pool)]
        return pool

    def operator(self, pool: list[Value]) -> Value:
        builder, x = self.builder, self.pick(pool)
        choice = self.random.integers(7)
        if choice == 0:
            return builder.full(float(self.random.integers(3)), "float32", (3,))
        if choice == 1:
            pair = builder.emit("concatenate", (x, self.pick(pool)), "float32", (6,), dimension=0)
            start = int(self.random.integers(4))
            return builder.emit("slice", (pair,), "float32", (3,), starts=(start,), strides=(1,))
        if choice == 2:
            wide = builder.convert(x, "float64")
            return builder.convert(wide, "float32")
        if choice == 3:
            column = builder.reshape(x, (3, 1))
            return builder.reshape(builder.reshape(column, (1, 3)), (3,))
        if choice == 4:
            yes = builder.full(bool(self.random.integers(2)), "bool", (3,))
            return elementwise(builder, "select", yes, x, self.pick(pool))
        kind = ("add", "sub", "max")[int(self.random.integers(3))]
        return elementwise(builder, kind, x, self.pick(pool))

    def loop(self, pool: list[Value], depth: int) -> list[Value]:
        count = int(self.random.integers(1, 4))
        initial = [self.pick(pool) for _ in range(count)]

        def body(index: Value, *carried: Value) -> list[Value]:
            inner = self.statements([*pool, *carried], depth - 1)
            choices = (lambda i: carried[i], lambda i: self.pick(inner), lambda i: inner[-1])
            return [choices[int(self.random.integers(3))](i) for i in range(count)]

        return list(counted(self.builder, int(self.random.integers(4)), initial, body))

    def branch(self, pool: list[Value], depth: int) -> list[Value]:
        fixed = self.random.integers(3) == 0
        selector = self.builder.constant(int(self.random.integers(4)), "int32") if fixed else self.selector

        def body() -> list[Value]:
            inner = self.statements(pool, depth - 1)
            return [self.pick(inner), self.pick(inner)]

        return list(branch(self.builder, selector, *(body for _ in range(int(self.random.integers(1, 4))))))


def long_program() -> UProgram:
    """A chain of products of small matrices, each of which needs the one before it."""

    def body(b: Builder, x: Value) -> list[Value]:
        for _ in range(40):
            x = matmul(b, x, x)
            x = b.emit("cumulative", (x,), "float32", (8, 8), axis=0, op="max", reverse=False)
        return [x]

    return build(["float32[8,8]"], body)
