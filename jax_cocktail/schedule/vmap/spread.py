"""Follows a division of parameters through a program: which axis of each value is divided with them.

Devices that have a part of the batch each compute the same part of all that depends on it, as long as no
operator mixes batch elements (`analysis.axes`). A sum over the batch ends in terms, one for each device. They
stay terms through whatever is linear in them, such as the sum over iterations of a weight's gradient, so that
their sum may come last. GSPMD (Xu et al. 2021, section 3.5) follows shardings by the same facts, and sums up
where they are made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from jax_cocktail.analysis.axes import Tie, rule
from jax_cocktail.schedule.vmap.cut import SUM, Uncuttable
from jax_cocktail.schedule.vmap.lockstep import element_loop
from jax_cocktail.utask.arrays import decode
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Statement, StitchedUTask, UOperator
from jax_cocktail.utask.operators import RESHAPES
from jax_cocktail.utask.types import FLOATS, Source, Value

Axis = int | None  # of a value; None: all parts have it whole


class Spread:
    """The axes of the values of a region, if its parameters are divided along `axes` into so many parts.

    `axis`: of each value, None or missing if it is whole; `sums`: for a value of which each part has a term,
    how the terms follow from the parts of the operands. `zeros`: parameters that are arrays of zeros.

    Raises:
      Uncuttable: an operator needs other parts.
    """

    def __init__(
        self, body: Sequence[Statement], axes: Mapping[Value, int], parts: int, zeros: Collection[Value] = ()
    ) -> None:
        self.parts = parts
        self.axis: dict[Value, Axis] = dict(axes)
        self.sums: dict[Value, Tie] = {}
        self._zeros = set(zeros)
        self._divisors: set[Value] = set()  # constants without zeros, infinities and NaN
        self._statements(body)

    def _statements(self, body: Sequence[Statement]) -> None:
        for statement in body:
            if isinstance(statement, UOperator):
                self._operator(statement)
            elif isinstance(statement, LoopUTask):
                self._loop(statement)
            elif isinstance(statement, BranchUTask):
                self._branch(statement)
            else:
                assert isinstance(statement, StitchedUTask)
                raise Uncuttable("stitched already")

    def _refuse(self, error: Uncuttable) -> None:
        raise error

    def _note(self, values: Sequence[Value], axes: Sequence[Axis]) -> None:
        self.axis.update(zip(values, axes, strict=True))

    def _is_term(self, value: Value) -> bool:
        """True if each part has a term of the value: zeros are the sum of zeros."""
        return self.axis.get(value) == SUM or value in self._zeros

    def _joined(self, values: Sequence[Value], source: Source, known: Axis = None) -> Axis:
        """The axis of a value that is any of these. A whole one has all parts. `known`: so far."""
        found = {known, *(self.axis.get(value) for value in values)} - {None}
        if len(found) > 1 or (SUM in found and not all(map(self._is_term, values))):
            self._refuse(_mixed("what a loop or branch gives", source))
            return known
        return found.pop() if found else None

    # -- nested uTasks -----------------------------------------------------------------------------------
    def _loop(self, loop: LoopUTask) -> None:
        axes = [self.axis.get(v) for v in loop.initial]
        zeros = [v in self._zeros for v in loop.initial]  # as long as no iteration shows otherwise
        while True:
            for values in (loop.carried, loop.tested):
                self._note(values, axes)
                self._zeros.difference_update(values)
                self._zeros.update(v for v, zero in zip(values, zeros, strict=True) if zero)
            self._statements(loop.body.body)
            sides = [*zip(loop.initial, loop.body.results, axes, strict=True)]
            following = [self._joined((first, result), loop.source, axis) for first, result, axis in sides]
            remain = [zero and self._is_term(v) for zero, v in zip(zeros, loop.body.results, strict=True)]
            if (following, remain) == (axes, zeros):
                break
            axes, zeros = following, remain
        if loop.condition is not None:
            self._condition(loop)
        self._note(loop.outputs, axes)

    def _condition(self, loop: LoopUTask) -> None:
        """The lock-step loop of a `vmap` runs on each device until its own batch elements are done."""
        assert loop.condition is not None
        elements, body = element_loop(loop), loop.condition.body
        if elements is not None:
            self._statements([s for s in body if s != elements.closing])
            if self.axis.get(elements.predicate) not in (None, SUM):
                return
        self._statements(body)
        if self.axis.get(loop.condition.results[0]) is not None:
            self._refuse(_mixed("the condition of a loop", loop.source))

    def _branch(self, branch: BranchUTask) -> None:
        if self.axis.get(branch.selector) is not None:
            self._refuse(_mixed("the choice of a branch", branch.source))
        for region in branch.branches:
            self._statements(region.body)
        sides = zip(*(region.results for region in branch.branches), strict=True)
        self._note(branch.outputs, [self._joined(values, branch.source) for values in sides])

    # -- operators ---------------------------------------------------------------------------------------
    def _operator(self, operator: UOperator) -> None:
        axes = tuple(self.axis.get(v) for v in operator.inputs)
        if not operator.facts.total:
            where = _at(operator.source)
            self._refuse(Uncuttable(f"it can fail{where}, which must not depend on the device"))
        self._zeros.difference_update(operator.outputs)
        if not set(axes) - {None}:
            self._note(operator.outputs, (None,) * len(operator.outputs))
            if self._makes_zeros(operator):
                self._zeros.update(operator.outputs)
            if self._makes_divisors(operator):
                self._divisors.update(operator.outputs)
            return
        tie = None if SUM in axes else self._tie(operator, axes)
        if tie is not None:
            self._note(operator.outputs, tie.outputs)
        elif terms := _contracted(operator, axes) or self._linear(operator, axes):
            self.sums[operator.output] = Tie((SUM,), terms, 0)
            self._note(operator.outputs, (SUM,))
        else:
            self._refuse(_mixed(operator.kind, operator.source))
            self._note(operator.outputs, (None,) * len(operator.outputs))

    def _tie(self, operator: UOperator, axes: Sequence[Axis]) -> Tie | None:
        for tie in rule(operator).ties:
            fits = all(axis in (None, tied) for axis, tied in zip(axes, tie.inputs, strict=True))
            if fits and tie.parts % self.parts == 0:
                return tie
        return None

    def _makes_zeros(self, operator: UOperator) -> bool:
        if operator.kind == "constant":
            return not any(operator.data)
        if operator.kind == "empty":  # something else writes it before it is read
            return True
        return operator.facts.linear == "first" and operator.inputs[0] in self._zeros

    def _makes_divisors(self, operator: UOperator) -> bool:
        if operator.kind in RESHAPES:
            return operator.inputs[0] in self._divisors
        if operator.kind != "constant" or operator.output.type.dtype not in FLOATS:
            return False
        found = decode(operator.data, operator.output.type)
        return bool(np.all(np.isfinite(found) & (found != 0)))

    def _linear(self, operator: UOperator, axes: Sequence[Axis]) -> tuple[Axis, ...] | None:
        """The operands of a term of the result, if it is linear in operands of which each part has a term."""
        form, *places = operator.facts.linear.split() or [""]
        if operator.kind == "scatter":
            return _scattered(operator, axes) if self._is_term(operator.inputs[0]) else None
        if form == "each":
            return tuple(axes) if set(axes) == {SUM, None} and axes.count(SUM) == 1 else None
        if form == "sum":
            form = "first" if operator["op"] == "sum" else ""
        terms = {0} if form == "first" else set(map(int, places)) or set(range(len(axes)))
        fixed = all(axis is None for k, axis in enumerate(axes) if k not in terms)
        if not form or not fixed or not all(self._is_term(operator.inputs[k]) for k in terms):
            return None
        if operator.facts.divides and operator.inputs[1] not in self._divisors:
            return None  # by zero: infinities of terms of both signs, or NaN of a term that is zero
        kinds = {v.type.dtype for v in (operator.inputs[min(terms)], operator.output)}
        if (operator.facts.divides or len(kinds) > 1) and not kinds <= FLOATS:  # integers are rounded
            return None
        return tuple(SUM if k in terms else None for k in range(len(axes)))


class Preferred(Spread):
    """The axes that a partitioner divides if it may communicate: those that follow from what is not mixed."""

    def _refuse(self, error: Uncuttable) -> None:
        """The values are whole."""

    def _note(self, values: Sequence[Value], axes: Sequence[Axis]) -> None:
        super()._note(values, [None if axis == SUM else axis for axis in axes])


def _contracted(operator: UOperator, axes: Sequence[Axis]) -> tuple[Axis, ...] | None:
    """The axes of the operands, if the result is the sum of what the parts make of theirs."""
    if operator.kind == "reduce" and operator["op"] == "sum" and axes[0] in operator.ints("axes"):
        return tuple(axes)
    if operator.kind == "dot" and len(axes) == 2:
        pairs = [*zip(operator.ints("lhs_contract"), operator.ints("rhs_contract"), strict=True)]
    elif operator.kind == "conv" and operator["feature_group_count"] == operator["batch_group_count"] == 1:
        pairs = [(operator.ints("lhs_spec")[1], operator.ints("rhs_spec")[1])]
    else:
        return None
    return next((pair for pair in pairs if axes[0] in (None, pair[0]) and axes[1] in (None, pair[1])), None)


def _scattered(operator: UOperator, axes: Sequence[Axis]) -> tuple[Axis, ...] | None:
    """Updates that are added anywhere, each part its own."""
    if operator["op"] != "add":
        return None
    if axes[2] == SUM:
        return (SUM, None, SUM) if axes[1] is None else None
    window = operator.ints("update_window_dims")
    batch = [d for d in range(operator.inputs[2].type.rank) if d not in window]
    if operator.ints("operand_batching_dims"):  # the operand has these axes as well
        return None
    if axes[2] not in batch or axes[1] not in (None, batch.index(axes[2])):
        return None
    return SUM, batch.index(axes[2]), axes[2]


def _mixed(kind: str, source: Source) -> Uncuttable:
    return Uncuttable(f"{kind}{_at(source)} needs values of all devices")


def _at(source: Source) -> str:
    return f" at {source}" if source.file else ""
