"""What lowering must know of its surroundings, per thread: arguments, who is asking, where reports go."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from jax_cocktail.config import Options, from_token
from jax_cocktail.report import Report

_PREFIX = "jax_cocktail__"
_SEPARATOR = "__"


@dataclass(frozen=True, slots=True)
class Mark:
    """What the name of a marked inner `jit` says."""

    function: str
    options: Options


def marked_name(options: Options, function: str) -> str:
    """The name of the inner `jit`: every JAX transformation hands it on."""
    return f"{_PREFIX}{options.token}{_SEPARATOR}{function}"


def read_mark(name: Any) -> Mark | None:
    """The mark in the name of a `jit` equation, or None if it is not ours."""
    if not isinstance(name, str) or not name.startswith(_PREFIX):
        return None
    token, separator, function = name[len(_PREFIX) :].partition(_SEPARATOR)
    options = from_token(token)
    return Mark(function, options) if separator and options is not None else None


class _State(threading.local):
    """Per thread.

    arguments: (wrapper, positional, keyword) of the innermost call of a wrapper, or None.
    stock: marked calls with force="auto" go to stock: what surrounds them was found to be better there.
    reports: where reports are appended while somebody explains, or None.
    """

    arguments: tuple[Any, tuple[Any, ...], dict[str, Any]] | None = None
    stock: bool = False
    reports: list[Report] | None = None


STATE = _State()


@contextmanager
def marked_calls_on_stock(stock: bool) -> Iterator[None]:
    """Sets `STATE.stock` in the block."""
    outer = STATE.stock
    STATE.stock = stock
    try:
        yield
    finally:
        STATE.stock = outer


@contextmanager
def alone() -> Iterator[None]:
    """Runs JAX inside a lowering: without the arguments and the report of the call being lowered, and with
    what it calls on stock."""
    outer = STATE.arguments, STATE.reports
    STATE.arguments, STATE.reports = None, None
    try:
        with marked_calls_on_stock(True):
            yield
    finally:
        STATE.arguments, STATE.reports = outer


@contextmanager
def collecting() -> Iterator[list[Report]]:
    """Collects a report of every marked call that is lowered in the block."""
    outer = STATE.reports
    found: list[Report] = []
    STATE.reports = found
    try:
        yield found
    finally:
        STATE.reports = outer
