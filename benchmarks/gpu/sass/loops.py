"""Loops in machine code: those that poll, and the outermost one, whose iterations are a program's steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.gpu.sass.decode import Code, Instruction
from benchmarks.gpu.sass.operands import Binder

LONGEST_POLL = 0x400  # bytes of code
_LOADS = ("LD", "LDG")


@dataclass(frozen=True, slots=True)
class Loop:
    """Indices of the instructions: from `first` to the branch back, `last`."""

    first: int
    last: int

    def holds(self, other: Loop) -> bool:
        return self != other and self.first <= other.first and other.last <= self.last


def loops_of(code: Code) -> tuple[Loop, ...]:
    """Every branch back, but for those to themselves behind the end of a function."""
    index = {i.address: n for n, i in enumerate(code)}
    found = []
    for n, i in enumerate(code):
        if i.kind == "BRA" and i.target < i.address:
            found.append(Loop(index[i.target], n))
    return tuple(found)


def polls(code: Code) -> frozenset[int]:
    """The branches back of loops that only wait for other blocks."""
    found = set()
    for loop in loops_of(code):
        body = code[loop.first : loop.last]
        short = code[loop.last].address - code[loop.first].address < LONGEST_POLL
        if short and any(i.kind in _LOADS and "STRONG" in i.suffixes for i in body):
            found.add(loop.last)
    return frozenset(found)


def outermost(code: Code) -> tuple[Loop, ...]:
    """The loops of the kernel itself that no other one holds; functions behind it are left out."""
    index = {i.address: n for n, i in enumerate(code)}
    exit = next((n for n, i in enumerate(code) if i.kind == "EXIT" and not i.predicate), len(code))
    calls = (index[i.target] for i in code if i.kind == "CALL" and i.target in index)
    end = min((at for at in calls if at > exit), default=len(code))  # some "calls" go to the next instruction
    loops = [loop for loop in loops_of(code) if loop.last < end]
    return tuple(loop for loop in loops if not any(other.holds(loop) for other in loops))


def crosses(code: Code, loop: Loop) -> bool:
    """Whether blocks wait for each other in a loop."""
    body = code[loop.first : loop.last]
    return any(i.kind == "UCGABAR_WAIT" or (i.kind in _LOADS and "STRONG" in i.suffixes) for i in body)


class Countdown:
    """The comparison that a loop ends with, from which the number of its iterations follows if it counts."""

    def __init__(self, code: Code, loop: Loop, binder: Binder) -> None:
        self.seen: list[int] = []
        compared = _comparison(code, loop)
        self._fetch: Callable[[], int] | None = None
        if compared is not None:
            a, b = (binder.integer(each) for each in compared.operands[2:4])
            self._fetch = lambda: int(b().view(np.int32).flat[0]) - int(a().view(np.int32).flat[0])

    def look(self) -> None:
        """After an iteration."""
        if self._fetch is not None:
            self.seen.append(self._fetch())

    def iterations(self) -> int | None:
        """All iterations of the loop; None if what was seen does not tell."""
        steps = {later - earlier for earlier, later in zip(self.seen, self.seen[1:], strict=False)}
        if len(steps) != 1 or not (step := steps.pop()) or self.seen[-1] % step or self.seen[-1] * step > 0:
            return None
        return len(self.seen) + abs(self.seen[-1] // step)


def _comparison(code: Code, loop: Loop) -> Instruction | None:
    branch = code[loop.last]
    names = [branch.predicate, *branch.operands[:-1]]
    wanted = {name.lstrip("!") for name in names if name.strip("!")} - {"PT", "UPT"}
    for i in reversed(code[loop.first : loop.last]):
        if wanted & set(i.operands[:2]) and i.kind in ("ISETP", "UISETP"):
            return i
    return None
