"""Computes the liveness of memory roots over a structured program, as bit masks over positions.

Every statement, loop entry, loop end and branch end has a position (a bit). The mask of a root has the bits
of all positions at which its bytes must be intact. Two roots may share memory if their masks are disjoint, or
overlap only at positions where one is read in step with the write of the other: those pairs are `related`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from jax_cocktail.schedule.memory.in_place import Layouts, in_place_pairs
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    UOperator,
    UProgram,
    free_values,
    walk,
)
from jax_cocktail.utask.layout import Layout
from jax_cocktail.utask.plan import scratch_bytes
from jax_cocktail.utask.types import Value

Wish = tuple[int, Value, Value]  # (nesting depth, producer side, destination side)


@dataclass(slots=True)
class Liveness:
    """`mask[root]`: positions; `related[position]`: root pairs that may share memory there;
    `wishes`: pairs that save a copy when they share memory; `same`: pairs that must share; `scratch`: the
    positions of operators that use scratch memory."""

    mask: dict[Value, int] = field(default_factory=lambda: defaultdict(int))
    related: dict[int, set[frozenset[Value]]] = field(default_factory=lambda: defaultdict(set))
    wishes: list[Wish] = field(default_factory=list)
    same: list[tuple[Value, Value]] = field(default_factory=list)
    scratch: int = 0


def liveness(program: UProgram, layouts: Mapping[Value, Layout]) -> Liveness:
    views = {s.outputs[0]: s for s in walk(program.entry) if isinstance(s, UOperator) and s.outputs}
    walker = _Walker(Layouts(layouts, views))
    results = walker.roots(program.entry.results)
    walker.mark(results, walker.position())  # all of them at once: a result may be an overwritten operand
    live = walker.region(program.entry, results, 0)
    start = walker.position()
    walker.mark(live | walker.roots(program.entry.parameters), start)
    walker.mark(set(), walker.position())
    return walker.result


class _Walker:
    def __init__(self, memory: Layouts) -> None:
        self.memory = memory
        self.layouts = memory.layouts
        self.result = Liveness()
        self._next = 0
        self._since: dict[Value, int] = {}  # roots live at the last position -> first position

    def position(self) -> int:
        self._next += 1
        return self._next - 1

    def roots(self, values: Iterable[Value]) -> set[Value]:
        return {self.layouts[v].root for v in values if v in self.layouts}

    def mark(self, live: set[Value], position: int) -> None:
        """Notes the live roots at a position; positions come in order. Bits are written by intervals."""
        since = self._since
        for root in since.keys() - live:
            self.result.mask[root] |= (1 << position) - (1 << since.pop(root))
        for root in live.difference(since):
            since[root] = position

    def _transfer(self, sources: tuple[Value, ...], targets: tuple[Value, ...], at: int, depth: int) -> None:
        """Notes parallel copies at a position; shared memory saves each of them. A target whose old value is
        itself copied elsewhere must stay apart from its new value."""
        times = Counter(self.layouts[source].root for source in sources if source in self.layouts)
        for source, target in zip(sources, targets, strict=True):
            root = self.memory.whole(source)
            elsewhere = times[target] > (self.memory.root(source) == target)
            if root is not None and target in self.layouts and (root == target or not elsewhere):
                self.result.related[at].add(frozenset((root, target)))
                self.result.wishes.append((depth, root, target))

    def region(self, region: Region, live: set[Value], depth: int) -> set[Value]:
        """Walks backwards; returns the roots that are live before the region."""
        for statement in reversed(region.body):
            if isinstance(statement, LoopUTask):
                live = self._loop(statement, live, depth)
            elif isinstance(statement, BranchUTask):
                live = self._branch(statement, live, depth)
            else:
                live = self._simple(statement, live, depth)
        return live

    def _simple(self, statement: Statement, live: set[Value], depth: int) -> set[Value]:
        if isinstance(statement, UOperator) and self._is_view(statement):
            return live  # moves nothing; its root is read by the view's users
        at = self.position()
        reads, writes = self.roots(statement.inputs), self.roots(statement.outputs)
        self.mark(live | reads | writes, at)
        if isinstance(statement, UOperator) and scratch_bytes(statement):
            self.result.scratch |= 1 << at
        for source, target, wished in in_place_pairs(statement, self.memory):
            self.result.related[at].add(frozenset((source, target)))
            if wished:
                self.result.wishes.append((depth, source, target))
        return (live - writes) | reads

    def _is_view(self, statement: UOperator) -> bool:
        if not statement.outputs:  # a barrier of a finished program
            return False
        layout = self.layouts.get(statement.outputs[0])
        return layout is not None and layout.root != statement.outputs[0]

    def _loop(self, loop: LoopUTask, live: set[Value], depth: int) -> set[Value]:
        """Carried parameter, condition parameter and output of a carry share one buffer."""
        outputs = self.roots(loop.outputs)
        carried = self.roots(loop.carried)
        for out, parameter in zip(loop.outputs, loop.carried, strict=True):
            if out in self.layouts:
                self.result.same.append((parameter, out))
        beyond = (live - outputs) | self.roots(v for r in loop.regions for v in free_values(r))
        results = self.roots(loop.body.results)
        end = self.position()
        self.mark(beyond | results | carried, end)
        self._transfer(loop.body.results, loop.carried, end, depth + 1)
        body = self.region(loop.body, beyond | results, depth + 1) - carried
        if loop.condition is not None:
            for parameter, home in zip(loop.condition.parameters, loop.carried, strict=True):
                if home in self.layouts:
                    self.result.same.append((home, parameter))
            held = body | beyond | carried
            self.mark(held, self.position())
            self.region(loop.condition, held, depth + 1)
        entry = self.position()
        initial = self.roots(loop.initial)
        self.mark(beyond | initial | carried, entry)
        self._transfer(loop.initial, loop.carried, entry, depth)
        return beyond | initial

    def _branch(self, branch: BranchUTask, live: set[Value], depth: int) -> set[Value]:
        outputs = self.roots(branch.outputs)
        beyond = live - outputs
        before = set(beyond)
        for region in branch.branches:
            results = self.roots(region.results)
            end = self.position()
            self.mark(beyond | outputs | results, end)
            self._transfer(region.results, branch.outputs, end, depth)
            before |= self.region(region, beyond | results, depth)
        self.mark(before, self.position())
        return before
