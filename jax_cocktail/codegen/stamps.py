"""The stamps of a timeline: where the text of a traced program notes the clock, and what for.

The table follows from the planned program alone, so emitters only look it up, and a program without a table
has no trace of it. The text has the numbers of stamps; names and places in the user's program are in the
table. A stamp begins a slice of time, which the next stamp of the same writer ends. So one stamp per slice
is enough: statements too short to be worth one belong to the slice before them, unless that is the time of a
crossing, or of a loop or branch that is over. Then they are a slice of kind "work".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from jax_cocktail.cost.work import work
from jax_cocktail.device.machine import Machine
from jax_cocktail.device.tuning import TRACE
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    UOperator,
    UProgram,
    by_threads,
    is_a,
    is_parallel,
    operators_of,
    regions_of,
)
from jax_cocktail.utask.operators import BARRIERS, HALVES
from jax_cocktail.utask.plan import MAILBOX_BYTES, MemoryPlan
from jax_cocktail.utask.types import Source

CROSSINGS, STAGES, EVERYTHING = 1, 2, 3  # levels
HEAD_WORDS, STAMP_WORDS = 8, 2  # of a ring and of a stamp, in 64 bits; see cocktail_trace.h
_COUNTERS_BYTES = 128  # of a unit's own memory on a GPU: a counter for each of up to 32 warps


@dataclass(frozen=True, slots=True)
class Stamp:
    """The begin of a slice.

    `number`: in the text, from 1; `kind`: loop, branch, parts (a parallel loop), stage, meet, work, or arrive
    and wait, the halves of a crossing; `what`: it in words; `parent`: the number of the loop or branch around
    it, 0 for none.
    """

    number: int
    kind: str
    what: str
    source: Source
    parent: int = 0


@dataclass(frozen=True, slots=True)
class StampTable:
    """All stamps of a program at a level.

    `units`, `writers`: how many units have rings, and how many each; `rows`: the stamps by number, from 1;
    `before`: the number of the stamp before a statement, by the identity of its region and its position there
    (barriers are one object in many places); `within`: that of the stamp inside a statement, by its identity:
    between the halves of an exchange, or where an iteration of a loop ends, the same as before the loop;
    `offset`: of the counters of stamps in a unit's own memory, on a GPU.
    """

    level: int
    units: int
    writers: int
    rows: tuple[Stamp, ...]
    before: Mapping[tuple[int, int], int] = field(repr=False)
    within: Mapping[int, int] = field(repr=False)
    offset: int = 0

    @property
    def ring_stamps(self) -> int:
        """The stamps that a ring keeps."""
        return TRACE.stamps // self.writers

    @property
    def shape(self) -> tuple[int, int, int]:
        """The rings as an array: units, writers, halves of 64-bit words, since JAX may have no type of 64."""
        return self.units, self.writers, 2 * (HEAD_WORDS + STAMP_WORDS * self.ring_stamps)

    @property
    def prologue(self) -> tuple[str, ...]:
        """The definitions in the program's text."""
        numbers = {"STAMPS": self.ring_stamps, "WRITERS": self.writers, "OFFSET": self.offset}
        return tuple(f"#define CK_TRACE_{name} {number}" for name, number in numbers.items())

    def of_share(self, loop: LoopUTask, share: LoopUTask, positions: Sequence[int]) -> StampTable:
        """The table with the stamps of a loop for another one, which has those of its statements that are at
        some positions."""
        there = {(id(share.body), at): (id(loop.body), position) for at, position in enumerate(positions)}
        before = {key: self.before[old] for key, old in there.items() if old in self.before}
        within = {id(share): self.within[id(loop)]} if id(loop) in self.within else {}
        return replace(self, before={**self.before, **before}, within={**self.within, **within})


def with_counters(plan: MemoryPlan, machine: Machine) -> MemoryPlan:
    """The plan of a traced program: on a GPU, each unit counts its stamps in its own memory, before the
    mailbox."""
    return replace(plan, own_bytes=plan.own_bytes + _COUNTERS_BYTES) if machine.is_gpu else plan


def beside_counters(machine: Machine) -> Machine:
    """The machine without the memory that `with_counters` takes."""
    spec = machine.spec
    if spec is None:
        return machine
    return replace(machine, spec=replace(spec, shared_bytes=spec.shared_bytes - _COUNTERS_BYTES))


def stamps_of(program: UProgram, plan: MemoryPlan, machine: Machine, level: int) -> StampTable:
    """The stamps of a planned program, whose plan is one `with_counters`."""
    finder = _Finder(level, TRACE.block_weight if machine.is_gpu else TRACE.host_weight, program.entry)
    finder.region(program.entry, 0, ended=False)
    spec = machine.spec
    writers = machine.target.threads // spec.warp if spec is not None and level == EVERYTHING else 1
    offset = plan.own_bytes - MAILBOX_BYTES - _COUNTERS_BYTES if machine.is_gpu else 0
    rows = tuple(finder.rows)
    return StampTable(level, plan.most_units, writers, rows, finder.before, finder.within, offset)


class _Finder:
    """Collects the stamps. `least`: the weight of work from which a statement is worth one, unless it is an
    outermost loop or branch."""

    def __init__(self, level: int, least: float, entry: Region) -> None:
        self._level, self._least = level, least
        self._outermost = {id(statement) for statement in entry.body if regions_of(statement)}
        self._kinds: dict[int, str] = {}
        self.rows: list[Stamp] = []
        self.before: dict[tuple[int, int], int] = {}
        self.within: dict[int, int] = {}

    def region(self, region: Region, parent: int, *, ended: bool) -> None:
        """The stamps of a region. `ended`: the slice before it is none for its short statements."""
        for position, statement in enumerate(region.body):
            kind = self._kind(statement)
            if not kind and (is_free(statement) or not ended):
                continue
            number = self._add(statement, kind or "work", parent)
            ended = kind not in ("", "stage")
            silent = self._begins_inside(statement)
            if not silent:
                self.before[id(region), position] = number
            if is_a(statement, "exchange"):
                self.within[id(statement)] = self._add(statement, "wait", parent)
            if self._inside(statement, number) and isinstance(statement, LoopUTask) and not silent:
                self.within[id(statement)] = number

    def _begins_inside(self, statement: Statement) -> bool:
        """True for a parallel loop whose first statement has a stamp: one of its own would tell no more. What
        follows the loop has one, too, so a tile needs none at its end."""
        if not is_parallel(statement) or by_threads(statement) or not self._kind(statement):
            return False
        first = next((s for s in statement.body.body if self._kind(s) or not is_free(s)), None)
        return first is not None and bool(self._kind(first))

    def _inside(self, statement: Statement, number: int) -> bool:
        """The stamps of the regions of a statement; False if there are none. A condition ends before the body
        of its loop begins."""
        before = len(self.rows)
        enters = self._kind(statement) and not by_threads(statement)  # each thread has its own clock there
        for region in regions_of(statement) if enters else ():
            ended = isinstance(statement, LoopUTask) and len(self.rows) > before
            self.region(region, number, ended=ended)
        return len(self.rows) > before

    def _add(self, statement: Statement, kind: str, parent: int) -> int:
        number = len(self.rows) + 1
        self.rows.append(Stamp(number, kind, _words(statement, kind), statement.source, parent))
        return number

    def _kind(self, statement: Statement) -> str:
        """The kind of the slice that a statement is; "" if it is not worth one."""
        key = id(statement)
        if key not in self._kinds:
            self._kinds[key] = self._found(statement)
        return self._kinds[key]

    def _found(self, statement: Statement) -> str:
        if isinstance(statement, UOperator):
            if statement.kind in BARRIERS:
                return statement.kind if statement.kind in HALVES else "arrive"
            if statement.kind == "block_barrier":
                return "meet" if self._level == EVERYTHING else ""
        if by_threads(statement):
            return "parts" if self._is_long(statement) else ""
        if isinstance(statement, LoopUTask):
            kind = "parts" if statement.parallel else "loop"
        else:
            kind = "branch" if isinstance(statement, BranchUTask) else "stage"
        inner = (s for region in regions_of(statement) for s in region.body)
        worth = any(map(self._kind, inner)) or (not is_free(statement) and self._is_long(statement))
        return kind if worth else ""

    def _is_long(self, statement: Statement) -> bool:
        if self._level == CROSSINGS:
            return False
        if self._level == EVERYTHING and any(not v.type.is_scalar for v in statement.outputs):
            return True
        return id(statement) in self._outermost or work(statement).weight >= self._least


def is_free(statement: Statement) -> bool:
    """True for what takes no time (views, a few scalars), and for a block barrier, which is part of what it
    follows."""
    if isinstance(statement, UOperator) and (statement.is_element or statement.kind == "block_barrier"):
        return True
    operands = (*statement.inputs, *statement.outputs)
    return not regions_of(statement) and all(v.type.is_scalar for v in operands) and bool(operands)


def _words(statement: Statement, kind: str) -> str:
    if isinstance(statement, LoopUTask):
        if statement.trip_count is None:
            return "while loop"
        return f"{'parallel ' if statement.parallel else ''}loop of {statement.trip_count}"
    if isinstance(statement, BranchUTask):
        return f"branch of {len(statement.branches)}"
    if kind in HALVES:
        return f"{kind} (exchange)" if is_a(statement, "exchange") else kind
    return ", ".join(dict.fromkeys(operator.kind for operator in operators_of(statement)))
