"""Converts jaxprs to `primitives.equation`. Only this and `primitives.jaxprs` distinguish releases of jax."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.extend.core as jex
import numpy as np
from jax.extend import source_info_util

from jax_cocktail.errors import UnsupportedError
from jax_cocktail.lowering.state import read_mark
from jax_cocktail.primitives import CONTROL_FLOW
from jax_cocktail.primitives.equation import Atom, Equation, Literal, Program, Variable
from jax_cocktail.primitives.jaxprs import (
    call_body,
    equations_in,
    equations_inside,
    interpret,
    open_jaxpr,
    scan_counts,
)
from jax_cocktail.recursion.primitive import RECURSION, expanded_jaxpr
from jax_cocktail.utask.types import NOWHERE, Source

T = TypeVar("T")
REMATERIALISED = frozenset({"checkpoint", "remat", "remat2"})
CALLS = REMATERIALISED | {
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vmap_call",
    "eval_jaxpr",
}
_LINEAR_SOLVE = "custom_linear_solve"  # a call of its solver; the rest of it serves derivatives
_FRAME = re.compile(r"^(?P<file>.*?):(?P<line>\d+)(:\d+)*( \((?P<function>.*)\))?$", re.DOTALL)
_KEY = re.compile(r"^key<(?P<impl>.*)>$")


def primitive_name(equation: Any) -> str:
    """The name of the equation's primitive."""
    return str(equation.primitive.name)


def body_of_call(equation: Any) -> Any | None:
    """The jaxpr that replaces a call equation; None if the equation is not a call that we inline."""
    if primitive_name(equation) == RECURSION:
        return expanded_jaxpr(**equation.params)
    if primitive_name(equation) == _LINEAR_SOLVE:
        return equation.params["jaxprs"].solve
    if primitive_name(equation) not in CALLS or forced_to_stock(equation):
        return None
    return call_body(equation.params)


def operands_of_call(equation: Any, operands: Sequence[T]) -> Sequence[T]:
    """The operands of a call that its body takes, in order."""
    if primitive_name(equation) != _LINEAR_SOLVE:
        return operands
    lengths = equation.params["const_lengths"]  # what each function closes over: these operands come first
    first = lengths.matvec + lengths.vecmat
    return [*operands[first : first + lengths.solve], *operands[sum(lengths) :]]


def forced_to_stock(equation: Any) -> bool:
    """True if the equation is an inner `jax_cocktail.jit` with the option force="stock"."""
    mark = read_mark(equation.params.get("name"))
    return mark is not None and mark.options.force == "stock"


def control_flow_in(jaxpr: Any) -> bool:
    """True if a jaxpr contains a loop, a branch or a recursion, at any depth."""
    return any(map(_is_control_flow, equations_in(jaxpr)))


def computes_floats(jaxpr: Any) -> bool:
    """True if a jaxpr has a floating-point value that is not an input, at any depth."""
    made = (var.aval for equation in equations_in(jaxpr) for var in equation.outvars)
    return any(np.issubdtype(getattr(aval, "dtype", np.bool_), np.inexact) for aval in made)


def holds_control_flow(equation: Any) -> bool:
    """True if an equation is or contains a loop, a branch or a recursion."""
    return _is_control_flow(equation) or any(map(_is_control_flow, equations_inside(equation)))


def _is_control_flow(equation: Any) -> bool:
    return primitive_name(equation) in CONTROL_FLOW or primitive_name(equation) == RECURSION


def source_of(equation: Any) -> Source:
    """The user's source line of an equation; for a recursion, that of its function."""
    if primitive_name(equation) == RECURSION:
        text = equation.params["task"].entry.source
    else:
        text = str(source_info_util.summarize(equation.source_info))
    match = _FRAME.match(text)
    if match is None:
        return NOWHERE
    return Source(match["file"], int(match["line"]), match["function"] or "")


def is_key(aval: Any) -> bool:
    """True if values of this type are typed PRNG keys."""
    return bool(jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key))


def variable(aval: Any, source: Source = NOWHERE) -> Variable:
    """A fresh variable with the type of `aval`. Raises UnsupportedError for types without a fixed shape."""
    if not hasattr(aval, "shape") or not hasattr(aval, "dtype"):
        raise UnsupportedError(f"values of type {aval} are not supported", str(source))
    shape = []
    for size in aval.shape:
        if not isinstance(size, int | np.integer):
            raise UnsupportedError(
                f"the symbolic size {size} of a shape-polymorphic export is not supported", str(source)
            )
        shape.append(int(size))
    match = _KEY.match(str(aval.dtype))
    return Variable(str(aval.dtype), tuple(shape), match["impl"] if match else "")


def literal(value: Any, aval: Any) -> Literal:
    """A constant embedded in the program. Raises UnsupportedError for PRNG keys."""
    if is_key(aval):
        raise UnsupportedError("a PRNG key is a constant inside a loop or branch; pass it in as an argument")
    return Literal(np.asarray(value, dtype=aval.dtype))


class Adapter:
    """Converts the equations of a flat jaxpr and maps each JAX variable to its own variable."""

    def __init__(self) -> None:
        self._atoms: dict[Any, Atom] = {}

    def bind(self, var: Any, atom: Atom) -> None:
        """Maps `var` to `atom`."""
        self._atoms[var] = atom

    def read(self, atom: Any) -> Atom:
        if isinstance(atom, jex.Literal):
            return literal(atom.val, atom.aval)
        if atom not in self._atoms:
            self._atoms[atom] = variable(atom.aval)
        return self._atoms[atom]

    def equation(self, equation: Any) -> Equation:
        """Converts one equation that is not a call. Raises UnsupportedError for unsupported types."""
        converted = _converted(equation, map(self.read, equation.invars))
        self._atoms.update(zip(equation.outvars, converted.outputs, strict=True))
        return converted


def program(closed: Any) -> Program:
    """Converts a closed jaxpr, inlines all calls and turns its constants into literals."""
    inputs = tuple(variable(var.aval) for var in open_jaxpr(closed).invars)
    equations: list[Equation] = []

    def constant(atom: Any, value: Any) -> Atom:
        return literal(value, atom.aval)

    def apply(equation: Any, operands: Sequence[Atom]) -> Sequence[Atom]:
        body = body_of_call(equation)
        if body is not None:
            return interpret(body, operands_of_call(equation, operands), constant, apply)
        equations.append(_converted(equation, operands))
        return equations[-1].outputs

    outputs: tuple[Atom, ...] = interpret(closed, inputs, constant, apply)
    return Program(inputs, tuple(equations), outputs)


def _converted(equation: Any, inputs: Iterable[Atom]) -> Equation:
    """An equation on these operands. Raises UnsupportedError for unsupported types."""
    source = source_of(equation)
    try:
        operands = tuple(inputs)  # which may be converted only now
        outputs = tuple(variable(var.aval, source) for var in equation.outvars)
        params = _params(equation)
    except UnsupportedError as error:
        raise UnsupportedError(error.reason, error.where or str(source)) from None
    return Equation(primitive_name(equation), operands, outputs, params, source, bool(equation.effects))


def _params(equation: Any) -> dict[str, Any]:
    """JAX's parameters, with control flow normalised as `primitives.equation` specifies."""
    params = equation.params
    name = primitive_name(equation)
    if name == "while":
        return {
            "cond_jaxpr": program(params["cond_jaxpr"]),
            "body_jaxpr": program(params["body_jaxpr"]),
            "cond_nconsts": int(params["cond_nconsts"]),
            "body_nconsts": int(params["body_nconsts"]),
        }
    if name == "cond":
        return {"branches": tuple(program(branch) for branch in params["branches"])}
    if name == "scan":
        num_consts, num_carry = scan_counts(params)
        return {
            "jaxpr": program(params["jaxpr"]),
            "num_consts": num_consts,
            "num_carry": num_carry,
            "length": int(params["length"]),
            "reverse": bool(params["reverse"]),
        }
    return dict(params)


def primitives_in(equations: Sequence[Equation]) -> Iterator[str]:
    """The primitive of each equation, those of nested programs included."""
    for equation in equations:
        yield equation.primitive
        for value in equation.params.values():
            for item in value if isinstance(value, tuple) else (value,):
                if isinstance(item, Program):
                    yield from primitives_in(item.equations)
