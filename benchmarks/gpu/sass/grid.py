"""The traffic of a whole launch: predicted, and counted in one block of every kind.

Blocks that should move the same amounts are of one kind, and the first one stands for all of them. If a
kernel does not end within a few iterations of its loop over steps, the last iteration stands for the others,
and what follows the loop is left out. What each memory counts is in `traffic`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchmarks.gpu.sass import decode
from benchmarks.gpu.sass.emulate import KERNEL, MOST, state_of
from benchmarks.gpu.sass.execute import Execution
from benchmarks.gpu.sass.loops import crosses, outermost
from benchmarks.gpu.sass.programs import Planned, Program, compiled, planned
from benchmarks.gpu.sass.report import STEPS
from benchmarks.gpu.sass.state import Grid
from benchmarks.gpu.sass.traffic import BlockTraffic, block_traffic
from jax_cocktail.codegen.traffic import Moved, Traffic, traffic
from jax_cocktail.device.spec import DeviceSpec

MEMORIES = ("operand", "result", "workspace", "shared", "local")
ITERATIONS = 3  # of the loop over steps, before the last one stands for the others
Moves = dict[str, Moved]


@dataclass(frozen=True, slots=True)
class GridTraffic:
    """All launches of a row, by memory. `kinds`: blocks of each kind."""

    plan: str
    predicted: Mapping[str, Moved]
    counted: Mapping[str, Moved]
    kinds: tuple[int, ...]


def grid_traffic(row: str, spec: DeviceSpec, plan: str = "") -> GridTraffic:
    """Of a row's cheapest plan by the model, or of the one with this name."""
    predicted, counted, kinds = _nothing(), _nothing(), list[int]()
    name = ""
    for each in planned(row, spec, plan):
        name, program, emitted = each.plan, compiled(each), each.emitted
        launch = program.launch
        found = traffic(
            emitted.program, emitted.plan, launch.most_units, vector=0, block=spec.block(launch.threads)
        )
        _add(predicted, {memory: found.total(_prefix(memory)) for memory in MEMORIES})
        steps = STEPS.get(row, 0) // (2 if "double_buffer" in emitted.fired else 1)
        for blocks in _kinds(found):
            kinds.append(len(blocks))
            moved = _block(program, spec.arch, blocks[0], steps)
            _add(counted, dict(_by_memory(each, moved)), len(blocks))
    return GridTraffic(name, predicted, counted, tuple(kinds))


def _nothing() -> Moves:
    return {memory: Moved() for memory in MEMORIES}


def _add(total: Moves, more: Mapping[str, Moved], times: int = 1) -> None:
    for memory, moved in more.items():
        total[memory] += moved * times


def _prefix(memory: str) -> str:
    return "own" if memory == "shared" else memory


def _kinds(found: Traffic) -> list[list[int]]:
    """Blocks by what they should move."""
    kinds = defaultdict[object, list[int]](list)
    for block, moved in enumerate(found.units):
        kinds[tuple(sorted(moved.items(), key=lambda item: item[0]))].append(block)
    return list(kinds.values())


def _by_memory(program: Planned, moved: BlockTraffic) -> Iterator[tuple[str, Moved]]:
    entry = program.emitted.program.entry
    operands, results = len(entry.parameters), len(entry.results)
    yield "operand", sum(moved.arrays[:operands], Moved())
    yield "result", sum(moved.arrays[operands : operands + results], Moved())
    yield "workspace", sum(moved.arrays[operands + results :], Moved())
    yield "shared", moved.shared
    yield "local", moved.local


def _block(program: Program, arch: str, block: int, steps: int) -> BlockTraffic:
    """Of one block, with so many iterations of its loop over steps.

    Raises:
      ValueError: the number is 0, and the block did not end.
    """
    code, launch, arrays = decode.kernels(program.binary)[KERNEL], program.launch, len(program.contents)
    grid = Grid(launch.threads, launch.most_units, block)
    how = {"cluster": launch.cluster, "sizes": launch.sizes}
    execution = Execution(code, state_of(arch, grid, program.contents, **how))
    loops = outermost(code)
    loops = tuple(loop for loop in loops if crosses(code, loop)) or loops
    ends = list[BlockTraffic]()

    def enough(here: Execution) -> bool:
        if any(here.taken.get(loop.last, 0) > len(ends) for loop in loops):
            ends.append(block_traffic(code, here.warps, arrays))
        return bool(steps) and len(ends) >= ITERATIONS

    if execution.run(enough, MOST):
        return block_traffic(code, execution.warps, arrays)
    if not steps or len(ends) < ITERATIONS:
        raise ValueError("the block does not end, and its steps are not known")
    return _extended(ends[-2], ends[-1], steps - len(ends))


def _extended(before: BlockTraffic, last: BlockTraffic, more: int) -> BlockTraffic:
    """The traffic so far, and that of the last iteration so many times more."""

    def each(old: Moved, new: Moved) -> Moved:
        return new + (new + old * -1) * more

    arrays = tuple(map(each, before.arrays, last.arrays))
    return BlockTraffic(arrays, each(before.shared, last.shared), each(before.local, last.local))
