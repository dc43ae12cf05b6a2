"""Emits loops whose trips the threads of all units share: each thread runs its trips alone.

Warps take runs of trips, so that their accesses coalesce. Units take warps in turn, so that a few trips are
spread over all units. If a trip is a loop of unknown length, a thread begins its next trip as soon as it is
done, while the other threads of its warp still run theirs (persistent threads: Aila and Laine, HPG'09):

    for (trip ...) {                          for (;;) {
      first;                                    if (!busy) { if (trip >= trips) break; first; busy = true; }
      while (going) body;            ->         if (!going) { last; trip += ...; busy = false; continue; }
      last;                                     body;
    }                                         }
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
_BUSY = Name("busy")
Emit = Callable[[Region], None]


@contextmanager
def alone(context: Context) -> Iterator[None]:
    """Statements that each thread runs for itself."""
    context.needs.add("units")
    context.part_depth, context.by_thread = context.part_depth + 1, True
    yield
    context.part_depth, context.by_thread = context.part_depth - 1, False


def unending(loop: LoopUTask) -> LoopUTask | None:
    """The loop of unknown length that a trip is, but for straight code before and behind it."""
    nested = [s for s in loop.body.body if not isinstance(s, UOperator | StitchedUTask)]
    if len(nested) == 1 and isinstance(nested[0], LoopUTask) and nested[0].condition is not None:
        return nested[0]
    return None


def emit_refilled(context: Context, loop: LoopUTask, inner: LoopUTask, name: Name, emit: Emit) -> None:
    """The loop as above. `inner`: see `unending`; `name`: of the variable that counts trips; `emit` emits a
    region."""
    writer, condition = context.writer, inner.condition
    assert condition is not None
    at = next(k for k, s in enumerate(loop.body.body) if s is inner)
    before, behind = (Region((), body, ()) for body in (loop.body.body[:at], loop.body.body[at + 1 :]))
    with alone(context), writer.block():
        writer.var(writer.index, name, FIRST)
        writer.var("bool", _BUSY, "false")
        with writer.block("for (;;)"):
            with writer.block(code("if (!{})", _BUSY)):
                writer.line("if ({} >= {}) break;", name, cast(int, loop.trip_count))
                emit(before)
                emit_transfer(context, inner.initial, inner.carried)
                writer.set(_BUSY, "true")
            emit(condition)
            with writer.block(code("if (!{})", context.register(condition.results[0]))):
                emit(behind)
                writer.line("{} += {};", name, NEXT)
                writer.set(_BUSY, "false")
                writer.line("continue;")
            emit(inner.body)
            emit_transfer(context, inner.body.results, inner.carried)
