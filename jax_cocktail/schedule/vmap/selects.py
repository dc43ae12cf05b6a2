"""Finds selects whose sides are worth a branch: `jax.vmap` makes them of `cond` and `switch`.

Both sides arrive computed for all batch elements. A statement that only one side needs is *exclusive* to it:
other elements never see its values and need not compute them.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from jax_cocktail.cost.work import total
from jax_cocktail.utask.ir import Statement, UOperator, is_a, reads
from jax_cocktail.utask.types import Value

_Rooted = tuple[int, int, tuple[int, ...]]  # position of a select, shortest batch axis, place


@dataclass(frozen=True, slots=True)
class Side:
    """The positions of the statements exclusive to a side, and their work (flops of the whole batch)."""

    positions: frozenset[int]
    flops: float


@dataclass(frozen=True, slots=True)
class Group:
    """Selects by one predicate. `root`: the predicate per batch element (or for all); `along`: its shortest
    batch axis; `places`: for each select, its axis for each axis of the predicate; `sides`: the false and the
    true one."""

    root: Value
    along: int
    positions: tuple[int, ...]
    places: tuple[tuple[int, ...], ...]
    sides: tuple[Side, Side]

    @property
    def axes(self) -> tuple[int, ...]:
        """The axis of each select that is the shortest batch axis."""
        return tuple(place[self.along] if place else 0 for place in self.places)

    @property
    def elements(self) -> int:
        return self.root.type.shape[self.along] if self.root.type.rank else 1

    @property
    def has_one_axis(self) -> bool:
        """False if there are several batch axes, from nested `vmap`."""
        return self.root.type.size == self.elements


class Choices:
    """The selects of one region. `masks`: also those by a mask of several axes that gives every element of
    the result its own predicate."""

    def __init__(
        self,
        body: Sequence[Statement],
        results: Sequence[Value],
        outer: MutableMapping[Value, UOperator],
        masks: bool = False,
    ) -> None:
        self.body, self.masks = body, masks
        own: dict[Value, UOperator] = {}
        self.made = ChainMap(own, outer)  # operators in scope, by result
        self.readers: dict[Value, list[int]] = {}
        self.maker = {v: position for position, s in enumerate(body) for v in s.outputs}
        self.inputs = [reads(s) for s in body]
        for position, statement in enumerate(body):
            if isinstance(statement, UOperator):
                own.update((v, statement) for v in statement.outputs)
            for value in self.inputs[position]:
                self.readers.setdefault(value, []).append(position)
        for value in results:
            self.readers.setdefault(value, []).append(len(body))

    def groups(self, limit: float) -> Iterator[Group]:
        """Groups with a side of at least `limit` flops per batch element, outermost first."""
        if total(self.body).flops < limit:
            return
        rooted: dict[Value, list[_Rooted]] = {}
        for position in range(len(self.body) - 1, -1, -1):
            found = self._root(position)
            if found is not None:
                rooted.setdefault(found[0], []).append((position, *found[1:]))
        together = [(root, members) for root, found in rooted.items() for members in self._independent(found)]
        for root, members in sorted(together, key=lambda pair: -pair[1][0][0]):
            positions = tuple(position for position, _, _ in reversed(members))
            places = tuple(place for _, _, place in reversed(members))
            sides = (self._side(positions, 2), self._side(positions, 1))
            if max(side.flops for side in sides) >= limit * root.type.size:
                yield Group(root, members[0][1], positions, places, sides)

    def _independent(self, selects: Sequence[_Rooted]) -> Iterator[list[_Rooted]]:
        """Selects by one predicate, last first, in groups without dependences inside."""
        waiting = list(selects)
        while waiting:
            members, left = [waiting[0]], []
            below = self._reached_back(waiting[0][0]) if len(waiting) > 1 else set()
            for select in waiting[1:]:
                if select[0] in below:
                    left.append(select)
                else:
                    members.append(select)
                    below |= self._reached_back(select[0])
            yield members
            waiting = left

    def _root(self, position: int) -> tuple[Value, int, tuple[int, ...]] | None:
        """The value that the predicate of a select is a broadcast of, its shortest batch axis, and the axis
        of the select for each of its axes."""
        select = self.body[position]
        if not is_a(select, "select"):
            return None
        value, axes = select.inputs[0], tuple(range(select.inputs[0].type.rank))
        while (source := self.made.get(value)) is not None:
            if source.kind != "broadcast":
                break
            value, axes = source.inputs[0], tuple(axes[d] for d in source.ints("dimensions"))
        shape, whole = value.type.shape, select.output.type.shape
        wide = sorted((n, d) for d, n in enumerate(shape) if n != 1)
        if 0 in whole or any(whole[axes[d]] != n for n, d in wide):
            return None
        if len(wide) > 1 and len(whole) == len(shape) and not self.masks:  # a mask of elements
            return None
        return value, wide[0][1] if wide else 0, axes

    def _reached_back(self, position: int) -> set[int]:
        """The positions that a statement depends on."""
        reached, wanted = set[int](), set(self.inputs[position])
        for earlier in range(position - 1, -1, -1):
            if not wanted.isdisjoint(self.body[earlier].outputs):
                reached.add(earlier)
                wanted.update(self.inputs[earlier])
        return reached

    def _side(self, positions: Sequence[int], operand: int) -> Side:
        """The statements that only this operand of the selects needs."""
        inside: set[int] = set()
        members = set(positions)
        # last first: a statement belongs if all its readers do
        heap = [-p for p in {self.maker.get(self.body[p].inputs[operand], -1) for p in positions}]
        heapify(heap)
        seen = set(heap)
        while heap:
            position = -heappop(heap)
            if position in members or position < 0:
                continue
            if all(
                reader in inside or (reader in members and self._only(reader, operand, value))
                for value in self.body[position].outputs
                for reader in self.readers.get(value, ())
            ):
                inside.add(position)
                for source in {-self.maker[v] for v in self.inputs[position] if v in self.maker} - seen:
                    seen.add(source)
                    heappush(heap, source)
        return Side(frozenset(inside), total(self.body[p] for p in inside).flops)

    def _only(self, select: int, operand: int, value: Value) -> bool:
        return all(v != value for k, v in enumerate(self.body[select].inputs) if k != operand)

    def operands(self, group: Group, wanted: bool) -> tuple[Value, ...]:
        """The operands that the selects choose if the predicate is `wanted`."""
        return tuple(self.body[p].inputs[1 if wanted else 2] for p in group.positions)

    def chain(self, group: Group) -> tuple[UOperator, ...]:
        """The broadcasts between the predicate and the selects."""
        found: dict[UOperator, None] = {}
        for position in group.positions:
            value = self.body[position].inputs[0]
            while value != group.root:
                operator = self.made[value]
                found[operator] = None
                (value,) = operator.inputs
        return tuple(found)[::-1]

    def own_flops(self, side: Side, others: Iterable[Group], limit: float, done: Collection[Value]) -> float:
        """The work of a side without the nested groups that are worth a branch of their own, or have one
        (`done`)."""
        rest = {p for p in side.positions if self.body[p].outputs[0] not in done}
        for group in others:
            worth = [s for s in group.sides if s.flops >= limit * group.root.type.size]
            if worth and rest.issuperset(group.positions):
                rest -= frozenset(group.positions).union(*(s.positions for s in worth))
        return total(self.body[p] for p in rest).flops


def in_order(units: Sequence[Sequence[Statement]]) -> list[Statement]:
    """The statements of all units in dependence order, else as given; each unit stays together."""
    maker = {v: i for i, unit in enumerate(units) for s in unit for v in s.outputs}
    needs = [
        {maker[v] for s in unit for v in reads(s) if v in maker and maker[v] != i}
        for i, unit in enumerate(units)
    ]
    waiting = [len(n) for n in needs]
    followers: dict[int, list[int]] = {}
    for i, sources in enumerate(needs):
        for source in sources:
            followers.setdefault(source, []).append(i)
    ready = [i for i, count in enumerate(waiting) if not count]
    out: list[Statement] = []
    while ready:
        unit = heappop(ready)
        out += units[unit]
        for follower in followers.get(unit, ()):
            waiting[follower] -= 1
            if not waiting[follower]:
                heappush(ready, follower)
    return out
