"""Machine code as `cuobjdump -sass` prints it: instructions with the control fields of their encoding.

Since Volta an instruction has 128 bits. Bits 105 to 125 tell the scheduler how many cycles the next
instruction waits, and which of six scoreboards this one waits for and sets.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cpu.sass import NO_TOOLS, tools

BYTES = 16  # of an instruction
NO_SCOREBOARD = 7
SCOREBOARDS = 6


class UnknownInstruction(Exception):
    """The emulator does not know an instruction, or a form of it."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction.

    `address`: in its kernel, bytes; `predicate`: its guard, such as "!P0", or ""; `opcode`: with all
    suffixes; `operands`: text. `stall`: cycles until the next instruction; `sets`: the scoreboard that its
    result releases, `frees`: that its operands release; `waits`: the scoreboards that it waits for. `kind`:
    the opcode without suffixes.
    """

    address: int
    predicate: str
    opcode: str
    operands: tuple[str, ...]
    stall: int
    sets: int
    frees: int
    waits: tuple[int, ...]
    kind: str
    suffixes: tuple[str, ...]

    @property
    def target(self) -> int:
        """Where a branch or call goes."""
        return int(self.operands[-1].split()[-1], 16)


Code = tuple[Instruction, ...]

_FIRST = re.compile(
    r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*?)\s*;\s*/\* 0x[0-9a-f]{16} \*/"
)
_SECOND = re.compile(r"^\s*/\* 0x([0-9a-f]{16}) \*/")


def _run(*command: str) -> str:
    assert tools(), NO_TOOLS
    environment = {**os.environ, "PATH": tools()}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr.strip()}")
    return done.stdout


@functools.lru_cache(maxsize=8)
def kernels(binary: bytes) -> Mapping[str, Code]:
    """The code of every kernel of a fatbin or cubin. Functions that are not inlined stand behind theirs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.bin"
        path.write_bytes(binary)
        text = _run("cuobjdump", "-sass", str(path))
    _, *sections = re.split(r"^\s*Function : (\S+)$", text, flags=re.MULTILINE)
    return {
        name: tuple(_instructions(body)) for name, body in zip(sections[::2], sections[1::2], strict=True)
    }


def _instructions(text: str) -> Iterator[Instruction]:
    first: re.Match[str] | None = None
    for line in text.splitlines():
        if found := _FIRST.match(line):
            first = found
        elif first is not None and (found := _SECOND.match(line)):
            yield _instruction(first, int(found[1], 16) >> 41)
            first = None


def _instruction(first: re.Match[str], control: int) -> Instruction:
    waits = tuple(k for k in range(SCOREBOARDS) if control >> 11 + k & 1)
    kind, *suffixes = first[3].split(".")
    return Instruction(
        address=int(first[1], 16),
        predicate=first[2] or "",
        opcode=first[3],
        operands=split_operands(first[4]),
        stall=control & 15,
        sets=control >> 5 & 7,
        frees=control >> 8 & 7,
        waits=waits,
        kind=kind,
        suffixes=tuple(suffixes),
    )


def split_operands(text: str) -> tuple[str, ...]:
    """Splits at commas outside of brackets."""
    found, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and not depth:
            found.append(text[start:at].strip())
            start = at + 1
    last = text[start:].strip()
    return (*found, last) if last else tuple(found)


# ---- source lines ------------------------------------------------------------------------------------------

Line = tuple[str, int]  # file, number

_FILE = re.compile(r'## File "([^"]+)", line (\d+)')
_INLINED = re.compile(r'inlined at "([^"]+)", line (\d+)')
_ADDRESS = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/")


@functools.lru_cache(maxsize=8)
def lines(binary: bytes, kernel: str) -> Mapping[int, tuple[Line, ...]]:
    """The source lines of the instruction at each address, the innermost first; empty without -lineinfo."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.bin"
        path.write_bytes(binary)
        cubins = [path]
        if not binary.startswith(b"\x7fELF"):
            _run("sh", "-c", f"cd '{folder}' && cuobjdump -xelf all program.bin")
            cubins = sorted(Path(folder).glob("*.cubin"))
        text = "\n".join(_run("nvdisasm", "-c", "-gi", str(cubin)) for cubin in cubins)
    found: dict[int, tuple[Line, ...]] = {}
    for section in re.split(r"^\.text\.", text, flags=re.MULTILINE):
        if section.startswith(f"{kernel}:"):
            found |= _lines(section)
    return found


def _lines(section: str) -> dict[int, tuple[Line, ...]]:
    found: dict[int, tuple[Line, ...]] = {}
    here: tuple[Line, ...] = ()
    fresh = True  # the next line of the listing that names a file begins a new place
    for text in section.splitlines():
        if match := _FILE.search(text):
            named = [(Path(match[1]).name, int(match[2]))]
            if at := _INLINED.search(text):
                named.append((Path(at[1]).name, int(at[2])))
            here = tuple(dict.fromkeys((*(() if fresh else here), *named)))
            fresh = False
        elif match := _ADDRESS.match(text):
            found[int(match[1], 16)] = here
            fresh = True
    return found
