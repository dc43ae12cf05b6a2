"""Tiling: statements over whole values become one parallel loop over parts of them.

Trip i computes part i of every value in the class and writes it into part i of the results. Every part
recomputes the values outside the class, so the caller passes only cheap ones. The loop represents independent
and communicating axes alike:

                            r = empty()
    y = x @ w               parallel p < 4, r' = r:
    r = tanh(y)     ->          y = x @ w[:, p]
                                r'[:, p] = tanh(y)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from jax_cocktail.analysis.axes import Tie
from jax_cocktail.errors import VerificationError
from jax_cocktail.placement.cutter import Cutter, constant_run
from jax_cocktail.placement.families import schedule_operator, tie_of
from jax_cocktail.placement.parts import Tiling
from jax_cocktail.placement.prune import prune
from jax_cocktail.utask.builder import INDEX, Builder, beginning
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
    is_a,
)
from jax_cocktail.utask.substitute import FreshValues, replaced, with_reads
from jax_cocktail.utask.types import NOWHERE, Source, TensorType, Value


@dataclass(frozen=True, slots=True)
class Sources:
    """Cheaper sources and targets of a tiling.

    `bases`: for a result, an array of the same type that it may overwrite: only the statements read it, each
    part its own. `recipes`: operators of outside values whose parts are recomputed, not read. `wide`: for
    results and bases of a tiling with a fixed part length, the padded arrays that hold them, long enough for
    all parts.
    """

    bases: Mapping[Value, Value] = field(default_factory=dict)
    recipes: Mapping[Value, UOperator] = field(default_factory=dict)
    wide: Mapping[Value, Value] = field(default_factory=dict)


def tile(
    statements: Sequence[Statement],
    results: Sequence[Value],
    classes: Mapping[Value, int],
    tiling: Tiling,
    fresh: FreshValues,
    source: Source = NOWHERE,
    sources: Sources | None = None,
) -> tuple[Statement, ...]:
    """A parallel loop that computes `results`, one of one trip for the remainder of their axes if there is
    any, and the statements around both.

    `classes`: the values made by `statements`, nested regions included, that are cut, each with its axis. The
    axes of a class must be equally long if parts leave a remainder. `results`: the values needed afterwards;
    they keep their ids, all others get fresh ones. With a fixed length of parts, results are views of the
    beginnings of their wide arrays. Each trip across a part computes all of it until `grid` divides the part
    among them.
    """
    sources = sources or Sources()
    wide = sources.wide if tiling.length else {}
    left = [r for r in results if tiling.left(r.type.shape[classes[r]])]
    outputs = replaced(results, {**wide, **{r: fresh.make(r.type) for r in left}})
    tiler = Tiler(classes, tiling, fresh, source, sources)
    targets = [
        tiler.array(wide.get(r, r).type) if base is None else wide.get(base, base)
        for r, base in ((r, sources.bases.get(r)) for r in results)
    ]
    parameters, branch = fresh.like(targets), statements[0]
    if isinstance(branch, BranchUTask) and branch.stage is not None:
        written = tiler.stage(branch, statements[1:], results, parameters)
    else:
        written = tiler.run(statements, results, parameters)
    loop = tiler.parallel(targets, parameters, written, outputs)
    if not left:
        views = (beginning(w, r, source) for r, w in zip(results, outputs, strict=True) if w != r)
        return (*tiler.before, loop, *views)
    rest = Tiler(classes, tiling.rest, fresh, source, sources)
    begun = replaced(left, dict(zip(results, outputs, strict=True)))
    parameters = fresh.like(begun)
    written = rest.run(prune(Region((), tuple(statements), tuple(left))).body, left, parameters)
    return (*tiler.before, loop, *rest.before, rest.parallel(begun, parameters, written, left))


class Tiler(Cutter):
    """Rewrites statements for the part that the index of the loop selects.

    `before`: statements before the parallel loop; `first`: in its body, before `out`.
    """

    axes: Mapping[Value, int]

    def __init__(
        self,
        axes: Mapping[Value, int],
        tiling: Tiling,
        fresh: FreshValues,
        source: Source,
        sources: Sources,
    ) -> None:
        super().__init__(fresh, tiling.size)
        self.axes = axes
        self.tiling = tiling
        self.source = source
        self.sources = sources
        self.trip = self.index = fresh.make(INDEX)
        self.before: list[Statement] = []
        self.first: list[Statement] = []
        self._numbers: dict[int, Value] = {}
        self._starts: dict[int, Value] = {}
        self.own: dict[Value, tuple[Value, int]] = {}  # base -> parameter that starts as it, axis
        self.arrays: dict[Value, Value] = {}  # updated in place -> the stand-in for the whole value
        self._links: set[Value] = set()  # made by updates that write into a parameter itself
        if tiling.across > 1:
            across = self.number(tiling.across)
            self.index = self.at(self.first).emit("div", (self.trip, across), INDEX)

    def array(self, type_: TensorType) -> Value:
        """A new array, made before the loop."""
        return self.at(self.before).emit("empty", (), type_)

    def parallel(
        self,
        initial: Sequence[Value],
        parameters: Sequence[Value],
        written: Sequence[Value],
        outputs: Sequence[Value],
    ) -> LoopUTask:
        """The loop over parts. Each trip turns the arrays `parameters` into `written`."""
        body = Region((self.trip, *parameters), (*self.first, *self.out), tuple(written))
        arrays, trips = (tuple(initial), tuple(outputs)), self.tiling.trips
        return LoopUTask(*arrays, body, None, trips, self.source, parallel=True, first=self.tiling.first)

    def run(
        self,
        statements: Sequence[Statement],
        results: Sequence[Value],
        parameters: Sequence[Value],
        names: Mapping[Value, Value] | None = None,
    ) -> tuple[Value, ...]:
        """Computes the part of all statements and writes that of `results` into `parameters`. `names`: maps
        results to the values that the statements define for them, where these differ."""
        made, arrays = [(r, (names or {}).get(r, r)) for r in results], updated_arrays(statements)
        for (result, value), parameter in zip(made, parameters, strict=True):
            base = self.sources.bases.get(result)
            if base is not None:
                self.own[base] = (parameter, self.axes[result])
                self._follow(arrays, value, base, parameter)
        self.statements(statements)
        return tuple(
            self.arrays[value] if value in self.arrays else self._collect(value, self.axes[result], parameter)
            for (result, value), parameter in zip(made, parameters, strict=True)
        )

    def stage(
        self,
        branch: BranchUTask,
        followers: Sequence[Statement],
        results: Sequence[Value],
        parameters: Sequence[Value],
    ) -> tuple[Value, ...]:
        """Does the same for a stage of a wavefront: a branch, and followers that move into every region.
        Regions write their results in place, so that no value is live across the end of the branch."""
        regions: list[Region] = []
        for region in branch.branches:
            names = dict(zip(branch.outputs, region.results, strict=True))
            inner = Tiler(self.axes, replace(self.tiling, across=1), self.fresh, self.source, self.sources)
            inner.trip = inner.index = self.index
            statements = (*region.body, *(with_reads(s, names) for s in followers))
            written = inner.run(statements, results, parameters, names)
            self.before += inner.before
            regions.append(Region((), (*inner.first, *inner.out), written))
        outputs = tuple(self.fresh.make(parameter.type) for parameter in parameters)
        self.out.append(replace(branch, branches=tuple(regions), outputs=outputs))
        return outputs

    # -- values ------------------------------------------------------------------------------------------
    def at(self, where: list[Statement]) -> Builder:
        """A builder that appends to one of the lists."""
        return Builder(self.fresh, self.source, where)

    def number(self, n: int) -> Value:
        """An int64 constant."""
        if n not in self._numbers:
            self._numbers[n] = self.at(self.first).constant(n)
        return self._numbers[n]

    def start(self, extent: int) -> Value:
        """The first position of the part of an axis."""
        if self.tiling.is_rest:
            return self.number(self.tiling.step(extent) * self.tiling.equal)
        return self.counted(extent)

    def counted(self, extent: int) -> Value:
        """The position of the part of an axis that the index counts."""
        size = self.tiling.step(extent)
        if size == 1:
            return self.index
        if size not in self._starts:
            self._starts[size] = self.at(self.first).binary("mul", self.index, self.number(size))
        return self._starts[size]

    def starts(self, value: Value, axis: int) -> tuple[Value, ...]:
        """The first position of the part of `value`, per axis."""
        start = self.start(value.type.shape[axis])
        return tuple(start if d == axis else self.number(0) for d in range(value.type.rank))

    def cut(self, value: Value, axis: int, where: list[Statement]) -> Value:
        """Reads the part of a whole value, or of its wide array, padded with zeros past the end."""
        wide = self.sources.wide.get(value, value)
        value = wide if wide.type.resized(axis, value.type.shape[axis]) == value.type else value
        if value.type.shape[axis] < self.tiling.reach:
            value = self._widened(value, axis, where)
        inputs = (value, *self.starts(value, axis))
        return self.at(where).emit("dynamic_slice", inputs, self.part_type(value.type, axis))

    def _widened(self, value: Value, axis: int, where: list[Statement]) -> Value:
        """The value, padded with zeros up to the end of the last part."""
        build, none = self.at(where), (0,) * value.type.rank
        wide, zero = value.type.resized(axis, self.tiling.reach), build.constant(0, value.type.dtype)
        return build.emit("pad", (value, zero), wide, low=none, interior=none)

    def whole(self, value: Value) -> Value:
        if (value, None) in self.known:
            return self.known[value, None]
        if self._is_inside(value):
            raise _fault(f"{value} is cut along axis {self.axes[value]} and read whole")
        if value in self.own or value in self.arrays:
            raise _fault(f"{value} is updated in place and read whole")
        return value

    def part(self, value: Value, axis: int | None) -> Value:
        """The own part of `value`; all of it if `axis` is None."""
        if axis is None:
            return self.whole(value)
        if value in self.arrays and value not in self.own:
            return self.cut(self.arrays[value], axis, self.out)
        if (value, None) in self.known:
            return self.cut(self.known[value, None], axis, self.out)
        if (value, axis) not in self.known:
            if self._is_inside(value):
                raise _fault(f"{value} is cut along axis {self.axes[value]} and read by parts of axis {axis}")
            self.known[value, axis] = self._fetch(value, axis)
        return self.known[value, axis]

    def _is_inside(self, value: Value) -> bool:
        """True if the statements define the value."""
        return (value, self.axes.get(value)) in self.known

    def _fetch(self, value: Value, axis: int) -> Value:
        """The part of an outside value, read or recomputed once, before all other statements."""
        if value in self.own:
            array, updated = self.own[value]
            if updated != axis:
                raise _fault(f"{value} is updated in place along axis {updated} and read along {axis}")
            return self.cut(array, axis, self.first)
        recipe = self.sources.recipes.get(value)
        if recipe is None or (tie := tie_of(recipe, (axis,), self.tiling)) is None:
            return self.cut(value, axis, self.first)
        (part,) = self.emit_parts(recipe, tie, self.first)
        return part

    # -- statements --------------------------------------------------------------------------------------
    def statement(self, statement: Statement) -> None:
        if isinstance(statement, StitchedUTask):
            raise _fault("a stitched group cannot be cut; place before stitching")
        super().statement(statement)

    def operator(self, operator: UOperator) -> None:
        axes = self.axes_of(operator.outputs)
        whole = all(axis is None for axis in axes)
        tie = None if whole else schedule_operator(operator, axes, self.tiling.parts)
        if tie is not None and operator.outputs[0] in self._links:
            self._update(operator, tie)
        else:
            self.note(operator.outputs, axes, self.emit_parts(operator, tie, self.out))

    def emit_parts(self, operator: UOperator, tie: Tie | None, where: list[Statement]) -> tuple[Value, ...]:
        if tie is None:
            return super().emit_parts(operator, tie, where)
        axis = tie.outputs[0]
        if operator.kind == "constant":
            return (self._constant(operator, axis, where),)
        if operator.kind == "iota" and operator["dimension"] == axis:
            return (self._iota(operator, where),)
        if operator.kind != "dynamic_slice" or not self._is_plain(operator.inputs[0]):
            return super().emit_parts(operator, tie, where)
        if self.tiling.length:  # the part may reach past the end of the array
            (whole,) = super().emit_parts(operator, None, where)
            return (self.cut(whole, axis, where),)
        return (self.slice_part(operator, operator.inputs[0], axis, where),)

    def _is_plain(self, value: Value) -> bool:
        """True for an outside array that is neither updated in place nor recomputed."""
        special = (self.own, self.arrays, self.sources.recipes)
        return not self._is_inside(value) and not any(value in known for known in special)

    def slice_part(self, operator: UOperator, array: Value, axis: int, where: list[Statement]) -> Value:
        """The own part of a slice of `array` along an axis that is taken whole, read at once."""
        begins = self._begins(operator, axis)
        (part,) = self.made(operator.outputs, (axis,))
        where.append(replace(operator, inputs=(array, *begins), outputs=(part,)))
        return part

    def _begins(self, operator: UOperator, axis: int) -> list[Value]:
        """The positions of a slice, moved to the own part along `axis`."""
        array = operator.inputs[0].type
        begins = [self.whole(v) for v in operator.inputs[-array.rank :]]
        begins[axis] = self.start(array.shape[axis])
        return begins

    def _constant(self, operator: UOperator, axis: int, where: list[Statement]) -> Value:
        """One small constant if all parts are equal; else a part of the constant, made before the loop."""
        extent = operator.output.type.shape[axis]
        size = self.size(extent)
        if extent < self.tiling.reach:
            return self._made_outside(operator, axis)
        starts = [extent - size] if self.tiling.is_rest else range(0, size * self.tiling.equal, size)
        data = {constant_run(operator, axis, start, size) for start in starts}
        if len(data) > 1:
            return self._made_outside(operator, axis)
        part = self.fresh.make(self.part_type(operator.output.type, axis))
        where.append(replace(operator, outputs=(part,), attributes=(("data", data.pop()),)))
        return part

    def _made_outside(self, constant: UOperator, axis: int) -> Value:
        made = self.fresh.make(constant.output.type)
        self.before.append(replace(constant, outputs=(made,)))
        return self.cut(made, axis, self.first)

    def _iota(self, operator: UOperator, where: list[Statement]) -> Value:
        """Counts from the part's first position, in int64 as iota itself does."""
        type_, axis = operator.output.type, operator.number("dimension")
        part = self.part_type(type_, axis)
        build = self.at(where)
        count = build.emit("iota", (), "int64", part.shape, dimension=axis)
        first = build.broadcast(self.start(type_.shape[axis]), part.shape, ())
        return build.convert(build.emit("add", (first, count), count.type), type_.dtype)

    # -- arrays that are updated in place ----------------------------------------------------------------
    def _follow(self, arrays: Mapping[Value, Value], result: Value, base: Value, parameter: Value) -> None:
        """If `result` is `base` after some dynamic updates, they write into the parameter itself. `arrays`:
        see `updated_arrays`."""
        values = updated(result, arrays)
        if base in values:
            self._links.update(values[: values.index(base)])
            self.arrays[base] = parameter

    def _update(self, operator: UOperator, tie: Tie) -> None:
        array, update, *_ = operator.inputs
        begins = self._begins(operator, tie.outputs[0])
        value = self.fresh.make(self.arrays[array].type)
        inputs = (self.arrays[array], self.part(update, tie.inputs[1]), *begins)
        self.out.append(replace(operator, inputs=inputs, outputs=(value,)))
        self.arrays[operator.output] = value

    def _collect(self, result: Value, axis: int, parameter: Value) -> Value:
        """Writes the own part of a result."""
        value = self.fresh.make(parameter.type)
        inputs = (parameter, self.part(result, axis), *self.starts(result, axis))
        self.at(self.out).define((value,), "dynamic_update_slice", inputs)
        return value

    def loop(self, loop: LoopUTask) -> None:
        if not self.axes_of(loop.carried) == self.axes_of(loop.outputs) == self.axes_of(loop.tested):
            raise _fault("the values of one carry are cut along different axes")
        super().loop(loop)


def updated_arrays(statements: Sequence[Statement]) -> dict[Value, Value]:
    """The results of dynamic updates among the statements, and the arrays that they update."""
    return {s.output: s.inputs[0] for s in statements if is_a(s, "dynamic_update_slice")}


def updated(value: Value, arrays: Mapping[Value, Value]) -> list[Value]:
    """The value, and the arrays of which dynamic updates make it, the first one last. `arrays`: see
    `updated_arrays`."""
    found = [value]
    while found[-1] in arrays:
        found.append(arrays[found[-1]])
    return found


def _fault(message: str) -> VerificationError:
    return VerificationError(f"tiling: {message}; a fault of placement, report it with the program")
