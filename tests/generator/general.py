"""Checks programs that serve any size of an axis: planned for one that stands for all, run with others.

They run on the host, and on the emulation of a GPU.
"""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

from jax_cocktail.analysis.lengths import axes_tied_to
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.compiler import Emitted, build, emit
from jax_cocktail.errors import UnsupportedError
from jax_cocktail.placement.limits import Limits
from jax_cocktail.schedule import general
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail.utask.forms import Forms
from jax_cocktail.utask.ir import operators_in
from jax_cocktail.utask.numbers import numbers_of
from tests.cpu.emulated import KERNELS, SPEC, Emulation
from tests.cpu.runner import EAGER, run_artifact
from tests.generator.draw import Draw
from tests.generator.passes import Task, difference, variants
from tests.oracle.forms import read
from tests.oracle.interpreter.run import run as interpret

NOT_GENERAL = "not general"
_EXACT = replace(SPEC, matrix_float32="none")  # products without rounded factors
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
    given = *emitted.sizes, emitted.in_call(emitted.plan.workspace_bytes)
    if (told := _told_by_forms(emitted, task)) != given:
        return f"forms say that the call gives {told}"
    found = run_artifact(build(emitted), task.program, task.arguments)
    return difference(task, found, interpret(task.program, task.arguments))


def check_on_gpu(task: Task) -> str:
    """What goes wrong with such a program for a GPU, or ""."""
    axis, draw = _axis(task), Draw(task.seed, 7)
    emulation = Emulation(spec=_EXACT, seed=task.seed, threads=draw.of((64, 32)), kernel=draw.of(KERNELS))
    machine, candidate = machine_of(_EXACT, emulation.threads), Candidate(draw.of((1, 3)))
    ranges = draw.of((((2, ((37, 41),)),), ((2, ((701, 797), (67, 79))),), general.GPU_RANGES))
    if axis is None:
        return NOT_GENERAL
    eager = mock.patch("jax_cocktail.passes.limits_for", _eager)
    with mock.patch.object(general, "GPU_RANGES", ranges), eager:
        try:
            emitted = emit(task.program, machine, candidate=candidate, varying=axis)
        except UnsupportedError:  # a factor without a template
            return NOT_GENERAL
    if not emitted.given:
        return NOT_GENERAL
    found = emulation.launch(emulation.build(emitted), [*task.arguments])
    return difference(task, found, interpret(task.program, task.arguments))


def _eager(*_: object) -> Limits:
    return EAGER


def _told_by_forms(emitted: Emitted, task: Task) -> tuple[int, ...]:
    """The launch parameters and the bytes of scratch memory, as a module for any size computes them."""
    shapes = [value.type.shape for value in task.program.entry.parameters]
    axes = [(k, d) for k, shape in enumerate(shapes) for d in range(len(shape))]
    given = emitted.given.items()
    forms = Forms({each: next((k, d) for k, d in axes if shapes[k][d] == n) for each, n in given})
    told = [*map(forms.parameter, emitted.parameters), forms.number(emitted.plan.workspace_bytes)]
    for decision in emitted.decisions:
        forms.guard(decision)
    values, suits = read(forms.encoded, shapes)
    assert suits, "the program was taken for these sizes"
    return tuple(values[-2 - n] if n <= -2 else n for n in told)


def _axis(task: Task) -> frozenset[int] | None:
    """The positions of the numbers that are the lengths of an operand's axis, and of those tied to it."""
    operands, draw = task.program.entry.parameters, Draw(task.seed, 5)
    axes = [(value, d) for value in operands for d, n in enumerate(value.type.shape) if n > 1]
    if not axes:
        return None
    tied = axes_tied_to(task.program, draw.of(axes))
    return frozenset(k for k, (where, _) in enumerate(numbers_of(task.program)) if where in tied)
