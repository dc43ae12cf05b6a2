"""Small values cross units as tagged words, instead of by a barrier and a gather: one hop, no barrier.

In a recurrence on many units, a parallel loop writes the next state slice by slice, and in the next trip
every unit reads all of it. In between stands a barrier. Here such a state x gets a copy y = exchange(x) in
each unit's own memory, for those who read more than the slice that they wrote. Then x is touched slice by
slice alone, and no barrier is derived for it.

An exchange needs no credits because every unit sends and receives in every step (see `utask.exchange`). That
holds as each unit runs each exchange equally often: exchanges stand at device scope only, where control flow
is uniform (predicates are scalars that every unit computes from equal bits), in no parallel loop, hence in no
stage of a wavefront that has units of its own. The verifier refuses any other place, as it does for barriers.

What is exchanged is chosen by one trial: the program with all exchanges that there could be is planned and
synchronised. Where a barrier could still stand between those who write a value and those who read it, it is
there for others too, and that exchange is left out again. An exchange costs less than the barrier that it
saves (`VALUE_BYTES`), so prices are not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import cast

from jax_cocktail.analysis.parallel import Block, own_slices, scalar_constants, tile_access
from jax_cocktail.cost.work import waits
from jax_cocktail.errors import PlacementError
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.schedule.sync.plan_tail import finish
from jax_cocktail.stitch.fuse import stitch
from jax_cocktail.utask.exchange import MOST_WORDS, VALUE_BYTES, WORDS, Blocks
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    UOperator,
    UProgram,
    free_values,
    operators_in,
    reads,
    walk,
)
from jax_cocktail.utask.remarks import Listener, Remark, nobody
from jax_cocktail.utask.substitute import FreshValues, with_reads
from jax_cocktail.utask.types import Shape, Source, Value

Place = tuple[str, int]  # that reads a value: a statement (its id), or a result of its region (the position)
Uses = dict[Place, frozenset[str]]
WHOLE, OWN, BASE = "whole", "own", "base"  # uses: more than one's slice, one's slice, to update it in place


def exchange(program: UProgram, remark: Listener = nobody) -> UProgram:
    """Expects a placed program that is not stitched yet. Returns its argument if no exchange saves a
    barrier."""
    found = _candidates(program)
    if not found:
        return program
    everything = _Rewriter(program, found, frozenset(found)).run()
    chosen, all_saved = _chosen(everything)
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


# -- which ---------------------------------------------------------------------------------------------------
def _chosen(exchanged: UProgram) -> tuple[list[Value], bool]:
    """Of what is exchanged the values that save a barrier, and whether no barrier is left in a loop.

    The trial unrolls no loop by two, so a barrier that only a missing second buffer needs counts, too."""
    try:
        final = finish(stitch(simplify(exchanged))).program
    except PlacementError:
        return [], False
    saving = {o.outputs for o, frames in _exchanges(final.entry, ()) if not _meet(o.outputs, frames)}
    made = (o for o in operators_in(exchanged.entry) if o.kind == "exchange")
    chosen = [value for o in made if o.outputs in saving for value in o.inputs]
    loops = (s for s in walk(final.entry) if isinstance(s, LoopUTask))
    return chosen, not any(map(waits, loops))


@dataclass(frozen=True, slots=True)
class _Frame:
    """A position in a region, and the loop or branch whose region it is."""

    region: Region
    position: int
    owner: LoopUTask | BranchUTask | None


def _exchanges(
    region: Region, outer: tuple[_Frame, ...], owner: LoopUTask | BranchUTask | None = None
) -> Iterator[tuple[UOperator, tuple[_Frame, ...]]]:
    """Every exchange, and where it stands, outermost region first."""
    for position, statement in enumerate(region.body):
        frames = (*outer, _Frame(region, position, owner))
        if isinstance(statement, UOperator) and statement.kind == "exchange":
            yield statement, frames
        elif isinstance(statement, LoopUTask | BranchUTask):
            for inner in statement.regions:
                yield from _exchanges(inner, frames, statement)


def _meet(received: Iterable[Value], frames: Sequence[_Frame]) -> bool:
    """True if some barrier could as well stand before whoever reads first what was received: units arrive at
    it before that. A loop goes on at its beginning."""
    here, names = frames[-1], set(received)
    before = [k for s in here.region.body[: here.position] if (k := _barrier(s))]
    if before[-1:] == ["arrive"]:
        return True
    for frame in reversed(frames):
        region, owner = frame.region, frame.owner
        met = _first(region.body[frame.position + 1 :], names)
        if met is not None or owner is None:
            return bool(met)
        loops = isinstance(owner, LoopUTask)
        targets = owner.carried if isinstance(owner, LoopUTask) else owner.outputs
        names = {t for r, t in zip(region.results, targets, strict=True) if r in names}
        if loops:
            return bool(_first(region.body[: frame.position], names))
    return False


def _first(body: Sequence[Statement], names: set[Value]) -> bool | None:
    """Of statements, what comes first: True if it is a barrier, False if one reads a value of these names."""
    for statement in body:
        if _barrier(statement):
            return True
        if not names.isdisjoint(reads(statement)):
            if not (isinstance(statement, UOperator) and statement.is_element):
                return False
            names.update(statement.outputs)  # the same array in another shape
    return None


def _barrier(statement: Statement) -> str:
    is_one = isinstance(statement, UOperator) and statement.kind in ("arrive", "wait")
    return cast(UOperator, statement).kind if is_one else ""


# -- candidates ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Candidate:
    """A value that units write by these blocks. `uses`: of it, by who reads it. `source`: of the loop
    around."""

    blocks: Blocks
    uses: Uses
    source: Source


def _candidates(program: UProgram) -> dict[Value, _Candidate]:
    operators = list(operators_in(program.entry))
    empty = frozenset(o.output for o in operators if o.kind == "empty")
    finder = _Finder(_Facts(scalar_constants(operators), empty))
    finder.region(program.entry, None, None)
    return finder.found


@dataclass(slots=True)
class _Finder:
    """Collects what parallel loops in loops write, and others read as a whole."""

    facts: _Facts
    found: dict[Value, _Candidate] = field(default_factory=dict)

    def region(self, region: Region, loop: LoopUTask | None, around: LoopUTask | None) -> None:
        """`loop`: whose body the region is; `around`: the loop that it is in."""
        for position, statement in enumerate(region.body):
            if isinstance(statement, LoopUTask) and statement.parallel:
                if around is not None:
                    self._written(statement, region, position, loop, around)
            elif isinstance(statement, LoopUTask):
                self.region(statement.body, statement, statement)
            elif isinstance(statement, BranchUTask):
                for inner in statement.branches:
                    self.region(inner, None, around)

    def _written(
        self, writer: LoopUTask, region: Region, position: int, loop: LoopUTask | None, around: LoopUTask
    ) -> None:
        slices = own_slices(writer, self.facts.constants)
        for number, value in enumerate(writer.outputs):
            block, shape = slices.get(number), value.type.shape
            if block is None or value.type.dtype not in WORDS or value.type.nbytes > VALUE_BYTES:
                continue
            (axis, size), parts = block, writer.trip_count or 0
            if value.type.is_scalar:
                continue
            if size * parts < shape[axis] and writer.initial[number] not in self.facts.empty:
                continue  # what lies beyond the parts was there before
            blocks = Blocks(axis, size, parts, writer.first)
            walk = _Walk(self.facts, _Owner.of(blocks, shape), loop)
            uses = walk.uses(value, region.body[position + 1 :], region.results)
            if any(_moves(use) for use in uses.values()):
                self.found[value] = _Candidate(blocks, uses, around.source)


def _moves(uses: frozenset[str]) -> bool:
    """True if who uses it so reads what was received."""
    return WHOLE in uses and BASE not in uses


@dataclass(frozen=True, slots=True)
class _Owner:
    """Which elements of an array are whose, whatever its shape: of every `period` elements, part p has `run`
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
    """What statements read and touch, found out once for each."""

    constants: Mapping[Value, int]
    empty: frozenset[Value]
    _reads: dict[int, frozenset[Value]] = field(default_factory=dict)
    _tiles: dict[int, Mapping[Value, Block | None]] = field(default_factory=dict)

    def reads(self, statement: Statement) -> frozenset[Value]:
        if id(statement) not in self._reads:
            self._reads[id(statement)] = frozenset(reads(statement))
        return self._reads[id(statement)]

    def tiles(self, loop: LoopUTask) -> Mapping[Value, Block | None]:
        if id(loop) not in self._tiles:
            self._tiles[id(loop)] = tile_access(loop, self.constants)
        return self._tiles[id(loop)]


@dataclass(slots=True)
class _Walk:
    """From the writer of a value on to those who use it. `loop`: whose body they are."""

    facts: _Facts
    owner: _Owner
    loop: LoopUTask | None
    seen: set[Value] = field(default_factory=set)

    def uses(self, value: Value, body: Sequence[Statement], results: Sequence[Value]) -> Uses:
        self.seen.add(value)
        found: Uses = {}
        for position, statement in enumerate(body):
            if value in self.facts.reads(statement):
                rest = body[position + 1 :]
                found["statement", id(statement)] = self._statement(value, statement, rest, results)
        for number, result in enumerate(results):
            if result == value and self.loop is not None:
                found["result", number] = self._carried(number)
        return found

    def _statement(
        self, value: Value, statement: Statement, rest: Sequence[Statement], results: Sequence[Value]
    ) -> frozenset[str]:
        if isinstance(statement, LoopUTask) and statement.parallel:
            base = frozenset({BASE} if value in statement.initial else ())
            if value not in free_values(statement.body):
                return base
            return base | {OWN if self._is_own(value, statement) else WHOLE}
        if isinstance(statement, UOperator) and statement.kind == "reshape":
            return _all(self.uses(statement.output, rest, results))
        return frozenset({WHOLE})

    def _is_own(self, value: Value, reader: LoopUTask) -> bool:
        block = self.facts.tiles(reader).get(value)
        if block is None:
            return False
        blocks = Blocks(*block, reader.trip_count or 0, reader.first)
        return _Owner.of(blocks, value.type.shape) == self.owner

    def _carried(self, number: int) -> frozenset[str]:
        """The uses of a carry in the next trip."""
        assert self.loop is not None
        carry, body = self.loop.carried[number], self.loop.body
        if carry in self.seen:
            return frozenset()
        uses = _all(self.uses(carry, body.body, body.results))
        condition = self.loop.condition
        if condition is not None and condition.parameters[number] in _used(condition):
            uses |= {WHOLE}
        return uses


def _all(uses: Uses) -> frozenset[str]:
    return frozenset().union(*uses.values())


def _used(region: Region) -> set[Value]:
    return {v for s in region.body for v in reads(s)} | set(region.results)


# -- rewriting -----------------------------------------------------------------------------------------------
class _Rewriter:
    """The program with exchanges of the chosen values."""

    def __init__(
        self, program: UProgram, found: Mapping[Value, _Candidate], chosen: frozenset[Value]
    ) -> None:
        self.program, self.found, self.chosen = program, found, chosen
        self.fresh = FreshValues(program)

    def run(self) -> UProgram:
        return replace(self.program, entry=self._region(self.program.entry))

    def _region(self, region: Region) -> Region:
        out: list[Statement] = []
        received: dict[Value, Value] = {}
        pending: list[Value] = []
        place = 0  # behind the last writer of what is pending
        for statement in region.body:
            if any(not self._use(value, ("statement", id(statement))) <= {OWN} for value in pending):
                self._flush(out, place, pending, received)
            out.append(self._statement(statement, received))
            for value in statement.outputs:
                if value in self.chosen:
                    if sum(v.type.size for v in (*pending, value)) > MOST_WORDS:
                        self._flush(out, place, pending, received)
                    pending.append(value)
                    place = len(out)
        self._flush(out, place, pending, received)
        results = tuple(
            received[v] if v in received and _moves(self._use(v, ("result", number))) else v
            for number, v in enumerate(region.results)
        )
        return Region(region.parameters, tuple(out), results)

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
        """With what it reads as a whole from where that was received."""
        place = ("statement", id(statement))
        now = {x: y for x, y in received.items() if _moves(self._use(x, place))}
        if isinstance(statement, LoopUTask) and statement.parallel:
            body = with_reads(statement, now).body  # updated in place is what was written
            return replace(statement, body=body)
        if isinstance(statement, LoopUTask):
            statement = replace(statement, body=self._region(statement.body))
        elif isinstance(statement, BranchUTask):
            statement = replace(statement, branches=tuple(map(self._region, statement.branches)))
        return with_reads(statement, now)
