"""Paths that compute the same: one body serves the groups of all of them.

A function that sums over many optional children has a path for every subset of them. Paths with equally many
children often differ only in the places where they add zeros. Value numbering finds this: equal operations on
equal values have one number, and so have a sum and the same sum plus zeros.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from jax_cocktail.recursion.blocks import MOVE, Accumulate, Keep, Step
from jax_cocktail.recursion.paths import LevelPlan, Path
from jax_cocktail.recursion.structure import Atom, Binder, Const, Op, Var

_ZEROS = "zeros"  # the number of all arrays of zeros without a sign
_SUMS = frozenset({"add", "add_any"})


def merged(levels: LevelPlan, zeros: Collection[int]) -> LevelPlan:
    """The levels with one body for all paths that compute the same. `zeros`: the operands of the environment
    that are arrays of zeros without a sign."""
    if levels.has_guards:
        return levels
    numbering = _Numbering(levels, zeros)
    kinds: dict[Hashable, int] = {}
    return replace(levels, kinds=tuple(kinds.setdefault(numbering.of(p), len(kinds)) for p in levels.paths))


class _Numbering:
    """Numbers the values of all paths. Two values have equal numbers only if they are equal."""

    def __init__(self, levels: LevelPlan, zeros: Collection[int]) -> None:
        self.levels = levels
        self.outside: dict[Var, Hashable] = {v: _ZEROS for v, k in levels.plan.shared.items() if k in zeros}
        self.numbers: dict[Hashable, int] = {}
        self.unsigned: set[Hashable] = {_ZEROS}  # no element is minus zero

    def of(self, path: Path) -> Hashable:
        """The number of all that a group of calls computes: arguments of calls, results, terms of sums."""
        values = dict(self.outside)
        for k, (_, outputs) in enumerate(path.calls):
            values |= {v: ("result", k, n) for n, v in enumerate(outputs)}

        def read(atom: Atom) -> Hashable:
            return values.get(atom, atom) if isinstance(atom, Var) else _of_literal(atom)

        effects = []
        for step in path.steps:
            inputs = tuple(map(read, step.inputs))
            if isinstance(step, Op):
                values |= {v: self._of_output(step, inputs, k) for k, v in enumerate(step.outputs)}
            else:
                effects.append((*_name(step), inputs))
        passed = []
        for invoke, _ in path.calls:
            given = invoke.call.inputs[1 + self.levels.plan.task.numbers :]
            moving = self.levels.floats.positions[invoke.call.function]
            passed.append((invoke.call.function, *(read(given[k]) for k in moving)))
        return path.function, tuple(passed), tuple(map(read, path.results)), tuple(effects)

    def _of_output(self, step: Op, inputs: tuple[Hashable, ...], output: int) -> Hashable:
        if step.name == MOVE:
            return inputs[output]
        if step.is_zero and inputs[0] == _ZEROS:
            return _ZEROS
        is_sum = step.name in _SUMS
        for one, other in (inputs, inputs[::-1]) if is_sum else ():
            if one == _ZEROS and other in self.unsigned:
                return other
        equation = step.run.key if isinstance(step.run, Binder) else id(step.run)
        number = self.numbers.setdefault((equation, inputs, output), len(self.numbers))
        if is_sum and not self.unsigned.isdisjoint(inputs):  # only minus zero plus minus zero is minus zero
            self.unsigned.add(number)
        return number


def _name(step: Step) -> tuple[Any, ...]:
    if isinstance(step, Accumulate):
        return Accumulate, step.target
    return (Keep, step.site) if isinstance(step, Keep) else (id(step),)


def _of_literal(atom: Const) -> Hashable:
    if atom.aval.shape or isinstance(atom.value, jax.core.Tracer) or atom.aval.dtype.kind not in "fiub":
        return "value", id(atom.value)
    value = np.asarray(atom.value)
    if value.dtype.kind != "b" and not value and not np.signbit(value):
        return _ZEROS
    return "literal", str(atom.aval.dtype), str(value.dtype), value.tobytes()
