"""A bounded loop as values: the body and the condition as jaxprs, and how JAX's own loop runs them.

A loop has heads, which its condition reads, constants, carries, and rows: arrays with one row a trip, which
the body reads or makes. A loop without a condition has one head, the number of its trips, and may run through
the rows from the last one to the first. All derivatives of a loop are loops again (`bounded.derive`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.extend.core as jex
import jax.numpy as jnp
from jax import lax

from jax_cocktail.recursion.memory import put, row, uninitialised
from jax_cocktail.recursion.task import NUMBER, Aval, split

Key = tuple[str, str, int]  # whose value ("" itself, "d" tangent, "c" cotangent), its sort, its place


@dataclass(frozen=True, eq=False, slots=True)
class Origin:
    """The loop that a tangent belongs to. `taped`: the carries of all trips are among the operands."""

    base: Loop
    active: Any
    operands: tuple[Key, ...]
    results: tuple[Key, ...]
    taped: bool


@dataclass(frozen=True, eq=False, slots=True)
class Loop:
    """One loop.

    `body`: (*constants, *carries, *rows of the trip) -> (*carries, *rows made); `condition`: (*heads,
    *carries) -> bool, or None; `most`: the trips after which the loop stops in any case; `unread`: the number
    of arrays of rows, the last ones that the loop makes, of which nobody reads the rows of trips that did not
    take place; `checkpoints`: the number of trips whose carries are kept for the gradient, 0 for all of them,
    or None to let the size of the tape decide.
    """

    name: str
    most: int
    condition: Any
    body: Any
    heads: tuple[Aval, ...]
    constants: tuple[Aval, ...]
    carried: tuple[Aval, ...]
    rows: tuple[Aval, ...] = ()
    row_results: tuple[Aval, ...] = ()
    reverse: bool = False
    unread: int = 0
    checkpoints: int | None = 0
    origin: Origin | None = None
    known: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def operands(self) -> tuple[Aval, ...]:
        """The operands of the primitive."""
        return (*self.heads, *self.constants, *self.carried, *map(self._stacked, self.rows))

    @property
    def results(self) -> tuple[Aval, ...]:
        """The results of the primitive: the number of trips, the last carries, the rows made."""
        return (NUMBER, *self.carried, *map(self._stacked, self.row_results))

    @property
    def operand_keys(self) -> tuple[Key, ...]:
        names = "head", "constant", "carry", "row"
        sorts = zip(names, (self.heads, self.constants, self.carried, self.rows), strict=True)
        return tuple(("", name, k) for name, avals in sorts for k in range(len(avals)))

    @property
    def result_keys(self) -> tuple[Key, ...]:
        sorts = ("trips", (NUMBER,)), ("out", self.carried), ("made", self.row_results)
        return tuple(("", name, k) for name, avals in sorts for k in range(len(avals)))

    def _stacked(self, aval: Aval) -> Aval:
        return Aval((self.most, *aval.shape), aval.dtype)

    def split(self, operands: Sequence[Any]) -> tuple[list[Any], ...]:
        """Heads, constants, carries, rows."""
        return split(operands, len(self.heads), len(self.constants), len(self.carried))


def run(loop: Loop, operands: Sequence[Any]) -> list[Any]:
    """Runs a loop as JAX's `while_loop`."""
    heads, constants, carried, rows = loop.split(operands)
    body = jex.jaxpr_as_fun(loop.body)
    kept = len(loop.row_results) - loop.unread
    made = [
        (jnp.zeros if k < kept else uninitialised)((loop.most, *aval.shape), aval.dtype)
        for k, aval in enumerate(loop.row_results)
    ]

    def goes_on(state: Any) -> Any:
        trip, values, _ = state
        if loop.condition is None:
            return trip < heads[0]
        return (trip < loop.most) & jex.jaxpr_as_fun(loop.condition)(*heads, *values)[0]

    def step(state: Any) -> Any:
        trip, values, made = state
        at = heads[0] - 1 - trip if loop.reverse else trip
        found = body(*constants, *values, *(row(x, at) for x in rows))
        values, new = found[: len(values)], found[len(values) :]
        return trip + 1, values, [put(x, at, y) for x, y in zip(made, new, strict=True)]

    trips, last, made = lax.while_loop(goes_on, step, (jnp.int32(0), carried, made))
    return [trips, *last, *made]
