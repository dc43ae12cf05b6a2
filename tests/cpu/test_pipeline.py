"""Pipelined programs as built for the host, on several units, against the interpreter."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import partial

import jax
import numpy as np
import pytest

from jax_cocktail.build import host as build
from jax_cocktail.placement.place import place
from jax_cocktail.schedule.loops.wavefront.pipeline import pipeline
from jax_cocktail.schedule.products.pack_factors import Packing
from jax_cocktail.utask.arrays import numpy_dtype
from jax_cocktail.utask.candidate import way
from jax_cocktail.utask.ir import UProgram
from tests.cpu.runner import EAGER, PACKS, compile_program
from tests.null.programs import arguments
from tests.null.wavefronts import ALWAYS, RandomChain, stacked_lstm
from tests.oracle.interpreter.run import run


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    """Small programs are pipelined and placed as large ones are."""
    monkeypatch.setattr("jax_cocktail.passes.place", partial(place, limits=EAGER))
    monkeypatch.setattr(Packing, "of", lambda _: PACKS)
    monkeypatch.setattr("jax_cocktail.passes.pipeline", partial(pipeline, limits=ALWAYS))


@pytest.fixture(scope="module")
def runtime() -> ctypes.CDLL:
    return ctypes.CDLL(build.build_runtime(jax.ffi.include_dir(), build.host_toolchain()))


def on_units(
    runtime: ctypes.CDLL, program: UProgram, values: Sequence[np.ndarray], planned: int, units: int
) -> list[np.ndarray]:
    """The results of a program planned for `planned` units, run by `units`."""
    artifact = compile_program(program, way(units=planned, pipeline=True))
    assert any("stages side by side" in remark.text for remark in artifact.emitted.remarks)
    assert "pipeline" in artifact.emitted.fired and "place" in artifact.emitted.fired
    plan = artifact.emitted.plan
    entry = ctypes.cast(ctypes.CDLL(artifact.path).ck_program, ctypes.c_void_p)
    operands = [np.ascontiguousarray(v) for v in values]
    results = [
        np.full(v.type.shape, 77, numpy_dtype(v.type.dtype)) for v in program.entry.results
    ]  # what is not written shows
    workspace = np.full(plan.workspace_bytes + 64, 0xA5, np.uint8)
    base = workspace.ctypes.data + -workspace.ctypes.data % 64

    def pointers(arrays: Sequence[np.ndarray]) -> ctypes.Array:
        return (ctypes.c_void_p * max(len(arrays), 1))(*(a.ctypes.data for a in arrays))

    given = artifact.emitted.sizes
    sizes = (ctypes.c_int64 * len(given))(*given)
    numbers = ctypes.c_int64(plan.most_units), ctypes.c_int64(plan.own_bytes), sizes
    places = (pointers(operands), pointers(results), ctypes.c_void_p(base))
    assert runtime.ck_cpu_run(entry, *numbers, *places, ctypes.c_int64(units)) == 0
    return results


def check(runtime: ctypes.CDLL, program: UProgram, planned: int, seed: int = 0) -> None:
    values = arguments(program, seed)
    expected = run(program, values)
    bits = []
    for units in (1, 2, 3):
        found = on_units(runtime, program, values, planned, units)
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=3e-5, atol=3e-5)
        bits.append([x.tobytes() for x in found])
    assert bits[0] == bits[1] == bits[2]  # whatever number of units a call got


@pytest.mark.parametrize("planned", [2, 3, 8])
@pytest.mark.parametrize(("depth", "batch"), [(2, 1), (3, 3)])
def test_stacked_lstm(runtime, planned, depth, batch):
    check(runtime, stacked_lstm(depth, 7, batch), planned)


@pytest.mark.parametrize("seed", [s for s in range(12) if RandomChain(s).trips == 7][:4])
def test_random_chains(runtime, seed):
    check(runtime, RandomChain(seed).program(), 2 + seed % 2, seed)
