"""The probes of `benchmarks.gpu.latency`, emulated: what the constants of the machine make of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.gpu import latency
from benchmarks.gpu.latency import LONG, SHORT, Probe
from benchmarks.gpu.sass import decode
from benchmarks.gpu.sass.decode import Code, UnknownInstruction
from benchmarks.gpu.sass.emulate import MOST, state_of
from benchmarks.gpu.sass.execute import Execution
from benchmarks.gpu.sass.machine import Multiprocessor
from benchmarks.gpu.sass.state import Grid
from benchmarks.gpu.sass.timing import Timing

KERNEL = "ck_portable"
ROUNDS = 4
WORKSPACE_BYTES = 1 << 16


def clocks(code: Code, probe: Probe, machine: Multiprocessor) -> float:
    """Cycles of one operation of a probe.

    Raises:
      UnknownInstruction: the emulator cannot run it.
    """
    probe, ends = replace(probe, rounds=ROUNDS), {}
    for long in (False, True):
        memory = np.zeros(max(probe.memory, 4) // 4, np.uint32)
        contents = (probe.numbers(long), latency.VALUES, 4 * probe.words, memory, WORKSPACE_BYTES)
        execution = Execution(code, state_of(machine.arch, Grid(probe.threads, 1), contents))
        if not execution.run(lambda _: False, MOST):
            raise UnknownInstruction(f"the probe {probe.kind} does not end")
        if problem := probe.problem(execution.state.memory.arrays[2], long):
            raise UnknownInstruction(f"the probe {problem}")
        ends[long] = Timing(code, execution.warps, machine).run().end
    return (ends[True] - ends[False]) / (probe.rounds * (LONG - SHORT) * probe.per)


def table(machine: Multiprocessor, l2_bytes: int, figures: dict[str, Any]) -> Iterator[str]:
    """Each probe: emulated and measured clocks."""
    code = decode.kernels(latency.program(machine.arch))[KERNEL]
    yield f"{'probe':32}{'emulated':>10}{'measured':>10}"
    for name, probe in latency.probes(l2_bytes, machine.arch != "sm_80").items():
        if name == "load, memory":  # as if it were in the cache
            continue
        measured = figures.get(name, {}).get("clocks")
        beside = f"{measured:10.1f}" if measured is not None else f"{'-':>10}"
        try:
            yield f"{name:32}{clocks(code, probe, machine):10.1f}{beside}"
        except UnknownInstruction as error:
            yield f"{name:32}{'-':>10}{beside}  {error}"
