"""Builds the loop over diagonals of a pipelined loop (see `pipeline`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jax_cocktail.schedule.loops.wavefront.stages import Stages
from jax_cocktail.utask.builder import INDEX, Builder
from jax_cocktail.utask.copies import copied
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, Stage, Statement, UOperator, is_a
from jax_cocktail.utask.substitute import FreshValues, replaced, with_reads
from jax_cocktail.utask.types import TensorType, Value


@dataclass(frozen=True, slots=True)
class _Carry:
    """A carry of the loop over diagonals. `following`: its next value in the old body, while its stage runs;
    `result`: its next value, an output of the stage's branch."""

    initial: Value
    parameter: Value
    output: Value
    following: Value
    result: Value


@dataclass(frozen=True, slots=True)
class _Stack:
    """A stacked result: carry `number` of the old loop. Only `update` writes it, and reads `row` through
    `views`."""

    number: int
    update: UOperator
    row: Value
    views: tuple[UOperator, ...]


class Wavefront:
    """Builds the loop over diagonals from the stages of one loop."""

    def __init__(self, stages: Stages, fresh: FreshValues) -> None:
        self.stages, self.fresh, self.loop = stages, fresh, stages.loop
        self.b = Builder(fresh, stages.loop.source)  # of the new body
        self.trips = stages.loop.trip_count or 0
        self.index = fresh.make(INDEX)
        self.before: list[Statement] = []  # statements before the new loop
        self.definitions = {v: s for s in self.loop.body.body for v in s.outputs}
        found = (self._stack(k) for k in range(len(self.loop.carried)))
        self.stacks = {s.number: s for s in found if s is not None}
        self.carries: list[dict[Value, _Carry]] = []  # by stage, then by old parameter
        self.handed: list[dict[Value, _Carry]] = []  # by stage: value -> carry that passes it on

    def statements(self) -> Sequence[Statement]:
        exports = self._exports()
        for number in range(self.stages.count):
            self.carries.append(self._carries(number))
            self.handed.append(self._hand_on(number, exports[number]))
        written: list[_Carry] = []
        for number in range(self.stages.count):
            written += self._stage(number)
        carries = [c for stage in (*self.carries, *self.handed) for c in stage.values()]
        carries = [*dict.fromkeys((*carries, *written))]
        parameters = (self.index, *(c.parameter for c in carries))
        loop = LoopUTask(
            initial=tuple(c.initial for c in carries),
            outputs=tuple(c.output for c in carries),
            body=Region(parameters, tuple(self.b.out), tuple(c.result for c in carries)),
            trip_count=self.trips + self.stages.count - 1,
            source=self.loop.source,
        )
        return (*self.before, loop)

    # -- carries -----------------------------------------------------------------------------------------
    def _exports(self) -> list[dict[Value, None]]:
        """The values that every stage passes on: its own, or those of earlier stages."""
        exports: list[dict[Value, None]] = [{} for _ in range(self.stages.count)]
        for node, values in self.stages.readers():
            for value in values:
                last = self.stages.stage[node]
                made = self.stages.of(value)
                for number in range(last if made is None else made, last):
                    exports[number][value] = None
        for stack in self.stacks.values():
            number = self.stages.stage[self.stages.carry(stack.number)]
            made = self.stages.of(stack.row)
            assert made is not None
            for at in range(made, number + 1):
                exports[at][stack.row] = None
        return exports

    def _carries(self, number: int) -> dict[Value, _Carry]:
        """The old loop's carries of a stage, and its copies of those that every stage needs, by old
        parameter. Stacked results are written outside of the stage."""
        loop, stages = self.loop, self.stages
        own = [
            k
            for k in range(len(loop.carried))
            if stages.stage.get(stages.carry(k)) == number and k not in self.stacks
        ]
        first = [stages.carry(k) for k in range(len(loop.carried)) if stages.carry(k) in stages.again]
        wanted = [n for n, at in stages.stage.items() if at == number]
        again = self._again([*wanted, *(first if number == 0 else ())])
        own += sorted(n - stages.carry(0) for n in again if n >= stages.carry(0))
        found: dict[Value, _Carry] = {}
        for k in own:
            value, copies = loop.carried[k], stages.carry(k) in stages.again
            output = self.fresh.make(value.type) if copies and number else loop.outputs[k]
            found[value] = self._carry(loop.initial[k], loop.body.results[k], output)
        return found

    def _again(self, nodes: Sequence[int]) -> set[int]:
        """The nodes, among these and their sources, that every stage computes for itself."""
        waiting = [s for n in nodes for s in (n, *self.stages.needs[n])]
        found: set[int] = set()
        while waiting:
            node = waiting.pop()
            if node in self.stages.again and node not in found:
                found.add(node)
                waiting += self.stages.needs[node]
        return found

    def _carry(self, initial: Value, following: Value, output: Value) -> _Carry:
        parameter, result = self.fresh.make(output.type), self.fresh.make(output.type)
        return _Carry(initial, parameter, output, following, result)

    def _hand_on(self, number: int, values: dict[Value, None]) -> dict[Value, _Carry]:
        """A carry for every value that a stage passes on, or the carry that already becomes the value."""
        found: dict[Value, _Carry] = {}
        for value in values:
            own = (c for c in self.carries[number].values() if c.following == value)
            carry = next(own, None)
            if carry is None:
                carry = self._carry(self._anything(value.type), value, self.fresh.make(value.type))
            found[value] = carry
        return found

    def _anything(self, type_: TensorType) -> Value:
        """An initial value that is never read: the stage before has always run by then."""
        front = self.b.to(self.before)
        if not type_.is_scalar:
            return front.emit("empty", (), type_)
        return front.emit("constant", (), type_, data=bytes(type_.nbytes))

    # -- stages ------------------------------------------------------------------------------------------
    def _stage(self, number: int) -> list[_Carry]:
        """Appends the guarded stage and the writes of its stacked results. Returns the carries of these."""
        step, active = self._step(number)
        names: dict[Value, Value] = {}
        if self.loop.index is not None:
            names[self.loop.index] = step
        outer = dict(names)
        names |= {old: c.parameter for old, c in self.carries[number].items()}
        if number:
            names |= {value: c.parameter for value, c in self.handed[number - 1].items()}
        inside: list[Statement] = []
        nodes = sorted(n for n, at in self.stages.stage.items() if at == number)
        stacked = {id(s) for stack in self.stacks.values() for s in (stack.update, *stack.views)}
        for node in sorted(self._again([*nodes, *self._homes(number)])):
            if node < self.stages.carry(0):
                inside.append(copied(self.loop.body.body[node], names, self.fresh))
        for node in nodes:
            if node < self.stages.carry(0) and id(self.loop.body.body[node]) not in stacked:
                inside.append(with_reads(self.loop.body.body[node], names))
        carries = [*dict.fromkeys((*self.carries[number].values(), *self.handed[number].values()))]
        run = Region((), tuple(inside), replaced((c.following for c in carries), names))
        rest = Region((), (), tuple(c.parameter for c in carries))
        outputs = tuple(c.result for c in carries)
        stage = Stage(number, self.stages.count)
        self.b.out.append(BranchUTask(active, (rest, run), outputs, self.loop.source, stage))
        mine = [s for k, s in self.stacks.items() if self.stages.stage[self.stages.carry(k)] == number]
        return [self._write(stack, self.handed[number][stack.row].result, outer) for stack in mine]

    def _homes(self, number: int) -> list[int]:
        """The nodes of a stage's carries."""
        carried = self.loop.carried
        return [self.stages.carry(k) for k, v in enumerate(carried) if v in self.carries[number]]

    def _step(self, number: int) -> tuple[Value, Value]:
        """The step of a stage, clamped to its range, and 1 (int32) if it runs."""
        behind, low, high = (self.b.constant(n) for n in (number, 0, self.trips - 1))
        at = self.b.binary("sub", self.index, behind)
        step = self.b.emit("clamp", (low, at, high), INDEX)
        return step, self.b.convert(self.b.compare("eq", at, step), "int32")

    # -- stacked results ---------------------------------------------------------------------------------
    def _stack(self, k: int) -> _Stack | None:
        """Carry k, if its only use is an update of one row at a position that depends on the index alone."""
        loop, stages = self.loop, self.stages
        update = self.definitions.get(loop.body.results[k])
        if not is_a(update, "dynamic_update_slice"):
            return None
        array, row, *starts = update.inputs
        readers = [
            n for n, values in stages.readers() for v in values if v in (loop.carried[k], update.output)
        ]
        home = next(n for n, s in enumerate(loop.body.body) if s is update)
        if array != loop.carried[k] or sorted(readers) != [home, stages.carry(k)]:
            return None
        places = [stages.node_of[s] for s in starts if s in stages.node_of]
        known = self._again(places)
        if not known.issuperset(places) or any(n >= stages.carry(0) for n in known):
            return None
        views: list[UOperator] = []
        made = self.definitions.get(row)
        while is_a(made, "reshape") and self._is_read_once(row):
            views.append(made)
            row = made.inputs[0]
            made = self.definitions.get(row)
        if stages.of(row) is None or row in stages.updated:
            return None
        return _Stack(k, update, row, tuple(reversed(views)))

    def _is_read_once(self, value: Value) -> bool:
        return sum(value in values for _, values in self.stages.readers()) == 1

    def _write(self, stack: _Stack, row: Value, names: dict[Value, Value]) -> _Carry:
        """Writes the row of a diagonal."""
        loop, names = self.loop, dict(names)
        initial, parameter = loop.initial[stack.number], self.fresh.make(loop.initial[stack.number].type)
        starts = [self.stages.node_of[v] for v in stack.update.inputs[2:] if v in self.stages.node_of]
        for node in sorted(self._again(starts)):
            self.b.out.append(copied(loop.body.body[node], names, self.fresh))
        names[stack.row], names[loop.carried[stack.number]] = row, parameter
        self.b.out += [with_reads(view, names) for view in stack.views]
        update = replace(stack.update, inputs=replaced(stack.update.inputs, names))
        self.b.out.append(update)
        return _Carry(initial, parameter, loop.outputs[stack.number], update.output, update.output)
