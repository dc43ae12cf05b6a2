"""The steps of executables of stock XLA, read from what it dumps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

NOT_CAPTURED = "no kCommandBuffer in the dumped thunk sequence"
BUFFER, LOOP = "kCommandBuffer", "kWhile"


@dataclass
class Thunk:
    """One step of an executable. `kind`: as XLA calls it ("kCommandBuffer"); `name`: the rest of its line;
    `part`: of the parent that it belongs to ("condition", "body", "true_branch"), "" if it has but one."""

    kind: str
    name: str = ""
    part: str = ""
    inner: list[Thunk] = field(default_factory=list)

    def walk(self) -> Iterator[Thunk]:
        """This one and all in it."""
        yield self
        for each in self.inner:
            yield from each.walk()


_LINE = re.compile(r"^( *)\d+: (k\w+)\s*(?:\[[^\]]*\])?\s*(.*)$")
_PART = re.compile(r"^ *(\w+):\s*$")


def thunks(text: str) -> list[Thunk]:
    """The steps that XLA dumped, nested as their indentation says."""
    root = Thunk("")
    stack, part = [(-1, root)], ""
    for line in text.splitlines():
        if found := _PART.match(line):
            part = found[1]
        elif found := _LINE.match(line):
            indent = len(found[1])
            while stack[-1][0] >= indent:
                stack.pop()
            siblings = stack[-1][1].inner
            thunk = Thunk(found[2], found[3], part or (siblings[-1].part if siblings else ""))
            siblings.append(thunk)
            stack.append((indent, thunk))
            part = ""
    return root.inner


@dataclass(frozen=True, slots=True)
class Captured:
    """Contents of command buffers: anything of all executables, and how many loops of the last one, of
    all that it has."""

    captured: bool
    loops_captured: int
    loops: int

    @property
    def words(self) -> str:
        """The reason why this is no captured form, or ""."""
        if not self.captured:
            return NOT_CAPTURED
        left = self.loops - self.loops_captured
        return f"{left} of {self.loops} loops are outside of command buffers" if left else ""


def dumps(folder: str) -> frozenset[Path]:
    """The sequences of steps in a folder of XLA's dumps; none if it is ""."""
    return frozenset(Path(folder).glob("*thunk_sequence*")) if folder else frozenset()


def captured(paths: Iterable[Path]) -> Captured:
    """Counts in dumps. XLA numbers executables; a sequence after its passes comes behind the one before."""
    last = {path.name.split(".thunk_sequence")[0]: path for path in sorted(paths)}
    each = [thunks(path.read_text(errors="replace")) for path in last.values()]
    buffers = [[b for step in steps for b in step.walk() if b.kind == BUFFER] for steps in each]
    inside = sum(step.kind == LOOP for b in (buffers[-1] if buffers else ()) for step in b.walk())
    loops = sum(t.kind == LOOP for step in (each[-1] if each else ()) for t in step.walk())
    return Captured(any(buffers), inside, loops)


def captured_of(wants_capture: object, paths: Iterable[Path]) -> dict[str, Any]:
    """A record of what was captured; with an `error` if that was wanted and anything is left outside. Nothing
    is known without dumps: XLA writes none of what it takes from its cache."""
    if not (dumped := list(paths)):
        return {"captured": None}
    found = captured(dumped)
    return {**asdict(found), **({"error": found.words} if wants_capture and found.words else {})}
