"""The tree of an emitted program: its loops, branches, stages and barriers, and the edges between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from jax_cocktail.codegen.stamps import is_free
from jax_cocktail.cost.price import statement_seconds
from jax_cocktail.cost.work import trips, waits
from jax_cocktail.device.machine import Machine
from jax_cocktail.report.values import Flow, Node
from jax_cocktail.stitch.edges import Edge
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    UOperator,
    UProgram,
    by_threads,
    is_a,
    operators_of,
    regions_of,
)
from jax_cocktail.utask.operators import BARRIERS, LEAVES

_LONGEST = 200  # characters of the names of operators


def operator_name(operator: UOperator) -> str:
    """Its kind; a reduction says of what."""
    return f"reduce_{operator.text('op')}" if operator.kind == "reduce" else operator.kind


def tree_of(
    program: UProgram, units: int, machine: Machine, edges: Sequence[Edge]
) -> tuple[tuple[Node, ...], tuple[Flow, ...]]:
    """The nodes of a planned program and the flows between them, from its edges.

    A node is made of each loop, branch, barrier and lane loop. What takes no time (views, a few scalars) is
    one only where a region has nothing else; its edges then belong to the node around it.
    """
    maker = _Maker(statement_seconds(program, units, machine))
    nodes = tuple(maker.region(program.entry, -1))
    return nodes, _flows(edges, maker.numbers)


def _flows(edges: Sequence[Edge], numbers: Mapping[int, int]) -> tuple[Flow, ...]:
    """Those with most bytes first. Edges at the top that have no node are left out."""
    found: dict[tuple[int, int, str], Flow] = {}
    for edge in edges:
        made, read = (numbers.get(id(statement), -1) for statement in (edge.maker, edge.reader))
        if made < 0 or read < 0:
            continue
        key = made, read, edge.scheme
        known = found.get(key, Flow(*key, bytes=0.0, times=0))
        found[key] = replace(known, bytes=known.bytes + edge.bytes, times=known.times + 1)
    return tuple(sorted(found.values(), key=lambda f: (-f.bytes, f.made, f.read, f.scheme)))


class _Maker:
    """Makes nodes. `numbers`: the node of each statement, or the one around it, by its identity."""

    def __init__(self, seconds: Mapping[int, float]) -> None:
        self._seconds = seconds
        self._count = 0
        self.numbers: dict[int, int] = {}

    def region(self, region: Region, around: int) -> Iterator[Node]:
        """The nodes of a region's statements. `around`: the number of the node that holds them, or -1."""
        shown = [s for s in region.body if regions_of(s) or not is_free(s)]
        if not any(not _synchronises(s) for s in shown):
            shown = [s for s in region.body if not _is_bare(s)]
        chosen = {id(s) for s in shown}
        for statement in region.body:
            node = self._node(statement) if id(statement) in chosen and not _is_hidden(statement) else None
            if node is None or (node.kind == "branch" and not any(side.inner for side in node.inner)):
                self.numbers[id(statement)] = around
            else:
                yield node

    def _next(self) -> int:
        self._count += 1
        return self._count - 1

    def _node(self, statement: Statement) -> Node:
        number = self.numbers[id(statement)] = self._next()
        seconds, (where, others) = self._seconds.get(id(statement), 0.0), _places(statement)
        if isinstance(statement, LoopUTask):
            return self._loop(statement, Node(number, "loop", "", where, seconds=seconds))
        if isinstance(statement, BranchUTask):
            sides = tuple(self._part("side", f"side {n}", r) for n, r in enumerate(statement.branches))
            kind = f"branch of {len(sides)}" if statement.stage is None else f"stage {statement.stage.number}"
            return Node(number, "branch", kind, where, seconds=seconds, inner=sides)
        if is_a(statement, "wait", "exchange"):
            kind = "barrier" if is_a(statement, "wait") else "exchange"
            return Node(number, kind, kind, where, seconds=seconds)
        words = ", ".join(dict.fromkeys(map(operator_name, operators_of(statement))))
        words = words if len(words) <= _LONGEST else words[: _LONGEST - 3] + "..."
        return Node(number, "stage", words, where, seconds=seconds, others=others)

    def _loop(self, loop: LoopUTask, node: Node) -> Node:
        inner: tuple[Node, ...] = ()
        if loop.condition is not None and not all(map(is_free, loop.condition.body)):
            inner = (self._part("condition", "condition", loop.condition),)
        inner += tuple(self.region(loop.body, node.number))
        count = None if loop.trip_count is None else int(loop.trip_count)
        return replace(
            node,
            kind="parts" if loop.parallel else "loop",
            what=_words_of(loop),
            trips=count,
            seconds=node.seconds / max(trips(loop), 1) if not loop.parallel else node.seconds,
            barriers=int(sum(waits(s, times=lambda _: 0) for r in loop.regions for s in r.body)),
            inner=inner,
        )

    def _part(self, kind: str, what: str, region: Region) -> Node:
        number = self._next()
        inner = tuple(self.region(region, number))
        seconds = sum(self._seconds.get(id(s), 0.0) for s in region.body)
        return Node(number, kind, what, seconds=seconds, inner=inner)


def _words_of(loop: LoopUTask) -> str:
    if loop.parallel:
        return "loop by threads" if by_threads(loop) else "parallel loop"
    return "while loop" if loop.trip_count is None else "loop"


def _synchronises(statement: Statement) -> bool:
    return isinstance(statement, UOperator) and statement.kind in BARRIERS


def _is_hidden(statement: Statement) -> bool:
    """True for the first half of a barrier, and for what threads of one unit wait for."""
    return is_a(statement, "arrive", "block_barrier")


def _is_bare(statement: Statement) -> bool:
    """True for constants and views, which never take time."""
    return isinstance(statement, UOperator) and (statement.is_element or statement.kind in LEAVES)


def _places(statement: Statement) -> tuple[str, tuple[str, ...]]:
    """Its place, or that of the first operator that has one; and the places of its other operators."""
    sources = (statement.source, *(operator.source for operator in operators_of(statement)))
    first, *others = dict.fromkeys(str(source) for source in sources if source.file) or ("",)
    return first, tuple(others)
