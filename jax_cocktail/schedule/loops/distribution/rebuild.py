"""Builds the loops and batched products of a distributed loop (see `distribute`)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from jax_cocktail.schedule.loops.distribution.reductions import Total
from jax_cocktail.schedule.loops.distribution.step_rows import Rows, Stack
from jax_cocktail.utask.builder import INDEX, Builder
from jax_cocktail.utask.ir import LoopUTask, Region, Statement, UOperator, is_a, reads
from jax_cocktail.utask.substitute import FreshValues, with_reads
from jax_cocktail.utask.types import TensorType, Value

if TYPE_CHECKING:
    from jax_cocktail.schedule.loops.distribution.division import Division


class Regrouper:
    """Turns one division into statements. Values kept per step are stacked in the order in which most rows
    are read: step t is row t, or with `rows.backward` row t from the end."""

    def __init__(self, division: Division, fresh: FreshValues) -> None:
        self.division = division
        self.rows = Rows(division.loop, division.steps)
        self.loop = division.loop
        self.trips = cast(int, division.loop.trip_count)
        self.count = len(self.loop.body.body)
        self.b = Builder(fresh, self.loop.source)
        self.stacked: dict[Value, Value] = {}  # value of one step -> array of all steps
        self.bases: dict[Value, Value] = {}  # kept value -> the value kept in its place, in another shape

    def statements(self) -> Sequence[Statement]:
        """Products and loops by position, the last loop with the carries of all; then sums and stacks."""
        highest = max(self.division.position.values(), default=0)
        for position in range(highest + 1):
            for node in sorted(self.division.products):
                if self.division.position[node] == position:
                    self._product(cast(UOperator, self.loop.body.body[node]))
            self._loop(position, last=position == highest)
        for total in self.division.sums:
            Total(self, total).append()
        for stack in self.division.stacks:
            self._result(stack)
        return self.b.out

    def products_ahead(self, nodes: Iterable[int]) -> dict[Value, Value]:
        """Appends only these products, which read no kept value. Returns: result of a step -> all results."""
        found = [cast(UOperator, self.loop.body.body[node]) for node in sorted(nodes)]
        for dot in found:
            self._product(dot)
        return {dot.output: self.stacked[dot.output] for dot in found}

    def _stacked_type(self, type_: TensorType) -> TensorType:
        return TensorType(type_.dtype, (self.trips, *type_.shape))

    # -- products ----------------------------------------------------------------------------------------
    def _product(self, dot: UOperator) -> None:
        """Appends the product with the steps as an additional free axis."""
        side = 0 if dot.inputs[0] in self.division.node_of else 1
        operand = self.all_steps(dot.inputs[side])
        inputs = (operand, dot.inputs[1]) if side == 0 else (dot.inputs[0], operand)
        moved = "lhs" if side == 0 else "rhs"
        names = ("lhs_batch", "lhs_contract", "rhs_batch", "rhs_contract")
        axes = {n: tuple(d + n.startswith(moved) for d in dot.ints(n)) for n in names}
        kept = {n: v for n, v in dot.attributes if n not in names}
        batch = len(axes["lhs_batch"])
        taken = len(axes["lhs_batch"]) + len(axes["lhs_contract"])
        place = batch if side == 0 else batch + dot.inputs[0].type.rank - taken
        shape = list(dot.output.type.shape)
        shape.insert(place, self.trips)
        type_ = TensorType(dot.output.type.dtype, tuple(shape))
        result = self.b.emit("dot", inputs, type_, **axes, **kept)
        if place:
            order = (place, *(d for d in range(len(shape)) if d != place))
            type_ = self._stacked_type(dot.output.type)
            result = self.b.emit("transpose", (result,), type_, permutation=order)
        self.stacked[dot.output] = result

    def all_steps(self, value: Value) -> Value:
        """The array of all steps of a value that a product or a sum reads."""
        if value not in self.stacked:
            rows = self._rows(value)
            self.stacked[value] = rows if rows is not None else self._collect(value)
        return self.stacked[value]

    def _rows(self, value: Value) -> Value | None:
        """The rows of an outer array, if they are the steps of the value."""
        array = self.rows.array(value)
        if array is None:
            return None
        shape = array.type.shape
        rows = TensorType(array.type.dtype, (self.trips, *shape[1:]))
        if self.division.steps.base is not None:
            starts = (self._first_row(), *zeros(self.b, len(shape) - 1))
            array = self.b.emit("dynamic_slice", (array, *starts), rows)
        elif shape[0] != self.trips:
            array = self.b.slice(array, (0,) * len(shape), rows.shape)
        if shape[1:] == value.type.shape:
            return array
        return self.b.emit("reshape", (array,), self._stacked_type(value.type))

    def _result(self, stack: Stack) -> None:
        """Defines a carry that stacks the results of a product; a strip updates its own rows of the stack."""
        initial, output = self.loop.initial[stack.carry], self.loop.outputs[stack.carry]
        array = self.all_steps(stack.value)
        if self.division.steps.base is None:
            self.b.define((output,), "reshape", (array,))
            return
        shape = (self.trips, *output.type.shape[1:])
        rows = self.b.emit("reshape", (array,), output.type.dtype, shape)
        starts = (self._first_row(), *zeros(self.b, len(shape) - 1))
        self.b.define((output,), "dynamic_update_slice", (initial, rows, *starts))

    def _first_row(self) -> Value:
        """The index of a strip's first row in memory."""
        steps = self.division.steps
        assert steps.base is not None
        if not self.rows.backward:
            return steps.base
        return self.b.binary("sub", self.b.constant(steps.of(self.loop) - self.trips), steps.base)

    def _collect(self, value: Value) -> Value:
        """Appends a loop that computes, for every step, a value that depends on the index alone."""
        array = self.b.emit("empty", (), self._stacked_type(value.type))
        self._build({}, [], [(value, array)])
        return self.stacked[value]

    # -- loops -------------------------------------------------------------------------------------------
    def _loop(self, position: int, last: bool) -> None:
        division = self.division
        nodes = (n for n, at in division.position.items() if at == position)
        own = dict.fromkeys(n for n in nodes if n not in division.products)
        carries = [n - self.count for n in own if n >= self.count]
        if last:
            carries += [n - self.count for n in division.again if n >= self.count]
        kept = [v for v in division.crossing if division.node_of[v] in own and v not in self.stacked]
        bases = [self._before_reshape(v, own) for v in kept]
        empty = {v: self.b.emit("empty", (), self._stacked_type(v.type)) for v in dict.fromkeys(bases)}
        arrays = list(empty.items())
        if carries or arrays:
            self._build(own, carries, arrays)
        for value, base in zip(kept, bases, strict=True):
            if base != value:
                operands, type_ = (self.stacked[base],), self._stacked_type(value.type)
                self.stacked[value] = self.b.emit("reshape", operands, type_)
                self.bases[value] = base

    def _before_reshape(self, value: Value, own: Container[int]) -> Value:
        """The value before a reshape: its axes can be tiled."""
        node = self.division.node_of[value]
        made = self.loop.body.body[node] if node < self.count else None
        if not is_a(made, "reshape"):
            return value
        (operand,) = made.inputs
        return operand if self.division.node_of.get(operand) in own and operand not in self.stacked else value

    def _build(
        self, own: dict[int, None], carries: Sequence[int], arrays: Sequence[tuple[Value, Value]]
    ) -> None:
        """Appends a loop over these nodes, with these carries, that keeps these values per step."""
        body = _Body(self, own, frozenset(carries))
        for k in carries:
            body.carry(k)
        for value, _ in arrays:
            body.need(value)
        body.compute()
        for value, array in arrays:
            body.keep(value, array)
        self.b.out.append(body.finish())


class _Body:
    """One loop under construction. Values computed again get fresh names; all others keep theirs."""

    def __init__(self, regrouper: Regrouper, own: dict[int, None], final: frozenset[int]) -> None:
        self.regrouper, self.own = regrouper, own
        self.final = final  # carries whose outputs this loop defines; others are computed again
        self.division, self.loop = regrouper.division, regrouper.loop
        self.b = regrouper.b.to([])
        self.index = self.b.fresh.make(INDEX)
        self.names: dict[Value, Value] = {cast(Value, self.loop.index): self.index}
        self.nodes: set[int] = set()
        self.read: dict[Value, None] = {}
        self.carried: dict[int, tuple[Value, Value]] = {}  # carry -> parameter, output
        self.kept: list[tuple[Value, Value, Value, Value]] = []  # initial, parameter, next value, output

    def carry(self, k: int) -> None:
        """Adds carry k of the original loop to this one."""
        if k in self.carried:
            return
        parameter = self.loop.carried[k]
        if self.regrouper.count + k in self.division.again:
            self.names[parameter] = self.b.fresh.make(parameter.type)
        output = self.loop.outputs[k] if k in self.final else self.b.fresh.make(parameter.type)
        self.carried[k] = (self.names.get(parameter, parameter), output)
        self.need(self.loop.body.results[k])

    def need(self, wanted: Value) -> None:
        """Collects the nodes to compute here, and the kept values to read, for a value."""
        waiting = [wanted]
        while waiting:
            value = waiting.pop()
            node = self.division.node_of.get(value)
            if node is None or node in self.nodes:
                continue
            if node not in self.own and node not in self.division.again:
                self.read[value] = None
            elif node >= self.regrouper.count:
                self.nodes.add(node)
                self.carry(node - self.regrouper.count)
            else:
                self.nodes.add(node)
                waiting += reads(self.loop.body.body[node])

    def compute(self) -> None:
        """Appends the needed statements in their old order."""
        for value in self.read:
            self.names[value] = self.b.row(self.regrouper.stacked[value], self._row())
        for node in sorted(n for n in self.nodes if n < self.regrouper.count):
            statement = with_reads(self.loop.body.body[node], self.names)
            if node in self.division.again:
                fresh = self.b.like(statement.outputs)
                self.names.update(zip(statement.outputs, fresh, strict=True))
                statement = replace(statement, outputs=fresh)
            self.b.out.append(statement)

    def _row(self) -> Value:
        """The row of this step in stacked arrays."""
        if not self.regrouper.rows.backward:
            return self.index
        return self.b.binary("sub", self.b.constant(self.regrouper.trips - 1), self.index)

    def keep(self, value: Value, array: Value) -> None:
        """Writes the value to its row in the array of all steps."""
        parameter, output = self.b.like((array, array))
        here = self.names.get(value, value)
        one = self.b.emit("reshape", (here,), value.type.dtype, (1, *value.type.shape))
        operands = (parameter, one, self._row(), *zeros(self.b, value.type.rank))
        new = self.b.emit("dynamic_update_slice", operands, array.type)
        self.kept.append((array, parameter, new, output))
        self.regrouper.stacked[value] = output

    def finish(self) -> LoopUTask:
        carried, kept = self.carried, self.kept
        following = [self.names.get(v, v) for v in (self.loop.body.results[k] for k in carried)]
        parameters = [p for p, _ in carried.values()] + [p for _, p, _, _ in kept]
        results = (*following, *(new for _, _, new, _ in kept))
        return LoopUTask(
            initial=(*(self.loop.initial[k] for k in carried), *(array for array, _, _, _ in kept)),
            outputs=(*(out for _, out in carried.values()), *(out for _, _, _, out in kept)),
            body=Region((self.index, *parameters), tuple(self.b.out), results),
            trip_count=self.regrouper.trips,
            source=self.loop.source,
        )


def zeros(b: Builder, number: int) -> list[Value]:
    """The index 0, `number` times."""
    return [b.constant(0)] * number if number else []
