"""Runs a uProgram in plain NumPy: the oracle for every pass and every target.

Operators are in the modules beside this one, by family; here are regions, loops, branches and groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from jax_cocktail.errors import VerificationError
from jax_cocktail.utask.arrays import Array, numpy_dtype
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
    UProgram,
)
from jax_cocktail.utask.operators import MOVEMENT as MOVEMENTS
from jax_cocktail.utask.types import Value
from tests.oracle.interpreter.common import Evaluate, is_float, widened
from tests.oracle.interpreter.contraction import CONTRACTION
from tests.oracle.interpreter.elementwise import ELEMENTWISE
from tests.oracle.interpreter.indexing import INDEXING
from tests.oracle.interpreter.linalg import LINALG
from tests.oracle.interpreter.movement import MOVEMENT
from tests.oracle.interpreter.reduction import REDUCTION
from tests.oracle.interpreter.special import SPECIAL

EVALUATE: dict[str, Evaluate] = {
    **ELEMENTWISE,
    **SPECIAL,
    **MOVEMENT,
    **INDEXING,
    **REDUCTION,
    **CONTRACTION,
    **LINALG,
}
# They copy bits, or change only the sign: denormal numbers are never flushed.
_KEEPS_BITS = MOVEMENTS | {
    "abs",
    "bitcast",
    "copy",
    "dynamic_update_slice",
    "exchange",
    "neg",
    "select",
    "sort",
    "top_k",
}


def run(
    program: UProgram,
    arguments: Sequence[Array],
    flush_denormals: bool = False,
    observe: Callable[[Region], None] | None = None,
) -> list[Array]:
    """Runs `program` on `arguments` and returns its results.

    Args:
      program: the program.
      arguments: one array per entry parameter.
      flush_denormals: arithmetic reads and writes denormal numbers as zero, like XLA's CPU threads. So do
        `nextafter`, `rem` and conversions here, which keep some, while a sort compares all.
      observe: is told of every region each time that it runs.

    Raises:
      VerificationError: the number of arguments is wrong, or a value does not have its declared type.
      ProgramFailure: the program executes `fail`.
    """
    machine = _Machine(flush_denormals, observe)
    parameters = program.entry.parameters
    if len(arguments) != len(parameters):
        raise VerificationError(
            f"program {program.name} takes {len(parameters)} arguments, got {len(arguments)}; pass one array"
            " per entry parameter"
        )
    with np.errstate(all="ignore"):
        machine.define(parameters, [np.asarray(a) for a in arguments], f"arguments of {program.name}")
        return [np.array(a) for a in machine.region(program.entry)]


class _Machine:
    """Values by id. When a region runs again, it overwrites its definitions."""

    def __init__(self, flush_denormals: bool, observe: Callable[[Region], None] | None) -> None:
        self._arrays: dict[int, Array] = {}
        self._flush, self._observe = flush_denormals, observe

    def define(self, values: Sequence[Value], arrays: Sequence[Array], what: str) -> None:
        for value, array in zip(values, arrays, strict=True):
            if array.shape != value.type.shape or array.dtype != numpy_dtype(value.type.dtype):
                raise VerificationError(
                    f"{what}: {value} is {value.type}, got {array.dtype}{list(array.shape)}; verify the"
                    " program and check the arguments"
                )
            self._arrays[value.id] = array

    def read(self, values: Iterable[Value]) -> list[Array]:
        return [self._arrays[value.id] for value in values]

    def region(self, region: Region) -> list[Array]:
        if self._observe is not None:
            self._observe(region)
        for statement in region.body:
            self._statement(statement)
        return self.read(region.results)

    def _statement(self, statement: Statement) -> None:
        if isinstance(statement, UOperator):
            self._operator(statement)
        elif isinstance(statement, LoopUTask):
            self.define(statement.outputs, self._loop(statement), "loop")
        elif isinstance(statement, BranchUTask):
            (selector,) = self.read((statement.selector,))
            chosen = min(max(int(selector), 0), len(statement.branches) - 1)
            self.define(statement.outputs, self.region(statement.branches[chosen]), "branch")
        else:
            self._stitched(statement)

    def _stitched(self, statement: StitchedUTask) -> None:
        for member in statement.members:
            self._operator(member)

    def _loop(self, loop: LoopUTask) -> list[Array]:
        carried = self.read(loop.initial)
        if loop.condition is None:
            for index in range(loop.trip_count or 0):
                self.define(loop.body.parameters, [np.asarray(index, np.int64), *carried], "loop body")
                carried = self.region(loop.body)
            return carried
        while True:
            self.define(loop.condition.parameters, carried, "loop condition")
            if not self.region(loop.condition)[0]:
                return carried
            self.define(loop.body.parameters, carried, "loop body")
            carried = self.region(loop.body)

    def _operator(self, operator: UOperator) -> None:
        operands = self.read(operator.inputs)
        flushes = self._flush and operator.kind not in _KEEPS_BITS
        if flushes:
            operands = [_flushed(x) for x in operands]
        result = EVALUATE[operator.kind](operator, operands)
        results = [np.asarray(x) for x in (result if isinstance(result, tuple) else (result,))]
        if flushes:
            results = [_flushed(x) for x in results]
        self.define(operator.outputs, results, operator.kind)


def _flushed(x: Array) -> Array:
    """Flushes denormal numbers to zeros of their sign. Those of bfloat16 are denormal in float32 too, in
    which they are computed; those of float16 are not."""
    if not is_float(x) or x.dtype == np.float16:
        return x
    wide = widened(x)
    zero = np.copysign(wide.dtype.type(0), wide)
    return np.where(np.abs(wide) < np.finfo(wide.dtype).tiny, zero, wide).astype(x.dtype)
