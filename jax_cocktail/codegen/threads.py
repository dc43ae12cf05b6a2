"""Emits loops whose trips the threads of all units share: each thread runs its trips alone.

Warps take runs of trips, so that their accesses coalesce. Units take warps in turn, so that a few trips are
spread over all units. If a trip is a loop of unknown length, a thread begins its next trip as soon as it is
done, while the other threads of its warp still run theirs (persistent threads: Aila and Laine, HPG'09):

    for (trip ...) {                       if (trip < trips) {
      first;                                 first;
      while (going) body;                    for (;;) {
      last;                      ->            if (!going) { last; trip += ...; if (trip >= trips) break;
    }                                                        first; continue; }
                                               body;
                                             }
                                           }
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from jax_cocktail.codegen.context import Context
from jax_cocktail.codegen.kernel import Name
from jax_cocktail.codegen.transfer import emit_transfer
from jax_cocktail.codegen.writer import code
from jax_cocktail.utask.ir import LoopUTask, Region, StitchedUTask, UOperator

FIRST, NEXT = "ck_first_trip(unit)", "ck_next_trip(unit)"
Emit = Callable[[Region], None]


@contextmanager
def alone(context: Context) -> Iterator[None]:
    """Statements that each thread runs for itself."""
    context.needs.add("units")
    context.part_depth, context.by_thread = context.part_depth + 1, True
    yield
    context.part_depth, context.by_thread = context.part_depth - 1, False


def unending(context: Context, loop: LoopUTask) -> LoopUTask | None:
    """The loop of unknown length that a trip is, but for straight code before and behind it; None if it is
    something else, or if no thread has a second trip."""
    nested = [s for s in loop.body.body if not isinstance(s, UOperator | StitchedUTask)]
    one_round = cast(int, loop.trip_count) <= context.plan.most_units * context.target.threads
    if one_round or len(nested) != 1:
        return None
    inner = nested[0]
    return inner if isinstance(inner, LoopUTask) and inner.condition is not None else None


def emit_refilled(context: Context, loop: LoopUTask, inner: LoopUTask, name: Name, emit: Emit) -> None:
    """The loop as above. `inner`: see `unending`; `name`: of the variable that counts trips; `emit` emits a
    region."""
    writer, condition, trips = context.writer, inner.condition, cast(int, loop.trip_count)
    assert condition is not None
    at = next(k for k, s in enumerate(loop.body.body) if s is inner)
    first, last = (Region((), body, ()) for body in (loop.body.body[:at], loop.body.body[at + 1 :]))

    def begin() -> None:
        emit(first)
        emit_transfer(context, inner.initial, inner.carried)

    with alone(context), writer.block():
        writer.var(writer.index, name, FIRST)
        with writer.block(code("if ({} < {})", name, trips)):
            begin()
            with writer.block("for (;;)"):
                emit(condition)
                with writer.block(code("if (!{})", context.register(condition.results[0]))):
                    emit(last)
                    writer.line("{} += {};", name, NEXT)
                    writer.line("if ({} >= {}) break;", name, trips)
                    begin()
                    writer.line("continue;")
                emit(inner.body)
                emit_transfer(context, inner.body.results, inner.carried)
