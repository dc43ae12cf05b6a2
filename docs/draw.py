"""Draws the pictures of the documentation from real programs: `python -m docs.draw` writes docs/pictures.

`passes.svg` shows the passes of `passes.passes`. `units.svg` shows a program on four thread blocks: the
oracle runs it, the cost model says how long every statement takes. `memory.svg` shows where the values of the
same program lie, and when. `timeline.svg` and `report.svg` show what `docs.record_timeline` and
`docs.record_report` have recorded, and `speed.svg` the records in benchmarks/results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from docs.speed import draw_speed, draw_speed_dark
from docs.timeline import draw_timeline
from jax_cocktail import Report
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.compiler import Emitted, emit
from jax_cocktail.cost.unit_time import unit_seconds
from jax_cocktail.device.machine import Machine
from jax_cocktail.device.nvidia import H100
from jax_cocktail.device.unit import unit_of
from jax_cocktail.passes import passes
from jax_cocktail.utask.candidate import Candidate, way
from jax_cocktail.utask.ir import (
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
    is_parallel,
    regions_of,
    walk,
)
from jax_cocktail.utask.plan import Slot
from jax_cocktail.utask.types import Value
from jax_cocktail_tools.svg import FAINT, INK, Picture
from jax_cocktail_tools.words import size
from tests.null.programs import arguments
from tests.null.wavefronts import stacked_lstm
from tests.oracle.mesh_interpreter import simulate

PICTURES = Path(__file__).parent / "pictures"
LAYERS = ("#2f6db5", "#d9822b", "#3f9a5f", "#a05195")
BARRIER, EXCHANGE, WAITING, EVERYONE, PACKING = "#b3261e", "#1f2933", "#eceff2", "#9fb3c8", "#d8c9a3"
BLOCKS, DEPTH, STEPS, SIZE = 4, 4, 6, 160


# ---- passes ------------------------------------------------------------------------------------------------
HOST_OR_GPU = (machine_of(None), machine_of(H100))
CANDIDATES = tuple(
    dict.fromkeys(
        way(units, distribute=distribute, pipeline=pipeline)
        for units in (BLOCKS, 1)
        for distribute in (True, False)
        for pipeline in (True, False)
    )
)
Condition = Callable[[Candidate, Machine], bool]
CONDITIONS: Mapping[str, Condition] = {
    "always": lambda candidate, machine: True,
    "CPU": lambda candidate, machine: not machine.is_gpu,
    "several units": lambda candidate, machine: candidate.units > 1,
    "GPU": lambda candidate, machine: machine.is_gpu,
    "several blocks of a GPU": lambda candidate, machine: candidate.units > 1 and machine.is_gpu,
    "loops are distributed": lambda candidate, machine: candidate.runs("distribute"),
    "recurrences are pipelined": lambda candidate, machine: candidate.runs("pipeline"),
}


def pass_table() -> list[tuple[str, str, str]]:
    """Of every pass, in order: its name, its module, and when it runs."""
    tables = [(c, m, passes(c, machine=m)) for c in CANDIDATES for m in HOST_OR_GPU]
    runs = [(c, m, _numbered(table)) for c, m, table in tables]
    functions = {
        key: run
        for (*_, names), (*_, table) in zip(runs, tables, strict=True)
        for key, (_, run) in zip(names, table, strict=True)
    }
    before = {
        name: {b for *_, names in runs if name in names for b in names[: names.index(name)]}
        for name in functions
    }
    found = []
    for name in sorted(functions, key=lambda name: len(before[name])):
        function = functions[name]
        while isinstance(function, partial):
            function = function.func
        when = next(
            words
            for words, holds in CONDITIONS.items()
            if all((name in names) == holds(c, m) for c, m, names in runs)
        )
        found.append((name[0], function.__module__.removeprefix("jax_cocktail."), when))
    return found


def _numbered(table: Sequence[tuple[str, object]]) -> list[tuple[str, int]]:
    """The names of passes; one that runs several times is told apart by how often it has run before."""
    names = [name for name, _ in table]
    return [(name, names[:position].count(name)) for position, name in enumerate(names)]


def draw_passes() -> str:
    picture, left, row = Picture(860), 24, 30.0
    picture.title(
        "From a JAX function to a binary",
        "Every pass maps a program to a program. Conditions are those of the candidate and the machine.",
    )
    y = 76.0

    def stage(name: str, module: str, when: str, fill: str) -> None:
        nonlocal y
        picture.box(left, y, 812, row - 5, fill, 5)
        picture.text(left + 14, y + 17, name, 13, style=' font-weight="bold"')
        picture.code(left + 170, y + 17, module)
        picture.text(left + 798, y + 17, when, 12, INK if when != "always" else FAINT, "end")
        y += row

    for name, module, what in (
        ("trace, capture", "lowering.edge.capture", "jaxpr, then the loops and branches to compile"),
        ("translate", "primitives.translate", "jaxpr equations become uTask operators"),
    ):
        stage(name, module, what, "#e6eef8")
    y += 4
    for name, module, when in pass_table():
        stage(name, module, when, "#f1f3f5" if when == "always" else "#fdf1e0")
    y += 4
    for name, module, what in (
        ("plan memory", "schedule.memory", "every value gets a place"),
        ("barriers", "schedule.sync", "between units, and among the threads of a block"),
        ("emit", "codegen", "C++ or CUDA text"),
        ("build", "build", "host compiler, nvcc or NVRTC; cached on disk"),
    ):
        stage(name, module, what, "#e6f4ea")
    picture.key(
        24,
        y + 22,
        (
            ("#f1f3f5", "pass that always runs"),
            ("#fdf1e0", "pass with a condition"),
            ("#e6f4ea", "after the passes"),
        ),
    )
    return picture.svg()


# ---- units and time ----------------------------------------------------------------------------------------
def plan(depth: int, pipelined: bool) -> Emitted:
    """An LSTM of so many layers on the thread blocks."""
    program = stacked_lstm(depth, STEPS, 1, SIZE)
    return emit(program, machine_of(H100), candidate=way(BLOCKS, pipeline=pipelined))


@dataclass(frozen=True)
class Work:
    """What one unit does without the others. `layer`: number of the layer; None: for all of them."""

    layer: int | None
    packs: bool
    seconds: float


Step = Work | str  # arrive, wait or exchange


@dataclass(frozen=True)
class Span:
    unit: int
    begin: float
    end: float
    color: str


@dataclass(frozen=True)
class Crossing:
    """A barrier or an exchange: all units are past it at `end`."""

    end: float
    kind: str


class Layers:
    """Which layer of the LSTM a statement works for: that of the weights in its matrix products."""

    def __init__(self, entry: Region) -> None:
        self.of: dict[Value, frozenset[int]] = {
            value: frozenset([(number - 1) // 2]) for number, value in enumerate(entry.parameters) if number
        }
        self.work: dict[int, tuple[int | None, bool]] = {}
        self._region(entry, None)

    def _region(self, region: Region, part: LoopUTask | None) -> None:
        for statement in region.body:
            outer = statement if part is None and is_parallel(statement) else part
            if isinstance(statement, LoopUTask):
                for initial, carried in zip(statement.initial, statement.carried, strict=True):
                    self.of[carried] = self.of.get(initial, frozenset())
            for inner in regions_of(statement):
                self._region(inner, outer)
                for result, output in zip(inner.results, statement.outputs, strict=False):
                    self.of[output] = self.of.get(result, frozenset())
            for operator in operators(statement):
                made = frozenset[int]().union(*(self.of.get(v, frozenset()) for v in operator.inputs))
                for output in operator.outputs:
                    self.of[output] = frozenset() if operator.kind == "dot" else made
            if outer is statement and outer is not None:
                self._claim(outer)

    def _claim(self, loop: LoopUTask) -> None:
        """All that a parallel loop holds works for the layer whose weights it multiplies with, or packs."""
        inside = [o for s in walk(loop.body) for o in operators(s)]
        products = [o for o in inside if o.kind == "dot"]
        used = frozenset[int]().union(
            *(self.of.get(v, frozenset()) for o in products or inside for v in o.inputs)
        )
        layer = min(used) if used else None
        self.work.update({id(s): (layer, not products) for s in walk(loop.body)})


def operators(statement: Statement) -> tuple[UOperator, ...]:
    if isinstance(statement, StitchedUTask):
        return statement.members
    return (statement,) if isinstance(statement, UOperator) else ()


def run(emitted: Emitted) -> list[list[Step]]:
    """Of every unit, what it does in one run, in order: the oracle says what, the cost model how long."""
    program, block = emitted.program, unit_of(H100)
    layers, steps = Layers(program.entry), [list[Step]() for _ in range(BLOCKS)]

    def observe(unit: int, statement: Statement) -> None:
        for operator in operators(statement):
            if operator.kind in ("arrive", "wait", "exchange"):
                steps[unit].append(operator.kind)
                return
        if operators(statement):
            steps[unit].append(
                Work(*layers.work.get(id(statement), (None, False)), unit_seconds([statement], block))
            )

    simulate(program, emitted.plan, arguments(program), BLOCKS, raises=True, observe=observe)
    return steps


def timeline(steps: Sequence[Sequence[Step]]) -> tuple[list[Span], list[Crossing], float]:
    """When every unit does what, if all begin together."""
    now, places, arrived = [0.0] * BLOCKS, [0] * BLOCKS, [0.0] * BLOCKS
    spans, crossings = list[Span](), list[Crossing]()
    while any(place < len(each) for place, each in zip(places, steps, strict=True)):
        for unit, each in enumerate(steps):
            while places[unit] < len(each) and (step := each[places[unit]]) not in ("wait", "exchange"):
                places[unit] += 1
                if isinstance(step, Work):
                    spans.append(Span(unit, now[unit], now[unit] + step.seconds, color_of(step)))
                    now[unit] += step.seconds
                else:
                    arrived[unit] = now[unit]
        kinds = {each[place] for place, each in zip(places, steps, strict=True) if place < len(each)}
        if not kinds:
            break
        (kind,) = kinds
        last = max(arrived) + H100.barrier_seconds if kind == "wait" else max(now) + H100.hop_seconds
        end = max(last, *now)
        crossings.append(Crossing(end, str(kind)))
        spans += [Span(unit, now[unit], end, WAITING) for unit in range(BLOCKS)]
        now, places = [end] * BLOCKS, [place + 1 for place in places]
    return joined(spans), crossings, max(now)


def color_of(work: Work) -> str:
    if work.packs:
        return PACKING
    return EVERYONE if work.layer is None else LAYERS[work.layer]


def joined(spans: Iterable[Span]) -> list[Span]:
    """Spans of one unit and colour that touch become one."""
    found: list[Span] = []
    for span in sorted(spans, key=lambda s: (s.unit, s.begin)):
        last = found[-1] if found else None
        if last and (last.unit, last.color, last.end) == (span.unit, span.color, span.begin):
            found[-1] = Span(span.unit, last.begin, span.end, span.color)
        elif span.end > span.begin:
            found.append(span)
    return found


def draw_units() -> str:
    picture, left, width, row = Picture(1080), 96.0, 956.0, 26.0
    picture.title(
        f"{DEPTH} LSTM layers, {STEPS} steps, batch 1, {SIZE} features, on {BLOCKS} thread blocks",
        "The oracle runs the statements, the cost model of an H100 says how long they take.",
    )
    panels = [
        (words, timeline(run(plan(DEPTH, how))))
        for words, how in (("layer after layer", False), ("pipelined", True))
    ]
    scale = width / max(end for _, (_, _, end) in panels)
    y = 96.0
    for words, (spans, crossings, end) in panels:
        counts = ", ".join(
            f"{n} {name}{'s' * (n != 1)}"
            for kind, name in (("wait", "barrier"), ("exchange", "exchange"))
            if (n := sum(c.kind == kind for c in crossings))
        )
        picture.text(
            left, y - 8, f"{words}: {counts}, {end * 1e6:.1f} \u00b5s", 14, style=' font-weight="bold"'
        )
        for unit in range(BLOCKS):
            picture.text(left - 10, y + unit * row + 17, f"block {unit}", 12, anchor="end")
        for span in spans:
            place = left + span.begin * scale, y + span.unit * row + 2
            picture.box(*place, (span.end - span.begin) * scale, row - 4, span.color)
        for crossing in crossings:
            x, color = left + crossing.end * scale, BARRIER if crossing.kind == "wait" else EXCHANGE
            picture.line(x, y - 2, x, y + BLOCKS * row + 2, color, 1.6)
        y += BLOCKS * row + 52
    y -= 34
    picture.line(left, y, left + width, y, FAINT)
    for tick in range(0, int(width / scale * 1e6) + 1, 5):
        x = left + tick * 1e-6 * scale
        picture.line(x, y, x, y + 5, FAINT)
        picture.text(x, y + 19, f"{tick} \u00b5s" if tick == 0 else str(tick), 11, FAINT, "middle")
    entries = [(color, f"layer {n + 1}") for n, color in enumerate(LAYERS[:DEPTH])]
    entries += [(PACKING, "weights are packed"), (EVERYONE, "every block"), (WAITING, "waits")]
    drawn = {span.color for _, (spans, *_) in panels for span in spans}
    marks = [(BARRIER, "barrier passed"), (EXCHANGE, "exchange received")]
    picture.key(left, y + 48, [*(entry for entry in entries if entry[0] in drawn), *marks])
    return picture.svg()


# ---- memory ------------------------------------------------------------------------------------------------
SPACES = {
    "input": ("operands of the call", "#c7d7ea"),
    "output": ("results of the call", "#bfe0c9"),
    "workspace": ("workspace, in global memory that all blocks see", "#f6d6ad"),
    "own": ("scratch of each block, in shared memory", "#dccbe8"),
    "private": ("spilled scratch of each block, in global memory", "#e8cbd4"),
}


@dataclass(frozen=True)
class Life:
    """Use of a place in memory from statement `begin` to statement `end`. `root`: the largest value there."""

    slot: Slot
    root: Value
    begin: int
    end: int

    def meets(self, other: Life) -> bool:
        return self.slot == other.slot and self.begin <= other.end and other.begin <= self.end

    def joined(self, other: Life) -> Life:
        root = max(self.root, other.root, key=lambda value: value.type.nbytes)
        return Life(self.slot, root, min(self.begin, other.begin), max(self.end, other.end))


def touched(statement: Statement) -> Iterator[Value]:
    """Every value that a statement names itself."""
    if isinstance(statement, LoopUTask):
        yield from (*statement.initial, *statement.carried, *statement.outputs)
    elif isinstance(statement, StitchedUTask | UOperator):
        yield from (*statement.inputs, *statement.outputs)
    else:
        yield from statement.outputs


def lives(emitted: Emitted) -> tuple[list[Life], list[tuple[int, int]], int]:
    """The life of every buffer, the serial loops, and the number of statements, counted in text order."""
    program, layouts, slots = emitted.program, emitted.plan.layouts, emitted.plan.slots
    ends: dict[Value, list[int]] = {}
    loops: list[tuple[int, int]] = []
    count = 0

    def touch(values: Iterable[Value], *at: int) -> None:
        for value in values:
            if value in layouts and value.type.size:
                ends.setdefault(layouts[value].root, []).extend(at)

    def visit(region: Region, serial: bool) -> None:
        nonlocal count
        for statement in region.body:
            begin = count
            count += 1
            for inner in regions_of(statement):
                visit(inner, serial and not is_parallel(statement))
                touch(inner.results, count - 1)
            touch(touched(statement), begin)
            if isinstance(statement, LoopUTask):
                touch((*statement.carried, *statement.outputs), begin, count - 1)
                crossing = [root for root, at in ends.items() if min(at) < begin <= max(at) < count]
                touch(crossing, count - 1)  # what comes from outside is read in every iteration
                if serial and not statement.parallel:
                    loops.append((begin, count))

    visit(program.entry, True)
    touch(program.entry.parameters, 0)
    touch(program.entry.results, count)
    found: list[Life] = []
    for life in sorted(
        (Life(slots[r], r, min(at), max(at)) for r, at in ends.items()), key=lambda x: x.begin
    ):
        same = next((other for other in found if other.meets(life)), None)
        if same is not None:
            found.remove(same)
        found.append(life if same is None else same.joined(life))
    return found, loops, count


def draw_memory() -> str:
    emitted = plan(1, False)
    found, loops, count = lives(emitted)
    picture, left, width, row = Picture(1080), 290.0, 766.0, 22.0
    kept = emitted.plan.parts
    picture.title(
        f"Where the values of one LSTM layer lie ({STEPS} steps, {SIZE} features, {BLOCKS} blocks)",
        "One row for each place in memory. A bar goes from the first use in the program's text to the last.",
    )
    y, top = 84.0, 76.0
    scale = width / (count + 1)
    bars: list[tuple[float, Life]] = []
    for space, (words, _) in SPACES.items():
        places = sorted({life.slot.index for life in found if life.slot.space == space})
        if not places:
            continue
        picture.text(24, y + 15, words, 13, style=' font-weight="bold"')
        y += row
        for index in places:
            here = [life for life in found if life.slot == Slot(space, index)]
            picture.code(36, y + 15, f"{space} {index}" if space in ("input", "output") else f"byte {index}")
            picture.code(left - 14, y + 15, size(max(life.root.type.nbytes for life in here)), anchor="end")
            bars += [(y, life) for life in here]
            y += row
        y += 10
    for begin, end in loops:
        picture.box(left + begin * scale, top, (end - begin) * scale, y - top, "#f5f7fa")
        picture.text(left + (begin + end) / 2 * scale, y + 14, "loop over time", 12, FAINT, "middle")
    picture.text(left, y + 14, "before the loop: weights are packed, inputs multiplied", 12, FAINT)
    for at, life in bars:
        x = left + life.begin * scale
        own = kept.get(life.slot)
        picture.box(
            x,
            at + 3,
            max((life.end - life.begin + 1) * scale, 3),
            row - 6,
            SPACES[life.slot.space][1],
            3,
            FAINT,
        )
        room, names = (life.end - life.begin + 1) * scale, [str(life.root.type)]
        if own is not None:
            names.insert(0, f"{life.root.type}, {size(own.bytes)} stay with each block")
        fitting = next((words for words in names if 6.6 * len(words) < room), None)
        if fitting is not None:
            picture.text(x + 6, at + 15, fitting, 11)
        else:
            picture.text(x - 5, at + 15, names[-1], 11, anchor="end")
    picture.text(24, y + 44, totals(emitted), 12, FAINT)
    return picture.svg()


def totals(emitted: Emitted) -> str:
    plan = emitted.plan
    return (
        f"Workspace {size(plan.workspace_bytes)}; scratch {size(plan.own_bytes)} and persistent slices"
        f" {size(plan.resident_bytes)} in the shared memory of each of {plan.most_units} blocks."
    )


PICTURE = {
    "passes.svg": draw_passes,
    "units.svg": draw_units,
    "memory.svg": draw_memory,
    "timeline.svg": draw_timeline,
    "report.svg": lambda: Report.load(PICTURES / "report.json").to_svg(),
    "speed.svg": draw_speed,
    "speed_dark.svg": draw_speed_dark,
}


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    for name, draw in PICTURE.items():
        (PICTURES / name).write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
