"""Stages: lane loops that become functions of their own, so that big programs compile in linear time.

Host and device compilers slow down more than linearly in the length of a function. Past a certain size every
lane loop is a function; equal ones (the same layer ten times) are one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from jax_cocktail.utask.ir import Statement, StitchedUTask, UOperator, UProgram, walk

STAGED = frozenset({"dot", "conv"})  # anchors whose templates take a compiler long
_NAME = re.compile(r"\b([wprdvoq]\d+(?:_\w+)?)\b")


def wants_stages(program: UProgram, limit: int) -> bool:
    """True if it has more than `limit` lane loops."""
    loops = (s for s in walk(program.entry) if isinstance(s, StitchedUTask))
    return sum(is_stage(s) for s in loops) > limit


def is_stage(statement: Statement) -> bool:
    """True for a group, product or convolution that writes memory only: registers stay in the function that
    holds them."""
    if isinstance(statement, UOperator) and statement.kind not in STAGED:
        return False
    return bool(statement.outputs) and not any(v.type.is_scalar for v in statement.outputs)


class StageTable:
    """The functions made so far, by their text."""

    def __init__(self) -> None:
        self._functions: dict[str, str] = {}
        self._parts: list[str] = []

    def call(self, lines: Sequence[str], type_of: Callable[[str], str]) -> str:
        """Makes a function of these lines, unless there is one, and returns the call."""
        text = "\n".join(lines)
        names = list(dict.fromkeys(_NAME.findall(text)))
        numbers = {name: f"x{position}" for position, name in enumerate(names)}
        body = _NAME.sub(lambda match: numbers[match[1]], text)
        parameters = ", ".join(f"{type_of(name)} {numbers[name]}" for name in names)
        key = f"({parameters}) {{\n{body}\n}}"
        function = self._functions.setdefault(key, f"stage{len(self._functions)}")
        return f"{function}({', '.join(names)});"

    def part(self, head: str, body: Sequence[str], parameters: Sequence[tuple[str, str]]) -> str:
        """Makes a function for the parts of a parallel loop, named as returned. `parameters`: type, name."""
        name = f"part{len(self._parts)}"
        listed = "".join(f", {type_} {parameter}" for type_, parameter in parameters)
        self._parts.append("\n".join([head.format(name=name, parameters=listed), *body, "}"]))
        return name

    def lines(self) -> list[str]:
        stages = [f"CK_NOINLINE void {name}{text}" for text, name in self._functions.items()]
        return [*stages, *self._parts]
