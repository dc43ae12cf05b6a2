"""Makes selects of carries that a loop keeps by other means for batch elements whose flag is false.

    x = scatter(x, i, where(flag, new, x[i]))        x = select(flag, scatter(...), x)

Equinox keeps a large array of an element that is done, such as the saved states of a solver in Diffrax, by
writing to it what is there. Here a carry is proven to stay the same for each element whose flag is false, and
a select says so, which `flags` and `lockstep` know. It changes no value.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import replace

from jax_cocktail.schedule.simplify.peephole import splat
from jax_cocktail.schedule.vmap.lockstep import spread
from jax_cocktail.schedule.vmap.scopes import Scopes
from jax_cocktail.schedule.vmap.truths import truths
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import LoopUTask, Region, Statement, UOperator, UProgram, definitions, is_a
from jax_cocktail.utask.rewrite import map_body, map_regions
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import Value

Made = Mapping[Value, UOperator]
Same = tuple[Value, int | None]  # a value, and the axis of the batch elements along which it is meant


def with_selects(program: UProgram) -> UProgram:
    """Returns its argument if no loop keeps carries in such a way."""
    return map_regions(program, _Selects(FreshValues(program)).region)


class _Selects(Scopes):
    def __init__(self, fresh: FreshValues) -> None:
        super().__init__()
        self.fresh = fresh

    def region(self, region: Region) -> Region:
        with self.entered(region):
            return map_body(region, self._statement)

    def _statement(self, statement: Statement) -> Statement:
        statement = map_regions(statement, self.region)
        if not isinstance(statement, LoopUTask) or statement.condition is None:
            return statement
        for flag, result in zip(statement.carried, statement.body.results, strict=True):
            combined = definitions(statement.body).get(result)
            is_flag = (flag.type.dtype, flag.type.rank) == ("bool", 1)
            if not is_flag or not is_a(combined, "and") or flag not in combined.inputs:
                continue
            if (found := self._selected(statement, flag)) is not None:
                return found
        return statement

    def _selected(self, loop: LoopUTask, flag: Value) -> LoopUTask | None:
        """The loop with a select by a flag for each carry that needs one; None if a carry is not kept."""
        keeps = _Keeps(self.made)
        keeps.body(loop.body, {flag: False})
        made = definitions(loop.body)
        build, results, changes = Builder(self.fresh, loop.source), list(loop.body.results), False
        for k, (carried, result) in enumerate(zip(loop.carried, loop.body.results, strict=True)):
            if carried == flag or carried.type.is_scalar:
                continue
            select = made.get(result)
            kept = is_a(select, "select") and select.inputs[2] == carried
            if is_a(select, "select") and kept and spread(select.inputs[0], made)[0] == flag:
                continue
            root, axis = keeps.of(result)
            if root != carried or axis is None:
                return None
            wide = build.broadcast(flag, carried.type.shape, (axis,))
            results[k] = build.select(wide, result, carried)
            changes = True
        if not changes:
            return None
        body = Region(loop.body.parameters, (*loop.body.body, *build.out), tuple(results))
        return replace(loop, body=body)


class _Keeps:
    """The values that others equal for elements without a part in a trip. `around`: makers outside."""

    def __init__(self, around: Made) -> None:
        self.made: MutableMapping[Value, UOperator] = ChainMap({}, dict(around))
        self.same: dict[Value, Same] = {}

    def of(self, value: Value) -> Same:
        """The value that another equals, for these elements, along one axis; itself, along any."""
        return self.same.get(value, (value, None))

    def body(self, region: Region, known: Mapping[Value, bool]) -> None:
        """Finds what the values of a body equal. `known`: flags of which the truth is known."""
        self.made.update((v, s) for s in region.body if isinstance(s, UOperator) for v in s.outputs)
        certain = truths(region, known, self.made)
        for statement in region.body:
            found: Same | None = None
            if isinstance(statement, LoopUTask):
                self._loop(statement, certain)
            elif is_a(statement, "select"):
                found = self._select(statement, certain)
            elif is_a(statement, "scatter"):
                found = self._scatter(statement)
            if found is not None:
                self.same[statement.outputs[0]] = found

    def _loop(self, loop: LoopUTask, known: Mapping[Value, bool]) -> None:
        """A carry that no trip changes ends as it starts."""
        self.body(loop.body, known)
        rows = zip(loop.initial, loop.carried, loop.body.results, loop.outputs, strict=True)
        for start, carried, result, end in rows:
            root, axis = self.of(result)
            before, along = self.of(start)
            if root == carried and (along is None or axis is None or along == axis):
                self.same[end] = before, axis if along is None else along

    def _select(self, select: UOperator, certain: Mapping[Value, bool]) -> Same | None:
        predicate, on_true, on_false = select.inputs
        flags, axes = spread(predicate, self.made)
        if flags in certain and len(axes) == 1:
            root, axis = self.of(on_true if certain[flags] else on_false)
            return (root, axes[0]) if axis in (None, axes[0]) else None
        (root, axis), (other, along) = self.of(on_true), self.of(on_false)
        meet = root == other and (axis is None or along is None or axis == along)
        return (root, along if axis is None else axis) if meet else None

    def _scatter(self, scatter: UOperator) -> Same | None:
        """A scatter that writes what a gather has read from the same places."""
        x, indices, part = scatter.inputs
        read, axis = self.of(part)
        gather = self.made.get(read)
        while is_a(gather, "reshape"):
            gather = self.made.get(gather.inputs[0])
        if scatter["op"] != "set" or not is_a(gather, "gather") or gather.inputs[0] != x:
            return None
        if scatter["mode"] == "clip" and gather["mode"] != "clip":
            return None
        hidden = {*scatter.ints("inserted_window_dims"), *scatter.ints("operand_batching_dims")}
        along = _pairs(scatter, "operand_batching_dims", "scatter_indices_batching_dims")
        written = _axes(part.type.shape, scatter.ints("update_window_dims"), hidden, x.type.rank)
        collapsed = {*gather.ints("collapsed_slice_dims"), *gather.ints("operand_batching_dims")}
        taken = _axes(gather.output.type.shape, gather.ints("offset_dims"), collapsed, x.type.rank)
        if [a for a in written if a[2] != 1] != [a for a in taken if a[2] != 1]:
            return None
        sizes = {d: n for kind, d, n in written if kind == "window"}
        if any(sizes.get(d, 1) != n for d, n in enumerate(gather.ints("slice_sizes"))):
            return None
        if along != _pairs(gather, "operand_batching_dims", "start_indices_batching_dims"):
            return None
        writes = self._starts(indices, scatter.ints("scatter_dims_to_operand_dims"))
        reads = self._starts(gather.inputs[1], gather.ints("start_index_map"))
        if writes is None or writes != reads:
            return None
        kind, number, _ = written[axis] if axis is not None else ("", 0, 0)
        own = [d for d, b in along.items() if kind == "batch" and b == number]
        return (self.of(x)[0], own[0]) if own and self.of(x)[1] in (None, own[0]) else None

    def _starts(self, indices: Value, mapped: Sequence[int]) -> dict[int, Value] | None:
        """The array of indices for each axis along which windows do not begin at 0."""
        parts, joined = [indices], self.made.get(indices)
        if is_a(joined, "concatenate") and joined["dimension"] == indices.type.rank - 1:
            parts = list(joined.inputs)
        if len(parts) != len(mapped) or any(p.type.shape[-1] != 1 for p in parts):
            return None
        found = dict(zip(mapped, parts, strict=True))
        return {d: p for d, p in found.items() if any(splat(p, self.made) or b"x")}


def _pairs(operator: UOperator, operand: str, indices: str) -> dict[int, int]:
    return dict(zip(operator.ints(operand), operator.ints(indices), strict=True))


def _axes(
    shape: Sequence[int], windows: Sequence[int], hidden: set[int], rank: int
) -> list[tuple[str, int, int]]:
    """For each axis of what a gather gives, or a scatter takes: whether it runs over windows or
    batches, along which axis of the array or indices, and its length."""
    inside = iter([d for d in range(rank) if d not in hidden])
    batches = iter(range(len(shape)))
    return [
        ("window", next(inside), n) if d in windows else ("batch", next(batches), n)
        for d, n in enumerate(shape)
    ]
