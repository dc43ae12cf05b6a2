"""Converts jaxprs to `primitives.equation`. Only this and `primitives.jaxprs` distinguish releases of jax."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, TypeVar

import jax
import jax.extend.core as jex
import numpy as np
from jax.extend import source_info_util
from jax.extend.core import primitives
from jax.interpreters import mlir
from jax.sharding import AbstractMesh

from jax_cocktail import cells
from jax_cocktail.errors import UnsupportedError
from jax_cocktail.lowering.edge.complex_parts import can_split, on_parts, operations_on_complex
from jax_cocktail.lowering.state import read_mark
from jax_cocktail.primitives import CONTROL_FLOW, LIBRARY, RULES
from jax_cocktail.primitives.equation import Atom, Equation, Literal, Program, Variable, dtype_name
from jax_cocktail.primitives.jaxprs import (
    call_body,
    equations_in,
    equations_inside,
    interpret,
    open_jaxpr,
    scan_counts,
)
from jax_cocktail.primitives.messages import MESSAGES
from jax_cocktail.primitives.side_exit import with_exits
from jax_cocktail.recursion.task import RECURSION
from jax_cocktail.utask.types import NOWHERE, Source, plain

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
_FOREIGN, _OUR_CALL = "ffi_call", "jax_cocktail_call"
ORDERED = frozenset({"OrderedDebugEffect", "OrderedIOEffect"})  # JAX's names
_KEPT = "NoDCEEffect"  # also JAX's
_FRAME = re.compile(r"^(?P<file>.*?):(?P<line>\d+)(:\d+)*( \((?P<function>.*)\))?$", re.DOTALL)
_PUBLIC = {p.name: p for p in vars(primitives).values() if isinstance(p, jex.Primitive)}
_KEY = re.compile(r"^key<(?P<impl>.*)>$")


def with_attribute(equation: Any, name: str, array: np.ndarray[Any, Any]) -> Any:
    """A foreign call with another array as one of its attributes; any other equation as it is."""
    if equation.primitive.name != _FOREIGN:
        return equation
    attributes = (
        (key, type(value)(array) if key == name else value) for key, value in equation.params["attributes"]
    )
    return equation.replace(params={**equation.params, "attributes": tuple(attributes)})


def scope_of(call: Any) -> Any:
    """The named scopes in a call: those around it, and its own name. None if JAX hides them."""
    name, scopes = call.params.get("name"), getattr(call.source_info, "name_stack", None)
    if scopes is None or not isinstance(name, str):
        return scopes
    return scopes.extend(f"{primitive_name(call)}({name})")


def within(equation: Any, calls: Sequence[Any]) -> Any:
    """The equation inside the named scopes of calls, outermost first. If it has no line of the user's, it
    gets that of the innermost call which has one."""
    info = equation.source_info
    if calls and source_of(equation) == NOWHERE:
        placed = (call.source_info.traceback for call in reversed(calls) if source_of(call) != NOWHERE)
        info = info.replace(traceback=next(placed, info.traceback))
    for scope in filter(None, map(scope_of, reversed(calls))):
        info = info.replace(name_stack=scope + info.name_stack)
    return equation.replace(source_info=info)


def at_source_of(equation: Any, other: Any) -> Any:
    """The equation with the user's line and the named scopes of another one."""
    return equation.replace(source_info=other.source_info)


def labelled(equation: Any, label: str) -> Any:
    """A foreign call that profilers and debuggers show as `label`; any other equation as it is."""
    if equation.primitive.name != _FOREIGN or lowering_rule(equation.primitive) is None:
        return equation
    params = {**equation.params, "label": label}
    return equation.replace(primitive=_labelled_call(equation.primitive), params=params)


def cast_to_varying() -> Any:
    """JAX's primitive that lets a value vary over axes. Raises ImportError if JAX hides it."""
    from jax._src.core import pvary_p

    return pvary_p


def is_our_call(equation: Any) -> bool:
    """True if an equation calls one of our programs."""
    return str(equation.primitive.name) == _OUR_CALL


@cache
def _labelled_call(foreign: Any) -> Any:
    """JAX's primitive of foreign calls, with a label."""
    own, stock = jex.Primitive(_OUR_CALL), lowering_rule(foreign)
    own.multiple_results = True

    @own.def_effectful_abstract_eval
    def _(*avals: Any, label: str, **params: Any) -> Any:
        return foreign.abstract_eval(*avals, **params)

    def lowered(ctx: Any, *operands: Any, label: str, **params: Any) -> Any:
        with _location(ctx, label):
            return stock(ctx, *operands, **params)

    mlir.register_lowering(own, lowered)
    return own


def _location(ctx: Any, label: str) -> Any:
    """The place of an operation, with the label instead of a primitive's name. XLA makes the `op_name`
    and the name of the instruction of it. A version of JAX that hides its function shows its own names."""
    try:
        from jax._src.interpreters.mlir import source_info_to_location

        place = SimpleNamespace(name=label), ctx.name_stack, ctx.traceback
        return source_info_to_location(ctx.module_context, *place)
    except (ImportError, AttributeError, TypeError):
        return nullcontext()


def primitive_name(equation: Any) -> str:
    """The name of the equation's primitive, which tells what it computes.

    A primitive of another library may have the name of one of JAX's, but not here.
    """
    name = plain(str(equation.primitive.name))
    known = _messages() if name in MESSAGES else _PUBLIC
    return name if known.get(name, equation.primitive) is equation.primitive else f"{name} (not JAX's)"


@cache
def _messages() -> Mapping[str, Any]:
    """The primitives of JAX's functions for messages. JAX does not export these primitives."""

    def with_messages() -> None:
        jax.debug.print("")
        jax.debug.callback(lambda: None)

    return {str(each.primitive.name): each.primitive for each in jax.make_jaxpr(with_messages)().eqns}


class Calls:
    """The bodies of the calls in a module for one platform.

    A primitive without a rule of ours is a call too, if JAX lowers it by tracing a function: this function is
    all that stock XLA knows of it. It is traced with abstract values, once for equal equations. The body of
    control flow on complex numbers is the same control flow on their parts.
    """

    def __init__(self, platform: str = "cpu") -> None:
        self.platform = platform
        self._traced: dict[Any, Any | None] = {}

    def body(self, equation: Any, zeros: tuple[int, ...] = ()) -> Any | None:
        """The jaxpr that replaces a call equation; None if the equation is not a call that we inline.

        `zeros`: the operands that are known to be arrays of zeros without a sign.
        """
        name = primitive_name(equation)
        if name == RECURSION:
            from jax_cocktail.recursion.primitive import expanded_jaxpr

            return expanded_jaxpr(equation.params["task"], equation.params["elements"], zeros)
        if forced_to_stock(equation):
            return None
        if name in CALLS:
            return call_body(equation.params)
        if name == "cond" and equation.params.get("branches_platforms") is not None:
            index = self.platform_index(equation.params["branches_platforms"])
            return None if index is None else equation.params["branches"][index]
        if name in CONTROL_FLOW and can_split(equation, self):
            return self.on_parts(equation)[0]
        if name in RULES:
            return None
        function = _lowered_function(equation.primitive, self.platform)
        return function and self._traced_once(equation, partial(function, **equation.params))

    def arguments(self, body: Any, operands: Sequence[T]) -> Sequence[T]:
        """The operands of a call that its body takes: all but the index of a choice between platforms."""
        return operands[len(operands) - len(open_jaxpr(body).invars) :]

    def platform_index(self, platforms: Sequence[Sequence[str] | None]) -> int | None:
        """The first entry for this platform or for any (None); None if JAX would raise an error."""
        entries = (i for i, names in enumerate(platforms) if names is None or self.platform in names)
        return next(entries, None)

    def on_parts(self, equation: Any) -> tuple[Any | None, UnsupportedError | None]:
        """The body of control flow on complex numbers; None with a reason if we cannot compile it either."""
        body = self._traced_once(equation, lambda *operands: on_parts(equation, self, operands))
        try:
            for inner in () if body is None else program(body, self).equations:
                if inner.primitive in CONTROL_FLOW:
                    with_exits(inner)
        except UnsupportedError as error:
            whole = next(operations_on_complex(body), None)
            if whole is None or not error.reason.startswith("dtype"):
                return None, error
            return None, UnsupportedError(
                f"the operation {whole!r} of complex numbers is not supported", error.where
            )
        return body, None

    def _traced_once(self, equation: Any, function: Callable[..., Any]) -> Any | None:
        avals = tuple(atom.aval for atom in equation.invars)
        params = tuple(sorted(equation.params.items()))
        key = equation.primitive, avals, params, equation.ctx, equation.source_info.traceback
        try:
            known = key in self._traced
        except TypeError:  # a parameter cannot be hashed
            return _trace(equation, function)
        if not known:
            self._traced[key] = _trace(equation, function)
        return self._traced[key]


def _trace(equation: Any, function: Callable[..., Any]) -> Any | None:
    """The jaxpr of a function that computes what an equation does; None if it does not fit the equation."""
    try:
        operands = [
            jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type)
            for a in (atom.aval for atom in equation.invars)
        ]
        # as a lowering rule would trace it, and with the source line of the equation
        with equation.ctx.manager, source_info_util.user_context(equation.source_info.traceback):
            body = jax.make_jaxpr(function)(*operands)
    except Exception:  # whatever a library's function does; stock XLA reports it
        return None
    found = [(aval.shape, aval.dtype) for aval in body.out_avals]
    wanted = [(var.aval.shape, var.aval.dtype) for var in equation.outvars]
    return body if found == wanted and body.effects == equation.effects else None


def lowering_rule(primitive: Any, platform: str = "") -> Any:
    """JAX's rule that lowers a primitive on a platform, or on any; None if JAX has none, or hides it."""
    try:
        from jax._src.interpreters import mlir as private

        entry = private._platform_specific_lowerings[platform].get(primitive) if platform else None
        entry = entry or private._lowerings[primitive]
    except (ImportError, AttributeError, KeyError):
        return None
    return getattr(entry, "rule", entry)


def settings_in_force() -> Any:
    """JAX's settings in force in this thread, as its caches of compiled calls tell them apart; None if JAX
    hides them."""
    try:
        from jax._src import config as private

        context = private.trace_context()
    except (ImportError, AttributeError):
        return None
    # some versions set an empty mesh during a lowering, where there is none outside
    return tuple(None if isinstance(each, AbstractMesh) and each.empty else each for each in context)


def _lowered_function(primitive: Any, platform: str) -> Callable[..., Any] | None:
    """The function of a lowering rule that `mlir.lower_fun` has made; None for other rules."""
    rule = lowering_rule(primitive, platform)
    if getattr(rule, "__code__", None) is not mlir.lower_fun(_nothing).__code__:
        return None
    function: Callable[..., Any] | None = inspect.getclosurevars(rule).nonlocals.get("fun")
    return function


def _nothing() -> tuple[()]:
    return ()


def forced_to_stock(equation: Any) -> bool:
    """True if the equation is an inner `jax_cocktail.jit` with the option force="stock"."""
    mark = read_mark(equation.params.get("name"))
    return mark is not None and mark.options.force == "stock"


def hidden_control_flow_in(jaxpr: Any, platform: str) -> bool:
    """True if a jaxpr has an equation that hides control flow."""
    calls = Calls(platform)
    return any(hides_control_flow(each, calls) for each in equations_in(jaxpr))


def hides_control_flow(equation: Any, calls: Calls) -> bool:
    """True if an equation stands for a traced function with control flow, such as `jax.random.gamma`."""
    if primitive_name(equation) in RULES.keys() | CALLS:
        return False
    body = calls.body(equation)
    return body is not None and control_flow_in(body)


def control_flow_in(jaxpr: Any) -> bool:
    """True if a jaxpr contains a loop, a branch or a recursion, at any depth."""
    return any(map(is_control_flow, equations_in(jaxpr)))


def holds_control_flow(equation: Any) -> bool:
    """True if an equation is or contains a loop, a branch or a recursion."""
    return is_control_flow(equation) or any(map(is_control_flow, equations_inside(equation)))


def is_control_flow(equation: Any) -> bool:
    """True if an equation is a loop, a branch or a recursion."""
    return primitive_name(equation) in CONTROL_FLOW or primitive_name(equation) == RECURSION


def keeps_order(equation: Any) -> bool:
    """True if an equation has a side effect that must follow those of the equations before it."""
    return any(type(effect).__name__ in ORDERED for effect in equation.effects)


def source_of(equation: Any) -> Source:
    """The user's source line of an equation; for a recursion, that of its function."""
    if primitive_name(equation) == RECURSION:
        text = equation.params["task"].entry.source
    else:
        text = str(source_info_util.summarize(equation.source_info))
    match = _FRAME.match(text)
    if match is None:
        return NOWHERE
    return Source(cells.shown(match["file"]), int(match["line"]), match["function"] or "")


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
    name = dtype_name(aval.dtype)
    match = _KEY.match(name)
    return Variable(name, tuple(shape), match["impl"] if match else "")


def literal(value: Any, aval: Any) -> Literal:
    """A constant embedded in the program. Raises UnsupportedError for PRNG keys."""
    if is_key(aval):
        raise UnsupportedError("a PRNG key is a constant inside a loop or branch; pass it in as an argument")
    return Literal(np.asarray(value, dtype=aval.dtype))


class Adapter:
    """Converts the equations of a flat jaxpr and maps each JAX variable to its own variable."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
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
        converted = _converted(equation, map(self.read, equation.invars), self._calls)
        self._atoms.update(zip(equation.outvars, converted.outputs, strict=True))
        return converted


def program(closed: Any, calls: Calls | None = None, around: Source = NOWHERE) -> Program:
    """Converts a closed jaxpr, inlines all calls and turns its constants into literals.

    What has no line of the user's has that of the call or loop around it, at last `around`: libraries trace
    their functions once, without their callers.
    """
    calls = calls or Calls()
    places = [around]
    inputs = tuple(variable(var.aval) for var in open_jaxpr(closed).invars)
    equations: list[Equation] = []

    def constant(atom: Any, value: Any) -> Atom:
        return literal(value, atom.aval)

    def apply(equation: Any, operands: Sequence[Atom]) -> Sequence[Atom]:
        body = calls.body(equation)
        if body is not None:
            places.append(_source(equation, places[-1]))
            results = interpret(body, calls.arguments(body, operands), constant, apply)
            places.pop()
            return results
        equations.append(_converted(equation, operands, calls, places[-1]))
        return equations[-1].outputs

    outputs: tuple[Atom, ...] = interpret(closed, inputs, constant, apply)
    return Program(inputs, tuple(equations), outputs)


def _source(equation: Any, around: Source) -> Source:
    found = source_of(equation)
    return around if found == NOWHERE else found


def acts(effects: Iterable[Any]) -> bool:
    """True if something happens beside the results: more than a mark that a value is not dead, as `checkify`
    sets it on the checks of a loop's condition."""
    return any(type(effect).__name__ != _KEPT for effect in effects)


def _converted(equation: Any, inputs: Iterable[Atom], calls: Calls, around: Source = NOWHERE) -> Equation:
    """An equation on these operands. Raises UnsupportedError for unsupported types."""
    source = _source(equation, around)
    try:
        if primitive_name(equation) in CONTROL_FLOW and can_split(equation, calls):
            _, reason = calls.on_parts(equation)
            if reason is not None:
                raise reason
        operands = tuple(inputs)  # which may be converted only now
        outputs = tuple(variable(var.aval, source) for var in equation.outvars)
        params = _params(equation, calls, source)
    except UnsupportedError as error:
        raise UnsupportedError(error.reason, error.where or str(source)) from None
    return Equation(primitive_name(equation), operands, outputs, params, source, acts(equation.effects))


def _params(equation: Any, calls: Calls, source: Source) -> dict[str, Any]:
    """JAX's parameters, some of them normalised as `primitives.equation` specifies. `source`: of all."""
    params = equation.params
    name = primitive_name(equation)
    if name == "while":
        return {
            "cond_jaxpr": program(params["cond_jaxpr"], calls, source),
            "body_jaxpr": program(params["body_jaxpr"], calls, source),
            "cond_nconsts": int(params["cond_nconsts"]),
            "body_nconsts": int(params["body_nconsts"]),
        }
    if name == "cond":
        return {"branches": tuple(program(branch, calls, source) for branch in params["branches"])}
    if name == "scan":
        num_consts, num_carry = scan_counts(params)
        numbers = {name: int(params[name]) for name in ("length", "reverse", "unroll")}
        return {
            "jaxpr": program(params["jaxpr"], calls, source),
            "num_consts": num_consts,
            "num_carry": num_carry,
            **numbers,
        }
    if name == "device_put":
        return {"moves": any(map(_moves, equation.invars, equation.outvars))}
    if name == "platform_index":
        return {"index": calls.platform_index(params["platforms"])}
    if name in LIBRARY:
        return {**params, "platform": calls.platform}
    if name in MESSAGES:
        return {
            "deliver": partial(_eagerly, equation.primitive, params),
            "ordered": keeps_order(equation),
            "partitioned": bool(params.get("partitioned")),
        }
    return dict(params)


def _eagerly(primitive: Any, params: Mapping[str, Any], *operands: Any) -> None:
    """Applies a primitive to values at once."""
    primitive.bind(*operands, **primitive.get_bind_params(params))


def _moves(operand: Any, result: Any) -> bool:
    """True if a value is put into another memory of the device. Inside a program, nothing else moves it."""
    return getattr(operand.aval, "memory_space", None) != getattr(result.aval, "memory_space", None)
