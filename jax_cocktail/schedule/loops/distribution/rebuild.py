"""Builds the loops, batched products and sums of a distributed loop (see `distribute`, `reductions`)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import cast

from jax_cocktail.schedule.loops.distribution.fission import Fission
from jax_cocktail.schedule.loops.distribution.reductions import Sum, is_zero
from jax_cocktail.schedule.loops.distribution.step_rows import Rows, Stack
from jax_cocktail.utask.builder import INDEX, Builder
from jax_cocktail.utask.ir import Attribute, LoopUTask, Region, Statement, UOperator, is_a, reads
from jax_cocktail.utask.layout import divided_axes
from jax_cocktail.utask.substitute import FreshValues, with_reads
from jax_cocktail.utask.types import FLOATS, ITEM_SIZE, TensorType, Value


class Regrouper:
    """Turns the fission of a loop into statements. Values kept per step are stacked in the order in which
    most rows are read: step t is row t, or with `rows.backward` row t from the end."""

    def __init__(self, fission: Fission, fresh: FreshValues) -> None:
        self.fission = fission
        self.rows = Rows(fission.loop, fission.steps)
        self.loop = fission.loop
        self.trips = cast(int, fission.loop.trip_count)
        self.count = len(self.loop.body.body)
        self.b = Builder(fresh, self.loop.source)
        self.stacked: dict[Value, Value] = {}  # value of one step -> array of all steps
        self.bases: dict[Value, Value] = {}  # kept value -> the value kept in its place, in another shape

    def statements(self) -> Sequence[Statement]:
        """Products and loops by position, the last loop with the carries of all; then sums and stacks."""
        highest = max(self.fission.position.values(), default=0)
        for position in range(highest + 1):
            for node in sorted(self.fission.products):
                if self.fission.position[node] == position:
                    self._product(cast(UOperator, self.loop.body.body[node]))
            self._loop(position, last=position == highest)
        for total in self.fission.sums:
            _Total(self, total).append()
        for stack in self.fission.stacks:
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
        side = 0 if dot.inputs[0] in self.fission.node_of else 1
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
        if self.fission.steps.base is not None:
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
        if self.fission.steps.base is None:
            self.b.define((output,), "reshape", (array,))
            return
        shape = (self.trips, *output.type.shape[1:])
        rows = self.b.emit("reshape", (array,), output.type.dtype, shape)
        starts = (self._first_row(), *zeros(self.b, len(shape) - 1))
        self.b.define((output,), "dynamic_update_slice", (initial, rows, *starts))

    def _first_row(self) -> Value:
        """The index of a strip's first row in memory."""
        steps = self.fission.steps
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
        fission = self.fission
        nodes = (n for n, at in fission.position.items() if at == position)
        own = dict.fromkeys(n for n in nodes if n not in fission.products)
        carries = [n - self.count for n in own if n >= self.count]
        if last:
            carries += [n - self.count for n in fission.again if n >= self.count]
        kept = [v for v in fission.crossing if fission.node_of[v] in own and v not in self.stacked]
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
        node = self.fission.node_of[value]
        made = self.loop.body.body[node] if node < self.count else None
        if not is_a(made, "reshape"):
            return value
        (operand,) = made.inputs
        return operand if self.fission.node_of.get(operand) in own and operand not in self.stacked else value

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
        self.fission, self.loop = regrouper.fission, regrouper.loop
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
        if self.regrouper.count + k in self.fission.again:
            self.names[parameter] = self.b.fresh.make(parameter.type)
        output = self.loop.outputs[k] if k in self.final else self.b.fresh.make(parameter.type)
        self.carried[k] = (self.names.get(parameter, parameter), output)
        self.need(self.loop.body.results[k])

    def need(self, wanted: Value) -> None:
        """Collects the nodes to compute here, and the kept values to read, for a value."""
        waiting = [wanted]
        while waiting:
            value = waiting.pop()
            node = self.fission.node_of.get(value)
            if node is None or node in self.nodes:
                continue
            if node not in self.own and node not in self.fission.again:
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
            if node in self.fission.again:
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
            unroll=self.loop.unroll,
        )


def zeros(b: Builder, number: int) -> list[Value]:
    """The index 0, `number` times."""
    return [b.constant(0)] * number if number else []


# ---- sums over all steps -----------------------------------------------------------------------------------
class _Total:
    """Appends one sum over all steps, after the loops of the fission."""

    def __init__(self, regrouper: Regrouper, total: Sum) -> None:
        self.regrouper, self.total = regrouper, total
        self.loop = regrouper.loop
        body = self.loop.body.body
        self.made = {s.outputs[0]: s for s in (body[n] for n in total.nodes) if isinstance(s, UOperator)}
        self.leaves = {body[n].outputs[0] for n in total.leaves}
        self.dtype = _widest([v.type.dtype for v in self.made])

    def append(self) -> None:
        """Defines the loop's output."""
        carry = self.total.carry
        found = self._value(self.loop.body.results[carry])
        assert found is not None
        output = self.loop.outputs[carry]
        kind = "reshape" if found.type == output.type else "convert"
        self.regrouper.b.define((output,), kind, (found,))

    def _value(self, value: Value) -> Value | None:
        """The sum of a value over all steps, in `dtype`; None for zeros that are added to another value."""
        made = self.made.get(value)
        if made is None:
            return self._initial()
        if value in self.leaves:
            return self._product(made) if made.kind == "dot" else self._reduction(made)
        if made.kind == "add":
            x, y = (self._value(v) for v in made.inputs)
            return self._emit("add", (x, y), value.type.shape) if x is not None and y is not None else x or y
        if made.kind == "transpose" and _swaps(made, self.made.get(made.inputs[0])):
            return self._product(self.made[made.inputs[0]], swapped=True)
        x = self._value(made.inputs[0])
        if made.kind == "convert" or x is None:
            return x
        zeros = (self._zero(),) if made.kind == "pad" else ()
        return self._emit(made.kind, (x, *zeros), value.type.shape, **dict(made.attributes))

    def _zero(self) -> Value:
        return self._emit("constant", (), (), data=bytes(ITEM_SIZE[self.dtype]))

    def _emit(
        self, kind: str, inputs: Sequence[Value], shape: Sequence[int], /, **attributes: Attribute
    ) -> Value:
        return self.regrouper.b.emit(kind, inputs, self.dtype, shape, **attributes)

    def _wide(self, value: Value) -> Value:
        return value if value.type.dtype == self.dtype else self._emit("convert", (value,), value.type.shape)

    def _initial(self) -> Value | None:
        initial = self.loop.initial[self.total.carry]
        return None if is_zero(initial, self.regrouper.fission.steps.outside) else self._wide(initial)

    def _product(self, dot: UOperator, swapped: bool = False) -> Value:
        """The product, contracted over the steps first. `swapped`: with its operands exchanged."""
        sides = [
            self._side(v, dot.ints(f"{name}_batch"), dot.ints(f"{name}_contract"))
            for v, name in zip(dot.inputs, _SIDES, strict=True)
        ]
        attributes: dict[str, Attribute] = {n: v for n, v in dot.attributes if n == "precision"}
        shape = [sides[0].array.type.shape[d] for d in sides[0].batch]
        for name, side in zip(_SIDES, sides[::-1] if swapped else sides, strict=True):
            attributes |= {f"{name}_batch": side.batch, f"{name}_contract": (0, *side.summed)}
            shape += side.free
        found = self._emit("dot", [s.array for s in (sides[::-1] if swapped else sides)], shape, **attributes)
        wanted = dot.output.type.shape
        return self._reshaped(found, [wanted[d] for d in _swapped(dot)] if swapped else wanted)

    def _reduction(self, operator: UOperator) -> Value:
        """Reduces each step first: one long sum would round worse."""
        side = self._side(operator.inputs[0], (), operator.ints("axes"))
        shape = (self.regrouper.trips, *side.free)
        steps = self._emit("reduce", (self._wide(side.array),), shape, axes=side.summed, op="sum")
        found = self._emit("reduce", (steps,), side.free, axes=(0,), op="sum")
        return self._reshaped(found, operator.output.type.shape)

    def _reshaped(self, value: Value, shape: Sequence[int]) -> Value:
        return value if value.type.shape == tuple(shape) else self._emit("reshape", (value,), shape)

    def _side(self, value: Value, batch: Sequence[int], summed: Sequence[int]) -> _Side:
        """All steps of an operand, on the axes of its kept form if batch and summed axes are among them."""
        array, base = self.regrouper.all_steps(value), self.regrouper.bases.get(value)
        first = list(range(value.type.rank))
        counts = None if base is None else divided_axes(value.type.shape, base.type.shape)
        if base is not None and counts is not None and all(counts[d] == 1 for d in (*batch, *summed)):
            array, first = self.regrouper.stacked[base], [0, *accumulate(counts)]
        return _Side(array, tuple(first[d] + 1 for d in batch), tuple(first[d] + 1 for d in summed))


@dataclass(frozen=True, slots=True)
class _Side:
    """An operand of a sum: all steps, on axis 0; its batch axes; the other axes summed over."""

    array: Value
    batch: tuple[int, ...]
    summed: tuple[int, ...]

    @property
    def free(self) -> list[int]:
        """The lengths of its remaining axes."""
        taken = {0, *self.batch, *self.summed}
        return [n for d, n in enumerate(self.array.type.shape) if d not in taken]


_SIDES = ("lhs", "rhs")


def _widest(dtypes: Iterable[str]) -> str:
    """The type in which sums of these types are kept."""
    widest = max(dtypes, key=lambda dtype: ITEM_SIZE[dtype])
    return "float32" if widest in FLOATS and ITEM_SIZE[widest] < 4 else widest


def _swapped(dot: UOperator) -> tuple[int, ...]:
    """The permutation that turns a product into the product of its exchanged operands."""
    batch, rank = len(dot.ints("lhs_batch")), dot.output.type.rank
    middle = dot.inputs[0].type.rank - len(dot.ints("lhs_contract"))
    return (*range(batch), *range(middle, rank), *range(batch, middle))


def _swaps(transpose: UOperator, dot: UOperator | None) -> bool:
    return dot is not None and dot.kind == "dot" and transpose.ints("permutation") == _swapped(dot)
