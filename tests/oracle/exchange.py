"""Tagged words in the mesh interpreter: what units have sent each other (see `exchange`)."""

from __future__ import annotations

from typing import cast

import numpy as np

from jax_cocktail.errors import VerificationError
from jax_cocktail.utask.arrays import Array, numpy_dtype
from jax_cocktail.utask.exchange import Blocks, blocks_of, tagged_words, widest, words_of
from jax_cocktail.utask.ir import UOperator, UProgram, operators_in

_BUFFERS = 2


def own(blocks: Blocks, unit: int, units: int) -> range:
    """The numbers of a unit's parts."""
    return range((unit - blocks.first) % units, blocks.parts, units)


def part(blocks: Blocks, number: int) -> tuple[slice, ...]:
    """Indices of a part."""
    return (*(slice(None),) * blocks.axis, slice(number * blocks.size, (number + 1) * blocks.size))


def parts(blocks: Blocks) -> tuple[slice, ...]:
    """Indices of all parts."""
    return (*(slice(None),) * blocks.axis, slice(0, blocks.parts * blocks.size))


class TaggedWords:
    """The words of all exchanges of a program on `units` units."""

    def __init__(self, program: UProgram, units: int) -> None:
        self.units = units
        size = tagged_words(operators_in(program.entry), units)
        self.tags = np.zeros((_BUFFERS, size), np.int64)
        self.values = np.zeros((_BUFFERS, size), np.uint32)

    def send(self, exchange: UOperator, unit: int, step: int, operands: list[Array]) -> None:
        """Sends a unit's own parts of the operands, or that it has none."""
        sent = np.zeros(words_of(exchange, self.units), bool)
        values = np.zeros(sent.size, np.uint32)
        place = 0
        for operand, blocks in zip(operands, blocks_of(exchange), strict=True):
            mine = np.zeros(operand.shape, bool)
            for number in own(blocks, unit, self.units):
                mine[part(blocks, number)] = True
            whole = parts(blocks)
            here = slice(place, place + operand[whole].size)
            bits = np.ascontiguousarray(operand[whole]).view(np.uint32)
            sent[here], values[here] = mine[whole].ravel(), bits.ravel()
            place = here.stop
        blocks = widest(exchange)
        idle = (unit - blocks.first) % self.units - blocks.parts
        if idle >= 0:
            sent[place + idle] = True
        buffer = step % _BUFFERS
        self.tags[buffer, : sent.size][sent] = step
        self.values[buffer, : sent.size][sent] = values[sent]

    def arrived(self, exchange: UOperator, step: int) -> bool:
        """True if all units have sent; an error if some of it is lost already."""
        tags = self.tags[step % _BUFFERS, : words_of(exchange, self.units)]
        if (tags > step).any():
            raise VerificationError(
                f"words of step {step} of an exchange were overwritten before all units had received them;"
                " every unit must send and receive in every step: print the program after the pass that"
                " exchanges"
            )
        return bool((tags == step).all())

    def received(self, exchange: UOperator, step: int) -> list[Array]:
        """All parts of every operand."""
        words, found, place = self.values[step % _BUFFERS], list[Array](), 0
        for value, blocks in zip(exchange.inputs, blocks_of(exchange), strict=True):
            shape = value.type.shape
            count = blocks.words(shape)
            array = words[place : place + count].copy().view(numpy_dtype(value.type.dtype))
            whole = np.empty(shape, bool)[parts(blocks)].shape
            found.append(cast(Array, array.reshape(whole)))
            place += count
        return found
