"""Scalar replacement for stacked state: a carried array that is used row by row becomes one carry per row.

The state of stacked layers is often one array, `h[L, ...]`, and layer l reads and writes row l. As one carry
it ties all layers into one recurrence; as L carries, every layer has its own (compare Callahan, Carr and
Kennedy, "Improving register allocation for subscripted variables", PLDI 1990).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from jax_cocktail.device.tuning import PROGRAM
from jax_cocktail.schedule.simplify.slices import row_written
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import (
    LoopUTask,
    Region,
    Statement,
    UOperator,
    UProgram,
)
from jax_cocktail.utask.remarks import Listener, Remark, nobody
from jax_cocktail.utask.rewrite import map_regions, rewrite, with_body
from jax_cocktail.utask.substitute import FreshValues, replaced, with_operands
from jax_cocktail.utask.types import TensorType, Value

Rows = tuple[Value | None, ...]  # None: not written yet


def split_stacked(program: UProgram, remark: Listener = nobody) -> UProgram:
    """Replaces every stacked carry whose rows are used one by one."""
    return rewrite(program, _Splitter(program, remark).change)


class _Splitter:
    def __init__(self, program: UProgram, remark: Listener) -> None:
        self.remark = remark
        self.fresh = FreshValues(program)
        self.definitions: dict[Value, UOperator] = {}

    def change(self, statement: Statement) -> Statement | Sequence[Statement]:
        if isinstance(statement, UOperator):
            self.definitions.update((v, statement) for v in statement.outputs)
        return self._loop(statement) if isinstance(statement, LoopUTask) else statement

    def _loop(self, loop: LoopUTask) -> Sequence[Statement]:
        most = PROGRAM.unrolled_layers
        wanted = {k for k, v in enumerate(loop.carried) if v.type.rank > 1 and 1 < v.type.shape[0] <= most}
        while wanted and not loop.parallel:
            attempt = _Attempt(loop, wanted, self.fresh, self.definitions)
            found = attempt.run()
            if not attempt.failed:
                text = f"stacked state: {len(wanted)} carried arrays became their rows"
                self.remark(Remark("split", True, text, loop.source))
                return found
            wanted -= attempt.failed
        return (loop,)


@dataclass(slots=True)
class _Attempt:
    """Rewrites one loop, assuming that the carries in `wanted` can be split. `failed`: those that cannot."""

    loop: LoopUTask
    wanted: set[int]
    fresh: FreshValues
    definitions: dict[Value, UOperator]
    failed: set[int] = field(default_factory=set)
    rows: dict[Value, Rows] = field(default_factory=dict)
    origin: dict[Value, int] = field(default_factory=dict)  # removed array -> its carry
    names: dict[Value, Value] = field(default_factory=dict)

    def run(self) -> Sequence[Statement]:
        loop = self.loop
        condition = loop.condition
        if condition is not None:
            tested = self._parameters(condition.parameters)
            tests = self._statements(condition.body, top=False)
            condition = Region(tested, tests, self._kept(condition.results))
        index = () if loop.index is None else (loop.index,)
        parameters = (*index, *self._parameters(loop.carried))
        statements = list(self._statements(loop.body.body, top=True))
        following = self._following(statements)
        before: list[Statement] = []
        initial = self._spread(loop.initial, lambda v: self._slices(v, before))
        outputs = self._spread(loop.outputs, self._fresh_rows)
        if self.failed:
            return ()
        body = Region(parameters, tuple(statements), following)
        whole = replace(loop, initial=initial, outputs=outputs, condition=condition, body=body)
        return (*before, whole, *self._gathered(outputs))

    # -- carries -----------------------------------------------------------------------------------------
    def _row(self, value: Value) -> TensorType:
        return TensorType(value.type.dtype, (1, *value.type.shape[1:]))

    def _fresh_rows(self, value: Value) -> tuple[Value, ...]:
        return tuple(self.fresh.make(self._row(value)) for _ in range(value.type.shape[0]))

    def _spread(self, values, rows) -> tuple[Value, ...]:  # type: ignore[no-untyped-def]
        lists = (rows(v) if k in self.wanted else (v,) for k, v in enumerate(values))
        return tuple(v for part in lists for v in part)

    def _parameters(self, values: Sequence[Value]) -> tuple[Value, ...]:
        def rows(value: Value) -> tuple[Value, ...]:
            made = self._fresh_rows(value)
            self.rows[value] = made
            return made

        self.origin.update((v, k) for k, v in enumerate(values) if k in self.wanted)
        return self._spread(values, rows)

    def _slices(self, value: Value, out: list[Statement]) -> tuple[Value, ...]:
        """Appends slices for the rows of a whole array."""
        b, row = Builder(self.fresh, self.loop.source, out), self._row(value).shape
        rest = (0,) * (value.type.rank - 1)
        return tuple(b.slice(value, (number, *rest), row) for number in range(value.type.shape[0]))

    def _following(self, out: list[Statement]) -> tuple[Value, ...]:
        """The next values of the carries."""
        found: list[Value] = []
        for k, value in enumerate(self.loop.body.results):
            if k not in self.wanted:
                found += self._kept((value,))
                continue
            rows = self.rows.get(value)
            if rows is None or None in rows:
                self.failed.add(k)
            else:
                found += cast(tuple[Value, ...], rows)
        return replaced(found, self.names)

    def _gathered(self, outputs: Sequence[Value]) -> list[Statement]:
        """The final arrays, concatenated for readers of the whole."""
        b, place = Builder(self.fresh, self.loop.source), 0
        for k, value in enumerate(self.loop.outputs):
            count = value.type.shape[0] if k in self.wanted else 1
            if k in self.wanted:
                rows = tuple(outputs[place : place + count])
                b.define((value,), "concatenate", rows, dimension=0)
            place += count
        return b.out

    # -- bodies ------------------------------------------------------------------------------------------
    def _kept(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """The values, which have unsplit readers: a carry with a removed array among them fails."""
        self.failed.update(self.origin[v] for v in values if v in self.origin)
        return replaced(values, self.names)

    def _statements(self, statements: Sequence[Statement], top: bool) -> tuple[Statement, ...]:
        out: list[Statement] = []
        for statement in statements:
            if isinstance(statement, UOperator):
                self.definitions.update((v, statement) for v in statement.outputs)
                self._operator(statement, top, out)
            else:
                out.append(self._nested(statement))
        return tuple(out)

    def _nested(self, statement: Statement) -> Statement:
        """Loops and branches may read rows, but may not return a split array."""
        self._kept(statement.inputs)

        def inside(region: Region) -> Region:
            return with_body(region, self._statements(region.body, top=False), self._kept(region.results))

        return map_regions(with_operands(statement, self.names), inside)

    def _operator(self, operator: UOperator, top: bool, out: list[Statement]) -> None:
        x = operator.inputs[0] if operator.inputs else None
        if x is not None and x in self.origin and operator.kind == "slice":
            self._read(operator, x, out)
            return
        written = row_written(operator, self.definitions) if top else None
        if written is not None and x in self.origin:
            self._write(operator, *written, out)
            self.origin[operator.output] = self.origin[x]
            return
        out.append(
            with_operands(operator, dict(zip(operator.inputs, self._kept(operator.inputs), strict=True)))
        )
        if written is not None:
            self._write(operator, *written, out)
        elif operator.kind == "concatenate" and operator["dimension"] == 0:
            if all(part.type.shape[0] == 1 for part in operator.inputs):
                self.rows[operator.output] = operator.inputs
        elif operator.kind == "empty" and operator.output.type.rank > 1:
            self.rows[operator.output] = (None,) * operator.output.type.shape[0]

    def _read(self, operator: UOperator, x: Value, out: list[Statement]) -> None:
        """Replaces a slice of one row; a larger slice needs the array, so its carry fails."""
        starts = operator.ints("starts")
        if operator.output.type.shape[0] != 1:
            self._kept((x,))
            return
        row = cast(Value, self.rows[x][starts[0]])
        if operator.output.type == row.type:
            self.names[operator.output] = self.names.get(row, row)
            return
        attributes = (("starts", (0, *starts[1:])), ("strides", operator["strides"]))
        out.append(replace(operator, inputs=(row,), attributes=attributes))

    def _write(self, operator: UOperator, number: int, update: Value, out: list[Statement]) -> None:
        """Records the array after a write: the old rows except one."""
        x = operator.inputs[0]
        rows = self.rows.get(x)
        if rows is None:
            return
        (update,) = self._kept((update,))
        update = Builder(self.fresh, operator.source, out).reshape(update, self._row(x).shape)
        self.rows[operator.output] = (*rows[:number], update, *rows[number + 1 :])
