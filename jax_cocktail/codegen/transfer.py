"""Emits the copies where control flow joins: carries of loops, results of branches."""

from __future__ import annotations

from collections.abc import Sequence

from jax_cocktail.codegen.context import Context
from jax_cocktail.codegen.kernel import Assign, Expression, Load, Name
from jax_cocktail.codegen.lanes import emit_copy
from jax_cocktail.codegen.mapping import lane_nest
from jax_cocktail.codegen.text import STORAGE
from jax_cocktail.utask.types import Value


def emit_transfer(context: Context, sources: Sequence[Value], targets: Sequence[Value]) -> None:
    """Parallel copy: every target gets its source's value from before any target changed."""
    arrays, scalars = [], []
    for source, target in zip(sources, targets, strict=True):
        if not target.type.is_scalar:
            if target.type.size and not context.same_place(source, target):
                arrays.append((source, target))
        elif context.register(source) != context.register(target):
            scalars.append((context.register(source), context.register(target)))
    _transfer_registers(context, scalars)
    _transfer_arrays(context, arrays)


def _transfer_registers(context: Context, moves: list[tuple[Expression, Expression]]) -> None:
    written = {target for _, target in moves}
    late = []
    for source, target in moves:
        if source in written:
            source = context.writer.let("auto", context.writer.fresh("m"), source)
        late.append(Assign(target, source))
    context.writer.add(*late)


def _transfer_arrays(context: Context, moves: list[tuple[Value, Value]]) -> None:
    """Copies first to targets that no other copy reads; the remaining cycles are rotated by element."""
    pending = list(moves)
    since: list[tuple[Value, Value]] = []  # moves since the last block barrier
    while pending:
        read = [context.slot(source) for source, _ in pending]
        ready = next((m for m in pending if read.count(context.slot(m[1])) == 0), None)
        if ready is None:
            if since:
                context.fence()
            _rotate(context, pending)
            return
        if any(context.slot(ready[1]) == context.slot(source) for source, _ in since):
            context.fence()
            since = []
        with context.alone(ready[1]):
            emit_copy(context, *ready)
        pending.remove(ready)
        since.append(ready)


def _rotate(context: Context, moves: list[tuple[Value, Value]]) -> None:
    """Rotates a cycle, in which every buffer is the source of one move and the target of another."""
    writer = context.writer
    for size in sorted({t.type.size for _, t in moves}):
        same = [m for m in moves if m[1].type.size == size]
        targets = [target for _, target in same]
        at = Name("i")
        with context.alone(*targets), writer.block(), lane_nest(context, [(at, size)]):
            names = [writer.fresh("m") for _ in same]
            for name, (source, target) in zip(names, same, strict=True):
                writer.let(STORAGE[target.type.dtype], name, Load(context.pointer(source), at))
            for name, target in zip(names, targets, strict=True):
                writer.store(Load(context.pointer(target), at), name)
