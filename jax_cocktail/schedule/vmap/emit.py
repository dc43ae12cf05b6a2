"""Reading and writing some lanes of a value, and the small operators around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from jax_cocktail.schedule.vmap.cut import Cut, Place
from jax_cocktail.utask.interpreter.common import numpy_dtype
from jax_cocktail.utask.ir import Attribute, BranchUTask, LoopUTask, Region, Statement, UOperator
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import ITEM_SIZE, Source, TensorType, Value

INDEX = TensorType("int64")
COUNT = TensorType("int32")


class Emitter:
    """Appends statements to `out`."""

    def __init__(self, fresh: FreshValues, source: Source, out: list[Statement] | None = None) -> None:
        self.fresh, self.source = fresh, source
        self.out: list[Statement] = [] if out is None else out

    def inside(self) -> Emitter:
        """For the body of a nested region."""
        return Emitter(self.fresh, self.source)

    def emit(self, kind: str, inputs: Sequence[Value], type_: TensorType, **attributes: Attribute) -> Value:
        value = self.fresh.make(type_)
        self.out.append(
            UOperator(kind, tuple(inputs), (value,), tuple(sorted(attributes.items())), self.source)
        )
        return value

    def like(self, values: Sequence[Value]) -> tuple[Value, ...]:
        return tuple(self.fresh.make(v.type) for v in values)

    def rename(self, values: Sequence[Value], results: Sequence[Value]) -> None:
        """Lets the last statement, which makes `values`, define `results` instead."""
        last, names = self.out[-1], dict(zip(values, results, strict=True))
        self.out[-1] = replace(last, outputs=tuple(names.get(v, v) for v in last.outputs))

    # -- numbers and elements ----------------------------------------------------------------------------
    def number(self, number: int, type_: TensorType) -> Value:
        """A constant, the same in all elements."""
        data = np.asarray(number, numpy_dtype(type_.dtype)).tobytes()
        scalar = self.emit("constant", (), TensorType(type_.dtype), data=data)
        return self.spread(scalar, type_.shape)

    def binary(self, kind: str, x: Value, y: Value) -> Value:
        return self.emit(kind, (x, y), x.type)

    def compare(self, kind: str, x: Value, y: Value) -> Value:
        return self.emit(kind, (x, y), TensorType("bool", x.type.shape))

    def select(self, predicate: Value, on_true: Value, on_false: Value) -> Value:
        return self.emit("select", (predicate, on_true, on_false), on_true.type)

    def convert(self, x: Value, dtype: str) -> Value:
        return x if x.type.dtype == dtype else self.emit("convert", (x,), TensorType(dtype, x.type.shape))

    def reshape(self, x: Value, shape: tuple[int, ...]) -> Value:
        return x if x.type.shape == shape else self.emit("reshape", (x,), TensorType(x.type.dtype, shape))

    def spread(self, x: Value, shape: tuple[int, ...], axis: int = 0) -> Value:
        """A scalar everywhere, or a vector along one axis."""
        if x.type.shape == shape:
            return x
        dimensions = (axis,) if x.type.rank else ()
        return self.emit("broadcast", (x,), TensorType(x.type.dtype, shape), dimensions=dimensions)

    # -- lanes -------------------------------------------------------------------------------------------
    def run(self, value: Value, axis: int, start: Value, size: int) -> Value:
        """`size` lanes from `start` (int64) on."""
        shape = _resized(value.type, axis, size)
        return self.emit("dynamic_slice", (value, *self._starts(value, axis, start)), shape)

    def put_run(self, whole: Value, axis: int, start: Value, part: Value) -> Value:
        """`whole` with the lanes from `start` (int64) on replaced."""
        inputs = (whole, part, *self._starts(whole, axis, start))
        return self.emit("dynamic_update_slice", inputs, whole.type)

    def _starts(self, value: Value, axis: int, start: Value) -> tuple[Value, ...]:
        zero = start if value.type.rank == 1 else self.number(0, INDEX)
        return tuple(start if d == axis else zero for d in range(value.type.rank))

    def take(self, value: Value, axis: int, lanes: Value) -> Value:
        """The lanes that a vector of numbers names; a number past the end means the last one."""
        rank = value.type.rank
        sizes = tuple(1 if d == axis else n for d, n in enumerate(value.type.shape))
        return self.emit(
            "gather",
            (value, self.reshape(lanes, (*lanes.type.shape, 1))),
            _resized(value.type, axis, lanes.type.size),
            collapsed_slice_dims=(axis,),
            fill_value=bytes(ITEM_SIZE[value.type.dtype]),
            mode="clip",
            offset_dims=tuple(d for d in range(rank) if d != axis),
            operand_batching_dims=(),
            slice_sizes=sizes,
            start_index_map=(axis,),
            start_indices_batching_dims=(),
        )

    def put(self, whole: Value, axis: int, lanes: Value, part: Value) -> Value:
        """`whole` with the named lanes replaced; a number past the end names none."""
        return self.emit(
            "scatter",
            (whole, self.reshape(lanes, (*lanes.type.shape, 1)), part),
            whole.type,
            inserted_window_dims=(axis,),
            mode="fill_or_drop",
            op="set",
            operand_batching_dims=(),
            scatter_dims_to_operand_dims=(axis,),
            scatter_indices_batching_dims=(),
            update_window_dims=tuple(d for d in range(part.type.rank) if d != axis),
        )

    def first(self, whole: Value, axis: int, size: int, result: Value) -> None:
        """Defines `result` as the first lanes of `whole`."""
        zeros, ones = (0,) * whole.type.rank, (1,) * whole.type.rank
        attributes: tuple[tuple[str, Attribute], ...] = (("starts", zeros), ("strides", ones))
        assert result.type == _resized(whole.type, axis, size)
        self.out.append(UOperator("slice", (whole,), (result,), attributes, self.source))

    def together(self, work: Emitter, results: Sequence[Value]) -> tuple[Value, ...]:
        """The statements of `work` as a branch of one side, which `simplify` resolves. Until then no pass
        takes parts of them out of the loop around, to do them for trips that never come."""
        outputs = self.like(results)
        selector = self.number(0, COUNT)
        region = Region((), tuple(work.out), tuple(results))
        self.out.append(BranchUTask(selector, (region,), outputs, self.source))
        return outputs

    # -- loops -------------------------------------------------------------------------------------------
    def loop(
        self,
        initial: Sequence[Value],
        carried: Sequence[Value],
        body: Region,
        outputs: Sequence[Value] | None = None,
        condition: Region | None = None,
        trips: int | None = None,
        parallel: bool = False,
    ) -> tuple[Value, ...]:
        results = tuple(outputs) if outputs is not None else self.like(carried)
        loop = LoopUTask(tuple(initial), results, body, condition, trips, self.source, parallel)
        self.out.append(loop)
        return results


def one_by_one(cut: Cut, results: Sequence[Place], out: Emitter, parallel: bool = False) -> LoopUTask:
    """A loop over lanes that makes `results`, each with its lane axis; what it needs before goes to `out`."""
    leaves = {v: out.fresh.make(v.type) for v in cut.leaves}
    out.out += [replace(s, outputs=(leaves[v],)) for v, s in cut.leaves.items()]
    wholes = tuple(out.emit("empty", (), v.type) for v, _ in results)
    index, carried = out.fresh.make(INDEX), out.like(wholes)
    body = out.inside()
    known = {(v, axis): body.run(leaves.get(v, v), axis, index, 1) for v, axis in cut.needs}
    statements, known = cut.emit(known, out.fresh)
    body.out += statements
    written = tuple(
        body.put_run(whole, axis, index, known[v, axis])
        for whole, (v, axis) in zip(carried, results, strict=True)
    )
    region = Region((index, *carried), tuple(body.out), written)
    outputs = tuple(v for v, _ in results)
    return LoopUTask(wholes, outputs, region, None, cut.lanes, out.source, parallel)


def _resized(type_: TensorType, axis: int, size: int) -> TensorType:
    return TensorType(type_.dtype, (*type_.shape[:axis], size, *type_.shape[axis + 1 :]))
