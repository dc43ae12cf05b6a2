"""Assigns every statement of a body to a stage of a wavefront: the analysis behind `pipeline`.

A stage ends where a matrix product reads a result of another recurrence: its units need a barrier there. A
product is in the earliest stage in which its operands are available. Element-wise work on no cycle is in the
stage that consumes it. If a product consumes it, it is in the stage before, whose units share the work; views
are not worth that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jax_cocktail.analysis.graph import strong_components
from jax_cocktail.schedule.loops.distribution.fission import computed_again, downstream, graph_of
from jax_cocktail.utask.ir import LoopUTask, Statement, UOperator, operators_in, reads
from jax_cocktail.utask.operators import MOVEMENT, PRODUCTS, UPDATES
from jax_cocktail.utask.types import Value


@dataclass(frozen=True, slots=True)
class Stages:
    """Nodes are statements (by position) and, after them, carries.

    `stage[node]`: its stage; `again`: nodes that every stage computes for itself; `needs`: sources of every
    node; `updated`: carries that are updated in place, and the updated values.
    """

    loop: LoopUTask
    stage: Mapping[int, int]
    again: frozenset[int]
    needs: Sequence[Sequence[int]]
    node_of: Mapping[Value, int]
    updated: frozenset[Value]

    @property
    def count(self) -> int:
        return 1 + max(self.stage.values(), default=-1)

    def of(self, value: Value) -> int | None:
        """The stage that computes a value; None if every stage has or computes it."""
        node = self.node_of.get(value)
        return None if node is None else self.stage.get(node)

    def carry(self, k: int) -> int:
        """The node of a carry."""
        return len(self.loop.body.body) + k

    def readers(self) -> list[tuple[int, tuple[Value, ...]]]:
        """Every node that has a stage, with the values that it reads."""
        body = self.loop.body.body
        found = [(n, reads(s)) for n, s in enumerate(body) if n in self.stage]
        results = enumerate(self.loop.body.results)
        return [*found, *((self.carry(k), (r,)) for k, r in results if self.carry(k) in self.stage)]


def recurrences(loop: LoopUTask) -> list[list[int]]:
    """The cycles of a body that contain a matrix product, as nodes."""
    _, users, _ = graph_of(loop)
    body = loop.body.body
    found = (c for c in strong_components(users) if len(c) > 1)
    return [c for c in found if any(n < len(body) and _multiplies(body[n]) for n in c)]


def between(loop: LoopUTask, ends: Sequence[Sequence[int]]) -> frozenset[int]:
    """These nodes, and all on a path between two of them."""
    needs, users, _ = graph_of(loop)
    nodes = [n for component in ends for n in component]
    return downstream(nodes, users) & downstream(nodes, needs)


def stages_of(loop: LoopUTask) -> Stages:
    needs, users, node_of = graph_of(loop)
    components = strong_components(users)
    again = computed_again(loop, components, needs)
    recurrent = downstream((n for c in recurrences(loop) for n in c), users)
    body = loop.body.body
    stage: dict[int, int] = {}

    def distance(node: int, source: int) -> int:
        """1 if the node may read the result of the source only after a barrier."""
        return int(node < len(body) and _multiplies(body[node]) and source in recurrent)

    for component in components:
        if component[0] not in again:
            members = again.union(component)
            edges = [(n, s) for n in component for s in needs[n] if s not in members]
            earliest = max((stage[s] + distance(n, s) for n, s in edges), default=0)
            stage.update(dict.fromkeys(component, earliest))
    for component in reversed(components):
        (node, *others) = component
        if node in again or others or node in users[node] or node >= len(body):
            continue
        if users[node] and (node not in recurrent or not _multiplies(body[node])):
            ahead = 0 if _moves(body[node]) else 1  # every tile of a product would compute all of it
            latest = [stage[user] - ahead * distance(user, node) for user in users[node] if user in stage]
            stage[node] = max(min(latest, default=0), stage[node])
    updated = _updated(loop, components, users)
    return Stages(loop, stage, again, needs, node_of, updated)


def _updated(
    loop: LoopUTask, components: Sequence[Sequence[int]], users: Sequence[Sequence[int]]
) -> frozenset[Value]:
    """The values on cycles that contain an update in place."""
    body = loop.body.body
    found: set[Value] = set()
    for component in components:
        if len(component) == 1 and component[0] not in users[component[0]]:
            continue
        statements = [body[n] for n in component if n < len(body)]
        if any(o.kind in UPDATES for s in statements for o in operators_in(s)):
            found.update(v for s in statements for v in s.outputs)
            found.update(loop.carried[n - len(body)] for n in component if n >= len(body))
    return frozenset(found)


def _moves(statement: Statement) -> bool:
    return isinstance(statement, UOperator) and statement.kind in MOVEMENT


def _multiplies(statement: Statement) -> bool:
    return any(o.kind in PRODUCTS for o in operators_in(statement))
