"""Straight code of one thread: its longest chain of dependent operations, and how many operations it has.

A thread that runs a batch element has hundreds of operations on registers, most of which do not depend on
each other. Each begins as soon as its operands are there, so the longest chain is the latency. The scheduler
of a warp issues one after the other, so their number is the throughput.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jax_cocktail.cost.latency import Counts
from jax_cocktail.utask.ir import StitchedUTask, UOperator, operators_of
from jax_cocktail.utask.types import Value

_FAR = 80.0  # operations that take as long as a load from the second-level cache
_NEAR = 10.0  # the same for the first-level cache


def straight(
    statements: Iterable[UOperator | StitchedUTask], counts_of: Callable[[UOperator], Counts]
) -> tuple[Counts, float]:
    """The links of the longest chain (see `cost.latency`), and the number of all operations."""
    chains: dict[Value, tuple[float, Counts]] = {}
    longest, operations = (0.0, Counts()), 0.0
    for statement in statements:
        for operator in operators_of(statement):
            own = counts_of(operator)
            made = (chains[v] for v in operator.inputs if v in chains)
            weight, links = max(made, key=_weight, default=(0.0, Counts()))
            loads = _FAR * own["far_load"] + _NEAR * own["near_load"]
            chain = weight + own["scalar"] + loads, links + own
            chains.update(dict.fromkeys(operator.outputs, chain))
            longest = max(longest, chain, key=_weight)
            operations += own["scalar"]
    return longest[1], operations


def _weight(chain: tuple[float, Counts]) -> float:
    return chain[0]
