"""Emulates one block of a compiled program: values, then times, then what a step takes."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.gpu.sass import decode
from benchmarks.gpu.sass.decode import Code
from benchmarks.gpu.sass.execute import Execution
from benchmarks.gpu.sass.loops import Countdown, Loop, crosses, outermost
from benchmarks.gpu.sass.machine import Multiprocessor
from benchmarks.gpu.sass.programs import Program
from benchmarks.gpu.sass.state import UNWRITTEN, Content, Grid, Memory, State
from benchmarks.gpu.sass.timing import Timed, Timing

KERNEL = "ck_resident"
ITERATIONS = 3
BEFORE = 100_000  # instructions of warps that are executed before iterations of the outermost loop count
MOST = 8_000_000  # instructions of warps, whatever is found
SHARED_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Layout:
    """Where constant bank 0 holds what: threads of a block, blocks, the kernel's parameters, and whether the
    launch has clusters (None where there are none)."""

    threads: int
    blocks: int
    parameters: int
    clusters: int | None


LAYOUTS = {
    "sm_80": Layout(0x0, 0xC, 0x160, None),
    "sm_90": Layout(0x0, 0xC, 0x210, 0x140),
    "sm_100": Layout(0x360, 0x370, 0x380, 0x2E0),
}


@dataclass(slots=True)
class Watched:
    """An outermost loop while it runs. `crossings`: of the block so far, at each iteration's end."""

    loop: Loop
    counter: Countdown
    crossings: list[Counter[str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Emulated:
    """What one block took.

    `ends`: of the iterations of its outermost loop, cycles; none if it has no such loop. `iterations`: how
    many the loop has, None if its counter does not tell. `each`: the crossings of one iteration; `crossings`:
    of all that was emulated. `ended`: that was all of the block. `issued`: instructions of warps.
    """

    code: Code
    timed: Timed
    ends: tuple[float, ...]
    iterations: int | None
    each: Counter[str]
    crossings: Counter[str]
    ended: bool
    issued: int

    @property
    def cycles(self) -> float:
        """Of one iteration; of everything if there is no loop."""
        steps = [b - a for a, b in zip(self.ends, self.ends[1:], strict=False)]
        return statistics.median(steps) if steps else self.timed.end

    def total(self, iterations: int) -> tuple[float, Counter[str]]:
        """Cycles and crossings of a launch with so many iterations."""
        if self.ended or not self.ends:
            return self.timed.end, self.crossings
        more = iterations - len(self.ends)
        crossings = Counter({kind: n + more * self.each[kind] for kind, n in self.crossings.items()})
        return self.ends[-1] + more * self.cycles, crossings


def state_of(
    arch: str, grid: Grid, contents: Sequence[Content], *, cluster: bool = False, sizes: Sequence[int] = ()
) -> State:
    """The state before the first instruction. The kernel's parameters are pointers to `contents`, null, and
    the launch parameters."""
    memory, layout = Memory(contents), LAYOUTS[arch]
    constants = {layout.threads: grid.threads, layout.blocks: grid.blocks}
    if layout.clusters is not None:
        constants[layout.clusters] = int(cluster)
    pointers = [memory.address(n) for n in range(len(contents))]
    for n, word in enumerate([*pointers, 0, *sizes]):
        constants[layout.parameters + 8 * n] = word & 0xFFFFFFFF
        constants[layout.parameters + 8 * n + 4] = word >> 32
    return State(grid, memory, constants, np.full(SHARED_BYTES // 4, UNWRITTEN, np.uint32))


def emulated(
    program: Program,
    machine: Multiprocessor,
    *,
    iterations: int = ITERATIONS,
    before: int = BEFORE,
    unit: int = 0,
) -> Emulated:
    """Executes and times one block, until its outermost loop went round `iterations` times more than once.

    `before`: instructions to execute at least; `unit`: the block.
    """
    code = decode.kernels(program.binary)[KERNEL]
    launch = program.launch
    grid = Grid(launch.threads, launch.most_units, min(unit, launch.most_units - 1))
    how = {"cluster": launch.cluster, "sizes": launch.sizes}
    execution = Execution(code, state_of(machine.arch, grid, program.contents, **how))
    loops = outermost(code)
    loops = tuple(loop for loop in loops if crosses(code, loop)) or loops
    watched = {loop.last: Watched(loop, Countdown(code, loop, execution.binder)) for loop in loops}

    def enough(here: Execution) -> bool:
        for last, each in watched.items():
            if here.taken.get(last, 0) > len(each.crossings):
                each.counter.look()
                each.crossings.append(Counter(here.crossings.values()))
        return here.issued >= before and any(len(each.crossings) > iterations for each in watched.values())

    ended = execution.run(enough, MOST)
    timed = Timing(code, execution.warps, machine, list(watched)).run()
    crossings = Counter(execution.crossings.values())
    spans = {last: ends[-1] - ends[0] for last, ends in timed.marks.items() if len(ends) > 1}
    if not spans:
        return Emulated(code, timed, (), None, Counter(), crossings, ended, execution.issued)
    last = max(spans, key=lambda each: spans[each])
    found, ends = watched[last], tuple(timed.marks[last])
    each = found.crossings[-1] - found.crossings[-2]
    return Emulated(code, timed, ends, found.counter.iterations(), each, crossings, ended, execution.issued)
