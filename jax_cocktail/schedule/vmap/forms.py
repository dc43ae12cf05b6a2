"""Brings loops of libraries into the form that `jax.vmap` gives to loops, where batch elements are apart."""

from __future__ import annotations

from collections.abc import Iterator

from jax_cocktail.schedule.vmap.counts import without_bounds
from jax_cocktail.schedule.vmap.cut import is_apart
from jax_cocktail.schedule.vmap.flags import without_flags
from jax_cocktail.schedule.vmap.gates import without_gates
from jax_cocktail.schedule.vmap.kept import with_selects
from jax_cocktail.schedule.vmap.lockstep import element_loop
from jax_cocktail.utask.ir import LoopUTask, Region, UProgram, regions_of


def single_loops(program: UProgram, together: bool) -> UProgram:
    """Returns its argument if nothing changes. `together`: see `without_gates`."""
    plain = _without(program, together)
    if (selected := with_selects(program)) is program:
        return plain
    found = _without(selected, together)
    # a loop inside gains nothing if elements wait for each other after each of its runs
    return found if _count(found) > _count(plain) else plain


def _without(program: UProgram, together: bool) -> UProgram:
    return without_gates(without_bounds(without_flags(program)), together)


def _count(program: UProgram) -> int:
    """The number of outermost loops of which no operator mixes batch elements."""
    pairs = ((loop, element_loop(loop)) for loop in _outermost(program.entry))
    return sum(elements is not None and is_apart(loop, elements) for loop, elements in pairs)


def _outermost(region: Region) -> Iterator[LoopUTask]:
    for statement in region.body:
        if isinstance(statement, LoopUTask):
            yield statement
        else:
            for inner in regions_of(statement):
                yield from _outermost(inner)
