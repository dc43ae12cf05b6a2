"""Programs that can fail: the meaning of error codes.

A program may hold several `fail` operators, each with a text of one line for every status but 0. The lines of
all different texts, one after the other, are numbered from 1: these numbers are the program's error codes.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from jax_cocktail.utask.ir import UOperator

KIND = "fail"
FINE = 0  # the status without a failure


def text_of(operator: UOperator) -> str:
    return operator.text("text")


def line_of(text: str, status: int) -> str:
    """The message of a status."""
    lines = text.split("\n")
    return lines[status - 1] if 0 < status <= len(lines) else f"the program failed with status {status}"


def lines_of(operators: Iterable[UOperator]) -> tuple[str, ...]:
    """The messages of the codes 1, 2, ..."""
    return tuple(line for text in _texts(operators) for line in text.split("\n"))


def first_codes(operators: Iterable[UOperator]) -> dict[str, int]:
    """For every text, the number to add to its statuses."""
    texts = _texts(operators)
    counts = (len(text.split("\n")) for text in texts)
    return dict(zip(texts, accumulate(counts, initial=0), strict=False))


def _texts(operators: Iterable[UOperator]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text_of(o) for o in operators if o.kind == KIND))
