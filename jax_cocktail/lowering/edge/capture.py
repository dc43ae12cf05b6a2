"""Divides the jaxpr of a marked call into regions that we compile and equations that stay with stock XLA."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import jax.extend.core as jex
import numpy as np

from jax_cocktail.errors import UnsupportedError
from jax_cocktail.lowering.edge.adapter import (
    Adapter,
    Calls,
    forced_to_stock,
    holds_control_flow,
    is_key,
    is_our_call,
    keeps_order,
    literal,
    primitive_name,
    source_of,
)
from jax_cocktail.lowering.edge.branches import choices
from jax_cocktail.lowering.edge.flatten import Flat, flatten
from jax_cocktail.primitives import CONTROL_FLOW, FUSIBLE, LIBRARY, MOVEMENT
from jax_cocktail.primitives.equation import Equation, Program, Variable, primitives_in
from jax_cocktail.primitives.jaxprs import communicates, equations_inside
from jax_cocktail.primitives.messages import Log, logged
from jax_cocktail.primitives.side_exit import Exit, leaving_if_full, threaded, with_exits
from jax_cocktail.report import Counts, Left
from jax_cocktail.stitch.partition import Node, Partition, partition

if TYPE_CHECKING:
    from jax_cocktail.lowering.edge.shardings import Division, Followed, Spread

# Constants up to this size are embedded in the program; larger ones are operands, so that they are shared.
EMBEDDED_BYTES = 1024
# From these sizes upwards, a leaf equation profits from XLA's own library code.
EXPENSIVE_FLOPS = 1e6
EXPENSIVE_ELEMENTS = 1 << 16
# The reason for an inner function that the user keeps on stock XLA. It causes no warning.
ASKED_FOR = 'its options say force="stock"'
# The reasons for a loop that communicates, and for one whose body is captured for itself. They cause no
# warning either.
COMMUNICATES = "it communicates with other devices in every iteration"
DIVIDED = f"{COMMUNICATES}, so XLA runs the loop, and our programs in it"
# The reason for a region that several devices would have to compute together. It causes no warning: the
# arguments are divided as the user wants it.
TOGETHER = "devices that divide its arguments would have to communicate"
MEMORY_BOUND_SUBGRAPH = "memory-bound subgraph"
_NAMED = 4  # primitives that the name of a memory-bound subgraph lists
_ONLY_STOCK = frozenset({"ragged_dot_general", "approx_top_k"})  # primitives that only stock XLA compiles

Converted = tuple[Equation, tuple[Exit, ...]] | None  # None: the equation stays with stock XLA


@dataclass(frozen=True, eq=False, slots=True)
class Region:
    """Equations that become one custom call. `operands` and `results` are JAX's own variables; `members` are
    the positions of the equations in the jaxpr. With `exits`, the program's next result is the exit flag, and
    with a `log` of messages its last two are the number of words in use and the log.
    `memory_bound`: it has no control flow, and its first operator comes from the user's line `source`.
    `division`: how several devices divide it."""

    program: Program
    members: tuple[int, ...]
    operands: tuple[Any, ...]
    results: tuple[Any, ...]
    control_flow: tuple[str, ...]
    operators: Counts
    exits: tuple[Exit, ...] = ()
    log: Log | None = None
    memory_bound: bool = False
    source: str = ""
    division: Division | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Capture:
    """The regions and remaining equations of a marked jaxpr, before compilation.

    `left`: control flow that we cannot compile; `declined`: subgraphs without control flow in which there is
    nothing to gain; `followed`: the shardings of values, if several devices divide the arguments.
    """

    flat: Flat
    order: tuple[int | tuple[int], ...]
    regions: tuple[Region, ...]
    left: tuple[Left, ...]
    beside: Counts
    declined: tuple[Left, ...] = ()
    followed: Followed | None = None


def capture(
    closed: Any, platform: str = "cpu", memory_bound: bool = False, spread: Spread | None = None
) -> Capture:
    """Divides the jaxpr of a marked call into regions and equations for stock XLA. `memory_bound`: regions
    need no control flow (see `stitch.partition`); `spread`: how several devices divide the arguments."""
    calls = Calls(platform)
    flat = flatten(closed, calls)
    followed = None
    if spread is not None:
        from jax_cocktail.lowering.edge.follow import follow  # few calls are divided

        followed = follow(flat, spread, calls)
    adapter = Adapter(calls)
    for var, value in zip(flat.constvars, flat.consts, strict=True):
        is_array = hasattr(var.aval, "shape") and not is_key(var.aval)  # neither a token nor keys
        if is_array and np.asarray(value).nbytes <= EMBEDDED_BYTES:
            adapter.bind(var, literal(value, var.aval))
    nodes: list[Node] = []
    equations: list[Converted] = []
    left: list[Left] = []
    made_by: dict[Any, int] = {}
    effects: set[int] = set()  # the last equation whose side effect keeps its order
    selects, sides = choices(flat.equations, flat.outvars, _expensive)
    returned = {atom for atom in flat.outvars if not isinstance(atom, jex.Literal)}
    needed = _needed(flat, returned)
    for position, equation in enumerate(flat.equations):
        converted, reason = _convert(adapter, calls, equation)
        if reason is None and followed is not None and position in followed.apart:
            reason = UnsupportedError("XLA divides it over several devices")
        if reason is not None and holds_control_flow(equation):
            left.append(_left(equation, reason))
        operands = (atom for atom in equation.invars if not isinstance(atom, jex.Literal))
        producers = {made_by[atom] for atom in operands if atom in made_by}
        if keeps_order(equation):
            producers |= effects
            effects = {position}
        equations.append(converted)
        nodes.append(
            Node(
                tuple(sorted(producers)),
                supported=reason is None,
                control_flow=reason is None
                and (position in sides or primitive_name(equation) in CONTROL_FLOW),
                expensive=_expensive(equation),
                returned=not returned.isdisjoint(equation.outvars),
                **_work(equation, needed),
            )
        )
        made_by.update((var, position) for var in equation.outvars)
    parts = partition(nodes, memory_bound)
    regions = tuple(_region(flat, adapter, equations, members, selects) for members in parts.regions)
    regions = tuple(
        replace(region, memory_bound=True, source=_first_source(flat, region.members))
        if number in parts.memory_bound
        else region
        for number, region in enumerate(regions)
    )
    rest = tuple(left), _beside(flat, parts), _declined(flat, parts)
    return Capture(flat, parts.order, regions, *rest, followed)


def _left(equation: Any, reason: UnsupportedError) -> Left:
    """Control flow that we cannot compile."""
    what, where = primitive_name(equation), str(source_of(equation))
    if what not in CONTROL_FLOW or not communicates(equation):
        return Left(what, reason.reason, where, reason.where)
    ours = any(map(is_our_call, equations_inside(equation)))
    return Left(what, DIVIDED if ours else COMMUNICATES, where)


def _needed(flat: Flat, returned: set[Any]) -> set[Any]:
    """The variables that a result or a side effect needs."""
    needed = set(returned)
    for equation in reversed(flat.equations):
        if equation.effects or not needed.isdisjoint(equation.outvars):
            needed.update(atom for atom in equation.invars if not isinstance(atom, jex.Literal))
    return needed


def _work(equation: Any, needed: set[Any]) -> dict[str, Any]:
    """The work of an equation, for `partition`."""
    name = primitive_name(equation)
    results = [var for var in equation.outvars if var in needed]
    operands = {atom for atom in equation.invars if not isinstance(atom, jex.Literal)} if results else set()
    reads = sum(_array_bytes(atom.aval) for atom in operands)
    writes = sum(_array_bytes(var.aval) for var in results)
    return {
        "reads": min(reads, writes) if name in MOVEMENT else reads,  # a slice reads what it gives
        "writes": writes,
        "computes": name not in MOVEMENT,
        "stops_fusion": name not in FUSIBLE,
    }


def _array_bytes(aval: Any) -> int:
    """The bytes of an array; 0 for a scalar and for what has no fixed size."""
    shape = getattr(aval, "shape", ())
    if not shape or not all(isinstance(size, int | np.integer) for size in shape):
        return 0
    return _elements(shape) * (8 if is_key(aval) else int(aval.dtype.itemsize))


def _declined(flat: Flat, parts: Partition) -> tuple[Left, ...]:
    left = []
    for members, reason in parts.declined:
        names = [primitive_name(flat.equations[p]) for p in members]
        if not MOVEMENT.issuperset(names):
            left.append(Left(subgraph(_counted(names)), reason, _first_source(flat, members)))
    return tuple(left)


def subgraph(operators: Counts) -> str:
    """A memory-bound subgraph in words."""
    names = [name if n == 1 else f"{n} {name}" for name, n in operators[:_NAMED]]
    names += ["..."] if len(operators) > _NAMED else []
    return f"{MEMORY_BOUND_SUBGRAPH} ({', '.join(names)})"


def untaken(regions: Sequence[Region], why: str) -> tuple[Left, ...]:
    """Regions left to stock XLA although we could compile them: control flow, and memory-bound subgraphs."""
    whole = (
        Left(subgraph(region.operators), why, region.source) for region in regions if region.memory_bound
    )
    return *whole, *(
        Left(equation.primitive, why, str(equation.source) if equation.source.file else "")
        for region in regions
        for equation in region.program.equations
        if equation.primitive in CONTROL_FLOW
    )


def _first_source(flat: Flat, members: Sequence[int]) -> str:
    sources = (source_of(flat.equations[p]) for p in members)
    return next((str(source) for source in sources if source.file), "")


def _convert(adapter: Adapter, calls: Calls, equation: Any) -> tuple[Converted, UnsupportedError | None]:
    if forced_to_stock(equation):
        return None, UnsupportedError(ASKED_FOR)
    if calls.body(equation) is not None:
        return None, UnsupportedError("it is a rematerialised call without control flow")
    try:
        converted = adapter.equation(equation)
        return with_exits(converted), None
    except UnsupportedError as error:
        return None, error


def _expensive(equation: Any) -> bool:
    """True if a leaf equation is so expensive that stock XLA should run it if it is at a region's border."""
    name = primitive_name(equation)
    shapes = [getattr(atom.aval, "shape", ()) for atom in (*equation.invars, *equation.outvars)]
    elements = max((_elements(shape) for shape in shapes), default=0)
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        depth = _elements(tuple(shapes[0][axis] for axis in contracted))
        return 2.0 * depth * _elements(shapes[-1]) >= EXPENSIVE_FLOPS
    if name == "conv_general_dilated":
        features = equation.params["dimension_numbers"].rhs_spec[0]
        depth = _elements(shapes[1]) // max(shapes[1][features], 1)
        return 2.0 * depth * _elements(shapes[-1]) >= EXPENSIVE_FLOPS
    if name.startswith("scatter"):  # its work is in the updates
        elements = _elements(shapes[2])
    return (name in LIBRARY or name in _ONLY_STOCK) and elements >= EXPENSIVE_ELEMENTS


def _elements(shape: Sequence[Any]) -> int:
    return prod(int(size) for size in shape if isinstance(size, int | np.integer))


def _region(
    flat: Flat,
    adapter: Adapter,
    equations: Sequence[Converted],
    members: tuple[int, ...],
    selects: frozenset[int],
) -> Region:
    inside = set(members)
    made = {var for position in members for var in flat.equations[position].outvars}
    needed = {atom for atom in flat.outvars if not isinstance(atom, jex.Literal)}
    for position, equation in enumerate(flat.equations):
        if position not in inside:
            needed.update(atom for atom in equation.invars if not isinstance(atom, jex.Literal))
    operands: dict[Any, Variable] = {}
    for position in members:
        for atom in flat.equations[position].invars:
            if isinstance(atom, jex.Literal) or atom in made:
                continue
            read = adapter.read(atom)
            if isinstance(read, Variable):
                operands[atom] = read
    results = [v for position in members for v in flat.equations[position].outvars if v in needed]
    chosen = [(p, *pair) for p in members if (pair := equations[p]) is not None]
    body = tuple(equation for _, equation, _ in chosen)
    exits = tuple(item for _, _, found in chosen for item in found)
    program = Program(tuple(operands.values()), body, tuple(adapter.read(var) for var in results))
    control_flow = tuple(
        f"{equation.primitive} at {equation.source}" if equation.source.file else equation.primitive
        for position, equation, _ in chosen
        if equation.primitive in CONTROL_FLOW or position in selects
    )
    counts = _counted(primitives_in(body))
    program, log = logged(threaded(program) if exits else program)
    if log is not None and log.overflows:
        program, full = leaving_if_full(program, log, has_flag=bool(exits))
        exits = (*exits, full)
    return Region(program, members, tuple(operands), tuple(results), control_flow, counts, exits, log)


def _beside(flat: Flat, parts: Partition) -> Counts:
    """Counts the primitives that stock XLA compiles around the regions."""
    names = (primitive_name(flat.equations[step]) for step in parts.order if isinstance(step, int))
    return _counted(name for name in names if name not in CONTROL_FLOW)


def _counted(names: Iterable[str]) -> Counts:
    """The number of occurrences of each name, most frequent first."""
    return tuple(sorted(Counter(names).items(), key=lambda pair: (-pair[1], pair[0])))
