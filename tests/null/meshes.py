"""Programs with parallel loops, and what it takes to run them on a simulated mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from jax_cocktail import passes
from jax_cocktail.analysis.verifier import verify
from jax_cocktail.schedule.simplify.canonicalise import canonicalise
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.sync import double_buffer as buffering
from jax_cocktail.schedule.sync import exchange as exchanges
from jax_cocktail.schedule.sync.plan_tail import finish
from jax_cocktail.stitch.fuse import fuse
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import LoopUTask, UProgram
from jax_cocktail.utask.plan import MemoryPlan
from jax_cocktail.utask.types import Value
from tests.null.programs import Body, arguments, branch, counted, elementwise, like, region, while_loop
from tests.oracle.interpreter.run import run
from tests.oracle.mesh_interpreter import barrier_count, run_mesh, simulate

Planned = tuple[UProgram, MemoryPlan]

# The passes that try a program, as the compiler runs them.
exchange = partial(exchanges.exchange, trial=passes.trial)
double_buffer = partial(buffering.double_buffer, trial=passes.trial)


def parts(builder: Builder, trips: int, initial: Sequence[Value], body: Body) -> tuple[Value, ...]:
    """A parallel loop; `body(index, *carried)` gives the next carried arrays."""
    index, carried = builder.value("int64"), like(builder, initial)
    inner = region(builder, (index, *carried), body, index, *carried)
    outputs = like(builder, initial)
    builder.out.append(LoopUTask(tuple(initial), outputs, inner, trip_count=trips, parallel=True))
    return outputs


def starts(builder: Builder, array: Value, index: Value, axis: int, tile: int) -> list[Value]:
    """The corner of a part's block."""
    start = index if tile == 1 else builder.emit("mul", (index, builder.constant(tile, "int64")), "int64", ())
    zero = builder.constant(0, "int64")
    return [start if d == axis else zero for d in range(array.type.rank)]


def block(builder: Builder, array: Value, index: Value, axis: int = 0, tile: int = 1) -> Value:
    """A part's own block of an array."""
    shape = list(array.type.shape)
    shape[axis] = tile
    place = starts(builder, array, index, axis, tile)
    return builder.emit("dynamic_slice", (array, *place), array.type.dtype, shape)


def put(builder: Builder, array: Value, update: Value, index: Value, axis: int = 0, tile: int = 1) -> Value:
    place = starts(builder, array, index, axis, tile)
    return builder.emit("dynamic_update_slice", (array, update, *place), array.type.dtype, array.type.shape)


def empty(builder: Builder, value: Value) -> Value:
    return builder.emit("empty", (), value.type.dtype, value.type.shape)


def mapped(
    builder: Builder, array: Value, function: Callable[[Value], Value], trips: int, axis: int = 0
) -> Value:
    """`function` on every block of an array, in parallel."""
    tile = array.type.shape[axis] // trips

    def body(index: Value, out: Value) -> tuple[Value, ...]:
        return (put(builder, out, function(block(builder, array, index, axis, tile)), index, axis, tile),)

    return parts(builder, trips, (empty(builder, array),), body)[0]


def crossing(builder: Builder, x: Value, trips: int = 5) -> tuple[Value, ...]:
    """A recurrence over float32[4,6] in which four units write one array by rows and six another by columns,
    and every unit reads the whole of both in every step."""

    def largest(array: Value, shape: tuple[int, int]) -> Value:
        top = builder.emit("reduce", (array,), "float32", (), axes=(0, 1), op="max")
        return builder.broadcast(top, shape, ())

    def step(_: Value, state: Value) -> tuple[Value, ...]:
        def row(i: Value, out: Value) -> tuple[Value, ...]:
            new = elementwise(builder, "sub", block(builder, x, i), largest(state, (1, 6)))
            return (put(builder, out, new, i),)

        (rows,) = parts(builder, 4, (empty(builder, x),), row)

        def column(i: Value, out: Value) -> tuple[Value, ...]:
            new = elementwise(builder, "sub", block(builder, x, i, 1), largest(rows, (4, 1)))
            return (put(builder, out, elementwise(builder, "sin", new), i, 1),)

        return parts(builder, 6, (empty(builder, x),), column)

    return counted(builder, trips, (x,), step)


def lagging(builder: Builder, x: Value, trips: int = 5) -> tuple[Value, ...]:
    """A recurrence over float32[4,6] in which four units write what all of six read in every step."""

    def step(_: Value, state: Value, sums: Value) -> tuple[Value, ...]:
        def row(i: Value, out: Value) -> tuple[Value, ...]:
            return (put(builder, out, elementwise(builder, "sin", block(builder, state, i)), i),)

        def column(i: Value, out: Value) -> tuple[Value, ...]:
            top = builder.emit("reduce", (state,), "float32", (), axes=(0, 1), op="max")
            new = elementwise(builder, "add", block(builder, out, i, 1), builder.broadcast(top, (4, 1), ()))
            return (put(builder, out, new, i, 1),)

        return *parts(builder, 4, (empty(builder, x),), row), *parts(builder, 6, (sums,), column)

    return counted(builder, trips, (x, elementwise(builder, "neg", x)), step)


def planned(program: UProgram) -> Planned:
    """Stitched, planned and synchronised."""
    stitched = fuse(canonicalise(simplify(program)))
    verify(stitched)
    ready = finish(stitched, observe=lambda _, planned, __: verify(planned.program))
    return ready.program, ready.plan


def given(program: UProgram, seed: int) -> list[np.ndarray]:
    """Random arguments; selectors take every way in turn."""
    found = arguments(program, seed)
    return [np.asarray(seed % 2, a.dtype) if a.dtype == np.int32 and not a.shape else a for a in found]


def agrees(program: UProgram, ready: Planned, seed: int = 0, most: int = 3) -> None:
    """Every number of units, in any order, gives the results of the plain interpreter, without a race."""
    values = given(program, seed)
    expected = run(program, values)
    for units in range(1, most + 1):
        reverse = list(range(units))[::-1]
        for order in (None, reverse, np.random.default_rng(seed)):
            found = run_mesh(*ready, values, units, order=order)
            for x, y in zip(found, expected, strict=True):
                np.testing.assert_array_equal(x, y)


def useless_barriers(program: UProgram, ready: Planned, seeds: Sequence[int] = (0,)) -> list[int]:
    """The barriers that can be left out without a race on any of these arguments."""
    useless = list(range(barrier_count(ready[0])))
    for seed in seeds:
        values = given(program, seed)
        useless = [n for n in useless if not simulate(*ready, values, 3, drop_barrier=n).races]
    return useless


class RandomMesh:
    """Small random programs: parallel loops, mesh-level work, loops and branches around both."""

    SHAPE = (4, 6)

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.builder = Builder()

    def program(self) -> UProgram:
        builder = self.builder
        given = [builder.value("float32", self.SHAPE) for _ in range(2)] + [builder.value("int32")]
        self.selector = given[-1]
        pool = self.statements(given[:2], 2)
        results = [self.pick(pool[2:] or pool) for _ in range(2)]
        donated = tuple(n for n in range(2) if self.chance(0.3))
        program = UProgram("random", builder.finish(given, results), donated)
        verify(program)
        return program

    def chance(self, share: float) -> bool:
        return bool(self.random.random() < share)

    def pick(self, pool: Sequence[Value]) -> Value:
        return pool[int(self.random.integers(len(pool)))]

    def statements(self, pool: Sequence[Value], depth: int) -> list[Value]:
        pool = list(pool)
        for _ in range(int(self.random.integers(2, 5))):
            choice = int(self.random.integers(10))
            if choice == 0 and depth:
                pool += self.loop(pool, depth)
            elif choice == 1 and depth:
                pool += self.branch(pool, depth)
            elif choice == 2 and depth:
                pool += self.until(pool, depth)
            elif choice < 5:
                pool.append(self.whole(pool))
            else:
                pool += self.parallel(pool, depth)
        return pool

    def whole(self, pool: Sequence[Value]) -> Value:
        """Mesh-level work."""
        builder, x = self.builder, self.pick(pool)
        choice = int(self.random.integers(5))
        if choice == 0:
            return builder.emit("cumulative", (x,), "float32", self.SHAPE, axis=0, op="max", reverse=False)
        if choice == 1:
            top = builder.emit("reduce", (x,), "float32", (), axes=(0, 1), op="max")
            return elementwise(builder, "sub", x, builder.broadcast(top, self.SHAPE, ()))
        if choice == 2:
            one = builder.constant(1, "int64")
            row = builder.emit("dynamic_slice", (self.pick(pool), one, one), "float32", (1, 2))
            return builder.emit("dynamic_update_slice", (x, row, one, one), "float32", self.SHAPE)
        if choice == 3:
            return builder.emit("reverse", (x,), "float32", self.SHAPE, dimensions=(1,))
        return elementwise(builder, "add", x, self.pick(pool))

    def parallel(self, pool: Sequence[Value], depth: int) -> list[Value]:
        """Parts read their own blocks, sometimes all of an array; results start empty or from an array."""
        builder = self.builder
        axis = int(self.random.integers(2))
        tile = int(self.random.integers(1, 3))
        trips = self.SHAPE[axis] // tile
        count = int(self.random.integers(1, 3))
        bases = [self.pick(pool) if self.chance(0.4) else None for _ in range(count)]
        initial = [empty(builder, pool[0]) if base is None else base for base in bases]

        def body(index: Value, *carried: Value) -> list[Value]:
            out = []
            for base, array in zip(bases, carried, strict=True):
                source = self.pick(pool) if base is None or self.chance(0.5) else array
                piece = block(builder, source, index, axis, tile)
                if depth and self.chance(0.3):
                    (piece,) = counted(builder, 2, (piece,), lambda _, x: (elementwise(builder, "neg", x),))
                if self.chance(0.3):
                    total = builder.emit("reduce", (self.pick(pool),), "float32", (), axes=(0, 1), op="min")
                    piece = elementwise(builder, "add", piece, builder.broadcast(total, piece.type.shape, ()))
                out.append(put(builder, array, piece, index, axis, tile))
            return out

        return list(parts(builder, trips, initial, body))

    def loop(self, pool: Sequence[Value], depth: int) -> list[Value]:
        count = int(self.random.integers(1, 3))
        initial = [self.pick(pool) for _ in range(count)]

        def body(index: Value, *carried: Value) -> list[Value]:
            inner = self.statements([*pool, *carried], depth - 1)
            return [self.pick(inner[len(pool) :]) for _ in range(count)]

        return list(counted(self.builder, int(self.random.integers(1, 4)), initial, body))

    def until(self, pool: Sequence[Value], depth: int) -> list[Value]:
        """A while loop whose condition reads an array."""
        builder, (count, x) = self.builder, (self.builder.constant(0, "int32"), self.pick(pool))

        def condition(count: Value, x: Value) -> Value:
            low = builder.emit("reduce", (x,), "float32", (), axes=(0, 1), op="min")
            small = elementwise(builder, "lt", low, builder.constant(3, "float32"), dtype="bool")
            early = elementwise(builder, "lt", count, builder.constant(3, "int32"), dtype="bool")
            return elementwise(builder, "and", small, early)

        def body(count: Value, x: Value) -> list[Value]:
            inner = self.statements([*pool, x], depth - 1)
            return [elementwise(builder, "add", count, builder.constant(1, "int32")), inner[-1]]

        return [while_loop(builder, (count, x), condition, body)[1]]

    def branch(self, pool: Sequence[Value], depth: int) -> list[Value]:
        def body() -> list[Value]:
            return [self.pick(self.statements(pool, depth - 1)[len(pool) :])]

        return list(branch(self.builder, self.selector, body, body))
