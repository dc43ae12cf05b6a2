"""Assigns every statement of a body to a loop: the analysis behind loop distribution (see `distribute`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from jax_cocktail.analysis.graph import strong_components
from jax_cocktail.cost.work import work
from jax_cocktail.schedule.loops.distribution.reductions import Sum, sums_of
from jax_cocktail.schedule.loops.distribution.step_rows import Rows, Stack, Steps
from jax_cocktail.utask.ir import LoopUTask, Statement, UOperator, is_a, positions_of, reads
from jax_cocktail.utask.operators import LEAVES, VIEWS
from jax_cocktail.utask.types import Value


@dataclass(frozen=True, slots=True)
class Fission:
    """The loop of every node. Nodes are statements (by index in the body) and, after them, carries.

    `position[node]`: number of its loop, or of the loop after it for a batched product; `again`: nodes that
    every loop computes for itself; `products`: nodes of the batched products; `crossing`: values kept per
    step; `sums`, `stacks`: carries without a position, summed after all loops or equal to the result of a
    product; `steps`: the range of the iterations among all steps.
    """

    loop: LoopUTask
    position: dict[int, int]
    again: frozenset[int]
    products: frozenset[int]
    node_of: dict[Value, int]
    crossing: tuple[Value, ...] = field(default=())
    sums: tuple[Sum, ...] = ()
    stacks: tuple[Stack, ...] = ()
    steps: Steps = Steps()

    @property
    def bytes_per_step(self) -> int:
        """Memory for one step of the values that later loops read: the most that is live at one position."""
        last = _last_uses(self)
        alive: Counter[int] = Counter()
        products = [self.loop.body.body[n].outputs[0] for n in self.products]
        for value in dict.fromkeys((*self.crossing, *products)):
            first = self.position[self.node_of[value]]
            alive.update(dict.fromkeys(range(first, last.get(value, first) + 1), value.type.nbytes))
        return max(alive.values(), default=0)


def _last_uses(fission: Fission) -> dict[Value, int]:
    """The last position that reads each value of the body."""
    body, last = fission.loop.body.body, dict[Value, int]()
    readers = [(n, reads(s)) for n, s in enumerate(body)]
    readers += [(len(body) + k, (r,)) for k, r in enumerate(fission.loop.body.results)]
    for node, values in readers:
        if node in fission.position:
            last.update((v, max(last.get(v, 0), fission.position[node])) for v in values)
    end = max(fission.position.values(), default=0)
    last.update((v, end) for total in fission.sums for v in total.operands)
    last.update((stack.value, end) for stack in fission.stacks)
    return last


def graph_of(loop: LoopUTask) -> tuple[list[list[int]], list[list[int]], dict[Value, int]]:
    """Sources and users of every node, and the node of every value."""
    body = loop.body.body
    node_of = {**positions_of(loop.body), **{p: len(body) + k for k, p in enumerate(loop.carried)}}
    needs = [[node_of[v] for v in reads(s) if v in node_of] for s in body]
    needs += [[node_of[r]] if r in node_of else [] for r in loop.body.results]
    users: list[list[int]] = [[] for _ in needs]
    for node, sources in enumerate(needs):
        for source in sources:
            users[source].append(node)
    return needs, users, node_of


def components_of(loop: LoopUTask) -> tuple[list[list[int]], dict[Value, int]]:
    """The strongly connected components of a body with its carries, and the node of every value."""
    _, users, node_of = graph_of(loop)
    return strong_components(users), node_of


def analyse(
    loop: LoopUTask,
    minimum_flops: int,
    together: frozenset[int] = frozenset(),
    steps: Steps = Steps(),  # noqa: B008 (a frozen value)
) -> Fission | None:
    """The fission of a loop, or None if nothing can leave it and `together` is empty.

    `together`: nodes that stay in one loop, including every node on a path between two of them.
    """
    body = loop.body.body
    needs, users, node_of = graph_of(loop)
    components = strong_components(users)
    again = computed_again(loop, components, needs)
    cyclic = {n for c in components if len(c) > 1 or c[0] in users[c[0]] for n in c}
    products = frozenset(
        n
        for n, s in enumerate(body)
        if n not in cyclic | again | together and _is_product(s, node_of, minimum_flops)
    )
    rows = Rows(loop, steps)
    sums = sums_of(loop, rows, products, minimum_flops)
    if not products and not together and not sums:
        return None
    found = (rows.stack(k) for k in range(len(loop.carried)))
    stacks = tuple(s for s in found if s is not None and node_of.get(s.value) in products)
    leaving: tuple[Sum | Stack, ...] = (*sums, *stacks)
    taken = {n for out in leaving for n in (*out.nodes, len(body) + out.carry)}
    components = [c for c in _gathered(components, users, together) if taken.isdisjoint(c)]
    position = _positions(components, needs, again, products)
    fission = Fission(loop, position, again, products, node_of, sums=sums, stacks=stacks, steps=steps)
    return replace(fission, crossing=_crossing(fission))


def _gathered(
    components: list[list[int]], users: list[list[int]], together: frozenset[int]
) -> list[list[int]]:
    """The components in topological order, with those of `together` merged."""
    if not together:
        return components
    after = downstream(together, users)
    first = [c for c in components if c[0] not in after]
    last = [c for c in components if c[0] in after and c[0] not in together]
    return [*first, sorted(together), *last]


def downstream(nodes: Iterable[int], users: Sequence[Sequence[int]]) -> frozenset[int]:
    """The nodes and all their dependents; if `users` holds sources, the nodes and all that they depend on."""
    waiting, found = list(nodes), set[int]()
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += users[node]
    return frozenset(found)


def computed_again(loop: LoopUTask, components: list[list[int]], needs: list[list[int]]) -> frozenset[int]:
    """Views and scalar work on the index alone, and scalar recurrences over such values."""
    body, count = loop.body.body, len(loop.body.body)
    again: set[int] = set()
    for component in components:
        members = set(component)
        if any(source not in again and source not in members for n in component for source in needs[n]):
            continue
        statements = [body[n] for n in component if n < count]
        carries = [loop.carried[n - count] for n in component if n >= count]
        cheap = all(isinstance(s, UOperator) and _is_cheap(s, bool(carries)) for s in statements)
        if cheap and all(v.type.is_scalar for v in carries):
            again.update(component)
    return frozenset(again)


def _is_cheap(operator: UOperator, recurrent: bool) -> bool:
    if operator.kind in VIEWS | LEAVES:
        return not recurrent or operator.output.type.is_scalar
    return operator.is_element and operator.output.type.is_scalar


def _is_product(statement: Statement, node_of: dict[Value, int], minimum_flops: int) -> bool:
    """A dot with one operand from the body and one from outside it."""
    if not is_a(statement, "dot"):
        return False
    lhs, rhs = statement.inputs
    return work(statement).flops >= minimum_flops and (lhs in node_of) != (rhs in node_of)


def _positions(
    components: list[list[int]], needs: list[list[int]], again: frozenset[int], products: frozenset[int]
) -> dict[int, int]:
    position: dict[int, int] = {}
    for component in components:
        if component[0] in again:
            continue
        members = set(component)
        sources = {s for n in component for s in needs[n] if s not in members and s not in again}
        if component[0] in products:
            found = max((position[s] + (s not in products) for s in sources), default=0)
        else:
            found = max((position[s] for s in sources), default=0)
        position.update(dict.fromkeys(component, found))
    return position


def _crossing(fission: Fission) -> tuple[Value, ...]:
    """Values to keep per step, because a later loop or a product reads them. Results of products are kept
    anyway."""
    body, count = fission.loop.body.body, len(fission.loop.body.body)
    found: dict[Value, None] = {}
    for node, statement in enumerate(body):
        if node not in fission.position:
            continue
        for value in reads(statement):
            source = fission.node_of.get(value)
            if source is None or source in fission.again or source in fission.products:
                continue
            if node in fission.products or fission.position[source] < fission.position[node]:
                found[value] = None
    for k, value in enumerate(fission.loop.body.results):
        source = fission.node_of.get(value)
        if source is None or source in fission.again or count + k not in fission.position:
            continue
        if source not in fission.products and fission.position[source] < fission.position[count + k]:
            found[value] = None
    computed = fission.again | fission.products
    summed = (v for total in fission.sums for v in total.operands)
    found.update((v, None) for v in summed if fission.node_of[v] not in computed)
    return tuple(found)


def free_of_recurrence(fission: Fission) -> frozenset[int]:
    """The products whose operands every loop computes again: counters, and views that they index."""
    needs, _, _ = graph_of(fission.loop)
    return frozenset(n for n in fission.products if fission.again.issuperset(needs[n]))


def why_undivided(loop: LoopUTask, minimum_flops: int) -> str:
    """The reason why `analyse` finds no fission."""
    body = loop.body.body
    node_of = {**positions_of(loop.body), **dict.fromkeys(loop.carried, -1)}
    dots = [s for s in body if is_a(s, "dot")]
    if not dots:
        return "no matrix product in its body"
    if not any(_is_product(s, node_of, 0) for s in dots):
        return "both operands of every matrix product change from step to step"
    if not any(_is_product(s, node_of, minimum_flops) for s in dots):
        return f"its matrix products have fewer than {minimum_flops} operations a step"
    return "every matrix product depends on its own result of the step before"
