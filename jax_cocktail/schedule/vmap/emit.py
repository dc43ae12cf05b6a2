"""Builds statements that read and write some batch elements of a value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from jax_cocktail.schedule.vmap.cut import Cut, Place
from jax_cocktail.utask.builder import INDEX, Builder
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, Statement
from jax_cocktail.utask.types import ITEM_SIZE, TensorType, Value

COUNT = TensorType("int32")


class Emitter(Builder):
    """A builder that reads and writes batch elements, and builds loops over them."""

    def inside(self) -> Emitter:
        """An emitter for a nested region."""
        return Emitter(self.fresh, self.source)

    def rename(self, values: Sequence[Value], results: Sequence[Value]) -> None:
        """Lets the last statement, which makes `values`, define `results` instead."""
        last, names = self.out[-1], dict(zip(values, results, strict=True))
        self.out[-1] = replace(last, outputs=tuple(names.get(v, v) for v in last.outputs))

    # -- elements ----------------------------------------------------------------------------------------
    def number(self, number: int, type_: TensorType) -> Value:
        """A constant with all elements equal."""
        return self.spread(self.constant(number, type_.dtype), type_.shape)

    def spread(self, x: Value, shape: tuple[int, ...], axis: int = 0) -> Value:
        """A broadcast of a scalar, or of a vector along one axis."""
        return self.broadcast(x, shape, (axis,) if x.type.rank else ())

    def ranks(self, flags: Value) -> tuple[Value, Value]:
        """The flags as int32, and for each the number of true flags up to and including it."""
        ones = self.convert(flags, "int32")
        return ones, self.emit("cumulative", (ones,), ones.type, axis=0, op="sum", reverse=False)

    def sum_of(self, x: Value) -> Value:
        return self.emit("reduce", (x,), COUNT, axes=tuple(range(x.type.rank)), op="sum")

    # -- batch elements ----------------------------------------------------------------------------------
    def run(self, value: Value, axis: int, start: Value, size: int) -> Value:
        """`size` consecutive batch elements from `start` (int64) on."""
        starts = self._along(value, axis, start)
        return self.emit("dynamic_slice", (value, *starts), value.type.resized(axis, size))

    def position(self, numbers: Value, at: Value) -> Value:
        """One of the numbers, as a position (int64)."""
        return self.convert(self.reshape(self.run(numbers, 0, at, 1), ()), "int64")

    def put_runs(
        self, wholes: Sequence[Value], axes: Sequence[int], start: Value, parts: Sequence[Value]
    ) -> tuple[Value, ...]:
        """Each array with the batch elements from `start` (int64) on replaced."""
        return tuple(
            self.emit("dynamic_update_slice", (whole, part, *self._along(whole, axis, start)), whole.type)
            for whole, axis, part in zip(wholes, axes, parts, strict=True)
        )

    def _along(self, value: Value, axis: int, start: Value) -> tuple[Value, ...]:
        zero = start if value.type.rank == 1 else self.number(0, INDEX)
        return tuple(start if d == axis else zero for d in range(value.type.rank))

    def take(self, value: Value, axis: int, elements: Value) -> Value:
        """The batch elements with the given numbers; a number past the end means the last one."""
        return self.emit(
            "gather",
            (value, self.reshape(elements, (*elements.type.shape, 1))),
            value.type.resized(axis, elements.type.size),
            collapsed_slice_dims=(axis,),
            fill_value=bytes(ITEM_SIZE[value.type.dtype]),
            mode="clip",
            offset_dims=tuple(d for d in range(value.type.rank) if d != axis),
            operand_batching_dims=(),
            slice_sizes=value.type.resized(axis, 1).shape,
            start_index_map=(axis,),
            start_indices_batching_dims=(),
        )

    def put(self, whole: Value, axis: int, elements: Value, part: Value) -> Value:
        """The array with the numbered batch elements replaced; a number past the end names none."""
        return self.emit(
            "scatter",
            (whole, self.reshape(elements, (*elements.type.shape, 1)), part),
            whole.type,
            inserted_window_dims=(axis,),
            mode="fill_or_drop",
            op="set",
            operand_batching_dims=(),
            scatter_dims_to_operand_dims=(axis,),
            scatter_indices_batching_dims=(),
            update_window_dims=tuple(d for d in range(part.type.rank) if d != axis),
        )

    def leaves(self, cut: Cut) -> dict[Value, Value]:
        """Copies of the leaves of a cut under fresh names."""
        names = {v: self.fresh.make(v.type) for v in cut.leaves}
        self.out += [replace(leaf, outputs=(names[v],)) for v, leaf in cut.leaves.items()]
        return names

    # -- regions -----------------------------------------------------------------------------------------
    def together(self, work: Emitter, results: Sequence[Value]) -> tuple[Value, ...]:
        """The statements of `work` as a branch with one side, which `simplify` resolves. Until then no pass
        hoists parts of them out of the loop and runs them for iterations that never happen."""
        outputs = self.like(results)
        selector = self.number(0, COUNT)
        region = Region((), tuple(work.out), tuple(results))
        self.out.append(BranchUTask(selector, (region,), outputs, self.source))
        return outputs

    def branch(
        self,
        root: Value,
        outputs: Sequence[Value],
        sides: Sequence[tuple[Sequence[Statement], Sequence[Value]]],
    ) -> None:
        """Appends a branch for a predicate common to all elements; `sides`: the false and the true one."""
        selector = self.convert(self.reshape(root, ()), "int32")
        regions = tuple(Region((), tuple(body), tuple(results)) for body, results in sides)
        self.out.append(BranchUTask(selector, regions, tuple(outputs), self.source))

    def counted(
        self,
        wholes: Sequence[Value],
        trips: int,
        parallel: bool,
        following: Callable[[Emitter, Value, Sequence[Value]], tuple[Value, ...]],
        outputs: Sequence[Value] | None = None,
    ) -> tuple[Value, ...]:
        """A counted loop. ``following(body, index, carried)`` builds its body and returns its results."""
        index, carried, body = self.fresh.make(INDEX), self.like(wholes), self.inside()
        results = following(body, index, carried)
        region = Region((index, *carried), tuple(body.out), results)
        outputs = self.like(carried) if outputs is None else tuple(outputs)
        loop = LoopUTask(tuple(wholes), outputs, region, None, trips, self.source, parallel)
        self.out.append(loop)
        return loop.outputs

    def repeat(
        self,
        initial: Sequence[Value],
        going: Callable[[Emitter, Sequence[Value]], Value],
        following: Callable[[Emitter, Sequence[Value]], tuple[Value, ...]],
        likely: int,
    ) -> tuple[Value, ...]:
        """A while loop with the condition that `going` builds and the body that `following` builds. It is
        priced for `likely` trips."""
        tested, carried = self.like(initial), self.like(initial)
        condition, body = self.inside(), self.inside()
        test, results = (going(condition, tested),), following(body, carried)
        tests, region = Region(tested, tuple(condition.out), test), Region(carried, tuple(body.out), results)
        names = tuple(initial), self.like(carried)
        loop = LoopUTask(*names, region, tests, source=self.source, likely_trips=likely)
        self.out.append(loop)
        return loop.outputs


def one_by_one(cut: Cut, results: Sequence[Place], out: Emitter, parallel: bool = False) -> None:
    """Appends a loop over single batch elements that makes `results`, each with its batch axis."""
    leaves = out.leaves(cut)
    values, axes = zip(*results, strict=True)
    wholes = [out.emit("empty", (), v.type) for v in values]

    def element(body: Emitter, index: Value, carried: Sequence[Value]) -> tuple[Value, ...]:
        known = {(v, axis): body.run(leaves.get(v, v), axis, index, 1) for v, axis in cut.needs}
        return body.put_runs(carried, axes, index, cut.emit(known, body).parts_of(values, axes))

    out.counted(wholes, cut.elements, parallel, element, values)
