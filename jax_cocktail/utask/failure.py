"""Programs that can fail: what the code of an error means.

A program may hold several `fail` operators, each with a text of one line for every status but 0. The lines of
all different texts, one after the other, are numbered from 1: those are the codes that the program leaves.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from jax_cocktail.utask.ir import UOperator

KIND = "fail"
FINE = 0  # the status of what did not fail


def text_of(operator: UOperator) -> str:
    return operator.text("text")


def line_of(text: str, status: int) -> str:
    """What a status says."""
    lines = text.split("\n")
    return lines[status - 1] if 0 < status <= len(lines) else f"the program failed with status {status}"


def lines_of(operators: Iterable[UOperator]) -> tuple[str, ...]:
    """What the codes 1, 2, ... mean."""
    return tuple(line for text in _texts(operators) for line in text.split("\n"))


def first_codes(operators: Iterable[UOperator]) -> dict[str, int]:
    """For every text, the number that its statuses are added to."""
    texts = _texts(operators)
    counts = (len(text.split("\n")) for text in texts)
    return dict(zip(texts, accumulate(counts, initial=0), strict=False))


def _texts(operators: Iterable[UOperator]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text_of(o) for o in operators if o.kind == KIND))
