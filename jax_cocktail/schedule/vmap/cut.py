"""Cuts statements down to some of their batch elements.

The axis along which each wanted result is cut determines the cut of every other value, loops and branches
included, by the axis rules of the operators (`analysis.axes`). Statements that mix batch elements cannot be
cut. The cut statements compute any `width` of the batch elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from jax_cocktail.analysis.axes import Tie, rule
from jax_cocktail.schedule.vmap.lockstep import ElementLoop, element_loop
from jax_cocktail.utask.ir import (
    Attribute,
    Attributes,
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    UOperator,
    defined_in,
    operators_in,
)
from jax_cocktail.utask.operators import PRODUCTS
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import ITEM_SIZE, TensorType, Value

WHOLE = -1  # in place of an axis: the whole value is wanted
_UNKNOWN = -2  # in place of an axis: not wanted so far

Place = tuple[Value, int]  # a value, cut along an axis or whole
Places = dict[Place, Value]  # the part of each place after the cut
Wanted = dict[Value, set[int]]


class Uncuttable(Exception):
    """Batch elements are mixed, or an operator has no axis rule."""


@dataclass(frozen=True, slots=True)
class _Nest:
    """The cut of a loop or branch: `axes` of its carries or results.

    `elements`: a lock-step loop, cut along axis `along` of its predicate; `alone`: one batch element remains.
    """

    axes: tuple[int, ...]
    elements: ElementLoop | None = None
    along: int = 0
    alone: bool = False


class Cut:
    """The plan for some statements of one region; `emit` makes them. Raises Uncuttable.

    `needs`: the parts that they read of values defined elsewhere; `leaves`: operators without operands among
    the statements whose values are among the needs.
    """

    def __init__(
        self, statements: Sequence[Statement], wanted: Iterable[Place], elements: int, width: int
    ) -> None:
        self.statements, self.elements, self.width = statements, elements, width
        self.leaves: dict[Value, UOperator] = {}
        self._nests: dict[Value, _Nest] = {}
        self._wanted: Wanted = {}
        _want(self._wanted, wanted)
        self._plan(statements, self._wanted)
        inside = {v for s in statements for v in defined_in(s)} - self.leaves.keys()
        self.needs: tuple[Place, ...] = tuple(
            (value, axis)
            for value, axes in self._wanted.items()
            for axis in sorted(axes)
            if value not in inside and axis != WHOLE
            if value not in self.leaves or not _is_alike(self.leaves[value], axis)
        )
        if any(value.type.shape[axis] != elements for value, axis in self.needs):
            raise Uncuttable("an operand has another batch size")

    @property
    def has_shared_weights(self) -> bool:
        """True if a matrix product reads an operand whole, so that batch elements share the read."""
        return any(
            tie is not None and None in tie.inputs
            for statement in self.statements
            for operator in operators_in(statement)
            if operator.kind in PRODUCTS
            for tie in self._ties(operator, self._wanted)
        )

    @property
    def common(self) -> frozenset[int]:
        """The positions of the statements that all batch elements share."""
        return frozenset(
            position
            for position, statement in enumerate(self.statements)
            if not any(self._wanted.get(v, set()) - {WHOLE} for v in statement.outputs)
        )

    # -- planning ----------------------------------------------------------------------------------------
    def _plan(self, statements: Sequence[Statement], wanted: Wanted) -> None:
        """Adds the operands of wanted values to `wanted`, last statement first."""
        for statement in reversed(statements):
            if not any(wanted.get(v) for v in statement.outputs):
                continue
            if isinstance(statement, UOperator):
                for tie in self._ties(statement, wanted):
                    _want(wanted, zip(statement.inputs, _operand_axes(statement, tie), strict=True))
            elif isinstance(statement, LoopUTask):
                self._plan_loop(statement, wanted)
            elif isinstance(statement, BranchUTask):
                self._plan_branch(statement, wanted)
            else:
                raise Uncuttable("stitched already")

    def _ties(self, operator: UOperator, wanted: Wanted) -> list[Tie | None]:
        """The tie of each axis along which a result is wanted; None: whole."""
        found: list[Tie | None] = []
        ties = rule(operator).ties
        for k, output in enumerate(operator.outputs):
            for axis in sorted(wanted.get(output, ())):
                if axis != WHOLE and not operator.inputs and not _is_alike(operator, axis):
                    self.leaves[output] = operator
                    continue
                tie = None
                if axis != WHOLE:
                    tie = next(
                        (t for t in ties if t.outputs[k] == axis and t.parts % self.elements == 0), None
                    )
                    if tie is None:
                        raise Uncuttable(f"{operator.kind} mixes batch elements")
                if tie not in found:
                    found.append(tie)
        return found

    def _plan_loop(self, loop: LoopUTask, wanted: Wanted) -> None:
        elements = element_loop(loop)
        tested = loop.carried if loop.condition is None else loop.condition.parameters
        axes = [_only(wanted, v) for v in loop.outputs]
        while True:
            nest = self._nest(elements, axes)
            trial = {v: set(a) for v, a in wanted.items()}
            self._plan_regions(loop, nest, trial)
            found = [_only(trial, *pair) for pair in zip(loop.carried, tested, strict=True)]
            merged = tuple(_merged(a, b) for a, b in zip(nest.axes, found, strict=True))
            if list(merged) == axes:
                break
            axes = list(merged)
        if _UNKNOWN in axes or (loop.index is not None and trial.get(loop.index, {WHOLE}) != {WHOLE}):
            raise Uncuttable("a carry without a cut")
        self._nests[loop.outputs[0]] = nest
        wanted.clear()
        wanted.update(trial)
        _want(wanted, zip(loop.initial, axes, strict=True))

    def _nest(self, elements: ElementLoop | None, axes: Sequence[int]) -> _Nest:
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
            elements, result = nest.elements, loop.condition.results[0]
            _want(wanted, [(result, WHOLE) if elements is None else (elements.predicate, nest.along)])
            self._plan(_tested(loop.condition, nest), wanted)

    def _plan_branch(self, branch: BranchUTask, wanted: Wanted) -> None:
        axes = tuple(_only(wanted, v) for v in branch.outputs)
        if _UNKNOWN in axes:
            raise Uncuttable("a result without a cut")
        self._nests[branch.outputs[0]] = _Nest(axes)
        for region in branch.branches:
            _want(wanted, zip(region.results, axes, strict=True))
            self._plan(region.body, wanted)
        _want(wanted, [(branch.selector, WHOLE)])

    # -- emission ----------------------------------------------------------------------------------------
    def emit(self, places: Mapping[Place, Value], fresh: FreshValues) -> tuple[list[Statement], Places]:
        """The cut statements, and the parts of all values by place; `places` has the needs."""
        known = dict(places)
        return self._emitted(self.statements, known, fresh), known

    def emit_tested(
        self, loop: LoopUTask, places: Mapping[Place, Value], carried: Sequence[Value], fresh: FreshValues
    ) -> tuple[list[Statement], Value]:
        """The predicate of a lock-step loop among the statements, for cut carries."""
        nest, condition = self._nests[loop.outputs[0]], loop.condition
        assert nest.elements is not None and condition is not None
        known = dict(places)
        known.update(zip(zip(condition.parameters, nest.axes, strict=True), carried, strict=True))
        statements = self._emitted(_tested(condition, nest), known, fresh)
        return statements, known[nest.elements.predicate, nest.along]

    def _emitted(self, statements: Sequence[Statement], known: Places, fresh: FreshValues) -> list[Statement]:
        out: list[Statement] = []
        for statement in statements:
            if not any(self._wanted.get(v) for v in statement.outputs):
                continue
            if isinstance(statement, UOperator):
                ties = self._ties(statement, self._wanted)
                out += [self._operator(statement, tie, known, fresh) for tie in ties]
            elif isinstance(statement, LoopUTask):
                out.append(self._loop(statement, known, fresh))
            elif isinstance(statement, BranchUTask):
                out.append(self._branch(statement, known, fresh))
        return out

    def _parts(
        self, values: Sequence[Value], axes: Sequence[int], known: Places, fresh: FreshValues
    ) -> tuple[Value, ...]:
        """Fresh values for the parts of some values, noted in `known`."""
        places = tuple(zip(values, axes, strict=True))
        parts = tuple(fresh.make(self._part_type(*place)) for place in places)
        known.update(zip(places, parts, strict=True))
        return parts

    def _part_type(self, value: Value, axis: int) -> TensorType:
        if axis == WHOLE:
            return value.type
        return value.type.resized(axis, value.type.shape[axis] // self.elements * self.width)

    def _operator(self, operator: UOperator, tie: Tie | None, known: Places, fresh: FreshValues) -> UOperator:
        inputs = _looks(known, operator.inputs, _operand_axes(operator, tie))
        axes = (WHOLE,) * len(operator.outputs) if tie is None else tie.outputs
        outputs = self._parts(operator.outputs, axes, known, fresh)
        if _is_copy(operator, inputs, outputs):
            return UOperator("reshape", inputs, outputs, (), operator.source)
        attributes = operator.attributes if tie is None else self._attributes(operator, tie, outputs[0].type)
        return replace(operator, inputs=inputs, outputs=outputs, attributes=attributes)

    def _attributes(self, operator: UOperator, tie: Tie, type_: TensorType) -> Attributes:
        """The attributes with their sizes cut."""
        changed: dict[str, Attribute] = {}
        if operator.kind == "constant":
            changed["data"] = operator.data[: ITEM_SIZE[type_.dtype]] * type_.size
        elif operator.kind == "gather" and tie.inputs[0] is not None:
            sizes, d = list(operator.ints("slice_sizes")), tie.inputs[0]
            if d not in operator.ints("operand_batching_dims"):
                sizes[d] = sizes[d] // self.elements * self.width
            changed["slice_sizes"] = tuple(sizes)
        elif operator.kind == "conv" and None not in tie.inputs:
            groups = operator.number("feature_group_count")
            changed["feature_group_count"] = groups // self.elements * self.width
        return tuple(sorted((dict(operator.attributes) | changed).items()))

    def _loop(self, loop: LoopUTask, known: Places, fresh: FreshValues) -> LoopUTask:
        nest = self._nests[loop.outputs[0]]
        initial = _looks(known, loop.initial, nest.axes)
        condition = loop.condition and self._condition(loop.condition, nest, known, fresh)
        parameters = self._parts(loop.carried, nest.axes, known, fresh)
        if loop.index is not None:
            parameters = (*self._parts((loop.index,), (WHOLE,), known, fresh), *parameters)
        statements = self._emitted(loop.body.body, known, fresh)
        body = Region(parameters, tuple(statements), _looks(known, _following(loop, nest), nest.axes))
        outputs = self._parts(loop.outputs, nest.axes, known, fresh)
        return replace(loop, initial=initial, outputs=outputs, condition=condition, body=body)

    def _condition(self, condition: Region, nest: _Nest, known: Places, fresh: FreshValues) -> Region:
        parameters = self._parts(condition.parameters, nest.axes, known, fresh)
        out = self._emitted(_tested(condition, nest), known, fresh)
        if nest.elements is None:
            return Region(parameters, tuple(out), _looks(known, condition.results, (WHOLE,)))
        closing, predicate = nest.elements.closing, known[nest.elements.predicate, nest.along]
        result = fresh.make(closing.output.type)
        if predicate.type.size == 1:
            out.append(UOperator("reshape", (predicate,), (result,), (), closing.source))
        else:
            out.append(replace(closing, inputs=(predicate,), outputs=(result,)))
        return Region(parameters, tuple(out), (result,))

    def _branch(self, branch: BranchUTask, known: Places, fresh: FreshValues) -> BranchUTask:
        axes = self._nests[branch.outputs[0]].axes

        def cut(region: Region) -> Region:
            statements = self._emitted(region.body, known, fresh)
            return Region((), tuple(statements), _looks(known, region.results, axes))

        branches = tuple(map(cut, branch.branches))
        outputs = self._parts(branch.outputs, axes, known, fresh)
        (selector,) = _looks(known, branch.inputs, (WHOLE,))
        return replace(branch, selector=selector, branches=branches, outputs=outputs)


def _looks(known: Places, values: Sequence[Value], axes: Sequence[int]) -> tuple[Value, ...]:
    """The parts of some values; a value from outside that is wanted whole is its own part."""
    places = zip(values, axes, strict=True)
    return tuple(known.get(p, p[0]) if p[1] == WHOLE else known[p] for p in places)


def _want(wanted: Wanted, places: Iterable[Place]) -> None:
    for value, axis in places:
        wanted.setdefault(value, set()).add(axis)


def _operand_axes(operator: UOperator, tie: Tie | None) -> tuple[int, ...]:
    if tie is None:
        return (WHOLE,) * len(operator.inputs)
    return tuple(WHOLE if axis is None else axis for axis in tie.inputs)


def _only(wanted: Wanted, *values: Value) -> int:
    """The one axis along which these values are wanted."""
    found = {axis for value in values for axis in wanted.get(value, ())}
    if len(found) > 1:
        raise Uncuttable("a carry or result is wanted in two ways")
    return found.pop() if found else _UNKNOWN


def _merged(first: int, second: int) -> int:
    if _UNKNOWN in (first, second):
        return max(first, second)
    if first != second:
        raise Uncuttable("a carry is cut in two ways")
    return first


def _along(elements: ElementLoop | None, axes: Sequence[int]) -> int | None:
    """The axis of the predicate that the cut carries share."""
    if elements is not None:
        for axis, places in zip(axes, elements.axes, strict=True):
            if axis in places:
                return places.index(axis)
    return None


def _following(loop: LoopUTask, nest: _Nest) -> Sequence[Value]:
    """The results of the body. A loop of one batch element runs only while active and needs no select."""
    return nest.elements.following if nest.elements is not None and nest.alone else loop.body.results


def _tested(condition: Region, nest: _Nest) -> Sequence[Statement]:
    """The statements of the condition up to the predicate of each batch element."""
    elements = nest.elements
    return condition.body if elements is None else [s for s in condition.body if s != elements.closing]


def _is_alike(leaf: UOperator, axis: int) -> bool:
    """True if an operator without operands gives all batch elements the same value."""
    if leaf.kind == "iota":
        return leaf["dimension"] != axis
    if leaf.kind == "constant":
        return leaf.data == leaf.data[: ITEM_SIZE[leaf.output.type.dtype]] * leaf.output.type.size
    return True


def _is_copy(operator: UOperator, inputs: Sequence[Value], outputs: Sequence[Value]) -> bool:
    """True for a broadcast that repeats nothing: a view, which costs nothing."""
    if operator.kind != "broadcast" or inputs[0].type.size != outputs[0].type.size:
        return False
    dimensions = operator.ints("dimensions")
    return list(dimensions) == sorted(dimensions)
