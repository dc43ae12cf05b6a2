"""Builds the loops and batched products of a distributed loop (see `distribute`)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from jax_cocktail.schedule.loops.distribution.reductions import Total
from jax_cocktail.schedule.loops.distribution.step_rows import Rows, Stack
from jax_cocktail.utask.copies import INDEX
from jax_cocktail.utask.ir import Attribute, LoopUTask, Region, Statement, UOperator, reads
from jax_cocktail.utask.substitute import FreshValues, with_reads
from jax_cocktail.utask.types import TensorType, Value

if TYPE_CHECKING:
    from jax_cocktail.schedule.loops.distribution.division import Division


class Regrouper:
    """One division, turned into statements. What is kept per step is stacked in the order in which most rows
    are read: step t is row t, or, `rows.backward`, row t from behind."""

    def __init__(self, division: Division, fresh: FreshValues) -> None:
        self.division, self.fresh = division, fresh
        self.rows = Rows(division.loop, division.steps)
        self.loop = division.loop
        self.trips = cast(int, division.loop.trip_count)
        self.count = len(self.loop.body.body)
        self.out: list[Statement] = []
        self.stacked: dict[Value, Value] = {}  # value of one step -> array of all steps
        self.bases: dict[Value, Value] = {}  # value that is kept -> what is kept for it, in another shape

    def statements(self) -> Sequence[Statement]:
        """Products and loops, level by level, and at last the carries that every loop has, and the sums."""
        highest = max(self.division.level.values(), default=0)
        for level in range(highest + 1):
            for node in sorted(self.division.products):
                if self.division.level[node] == level:
                    self._product(cast(UOperator, self.loop.body.body[node]))
            self._loop(level, last=level == highest)
        for total in self.division.sums:
            Total(self, total).append()
        for stack in self.division.stacks:
            self._result(stack)
        return self.out

    def products_ahead(self, nodes: Iterable[int]) -> dict[Value, Value]:
        """Only these products, which need nothing that a loop keeps: result of a step -> array of all."""
        found = [cast(UOperator, self.loop.body.body[node]) for node in sorted(nodes)]
        for dot in found:
            self._product(dot)
        return {dot.output: self.stacked[dot.output] for dot in found}

    def emit(
        self,
        out: list[Statement],
        kind: str,
        inputs: Sequence[Value],
        type_: TensorType,
        **attributes: Attribute,
    ) -> Value:
        """Appends one operator to `out` and gives its result."""
        value = self.fresh.make(type_)
        source = self.loop.source
        out.append(UOperator(kind, tuple(inputs), (value,), tuple(sorted(attributes.items())), source))
        return value

    def _stacked_type(self, type_: TensorType) -> TensorType:
        return TensorType(type_.dtype, (self.trips, *type_.shape))

    # -- products ----------------------------------------------------------------------------------------
    def _product(self, dot: UOperator) -> None:
        """The same product with the steps as one more free axis."""
        side = 0 if dot.inputs[0] in self.division.node_of else 1
        operand = self.all_steps(dot.inputs[side])
        inputs = (operand, dot.inputs[1]) if side == 0 else (dot.inputs[0], operand)
        moved = "lhs" if side == 0 else "rhs"
        names = ("lhs_batch", "lhs_contract", "rhs_batch", "rhs_contract")
        axes = {n: tuple(d + n.startswith(moved) for d in cast(tuple[int, ...], dot[n])) for n in names}
        kept = {n: v for n, v in dot.attributes if n not in names}
        batch = len(axes["lhs_batch"])
        taken = len(axes["lhs_batch"]) + len(axes["lhs_contract"])
        place = batch if side == 0 else batch + dot.inputs[0].type.rank - taken
        shape = list(dot.output.type.shape)
        shape.insert(place, self.trips)
        type_ = TensorType(dot.output.type.dtype, tuple(shape))
        result = self.emit(self.out, "dot", inputs, type_, **axes, **kept)
        if place:
            order = (place, *(d for d in range(len(shape)) if d != place))
            type_ = self._stacked_type(dot.output.type)
            result = self.emit(self.out, "transpose", (result,), type_, permutation=order)
        self.stacked[dot.output] = result

    def all_steps(self, value: Value) -> Value:
        """All steps of a value that a product or a sum reads."""
        if value not in self.stacked:
            rows = self._rows(value)
            self.stacked[value] = rows if rows is not None else self._collect(value)
        return self.stacked[value]

    def _rows(self, value: Value) -> Value | None:
        """If the steps of the value are rows of an outer array, that array, without other rows."""
        array = self.rows.array(value)
        if array is None:
            return None
        shape = array.type.shape
        rows = TensorType(array.type.dtype, (self.trips, *shape[1:]))
        if self.division.steps.base is not None:
            starts = (self._first_row(), *self.zeros(self.out, len(shape) - 1))
            array = self.emit(self.out, "dynamic_slice", (array, *starts), rows)
        elif shape[0] != self.trips:
            zeros, ones = (0,) * len(shape), (1,) * len(shape)
            array = self.emit(self.out, "slice", (array,), rows, starts=zeros, strides=ones)
        if shape[1:] == value.type.shape:
            return array
        return self.emit(self.out, "reshape", (array,), self._stacked_type(value.type))

    def _result(self, stack: Stack) -> None:
        """A carry that is all steps of a product; of a strip, its rows among those of other strips."""
        initial, output = self.loop.initial[stack.carry], self.loop.outputs[stack.carry]
        array = self.all_steps(stack.value)
        if self.division.steps.base is None:
            update = UOperator("reshape", (array,), (output,), (), self.loop.source)
        else:
            shape = (self.trips, *output.type.shape[1:])
            rows = self.emit(self.out, "reshape", (array,), TensorType(output.type.dtype, shape))
            starts = (self._first_row(), *self.zeros(self.out, len(shape) - 1))
            operands = (initial, rows, *starts)
            update = UOperator("dynamic_update_slice", operands, (output,), (), self.loop.source)
        self.out.append(update)

    def _first_row(self) -> Value:
        """Of a strip's rows the first in memory."""
        steps = self.division.steps
        assert steps.base is not None
        if not self.rows.backward:
            return steps.base
        end = self.number(self.out, steps.of(self.loop) - self.trips)
        return self.emit(self.out, "sub", (end, steps.base), INDEX)

    def number(self, out: list[Statement], number: int) -> Value:
        """An index that is known."""
        return self.emit(out, "constant", (), INDEX, data=number.to_bytes(8, "little"))

    def zeros(self, out: list[Statement], number: int) -> list[Value]:
        """`number` times the index 0."""
        if not number:
            return []
        return [self.number(out, 0)] * number

    def _collect(self, value: Value) -> Value:
        """A loop that computes a value of the index alone for every step."""
        array = self.emit(self.out, "empty", (), self._stacked_type(value.type))
        self._build({}, [], [(value, array)])
        return self.stacked[value]

    # -- loops -------------------------------------------------------------------------------------------
    def _loop(self, level: int, last: bool) -> None:
        division = self.division
        nodes = (n for n, at in division.level.items() if at == level)
        own = dict.fromkeys(n for n in nodes if n not in division.products)
        carries = [n - self.count for n in own if n >= self.count]
        if last:
            carries += [n - self.count for n in division.again if n >= self.count]
        kept = [v for v in division.crossing if division.node_of[v] in own and v not in self.stacked]
        bases = [self._before_reshape(v, own) for v in kept]
        arrays = [
            (b, self.emit(self.out, "empty", (), self._stacked_type(b.type))) for b in dict.fromkeys(bases)
        ]
        if carries or arrays:
            self._build(own, carries, arrays)
        for value, base in zip(kept, bases, strict=True):
            if base != value:
                operands, type_ = (self.stacked[base],), self._stacked_type(value.type)
                self.stacked[value] = self.emit(self.out, "reshape", operands, type_)
                self.bases[value] = base

    def _before_reshape(self, value: Value, own: Container[int]) -> Value:
        """The same elements as they are made: on axes that parts can be made along."""
        node = self.division.node_of[value]
        made = self.loop.body.body[node] if node < self.count else None
        if not isinstance(made, UOperator) or made.kind != "reshape":
            return value
        (operand,) = made.inputs
        return operand if self.division.node_of.get(operand) in own and operand not in self.stacked else value

    def _build(
        self, own: dict[int, None], carries: Sequence[int], arrays: Sequence[tuple[Value, Value]]
    ) -> None:
        """A loop over these nodes, with these carries, that keeps these values per step."""
        body = _Body(self, own, frozenset(carries))
        for k in carries:
            body.carry(k)
        for value, _ in arrays:
            body.need(value)
        body.compute()
        for value, array in arrays:
            body.keep(value, array)
        self.out.append(body.finish())


class _Body:
    """One loop under construction. What is computed again gets fresh names; all else keeps its own."""

    def __init__(self, regrouper: Regrouper, own: dict[int, None], final: frozenset[int]) -> None:
        self.regrouper, self.own = regrouper, own
        self.final = final  # carries whose outputs this loop gives; others are computed again
        self.division, self.loop = regrouper.division, regrouper.loop
        self.fresh = regrouper.fresh
        self.index = self.fresh.make(INDEX)
        self.names: dict[Value, Value] = {cast(Value, self.loop.index): self.index}
        self.nodes: set[int] = set()
        self.read: dict[Value, None] = {}
        self.statements: list[Statement] = []
        self.carried: dict[int, tuple[Value, Value]] = {}  # carry -> parameter, output
        self.kept: list[tuple[Value, Value, Value, Value]] = []  # initial, parameter, next value, output

    def carry(self, k: int) -> None:
        """Carry k of the original loop lives in this one."""
        if k in self.carried:
            return
        parameter = self.loop.carried[k]
        if self.regrouper.count + k in self.division.again:
            self.names[parameter] = self.fresh.make(parameter.type)
        output = self.loop.outputs[k] if k in self.final else self.fresh.make(parameter.type)
        self.carried[k] = (self.names.get(parameter, parameter), output)
        self.need(self.loop.body.results[k])

    def need(self, wanted: Value) -> None:
        """Notes what has to be computed here, or read from what is kept per step, for a value to be there."""
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
        """The statements that are needed, in their old order."""
        for value in self.read:
            row = TensorType(value.type.dtype, (1, *value.type.shape))
            operands = (self.regrouper.stacked[value], *self._starts(value.type.rank))
            one = self.regrouper.emit(self.statements, "dynamic_slice", operands, row)
            self.names[value] = self.regrouper.emit(self.statements, "reshape", (one,), value.type)
        for node in sorted(n for n in self.nodes if n < self.regrouper.count):
            statement = with_reads(self.loop.body.body[node], self.names)
            if node in self.division.again:
                fresh = tuple(self.fresh.make(v.type) for v in statement.outputs)
                self.names.update(zip(statement.outputs, fresh, strict=True))
                statement = replace(statement, outputs=fresh)
            self.statements.append(statement)

    def _starts(self, rank: int) -> list[Value]:
        return [self._row(), *self.regrouper.zeros(self.statements, rank)]

    def _row(self) -> Value:
        """Where this step stands in what is stacked."""
        regrouper = self.regrouper
        if not regrouper.rows.backward:
            return self.index
        last = regrouper.number(self.statements, regrouper.trips - 1)
        return regrouper.emit(self.statements, "sub", (last, self.index), INDEX)

    def keep(self, value: Value, array: Value) -> None:
        """Writes the value to its row of an array of all steps."""
        parameter, output = self.fresh.make(array.type), self.fresh.make(array.type)
        row = TensorType(value.type.dtype, (1, *value.type.shape))
        here = self.names.get(value, value)
        one = self.regrouper.emit(self.statements, "reshape", (here,), row)
        operands = (parameter, one, *self._starts(value.type.rank))
        new = self.regrouper.emit(self.statements, "dynamic_update_slice", operands, array.type)
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
            body=Region((self.index, *parameters), tuple(self.statements), results),
            trip_count=self.regrouper.trips,
            source=self.loop.source,
        )
