"""Bodies of recursive functions as trees of references and the branches and loops around them.

Everything else remains an equation of JAX. Calls that contain a reference are inlined, so one variable may
represent several variables of the jaxpr.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from jax_cocktail.errors import UnsupportedError
from jax_cocktail.primitives.jaxprs import call_body, equations_inside, interpret, open_jaxpr, scan_counts
from jax_cocktail.recursion.task import Aval, aval_of

REFERENCE = "reference"
SHORT = 8  # a scan with at most this many iterations is unrolled
WRITTEN = 256  # a longer scan is unrolled into at most this many equations


@dataclass(frozen=True, eq=False, slots=True)
class Var:
    """A value, compared by object identity."""

    aval: Aval


@dataclass(frozen=True, eq=False, slots=True)
class Const:
    """A literal of the program text."""

    value: Any
    aval: Aval

    @property
    def array(self) -> Any:
        return jnp.asarray(self.value, self.aval.dtype)


Atom = Var | Const


@dataclass(frozen=True, eq=False, slots=True)
class Op:
    """An equation without references, or another pure function. `run` maps input values to output values."""

    run: Callable[..., Sequence[Any]]
    inputs: tuple[Atom, ...]
    outputs: tuple[Var, ...]
    name: str = ""  # the name of the primitive
    params: Mapping[str, Any] = field(default_factory=dict)
    is_zero: bool = False  # the result is all zeros


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """A reference. `run` binds it to new values."""

    function: int
    run: Callable[..., Sequence[Any]]
    inputs: tuple[Atom, ...]
    outputs: tuple[Var, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Cond:
    """A branch with a reference on one of its sides. The sides read outer variables directly."""

    index: Atom
    sides: tuple[Structure, ...]
    outputs: tuple[Var, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Repeat:
    """A loop that contains a reference.

    A `while` has a `condition`, whose parameters are those of the body. A `scan` has `length` and `reverse`;
    its body's parameters are the carries and one row of each of `stacked`, and its results are the carries
    and one row of each remaining output.
    """

    carried: tuple[Atom, ...]
    body: Structure
    outputs: tuple[Var, ...]
    condition: Structure | None = None
    stacked: tuple[Atom, ...] = ()
    length: int = 0
    reverse: bool = False


Item = Op | Call | Cond | Repeat


@dataclass(frozen=True, eq=False, slots=True)
class Structure:
    """Items in order. Free variables belong to the enclosing structure."""

    parameters: tuple[Var, ...]
    items: tuple[Item, ...]
    results: tuple[Atom, ...]


def structure(jaxpr: Any, opens_loops: bool, most_trips: int = SHORT) -> Structure:
    """The tree of a closed jaxpr.

    `opens_loops`: turn loops with references into `Repeat`, and inline all calls, since nothing will be
    differentiated; otherwise such loops become `Op`. Short scans with references are unrolled either way.
    `most_trips`: the most iterations of an unrolled scan.
    """
    builder = _Builder(opens_loops, most_trips)
    parameters = tuple(Var(aval_of(v.aval)) for v in open_jaxpr(jaxpr).invars)
    results = builder.inline(jaxpr, parameters)
    return Structure(parameters, tuple(builder.items), results)


@dataclass(frozen=True, eq=False, slots=True)
class Binder:
    """Applies the primitive of an equation to new values."""

    primitive: Any
    params: Mapping[str, Any]

    def __call__(self, *values: Any) -> Sequence[Any]:
        primitive, bound = self.primitive, self.primitive.get_bind_params(self.params)
        if isinstance(bound, tuple):
            functions, kept = bound
            found = primitive.bind(*functions, *values, **kept)
        else:
            found = primitive.bind(*values, **bound)
        return list(found) if primitive.multiple_results else [found]

    @property
    def key(self) -> Hashable:
        """Equal only for equal functions."""
        params = tuple((name, type(x), x) for name, x in sorted(self.params.items()))
        try:
            hash(params)
        except TypeError:
            return id(self.params)
        return self.primitive, params


def binder(equation: Any) -> Binder:
    return Binder(equation.primitive, equation.params)


class _Builder:
    def __init__(self, opens_loops: bool, most_trips: int) -> None:
        self.opens_loops, self.most_trips = opens_loops, most_trips
        self.items: list[Item] = []

    def inline(self, jaxpr: Any, arguments: Sequence[Atom]) -> tuple[Atom, ...]:
        """Appends the items of a jaxpr and returns its results."""
        return interpret(jaxpr, arguments, _constant, self._item)

    def _item(self, equation: Any, operands: Sequence[Atom]) -> tuple[Atom, ...]:
        name, inputs = equation.primitive.name, tuple(operands)
        outputs = tuple(Var(aval_of(v.aval)) for v in equation.outvars)
        if name == REFERENCE:
            self.items.append(Call(equation.params["function"], binder(equation), inputs, outputs))
        elif self.opens_loops and name in ("jit", "pjit"):
            return self.inline(equation.params["jaxpr"], inputs)
        elif not any(e.primitive.name == REFERENCE for e in equations_inside(equation)):
            self.items.append(
                Op(binder(equation), inputs, outputs, name, equation.params, _makes_zeros(equation))
            )
        elif name == "cond":
            sides = tuple(self._side(branch, inputs[1:]) for branch in equation.params["branches"])
            self.items.append(Cond(inputs[0], sides, outputs))
        elif name == "scan" and self._is_short(equation.params):
            return self._unrolled(equation.params, inputs)
        elif name in ("scan", "while"):
            loop = self._scan if name == "scan" else self._while
            self.items.append(
                loop(equation.params, inputs, outputs)
                if self.opens_loops
                else Op(binder(equation), inputs, outputs)
            )
        else:
            body = call_body(equation.params)
            if body is None or not (hasattr(body, "eqns") or hasattr(body, "jaxpr")):
                raise UnsupportedError(
                    f"a recursive call inside {name} is not supported; use cond, switch, scan or a loop"
                )
            return self.inline(body, inputs)
        return outputs

    def _side(self, jaxpr: Any, arguments: Sequence[Atom], parameters: tuple[Var, ...] = ()) -> Structure:
        inner = _Builder(self.opens_loops, self.most_trips)
        results = inner.inline(jaxpr, arguments)
        return Structure(parameters, tuple(inner.items), results)

    def _while(self, params: Mapping[str, Any], inputs: tuple[Atom, ...], outputs: tuple[Var, ...]) -> Repeat:
        first, second = params["cond_nconsts"], params["body_nconsts"]
        tested, used, carried = inputs[:first], inputs[first : first + second], inputs[first + second :]
        parameters = tuple(Var(v.aval) for v in outputs)
        condition = self._side(params["cond_jaxpr"], (*tested, *parameters), parameters)
        body = self._side(params["body_jaxpr"], (*used, *parameters), parameters)
        return Repeat(carried, body, outputs, condition)

    def _is_short(self, params: Mapping[str, Any]) -> bool:
        trips: int = params["length"]
        equations = len(open_jaxpr(params["jaxpr"]).eqns)
        return trips <= self.most_trips and (trips <= SHORT or trips * equations <= WRITTEN)

    def _unrolled(self, params: Mapping[str, Any], inputs: tuple[Atom, ...]) -> tuple[Atom, ...]:
        """Unrolls a short scan, so that its calls can run in parallel."""
        count, carries = scan_counts(params)
        length, stacked = params["length"], inputs[count + carries :]
        carried = inputs[count : count + carries]
        rows: dict[int, Sequence[Atom]] = {}
        for trip in reversed(range(length)) if params["reverse"] else range(length):
            own = [self._make(lambda x, trip=trip: [x[trip]], x) for x in stacked]
            results = self.inline(params["jaxpr"], (*inputs[:count], *carried, *own))
            carried, rows[trip] = results[:carries], results[carries:]
        if not length:
            rows_of = [aval_of(v.aval) for v in open_jaxpr(params["jaxpr"]).outvars[carries:]]
            return (*carried, *(self._make(lambda a=a: [jnp.zeros((0, *a.shape), a.dtype)]) for a in rows_of))
        columns = zip(*(rows[trip] for trip in range(length)), strict=True)
        return (*carried, *(self._make(lambda *y: [jnp.stack(y)], *column) for column in columns))

    def _make(self, run: Callable[..., Sequence[Any]], *inputs: Atom) -> Var:
        made = jax.eval_shape(run, *(a.aval for a in inputs))
        output = Var(aval_of(made[0]))
        self.items.append(Op(run, inputs, (output,)))
        return output

    def _scan(self, params: Mapping[str, Any], inputs: tuple[Atom, ...], outputs: tuple[Var, ...]) -> Repeat:
        count, carries = scan_counts(params)
        used, carried, stacked = inputs[:count], inputs[count : count + carries], inputs[count + carries :]
        inner = open_jaxpr(params["jaxpr"]).invars[count:]
        parameters = tuple(Var(aval_of(v.aval)) for v in inner)
        body = self._side(params["jaxpr"], (*used, *parameters), parameters)
        return Repeat(carried, body, outputs, None, stacked, params["length"], params["reverse"])


def _constant(atom: Any, value: Any) -> Atom:
    return Const(value, aval_of(atom.aval))


def _makes_zeros(equation: Any) -> bool:
    """True if an equation is a `broadcast_in_dim` of a literal zero."""
    first = next(iter(equation.invars), None)
    if equation.primitive.name != "broadcast_in_dim" or not isinstance(first, jex.Literal):
        return False
    return first.aval.dtype != jax.dtypes.float0 and bool(first.val == 0)


def nested(item: Item) -> tuple[Structure, ...]:
    """The structures in an item."""
    if isinstance(item, Cond):
        return item.sides
    if isinstance(item, Repeat):
        return tuple(s for s in (item.condition, item.body) if s is not None)
    return ()


def items_in(body: Structure) -> Iterator[Item]:
    """Every item of a body, at any depth."""
    for item in body.items:
        yield item
        for side in nested(item):
            yield from items_in(side)


def calls_in(body: Structure) -> list[Call]:
    """The calls in a body, at any depth."""
    return [item for item in items_in(body) if isinstance(item, Call)]


def free(items: Sequence[Item], results: Sequence[Atom] = ()) -> Iterator[Var]:
    """The variables that items read but do not define, in order of use, with repeats."""
    made: set[Var] = set()
    for item in items:
        yield from (v for v in reads(item) if v not in made)
        made.update(item.outputs)
    yield from (v for v in results if isinstance(v, Var) and v not in made)


def reads(item: Item) -> Iterator[Var]:
    """The variables that an item reads."""
    if isinstance(item, Op | Call):
        atoms: tuple[Atom, ...] = item.inputs
    elif isinstance(item, Cond):
        atoms = (item.index,)
    else:
        atoms = (*item.carried, *item.stacked)
    yield from (v for v in atoms if isinstance(v, Var))
    for side in nested(item):
        own = set(side.parameters)
        yield from (v for v in free(side.items, side.results) if v not in own)
