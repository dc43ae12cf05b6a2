"""Loop distribution: matrix products on no loop-carried cycle are computed for many steps at once.

    for t: h = f(x[t] @ W, h)      ->      y = x @ W
                                           for t: h = f(y[t], h)

The body of a counted loop is divided at the strongly connected components of its loop-carried dependence
graph (Kennedy and McKinley, "Loop distribution with arbitrary control flow", SC 1990). A matrix product with
loop-invariant weights on no cycle becomes one product over all steps: a GEMV becomes a GEMM. Each recurrence
becomes a loop of its own, whose weights stay in the core's cache: ten LSTM layers in one loop over time
become ten loops. If the values kept per step would exceed the cache, the loop is first strip-mined. Each
strip is divided, and the remainder is a loop of its own. A while loop with a counter runs by chunks, which
are divided; in any other while loop, products that depend on counters alone are computed ahead (`run_ahead`).

The order of positions is loop 0, products 1, loop 1, products 2, ... A statement takes the earliest position
after its operands. A value that a later loop reads is kept per step. Every loop recomputes the cheap values
of the index and the scalar recurrences, such as counters, that it needs. A recurrence that only sums
products, such as the gradient of weights, becomes one product after the loops (`reductions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jax_cocktail.device.tuning import LOOPS, LoopTuning
from jax_cocktail.schedule.loops.distribution.chunks import by_chunks, fits, one_chunk
from jax_cocktail.schedule.loops.distribution.fission import Fission, analyse, why_undivided
from jax_cocktail.schedule.loops.distribution.rebuild import Regrouper
from jax_cocktail.schedule.loops.distribution.run_ahead import run_ahead
from jax_cocktail.schedule.loops.distribution.split_products import split_products
from jax_cocktail.schedule.loops.distribution.step_rows import Steps
from jax_cocktail.schedule.loops.distribution.strip_mine import remainder, strip_mine
from jax_cocktail.schedule.simplify.trip_counts import counter_of
from jax_cocktail.utask.ir import LoopUTask, Statement, UOperator, UProgram, is_a
from jax_cocktail.utask.remarks import Listener, Remark, nobody
from jax_cocktail.utask.rewrite import rewrite, with_body
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import Value


def distribute(program: UProgram, limits: LoopTuning = LOOPS, remark: Listener = nobody) -> UProgram:
    """Returns its argument if no loop is worth dividing."""
    return rewrite(program, _Distributor(program, limits, remark).change)


class _Distributor:
    """One walk over a program, with one remark for every loop."""

    def __init__(self, program: UProgram, limits: LoopTuning, remark: Listener) -> None:
        self.limits, self.remark = limits, remark
        self.fresh = FreshValues(program)
        self.definitions: dict[Value, UOperator] = {}  # constants and their broadcasts

    def change(self, statement: Statement) -> Statement | Sequence[Statement]:
        if isinstance(statement, LoopUTask):
            return self._loop(statement)
        if is_a(statement, "constant", "broadcast"):
            self.definitions[statement.output] = statement
        return statement

    def _note(self, loop: LoopUTask, divided: bool, text: str) -> None:
        trips = "a while loop" if loop.trip_count is None else f"a loop of {loop.trip_count} trips"
        self.remark(Remark("distribute", divided, f"{trips}: {text}", loop.source))

    def _loop(self, loop: LoopUTask) -> Sequence[Statement]:
        if loop.parallel:
            self._note(loop, False, "its trips are independent already")
            return (loop,)
        return self._while(loop) if loop.trip_count is None else self._counted(loop, loop.trip_count)

    # -- counted loops -----------------------------------------------------------------------------------
    def _counted(self, loop: LoopUTask, trips: int) -> Sequence[Statement]:
        if trips < self.limits.trips:
            self._note(loop, False, f"{trips} trips are too few")
            return (loop,)
        before, split = split_products(loop, self.limits.flops, self.fresh)
        fission = self._fission(loop, split)
        if fission is None:
            return (loop,)
        strip = _strip(trips, fission.bytes_per_step, self.limits)
        if strip is None:
            kept = fission.bytes_per_step
            self._note(loop, False, f"{kept} bytes would have to be kept per step")
            return (loop,)
        if strip == trips:
            self._note(loop, True, _summary(fission, "all steps"))
            return (*before, *Regrouper(fission, self.fresh).statements())
        self._note(loop, True, _summary(fission, f"strips of {strip} steps"))
        return (*before, *self._strips(split, strip, trips))

    def _fission(self, loop: LoopUTask, split: LoopUTask) -> Fission | None:
        fission = analyse(split, self.limits.flops, steps=Steps(outside=self.definitions))
        if fission is None:
            self._note(loop, False, why_undivided(loop, self.limits.flops))
        return fission

    def _strips(self, loop: LoopUTask, strip: int, trips: int) -> Sequence[Statement]:
        outer, inner, base = strip_mine(loop, strip, self.fresh)
        fission = analyse(inner, self.limits.flops, steps=Steps(trips, base, self.definitions))
        assert fission is not None
        divided = Regrouper(fission, self.fresh).statements()
        outer = replace(outer, body=with_body(outer.body, (*outer.body.body, *divided)))
        if trips % strip == 0:
            return (outer,)
        start, base, rest = remainder(loop, trips - trips % strip, outer.outputs, self.fresh)
        fission = analyse(rest, self.limits.flops, steps=Steps(trips, base, self.definitions))
        if fission is None or trips % strip < self.limits.trips:
            return (outer, start, rest)
        last = Regrouper(fission, self.fresh).statements()
        return (outer, start, *last)

    # -- while loops -------------------------------------------------------------------------------------
    def _while(self, loop: LoopUTask) -> Sequence[Statement]:
        counter = counter_of(loop, self.definitions)
        before, split = split_products(loop, self.limits.flops, self.fresh)
        fission = self._fission(loop, split)
        if fission is None:
            return (loop,)
        steps = min(self.limits.chunk, self.limits.strip_bytes // max(fission.bytes_per_step, 1))
        if steps < self.limits.trips or (counter is not None and not fits(counter, steps)):
            kept = fission.bytes_per_step
            self._note(loop, False, f"{kept} bytes would have to be kept per step")
            return (loop,)
        if counter is None:
            return self._ahead(loop, before, split, steps)
        chunk = one_chunk(split, steps, self.fresh)
        inner = analyse(chunk, self.limits.flops)
        assert inner is not None
        divided = tuple(Regrouper(inner, self.fresh).statements())
        self._note(loop, True, _summary(inner, f"chunks of {steps} steps"))
        return (*before, *by_chunks(loop, counter, chunk, divided, self.fresh))

    def _ahead(
        self, loop: LoopUTask, before: Sequence[Statement], split: LoopUTask, steps: int
    ) -> Sequence[Statement]:
        ahead, count = run_ahead(split, steps, self.limits.flops, self.fresh)
        if not ahead:
            text = "its end depends on its data, and no matrix product on counters alone"
            self._note(loop, False, text)
            return (loop,)
        products = f"{count} product{'s' * (count != 1)}"
        self._note(loop, True, f"its end depends on its data: {products} computed {steps} steps ahead")
        return (*before, *ahead)


def _strip(trips: int, bytes_per_step: int, limits: LoopTuning) -> int | None:
    """Steps of a strip: all, or those of the fewest strips within the limit. A divisor of the trip count
    leaves no remainder and is preferred, unless it is less than half as long."""
    most = limits.strip_bytes // max(bytes_per_step, 1)
    if trips <= most:
        return trips
    if most < limits.trips:
        return None
    even = -(-trips // -(-trips // most))
    fitting = (n for n in range(most, max(limits.trips, most // 2) - 1, -1) if trips % n == 0)
    return next(fitting, even)


def _summary(fission: Fission, where: str) -> str:
    products, loops = len(fission.products), len(set(fission.position.values()))
    sums = f", {len(fission.sums)} added up behind" if fission.sums else ""
    return (
        f"distributed over {where}: {products} product{'s' * (products != 1)} taken out{sums},"
        f" {loops} loop{'s' * (loops != 1)} left, {fission.bytes_per_step} bytes kept per step"
    )
