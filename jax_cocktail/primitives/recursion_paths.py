"""Ways through the body of a recursive function, and what can be known of a call before it runs.

Where the tree of calls follows from integers alone (and from what all calls share), it can be walked first:
which calls there are, on which path each goes, and how high it stands above its leaves. The calls of one
height and path then run side by side (`recursion_levels`), as Cortex (MLSys'21) does for trees that are known
to the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from jax_cocktail.primitives.jaxprs import nested_jaxprs, open_jaxpr
from jax_cocktail.primitives.recursion_blocks import Block, Goto, Invoke, Leave, Step, Switch
from jax_cocktail.primitives.recursion_machine import Plan
from jax_cocktail.primitives.recursion_structure import Atom, Op, Var
from jax_cocktail.primitives.recursion_task import is_float, row_bytes

WEIGHT_BYTES = 16 << 10  # of a matrix that is worth reading once for several calls
MOST_PATHS = 16
MOST_SITES = 8  # calls that one call makes


@dataclass(frozen=True, eq=False, slots=True)
class Path:
    """One way from the beginning of a function to its end.

    `choices`: the sides taken; `steps`: everything that runs, in order; `calls` of the function, each with
    what it returns; `results`: what is returned.
    """

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
            if isinstance(step, Op) and not found.isdisjoint(step.inputs):
                found.update(step.outputs)
        return frozenset(found)


@dataclass(frozen=True, eq=False, slots=True)
class Levels:
    """A function whose calls can be ordered before they run.

    `integers`: positions of the arguments that the tree of calls follows from, `floats`: of the others.
    `down`: arguments of a call are made by its caller, so callers come first; `up`: what a call returns is
    used by its caller.
    """

    plan: Plan
    paths: tuple[Path, ...]
    integers: tuple[int, ...]
    floats: tuple[int, ...]

    @property
    def down(self) -> bool:
        return bool(self.floats)

    @property
    def up(self) -> bool:
        return any(_uses_received(path) for path in self.paths) or not self.down


def levels_of(plan: Plan) -> Levels | str:
    """How the calls of a task can be ordered, or why they cannot."""
    paths = _ways(plan)
    if isinstance(paths, str):
        return paths
    steps = (step for block in plan.blocks for step in block.steps)
    if any(isinstance(step, Op) and _hides_loop(step.name, step) for step in steps):
        return "calls that skip a loop would run it side by side with others"
    arguments = plan.arguments[0]
    floats = tuple(k for k, v in enumerate(arguments) if is_float(v.aval))
    integers = tuple(k for k in range(len(arguments)) if k not in floats)
    if any(arguments[k].aval.shape for k in integers):
        return "there are arrays of integers among the arguments"
    moving = frozenset(arguments[k] for k in floats)
    numbers = plan.task.numbers
    for path in paths:
        unknown = path.depends(moving | path.received)
        returned = path.depends(path.received)
        if not unknown.isdisjoint(_tests(plan.blocks, plan.entries[0], path)):
            return "which way it goes depends on numbers that are not integers"
        for invoke, _ in path.calls:
            passed = invoke.call.inputs[1 + numbers :]
            told = [*invoke.call.inputs[1 : 1 + numbers], *(passed[k] for k in integers)]
            if any(isinstance(a, Var) and a in unknown for a in told):
                return "integer arguments of calls depend on results or on numbers that are not integers"
            if any(isinstance(a, Var) and a in returned for a in passed):
                return "arguments of calls depend on results of other calls"
    return Levels(plan, paths, integers, floats)


def independent_paths(plan: Plan) -> tuple[Path, ...] | str:
    """The ways through the function of a task, if no call depends on what another one of the same body
    returns; else why not."""
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


def _ways(plan: Plan) -> tuple[Path, ...] | str:
    """The ways through the function of a task, if it is one and some call makes two calls."""
    if len(plan.task.functions) > 1:
        return "several functions call each other"
    if any(block.is_header for block in plan.blocks):
        return "there are calls in a loop"
    paths = tuple(islice(_paths(plan.blocks, plan.entries[0], (), (), ()), MOST_PATHS + 1))
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


def _paths(
    blocks: Sequence[Block],
    at: int,
    choices: tuple[int, ...],
    steps: tuple[Step, ...],
    calls: tuple[Any, ...],
) -> Iterator[Path]:
    block = blocks[at]
    steps = (*steps, *block.steps)
    end = block.end
    if isinstance(end, Leave):
        yield Path(choices, steps, calls, end.results)
    elif isinstance(end, Goto):
        yield from _paths(blocks, end.block, choices, steps, calls)
    elif isinstance(end, Invoke):
        received = blocks[end.block].received
        yield from _paths(blocks, end.block, choices, steps, (*calls, (end, received)))
    else:
        assert isinstance(end, Switch)
        for number, successor in enumerate(end.blocks):
            yield from _paths(blocks, successor, (*choices, number), steps, calls)


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
