"""The end of planning: memory, then barriers.

    plan -> copies -> residency -> barriers -> block_barriers

`finish` runs these passes on a stitched program. The passes `exchange` and `double_buffer` try how a placed
program would end: the compiler gives them a `Trial`.
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
from jax_cocktail.schedule.memory.copies import loop_copies, result_copies
from jax_cocktail.schedule.memory.plan import plan_memory
from jax_cocktail.schedule.memory.residency import residency
from jax_cocktail.schedule.sync.barriers import barriers
from jax_cocktail.schedule.sync.block_barriers import block_barriers
from jax_cocktail.utask.exchange import anything_crosses, tagged_words
from jax_cocktail.utask.ir import UProgram, operators_in
from jax_cocktail.utask.plan import MAILBOX_BYTES, MemoryPlan

NOWHERE = MemoryPlan({}, {}, (), 0)


@dataclass(frozen=True, slots=True)
class Planned:
    """A stitched program and its memory plan, `NOWHERE` until there is one."""

    program: UProgram
    plan: MemoryPlan = NOWHERE


TailPass = Callable[[Planned], Planned]
Observer = Callable[[str, Planned, float], None]  # (pass, what it has made, seconds)
# From a placed program to the one with barriers between units; None if its tiles cannot be written in place.
Trial = Callable[[UProgram], UProgram | None]


def tail_passes(
    machine: Machine = HOST, cluster: int = 0, units: int = 0
) -> tuple[tuple[str, TailPass], ...]:
    """The passes for a machine, in order, by module name. `cluster`: the number of its units; 0: no cluster
    is required. `units`: the most that are asked for, 0 for any number."""
    plan = partial(_memory_plan, machine=machine, cluster=cluster, units=units)
    first: tuple[tuple[str, TailPass], ...] = (
        ("plan", lambda planned: Planned(*result_copies(planned.program, plan))),
        ("copies", lambda planned: Planned(*loop_copies(planned.program, planned.plan))),
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
    program: UProgram,
    machine: Machine = HOST,
    cluster: int = 0,
    observe: Observer | None = None,
    units: int = 0,
) -> Planned:
    """A stitched program with its memory plan and its barriers. `observe` is told of every pass."""
    return run_passes(Planned(program), tail_passes(machine, cluster, units), observe)


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


_MOST_PRIVATE = 8  # of a card's memory: a share for what blocks or threads have in it, each for itself


def _memory_plan(program: UProgram, machine: Machine, cluster: int, units: int) -> MemoryPlan:
    """The memory of a stitched program. A block's shared memory holds the templates' scratch, then the unit's
    own values, then a mailbox."""
    if machine.spec is None:
        return plan_memory(program)
    template_bytes = machine.target.template_bytes(program)
    near = _near_bytes(program, machine, cluster) - template_bytes - MAILBOX_BYTES
    plan = plan_memory(program, near, units, machine.spec.warp)
    private = plan.private_bytes * plan.most_units
    if private * _MOST_PRIVATE > machine.spec.memory_bytes:
        raise PlacementError(
            f"the own arrays of {plan.most_units} blocks would take {private >> 20} MiB of global memory"
        )
    spec = machine.spec
    local = plan.thread_bytes * spec.threads_per_unit * spec.units  # reserved for all that the card can hold
    if local * _MOST_PRIVATE > spec.memory_bytes:
        raise PlacementError(f"the own arrays of all threads would take {local >> 20} MiB of global memory")
    own_bytes = (-(-plan.own_bytes // MAILBOX_BYTES) + 1) * MAILBOX_BYTES
    return replace(plan, template_bytes=template_bytes, own_bytes=own_bytes)


def _resident(planned: Planned, machine: Machine, cluster: int) -> Planned:
    plan = planned.plan
    room = _near_bytes(planned.program, machine, cluster) - plan.template_bytes - plan.own_bytes
    return replace(planned, plan=residency(planned.program, plan, room))


def _near_bytes(program: UProgram, machine: Machine, cluster: int) -> int:
    """Shared memory of a block, without the tagged words that a cluster receives in it."""
    assert machine.spec is not None
    words = near_words_bytes(tagged_words(operators_in(program.entry), cluster)) if cluster else 0
    return machine.spec.room(machine.target.threads) - words


def _synchronised(planned: Planned, cluster: int = 0) -> Planned:
    final, plan = barriers(planned.program, planned.plan), planned.plan
    if cluster and 1 < plan.most_units <= cluster and anything_crosses(operators_in(final.entry)):
        plan = replace(plan, cluster=True)
    return Planned(final, plan)


def _block_barriers(planned: Planned) -> Planned:
    return replace(planned, program=block_barriers(planned.program, planned.plan))
