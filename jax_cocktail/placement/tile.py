"""Tiling: statements over whole values become one parallel loop over parts of them.

The loop is the representation of a domain axis and of an axis that is split over units: trip i computes
part i of every value in the class and writes it into part i of the results. What the class does not hold is
computed again in every part, so the caller passes only what is cheap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from jax_cocktail.errors import VerificationError
from jax_cocktail.placement.axes import Tie
from jax_cocktail.placement.families import num_utasks, schedule_operator
from jax_cocktail.placement.parts import Emitter, Packed, constant_run, part_attributes
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
)
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import NOWHERE, Source, TensorType, Value


@dataclass(frozen=True, slots=True)
class Sources:
    """Better ways to get at what a tiling reads and writes.

    `bases`: for a result, an array of the same type that nothing else reads and the statements read at the
    own part only: the result may take its place. `packed`: for an outside value and axis, copies of its
    parts. `recipes`: outside values of which a part is computed again rather than read, with their operators.
    """

    bases: Mapping[Value, Value] = field(default_factory=dict)
    packed: Mapping[tuple[Value, int], Packed] = field(default_factory=dict)
    recipes: Mapping[Value, UOperator] = field(default_factory=dict)


def tile(
    statements: Sequence[Statement],
    results: Sequence[Value],
    classes: Mapping[Value, int],
    parts: int,
    fresh: FreshValues,
    source: Source = NOWHERE,
    sources: Sources | None = None,
    first: int = 0,
) -> tuple[Statement, ...]:
    """A parallel loop of `parts` trips that makes `results`, and what it needs made once before it.

    `classes`: the values made by `statements`, nested regions included, that are cut, each with its axis;
    part i is the i-th of `parts` equal runs along that axis. What is left over, less than a part, is computed
    after the loop; axes must then be equally long. `results`: which values are needed afterwards; they keep
    their ids, all else gets fresh ones. `first`: the unit that runs part 0.
    """
    sources = sources or Sources()
    uneven = any(r.type.shape[classes[r]] % parts for r in results)
    outputs = tuple(fresh.make(r.type) for r in results) if uneven else tuple(results)
    tiler = _Tiler(classes, parts, fresh, source, sources)
    targets = tuple(_target(tiler, r, sources.bases.get(r)) for r in results)
    parameters = tuple(fresh.make(r.type) for r in results)
    written = tiler.run(statements, results, parameters)
    body = Region((tiler.index, *parameters), (*tiler.first, *tiler.out), written)
    loop = LoopUTask(targets, outputs, body, None, parts, source, parallel=True, first=first)
    if not uneven:
        return (*tiler.before, loop)
    rest = _Tiler(classes, parts, fresh, source, sources, is_rest=True)
    rest.run(statements, results, outputs)
    return (*tiler.before, loop, *rest.before, *rest.first, *rest.out)


def pack(
    value: Value,
    axis: int,
    parts: int,
    fresh: FreshValues,
    source: Source = NOWHERE,
    order: tuple[int, ...] = (),
    first: int = 0,
) -> tuple[tuple[Statement, ...], Packed]:
    """Copies of `value` in which every part along `axis` is one dense block, and the statements for them.

    The parts are copied by a parallel loop, so each lands in the memory of the unit that will read it.
    `order`: the axes in the order in which they are read, if it is another one than the value's.
    """
    tiler = _Tiler({}, parts, fresh, source, Sources())
    order = order or tuple(range(value.type.rank))
    part, type_ = tiler.part(value, axis), tiler.part_type(value.type, axis)
    if order != tuple(range(value.type.rank)):
        type_ = TensorType(type_.dtype, tuple(type_.shape[d] for d in order))
        part = tiler.emit("transpose", (part,), type_, permutation=order)
    row = tiler.emit("reshape", (part,), TensorType(type_.dtype, (1, *type_.shape)))
    result = fresh.make(TensorType(type_.dtype, (parts, *type_.shape)))
    parameter, written = fresh.make(result.type), fresh.make(result.type)
    inputs = (parameter, row, tiler.index, *[tiler.number(0)] * type_.rank)
    tiler.out.append(UOperator("dynamic_update_slice", inputs, (written,), (), source))
    body = Region((tiler.index, parameter), (*tiler.first, *tiler.out), (written,))
    target = _target(tiler, result, None)
    loop = LoopUTask((target,), (result,), body, None, parts, source, parallel=True, first=first)
    if not value.type.shape[axis] % parts:
        return (*tiler.before, loop), Packed(result, order=order)
    rest = _Tiler({}, parts, fresh, source, Sources(), is_rest=True)
    left = rest.part(value, axis)
    kept = rest.emit("copy", (left,), left.type)
    return (*tiler.before, loop, *rest.first, *rest.out), Packed(result, kept, order)


def _target(tiler: _Tiler, result: Value, base: Value | None) -> Value:
    if base is not None:
        return base
    value = tiler.fresh.make(result.type)
    tiler.before.append(UOperator("empty", (), (value,), (), tiler.source))
    return value


class _Tiler(Emitter):
    """Rewrites statements; `now` holds what every value made inside stands for in the part."""

    def __init__(
        self,
        axes: Mapping[Value, int],
        parts: int,
        fresh: FreshValues,
        source: Source,
        sources: Sources,
        is_rest: bool = False,
    ) -> None:
        super().__init__(parts, fresh, source, is_rest)
        self.axes = axes
        self.sources = sources
        self.own: dict[Value, tuple[Value, int]] = {}  # base -> parameter that starts as it, axis
        self.arrays: dict[Value, Value] = {}  # updated in place: what stands for all of the value
        self.now: dict[Value, Value] = {}
        self._outside: dict[tuple[Value, int], Value] = {}
        self._links: set[Value] = set()  # made by updates that write into a parameter itself
        self._kept: dict[Value, Value] = {}  # results that the last write makes under their own ids

    def run(
        self, statements: Sequence[Statement], results: Sequence[Value], parameters: Sequence[Value]
    ) -> tuple[Value, ...]:
        """Computes the part of all statements and writes that of `results` into `parameters`."""
        for result, parameter in zip(results, parameters, strict=True):
            base = self.sources.bases.get(result)
            if base is not None:
                self.own[base] = (parameter, self.axes[result])
                self._follow(statements, result, base, parameter)
        if self.is_rest:
            self._kept = {r: r for r in results}
        for statement in statements:
            self.statement(statement)
        return tuple(
            self.arrays[r] if r in self.arrays else self._collect(r, parameter)
            for r, parameter in zip(results, parameters, strict=True)
        )

    # -- values ------------------------------------------------------------------------------------------
    def whole(self, value: Value) -> Value:
        if value in self.now:
            if value in self.axes:
                raise _fault(f"{value} is cut along axis {self.axes[value]} and read whole")
            return self.now[value]
        if value in self.own or value in self.arrays:
            raise _fault(f"{value} is updated in place and read whole")
        return value

    def part(self, value: Value, axis: int | None) -> Value:
        """The own part of `value`; all of it if `axis` is None."""
        if axis is None:
            return self.whole(value)
        if value in self.arrays and value not in self.own:
            return self.cut(self.arrays[value], axis, self.out)
        if value not in self.now:
            return self._outside_part(value, axis)
        if value not in self.axes:
            return self.cut(self.now[value], axis, self.out)
        if self.axes[value] != axis:
            raise _fault(f"{value} is cut along axis {self.axes[value]} and read by parts of axis {axis}")
        return self.now[value]

    def _outside_part(self, value: Value, axis: int) -> Value:
        """Parts of outside values are read, or computed again, once and first of all."""
        if (value, axis) not in self._outside:
            self._outside[value, axis] = self._fetch(value, axis)
        return self._outside[value, axis]

    def _fetch(self, value: Value, axis: int) -> Value:
        if value in self.own:
            array, updated = self.own[value]
            if updated != axis:
                raise _fault(f"{value} is updated in place along axis {updated} and read along {axis}")
            return self.cut(array, axis, self.first)
        packed, recipe = self.sources.packed.get((value, axis)), self.sources.recipes.get(value)
        if packed is not None:
            return self.packed_part(packed)
        if recipe is None or num_utasks(recipe, (axis,), self.parts) != self.parts:
            return self.cut(value, axis, self.first)
        (part,) = self._apart(recipe, schedule_operator(recipe, (axis,), self.parts).tie, self.first)
        return part

    def define(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """Stand-ins for values made inside: their own part if they are cut."""
        for value in values:
            axis = self.axes.get(value)
            type_ = value.type if axis is None else self.part_type(value.type, axis)
            self.now[value] = self.fresh.make(type_)
        return tuple(self.now[value] for value in values)

    # -- statements --------------------------------------------------------------------------------------
    def statement(self, statement: Statement) -> None:
        if isinstance(statement, UOperator):
            self._operator(statement)
        elif isinstance(statement, LoopUTask):
            self._loop(statement)
        elif isinstance(statement, BranchUTask):
            self._branch(statement)
        elif isinstance(statement, StitchedUTask):
            raise _fault("a stitched group cannot be cut; place before stitching")
        else:
            raise _fault(f"the call of {statement.function} cannot be cut; inline before placement")

    def _operator(self, operator: UOperator) -> None:
        axes = [self.axes.get(v) for v in operator.outputs]
        if all(axis is None for axis in axes):
            inputs = tuple(self.whole(v) for v in operator.inputs)
            self.out.append(replace(operator, inputs=inputs, outputs=self.define(operator.outputs)))
            return
        tie = schedule_operator(operator, axes, self.parts).tie
        if operator.kind == "dynamic_update_slice" and operator.output in self._links:
            self._update(operator, tie)
            return
        made = self._apart(operator, tie, self.out)
        self.now.update(zip(operator.outputs, made, strict=True))

    def _apart(self, operator: UOperator, tie: Tie, where: list[Statement]) -> tuple[Value, ...]:
        """The operator on parts; what it makes."""
        if operator.kind == "constant":
            return (self._constant(operator, tie.outputs[0], where),)
        if operator.kind == "iota" and operator["dimension"] == tie.outputs[0]:
            return (self._iota(operator, where),)
        if operator.kind == "dynamic_slice" and self._is_plain(operator.inputs[0]):
            inputs = self._direct(operator, tie.outputs[0])
        else:
            inputs = tuple(self.part(v, axis) for v, axis in zip(operator.inputs, tie.inputs, strict=True))
        types = (self.part_type(v.type, d) for v, d in zip(operator.outputs, tie.outputs, strict=True))
        outputs = tuple(self.fresh.make(type_) for type_ in types)
        attributes = part_attributes(operator, tie, self.size)
        where.append(replace(operator, inputs=inputs, outputs=outputs, attributes=attributes))
        return outputs

    def _is_plain(self, value: Value) -> bool:
        """True for an outside array that nothing stands for."""
        return not any(value in known for known in (self.now, self.own, self.arrays, self.sources.recipes))

    def _direct(self, operator: UOperator, axis: int) -> tuple[Value, ...]:
        """A slice that takes the axis whole: the own part at once, instead of a slice of the own part."""
        array, *starts = operator.inputs
        begins = [self.whole(v) for v in starts]
        begins[axis] = self.start(array.type.shape[axis])
        return (array, *begins)

    def _constant(self, operator: UOperator, axis: int, where: list[Statement]) -> Value:
        """Equal parts are one small constant; others are parts of the constant, made outside."""
        extent = operator.output.type.shape[axis]
        size = self.size(extent)
        starts = [extent - size] if self.is_rest else range(0, size * self.parts, size)
        data = {constant_run(operator, axis, start, size) for start in starts}
        if len(data) > 1:
            made = self.fresh.make(operator.output.type)
            self.before.append(replace(operator, outputs=(made,)))
            return self.cut(made, axis, self.first)
        part = self.fresh.make(self.part_type(operator.output.type, axis))
        where.append(replace(operator, outputs=(part,), attributes=(("data", data.pop()),)))
        return part

    def _iota(self, operator: UOperator, where: list[Statement]) -> Value:
        """Counts from the part's first position, in int64 as iota itself does."""
        type_, axis = operator.output.type, operator["dimension"]
        assert isinstance(axis, int)
        part = self.part_type(type_, axis)
        wide = TensorType("int64", part.shape)
        count = self.emit_to(where, "iota", (), wide, dimension=axis)
        start = self.start(type_.shape[axis])
        first = self.emit_to(where, "broadcast", (start,), wide, dimensions=())
        place = self.emit_to(where, "add", (first, count), wide)
        return place if type_.dtype == "int64" else self.emit_to(where, "convert", (place,), part)

    # -- arrays that are updated in place ----------------------------------------------------------------
    def _follow(self, statements: Sequence[Statement], result: Value, base: Value, parameter: Value) -> None:
        """If `result` is `base` after some dynamic updates, they write into the parameter itself."""
        makers = {s.output: s for s in statements if isinstance(s, UOperator) and len(s.outputs) == 1}
        chain: list[Value] = []
        value = result
        while value != base:
            maker = makers.get(value)
            if maker is None or maker.kind != "dynamic_update_slice":
                return
            chain.append(value)
            value = maker.inputs[0]
        self._links.update(chain)
        self.arrays[base] = parameter

    def _update(self, operator: UOperator, tie: Tie) -> None:
        array, update, *starts = operator.inputs
        axis = tie.outputs[0]
        begins = [self.whole(v) for v in starts]
        begins[axis] = self.start(array.type.shape[axis])
        value = self._kept.get(operator.output) or self.fresh.make(array.type)
        inputs = (self.arrays[array], self.part(update, tie.inputs[1]), *begins)
        self.out.append(replace(operator, inputs=inputs, outputs=(value,)))
        self.arrays[operator.output] = value

    def _collect(self, result: Value, parameter: Value) -> Value:
        """Writes the own part of a result."""
        axis = self.axes[result]
        value = self._kept.get(result) or self.fresh.make(result.type)
        inputs = (parameter, self.part(result, axis), *self.starts(result, axis))
        self.out.append(UOperator("dynamic_update_slice", inputs, (value,), (), self.source))
        return value

    # -- nested uTasks -----------------------------------------------------------------------------------
    def _region(self, region: Region, axes: Sequence[int | None]) -> Region:
        """`axes`: along which the results are cut."""
        parameters = self.define(region.parameters)
        outer, self.out = self.out, []
        for statement in region.body:
            self.statement(statement)
        results = tuple(self.part(v, axis) for v, axis in zip(region.results, axes, strict=True))
        body, self.out = tuple(self.out), outer
        return Region(parameters, body, results)

    def _loop(self, loop: LoopUTask) -> None:
        axes = [self.axes.get(v) for v in loop.carried]
        sides = [loop.outputs] if loop.condition is None else [loop.outputs, loop.condition.parameters]
        if any([self.axes.get(v) for v in side] != axes for side in sides):
            raise _fault("the values of one carry are cut along different axes")
        initial = tuple(self.part(v, axis) for v, axis in zip(loop.initial, axes, strict=True))
        condition = loop.condition and self._region(loop.condition, [None])
        body = self._region(loop.body, axes)
        outputs = self.define(loop.outputs)
        self.out.append(replace(loop, initial=initial, condition=condition, body=body, outputs=outputs))

    def _branch(self, branch: BranchUTask) -> None:
        axes = [self.axes.get(v) for v in branch.outputs]
        selector = self.whole(branch.selector)
        branches = tuple(self._region(region, axes) for region in branch.branches)
        outputs = self.define(branch.outputs)
        self.out.append(replace(branch, selector=selector, branches=branches, outputs=outputs))


def _fault(message: str) -> VerificationError:
    return VerificationError(f"tiling: {message}; a fault of placement, report it with the program")
