"""Reads jaxprs of jax 0.10.2, 0.11 and 0.12, which differ. All readers of jaxprs are made of these functions.

`scan` has counts or a tree of its operands; `ClosedJaxpr` is a class or an alias of `Jaxpr`; calls store
their body under several names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, wraps
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import jax
import jax.extend.core as jex

T = TypeVar("T")

COLLECTIVES = frozenset(
    {"psum", "psum_invariant", "pmax", "pmin", "ppermute", "pgather", "all_gather", "all_gather_invariant"}
    | {"all_to_all", "ragged_all_to_all", "reduce_scatter", "psum_scatter", "pbroadcast"}
)
AXIS_INDEX = "axis_index"  # the position of a device in the mesh: no communication
CASTS = frozenset({"pvary", "pcast"})  # from values to the same ones of another type

_BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr", "call")  # the parameter differs by primitive and by release


def open_jaxpr(jaxpr: Any) -> Any:
    """The open jaxpr inside a closed one (jax < 0.11), or the jaxpr itself."""
    return jaxpr if isinstance(jaxpr, jex.Jaxpr) else jaxpr.jaxpr


def constants(jaxpr: Any) -> tuple[Any, ...]:
    return tuple(getattr(jaxpr, "consts", ()))


def nested_jaxprs(equation: Any) -> Iterator[Any]:
    """All jaxprs among the parameters of an equation."""
    for value in equation.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if is_jaxpr(item):
                yield item


def equations_in(jaxpr: Any) -> Iterator[Any]:
    """Every equation of a jaxpr, at any depth."""
    for equation in open_jaxpr(jaxpr).eqns:
        yield equation
        yield from equations_inside(equation)


def equations_inside(equation: Any) -> Iterator[Any]:
    """Every equation in the jaxprs of an equation, at any depth."""
    for jaxpr in nested_jaxprs(equation):
        yield from equations_in(jaxpr)


def has_symbolic_sizes(jaxpr: Any) -> bool:
    """True if an operand or result has a size that `jax.export` leaves open."""
    opened = open_jaxpr(jaxpr)
    shapes = (getattr(atom.aval, "shape", ()) for atom in (*opened.invars, *opened.outvars))
    return not all(isinstance(size, int) for shape in shapes for size in shape)


def once(find: Callable[[Any], T]) -> Callable[[Any], T]:
    """Caches a function of a jaxpr's equations while the jaxpr lives: every loop around it asks again."""
    known: WeakKeyDictionary[Any, T] = WeakKeyDictionary()

    @wraps(find)
    def found(jaxpr: Any) -> T:
        opened = open_jaxpr(jaxpr)
        if opened not in known:
            known[opened] = find(opened)
        return known[opened]

    return found


def interpret(
    jaxpr: Any,
    arguments: Sequence[T],
    constant: Callable[[Any, Any], T],
    apply: Callable[[Any, Sequence[T]], Sequence[T]],
) -> tuple[T, ...]:
    """Interprets a closed jaxpr on values of any kind, and returns its results.

    `constant(atom, value)`: the value of a constant or literal; `apply(equation, operands)`: the results of
    an equation. An `apply` that interprets the body of a call inlines it.
    """
    opened = open_jaxpr(jaxpr)
    names = {v: constant(v, x) for v, x in zip(opened.constvars, constants(jaxpr), strict=True)}
    names |= zip(opened.invars, arguments, strict=True)

    def read(atom: Any) -> T:
        return constant(atom, atom.val) if isinstance(atom, jex.Literal) else names[atom]

    for equation in opened.eqns:
        results = apply(equation, [read(atom) for atom in equation.invars])
        names |= zip(equation.outvars, results, strict=True)
    return tuple(read(atom) for atom in opened.outvars)


def communicates(equation: Any) -> bool:
    """True if an equation, or one in it, needs values of other devices."""
    return any(str(each.primitive.name) in COLLECTIVES for each in (equation, *equations_inside(equation)))


def names_axes(equation: Any) -> bool:
    """True if an equation itself is a collective, or `axis_index`."""
    name = str(equation.primitive.name)
    return name in COLLECTIVES or name == AXIS_INDEX


def call_body(params: Mapping[str, Any]) -> Any | None:
    """The body of a call equation with these parameters; None if there is none."""
    return next((params[name] for name in _BODIES if name in params), None)


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """The numbers of constants and of carries among a scan's operands."""
    if "num_consts" in params:
        return int(params["num_consts"]), int(params["num_carry"])
    constant, carried, _ = params["ft_in"].unpack()
    return len(constant), len(carried)


def with_constants(params: Mapping[str, Any], count: int) -> dict[str, Any]:
    """A scan's parameters with another number of constants. Raises AttributeError or TypeError if JAX hides
    how it writes them."""
    if "num_consts" in params:
        return {**params, "num_consts": count}
    example = _tree_of_scan(count)
    tree = type(example)(example.unpack()[0], *params["ft_in"].unpack()[1:])
    return {**params, "ft_in": tree}


@cache
def _tree_of_scan(count: int) -> Any:
    """The tree of the operands of a scan with so many constants."""

    def scan(*values: Any) -> Any:
        return jax.lax.scan(lambda total, _: (sum(values, total), None), 0.0, None, length=1)

    traced = open_jaxpr(jax.make_jaxpr(scan)(*[0.0] * count))
    return next(each.params["ft_in"] for each in traced.eqns if "ft_in" in each.params)


def is_jaxpr(value: Any) -> bool:
    """True for a jaxpr, open or closed."""
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")
