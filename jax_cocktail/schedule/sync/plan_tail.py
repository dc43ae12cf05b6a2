"""The end of planning: memory, then barriers.

    result_copies -> plan -> divided_copies -> explicit_copies -> residency -> barriers -> block_barriers

`finish` runs these passes on a stitched program for the compiler, and `trial` for the passes that try a
program (`exchange`, `double_buffer`). These count only the barriers between units, so a trial plans for the
host, which has no others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from jax_cocktail.codegen.gpu import near_words_bytes
from jax_cocktail.codegen.machines import HOST
from jax_cocktail.device.machine import Machine
from jax_cocktail.errors import PlacementError
from jax_cocktail.schedule.memory.divided_copies import divided_copies
from jax_cocktail.schedule.memory.explicit_copies import copied_carries, explicit_copies
from jax_cocktail.schedule.memory.plan import plan_memory
from jax_cocktail.schedule.memory.residency import resident_parts
from jax_cocktail.schedule.memory.result_copies import result_copies
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.sync.barriers import synchronise
from jax_cocktail.schedule.sync.block_barriers import insert_block_barriers
from jax_cocktail.stitch.fuse import stitch
from jax_cocktail.utask.exchange import anything_crosses, tagged_words
from jax_cocktail.utask.ir import LoopUTask, UProgram, operators_in, walk
from jax_cocktail.utask.plan import MAILBOX_BYTES, MemoryPlan

NOWHERE = MemoryPlan({}, {}, (), 0)


@dataclass(frozen=True, slots=True)
class Planned:
    """A stitched program and its memory plan, `NOWHERE` until there is one."""

    program: UProgram
    plan: MemoryPlan = NOWHERE


TailPass = Callable[[Planned], Planned]
Observer = Callable[[str, Planned, float], None]  # (pass, what it has made, seconds)


def tail_passes(machine: Machine = HOST, cluster: int = 0) -> tuple[tuple[str, TailPass], ...]:
    """The passes for a machine, in order, by module name. `cluster`: the number of its units; 0: no cluster
    is required."""
    plan: TailPass = partial(_planned, machine=machine, cluster=cluster)
    first: tuple[tuple[str, TailPass], ...] = (
        ("result_copies", _result_copies),
        ("plan", plan),
        ("divided_copies", partial(_divided_copies, plan=plan)),
        ("explicit_copies", _explicit_copies),
    )
    if machine.spec is None:
        return (*first, ("barriers", _synchronised))
    return (
        *first,
        ("residency", partial(_resident, machine=machine, cluster=cluster)),
        ("barriers", partial(_synchronised, cluster=cluster)),
        ("block_barriers", _block_barriers),
    )


def finish(
    program: UProgram, machine: Machine = HOST, cluster: int = 0, observe: Observer | None = None
) -> Planned:
    """A stitched program with its memory plan and its barriers. `observe` is told of every pass."""
    return run_passes(Planned(program), tail_passes(machine, cluster), observe)


def trial(program: UProgram) -> UProgram | None:
    """A placed program with the barriers between units; None if its tiles cannot be written in place."""
    try:
        return finish(stitch(simplify(program))).program
    except PlacementError:
        return None


def run_passes(
    planned: Planned, passes: Iterable[tuple[str, TailPass]], observe: Observer | None = None
) -> Planned:
    """The result of the last pass."""
    for name, run in passes:
        start = time.perf_counter()
        planned = run(planned)
        if observe is not None:
            observe(name, planned, time.perf_counter() - start)
    return planned


def _result_copies(planned: Planned) -> Planned:
    program = result_copies(planned.program)
    return planned if program is planned.program else Planned(program)


def _planned(planned: Planned, machine: Machine, cluster: int) -> Planned:
    if machine.spec is None:
        return replace(planned, plan=plan_memory(planned.program))
    return _near_planned(planned, machine, cluster)


def _divided_copies(planned: Planned, plan: TailPass) -> Planned:
    """Planned anew, unless the program would then copy as often as before, or need more shared memory."""
    program = divided_copies(planned.program, planned.plan)
    if program is planned.program:
        return planned
    again = plan(Planned(program))
    fewer = _copies(again) < _copies(planned)
    return again if fewer and again.plan.shared_bytes <= planned.plan.shared_bytes else planned


def _copies(planned: Planned) -> int:
    loops = (s for s in walk(planned.program.entry) if isinstance(s, LoopUTask))
    return sum(len(copied_carries(loop, planned.plan)) for loop in loops)


def _explicit_copies(planned: Planned) -> Planned:
    program, plan = explicit_copies(planned.program, planned.plan)
    return planned if program is planned.program else Planned(program, plan)


def _near_planned(planned: Planned, machine: Machine, cluster: int) -> Planned:
    """Shared memory holds the templates' scratch, then the unit's own values, then a mailbox."""
    template_bytes = machine.target.template_bytes(planned.program)
    room = _near_bytes(planned.program, machine, cluster) - template_bytes
    plan = plan_memory(planned.program, room - MAILBOX_BYTES)
    own_bytes = (-(-plan.own_bytes // MAILBOX_BYTES) + 1) * MAILBOX_BYTES
    return replace(planned, plan=replace(plan, template_bytes=template_bytes, own_bytes=own_bytes))


def _resident(planned: Planned, machine: Machine, cluster: int) -> Planned:
    plan = planned.plan
    room = _near_bytes(planned.program, machine, cluster) - plan.template_bytes - plan.own_bytes
    return replace(planned, plan=resident_parts(planned.program, plan, room))


def _near_bytes(program: UProgram, machine: Machine, cluster: int) -> int:
    """Shared memory of a block, without the tagged words that a cluster receives in it."""
    assert machine.spec is not None
    words = near_words_bytes(tagged_words(operators_in(program.entry), cluster)) if cluster else 0
    return machine.spec.shared_bytes - words


def _synchronised(planned: Planned, cluster: int = 0) -> Planned:
    final, plan = synchronise(planned.program, planned.plan), planned.plan
    if cluster and plan.most_units > 1 and anything_crosses(operators_in(final.entry)):
        plan = replace(plan, cluster=True)
    return Planned(final, plan)


def _block_barriers(planned: Planned) -> Planned:
    return replace(planned, program=insert_block_barriers(planned.program, planned.plan))
