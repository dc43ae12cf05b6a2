"""Families: programs that are alike but for their numbers (`utask.numbers`).

A program is first compiled for its own numbers. A call with other ones shows which of them vary, and from
then on these programs are compiled for any: `torch.compile` takes a size for dynamic in the same way, when
it meets another one. What was compiled before stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import frexp

from jax_cocktail import cache
from jax_cocktail.device.machine import Machine
from jax_cocktail.memory import MEMORY
from jax_cocktail.records import Store
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail.utask.ir import UProgram
from jax_cocktail.utask.numbers import family, numbers

FOLDER = "families"


@dataclass(frozen=True, slots=True)
class Family:
    """The numbers of the first program that was compiled, as text, and its candidate; the positions of those
    that vary, and the candidate of the first program for any of them."""

    numbers: tuple[str, ...]
    first: Candidate
    varying: tuple[int, ...] = ()
    general: Candidate | None = None


_STORE = Store(Family, FOLDER)


def varying(program: UProgram, machine: Machine) -> frozenset[int]:
    """The positions of the numbers that a program has otherwise than one that was compiled before, and of
    those that varied before."""
    key = _key(program, machine)
    known = _load(key)
    if known is None:
        return frozenset()
    mine = tuple(map(repr, numbers(program)))
    if len(mine) != len(known.numbers):
        return frozenset()
    differ = {k for k, (a, b) in enumerate(zip(mine, known.numbers, strict=True)) if a != b}
    if not differ <= set(known.varying):
        known = replace(known, varying=tuple(sorted({*known.varying, *differ})))
        _keep(key, known)
    return frozenset(known.varying)


def keep(program: UProgram, machine: Machine, candidate: Candidate, general: bool) -> None:
    """Remembers a program that was compiled: others of its family are compared with it. `general`: it serves
    any numbers."""
    key = _key(program, machine)
    known = _load(key)
    if known is None:
        _keep(key, Family(tuple(map(repr, numbers(program))), candidate))
    elif general and known.general is None:
        _keep(key, replace(known, general=candidate))


def candidates(program: UProgram, machine: Machine) -> frozenset[Candidate]:
    """The candidates of the first program of the family, and of the first one that serves any numbers."""
    known = _load(_key(program, machine))
    return frozenset() if known is None else frozenset({known.first, known.general or known.first})


def near(programs: Sequence[UProgram], varying: Sequence[frozenset[int]]) -> str:
    """A text that programs share whose sizes that vary differ by less than a factor of two; "" if none of
    their numbers varies. `varying`: their positions in each program."""
    if not any(varying):
        return ""
    names = []
    for program, free in zip(programs, varying, strict=True):
        told = [frexp(n)[1] if k in free else n for k, n in enumerate(numbers(program))]
        names.append(f"{family(program)}{told}")
    return "\n".join(names)


def _key(program: UProgram, machine: Machine) -> str:
    """The name of a family on a machine."""
    return family(program) if machine.spec is None else f"{family(program)}-{machine.spec.arch}"


def _load(key: str) -> Family | None:
    here = str(cache.cache_dir()), key
    found = MEMORY.families.get(here) or _STORE.load(key)
    if found is not None:
        MEMORY.families.keep(here, found)
    return found


def _keep(key: str, family: Family) -> None:
    MEMORY.families.keep((str(cache.cache_dir()), key), family)
    _STORE.store(key, family)
