"""Cuts statements down to some of their batch elements.

The axis along which each wanted result is cut determines the cut of every other value, loops and branches
included, by the axis rules of the operators (`analysis.axes`). Statements that mix batch elements cannot be
cut. The cut statements compute any `width` of the batch elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

from jax_cocktail.analysis.axes import Tie, rule
from jax_cocktail.cost.work import total
from jax_cocktail.placement.cutter import Axes, Cutter, cuts
from jax_cocktail.schedule.vmap.lockstep import ElementLoop, element_loop
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    UOperator,
    defined_in,
    is_a,
    operators_in,
    reads,
)
from jax_cocktail.utask.operators import PRODUCTS
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import ITEM_SIZE, TensorType, Value

_UNKNOWN = -1  # in place of an axis: not wanted so far
SUM = -2  # in place of an axis: each part has a term of the value, of its shape
_NOWHERE_ELSE = 1 << 48  # ids of values that a program never has

Place = tuple[Value, int]  # a value that is cut along an axis
Wanted = dict[Value, set[int | None]]


class Uncuttable(Exception):
    """Batch elements are mixed, or an operator has no axis rule."""


@dataclass(frozen=True, slots=True)
class _Nest:
    """The cut of a loop or branch: `axes` of its carries or results.

    `elements`: a lock-step loop, cut along axis `along` of its predicate; `alone`: one batch element remains.
    """

    axes: tuple[int | None, ...]
    elements: ElementLoop | None = None
    along: int | None = None
    alone: bool = False


class Cut:
    """The plan for some statements of one region; `emit` makes them. Raises Uncuttable.

    `needs`: the parts that they read of values defined elsewhere; `leaves`: operators without operands among
    the statements whose values are among the needs. `sums`: how terms of values follow from what is cut; with
    them, `elements` is the number of parts, also of longer axes.
    """

    def __init__(
        self,
        statements: Sequence[Statement],
        wanted: Iterable[tuple[Value, int | None]],
        elements: int,
        width: int,
        sums: Mapping[Value, Tie] | None = None,
    ) -> None:
        self.statements, self.elements, self.width = statements, elements, width
        self.sums = sums or {}
        self.leaves: dict[Value, UOperator] = {}
        self.nests: dict[Value, _Nest] = {}  # by the first result
        self.axes: dict[Value, int | None] = {}  # of the values that enter and leave nested regions
        self.wanted: Wanted = {}
        _want(self.wanted, wanted)
        self._plan(statements, self.wanted)
        inside = {v for s in statements for v in defined_in(s)} - self.leaves.keys()
        self.needs: tuple[Place, ...] = tuple(
            (value, axis)
            for value, axes in self.wanted.items()
            for axis in sorted(axis for axis in axes if axis is not None and axis != SUM)
            if value not in inside
            if value not in self.leaves or not _is_alike(self.leaves[value], axis)
        )
        if sums is None and any(value.type.shape[axis] != elements for value, axis in self.needs):
            raise Uncuttable("an operand has another batch size")

    @property
    def has_shared_weights(self) -> bool:
        """True if a matrix product reads an operand whole, so that batch elements share the read."""
        return any(
            tie is not None and None in tie.inputs
            for statement in self.statements
            for operator in operators_in(statement)
            if operator.kind in PRODUCTS
            for tie in self.ties(operator, self.wanted)
        )

    @property
    def common(self) -> frozenset[int]:
        """The positions of the statements that all batch elements share, and of what these need."""
        found = {
            position
            for position, statement in enumerate(self.statements)
            if not any(self.wanted.get(v, set()) - {None} for v in statement.outputs)
        }
        needed = {v for position in found for v in reads(self.statements[position])}
        for position in range(len(self.statements) - 1, -1, -1):
            if position not in found and not needed.isdisjoint(self.statements[position].outputs):
                found.add(position)
                needed.update(reads(self.statements[position]))
        return frozenset(found)

    # -- planning ----------------------------------------------------------------------------------------
    def _plan(self, statements: Sequence[Statement], wanted: Wanted) -> None:
        """Adds the operands of wanted values to `wanted`, last statement first."""
        for statement in reversed(statements):
            if not any(wanted.get(v) for v in statement.outputs):
                continue
            if isinstance(statement, UOperator):
                for tie in self.ties(statement, wanted):
                    _want(wanted, zip(statement.inputs, cuts(statement, tie)[0], strict=True))
            elif isinstance(statement, LoopUTask):
                self._plan_loop(statement, wanted)
            elif isinstance(statement, BranchUTask):
                self._plan_branch(statement, wanted)
            else:
                raise Uncuttable("stitched already")

    def ties(self, operator: UOperator, wanted: Wanted) -> list[Tie | None]:
        """The tie of each axis along which a result is wanted; None: whole."""
        found: list[Tie | None] = []
        for k, output in enumerate(operator.outputs):
            for axis in sorted(wanted.get(output, ()), key=lambda axis: -1 if axis is None else axis):
                tie = self.sums.get(output) if axis == SUM else None
                if axis == SUM:  # an array of zeros is a sum of arrays of zeros
                    axis = None
                if axis is not None and not operator.inputs and not _is_alike(operator, axis):
                    self.leaves[output] = operator
                    continue
                if axis is not None:
                    tied = (t for t in rule(operator).ties if t.outputs[k] == axis)
                    tie = next((t for t in tied if t.parts % self.elements == 0), None)
                    if tie is None:
                        raise Uncuttable(f"{operator.kind} mixes batch elements")
                if tie not in found:
                    found.append(tie)
        return found

    def _plan_loop(self, loop: LoopUTask, wanted: Wanted) -> None:
        elements = element_loop(loop)
        axes = [_only(wanted, v) for v in loop.outputs]
        while True:
            nest = self._nest(elements, axes)
            trial = {v: set(a) for v, a in wanted.items()}
            self._plan_regions(loop, nest, trial)
            found = [_only(trial, *pair) for pair in zip(loop.carried, loop.tested, strict=True)]
            merged = tuple(_merged(a, b) for a, b in zip(nest.axes, found, strict=True))
            if list(merged) == axes:
                break
            axes = list(merged)
        if _UNKNOWN in axes or (loop.index is not None and trial.get(loop.index, {None}) != {None}):
            raise Uncuttable("a carry without a cut")
        self.nests[loop.outputs[0]] = nest
        for side in (loop.outputs, loop.carried, loop.tested):
            self.axes.update(zip(side, axes, strict=True))
        wanted.clear()
        wanted.update(trial)
        _want(wanted, zip(loop.initial, axes, strict=True))

    def _nest(self, elements: ElementLoop | None, axes: Axes) -> _Nest:
        """The cut, so far as known, of a loop whose carries are cut along `axes`."""
        along = _along(elements, axes)
        if elements is None or along is None:
            return _Nest(tuple(axes))
        alone = self.width == 1 and elements.predicate.type.size == self.elements
        places = tuple(place[along] for place in elements.axes)
        return _Nest(tuple(_merged(a, b) for a, b in zip(axes, places, strict=True)), elements, along, alone)

    def _plan_regions(self, loop: LoopUTask, nest: _Nest, wanted: Wanted) -> None:
        places = zip(_following(loop, nest), nest.axes, strict=True)
        _want(wanted, ((value, axis) for value, axis in places if axis != _UNKNOWN))
        self._plan(loop.body.body, wanted)
        if loop.condition is not None:
            tested = _tested(loop.condition, nest)
            _want(wanted, [(tested.results[0], nest.along)])
            self._plan(tested.body, wanted)

    def _plan_branch(self, branch: BranchUTask, wanted: Wanted) -> None:
        axes = tuple(_only(wanted, v) for v in branch.outputs)
        if _UNKNOWN in axes:
            raise Uncuttable("a result without a cut")
        self.axes.update(zip(branch.outputs, axes, strict=True))
        for region in branch.branches:
            _want(wanted, zip(region.results, axes, strict=True))
            self._plan(region.body, wanted)
        _want(wanted, [(branch.selector, None)])

    # -- emission ----------------------------------------------------------------------------------------
    def emit(self, places: Mapping[Place, Value], out: Builder) -> Cutter:
        """Appends the cut statements to `out`, and returns what knows their parts. `places` has the needs."""
        cutter = _PlannedCutter(self, places, out)
        cutter.statements(self.statements)
        return cutter

    @property
    def flops(self) -> float:
        """The work of the cut statements for all batch elements. What is computed whole is repeated."""
        out = Builder(FreshValues(first=_NOWHERE_ELSE))
        places = {(v, axis): out.fresh.make(v.type.resized(axis, self.width)) for v, axis in self.needs}
        self.emit(places, out)
        return total(out.out).flops * self.elements / self.width

    def emit_tested(
        self, loop: LoopUTask, places: Mapping[Place, Value], carried: Sequence[Value], out: Builder
    ) -> Value:
        """Appends the predicate of a lock-step loop among the statements, for cut carries."""
        nest, cutter = self.nests[loop.outputs[0]], _PlannedCutter(self, places, out)
        assert loop.condition is not None
        tested = _tested(loop.condition, nest)
        cutter.note(tested.parameters, nest.axes, carried)
        cutter.statements([s for s in self.statements if isinstance(s, UOperator)])
        cutter.statements(tested.body)
        return cutter.part(tested.results[0], nest.along)


class _PlannedCutter(Cutter):
    """Emits what a plan wants of the statements, once for each way in which it is wanted."""

    def __init__(self, plan: Cut, places: Mapping[Place, Value], out: Builder) -> None:
        super().__init__(out.fresh, lambda extent: extent // plan.elements * plan.width, out.out)
        self.plan, self.axes = plan, plan.axes
        self.known.update(places.items())

    def part(self, value: Value, axis: int | None) -> Value:
        """A value from outside that is wanted whole is its own part."""
        if axis == SUM and (value, axis) not in self.known:
            axis = None
        return self.known.get((value, axis), value) if axis is None else self.known[value, axis]

    def part_type(self, type_: TensorType, axis: int | None) -> TensorType:
        return super().part_type(type_, None if axis == SUM else axis)

    def statement(self, statement: Statement) -> None:
        if any(self.plan.wanted.get(v) for v in statement.outputs):
            super().statement(statement)

    def operator(self, operator: UOperator) -> None:
        for tie in self.plan.ties(operator, self.plan.wanted):
            parts = self.emit_parts(operator, tie, self.out)
            self.note(operator.outputs, cuts(operator, tie)[1], parts)
            if _is_copy(part := self.out[-1]):
                self.out[-1] = UOperator("reshape", part.inputs, part.outputs, (), part.source)

    def loop(self, loop: LoopUTask) -> None:
        """A loop of one batch element runs only while active and needs no select."""
        following = _following(loop, self.plan.nests[loop.outputs[0]])
        super().loop(replace(loop, body=replace(loop.body, results=following)))

    def condition(self, loop: LoopUTask) -> Region | None:
        """The predicates of all batch elements that are left are reduced as before."""
        nest = self.plan.nests[loop.outputs[0]]
        if loop.condition is None or nest.elements is None:
            return super().condition(loop)
        tested = self.region(_tested(loop.condition, nest), (nest.along,))
        closing, result = nest.elements.closing, self.fresh.like(nest.elements.closing.outputs)
        if tested.results[0].type.size == 1:
            closing = UOperator("reshape", closing.inputs, closing.outputs, (), closing.source)
        closing = replace(closing, inputs=tested.results, outputs=result)
        return Region(tested.parameters, (*tested.body, closing), result)


def is_apart(loop: LoopUTask, elements: ElementLoop) -> bool:
    """True if no batch element reads what another one computes: an active one may read one that is done."""
    for d, count in enumerate(elements.predicate.type.shape):
        if count != 1:
            places = zip(loop.outputs, (axes[d] for axes in elements.axes), strict=True)
            try:
                Cut((loop,), places, count, 1)
            except Uncuttable:
                return False
    return True


def _want(wanted: Wanted, places: Iterable[tuple[Value, int | None]]) -> None:
    for value, axis in places:
        wanted.setdefault(value, set()).add(axis)


def _only(wanted: Wanted, *values: Value) -> int | None:
    """The one axis along which these values are wanted."""
    found = {axis for value in values for axis in wanted.get(value, ())}
    if len(found) > 1:
        raise Uncuttable("a carry or result is wanted in two ways")
    return found.pop() if found else _UNKNOWN


def _merged(first: int | None, second: int | None) -> int | None:
    found = {first, second} - {_UNKNOWN}
    if len(found) > 1:
        raise Uncuttable("a carry is cut in two ways")
    return found.pop() if found else _UNKNOWN


def _along(elements: ElementLoop | None, axes: Axes) -> int | None:
    """The axis of the predicate that the cut carries share."""
    if elements is not None:
        for axis, places in zip(axes, elements.axes, strict=True):
            if axis in places:
                return places.index(axis)
    return None


def _following(loop: LoopUTask, nest: _Nest) -> tuple[Value, ...]:
    """The results of the body. A loop of one batch element runs only while active and needs no select."""
    return nest.elements.following if nest.elements is not None and nest.alone else loop.body.results


def _tested(condition: Region, nest: _Nest) -> Region:
    """The condition up to the predicate of each batch element."""
    elements = nest.elements
    if elements is None:
        return condition
    body = tuple(s for s in condition.body if s != elements.closing)
    return Region(condition.parameters, body, (elements.predicate,))


def _is_alike(leaf: UOperator, axis: int) -> bool:
    """True if an operator without operands gives all batch elements the same value."""
    if leaf.kind == "iota":
        return leaf["dimension"] != axis
    if leaf.kind == "constant":
        return leaf.data == leaf.data[: ITEM_SIZE[leaf.output.type.dtype]] * leaf.output.type.size
    return True


def _is_copy(part: Statement) -> TypeGuard[UOperator]:
    """True for a broadcast that repeats nothing: a view, which costs nothing."""
    if not is_a(part, "broadcast") or part.inputs[0].type.size != part.output.type.size:
        return False
    dimensions = part.ints("dimensions")
    return list(dimensions) == sorted(dimensions)


def is_of_elements(value: Value, condition: Region, places: Mapping[Value, tuple[int, ...]]) -> bool:
    """True if a value of a condition is, for each batch element, a function of that element's carries alone.
    `places`: the axes of the batch in each carry that has them."""
    body = tuple(s for s in condition.body if isinstance(s, UOperator))
    for axis, count in enumerate(value.type.shape):
        try:
            wanted = Cut(body, [(value, axis)], count, 1).wanted
        except Uncuttable:
            return False
        for carried in condition.parameters:
            own = {places[carried][axis]} if carried in places else set()
            if not wanted.get(carried, set()) <= own:
                return False
    return True
