"""Sends small values between units as tagged words: one hop instead of a barrier and a gather.

    for t: parallel for i: x[i] = f(x)      ->      for t: parallel for i: x[i] = f(y)
           barrier                                         y = exchange(x)

In a recurrence on many units, a parallel loop writes the next state x tile by tile. In the next iteration
every unit reads all of x, so there is a barrier in between. With the exchange, each unit reads foreign tiles
from its own copy y. It touches only its own tile of x, so x needs no barrier.

An exchange needs no credits because every unit sends and receives in every step (see `utask.exchange`). Every
unit therefore has to run each exchange equally often. So exchanges are at device scope, where control flow is
uniform (every unit computes predicates from equal bits), and never in a parallel loop or a wavefront stage
with units of its own. The verifier refuses any other place, as it does for barriers.

One trial chooses the exchanges: the program with all possible exchanges is planned and synchronised. If it
still has a barrier between the writers and the readers of a value, other values need that barrier, and the
exchange saves nothing. An exchange costs less than a barrier (`BLOCK.exchange_bytes`), so prices are not
compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from jax_cocktail.analysis.parallel import AxisTile, scalar_constants, tile_access
from jax_cocktail.cost.work import waits
from jax_cocktail.device.tuning import BLOCK
from jax_cocktail.schedule.sync.plan_tail import Trial
from jax_cocktail.utask.exchange import WORDS, Blocks
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    UOperator,
    UProgram,
    by_threads,
    free_values,
    is_a,
    is_parallel,
    operators_in,
    readers,
    reads,
    used_in,
    walk,
)
from jax_cocktail.utask.operators import HALVES
from jax_cocktail.utask.remarks import Listener, Remark, nobody
from jax_cocktail.utask.rewrite import map_regions, with_body
from jax_cocktail.utask.substitute import FreshValues, region_reads, with_reads
from jax_cocktail.utask.types import Shape, Source, Value

Place = tuple[str, int]  # the reader of a value: a statement (its id), or a region result (its position)
Uses = dict[Place, frozenset[str]]
WHOLE, OWN, BASE = "whole", "own", "base"  # reads foreign tiles, reads its own tile, updates in place


def exchange(program: UProgram, remark: Listener = nobody, *, trial: Trial) -> UProgram:
    """Expects a placed, unstitched program. Returns its argument if no exchange saves a barrier."""
    found = _candidates(program)
    if not found:
        return program
    everything = _Rewriter(program, found, frozenset(found)).run()
    chosen, all_saved = _chosen(everything, trial(everything))
    if not chosen:
        text = "the barriers around small values that cross units stand there for others too"
        remark(Remark("exchange", False, text))
        return program
    complete = len(chosen) == len(found)
    exchanged = everything if complete else _Rewriter(program, found, frozenset(chosen)).run()
    for source in dict.fromkeys(found[value].source for value in chosen):
        values = [v for v in chosen if found[v].source == source]
        text = f"{len(values)} value{'s' * (len(values) > 1)} of {sum(v.type.nbytes for v in values)} bytes"
        rest = "no barrier is left in a loop" if all_saved else "other barriers remain"
        remark(Remark("exchange", True, f"{text} cross units as tagged words in every trip; {rest}", source))
    return exchanged


# -- choice --------------------------------------------------------------------------------------------------
def _chosen(exchanged: UProgram, final: UProgram | None) -> tuple[list[Value], bool]:
    """The values whose exchange saves a barrier, and True if no loop keeps a barrier.

    The trial unrolls no loop by two, so it also counts barriers that a second buffer would save."""
    if final is None:
        return [], False
    saving = {o.outputs for o, ancestors in _exchanges(final.entry, ()) if not _meet(o.outputs, ancestors)}
    made = (o for o in operators_in(exchanged.entry) if o.kind == "exchange")
    chosen = [value for o in made if o.outputs in saving for value in o.inputs]
    loops = (s for s in walk(final.entry) if isinstance(s, LoopUTask))
    return chosen, not any(map(waits, loops))


@dataclass(frozen=True, slots=True)
class _Ancestor:
    """A position in a region, and the loop or branch that owns the region."""

    region: Region
    position: int
    owner: LoopUTask | BranchUTask | None


def _exchanges(
    region: Region, outer: tuple[_Ancestor, ...], owner: LoopUTask | BranchUTask | None = None
) -> Iterator[tuple[UOperator, tuple[_Ancestor, ...]]]:
    """Every exchange with its position in each region around it, outermost first."""
    for position, statement in enumerate(region.body):
        ancestors = (*outer, _Ancestor(region, position, owner))
        if is_a(statement, "exchange"):
            yield statement, ancestors
        elif isinstance(statement, LoopUTask | BranchUTask):
            for inner in statement.regions:
                yield from _exchanges(inner, ancestors, statement)


def _meet(received: Iterable[Value], ancestors: Sequence[_Ancestor]) -> bool:
    """True if the exchange is inside a barrier, or a barrier lies between it and the first reader of its
    results. The search leaves enclosing branches; in a loop it wraps around to the start of the body."""
    here, names = ancestors[-1], set(received)
    before = [s.kind for s in here.region.body[: here.position] if is_a(s, *HALVES)]
    if before[-1:] == ["arrive"]:
        return True
    for ancestor in reversed(ancestors):
        region, owner = ancestor.region, ancestor.owner
        met = _first(region.body[ancestor.position + 1 :], names)
        if met is not None or owner is None:
            return bool(met)
        loops = isinstance(owner, LoopUTask)
        targets = owner.carried if isinstance(owner, LoopUTask) else owner.outputs
        names = {t for r, t in zip(region.results, targets, strict=True) if r in names}
        if loops:
            return bool(_first(region.body[: ancestor.position], names))
    return False


def _first(body: Sequence[Statement], names: set[Value]) -> bool | None:
    """True if a barrier comes first in `body`, False if a reader of `names` does, None without either."""
    for statement in body:
        if is_a(statement, *HALVES):
            return True
        if not names.isdisjoint(reads(statement)):
            if not (isinstance(statement, UOperator) and statement.is_element):
                return False
            names.update(statement.outputs)  # the same array in another shape
    return None


# -- candidates ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Candidate:
    """A value that units write in `blocks`. `uses`: by reader. `source`: of the enclosing loop."""

    blocks: Blocks
    uses: Uses
    source: Source


def _candidates(program: UProgram) -> dict[Value, _Candidate]:
    """The values that a parallel loop inside a loop writes and others read as a whole."""
    empty = frozenset(o.output for o in operators_in(program.entry) if o.kind == "empty")
    facts = _Facts(scalar_constants(program.entry), empty)
    found: dict[Value, _Candidate] = {}

    def visit(region: Region, loop: LoopUTask | None, around: LoopUTask | None) -> None:
        """`loop`: the owner of the region, if a loop; `around`: the innermost enclosing loop. Loop conditions
        are left out: placement divides none, so they hold no parallel loop."""
        for statement in region.body:
            if is_parallel(statement):
                if around is None or by_threads(statement):
                    continue
                for value, blocks in _written(statement, facts):
                    follower = _Walk(facts, _Owner.of(blocks, value.type.shape), loop)
                    uses = follower.uses(value, region)
                    if any(map(_moves, uses.values())):
                        found[value] = _Candidate(blocks, uses, around.source)
            elif isinstance(statement, LoopUTask):
                visit(statement.body, statement, statement)
            elif isinstance(statement, BranchUTask):
                for inner in statement.branches:
                    visit(inner, None, around)

    visit(program.entry, None, None)
    return found


def _written(writer: LoopUTask, facts: _Facts) -> Iterator[tuple[Value, Blocks]]:
    """The small arrays that a parallel loop writes tile by tile."""
    parts = writer.trip_count or 0
    for number, value in enumerate(writer.outputs):
        block = facts.tiles(writer).get(value)
        if block is None or value.type.dtype not in WORDS or value.type.nbytes > BLOCK.exchange_bytes:
            continue
        axis, size = block
        if value.type.is_scalar:
            continue
        if size * parts < value.type.shape[axis] and writer.initial[number] not in facts.empty:
            continue  # elements beyond the tiles keep their old values
        yield value, Blocks(axis, size, parts, writer.first)


def _moves(uses: frozenset[str]) -> bool:
    """True if a reader with these uses reads the received copy."""
    return WHOLE in uses and BASE not in uses


@dataclass(frozen=True, slots=True)
class _Owner:
    """The owner of every element, whatever the shape: of each `period` elements, part p owns `run` elements
    from p * run on."""

    run: int
    period: int
    parts: int
    first: int

    @classmethod
    def of(cls, blocks: Blocks, shape: Shape) -> _Owner:
        stride = prod(shape[blocks.axis + 1 :])
        return cls(blocks.size * stride, shape[blocks.axis] * stride, blocks.parts, blocks.first)


@dataclass(slots=True)
class _Facts:
    """The constants and the `empty` arrays of a program, and the tiles that its loops touch."""

    constants: Mapping[Value, int]
    empty: frozenset[Value]
    _tiles: dict[int, Mapping[Value, AxisTile | None]] = field(default_factory=dict)

    def tiles(self, loop: LoopUTask) -> Mapping[Value, AxisTile | None]:
        if id(loop) not in self._tiles:
            self._tiles[id(loop)] = tile_access(loop, self.constants)
        return self._tiles[id(loop)]


@dataclass(slots=True)
class _Walk:
    """Follows a value from its writer to its readers. `loop`: the owner of the region, if a loop."""

    facts: _Facts
    owner: _Owner
    loop: LoopUTask | None
    seen: set[Value] = field(default_factory=set)

    def uses(self, value: Value, region: Region) -> Uses:
        self.seen.add(value)
        found: Uses = {}
        for position in readers(region).get(value, ()):
            statement = region.body[position]
            found["statement", id(statement)] = self._statement(value, statement, region)
        for number, result in enumerate(region.results):
            if result == value and self.loop is not None:
                found["result", number] = self._carried(number)
        return found

    def _statement(self, value: Value, statement: Statement, region: Region) -> frozenset[str]:
        if by_threads(statement):
            return frozenset({BASE})
        if is_parallel(statement):
            base = frozenset({BASE} if value in statement.initial else ())
            if value not in free_values(statement.body):
                return base
            return base | {OWN if self._is_own(value, statement) else WHOLE}
        if is_a(statement, "reshape"):
            return _all(self.uses(statement.output, region))
        return frozenset({WHOLE})

    def _is_own(self, value: Value, reader: LoopUTask) -> bool:
        block = self.facts.tiles(reader).get(value)
        if block is None:
            return False
        blocks = Blocks(*block, reader.trip_count or 0, reader.first)
        return _Owner.of(blocks, value.type.shape) == self.owner

    def _carried(self, number: int) -> frozenset[str]:
        """The uses of a carry in the next iteration."""
        assert self.loop is not None
        carry, body = self.loop.carried[number], self.loop.body
        if carry in self.seen:
            return frozenset()
        uses = _all(self.uses(carry, body))
        condition = self.loop.condition
        if condition is not None and condition.parameters[number] in used_in(condition):
            uses |= {WHOLE}
        return uses


def _all(uses: Uses) -> frozenset[str]:
    return frozenset().union(*uses.values())


# -- rewriting -----------------------------------------------------------------------------------------------
class _Rewriter:
    """The program with exchanges of the chosen values."""

    def __init__(
        self, program: UProgram, found: Mapping[Value, _Candidate], chosen: frozenset[Value]
    ) -> None:
        self.program, self.found, self.chosen = program, found, chosen
        self.fresh = FreshValues(program)

    def run(self) -> UProgram:
        return map_regions(self.program, self._region)

    def _region(self, region: Region) -> Region:
        out: list[Statement] = []
        received: dict[Value, Value] = {}
        pending: list[Value] = []
        place = 0  # after the last writer of a pending value
        for statement in region.body:
            if any(not self._use(value, ("statement", id(statement))) <= {OWN} for value in pending):
                self._flush(out, place, pending, received)
            out.append(self._statement(statement, received))
            for value in statement.outputs:
                if value in self.chosen:
                    if sum(v.type.nbytes for v in (*pending, value)) > BLOCK.exchange_bytes:
                        self._flush(out, place, pending, received)
                    pending.append(value)
                    place = len(out)
        self._flush(out, place, pending, received)
        results = tuple(
            received[v] if v in received and _moves(self._use(v, ("result", number))) else v
            for number, v in enumerate(region.results)
        )
        return with_body(region, out, results)

    def _use(self, value: Value, place: Place) -> frozenset[str]:
        return self.found[value].uses.get(place, frozenset())

    def _flush(
        self, out: list[Statement], place: int, pending: list[Value], received: dict[Value, Value]
    ) -> None:
        if not pending:
            return
        copies = tuple(self.fresh.make(value.type) for value in pending)
        blocks = tuple(self.found[value].blocks for value in pending)
        attribute = tuple((b.axis, b.size, b.parts, b.first) for b in blocks)
        source = self.found[pending[0]].source
        operator = UOperator("exchange", tuple(pending), copies, (("blocks", attribute),), source)
        out.insert(place, operator)
        received.update(zip(pending, copies, strict=True))
        pending.clear()

    def _statement(self, statement: Statement, received: dict[Value, Value]) -> Statement:
        """The statement, reading foreign tiles from the received copies."""
        place = ("statement", id(statement))
        now = {x: y for x, y in received.items() if _moves(self._use(x, place))}
        if is_parallel(statement):  # the update in place keeps the original array
            return map_regions(statement, lambda body: region_reads(body, now))
        return with_reads(map_regions(statement, self._region), now)
