"""Checks programs that serve any size of an axis: planned for one that stands for all, run with others."""

from __future__ import annotations

from unittest import mock

from jax_cocktail.analysis.lengths import axes_tied_to
from jax_cocktail.compiler import build, emit
from jax_cocktail.schedule import general
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail.utask.ir import operators_in
from jax_cocktail.utask.numbers import numbers_of
from tests.cpu.runner import run_artifact
from tests.generator.draw import Draw
from tests.generator.passes import Task, difference, variants
from tests.oracle.interpreter.run import run as interpret

NOT_GENERAL = "not general"
_LARGE = ((2, general.RANGES[0][1]),)  # the numbers that stand for large ones, for all


def check(task: Task) -> str:
    """What goes wrong with a program of which one axis is general, or ""."""
    axis, calls = _axis(task), any(o.facts.largest == 0 for o in operators_in(task.program.entry))
    if axis is None or calls:  # of LAPACK, which only jax can find
        return NOT_GENERAL
    draw, way = Draw(task.seed, 6), variants(task.seed)[0]
    ranges = _LARGE if draw.chance(0.5) else general.RANGES
    with way.installed(), mock.patch.object(general, "RANGES", ranges):
        emitted = emit(task.program, candidate=Candidate(), varying=axis)
    if not emitted.given:
        return NOT_GENERAL
    found = run_artifact(build(emitted), task.program, task.arguments)
    return difference(task, found, interpret(task.program, task.arguments))


def _axis(task: Task) -> frozenset[int] | None:
    """The positions of the numbers that are the lengths of an operand's axis, and of those tied to it."""
    operands, draw = task.program.entry.parameters, Draw(task.seed, 5)
    axes = [(value, d) for value in operands for d, n in enumerate(value.type.shape) if n > 1]
    if not axes:
        return None
    tied = axes_tied_to(task.program, draw.of(axes))
    return frozenset(k for k, (where, _) in enumerate(numbers_of(task.program)) if where in tied)
