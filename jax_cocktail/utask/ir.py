"""The uTask IR (COCKTAILER, OSDI'23, section 3): operators and nested uTasks.

A program is a tree of regions. A region has parameters, statements and results. A statement may use any value
that is defined earlier in its own region or in an enclosing one (lexical scope), so loop-invariant operands
need no passing. All classes are frozen, hold tuples only, and check their fields on construction;
whole-program rules are in `analysis.verifier`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, TypeGuard, TypeVar, cast

from jax_cocktail.utask.operators import KINDS, OperatorKind
from jax_cocktail.utask.sizes import size_in
from jax_cocktail.utask.types import INTEGERS, NOWHERE, SIGNED, Source, Value

LEVELS = ("unit", "thread")  # of parallel loops
Attribute = int | float | str | bytes | bool | tuple["Attribute", ...]
Attributes = tuple[tuple[str, Attribute], ...]
Known = dict[str, Any]  # facts about an operator or a region, by the function that found them


def _known() -> Any:
    """The field of a frozen class that caches facts derived from the other fields; see `once`."""
    return field(default_factory=dict, init=False, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class UOperator:
    """A homogeneous family of uTasks: one operator of `operators.KINDS` on whole values."""

    kind: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    attributes: Attributes = ()
    source: Source = NOWHERE
    known: Known = _known()

    def __post_init__(self) -> None:
        spec = KINDS.get(self.kind)
        if spec is None:
            raise ValueError(f"unknown operator kind {self.kind!r}")
        if spec.arity is not None and len(self.inputs) != spec.arity:
            raise ValueError(f"{self.kind} takes {spec.arity} operands, got {len(self.inputs)}")
        names = tuple([name for name, _ in self.attributes])
        if names != spec.attributes:  # not in the usual order, or with optional ones
            names = tuple(sorted(name for name in names if name not in spec.optional))
        if names != spec.attributes:
            raise ValueError(f"{self.kind} has attributes {spec.attributes}, got {names}")

    def __getitem__(self, name: str) -> Attribute:
        for key, value in self.attributes:
            if key == name:
                return value
        raise KeyError(name)

    @property
    def may_round(self) -> bool:
        """True if a product's operands may be rounded to the type that the device multiplies fastest."""
        return ("precision", "default") in self.attributes

    def ints(self, name: str) -> tuple[int, ...]:
        """An attribute that is a tuple of integers: axes, starts, sizes."""
        return cast(tuple[int, ...], self[name])

    def pairs(self, name: str) -> tuple[tuple[int, int], ...]:
        """An attribute that is a tuple of (low, high)."""
        return cast(tuple[tuple[int, int], ...], self[name])

    def number(self, name: str) -> int:
        return cast(int, self[name])

    def text(self, name: str) -> str:
        return cast(str, self[name])

    @property
    def data(self) -> bytes:
        """The elements of a constant."""
        return cast(bytes, self["data"])

    @property
    def facts(self) -> OperatorKind:
        """The facts that the table has about its kind."""
        return KINDS[self.kind]

    @property
    def output(self) -> Value:
        (value,) = self.outputs
        return value

    @property
    def is_element(self) -> bool:
        """True if one output element is a function of input elements (see `operators`)."""
        return self.facts.sort != "anchor"


@dataclass(frozen=True, slots=True)
class Region:
    """Parameters, statements, results. Free values come from enclosing regions."""

    parameters: tuple[Value, ...]
    body: tuple[Statement, ...]
    results: tuple[Value, ...]
    known: Known = _known()


_Subject = TypeVar("_Subject", UOperator, Region)
_Fact = TypeVar("_Fact")


def once(find: Callable[[_Subject], _Fact]) -> Callable[[_Subject], _Fact]:
    """Caches a function of one operator or region: these never change, and passes ask for the same facts
    again and again."""
    name = f"{find.__module__}.{find.__name__}"

    @wraps(find)
    def found(subject: _Subject) -> _Fact:
        known = subject.known
        if name not in known:
            known[name] = find(subject)
        fact: _Fact = known[name]
        return fact

    return found


@dataclass(frozen=True, slots=True)
class LoopUTask:
    """A loop. Carried values start as `initial` and end as `outputs`.

    Counted loop: `trip_count` is set and `condition` is None; `body.parameters` is the int64 index (0-based,
    role *induction*) followed by the carried values. Loop with a condition: `condition` has the carried
    values as parameters and one bool[] result, and `body.parameters` is the carried values. `body.results`
    are the next carried values, of the same types.

    Parallel loop (counted only): the trips compute the tiles of an independent or a communicating axis. The
    trips are independent: each writes its own slice of every carried array, by `dynamic_update_slice` at a
    start that is affine in the index, and reads of the carried arrays at most that slice. They run in any
    order, side by side. `level`: what runs a trip. "unit": unit (first + p) mod n of n units runs trip p.
    "thread": the threads of all units share the trips, so all values in the body have one element, but for
    the carried arrays, and for arrays that begin `empty` there: each thread has them for itself.

    `stops_by`: position of a carried bool[] that the condition tests, so the trip that returns false is the
    last one. The rest of such a trip may be the first region of a branch on it (`stopping_branch`).

    `likely_trips`: what prices assume of a loop with a condition, where the program bounds the number. The
    two iterations in one of a loop that is unrolled with a guard count as two.

    `unroll`: so many iterations of a counted loop are to become one, as the program asks.
    """

    initial: tuple[Value, ...]
    outputs: tuple[Value, ...]
    body: Region
    condition: Region | None = None
    trip_count: int | None = None
    source: Source = NOWHERE
    parallel: bool = False
    first: int = 0
    level: str = "unit"
    stops_by: int | None = None
    likely_trips: int | None = None
    unroll: int = 1

    def __post_init__(self) -> None:
        if (self.condition is None) == (self.trip_count is None):
            raise ValueError("a loop has either a condition or a trip count")
        if self.likely_trips is not None and self.trip_count is not None:
            raise ValueError("a counted loop needs no likely trips")
        if self.unroll < 1 or (self.unroll > 1 and self.trip_count is None):
            raise ValueError(f"{self.unroll} iterations in one: at least one, and of a counted loop")
        if self.parallel and self.trip_count is None:
            raise ValueError("a parallel loop has a trip count")
        if self.first < 0 or (self.first and not self.parallel):
            raise ValueError(f"first unit {self.first}: one of a parallel loop, counted from 0")
        if self.level not in LEVELS or (self.level == "thread" and (self.first or not self.parallel)):
            raise ValueError(f"level {self.level!r} of a loop: {' or '.join(LEVELS)}, of a parallel loop")
        index = 0 if self.condition is not None else 1
        carried = tuple(v.type for v in self.initial)
        sides = [self.outputs, self.body.parameters[index:], self.body.results]
        if self.condition is not None:
            sides.append(self.condition.parameters)
        for side in sides:
            if tuple(v.type for v in side) != carried:
                raise ValueError("carried types of a loop differ")
        stops_by = self.stops_by
        if stops_by is not None and (self.condition is None or not 0 <= stops_by < len(carried)):
            raise ValueError(f"stops by {stops_by}: a carry of a loop with a condition")

    @property
    def carried(self) -> tuple[Value, ...]:
        """The carried parameters of the body (without the index)."""
        return self.body.parameters[len(self.body.parameters) - len(self.initial) :]

    @property
    def tested(self) -> tuple[Value, ...]:
        """The parameters of the condition; of a counted loop, those of the body."""
        return self.carried if self.condition is None else self.condition.parameters

    @property
    def index(self) -> Value | None:
        return self.body.parameters[0] if self.trip_count is not None else None

    @property
    def regions(self) -> tuple[Region, ...]:
        return (self.body,) if self.condition is None else (self.condition, self.body)

    @property
    def inputs(self) -> tuple[Value, ...]:
        return self.initial

    def keep(self, positions: Sequence[int]) -> LoopUTask:
        """The loop with the carried values at these positions only, in order."""
        if len(positions) == len(self.initial):
            return self
        index = () if self.index is None else (self.index,)
        condition, body = self.condition, self.body
        if condition is not None:
            condition = replace(condition, parameters=picked(condition.parameters, positions))
        stops_by = None if self.stops_by not in positions else positions.index(self.stops_by)
        return replace(
            self,
            initial=picked(self.initial, positions),
            outputs=picked(self.outputs, positions),
            condition=condition,
            body=replace(
                body,
                parameters=(*index, *picked(self.carried, positions)),
                results=picked(body.results, positions),
            ),
            stops_by=stops_by,
        )


@dataclass(frozen=True, slots=True)
class Stage:
    """Stage `number` of the `count` stages of a wavefront, all in one region. They do not depend on each
    other, and placement gives each its own share of the units."""

    number: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.count or self.count < 2:
            raise ValueError(f"stage {self.number} of {self.count}")


@dataclass(frozen=True, slots=True)
class BranchUTask:
    """n-way branch: `selector` is int32[] (clamped to the branch range); branches have no parameters.

    `stage`: the stage of a wavefront that this branch guards.
    """

    selector: Value
    branches: tuple[Region, ...]
    outputs: tuple[Value, ...]
    source: Source = NOWHERE
    stage: Stage | None = None

    def __post_init__(self) -> None:
        if not self.branches:
            raise ValueError("a branch needs at least one region")
        types = tuple(v.type for v in self.outputs)
        for region in self.branches:
            if region.parameters or tuple(v.type for v in region.results) != types:
                raise ValueError("branch results differ in type")

    @property
    def regions(self) -> tuple[Region, ...]:
        return self.branches

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.selector,)

    def keep(self, positions: Sequence[int]) -> BranchUTask:
        """The branch with the outputs at these positions only, in order."""
        if len(positions) == len(self.outputs):
            return self
        branches = tuple(replace(r, results=picked(r.results, positions)) for r in self.branches)
        return replace(self, branches=branches, outputs=picked(self.outputs, positions))


@dataclass(frozen=True, slots=True)
class StitchedUTask:
    """Element operators computed together, element by element, in one lane loop (made by `stitch`).

    `members` are element operators in order. At most one anchor, the last member, may close the group
    (`dynamic_update_slice`, `concatenate` as an anchor...): its operands are then computed on the fly. In
    its place may be several `reduce` of equal operand shape and axes, unit axes aside, that no member reads:
    one pass computes them all, and stores the elements that reach memory. `outputs` are the values that
    reach memory; every other member's value stays in registers. `inputs` are the values read from memory or
    scalar registers.
    """

    members: tuple[UOperator, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    source: Source = NOWHERE

    @property
    def regions(self) -> tuple[Region, ...]:
        return ()

    @property
    def reductions(self) -> tuple[UOperator, ...]:
        """The reductions that close the group; none if something else does, or nothing."""
        return tuple(m for m in self.members if m.kind == "reduce")


Statement = UOperator | LoopUTask | BranchUTask | StitchedUTask


@dataclass(frozen=True, slots=True)
class UProgram:
    """One region that becomes one custom call. `donated`: indices of parameters that may be overwritten."""

    name: str
    entry: Region
    donated: tuple[int, ...] = ()


def picked(values: Sequence[Value], positions: Sequence[int]) -> tuple[Value, ...]:
    """The values at some positions."""
    return tuple(values[position] for position in positions)


def regions_of(statement: Statement) -> tuple[Region, ...]:
    return () if isinstance(statement, UOperator) else statement.regions


def is_a(statement: Statement | None, *kinds: str) -> TypeGuard[UOperator]:
    """True if a statement is an operator of one of these kinds."""
    return isinstance(statement, UOperator) and statement.kind in kinds


def is_parallel(statement: Statement | None) -> TypeGuard[LoopUTask]:
    """True if a statement is a parallel loop."""
    return isinstance(statement, LoopUTask) and statement.parallel


def by_threads(statement: Statement | None) -> TypeGuard[LoopUTask]:
    """True if a statement is a parallel loop whose trips the threads of all units share."""
    return is_parallel(statement) and statement.level == "thread"


def performers(loop: LoopUTask, units: int) -> tuple[int, ...]:
    """The unit that runs each trip of a parallel loop."""
    return tuple((loop.first + trip) % units for trip in range(loop.trip_count or 0))


def alternatives(statement: Statement) -> Iterator[tuple[Value, ...]]:
    """Values that stand for one another: those of each carry of a loop, or each result of a branch."""
    if isinstance(statement, LoopUTask):
        results = statement.body.results, statement.outputs
        yield from zip(statement.initial, statement.carried, statement.tested, *results, strict=True)
    elif isinstance(statement, BranchUTask):
        yield from zip(statement.outputs, *(region.results for region in statement.branches), strict=True)


def operators_of(statement: Statement) -> tuple[UOperator, ...]:
    """The operator that a statement is, or the members of a stitched group; none for other statements."""
    if isinstance(statement, StitchedUTask):
        return statement.members
    return (statement,) if isinstance(statement, UOperator) else ()


def walk(root: Region | Statement) -> Iterator[Statement]:
    """Every statement of a region, or a statement and all in it; nested ones after the statement that holds
    them."""
    for statement in root.body if isinstance(root, Region) else (root,):
        yield statement
        for inner in regions_of(statement):
            yield from _walked(inner)


@once
def _walked(region: Region) -> tuple[Statement, ...]:
    return tuple(walk(region))


def places_of_loops(program: UProgram) -> tuple[Source, ...]:
    """The positions of the loops of a program, each once, in order of appearance."""
    loops = (each for each in walk(program.entry) if isinstance(each, LoopUTask))
    return tuple(dict.fromkeys(loop.source for loop in loops))


def regions_in(region: Region) -> Iterator[Region]:
    """The region and every region inside it, each before those that it holds."""
    yield region
    for statement in walk(region):
        yield from regions_of(statement)


def operators_in(root: Region | Statement) -> Iterator[UOperator]:
    """Every operator of a region or statement, nested and stitched ones included."""
    for statement in walk(root):
        yield from operators_of(statement)


def defined_in(root: Region | Statement) -> tuple[Value, ...]:
    """Every value that a region or statement defines, parameters of nested regions included."""
    if isinstance(root, Region):
        return _defined(root)
    if isinstance(root, StitchedUTask):
        return (*root.outputs, *(value for member in root.members for value in member.outputs))
    return (*root.outputs, *(value for region in regions_of(root) for value in _defined(region)))


@once
def _defined(region: Region) -> tuple[Value, ...]:
    return (*region.parameters, *(value for statement in region.body for value in defined_in(statement)))


# -- definitions and uses ------------------------------------------------------------------------------------
@once
def definitions(region: Region) -> Mapping[Value, Statement]:
    """The statements of a region by the values that they define, without those of nested regions."""
    return {v: s for s in region.body for v in s.outputs}


@once
def positions_of(region: Region) -> Mapping[Value, int]:
    """The positions of the statements of a region by the values that they define."""
    return {v: n for n, s in enumerate(region.body) for v in s.outputs}


@once
def readers(region: Region) -> Mapping[Value, Sequence[int]]:
    """The positions of the statements of a region that read a value, themselves or inside."""
    found: dict[Value, list[int]] = {}
    for position, statement in enumerate(region.body):
        for value in reads(statement):
            found.setdefault(value, []).append(position)
    return found


def integer_of(operator: UOperator) -> int | None:
    """The number in an integer constant of one element; None for any other operator."""
    if operator.kind != "constant":
        return None
    type_ = operator.output.type
    if not type_.is_scalar or type_.dtype not in INTEGERS:
        return None
    size = size_in(operator.data)
    return int.from_bytes(operator.data, "little", signed=type_.dtype in SIGNED) if size is None else size


@once
def highest_id(region: Region) -> int:
    """The highest id of a value that a region defines, nested regions included; -1 if it defines none."""
    ids = [value.id for value in region.parameters]
    for statement in region.body:
        ids += [value.id for value in statement.outputs]
        ids += [value.id for member in operators_of(statement) for value in member.outputs]
        ids += [highest_id(inner) for inner in regions_of(statement)]
    return max(ids, default=-1)


@once
def free_values(region: Region) -> tuple[Value, ...]:
    """Every value that a region uses but does not define, nested regions included."""
    found: dict[Value, None] = {}
    inside = set(region.parameters)
    for statement in region.body:
        found.update(dict.fromkeys(v for v in reads(statement) if v not in inside))
        inside.update(statement.outputs)
    found.update(dict.fromkeys(v for v in region.results if v not in inside))
    return tuple(found)


def used_in(region: Region) -> set[Value]:
    """The results of a region, and every value that its statements read from around them."""
    return set(region.results).union(*map(reads, region.body))


def reads(statement: Statement) -> tuple[Value, ...]:
    """Every outside value that a statement reads, nested regions included."""
    found = dict.fromkeys(statement.inputs)
    for region in regions_of(statement):
        found.update(dict.fromkeys(free_values(region)))
    return tuple(found)
