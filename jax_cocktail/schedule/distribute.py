"""Loop distribution: what lies on no loop-carried cycle is computed for many steps at once.

The body of a counted loop is divided at the strongly connected components of its loop-carried dependence
graph (Kennedy and McKinley, "Loop distribution with arbitrary control flow", SC 1990). A matrix product with
loop-invariant weights that lies on no cycle (the input projection ``x_t @ W`` of a recurrent layer) becomes
one product over all steps: a GEMV becomes a GEMM. Each recurrence becomes a loop of its own, whose weights
stay in the core's cache: ten LSTM layers inside one loop over time become ten loops over time. Where what is
kept per step would not stay in cache, the loop is strip-mined first, and each strip is divided.

Levels: loop 0, products 1, loop 1, products 2, ... A statement is in the earliest loop that has all it reads.
Values that cross from one loop to a later one are kept per step. Cheap values that depend on the index alone,
and scalar recurrences such as counters, are computed again wherever they are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from jax_cocktail.schedule.graph import strong_components
from jax_cocktail.schedule.regroup import Regrouper
from jax_cocktail.schedule.strip_mine import strip_mine
from jax_cocktail.schedule.substitute import FreshValues
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region, Statement, UOperator, UProgram, reads
from jax_cocktail.utask.operators import KINDS
from jax_cocktail.utask.types import Value


@dataclass(frozen=True, slots=True)
class Limits:
    """When dividing pays.

    `flops`: of one step's product, below which a separate pass over the steps does not; `trips`: of a strip,
    likewise; `kept_bytes`: what a strip may keep for later loops, so that it is still in cache then.
    """

    flops: int = 8192
    trips: int = 4
    kept_bytes: int = 8 << 20


def distribute(program: UProgram, limits: Limits = Limits()) -> UProgram:  # noqa: B008 (a frozen value)
    """Returns its argument if no loop is worth dividing."""
    fresh = FreshValues(program)
    entry = _region(program.entry, fresh, limits)
    return program if entry is program.entry else replace(program, entry=entry)


def _region(region: Region, fresh: FreshValues, limits: Limits) -> Region:
    body: list[Statement] = []
    for statement in region.body:
        if isinstance(statement, LoopUTask):
            inner = _region(statement.body, fresh, limits)
            if inner is not statement.body:
                statement = replace(statement, body=inner)
            body += _divide(statement, fresh, limits)
        elif isinstance(statement, BranchUTask):
            branches = tuple(_region(r, fresh, limits) for r in statement.branches)
            if any(a is not b for a, b in zip(branches, statement.branches, strict=True)):
                statement = replace(statement, branches=branches)
            body.append(statement)
        else:
            body.append(statement)
    same = len(body) == len(region.body) and all(a is b for a, b in zip(body, region.body, strict=True))
    return region if same else Region(region.parameters, tuple(body), region.results)


def _divide(loop: LoopUTask, fresh: FreshValues, limits: Limits) -> Sequence[Statement]:
    trips = loop.trip_count
    if trips is None or trips < limits.trips:
        return (loop,)
    division = analyse(loop, limits.flops)
    if division is None:
        return (loop,)
    strip = _strip(trips, division.bytes_per_step, limits)
    if strip is None:
        return (loop,)
    if strip == trips:
        return Regrouper(division, fresh).statements()
    outer, inner, base = strip_mine(loop, strip, fresh)
    inner_division = analyse(inner, limits.flops)
    assert inner_division is not None
    divided = Regrouper(inner_division, fresh, base=base, bound=trips).statements()
    body = outer.body
    return (replace(outer, body=Region(body.parameters, (*body.body, *divided), body.results)),)


def _strip(trips: int, bytes_per_step: int, limits: Limits) -> int | None:
    """Steps of a strip: the largest divisor of the trip count that keeps little enough."""
    fitting = (n for n in range(trips, limits.trips - 1, -1) if trips % n == 0)
    return next((n for n in fitting if n * bytes_per_step <= limits.kept_bytes), None)


@dataclass(frozen=True, slots=True)
class Division:
    """Which loop every part of a body goes to.

    Nodes are statements (by position) and, after them, carries. `level[node]`: number of the loop, or of the
    batched product before that loop; `again`: nodes that every loop computes for itself; `products`:
    positions of the batched products; `crossing`: values kept per step.
    """

    loop: LoopUTask
    level: dict[int, int]
    again: frozenset[int]
    products: frozenset[int]
    node_of: dict[Value, int]
    crossing: tuple[Value, ...] = field(default=())

    @property
    def bytes_per_step(self) -> int:
        """Memory that one step needs for what later loops read."""
        products = (self.loop.body.body[n].outputs[0] for n in self.products)
        return sum(v.type.nbytes for v in (*self.crossing, *products))


def analyse(loop: LoopUTask, minimum_flops: int) -> Division | None:
    """The division of a counted loop, or None if no product can leave it."""
    body = loop.body.body
    count = len(body)
    node_of = {v: n for n, s in enumerate(body) for v in s.outputs}
    node_of |= {p: count + k for k, p in enumerate(loop.carried)}
    needs = [[node_of[v] for v in reads(s) if v in node_of] for s in body]
    needs += [[node_of[r]] if r in node_of else [] for r in loop.body.results]
    users: list[list[int]] = [[] for _ in needs]
    for node, sources in enumerate(needs):
        for source in sources:
            users[source].append(node)
    components = strong_components(users)
    again = _computed_again(loop, components, needs)
    cyclic = {n for c in components if len(c) > 1 or c[0] in users[c[0]] for n in c}
    products = frozenset(
        n
        for n, s in enumerate(body)
        if n not in cyclic and n not in again and _is_product(s, node_of, minimum_flops)
    )
    if not products:
        return None
    level = _levels(components, needs, again, products)
    division = Division(loop, level, again, products, node_of)
    return replace(division, crossing=_crossing(division))


def _computed_again(loop: LoopUTask, components: list[list[int]], needs: list[list[int]]) -> frozenset[int]:
    """Movement and scalars that depend on the index alone, and scalar recurrences over such values."""
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
    if KINDS[operator.kind].sort == "movement" and operator.kind not in ("gather", "concatenate", "pad"):
        return not recurrent or operator.output.type.is_scalar
    return operator.is_element and operator.output.type.is_scalar


def _is_product(statement: Statement, node_of: dict[Value, int], minimum_flops: int) -> bool:
    """A dot with one operand from the body and one from outside it."""
    if not isinstance(statement, UOperator) or statement.kind != "dot":
        return False
    lhs, rhs = statement.inputs
    contracted = 1
    for d in cast(tuple[int, ...], statement["lhs_contract"]):
        contracted *= lhs.type.shape[d]
    enough = 2 * contracted * statement.output.type.size >= minimum_flops
    return enough and (lhs in node_of) != (rhs in node_of)


def _levels(
    components: list[list[int]], needs: list[list[int]], again: frozenset[int], products: frozenset[int]
) -> dict[int, int]:
    level: dict[int, int] = {}
    for component in components:
        if component[0] in again:
            continue
        members = set(component)
        sources = {s for n in component for s in needs[n] if s not in members and s not in again}
        if component[0] in products:
            found = max((level[s] + (s not in products) for s in sources), default=0)
        else:
            found = max((level[s] for s in sources), default=0)
        level.update(dict.fromkeys(component, found))
    return level


def _crossing(division: Division) -> tuple[Value, ...]:
    """Values that a later loop, or a product, reads: kept per step. Products' results are kept anyway."""
    body, count = division.loop.body.body, len(division.loop.body.body)
    found: dict[Value, None] = {}
    for node, statement in enumerate(body):
        if node in division.again:
            continue
        for value in reads(statement):
            source = division.node_of.get(value)
            if source is None or source in division.again or source in division.products:
                continue
            if node in division.products or division.level[source] < division.level[node]:
                found[value] = None
    for k, value in enumerate(division.loop.body.results):
        source = division.node_of.get(value)
        if source is None or source in division.again or count + k in division.again:
            continue
        if source not in division.products and division.level[source] < division.level[count + k]:
            found[value] = None
    return tuple(found)
