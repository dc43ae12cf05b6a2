"""Computes element-wise work on the axes that a program divides into groups and merges again.

The rows of a group are short, so few vector lanes would be busy. A reshape that merges axes also ends a lane
loop, because it can only be read through divisions. Element operators in front of one, or of the reduction of
a group, move to the merged axes, where each row is long:

    g = reshape(x, (n, 32, 10))              s = sum(x, 0)               # 320 columns
    m = sum(g, (0, 2))               ->      m = sum(reshape(s, (32, 10)), 1)
    y = reshape(g - m, (n, 320))             y = x - reshape(m, 320)     # each element of m ten times

An operand that varies along some of the merged axes becomes a table of the merged length. Everything else
must be a view: an array in memory, or a reshape that had divided the axes. The sums of f32 columns are added
in f64, as in `stitch.splitting`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import TypeGuard

from jax_cocktail.device.tuning import COLLAPSE, PROGRAM
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.stitch.residence import Residences, survey
from jax_cocktail.stitch.splitting import adds_narrow, reduction
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import Region, Statement, UOperator, UProgram, is_a
from jax_cocktail.utask.layout import core
from jax_cocktail.utask.maps import axis_groups
from jax_cocktail.utask.operators import ELEMENTWISE, MOVEMENT
from jax_cocktail.utask.rewrite import map_body, map_regions
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import Shape, TensorType, Value


def collapse_axes(program: UProgram) -> UProgram:
    """Returns its argument if no element operators gain from merged axes."""
    facts, fresh = survey(program), FreshValues(program)

    def visit(region: Region) -> Region:
        collapser = _Collapser(facts, region, fresh)

        def change(statement: Statement) -> Statement | list[Statement]:
            if isinstance(statement, UOperator):
                return collapser.changed(statement)
            return map_regions(statement, visit)

        return map_body(region, change)

    found = map_regions(program, visit)
    return program if found is program else simplify(found)


def _merged_by(statement: Statement | None) -> Shape | None:
    """The shape with merged axes on which the operand of a statement would be computed; None if it is neither
    a reshape that merges axes nor a reduction of short groups between other elements."""
    if is_a(statement, "reshape"):
        return _merged_axes(statement.inputs[0].type.shape, statement.output.type.shape)
    if is_a(statement, "reduce") and statement.output.type.dtype != "bool":
        return _merged_groups(statement.inputs[0].type.shape, statement.ints("axes"))
    return None


def _merged_axes(source: Shape, target: Shape) -> Shape | None:
    """The source of a reshape with those axes merged that the target lacks; None if it lacks none."""
    if 0 in source:
        return None
    wide = tuple(prod(source[d] for d in axes) for axes, _ in axis_groups(source, target))
    if wide == core(source):
        return None
    return target if wide == core(target) else wide


def _merged_groups(shape: Shape, axes: tuple[int, ...]) -> Shape | None:
    """The operand of a reduction with the axes of a group and the kept axis before them merged."""
    wanted = [d for d, n in enumerate(shape) if n != 1]
    kept = [d for d in wanted if d not in axes]
    if not kept or len(shape) - 1 not in wanted or len(shape) - 1 not in axes or 0 in shape:
        return None
    length = prod(shape[kept[-1] + 1 :])
    outer = prod(shape[d] for d in wanted if d in axes and d < kept[-1])
    width = shape[kept[-1]] * length
    if length > COLLAPSE.group or outer < COLLAPSE.rows or width < COLLAPSE.width:
        return None
    return (*shape[: kept[-1]], width)


def _fuses(use: Statement) -> bool:
    """True if the loop of a statement may compute its operands."""
    return is_a(use, "broadcast", "concatenate", "dynamic_update_slice", "reduce", *ELEMENTWISE)


class _Collapser:
    """Moves the operators of one region.

    Attributes:
      depth: of each value that an element-wise operator of the region computes, how many of them are nested.
      flops: those of one of its elements, as far as they count.
    """

    def __init__(self, facts: Residences, region: Region, fresh: FreshValues) -> None:
        self.facts, self.fresh = facts, fresh
        self.local = {v for s in region.body for v in s.outputs}
        self.depth: dict[Value, int] = {}
        self.flops: dict[Value, int] = {}
        for statement in region.body:
            if is_a(statement, *ELEMENTWISE):
                value, inputs = statement.output, statement.inputs
                flops = statement.facts.cost + sum(self.flops.get(x, 0) for x in inputs)
                self.flops[value] = min(flops, PROGRAM.recomputed_flops)
                self.depth[value] = 1 + max((self.depth.get(x, 0) for x in inputs), default=0)
        self._wide: dict[tuple[Value, Shape], Value] = {}  # values on merged axes, by value and shape
        self._known: dict[tuple[Value, Shape], bool] = {}
        self._ends: dict[tuple[Value, Shape], bool] = {}

    def changed(self, operator: UOperator) -> UOperator | list[Statement]:
        wide = _merged_by(operator)
        if wide is None or not self._collapses(x := operator.inputs[0], wide):
            return operator
        if operator.kind == "reshape" and not self._ends_loop(operator):
            return operator
        b = Builder(self.fresh, operator.source)
        merged = self._merged(b, x, wide)
        if operator.kind == "reshape":
            b.define(operator.outputs, "reshape", (merged,))
        else:
            _reduce_twice(b, operator, merged)
        return b.out

    # -- what may move -----------------------------------------------------------------------------------
    def _ends_loop(self, reshape: UOperator) -> bool:
        """True if the reshape stands between element operators and what else their lane loop could do: store
        the result elsewhere, at least."""
        uses = self.facts.uses[reshape.output]
        return reshape.inputs[0] in self.depth and any(use is None or _fuses(use) for use, _ in uses)

    def _collapses(self, value: Value, wide: Shape) -> bool:
        """True if the value is cheap to have on the merged axes."""
        key = value, wide
        if key not in self._known:
            self._known[key] = self._can_collapse(value, wide)
        return self._known[key]

    def _can_collapse(self, value: Value, wide: Shape) -> bool:
        operator = self.facts.operator(value)
        if is_a(operator, "reshape"):
            x = operator.inputs[0]
            return core(x.type.shape) == core(wide) or self._is_stored(x)
        if operator is not None and value in self.depth:
            operands = [x for x in operator.inputs if not x.type.is_scalar]
            shallow = self.depth[value] < PROGRAM.lane_loop  # stitching stores what is nested deeper
            return shallow and self._moves(value, wide) and all(self._collapses(x, wide) for x in operands)
        if is_a(operator, "broadcast"):
            return self._spreads(operator, wide)
        return is_a(operator, "constant") or self._is_stored(value)

    def _is_stored(self, value: Value) -> bool:
        """True if the value surely lies in memory, in order, so that each reshape is a view."""
        operator = self.facts.operator(value)
        return operator is None or operator.kind not in MOVEMENT and value not in self.depth

    def _moves(self, value: Value, wide: Shape) -> bool:
        """True if all uses of the value move too, or if computing it again for the others costs less than to
        store it."""
        return self._ends_merged(value, wide) or (
            all(self._is_here(use, "reduce", "broadcast", *ELEMENTWISE) for use, _ in self.facts.uses[value])
            and self.flops[value] < PROGRAM.recomputed_flops
        )

    def _ends_merged(self, value: Value, wide: Shape) -> bool:
        """True if the value is used for nothing but what ends on these merged axes."""
        key = value, wide
        if key not in self._ends:
            shallow = self.depth[value] < PROGRAM.lane_loop
            uses = self.facts.uses[value]
            self._ends[key] = shallow and all(self._use_ends_merged(use, wide) for use, _ in uses)
        return self._ends[key]

    def _use_ends_merged(self, use: Statement | None, wide: Shape) -> bool:
        if self._is_here(use, *ELEMENTWISE):
            return self._ends_merged(use.output, wide)
        merged = _merged_by(use) if self._is_here(use, "reshape", "reduce") else None
        return merged is not None and core(merged) == core(wide)

    def _is_here(self, use: Statement | None, *kinds: str) -> TypeGuard[UOperator]:
        return is_a(use, *kinds) and use.output in self.local

    def _spreads(self, broadcast: UOperator, wide: Shape) -> bool:
        """True if a broadcast varies along none of the axes that merge, or takes a small table at most."""
        (x,), shape = broadcast.inputs, broadcast.output.type.shape
        varying = _varying(broadcast)
        groups = [axes for axes in _groups(shape, wide) if varying.intersection(axes)]
        merging = [axes for axes in groups if len(axes) > 1]
        dimensions = broadcast.ints("dimensions")
        whole = all(varying.issuperset(axes) for axes in merging) and list(dimensions) == sorted(dimensions)
        size = prod(shape[d] for axes in groups for d in axes)
        return not merging or size * COLLAPSE.table <= prod(shape) or (whole and self._is_stored(x))

    # -- moving ------------------------------------------------------------------------------------------
    def _merged(self, b: Builder, value: Value, wide: Shape) -> Value:
        """The value on the merged axes."""
        key = value, wide
        if key not in self._wide:
            self._wide[key] = self._make(b, value, wide)
        return self._wide[key]

    def _make(self, b: Builder, value: Value, wide: Shape) -> Value:
        operator = self.facts.operator(value)
        if is_a(operator, "reshape"):
            return b.reshape(operator.inputs[0], wide)
        if is_a(operator, "broadcast"):
            return _spread(b, operator, wide)
        if operator is None or value not in self.depth:
            return b.reshape(value, wide)
        inputs = tuple(x if x.type.is_scalar else self._merged(b, x, wide) for x in operator.inputs)
        result = self.fresh.make(TensorType(value.type.dtype, wide))
        b.out.append(replace(operator, inputs=inputs, outputs=(result,)))
        return result


def _groups(deep: Shape, wide: Shape) -> list[Sequence[int]]:
    """The axes that each merged axis consists of, but for unit axes."""
    found: list[Sequence[int]] = [()] * len(wide)
    for axes, (merged,) in axis_groups(deep, wide):
        found[merged] = axes
    return found


def _varying(broadcast: UOperator) -> set[int]:
    """The axes along which the elements of a broadcast differ."""
    pairs = zip(broadcast.inputs[0].type.shape, broadcast.ints("dimensions"), strict=True)
    return {axis for n, axis in pairs if n != 1}


def _spread(b: Builder, broadcast: UOperator, wide: Shape) -> Value:
    """The broadcast on merged axes, of a table where it varies along a part of them."""
    (x,), deep, varying = broadcast.inputs, broadcast.output.type.shape, _varying(broadcast)
    part, merged = [1] * len(deep), [1] * len(wide)
    for position, axes in enumerate(_groups(deep, wide)):
        if varying.intersection(axes):
            merged[position] = wide[position]
            for d in axes:
                part[d] = deep[d]
    table = b.reshape(b.broadcast(x, part, broadcast.ints("dimensions")), merged)
    return b.broadcast(table, wide, range(len(wide)))


def _reduce_twice(b: Builder, old: UOperator, merged: Value) -> None:
    """Appends the reduction of columns, and that of the groups among them."""
    shape, axes, op = old.inputs[0].type.shape, old.ints("axes"), old.text("op")
    dtype, last = old.output.type.dtype, merged.type.rank - 1
    if adds_narrow(op, dtype):
        merged = b.convert(merged, "float32")
    outer = tuple(d for d in axes if d < last)
    columns = reduction(b, merged, outer, op)
    if op == "sum" and columns.type.dtype == "float32":
        columns = b.convert(columns, "float64")
    groups = b.reshape(columns, (*columns.type.shape[:-1], *shape[last:]))
    rank = columns.type.rank - 1
    inner = tuple(rank + d - last for d in axes if d >= last)
    total = b.convert(reduction(b, groups, inner, op), dtype)
    b.define(old.outputs, "reshape", (total,))
