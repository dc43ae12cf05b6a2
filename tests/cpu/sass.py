"""What machine code for an NVIDIA GPU consists of: instructions by kernel, as the tools of CUDA list them."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from jax_cocktail.build.job import package_folders

NO_TOOLS = "needs cuobjdump and nvdisasm (the static-checks extra, or a CUDA toolkit on PATH)"


@dataclass(frozen=True, slots=True)
class Instruction:
    """`address`: in its kernel, bytes; `opcode`: with all suffixes ("LDG.E.128"); `operands`: text."""

    address: int
    opcode: str
    operands: str

    @property
    def target(self) -> int | None:
        """Where a branch or call goes, if that stands in the instruction."""
        found = re.search(r"\b0x([0-9a-f]+)\s*$", self.operands)
        is_jump = self.opcode.split(".")[0] in ("BRA", "CALL", "JMP")
        return int(found[1], 16) if is_jump and found else None


@functools.cache
def tools() -> str:
    """PATH with cuobjdump and nvdisasm on it; "" if they are not installed."""
    wheels = [str(folder) for base in package_folders("nvidia") for folder in Path(base).glob("cu*/bin")]
    path = os.pathsep.join([*wheels, os.environ.get("PATH", "")])
    return path if all(shutil.which(name, path=path) for name in ("cuobjdump", "nvdisasm")) else ""


@functools.lru_cache(maxsize=16)
def kernels(binary: bytes) -> Mapping[str, tuple[Instruction, ...]]:
    """The instructions of every kernel of a fatbin or cubin; functions that are not inlined stand behind
    the kernel that calls them."""
    assert tools(), NO_TOOLS
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.bin"
        path.write_bytes(binary)
        command = ["cuobjdump", "-sass", str(path)]
        environment = {**os.environ, "PATH": tools()}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    _, *sections = re.split(r"^\s*Function : (\S+)$", done.stdout, flags=re.MULTILINE)
    return {
        name: tuple(_instructions(text)) for name, text in zip(sections[::2], sections[1::2], strict=True)
    }


_LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*);", re.MULTILINE)


def _instructions(text: str) -> Iterator[Instruction]:
    for address, opcode, operands in _LINE.findall(text):
        yield Instruction(int(address, 16), opcode, operands.strip())


def opcodes(binary: bytes, kernel: str) -> Counter[str]:
    """How often each opcode stands in a kernel."""
    return Counter(instruction.opcode for instruction in kernels(binary)[kernel])


def local_loads(binary: bytes, *, in_loops: bool = False) -> dict[str, int]:
    """Loads from local memory (spilled or indexed registers) in each kernel; or only those in its loops."""
    found = {}
    for name, code in kernels(binary).items():
        inside = looping(code) if in_loops else {instruction.address for instruction in code}
        loads = [each for each in code if each.opcode.split(".")[0] == "LDL"]
        found[name] = sum(each.address in inside for each in loads)
    return found


def generic_accesses(binary: bytes) -> dict[str, int]:
    """Loads and stores in each kernel by an address that may be in any memory. Words that units poll are left
    aside."""
    return {
        name: sum(c.opcode.split(".")[0] in ("LD", "ST") and "STRONG" not in c.opcode for c in code)
        for name, code in kernels(binary).items()
    }


def looping(code: tuple[Instruction, ...]) -> set[int]:
    """Addresses in loops: from where a branch goes back to, up to the branch, and the functions called there.

    The branch to itself with which every function ends is no loop.
    """
    inside: set[int] = set()
    for each in code:
        target = each.target
        if each.opcode.startswith("BRA") and target is not None and target < each.address:
            inside |= {other.address for other in code if target <= other.address <= each.address}
    called: set[int] = set()
    while calls := {each.target for each in code if _is_call(each) and each.address in inside} - called:
        called |= calls
        for start in calls:
            end = min((each.address for each in code if _ends(each, start)), default=start)
            inside |= {each.address for each in code if start <= each.address <= end}
    return inside


def _is_call(instruction: Instruction) -> bool:
    return instruction.opcode.startswith("CALL") and instruction.target is not None


def _ends(instruction: Instruction, start: int) -> bool:
    return instruction.opcode.startswith("RET") and instruction.address >= start
