"""Times a trace: when each warp of a block issues each of its instructions, and what it waits for.

Warps share four schedulers, the port to the memories, the first- and the second-level cache, the units for
special functions and the tensor cores.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.gpu.sass.decode import NO_SCOREBOARD, SCOREBOARDS, Code, Instruction
from benchmarks.gpu.sass.execute import Meeting, Note, WarpTrace, is_noted
from benchmarks.gpu.sass.machine import Multiprocessor
from benchmarks.gpu.sass.memory import LINE_BITS, SECTOR_BITS, Access

ADDRESS_CYCLES = 4  # from issue to the shared memory's port; to the cache's it is half more
STORE_CYCLES = 20
SECTORS_PER_CYCLE = 2  # that the second-level cache serves one multiprocessor
ISSUE_OF_BRANCH = 5
SPECIAL_EVERY = 4  # cycles of a warp's special function
SHARED_KINDS = frozenset(("LDS", "STS", "LDSM", "ATOMS"))
GLOBAL_KINDS = frozenset(("LDG", "LD", "STG", "ST", "LDGSTS", "LDL", "STL"))
JUMPS = frozenset(("BRA", "JMP", "CALL", "RET"))


Spent = tuple[int, float, str]  # index of an instruction, cycles before its issue, what they were waited for


@dataclass(frozen=True, slots=True)
class Segment:
    """From one block barrier to the next: when that one opens, and what the warp that came last did."""

    end: float
    spent: Sequence[Spent]


@dataclass(frozen=True, slots=True)
class Timed:
    """`end`: cycles of the block; `marks`: when the first warp took each watched branch; `segments`: the
    critical path."""

    end: float
    marks: dict[int, list[float]]
    segments: Sequence[Segment]


def latencies(machine: Multiprocessor) -> dict[str, float]:
    """Cycles until the result of an instruction is there, for those that take a fixed time."""
    conversion = dict.fromkeys(
        ("FCHK", "I2F", "F2I", "F2F", "FRND", "POPC", "FLO", "UFLO", "UPOPC"), machine.conversion
    )
    return {
        **conversion,
        **dict.fromkeys(("SHFL", "REDUX", "MATCH"), machine.shuffle),
        **dict.fromkeys(("S2R", "S2UR", "CS2R"), machine.special_register),
        **dict.fromkeys(("DADD", "DMUL", "DFMA", "DSETP"), machine.wide_float),
        "HMMA": machine.matrix,
        **dict.fromkeys(("ATOM", "ATOMG", "RED", "REDG"), machine.atomic + 1),
        "MEMBAR": machine.membar + 1,
        "LDC": machine.constant,
        "R2UR": machine.to_uniform,
        "VOTE": 8,
        "ULDC": 8,
        "CCTL": 10,
    }


OTHER = 6  # cycles of what has a scoreboard and no latency of its own


@dataclass(slots=True)
class _Warp:
    """Where a warp is. `ready`: when it may issue; `boards`: when each scoreboard is released, and by what;
    `copies`: ends of cp.async not in a group yet; `groups`: ends of groups."""

    number: int
    steps: Iterator[tuple[int, bool]]
    notes: Iterator[Note]
    at: int = 0
    jumps: bool = False
    ready: float = 0
    reason: str = ""
    issued: float = 0
    boards: list[float] = field(default_factory=lambda: [0.0] * SCOREBOARDS)
    causes: list[str] = field(default_factory=lambda: [""] * SCOREBOARDS)
    copies: list[float] = field(default_factory=list)
    groups: list[float] = field(default_factory=list)
    log: list[Spent] = field(default_factory=list)


class Ports:
    """What the warps of a block share."""

    def __init__(self, machine: Multiprocessor) -> None:
        self.machine = machine
        self.memory = self.cache = self.far = 0.0
        self.special = [0.0] * machine.schedulers
        self.matrix = [0.0] * machine.schedulers
        self.present: dict[int, float] = {}  # sector of the first-level cache -> when it is there

    def shared(self, i: Instruction, access: Access, now: float) -> float:
        """Latency of an access to shared memory."""
        turns = max(access.wavefronts, 1)
        start = max(now + ADDRESS_CYCLES, self.memory)
        self.memory = start + turns
        latency = self.machine.matrix_load if i.kind == "LDSM" else self.machine.shared_load
        wide = self.machine.shared_wide if "128" in i.opcode else 0
        return start - now + turns - 1 + latency + wide

    def everywhere(self, i: Instruction, access: Access, now: float) -> float:
        """Latency of an access to global memory, or to shared memory by a generic address."""
        machine, copies = self.machine, i.kind == "LDGSTS"
        if access.remote:
            start = max(now + ADDRESS_CYCLES, self.memory)
            self.memory = start + 1
            return start - now + machine.shared_load + machine.remote_load
        if not access.sectors:
            return 1
        lines = len({sector >> LINE_BITS - SECTOR_BITS for sector in access.sectors})
        start = max(now + ADDRESS_CYCLES + 2, self.cache)
        self.cache = start + lines
        if i.kind in ("STG", "ST", "STL"):
            start = max(start, self.far)
            self.far = start + len(access.sectors) / SECTORS_PER_CYCLE
            return start - now + STORE_CYCLES
        passes = "BYPASS" in i.opcode
        missed = [each for each in access.sectors if passes or each not in self.present]
        if not missed:
            there = max(self.present[each] for each in access.sectors)
            return max(start - now + machine.near_load, there - now)
        begin = max(start + 10, self.far)
        taken = len(missed) / SECTORS_PER_CYCLE
        self.far = begin + taken
        latency = begin - now + taken + (machine.far_copy if copies else machine.far_load)
        if not passes:
            self.present.update(dict.fromkeys(missed, now + latency))
        return latency

    def function(self, warp: int, now: float) -> float:
        """Latency of a special function: the unit of a scheduler takes one warp after the other."""
        busy, scheduler = self.special, warp % len(self.special)
        start = max(now, busy[scheduler])
        busy[scheduler] = start + SPECIAL_EVERY
        return start - now + self.machine.special

    def matrix_wait(self, warp: int, now: float) -> float:
        """How long a warp cannot go on because its scheduler's tensor core is busy."""
        busy, scheduler = self.matrix, warp % len(self.matrix)
        start = max(now, busy[scheduler])
        busy[scheduler] = start + self.machine.matrix_step
        return start - now


class Timing:
    """The timing of one trace."""

    def __init__(
        self, code: Code, traces: Sequence[WarpTrace], machine: Multiprocessor, watched: Sequence[int] = ()
    ) -> None:
        self.code, self.machine = code, machine
        self.noted = [is_noted(i) for i in code]
        self.latencies = latencies(machine)
        self.ports = Ports(machine)
        self.free = [0.0] * machine.schedulers
        self.warps = [_Warp(n, _steps(trace), iter(trace.notes)) for n, trace in enumerate(traces)]
        self.segments: list[Segment] = []
        self.marks: dict[int, list[float]] = {at: [] for at in watched}
        self._arrived: list[_Warp] = []
        self.queue: list[tuple[float, int]] = []
        self._latency = [self._rule(i) for i in code]
        self._waits = [i.waits for i in code]
        self._stalls = [max(i.stall, 1) if self._is_plain(n) else 0 for n, i in enumerate(code)]

    def run(self) -> Timed:
        queue = self.queue
        for warp in self.warps:
            self._next(warp)
        code, waits, stalls, free = self.code, self._waits, self._stalls, self.free
        while queue:
            now, number = heapq.heappop(queue)
            warp = self.warps[number]
            at, ready, scheduler = warp.at, warp.ready, number % len(free)
            for board in waits[at]:
                if warp.boards[board] > ready:
                    ready, warp.reason = warp.boards[board], warp.causes[board]
            if free[scheduler] > ready:
                ready, warp.reason = free[scheduler], "scheduler"
            if ready > now:
                warp.ready = ready
                heapq.heappush(queue, (ready, number))
                continue
            free[scheduler] = now + 1
            warp.log.append((at, now - warp.issued, warp.reason))
            warp.issued = now
            stall = stalls[at]
            if stall:
                warp.ready, warp.reason = now + stall, "fixed latency"
                self._next(warp)
            else:
                self._issue(warp, code[at], now)
        last = max(self.warps, key=lambda warp: warp.issued)
        self.segments.append(Segment(last.issued, last.log))
        return Timed(last.issued, self.marks, self.segments)

    # ---- one instruction

    def _issue(self, warp: _Warp, i: Instruction, now: float) -> None:
        note = next(warp.notes) if self.noted[warp.at] else True
        warp.ready, warp.reason = now + max(i.stall, 1), "fixed latency"
        if i.kind in JUMPS:
            self._jump(warp, i, now)
        elif isinstance(note, Meeting):
            return self._meet(warp, note)
        elif i.kind == "LDGDEPBAR":
            warp.groups.append(max(warp.copies, default=now))
            warp.copies.clear()
        elif i.kind == "DEPBAR" and i.operands[0].startswith("SB"):
            self._await_copies(warp, i)
        else:
            self._compute(warp, i, note, now)
        self._next(warp)

    def _is_plain(self, at: int) -> bool:
        """Whether an instruction only keeps its warp busy for a fixed time."""
        i, no = self.code[at], NO_SCOREBOARD
        special = i.kind in JUMPS or i.kind in ("LDGDEPBAR", "DEPBAR", "CCTL", "MUFU", "HMMA")
        return i.sets == i.frees == no and not self.noted[at] and not special

    def _compute(self, warp: _Warp, i: Instruction, note: Note, now: float) -> None:
        latency = 1.0 if note is False else self._latency[warp.at](note, warp.number, now)
        if i.kind == "HMMA":
            warp.ready += self.ports.matrix_wait(warp.number, now)
        elif i.kind == "LDGSTS":
            warp.copies.append(now + latency)
        elif i.kind == "CCTL" and "IVALL" in i.suffixes:
            self.ports.present.clear()
        if i.sets != NO_SCOREBOARD and now + latency >= warp.boards[i.sets]:
            warp.boards[i.sets], warp.causes[i.sets] = now + latency, i.kind
        if i.frees != NO_SCOREBOARD:
            until = now + self.machine.operands * (1.5 if i.kind in GLOBAL_KINDS else 1)
            if until >= warp.boards[i.frees]:
                warp.boards[i.frees], warp.causes[i.frees] = until, "operands"

    def _rule(self, i: Instruction) -> Callable[[Note, int, float], float]:
        """Latency of an instruction from what it asks for, its warp, and the time."""
        ports = self.ports
        if i.kind in SHARED_KINDS:
            return lambda note, warp, now: ports.shared(i, _access(note), now)
        if i.kind in GLOBAL_KINDS:
            return lambda note, warp, now: (
                1 if "STRONG" in i.opcode else ports.everywhere(i, _access(note), now)
            )
        if i.kind == "MUFU":
            return lambda note, warp, now: ports.function(warp, now)
        latency = self.latencies.get(i.kind, OTHER)
        return lambda note, warp, now: latency

    def _jump(self, warp: _Warp, i: Instruction, now: float) -> None:
        warp.ready = now + max(i.stall, ISSUE_OF_BRANCH)
        warp.reason = "branch"
        if warp.jumps:
            warp.ready += self.machine.taken_branch if i.kind in ("BRA", "JMP") else self.machine.call
        if warp.number == 0 and warp.jumps and warp.at in self.marks:
            self.marks[warp.at].append(now)

    def _await_copies(self, warp: _Warp, i: Instruction) -> None:
        left = int(i.operands[1], 16) if len(i.operands) > 1 else 0
        done = len(warp.groups) - left
        if done > 0:
            until = max(warp.groups[:done])
            del warp.groups[:done]
            if until > warp.ready:
                warp.ready, warp.reason = until, "cp.async"

    def _meet(self, warp: _Warp, meeting: Meeting) -> None:
        self._arrived.append(warp)
        if len(self._arrived) < meeting.warps:
            return
        last = max(self._arrived, key=lambda each: each.ready)
        opens = last.ready + self.machine.block_barrier
        self.segments.append(Segment(opens, last.log))
        for each in self._arrived:
            each.log = []
            each.ready, each.reason = opens, "block barrier"
            each.issued = last.issued
            self._next(each)
        self._arrived.clear()

    def _next(self, warp: _Warp) -> None:
        step = next(warp.steps, None)
        if step is not None:
            warp.at, warp.jumps = step
            heapq.heappush(self.queue, (warp.ready, warp.number))


def _access(note: Note) -> Access:
    assert isinstance(note, Access)
    return note


def _steps(trace: WarpTrace) -> Iterator[tuple[int, bool]]:
    """Each instruction, and whether the next one is elsewhere."""
    for start, end in trace.runs:
        for at in range(start, end - 1):
            yield at, False
        yield end - 1, True
