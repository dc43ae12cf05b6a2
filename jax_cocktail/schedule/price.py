"""What a program costs before anything is built: work that decides against our own code at once.

Convolutions are the case: XLA's library spreads them over all cores and blocks them for every cache, and a
program that is mostly convolution is not worth a build and a measurement. (COCKTAILER, too, keeps library
kernels for heavy operators, OSDI'23, section 4.)
"""

from __future__ import annotations

from math import prod
from typing import cast

from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, Statement, UOperator, UProgram

HEAVY_CONVOLUTION_FLOPS = 1e8  # per call: about a millisecond of a core


def convolution_flops(program: UProgram) -> float:
    """Floating-point operations in convolutions of one call: the dearer side of every branch, every trip of
    a counted loop, one trip of any other."""
    return _region(program.entry)


def _region(region: Region) -> float:
    return sum(map(_statement, region.body))


def _statement(statement: Statement) -> float:
    if isinstance(statement, LoopUTask):
        return (statement.trip_count if statement.trip_count is not None else 1) * _region(statement.body)
    if isinstance(statement, BranchUTask):
        return max(map(_region, statement.branches))
    if isinstance(statement, UOperator) and statement.kind == "conv":
        kernel = statement.inputs[1].type.shape
        features = cast(tuple[int, ...], statement["rhs_spec"])[0]
        return 2.0 * statement.output.type.size * (prod(kernel) // max(kernel[features], 1))
    return 0.0
