"""Calls of emitted programs by exactly so many threads, and the timelines of traced ones."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence

import jax
import numpy as np

from jax_cocktail.build import host as build_host
from jax_cocktail.compiler import Emitted, build
from jax_cocktail.timeline.rings import begin_of, read
from jax_cocktail.timeline.values import Timeline
from jax_cocktail.utask.arrays import numpy_dtype
from tests.cpu.emulation import emulator


@functools.cache
def _runtime() -> ctypes.CDLL:
    return ctypes.CDLL(build_host.build_runtime(jax.ffi.include_dir(), build_host.host_toolchain()))


def memory_of_results(emitted: Emitted) -> list[np.ndarray]:
    """Memory for the results and, of a traced program, the rings."""
    made = [np.full(v.type.shape, 77, numpy_dtype(v.type.dtype)) for v in emitted.program.entry.results]
    if emitted.stamps is not None:
        made.append(np.full(emitted.stamps.shape, 0xA5A5A5A5, np.uint32))
    return made


def on_threads(emitted: Emitted, values: Sequence[np.ndarray], units: int) -> Callable[[], list[np.ndarray]]:
    """A function that calls the program on exactly so many threads and returns its results."""
    artifact, plan = build(emitted), emitted.plan
    entry = ctypes.cast(ctypes.CDLL(artifact.path).ck_program, ctypes.c_void_p)
    operands, results = [np.array(v, order="C") for v in values], memory_of_results(emitted)
    for operand, result in artifact.aliases:
        results[result] = operands[operand]
    workspace = np.full(plan.workspace_bytes + 64, 0xA5, np.uint8)
    kept = [*operands, *results, workspace]
    base = ctypes.c_void_p(workspace.ctypes.data + -workspace.ctypes.data % 64)
    pointers = [(ctypes.c_void_p * len(each))(*(a.ctypes.data for a in each)) for each in (operands, results)]
    sizes = (ctypes.c_int64 * len(emitted.sizes))(*emitted.sizes)
    numbers = ctypes.c_int64(plan.most_units), ctypes.c_int64(plan.own_bytes), sizes

    def call() -> list[np.ndarray]:
        assert _runtime().ck_cpu_run(entry, *numbers, *pointers, base, ctypes.c_int64(units)) == 0
        return kept[len(operands) : -1]

    return call


def on_blocks(
    emitted: Emitted, values: Sequence[np.ndarray], kernel: str = "ck_resident", sanitizer: str | None = None
) -> list[np.ndarray]:
    """The results of one launch in the emulation."""
    operands, results = [np.array(v, order="C") for v in values], memory_of_results(emitted)
    built = emulator.build(emitted.source, sanitizer=sanitizer)
    lengths = {"sizes": emitted.sizes, "shared_bytes": emitted.plan.shared_bytes if emitted.sizes else 0}
    built.launch(operands, results, kernel=kernel, units=emitted.plan.most_units, **lengths)
    return results


def timeline_of(emitted: Emitted, rings: np.ndarray) -> Timeline:
    """The timeline in the rings of a call, its last result."""
    words = rings.view(np.uint64)
    return read(0, words, emitted.stamps.rows, emitted.stamps.level, begin_of(words))
