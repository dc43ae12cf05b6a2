"""Outlined functions: lane loops that become functions of their own, so that big programs compile in linear
time.

Host and device compilers take more than linear time in the length of a function. Past a certain size every
lane loop becomes a function; equal ones (the same layer ten times) become one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from jax_cocktail.codegen.kernel import (
    LEFT,
    Assign,
    Declaration,
    Expression,
    Line,
    Name,
    Node,
    declared_in,
    is_comment,
    names_in,
    printed,
    statements_in,
    text,
)
from jax_cocktail.codegen.parts import Function
from jax_cocktail.codegen.writer import code, joined
from jax_cocktail.device.target import Target
from jax_cocktail.utask.ir import Statement, StitchedUTask, UOperator
from jax_cocktail.utask.operators import PRODUCTS
from jax_cocktail.utask.plan import Slot


def is_outlined(statement: Statement) -> bool:
    """True for a group, product or convolution that writes memory only: registers stay in the function that
    holds them."""
    if isinstance(statement, UOperator) and statement.kind not in PRODUCTS:  # whose templates compile slowly
        return False
    return bool(statement.outputs) and not any(v.type.is_scalar for v in statement.outputs)


def product_in(statement: Statement) -> str:
    """The kind of the product or convolution in a statement, "" if there is none."""
    members = statement.members if isinstance(statement, StitchedUTask) else (statement,)
    kinds = (member.kind for member in members if isinstance(member, UOperator))
    return next((kind for kind in kinds if kind in PRODUCTS), "")


def gives_register(statement: Statement) -> bool:
    """True for a product or a reduction of arrays to one scalar: the threads work on it together, and its
    function returns it."""
    closer = statement.members[-1] if isinstance(statement, StitchedUTask) else statement
    if not isinstance(closer, UOperator) or closer.kind not in ("dot", "reduce"):
        return False
    alone = len(statement.outputs) == 1 and statement.outputs[0].type.is_scalar
    return alone and any(v.type.size > 1 for v in closer.inputs)


def touches(nodes: Sequence[Node], register: Name) -> bool:
    """True if statements read a register, not only set it."""
    sets = sum(isinstance(node, Assign) and node.name == register for node in statements_in(*nodes))
    return sets != names_in(*nodes).count(register)


@dataclass(frozen=True, slots=True)
class Outer:
    """The meaning of an outer name.

    Attributes:
      type: its C type.
      where: for a pointer, a line that says where it points, with `{name}`.
      address, slot: for a pointer to memory of the plan, where that is.
      fixed: that address is the same on every unit.
    """

    type: str
    where: str = ""
    address: Expression = ""
    slot: Slot | None = None
    fixed: bool = False


def body_of(nodes: Sequence[Node], about: Callable[[Name], Outer]) -> tuple[list[Line], dict[Name, Outer]]:
    """The lines of a function, and the outer names in them that are not declared there."""
    lines, declared = printed(nodes), declared_in(nodes)
    return lines, {name: about(name) for name in _outer(lines) if name not in declared}


def _outer(lines: Sequence[Line]) -> list[Name]:
    """The outer names in some lines, each once, in order of appearance."""
    names = (piece for line in lines for piece in line if isinstance(piece, Name) and piece.outer)
    return list(dict.fromkeys(names))


def declarations(names: Mapping[Name, Outer], zeroed: Collection[Name] = ()) -> list[Line]:
    """The declarations of pointers, then those of registers. `zeroed`: those that begin with 0."""
    found: list[Node] = []
    for name, about in sorted(names.items(), key=lambda item: not item[1].address):
        if about.address:
            value = code("({})({})", about.type, about.address)
            found.append(Declaration(f"{about.type} const", name, value, const=False))
        else:
            found.append(Declaration(about.type, name, "0" if name in zeroed else "", const=False))
    return printed(found)


_FAILED = Name("failed")  # the variable of a program that can fail


class OutlineTable:
    """The functions made so far, by their text."""

    def __init__(self, target: Target, can_fail: bool = False) -> None:
        self._target, self._can_fail = target, can_fail
        # head, result, parameters, body without comments -> name, body, template
        self._functions: dict[tuple[str, ...], tuple[str, str, str]] = {}

    @property
    def has_pieces(self) -> bool:
        """True if the program's function may be divided."""
        return bool(self._target.piece[0])

    @property
    def has_parts(self) -> bool:
        """True if units make themselves anew in functions of their own, which get no launch parameters."""
        return any(name.startswith(("part", "role")) for name, _, _ in self._functions.values())

    def call(
        self,
        nodes: Sequence[Node],
        about: Callable[[Name], Outer],
        result: Name | None,
        template: str = "",
    ) -> Node:
        """Calls a function of these statements, made unless an equal one exists. `result`: the register that
        they set and do not read; `template`: see `Compound`."""
        type_ = about(result).type if result else "void"
        if result:
            nodes = [Declaration(type_, result, const=False), *nodes, code("return {};", result)]
        lines, parameters = body_of(nodes, about)
        head, call = self._target.outline
        name = self._function("outlined", head, lines, parameters, type_, template)
        called = code(call, name=name, parameters=joined(", ", list(parameters)))
        return Assign(result, called) if result else code("{};", called)

    def part(
        self, lines: Sequence[Line], parameters: Mapping[Name, Outer], given: Mapping[Name, Expression]
    ) -> Node:
        """Outlines the lines of a parallel loop. `given`: parameters that have no name outside."""
        return self._of_units("part", self._target.part, lines, parameters, given)

    def role(
        self, lines: Sequence[Line], parameters: Mapping[Name, Outer], given: Mapping[Name, Expression]
    ) -> Node:
        """Outlines the lines of a role's loop, which says how many barriers there were."""
        lines = [*lines, *printed([code("return unit->epoch;")])]
        return self._of_units("role", self._target.role, lines, parameters, given, "u32")

    def piece(
        self,
        lines: Sequence[Line],
        parameters: Mapping[Name, Outer],
        given: Mapping[Name, Expression],
        leaves: bool,
        template: str,
    ) -> Node:
        """Outlines a piece of the program's function. `leaves`: the unit may leave the program in these
        lines, and the function says whether it does."""
        head, call = self._target.piece
        if self._can_fail:
            parameters, given = {_FAILED: Outer("int&"), **parameters}, {_FAILED: _FAILED.text, **given}
        name = self._function("piece", head, lines, parameters, "bool" if leaves else "void", template)
        arguments = [code(", {}", given.get(each, each)) for each in parameters]
        called = code(call, name=name, parameters=joined("", arguments))
        return code("if ({}) return {};", called, LEFT) if leaves else code("{};", called)

    def _of_units(
        self,
        kind: str,
        spelling: tuple[str, str],
        lines: Sequence[Line],
        parameters: Mapping[Name, Outer],
        given: Mapping[Name, Expression],
        result: str = "void",
    ) -> Node:
        head, call = spelling
        name = self._function(kind, head, lines, parameters, result)
        arguments = [code(", {}", given.get(each, each)) for each in parameters]
        return code(call + ";", name=name, parameters=joined("", arguments))

    def _function(
        self,
        kind: str,
        head: str,
        lines: Sequence[Line],
        parameters: Mapping[Name, Outer],
        result: str = "void",
        template: str = "",
    ) -> str:
        """Numbers names in order of appearance: statements that differ only in names share a function."""
        where = [code(each.where, name=name) for name, each in parameters.items() if each.where]
        lines = [*printed(where), *lines]
        numbers = {name: f"x{number}" for number, name in enumerate(_outer(lines))} | {LEFT: "true"}
        listed = [f"{each.type} {numbers.get(name, name.text)}" for name, each in parameters.items()]
        before = ", ".join(listed) if kind == "outlined" else "".join(f", {each}" for each in listed)
        key = head, result, before, text([line for line in lines if not is_comment(line)], numbers)
        new = f"{kind}{len(self._functions)}", text(lines, numbers), template
        return self._functions.setdefault(key, new)[0]

    def functions(self) -> list[Function]:
        """All functions, callees first."""
        return [
            Function(head.format(name=name, result=result, parameters=parameters), body, template)
            for (head, result, parameters, _), (name, body, template) in self._functions.items()
        ]
