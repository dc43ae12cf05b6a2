"""Translates a Program into a uProgram, with a rule per equation and a region per nested program. Calls are
inlined before (`lowering.edge.adapter`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jax_cocktail.errors import UnsupportedError, VerificationError
from jax_cocktail.primitives.equation import Atom, Equation, Literal, Program, Variable
from jax_cocktail.primitives.rule import RULES, physical_type
from jax_cocktail.schedule.simplify.likely_trips import expect_trips
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import UProgram
from jax_cocktail.utask.types import Value


def translate(program: Program, name: str, donated: tuple[int, ...] = ()) -> UProgram:
    """The uProgram of `program`.

    Args:
      program: the equations to translate.
      name: the name of the uProgram.
      donated: the positions of inputs that the uProgram may overwrite.

    Raises:
      UnsupportedError: an equation has no rule, or its rule does not support it.
    """
    builder = Builder()
    parameters = [builder.value(t.dtype, t.shape) for t in map(physical_type, program.inputs)]
    results = inline(builder, program, parameters)
    return expect_trips(UProgram(name, builder.finish(parameters, results), donated))


def inline(builder: Builder, program: Program, arguments: Sequence[Value]) -> list[Value]:
    """Emits the equations of `program` into the current region and returns its outputs."""
    environment = dict(zip(program.inputs, arguments, strict=True))
    outer = builder.source
    for equation in program.equations:
        builder.source = equation.source
        inputs = tuple(_read(builder, environment, atom) for atom in _checked(equation))
        results = _apply(builder, equation, inputs)
        environment.update(zip(equation.outputs, results, strict=True))
    builder.source = outer
    return [_read(builder, environment, atom) for atom in program.outputs]


def why_unsupported(equation: Equation) -> UnsupportedError | None:
    """The reason why `equation` (nested programs included) cannot be translated; None if it can."""
    builder = Builder()
    builder.source = equation.source
    try:
        types = [physical_type(atom) for atom in _checked(equation)]
        _apply(builder, equation, tuple(builder.value(t.dtype, t.shape) for t in types))
    except UnsupportedError as error:
        return error
    return None


def _read(builder: Builder, environment: dict[Variable, Value], atom: Atom) -> Value:
    if isinstance(atom, Literal):
        return builder.constant(np.asarray(atom.value), physical_type(atom).dtype)
    return environment[atom]


def _checked(equation: Equation) -> tuple[Atom, ...]:
    """The operands, after a check that all types of the equation are supported."""
    try:
        for atom in (*equation.inputs, *equation.outputs):
            physical_type(atom)
    except UnsupportedError as error:
        raise UnsupportedError(f"{error.reason} ({equation.primitive})", str(equation.source)) from None
    return equation.inputs


def _apply(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Sequence[Value]:
    where = str(equation.source)
    rule = RULES.get(equation.primitive)
    if equation.effects:
        raise UnsupportedError(f"the operation {equation.primitive!r} has side effects", where)
    if rule is None:
        raise UnsupportedError(f"the operation {equation.primitive!r} is not supported", where)
    try:
        results = rule(builder, equation, inputs)
        results = (results,) if isinstance(results, Value) else results
    except UnsupportedError as error:
        if error.where or not where:
            raise
        raise UnsupportedError(error.reason, where) from None
    found = [value.type for value in results]
    wanted = [physical_type(atom) for atom in equation.outputs]
    if found != wanted:
        raise VerificationError(
            f"the rule of {equation.primitive!r} gave {[*map(str, found)]}, not {[*map(str, wanted)]}"
        )
    return results
