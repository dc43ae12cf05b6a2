"""Readable, stable text of uPrograms, and the fingerprint that keys every cache.

Every value is printed once with its type and its role (COCKTAILER, OSDI'23, section 3.2): *constant*,
*temporary*, *induction*, *carried*, *output*, and *input* for parameters of the program.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from jax_cocktail.utask.candidate import Candidate
from jax_cocktail.utask.failure import KIND as FAIL
from jax_cocktail.utask.failure import first_codes, text_of
from jax_cocktail.utask.ir import (
    Attribute,
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
    UProgram,
    free_values,
    once,
    operators_in,
)
from jax_cocktail.utask.plan import MemoryPlan
from jax_cocktail.utask.types import Value

_SHOWN_BYTES = 32  # longer data appear as their digest


def print_program(program: UProgram) -> str:
    """The program as text, with its own value numbers."""
    return _Printer(program, renumber=False).program(f"program {program.name}")


def fingerprint(program: UProgram) -> str:
    """sha256 (hex) of the text without names and positions, values numbered in order of first definition."""
    known = _fingerprints(program.entry)
    if program.donated not in known:
        text = _Printer(program, renumber=True).program("program")
        known[program.donated] = hashlib.sha256(text.encode()).hexdigest()
    return known[program.donated]


def identity(program: UProgram, candidate: Candidate) -> str:
    """The fingerprint (sha256, hex) of a program compiled in the candidate's way."""
    return hashlib.sha256(f"{fingerprint(program)}\n{candidate.text}".encode()).hexdigest()


@once
def _fingerprints(entry: Region) -> dict[tuple[int, ...], str]:
    """Those of programs with this entry, by what is donated: every candidate asks."""
    return {}


def shape(region: Region) -> str:
    """The text of a region with numbered values: equal for regions that differ only in ids and positions."""
    printer = _Printer(None, renumber=True)
    return printer.region((*free_values(region), *region.parameters), region)


def print_statement(statement: Statement) -> str:
    """One statement, for error messages."""
    printer = _Printer(None, renumber=False)
    printer.statement(statement)
    return "\n".join(printer.lines)


def print_plan(plan: MemoryPlan, live: Mapping[Value, int] | None = None) -> str:
    """The memory of a program's values: the sizes of the spaces, then every buffer, space by space. `live`:
    the positions at which a root is live, as a mask; the last one is the start of the program."""
    sizes = {"workspace": plan.workspace_bytes, "own": plan.own_bytes, "private": plan.private_bytes}
    sizes["thread"] = plan.thread_bytes
    lines = [f"memory of {plan.most_units} units" + (", one cluster" if plan.cluster else "")]
    for space, size in sizes.items():
        if size:
            used = plan.usage.get(space)
            told = f" (lower bound {used.bound}, without reuse {used.total})" if used else ""
            lines.append(f"  {space}: {size} bytes{told}")
    lines += [f"  scratch: from {plan.scratch_offset} on in {plan.scratch_space}"]
    lines += [f"  operand {a} is result {b}" for a, b in plan.aliases]
    last = max(map(int.bit_length, (live or {}).values()), default=0)
    slots = sorted(plan.slots.items(), key=lambda item: (item[1].space, item[1].index, item[0].id))
    for root, slot in slots:
        end = f" to {slot.index + root.type.nbytes}" if slot.space in sizes else ""
        line = f"  {root}: {root.type} in {slot.space} {slot.index}{end}"
        lines.append(line + (f", live at {_steps(live.get(root, 0), last)}" if live is not None else ""))
    return "\n".join(lines) + "\n"


def _steps(mask: int, count: int) -> str:
    """The positions in a mask, counted from the start of the program."""
    bits = f"{mask:0{count}b}" if count else ""  # the first position is the last bit
    runs = (match.span() for match in re.finditer("1+", bits))
    return ", ".join(f"{a}-{b - 1}" if b - a > 1 else str(a) for a, b in runs) or "no time"


class _Printer:
    def __init__(self, program: UProgram | None, renumber: bool) -> None:
        self.lines: list[str] = []
        self._depth = 0
        self._program = program
        self._numbers: dict[int, int] | None = {} if renumber else None
        self._results = set(program.entry.results) if program is not None else set()
        # A fingerprint tells the messages of failures apart, but does not depend on their words.
        known = first_codes(operators_in(program.entry)) if program is not None and renumber else {}
        self._codes = {text: f"{first} + {len(text.splitlines())}" for text, first in known.items()}

    # -- pieces ------------------------------------------------------------------------------------------
    def _line(self, text: str) -> None:
        self.lines.append("  " * self._depth + text)

    def _name(self, value: Value) -> str:
        if self._numbers is None:
            return str(value)
        return f"%{self._numbers.setdefault(value.id, len(self._numbers))}"

    def _names(self, values: Iterable[Value]) -> str:
        return ", ".join(map(self._name, values))

    def _defined(self, values: Sequence[Value], role: str) -> str:
        """Definitions with role and type; results of the program are always *output*."""
        roles = ("output" if value in self._results and role == "temporary" else role for value in values)
        return ", ".join(f"{r} {self._name(v)}: {v.type}" for v, r in zip(values, roles, strict=True))

    def _assigned(self, values: Sequence[Value], role: str = "temporary") -> str:
        return f"{self._defined(values, role)} = " if values else ""

    # -- structure ---------------------------------------------------------------------------------------
    def program(self, title: str) -> str:
        assert self._program is not None
        entry = self._program.entry
        donated = f" donated {list(self._program.donated)}" if self._program.donated else ""
        self._line(f"{title}({self._defined(entry.parameters, 'input')}){donated} {{")
        self._block(entry)
        self._line("}")
        return "\n".join(self.lines) + "\n"

    def region(self, given: Sequence[Value], region: Region) -> str:
        self._part("region", self._defined(given, "input"), region)
        return "\n".join(self.lines)

    def _block(self, region: Region) -> None:
        self._depth += 1
        for statement in region.body:
            self.statement(statement)
        self._line(f"yield {self._names(region.results)}".rstrip())
        self._depth -= 1

    def statement(self, statement: Statement) -> None:
        if isinstance(statement, UOperator):
            self._operator(statement)
        elif isinstance(statement, LoopUTask):
            self._loop(statement)
        elif isinstance(statement, BranchUTask):
            self._branch(statement)
        else:
            self._stitched(statement)

    def _operator(self, operator: UOperator) -> None:
        role = "constant" if operator.kind == "constant" else "temporary"
        attributes = "".join(f" {name}={_attribute(value)}" for name, value in sorted(operator.attributes))
        if operator.kind == FAIL and self._codes:
            attributes = f" codes={self._codes[text_of(operator)]}"
        if operator.kind == "constant":
            attributes += _readable(operator)
        operands = self._names(operator.inputs)
        self._line(f"{self._assigned(operator.outputs, role)}{operator.kind}({operands}){attributes}")

    def _loop(self, loop: LoopUTask) -> None:
        kind = f"loop trips {loop.trip_count}" if loop.condition is None else "loop"
        kind = kind if loop.likely_trips is None else f"{kind} of about {loop.likely_trips} trips"
        kind = f"parallel {kind}" if loop.parallel else kind
        kind = kind if loop.level == "unit" else f"{kind} by {loop.level}"
        kind = f"{kind} first {loop.first}" if loop.first else kind
        kind = kind if loop.stops_by is None else f"{kind} stops by {loop.stops_by}"
        kind = kind if loop.unroll == 1 else f"{kind} {loop.unroll} in one"
        initial = self._names(loop.initial)
        self._line(f"{self._assigned(loop.outputs)}{kind} from ({initial}) {{")
        if loop.condition is not None:
            self._part("while", self._defined(loop.condition.parameters, "carried"), loop.condition)
        index = [] if loop.index is None else [self._defined([loop.index], "induction")]
        carried = [self._defined(loop.carried, "carried")] if loop.carried else []
        self._part("body", ", ".join(index + carried), loop.body)
        self._line("}")

    def _branch(self, branch: BranchUTask) -> None:
        stage = f" stage {branch.stage.number} of {branch.stage.count}" if branch.stage is not None else ""
        self._line(f"{self._assigned(branch.outputs)}branch {self._name(branch.selector)}{stage} {{")
        for number, region in enumerate(branch.branches):
            self._part(f"case {number}", "", region)
        self._line("}")

    def _part(self, title: str, parameters: str, region: Region) -> None:
        self._depth += 1
        self._line(f"{title} ({parameters}) {{" if parameters else f"{title} {{")
        self._block(region)
        self._line("}")
        self._depth -= 1

    def _stitched(self, group: StitchedUTask) -> None:
        self._line(f"stitched ({self._names(group.inputs)}) {{")
        self._depth += 1
        for member in group.members:
            self._operator(member)
        self._line(f"yield {self._names(group.outputs)}".rstrip())
        self._depth -= 1
        self._line("}")


def _attribute(value: Attribute) -> str:
    """Injective text of an attribute value; long data by digest."""
    if isinstance(value, bytes):
        if len(value) <= _SHOWN_BYTES:
            return f"0x{value.hex()}"
        return f"sha256:{hashlib.sha256(value).hexdigest()}/{len(value)}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_attribute, value))})"
    return repr(value)


def _readable(constant: UOperator) -> str:
    """The number of a scalar constant, as a remark."""
    data, dtype = constant["data"], constant.output.type.dtype
    if not isinstance(data, bytes) or constant.output.type.shape or dtype == "bfloat16" or not data:
        return ""  # NumPy has no bfloat16
    return f"  # {np.frombuffer(data, np.dtype(dtype).newbyteorder('<'))[0]}"
