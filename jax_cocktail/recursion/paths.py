"""Paths through the body of a recursive function, and the properties of a call that are known before it runs.

If the call tree depends only on integers and on values that all calls share, an inspector can walk it first.
It finds all calls, their paths and their heights above the leaves. Calls of one height and path then run
together (`recursion.levels`), as in Cortex (MLSys'21) for trees that the host knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

from jax_cocktail.primitives.jaxprs import equations_inside
from jax_cocktail.recursion.blocks import MOVE, BasicBlock, Goto, Invoke, Keep, Leave, Step, Switch
from jax_cocktail.recursion.guards import COSTLY, ENDLESS, branches, contains, guarded, is_cheap, uses
from jax_cocktail.recursion.machine import StackPlan, planned
from jax_cocktail.recursion.structure import Atom, Op, Var
from jax_cocktail.recursion.task import Aval, is_float, placed, row_bytes

WEIGHT_BYTES = 16 << 10  # a matrix from this size upwards is worth reading once for several calls
FEW_PATHS = 4  # a function with at most this many paths keeps its branches
MOST_PATHS = 16  # in all functions
MOST_BODIES = 8  # with more, branches become guards if that does not double the work
MOST_SITES = 32  # calls made by one call
_SKIPPING = frozenset({"cond", "while"})  # primitives that may skip the equations inside
ARRAY_BYTES = 64  # of an integer array that is stored for every call


@dataclass(frozen=True, eq=False, slots=True)
class Path:
    """One path from the entry of a function to its end.

    `function`: its number; `choices`: the sides taken; `steps`: all steps in order; `calls`: the calls, each
    with the variables of its results; `results`: the values returned.
    """

    function: int
    choices: tuple[int, ...]
    steps: tuple[Step, ...]
    calls: tuple[tuple[Invoke, tuple[Var, ...]], ...]
    results: tuple[Atom, ...]

    @property
    def received(self) -> frozenset[Var]:
        """The results of calls."""
        return frozenset(v for _, outputs in self.calls for v in outputs)

    def depends(self, on: frozenset[Var]) -> frozenset[Var]:
        """The variables `on` and all that depend on them."""
        found = set(on)
        for step in self.steps:
            if isinstance(step, Op) and step.name == MOVE:
                found.update(v for a, v in zip(step.inputs, step.outputs, strict=True) if a in found)
            elif isinstance(step, Op) and not found.isdisjoint(step.inputs):
                found.update(step.outputs)
        return frozenset(found)


@dataclass(frozen=True, slots=True)
class Columns:
    """Some values of each function in tables that all functions share, with one row per call.

    `types`: the row types of the tables; `positions`: for each function, the positions of these values;
    `places`: the table of each.
    """

    types: tuple[Aval, ...]
    positions: tuple[tuple[int, ...], ...]
    places: tuple[tuple[int, ...], ...]


def columns_of(functions: Sequence[Sequence[Aval]], wanted: Callable[[Aval], bool]) -> Columns:
    """The tables of the wanted values. Values of one type share a table if no call has both."""
    types: list[Aval] = []
    positions, places = [], []
    for avals in functions:
        own = {k: aval for k, aval in enumerate(avals) if wanted(aval)}
        positions.append(tuple(own))
        places.append(tuple(placed(own, types).values()))
    return Columns(tuple(types), tuple(positions), tuple(places))


@dataclass(frozen=True, eq=False, slots=True)
class LevelPlan:
    """Functions whose calls can be ordered before they run.

    `kinds`: the number of each path's body; paths that compute the same have one (`recursion.alike`);
    `integers`: the arguments that determine the call tree; `floats`: the other arguments; `results`: the
    results of calls. `down`: callers compute arguments of their callees, so callers run first; `up`: callers
    use the results of their callees.
    """

    plan: StackPlan
    paths: tuple[Path, ...]
    kinds: tuple[int, ...]
    integers: Columns
    floats: Columns
    results: Columns

    @property
    def bodies(self) -> tuple[Path, ...]:
        """The first path of each kind."""
        return tuple(self.paths[self.kinds.index(kind)] for kind in range(max(self.kinds) + 1))

    @property
    def down(self) -> bool:
        return bool(self.floats.types)

    @property
    def up(self) -> bool:
        return any(_uses_received(path) for path in self.paths) or not self.down

    @property
    def has_guards(self) -> bool:
        """True if some calls are conditional."""
        return any(invoke.guard is not None for path in self.paths for invoke, _ in path.calls)

    @property
    def most_calls(self) -> int:
        """The most calls that one call makes."""
        return max(len(path.calls) for path in self.paths)


def levels_of(plan: StackPlan) -> LevelPlan | str:
    """Orders the calls of a task, or returns the reason why that is impossible."""
    if _loops_over_calls(plan):
        plan = planned(plan.task, most_trips=MOST_SITES)
    if _loops_over_calls(plan):
        return "there are calls in a loop with an unknown or too large trip count"
    return _levels(_with_fewer_paths(plan))


def _levels(plan: StackPlan) -> LevelPlan | str:
    steps = (step for block in plan.blocks for step in block.steps)
    if any(isinstance(step, Op) and _hides_loop(step) for step in steps):
        return "a branch contains a loop, which calls that skip it would run too"
    paths = _ways(plan)
    if isinstance(paths, str):
        return paths
    types = [[v.aval for v in own] for own in plan.arguments]
    integers = columns_of(types, lambda aval: not is_float(aval))
    floats = columns_of(types, is_float)
    if any(aval.shape and row_bytes((aval,)) > ARRAY_BYTES for aval in integers.types):
        return "an argument is a large array of integers"
    moving = frozenset(
        own[k] for own, positions in zip(plan.arguments, floats.positions, strict=True) for k in positions
    )
    for path in paths:
        why = _unordered(plan, path, integers, moving)
        if why:
            return why
    results = columns_of([f.results for f in plan.task.functions], lambda aval: True)
    return LevelPlan(plan, paths, tuple(range(len(paths))), integers, floats, results)


def predicated(levels: LevelPlan) -> LevelPlan:
    """The levels with guards in place of branches if there are many bodies and one that runs all sides is not
    much slower; else the argument."""
    if len(levels.bodies) <= MOST_BODIES:
        return levels
    plan = levels.plan
    for function in range(len(plan.entries)):
        while found := branches(plan.blocks, function):
            plan = replace(plan, blocks=guarded(plan.blocks, found))
    made = _levels(plan)
    if isinstance(made, str) or len(made.paths) > MOST_BODIES:
        return levels
    return made if _mean_work(made) <= 2 * _mean_work(levels) else levels


def _mean_work(levels: LevelPlan) -> float:
    """The number of costly steps of a path, on average."""
    steps = [step for path in levels.paths for step in path.steps]
    costly = [s for s in steps if isinstance(s, Keep) or (isinstance(s, Op) and uses(s, COSTLY))]
    return len(costly) / len(levels.paths)


def _loops_over_calls(plan: StackPlan) -> bool:
    return any(block.is_header for block in plan.blocks)


def _with_fewer_paths(plan: StackPlan) -> StackPlan:
    """Replaces branches by guards if there are too many paths: first the cheap ones, then, if needed, the
    innermost of the others."""
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


def _at_most(count: int, blocks: Sequence[BasicBlock], function: int, at: int) -> bool:
    return len(list(islice(_paths_of(blocks, function, at), count + 1))) <= count


def _unordered(plan: StackPlan, path: Path, integers: Columns, moving: frozenset[Var]) -> str | None:
    """The reason why integers do not determine the calls of a path. `moving`: non-integer arguments."""
    numbers = plan.task.numbers
    unknown = path.depends(moving | path.received)
    returned = path.depends(path.received)
    if not unknown.isdisjoint(_tests(plan.blocks, plan.entries[path.function], path)):
        return "a branch depends on non-integer values or results of calls"
    for invoke, _ in path.calls:
        passed = invoke.call.inputs[1 + numbers :]
        positions = integers.positions[invoke.call.function]
        told = [invoke.guard, *invoke.call.inputs[1 : 1 + numbers], *(passed[k] for k in positions)]
        if any(isinstance(a, Var) and a in unknown for a in told):
            return "integer arguments of calls depend on non-integer values or results of calls"
        if any(isinstance(a, Var) and a in returned for a in passed):
            return "arguments of calls depend on results of other calls"
    return None


def independent_paths(plan: StackPlan) -> tuple[Path, ...] | str:
    """The paths through the function of a task if calls of one body are independent; else the reason why they
    are not."""
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
            return "a branch depends on results of calls"
        passed = (a for invoke, _ in path.calls for a in invoke.call.inputs[1:])
        if any(isinstance(a, Var) and a in returned for a in passed):
            return "arguments of calls depend on results of other calls"
    return paths


def _ways(plan: StackPlan) -> tuple[Path, ...] | str:
    """The paths through the functions of a task if there are few and some call makes two calls; else the
    reason against them."""
    every = chain.from_iterable(_paths_of(plan.blocks, k, at) for k, at in enumerate(plan.entries))
    paths = tuple(islice(every, MOST_PATHS + 1))
    if len(paths) > MOST_PATHS or max(len(p.calls) for p in paths) > MOST_SITES:
        return "there are too many paths through the function"
    if max(len(p.calls) for p in paths) < 2:
        return "no call makes two calls, so there is no parallelism"
    return paths


def worth(levels: LevelPlan) -> bool:
    """True if calls share matrices of weights that are large enough for grouping calls to pay."""
    shared = levels.plan.shared
    return any(
        isinstance(step, Op)
        and step.name == "dot_general"
        and any(a in shared and row_bytes((a.aval,)) >= WEIGHT_BYTES for a in step.inputs)
        for path in levels.paths
        for step in path.steps
    )


def _hides_loop(step: Op) -> bool:
    """True if a branch or loop contains an unbounded loop, which vmap would run for skipped calls too."""
    if step.name in _SKIPPING:
        return contains(step, ENDLESS)
    return any(e.primitive.name in _SKIPPING and contains(e, ENDLESS) for e in equations_inside(step))


def _paths_of(blocks: Sequence[BasicBlock], function: int, at: int) -> Iterator[Path]:
    """The paths through a function from its entry block."""
    return _paths(blocks, Path(function, (), (), (), ()), at)


def _paths(blocks: Sequence[BasicBlock], before: Path, at: int) -> Iterator[Path]:
    """The paths from a block on. `before`: the path up to it."""
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


def _tests(blocks: Sequence[BasicBlock], at: int, path: Path) -> Iterator[Var]:
    """The variables that a path's branches test."""
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
    """True if a path uses results of calls, apart from tokens."""
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
