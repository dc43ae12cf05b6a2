"""Pipelining: recurrences that feed each other run side by side, one step apart (a wavefront).

Ten layers inside one loop over time are ten recurrences. `distribute` makes them ten successive loops, whose
units need one barrier per step and layer. Here they become one loop over *diagonals*:

    for t < T: layer 0, layer 1, ... layer k-1     ->     for d < T + k - 1: for all j: layer j at step d - j

The layers of a diagonal are independent: layer j reads a result of layer j-1 from the diagonal before. So
each layer can have units of its own (`BranchUTask.stage`, see `placement.groups`), which keep its weights.
There is one barrier per diagonal: T + k - 1 barriers instead of T * k (the wavefront method of Lamport, "The
parallel execution of DO loops", CACM 1974, for a chain of recurrences).

A branch guards each stage, so it runs for its own T steps, on the same values as before. Outside these steps
its carries pass through unchanged. A value that a stage passes on is an additional carry, and the next stage
reads its value of the diagonal before. If the value is the next value of a carry of the stage, that carry
serves. Rows of stacked results are written outside of the guard: before its first step a stage writes its
first row, which the right one overwrites, and after its last step it writes the same last row again. Products
before the first recurrence and after the last become batched products, as in `distribute`, which is next.
"""

from __future__ import annotations

from collections.abc import Sequence

from jax_cocktail.device.tuning import LOOPS, LoopTuning
from jax_cocktail.schedule.loops.distribution.fission import analyse
from jax_cocktail.schedule.loops.distribution.rebuild import Regrouper
from jax_cocktail.schedule.loops.distribution.split_products import split_products
from jax_cocktail.schedule.loops.wavefront.diagonals import Wavefront
from jax_cocktail.schedule.loops.wavefront.stages import Stages, between, recurrences, stages_of
from jax_cocktail.utask.ir import LoopUTask, Region, Statement, UProgram, is_parallel
from jax_cocktail.utask.remarks import Listener, Remark, nobody
from jax_cocktail.utask.rewrite import map_body, map_regions
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import Value


def pipeline(program: UProgram, limits: LoopTuning = LOOPS, remark: Listener = nobody) -> UProgram:
    """Returns its argument if no loop holds recurrences that feed each other."""
    pipeliner = _Pipeliner(program, limits, remark)
    return map_regions(program, pipeliner.region)


class _Pipeliner:
    def __init__(self, program: UProgram, limits: LoopTuning, remark: Listener) -> None:
        self.limits, self.remark = limits, remark
        self.fresh = FreshValues(program)

    def region(self, region: Region) -> Region:
        return map_body(region, self._statement)

    def _statement(self, statement: Statement) -> Statement | Sequence[Statement]:
        if is_parallel(statement):
            return statement
        statement = map_regions(statement, self.region)
        return self._loop(statement) if isinstance(statement, LoopUTask) else statement

    def _loop(self, loop: LoopUTask) -> Sequence[Statement]:
        """The wavefront with the statements before and after it, or the loop itself."""
        text, found = self._pipelined(loop)
        trips = "a while loop" if loop.trip_count is None else f"a loop of {loop.trip_count} trips"
        if text:
            self.remark(Remark("pipeline", bool(found), f"{trips}: {text}", loop.source))
        return found or (loop,)

    def _pipelined(self, loop: LoopUTask) -> tuple[str, Sequence[Statement]]:
        if len(recurrences(loop)) < 2:
            return "", ()
        if loop.trip_count is None:
            return "its end depends on its data", ()
        if loop.trip_count < self.limits.trips:
            return "too few trips", ()
        before, split = split_products(loop, self.limits.flops, self.fresh)
        around = self._around(split)
        position = next(n for n, s in enumerate(around) if _is_recurrent(s))
        inner = around[position]
        assert isinstance(inner, LoopUTask)
        stages = stages_of(inner)
        reason = _refusal(stages, self.limits)
        if reason:
            return reason, ()
        built = Wavefront(stages, self.fresh)
        made = (*before, *around[:position], *built.statements(), *around[position + 1 :])
        text = f"{stages.count} stages side by side, {loop.trip_count + stages.count - 1} diagonals"
        return text, made

    def _around(self, loop: LoopUTask) -> Sequence[Statement]:
        """The loop over all recurrences and the statements between them, with batched products around it."""
        together, trips = between(loop, recurrences(loop)), loop.trip_count
        fission = analyse(loop, self.limits.flops, together)
        assert fission is not None and trips is not None
        if fission.bytes_per_step * trips > self.limits.batched_bytes:
            return (loop,)
        return Regrouper(fission, self.fresh).statements()


def _is_recurrent(statement: Statement) -> bool:
    return isinstance(statement, LoopUTask) and len(recurrences(statement)) > 1


def _refusal(stages: Stages, limits: LoopTuning) -> str:
    """The reason why the loop stays as it is, or ""."""
    if stages.count < 2:
        return "its recurrences do not feed each other"
    if stages.count > limits.stages:
        return f"{stages.count} stages are too many"
    handed: dict[int, dict[Value, None]] = {}
    for node, values in stages.readers():
        for value in values:
            made = stages.of(value)
            if made is None or made == stages.stage[node]:
                continue
            if value in stages.updated:
                return "a stage reads all of an array that another one updates in place"
            handed.setdefault(made, {})[value] = None
    most = max((sum(v.type.nbytes for v in values) for values in handed.values()), default=0)
    return f"{most} bytes would be handed on per step" if most > limits.handed_bytes else ""
