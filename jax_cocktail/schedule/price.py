"""What a program costs, from its operators alone: a coarse model for where nothing is measured.

Two sums are compared. Gain: what stock XLA spends per executed operator and branch on dispatch, which one
compiled call does not. Loss: what a library that uses every core does faster than our one core, which counts
for products of several rows and for convolutions. (COCKTAILER, too, keeps library kernels for heavy
operators, OSDI'23, section 4.) Rates are round figures of a server core; a measurement always wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import cast

from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, Statement, UOperator, UProgram

DISPATCH_SECONDS = 50e-9  # of one operator in stock XLA's runtime
OUR_RATE = 200e9  # flops per second of one core in our templates
LIBRARY_RATE = 125e9  # the same of stock's library, per core
FEWEST_ROWS = 8  # from here on stock spreads a product over cores; below, memory is the limit for both
HOPELESS_SECONDS = 5e-4
HOPELESS_RATIO = 4.0
UNKNOWN_TRIPS = 16  # of a loop whose trip count only the run tells


@dataclass(frozen=True, slots=True)
class Price:
    """Seconds per call. `gain`: of control flow and small operators in one call; `loss`: of heavy operators
    against a library; `least_loss`: of convolutions only, with the cheaper side of every branch."""

    gain: float = 0.0
    loss: float = 0.0
    least_loss: float = 0.0

    def __add__(self, other: Price) -> Price:
        return Price(self.gain + other.gain, self.loss + other.loss, self.least_loss + other.least_loss)

    def __mul__(self, factor: float) -> Price:
        return Price(self.gain * factor, self.loss * factor, self.least_loss * factor)

    def __str__(self) -> str:
        loss, gain = f"{self.loss * 1e3:.2g} ms", f"{self.gain * 1e3:.2g} ms"
        return f"heavy operators lose about {loss} against XLA's library, control flow gains {gain}"

    def favours_stock(self) -> bool:
        """What to assume where nothing can be measured."""
        return self.loss > self.gain

    def hopeless(self) -> bool:
        """True if building and measuring our code would be a waste, whichever branches are taken.

        Networks of heavy convolutions are: they take XLA seconds to compile, and measuring compiles twice.
        """
        return self.least_loss > HOPELESS_SECONDS and self.least_loss > HOPELESS_RATIO * self.gain


def price(program: UProgram, cores: int) -> Price:
    """The price of one call of a translated program against stock XLA on that many cores."""
    return _region(program.entry, cores)


def _region(region: Region, cores: int) -> Price:
    return sum((_statement(s, cores) for s in region.body), Price())


def _statement(statement: Statement, cores: int) -> Price:
    if isinstance(statement, LoopUTask):
        trips = statement.trip_count if statement.trip_count is not None else UNKNOWN_TRIPS
        once = sum((_region(r, cores) for r in statement.regions), Price(gain=DISPATCH_SECONDS))
        return once * trips
    if isinstance(statement, BranchUTask):
        sides = [_region(r, cores) for r in statement.branches]
        mean = sum(sides, Price()) * (1 / len(sides))
        return Price(mean.gain + DISPATCH_SECONDS, mean.loss, min(s.least_loss for s in sides))
    if not isinstance(statement, UOperator):
        return Price()
    seconds = _heavy_flops(statement) * max(1 / OUR_RATE - 1 / (LIBRARY_RATE * cores), 0.0)
    gain = 0.0 if statement.kind in ("constant", "empty", "reshape", "broadcast") else DISPATCH_SECONDS
    return Price(gain, seconds, seconds if statement.kind == "conv" else 0.0)


def _heavy_flops(operator: UOperator) -> float:
    if operator.kind == "conv":
        kernel = operator.inputs[1].type.shape
        features = cast(tuple[int, ...], operator["rhs_spec"])[0]
        return 2.0 * operator.output.type.size * (prod(kernel) // max(kernel[features], 1))
    if operator.kind != "dot":
        return 0.0
    lhs, rhs = operator.inputs
    contracted = prod(lhs.type.shape[d] for d in cast(tuple[int, ...], operator["lhs_contract"]))
    batch = prod(lhs.type.shape[d] for d in cast(tuple[int, ...], operator["lhs_batch"]))
    per_batch = max(contracted * batch, 1)
    rows = min(lhs.type.size, rhs.type.size) // per_batch
    return 2.0 * contracted * operator.output.type.size if rows >= FEWEST_ROWS else 0.0
