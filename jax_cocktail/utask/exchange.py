"""Exchanges: many units write small arrays block by block, and all units read the whole arrays.

Every unit sends the blocks that it wrote, one tagged word (value, number of the step) per element, and
receives all blocks into its own memory. This one hop replaces a barrier and the reads after it. Two buffers
of words take turns, for all exchanges of a program together: step s uses buffer s mod 2. A unit that sends in
step s + 1 overwrites the words of step s - 1. It has received all of step s by then, so every unit that sent
in step s had received all of step s - 1. Hence *every* unit has to send in every step: a unit that wrote no
block sends a word that says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import cast

from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.operators import BARRIERS
from jax_cocktail.utask.types import Shape

WORD_BYTES = 4  # of an element that can travel with a tag
WORDS = frozenset({"float32", "int32", "uint32"})


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of an array that units have written: unit (first + p) mod n of n units wrote part p of
    `parts`, `size` positions of `axis`. Positions beyond the last part belong to no unit and are not sent."""

    axis: int
    size: int
    parts: int
    first: int

    def rows(self, shape: Shape) -> tuple[int, int, int]:
        """(rows of the array, elements of a part in each row, elements of a row)."""
        inner = prod(shape[self.axis + 1 :])
        return prod(shape[: self.axis]), self.size * inner, shape[self.axis] * inner

    def words(self, shape: Shape) -> int:
        """Elements of all parts."""
        rows, run, _ = self.rows(shape)
        return rows * run * self.parts


def blocks_of(exchange: UOperator) -> tuple[Blocks, ...]:
    """The blocks of every operand."""
    found = cast(tuple[tuple[int, int, int, int], ...], exchange["blocks"])
    return tuple(Blocks(*numbers) for numbers in found)


def widest(exchange: UOperator) -> Blocks:
    """The blocks of the operand that most units have written: the others send a word instead."""
    return max(blocks_of(exchange), key=lambda blocks: blocks.parts)


def value_words(exchange: UOperator) -> int:
    pairs = zip(exchange.inputs, blocks_of(exchange), strict=True)
    return sum(blocks.words(value.type.shape) for value, blocks in pairs)


def words_of(exchange: UOperator, units: int) -> int:
    """The words that cross in one step between so many units."""
    return value_words(exchange) + max(units - widest(exchange).parts, 0)


def tagged_words(operators: Iterable[UOperator], units: int) -> int:
    """The words of the largest exchange among `operators`; 0 if there is none."""
    return max((words_of(o, units) for o in operators if o.kind == "exchange"), default=0)


def anything_crosses(operators: Iterable[UOperator]) -> bool:
    """True if units meet or exchange words, by any of these operators."""
    return any(o.kind in BARRIERS for o in operators)
