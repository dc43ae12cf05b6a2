"""Ways through the body of a recursive function, and what can be known of a call before it runs.

Where the tree of calls follows from integers alone (and from what all calls share), it can be walked first:
which calls there are, on which path each goes, and how high it stands above its leaves. The calls of one
height and path then run side by side (`recursion.levels`), as Cortex (MLSys'21) does for trees that are known
to the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from jax_cocktail.primitives.jaxprs import nested_jaxprs, open_jaxpr
from jax_cocktail.recursion.blocks import MOVE, Block, Goto, Invoke, Leave, Step, Switch
from jax_cocktail.recursion.guards import branches, guarded, is_cheap
from jax_cocktail.recursion.machine import StackPlan, planned
from jax_cocktail.recursion.structure import Atom, Op, Var
from jax_cocktail.recursion.task import Aval, is_float, row_bytes

WEIGHT_BYTES = 16 << 10  # of a matrix that is worth reading once for several calls
FEW_PATHS = 4  # of a function that keeps its branches
MOST_PATHS = 16  # of all functions
MOST_SITES = 32  # calls that one call makes
ARRAY_BYTES = 64  # of an array of integers that is kept of every call


@dataclass(frozen=True, eq=False, slots=True)
class Path:
    """One way from the beginning of a function to its end.

    `function`: which one; `choices`: the sides taken; `steps`: everything that runs, in order; `calls` of
    functions, each with what it returns; `results`: what is returned.
    """

    function: int
    choices: tuple[int, ...]
    steps: tuple[Step, ...]
    calls: tuple[tuple[Invoke, tuple[Var, ...]], ...]
    results: tuple[Atom, ...]

    @property
    def received(self) -> frozenset[Var]:
        """Results of calls."""
        return frozenset(v for _, outputs in self.calls for v in outputs)

    def depends(self, on: frozenset[Var]) -> frozenset[Var]:
        """`on`, and what is made of it."""
        found = set(on)
        for step in self.steps:
            if isinstance(step, Op) and step.name == MOVE:
                found.update(v for a, v in zip(step.inputs, step.outputs, strict=True) if a in found)
            elif isinstance(step, Op) and not found.isdisjoint(step.inputs):
                found.update(step.outputs)
        return frozenset(found)


@dataclass(frozen=True, slots=True)
class Columns:
    """Some values of every function in tables that all functions share, a row for a call.

    `types`: of the tables; `positions`: by function, which of its values they are; `places`: the table of
    each of these.
    """

    types: tuple[Aval, ...]
    positions: tuple[tuple[int, ...], ...]
    places: tuple[tuple[int, ...], ...]


def columns_of(functions: Sequence[Sequence[Aval]], wanted: Callable[[Aval], bool]) -> Columns:
    """The tables of the values that are wanted: values of one type lie in one, if no call has both."""
    types: list[Aval] = []
    positions, places = [], []
    for avals in functions:
        own = [k for k, aval in enumerate(avals) if wanted(aval)]
        found: list[int] = []
        for k in own:
            same = (n for n, t in enumerate(types) if t == avals[k] and n not in found)
            place = next(same, len(types))
            types += [avals[k]] if place == len(types) else []
            found.append(place)
        positions.append(tuple(own))
        places.append(tuple(found))
    return Columns(tuple(types), tuple(positions), tuple(places))


@dataclass(frozen=True, eq=False, slots=True)
class Levels:
    """Functions whose calls can be ordered before they run.

    `integers`: the arguments that the tree of calls follows from, `floats`: the others; `results`: what calls
    return. `down`: arguments of a call are made by its caller, so callers come first; `up`: what a call
    returns is used by its caller.
    """

    plan: StackPlan
    paths: tuple[Path, ...]
    integers: Columns
    floats: Columns
    results: Columns

    @property
    def down(self) -> bool:
        return bool(self.floats.types)

    @property
    def up(self) -> bool:
        return any(_uses_received(path) for path in self.paths) or not self.down

    @property
    def has_guards(self) -> bool:
        """Whether there are calls that are not made each time."""
        return any(invoke.guard is not None for path in self.paths for invoke, _ in path.calls)

    @property
    def most_calls(self) -> int:
        """That one call makes."""
        return max(len(path.calls) for path in self.paths)


def levels_of(plan: StackPlan) -> Levels | str:
    """How the calls of a task can be ordered, or why they cannot."""
    if _loops_over_calls(plan):
        plan = planned(plan.task, most_trips=MOST_SITES)
    if _loops_over_calls(plan):
        return "there are calls in a loop, of which it is not known how many, or that are too many"
    plan = _with_fewer_paths(plan)
    steps = (step for block in plan.blocks for step in block.steps)
    if any(isinstance(step, Op) and _hides_loop(step.name, step) for step in steps):
        return "calls that skip a loop would run it side by side with others"
    paths = _ways(plan)
    if isinstance(paths, str):
        return paths
    types = [[v.aval for v in own] for own in plan.arguments]
    integers = columns_of(types, lambda aval: not is_float(aval))
    floats = columns_of(types, is_float)
    if any(aval.shape and row_bytes((aval,)) > ARRAY_BYTES for aval in integers.types):
        return "there are large arrays of integers among the arguments"
    moving = frozenset(
        own[k] for own, positions in zip(plan.arguments, floats.positions, strict=True) for k in positions
    )
    for path in paths:
        why = _unordered(plan, path, integers, moving)
        if why:
            return why
    results = columns_of([f.results for f in plan.task.functions], lambda aval: True)
    return Levels(plan, paths, integers, floats, results)


def _loops_over_calls(plan: StackPlan) -> bool:
    return any(block.is_header for block in plan.blocks)


def _with_fewer_paths(plan: StackPlan) -> StackPlan:
    """Branches become guards where there are many: cheap ones first, the innermost of the others if need
    be."""
    blocks = plan.blocks
    most = max(MOST_PATHS // len(plan.entries), 2)
    for function, at in enumerate(plan.entries):
        while not _at_most(FEW_PATHS, blocks, function, at):
            found = branches(blocks, function)
            cheap = [branch for branch in found if is_cheap(blocks, branch)]
            if not cheap and _at_most(most, blocks, function, at):
                break
            if not found:
                break
            blocks = guarded(blocks, cheap or found)
    return replace(plan, blocks=blocks)


def _at_most(count: int, blocks: Sequence[Block], function: int, at: int) -> bool:
    return len(list(islice(_paths_of(blocks, function, at), count + 1))) <= count


def _unordered(plan: StackPlan, path: Path, integers: Columns, moving: frozenset[Var]) -> str | None:
    """Why the calls of a path cannot be known from integers. `moving`: arguments that are none."""
    numbers = plan.task.numbers
    unknown = path.depends(moving | path.received)
    returned = path.depends(path.received)
    if not unknown.isdisjoint(_tests(plan.blocks, plan.entries[path.function], path)):
        return "which way it goes depends on numbers that are not integers"
    for invoke, _ in path.calls:
        passed = invoke.call.inputs[1 + numbers :]
        positions = integers.positions[invoke.call.function]
        told = [invoke.guard, *invoke.call.inputs[1 : 1 + numbers], *(passed[k] for k in positions)]
        if any(isinstance(a, Var) and a in unknown for a in told):
            return "integer arguments of calls depend on results or on numbers that are not integers"
        if any(isinstance(a, Var) and a in returned for a in passed):
            return "arguments of calls depend on results of other calls"
    return None


def independent_paths(plan: StackPlan) -> tuple[Path, ...] | str:
    """The ways through the function of a task, if no call depends on what another one of the same body
    returns; else why not."""
    if len(plan.task.functions) > 1:
        return "several functions call each other"
    if _loops_over_calls(plan):
        return "there are calls in a loop"
    paths = _ways(plan)
    if isinstance(paths, str):
        return paths
    for path in paths:
        returned = path.depends(path.received)
        if not returned.isdisjoint(_tests(plan.blocks, plan.entries[0], path)):
            return "which way it goes depends on results of calls"
        passed = (a for invoke, _ in path.calls for a in invoke.call.inputs[1:])
        if any(isinstance(a, Var) and a in returned for a in passed):
            return "arguments of calls depend on results of other calls"
    return paths


def _ways(plan: StackPlan) -> tuple[Path, ...] | str:
    """The ways through the functions of a task, if there are few and some call makes two calls."""
    every = chain.from_iterable(_paths_of(plan.blocks, k, at) for k, at in enumerate(plan.entries))
    paths = tuple(islice(every, MOST_PATHS + 1))
    if len(paths) > MOST_PATHS or max(len(p.calls) for p in paths) > MOST_SITES:
        return "there are too many ways through the function"
    if max(len(p.calls) for p in paths) < 2:
        return "no call makes two calls, so none run side by side"
    return paths


def worth(levels: Levels) -> bool:
    """Whether calls have so much in common (matrices of weights) that it pays to run them together."""
    shared = levels.plan.shared
    return any(
        isinstance(step, Op)
        and step.name == "dot_general"
        and any(a in shared and row_bytes((a.aval,)) >= WEIGHT_BYTES for a in step.inputs)
        for path in levels.paths
        for step in path.steps
    )


def _hides_loop(name: str, item: Any) -> bool:
    """Whether a loop without a bound stands where lanes that skip it would run it under vmap."""
    inner = [e for jaxpr in nested_jaxprs(item) for e in open_jaxpr(jaxpr).eqns]
    if name in ("cond", "while") and any(_loops(e) for e in inner):
        return True
    return any(_hides_loop(e.primitive.name, e) for e in inner)


def _loops(equation: Any) -> bool:
    if equation.primitive.name in ("while", "recursion"):
        return True
    return any(_loops(e) for jaxpr in nested_jaxprs(equation) for e in open_jaxpr(jaxpr).eqns)


def _paths_of(blocks: Sequence[Block], function: int, at: int) -> Iterator[Path]:
    """The ways through a function that begins at a block."""
    return _paths(blocks, Path(function, (), (), (), ()), at)


def _paths(blocks: Sequence[Block], before: Path, at: int) -> Iterator[Path]:
    """The ways on from a block. `before`: what lies behind."""
    block = blocks[at]
    so_far = replace(before, steps=(*before.steps, *block.steps))
    end = block.end
    if isinstance(end, Leave):
        yield replace(so_far, results=end.results)
    elif isinstance(end, Goto):
        yield from _paths(blocks, so_far, end.block)
    elif isinstance(end, Invoke):
        call = (end, blocks[end.block].received)
        yield from _paths(blocks, replace(so_far, calls=(*so_far.calls, call)), end.block)
    else:
        assert isinstance(end, Switch)
        for number, successor in enumerate(end.blocks):
            yield from _paths(blocks, replace(so_far, choices=(*so_far.choices, number)), successor)


def _tests(blocks: Sequence[Block], at: int, path: Path) -> Iterator[Var]:
    """What the choices of a path look at."""
    choices = iter(path.choices)
    while not isinstance(blocks[at].end, Leave):
        end = blocks[at].end
        if isinstance(end, Switch):
            if isinstance(end.index, Var):
                yield end.index
            at = end.blocks[next(choices)]
        else:
            assert isinstance(end, Goto | Invoke)
            at = end.block


def _uses_received(path: Path) -> bool:
    """Whether anything is made of what calls return (their tokens aside)."""
    received = frozenset(v for _, outputs in path.calls for v in outputs[1:])
    tainted = path.depends(received)
    if any(isinstance(a, Var) and a in tainted for a in path.results):
        return True
    return any(
        isinstance(a, Var) and a in tainted
        for step in path.steps
        if not isinstance(step, Op)
        for a in step.inputs
    )
