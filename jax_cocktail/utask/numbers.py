"""Numbers of a program: the lengths of its operands' axes, the trips of its loops, and its constants."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from struct import calcsize, pack, unpack
from typing import TypeGuard

from jax_cocktail.utask.ir import LoopUTask, Region, Statement, UOperator, UProgram, is_a, once, walk
from jax_cocktail.utask.printer import print_program
from jax_cocktail.utask.rewrite import rewrite
from jax_cocktail.utask.types import Value

_FORMS = {"int32": "<i", "int64": "<q", "float32": "<f", "float64": "<d"}
_BYTES = {dtype: calcsize(form) for dtype, form in _FORMS.items()}

Number = int | float
Owner = tuple[Value, int] | Value


def numbers(program: UProgram) -> tuple[Number, ...]:
    """The numbers of a program, in order."""
    return tuple(number for _, number in numbers_of(program))


def numbers_of(program: UProgram) -> Iterator[tuple[Owner, Number]]:
    """The numbers, each with what has it: an axis of an operand, the first value that a loop defines inside,
    or a constant."""
    for value in program.entry.parameters:
        yield from (((value, d), int(n)) for d, n in enumerate(value.type.shape))
    for each in walk(program.entry):
        if isinstance(each, LoopUTask) and each.trip_count is not None:
            yield each.body.parameters[0], int(each.trip_count)
        elif is_number(each):
            yield each.output, _read(each)


def is_number(statement: Statement) -> TypeGuard[UOperator]:
    """True for a constant of one element."""
    return is_a(statement, "constant") and len(statement.data) == _BYTES.get(statement.output.type.dtype)


def _read(constant: UOperator) -> Number:
    found: tuple[Number] = unpack(_FORMS[constant.output.type.dtype], constant.data)
    return found[0]


def encoded(number: Number, dtype: str) -> bytes:
    """The bytes of a constant of one element."""
    return pack(_FORMS[dtype], number)


def family(program: UProgram) -> str:
    """The name of all programs that are like this one but for its numbers, and for what follows from them."""
    known, key = _families(program.entry), (program.name, program.donated)
    if key not in known:
        known[key] = _family(program)
    return known[key]


@once
def _families(entry: Region) -> dict[tuple[str, tuple[int, ...]], str]:
    """Those of programs with this entry, by their names and what is donated: a compilation asks again and
    again."""
    return {}


def _family(program: UProgram) -> str:
    def plain(statement: Statement) -> Statement:
        if not is_number(statement):
            return statement
        return replace(statement, attributes=(("data", bytes(len(statement.data))),))

    return sha256(re.sub(r"\d+", "", print_program(rewrite(program, plain))).encode()).hexdigest()
