"""The recurrence bound: the least number of barriers that an iteration needs (design, section 1.2).

It corresponds to the recurrence-constrained initiation interval of modulo scheduling (Rau, "Iterative modulo
scheduling", 1994): the largest number of crossings per iteration over all cycles of loop-carried dependences.
Statements on no cycle can be distributed or pipelined and do not count. A crossing is an edge from a value
that is cut to a statement that needs more than its own part; uses of the gathered value are no crossings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from jax_cocktail.analysis.access import reads_own_part
from jax_cocktail.placement.tile_groups import Division, TileGroup
from jax_cocktail.utask.ir import LoopUTask, positions_of, reads
from jax_cocktail.utask.types import Value

_NEVER = float("-inf")


def recurrence_bound(loop: LoopUTask, division: Division) -> int:
    """The least barriers per iteration of `loop` with this division of its body, without inner loops."""
    crossings = _Crossings(loop, division.tile_group_of)
    count = len(loop.carried)
    weights = [crossings.paths(k) for k in range(count)]
    return max(0, ceil(_maximum_cycle_mean(weights)))


class _Crossings:
    """Longest paths, counted in crossings, from a carried value to the next carried values."""

    def __init__(self, loop: LoopUTask, tile_group_of: Mapping[int, TileGroup]) -> None:
        self.loop = loop
        self.tile_group_of = tile_group_of
        self.maker = positions_of(loop.body)
        self.reads = [reads(statement) for statement in loop.body.body]
        self.next = dict(zip(loop.carried, loop.body.results, strict=True))

    def paths(self, start: int) -> list[float]:
        """Longest paths from carry `start` to every result of the body."""
        body, carried = self.loop.body, self.loop.carried[start]
        distance: dict[Value, float] = {carried: 0.0}
        origin = {carried: self._origin(start)}
        for position, statement in enumerate(body.body):
            found = _NEVER
            for value in self.reads[position]:
                if value in distance:
                    made = origin.get(value, value)
                    found = max(found, distance[value] + self._crosses(position, value, made))
            if found > _NEVER:
                distance.update(dict.fromkeys(statement.outputs, found))
        return [distance.get(v, _NEVER) for v in body.results]

    def _origin(self, carry: int) -> Value:
        """The result (of this or an earlier iteration) that determines the division of a carry."""
        value = self.loop.body.results[carry]
        for _ in self.loop.carried:
            value = self.next.get(value, value)
        return value

    def _crosses(self, position: int, value: Value, made: Value) -> int:
        """1 if the statement needs more than its own part of `value`, which is divided like `made`."""
        maker = self.tile_group_of.get(self.maker.get(made, -1))
        if maker is None or made not in maker.axes:
            return 0
        reader = self.tile_group_of.get(position)
        if reader is None or (reader.parts, reader.tiling.line) != (maker.parts, maker.tiling.line):
            return 1
        statement = self.loop.body.body[position]
        return 0 if reads_own_part(statement, value, maker.axes[made], reader.axes) else 1


def _maximum_cycle_mean(weights: Sequence[Sequence[float]]) -> float:
    """Karp's theorem (1978), with walks that start anywhere; 0 if there is no cycle."""
    count = len(weights)
    into = [[(i, w[j]) for i, w in enumerate(weights) if w[j] > _NEVER] for j in range(count)]
    rows = [[0.0] * count]  # row n: heaviest walks of n edges
    for _ in range(count):
        last = rows[-1]
        rows.append([max((last[i] + weight for i, weight in edges), default=_NEVER) for edges in into])
    best = 0.0
    for k, heaviest in enumerate(rows[count]):
        if heaviest > _NEVER:
            shorter = (n for n in range(count) if rows[n][k] > _NEVER)
            best = max(best, min((heaviest - rows[n][k]) / (count - n) for n in shorter))
    return best
