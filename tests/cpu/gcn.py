"""What machine code for AMD's cards consists of: instructions by function, as clang writes assembly."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_FUNCTION = re.compile(r"^([A-Za-z_$][\w$.]*):.*?^\.Lfunc_end\d+:", re.MULTILINE | re.DOTALL)
_LABEL = re.compile(r"^(\.LBB\d+_\d+):")
_INSTRUCTION = re.compile(r"^\s+([a-z]\w+)\s*([^;]*)")
_SYMBOL = re.compile(r"\b([A-Za-z_$][\w$.]*)@(?:rel32|gotpcrel32)@lo|\b([A-Za-z_$][\w$.]*)-\.Lpost_getpc")


@dataclass(frozen=True, slots=True)
class Instruction:
    """`opcode`: such as "global_load_dwordx4"; `looping`: it stands in a loop of its function."""

    opcode: str
    operands: str
    looping: bool


def functions(assembly: str) -> Mapping[str, tuple[Instruction, ...]]:
    """The instructions of each function and kernel."""
    return {found[1]: tuple(_instructions(found[0])) for found in _FUNCTION.finditer(assembly)}


def _instructions(text: str) -> Iterator[Instruction]:
    lines = text.splitlines()
    labels = {found[1]: number for number, line in enumerate(lines) if (found := _LABEL.match(line))}
    parsed = [_INSTRUCTION.match(line) for line in lines]
    inside: set[int] = set()
    for number, found in enumerate(parsed):
        if found and found[1].startswith(("s_branch", "s_cbranch")):
            target = labels.get(found[2].strip(), number)
            inside |= set(range(target, number + 1)) if target < number else set()
    for number, found in enumerate(parsed):
        if found:
            yield Instruction(found[1], found[2].strip(), number in inside)


def reached(code: Mapping[str, tuple[Instruction, ...]], kernel: str) -> tuple[Instruction, ...]:
    """The instructions of a kernel and of all functions that it calls."""
    names, left = set[str](), {kernel}
    while left:
        names |= left
        found = {word for name in left for each in code[name] for word in _symbols(each.operands)}
        left = (found & code.keys()) - names
    return tuple(each for name in sorted(names) for each in code[name])


def _symbols(operands: str) -> set[str]:
    return {word for found in _SYMBOL.findall(operands) for word in found if word}


def count(code: tuple[Instruction, ...], *prefixes: str, in_loops: bool = False) -> int:
    """How many instructions begin with one of these; or only those in loops."""
    return sum(each.opcode.startswith(prefixes) and (each.looping or not in_loops) for each in code)
