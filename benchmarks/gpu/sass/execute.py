"""Executes the code of one block on values: all warps side by side, divergent lanes as groups.

Other blocks do not exist. What a block waits for has come, so loops that poll end at once. The result is a
trace: which instructions each warp issues in which order, and what they ask of the memories.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.gpu.sass import floating, integer, memory, transfer
from benchmarks.gpu.sass.decode import NO_SCOREBOARD, Code, Instruction, UnknownInstruction
from benchmarks.gpu.sass.loops import polls
from benchmarks.gpu.sass.memory import NOTHING, Access
from benchmarks.gpu.sass.operands import Binder, FetchMask, is_predicate, register_number
from benchmarks.gpu.sass.state import Mask, State

PLAIN = {**integer.OPERATIONS, **floating.OPERATIONS, **transfer.OPERATIONS}
CONTROL = frozenset(
    ("BRA", "BRX", "JMP", "CALL", "RET", "EXIT", "BAR", "BSSY", "BSYNC", "BREAK", "WARPSYNC", "KILL", "BPT")
)
NEVER = ("BRX", "KILL", "BPT")


@dataclass(frozen=True, slots=True)
class Meeting:
    """A block barrier that a warp came to: its number among all that were passed. `warps`: how many meet."""

    number: int
    warps: int


Note = Access | Meeting | bool


@dataclass(slots=True)
class WarpTrace:
    """What one warp issued. `runs`: (first, last + 1) of instructions in a row; `notes`: for those of
    `is_noted`, in order."""

    runs: list[tuple[int, int]] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)


@dataclass(slots=True)
class Group:
    """Lanes at the same place. `at`: index of the instruction."""

    at: int
    mask: Mask


def crossing_of(i: Instruction) -> str:
    """The kind of crossing that an instruction polls for, or "": a word alone, or a tagged word."""
    if i.kind not in ("LD", "LDG") or i.suffixes[-1] != "GPU" or "STRONG" not in i.suffixes:
        return ""
    return "exchange" if "64" in i.suffixes else "barrier"


def is_noted(i: Instruction) -> bool:
    """Whether the trace says more of an instruction than that it was issued."""
    guarded = bool(i.predicate) and i.sets != NO_SCOREBOARD and i.kind not in CONTROL
    return i.kind in memory.OPERATIONS or i.kind == "BAR" or guarded


class Execution:
    """The execution of one block, from its first instruction."""

    def __init__(self, code: Code, state: State) -> None:
        self.code, self.state = code, state
        self.binder = Binder(state)
        self.index = {i.address: n for n, i in enumerate(code)}
        self.noted = [is_noted(i) for i in code]
        self.polls = polls(code)
        self.warps = [WarpTrace() for _ in range(state.warps)]
        self.groups = [Group(0, np.ones((state.warps, 32), np.bool_))]
        self.issued = 0
        self.meetings = 0
        self.crossings: dict[int, str] = {}  # block barriers before it -> kind
        self.taken: dict[int, int] = {}  # backward branches that the first warp took, how often
        self._steps: list[Callable[[Group], None] | None] = [None] * len(code)
        self._joins: dict[str, Mask] = {}

    # ---- running

    def run(self, until: Callable[[Execution], bool], budget: int) -> bool:
        """Runs to the end, or until the condition holds after a branch back of the first warp, or `budget`
        instructions of warps are issued. True: to the end."""
        with np.errstate(all="ignore"):
            while self.groups and self.issued < budget:
                group = self._next()
                if group is None:
                    self._meet()
                    continue
                branches = len(self.taken), sum(self.taken.values())
                self._advance(group)
                if branches != (len(self.taken), sum(self.taken.values())) and until(self):
                    return False
        return not self.groups

    def _next(self) -> Group | None:
        """The group that is least far, of those that need not wait for other lanes."""
        self.groups.sort(key=lambda group: group.at)
        for group in self.groups:
            i = self.code[group.at]
            if i.kind not in ("BAR", "BSYNC", "WARPSYNC") or self._passes(group, i):
                return group
            ready = self._gathered(group)
            if ready.any() and self.code[group.at].kind != "BAR":
                return self._split(group, ready)
        return None

    def _passes(self, group: Group, i: Instruction) -> bool:
        """Whether a group meets nobody at a barrier, by its guard. Keeps only such lanes in it, if any."""
        if i.kind != "BAR" or not i.predicate:
            return False
        past = group.mask & ~self.binder.predicate(i.predicate)()
        if past.any():
            self._split(group, np.asarray(past.any(-1)))
        return bool(past.any())

    def _gathered(self, group: Group) -> Mask:
        """The warps of a group (with lanes in it) of which all lanes that come here are here."""
        alive = np.logical_or.reduce([each.mask for each in self.groups])
        i = self.code[group.at]
        if i.kind == "BSYNC":
            alive = alive & self._joins.get(i.operands[0], alive)
        here: Mask = group.mask.any(-1) & ~(alive & ~group.mask).any(-1)
        return here

    def _split(self, group: Group, warps: Mask) -> Group:
        """Takes the lanes of some warps out of a group."""
        part = group.mask & warps[:, None]
        rest = group.mask & ~part
        if not rest.any():
            return group
        self.groups.append(Group(group.at, rest))
        group.mask = part
        return group

    def _advance(self, group: Group) -> None:
        """Past one branch or barrier, or else to the next one, or to where another group waits."""
        code, steps, at = self.code, self._steps, group.at
        if code[at].kind in CONTROL:
            self._issue(group, at, at + 1)
            self._control(group, at)
            return self._merge()
        stop = min((each.at for each in self.groups if each.at > at), default=len(code))
        while at < stop and code[at].kind not in CONTROL:
            step = steps[at]
            if step is None:
                step = steps[at] = self._bound(at)
            step(group)
            at += 1
        self._issue(group, group.at, at)
        group.at = at
        self._merge()

    def _issue(self, group: Group, start: int, end: int) -> None:
        active = np.flatnonzero(group.mask.any(-1)).tolist()
        for warp in active:
            runs = self.warps[warp].runs
            if runs and runs[-1][1] == start:
                runs[-1] = (runs[-1][0], end)
            else:
                runs.append((start, end))
        self.issued += (end - start) * len(active)

    def _merge(self) -> None:
        places: dict[int, Group] = {}
        for group in self.groups:
            if not group.mask.any():
                continue
            if (other := places.get(group.at)) is not None:
                other.mask = other.mask | group.mask
            else:
                places[group.at] = group
        self.groups = list(places.values())

    # ---- instructions that compute

    def _bound(self, at: int) -> Callable[[Group], None]:
        """An instruction as a function of the group that executes it."""
        i = self.code[at]
        guard = self.binder.predicate(i.predicate) if i.predicate else None
        try:
            if i.kind in memory.OPERATIONS:
                touch = memory.OPERATIONS[i.kind](self.binder, i)
                return functools.partial(self._touch, touch, guard, crossing_of(i))
            step = PLAIN[i.kind](self.binder, i)
        except (KeyError, UnknownInstruction, ValueError, IndexError) as error:
            where = f"{i.opcode} {', '.join(i.operands)} at {i.address:#x}"
            raise UnknownInstruction(f"the emulator does not know {where}: {error!r}") from error
        if i.kind == "UCGABAR_WAIT":
            return lambda group: self._cross("cluster_barrier")
        if guard is None:
            return lambda group: step(group.mask)
        note = self.noted[at]

        def guarded(group: Group) -> None:
            mask = group.mask & guard()
            step(mask)
            if note:
                self._note(group, np.any(mask, axis=-1).tolist())

        return guarded

    def _cross(self, kind: str) -> None:
        """Waits between two block barriers are one crossing. Tags alone are polled, too."""
        if self.crossings.get(self.meetings) != "exchange":
            self.crossings[self.meetings] = kind

    def _touch(self, touch: memory.Touch, guard: FetchMask | None, crossing: str, group: Group) -> None:
        mask = group.mask if guard is None else group.mask & guard()
        if crossing and mask.any():
            self._cross(crossing)
        self._note(group, touch(mask) if mask.any() else [NOTHING] * self.state.warps)

    def _note(self, group: Group, notes: Sequence[Note]) -> None:
        for warp in np.flatnonzero(group.mask.any(-1)).tolist():
            self.warps[warp].notes.append(notes[warp])

    # ---- instructions that go elsewhere

    def _control(self, group: Group, at: int) -> None:
        i = self.code[at]
        mask = group.mask & self.binder.predicate(i.predicate)() if i.predicate else group.mask
        if i.kind in NEVER:
            if mask.any():
                raise UnknownInstruction(f"the emulator does not know {i.opcode} at {i.address:#x}")
        elif i.kind in ("BRA", "JMP", "CALL"):
            return self._branch(group, at, mask)
        elif i.kind in ("EXIT", "RET"):
            return self._leave(group, at, mask)
        elif i.kind == "BAR":
            self._note(group, [False] * self.state.warps)
        elif i.kind == "BSSY":
            old = self._joins.get(i.operands[0], np.zeros_like(mask))
            self._joins[i.operands[0]] = np.where(group.mask.any(-1, keepdims=True), group.mask, old)
        elif i.kind == "BREAK":
            self._joins[i.operands[-1]] = self._joins[i.operands[-1]] & ~mask
        group.at = at + 1

    def _branch(self, group: Group, at: int, mask: Mask) -> None:
        i = self.code[at]
        for condition in i.operands[:-1]:
            if is_predicate(condition):
                mask = mask & self.binder.predicate(condition)()
        if at in self.polls:  # it has come
            mask = np.zeros_like(mask)
        target = self.index[i.target]
        if target <= at and mask[0].any():
            self.taken[at] = self.taken.get(at, 0) + 1
        self.groups.append(Group(target, mask))
        group.at, group.mask = at + 1, group.mask & ~mask

    def _leave(self, group: Group, at: int, mask: Mask) -> None:
        """The end of a thread, or of a function: back to the address in a register."""
        i = self.code[at]
        if i.kind == "RET":
            register = register_number(next(each for each in i.operands[0].split() if each.startswith("R")))
            assert register is not None
            back = self.state.registers[register]
            for address in np.unique(back[mask]).tolist():
                self.groups.append(Group(self.index[address], mask & (back == address)))
        group.at, group.mask = at + 1, group.mask & ~mask

    def _meet(self) -> None:
        """Lets a block barrier open: everybody is there."""
        waiting = {id(group): self._barrier(group) for group in self.groups}
        for group in self.groups:
            name, count = waiting[id(group)]
            same = [each for each in self.groups if waiting[id(each)][0] == name]
            lanes = np.logical_or.reduce([each.mask for each in same])
            if count and int(lanes.any(-1).sum()) * 32 < count:
                continue
            if not count and len(same) != len(self.groups):
                continue
            for each in same:
                meeting = Meeting(self.meetings, int(lanes.any(-1).sum()))
                self._note(each, [meeting] * self.state.warps)
                self._issue(each, each.at, each.at + 1)
                each.at += 1
            self.meetings += 1
            return self._merge()
        places = ", ".join(hex(self.code[group.at].address) for group in self.groups)
        raise RuntimeError(f"the block waits for ever, at {places}")

    def _barrier(self, group: Group) -> tuple[str, int]:
        """The name of the barrier that a group waits at, and how many threads meet there (0: all)."""
        i = self.code[group.at]
        if i.kind != "BAR":
            raise RuntimeError(f"{i.opcode} at {i.address:#x} waits for lanes that do not come")
        count = int(i.operands[1], 16) if len(i.operands) > 1 and i.operands[1].startswith("0x") else 0
        return i.operands[0], count
