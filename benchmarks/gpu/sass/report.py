"""What the laboratory tells: cycles of a step by source line and cause, and times beside measured ones."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from benchmarks.gpu.sass import decode
from benchmarks.gpu.sass.emulate import KERNEL, Emulated, emulated
from benchmarks.gpu.sass.machine import LAUNCH, machine_for
from benchmarks.gpu.sass.programs import Planned, Program, compiled, planned, record
from jax_cocktail.device.spec import DeviceSpec

# Dependent steps of one call: diagonals, time steps, or tokens with the arguments of the rows.
STEPS = {
    "lstm/1": 74,
    "lstm/64": 74,
    "nasrnn/1": 1000,
    "nasrnn/64": 1000,
    "attention/1": 32,
    "attention/64": 32,
    "seq2seq/1": 10,
    "seq2seq/64": 50,
}
MEASURED = (*STEPS, "blockdrop/1")
_PROGRAM = "program.cu"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A row's emulated call. `cycles`, `crossings`: of one launch; `seconds`: of all, with the crossings."""

    plan: str
    steps: int
    step_cycles: float
    cycles: float
    crossings: Counter[str]
    seconds: float


def iterations_of(row: str, program: Planned, found: Emulated) -> int:
    """Of the outermost loop: a step each, or two; if its counter tells of fewer, an iteration has many steps.
    What stands behind the loop counts as one more iteration."""
    steps = STEPS.get(row, 0) // (2 if "double_buffer" in program.emitted.fired else 1)
    if found.iterations is None or 0 < steps <= found.iterations + 1:
        return steps or len(found.ends)
    return found.iterations


def units_of(program: Program) -> tuple[int, ...]:
    """Blocks that stand for all: a step takes what the slowest takes. The first one does what only one does;
    another one is of the second layer of a wavefront, and thus busy early."""
    return tuple(sorted({0, program.launch.most_units // 8}))


def waves(program: Program, spec: DeviceSpec) -> int:
    """How often all multiprocessors are filled with one block each."""
    return -(-program.launch.most_units // spec.units)


def estimate(
    row: str, spec: DeviceSpec, plan: str = "", *, iterations: int = 3, lines: bool = False
) -> tuple[Estimate, list[tuple[Planned, Program, Emulated]]]:
    """Emulates a row, and returns what it was made of: for each program the slowest block. `lines`: compile
    with source lines."""
    return estimated(row, spec, planned(row, spec, plan), iterations=iterations, lines=lines)


def estimated(
    row: str, spec: DeviceSpec, programs: Iterable[Planned], *, iterations: int = 3, lines: bool = False
) -> tuple[Estimate, list[tuple[Planned, Program, Emulated]]]:
    """The same for planned programs of the row."""
    machine, steps = machine_for(spec.arch, record()), STEPS.get(row, 1)
    cycles, total, seconds = 0.0, Counter[str](), 0.0
    slowest = []
    name = ""
    for each in programs:
        name, program = each.plan, compiled(each, lines=lines)
        found = [emulated(program, machine, iterations=iterations, unit=unit) for unit in units_of(program)]
        ends = [block.total(iterations_of(row, each, block)) for block in found]
        n = max(range(len(found)), key=lambda k: ends[k][0])
        slowest.append((each, program, found[n]))
        cycles += ends[n][0]
        total += ends[n][1]
        crossing = sum(machine.price(kind) * count for kind, count in ends[n][1].items())
        seconds += waves(program, spec) * ends[n][0] / machine.hertz + crossing
    return Estimate(name, steps, cycles / steps, cycles, total, seconds), slowest


def measured_seconds(row: str, plan: str) -> float | None:
    """A kernel's recorded time without what the host adds to it; None if this plan was not measured."""
    sections = record()
    kernel = sections["times"].get(row, {}).get("kernel", {})
    if "seconds" not in kernel or sections["plan"].get(f"{row}@card", {}).get("plan") != plan:
        return None
    host = sections["measure"]["card"]["figures"][LAUNCH]["seconds"]
    return float(kernel["seconds"]) - float(host)


# ---- lines -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class LineCost:
    """Of one source line in one step."""

    cycles: float = 0.0
    issues: float = 0.0
    waits: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    inner: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


def line_costs(program: Program, found: Emulated) -> dict[int, LineCost]:
    """By line of the program's text: the critical path of one iteration, or of everything without a loop."""
    places = decode.lines(program.binary, KERNEL)
    first, last = (found.ends[0], found.ends[-1]) if found.ends else (0.0, found.timed.end)
    share = 1 / max(len(found.ends) - 1, 1)
    costs: defaultdict[int, LineCost] = defaultdict(LineCost)
    for segment in found.timed.segments:
        for at, cycles, reason in segment.spent if first < segment.end <= last else ():
            chain = places.get(found.code[at].address, ())
            line = next((number for file, number in chain if file == _PROGRAM), 0)
            cost = costs[line]
            cost.cycles += cycles * share
            cost.issues += share
            cost.waits[reason] += cycles * share
            cost.inner[f"{chain[0][0]}:{chain[0][1]}" if chain else "?"] += cycles * share
    return dict(costs)


def told_lines(program: Program, found: Emulated, most: int) -> Iterator[str]:
    """The dearest lines, what they wait for, and where in the headers."""
    text = program.source.splitlines()
    costs = sorted(line_costs(program, found).items(), key=lambda item: -item[1].cycles)
    whole = sum(cost.cycles for _, cost in costs) or 1.0
    for line, cost in costs[:most]:
        waits, inner = told_parts(cost.waits, 4), told_parts(cost.inner, 3)
        source = text[line - 1].strip()[:80] if line else "(no line)"
        yield f"{cost.cycles:8.0f} {cost.cycles / whole:5.1%} {cost.issues:6.0f} issued  {line}: {source}"
        yield f"{'':24}waits: {waits};  in: {inner}"


def told_parts(parts: Mapping[str, float], most: int) -> str:
    """The largest parts."""
    ordered = sorted(parts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {cycles:.0f}" for name, cycles in ordered[:most])
