"""Traced programs on the host and in the emulation: results, timelines of several units, sanitizers, cost."""

from __future__ import annotations

import ctypes
import time
from dataclasses import replace

import jax
import numpy as np
import pytest

from jax_cocktail import compiler
from jax_cocktail.build import host as build_host
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.codegen.stamps import CROSSINGS, EVERYTHING, STAGES
from jax_cocktail.compiler import build, emit
from jax_cocktail.device.spec import H200
from jax_cocktail.timeline.rings import begin_of, read
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail.utask.interpreter.common import numpy_dtype
from jax_cocktail.utask.interpreter.run import run
from tests.cpu.cuda_text import NO_NVCC, NVCC, nvcc_facts
from tests.cpu.emulated import SPEC, THREADS
from tests.cpu.emulation import emulator
from tests.cpu.runner import EAGER
from tests.golden.programs import DIVIDED
from tests.null.programs import arguments
from tests.null.wavefronts import stacked_lstm

LEVELS = (CROSSINGS, STAGES, EVERYTHING)


@pytest.fixture(scope="module")
def runtime():
    return ctypes.CDLL(build_host.build_runtime(jax.ffi.include_dir(), build_host.host_toolchain()))


def arrays(emitted):
    """Memory for the results and, of a traced program, the rings."""
    made = [np.full(v.type.shape, 77, numpy_dtype(v.type.dtype)) for v in emitted.program.entry.results]
    if emitted.stamps is not None:
        made.append(np.full(emitted.stamps.shape, 0xA5A5A5A5, np.uint32))
    return made


def caller(runtime, emitted, values, units):
    """A function that calls the program on exactly so many threads and returns its results."""
    artifact, plan = build(emitted), emitted.plan
    entry = ctypes.cast(ctypes.CDLL(artifact.path).ck_program, ctypes.c_void_p)
    operands, results = [np.array(v, order="C") for v in values], arrays(emitted)
    for operand, result in artifact.aliases:
        results[result] = operands[operand]
    workspace = np.full(plan.workspace_bytes + 64, 0xA5, np.uint8)
    base = ctypes.c_void_p(workspace.ctypes.data + -workspace.ctypes.data % 64)
    pointers = [(ctypes.c_void_p * len(each))(*(a.ctypes.data for a in each)) for each in (operands, results)]
    numbers = ctypes.c_int64(plan.most_units), ctypes.c_int64(plan.own_bytes)

    def call():
        assert runtime.ck_cpu_run(entry, *numbers, *pointers, base, ctypes.c_int64(units)) == 0
        return [*results, operands, workspace][: len(results)]

    return call


def timeline(emitted, rings):
    words = rings.view(np.uint64)
    return read(0, words, emitted.stamps.rows, emitted.stamps.level, begin_of(words))


def check(found, emitted, units):
    """Every unit has a track without gaps, and all of them made the same crossings in one order."""
    assert found.units == units and {track[0].unit for track in found.tracks} == set(range(units))
    for track in found.tracks:
        assert track[0].stamp.number == 0
        for before, after in zip(track, track[1:], strict=False):
            assert before.end == after.begin and before.length >= 0
    crossed = [[s.stamp for s in track if s.stamp.kind == "wait"] for track in found.tracks]
    assert all(stamps == crossed[0] for stamps in crossed)
    first = [track for track in found.tracks if not track[0].writer]
    assert len(found.crossings) == (len(crossed[0]) if units > 1 else 0) <= found.stamps
    assert found.stamps == found.kept == sum(len(track) - 1 for track in found.tracks)
    assert len(first) == units and {s.stamp.number for t in first for s in t} - {0}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("units", [1, 2])
def test_threads(runtime, level, units):
    case = DIVIDED["lstm_2_cores"]
    program, values = case.program(), arguments(case.program())
    plain = emit(program, candidate=case.candidate)
    emitted = emit(program, candidate=case.candidate, trace=level)
    expected = [r.copy() for r in caller(runtime, plain, values, units)()]
    *results, rings = caller(runtime, emitted, values, units)()
    for x, y in zip(results, expected, strict=True):
        assert x.tobytes() == y.tobytes()
    found = timeline(emitted, rings)
    check(found, emitted, units)
    for crossing in found.crossings:  # one clock for all: nobody is released before the last one has come
        assert min(crossing.released) >= max(crossing.arrived)


def test_it_costs_little(runtime):
    """Level 2 is meant to cost a tenth at most; machines that tests run on are busy."""
    program = stacked_lstm(1, 200, 1, 256)
    calls = [caller(runtime, emit(program, trace=level), arguments(program), 1) for level in (0, STAGES)]
    best = [float("inf")] * 2
    for _ in range(12):
        for number, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[number] = min(best[number], time.perf_counter() - start)
    assert best[1] < 1.3 * best[0]


# ---- the emulation -----------------------------------------------------------------------------------------
def emulated(program, level, monkeypatch, *, outlined=False, pipeline=False):
    monkeypatch.setattr(compiler, "limits_for", lambda _: EAGER)
    machine = machine_of(SPEC, THREADS)
    if outlined:
        machine = replace(machine, target=replace(machine.target, outline_limit=0))
    return emit(program, machine, candidate=Candidate(3, pipeline=pipeline), trace=level)


def launched(emitted, values, kernel, sanitizer=None):
    operands, results = [np.array(v, order="C") for v in values], arrays(emitted)
    built = emulator.build(emitted.source, sanitizer=sanitizer)
    built.launch(operands, results, kernel=kernel, units=emitted.plan.most_units)
    return results


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("kernel", "outlined"), [("ck_resident", False), ("ck_portable", True)])
def test_blocks(monkeypatch, level, kernel, outlined):
    program = stacked_lstm(2, 5, 1, 24)
    values = arguments(program)
    emitted = emulated(program, level, monkeypatch, outlined=outlined, pipeline=outlined)
    *results, rings = launched(emitted, values, kernel)
    for x, y in zip(results, run(program, values), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5)
    found = timeline(emitted, rings)
    check(found, emitted, emitted.plan.most_units)
    assert len(found.tracks) == emitted.plan.most_units * (THREADS // 32 if level == EVERYTHING else 1)
    assert found.crossings


@pytest.mark.parametrize("sanitizer", ["thread", "address"])
def test_stamps_race_with_nothing(monkeypatch, sanitizer):
    program = stacked_lstm(1, 3, 1, 24)
    emitted = emulated(program, EVERYTHING, monkeypatch)
    *_, rings = launched(emitted, arguments(program), "ck_resident", sanitizer)
    check(timeline(emitted, rings), emitted, emitted.plan.most_units)


@pytest.mark.skipif(NVCC is None, reason=NO_NVCC)
@pytest.mark.parametrize(("level", "arch"), [(STAGES, "sm_80"), (STAGES, "sm_90"), (EVERYTHING, "sm_100")])
def test_it_compiles(tmp_path, level, arch):
    """Stamps take a few registers and spill none."""
    case = DIVIDED["exchange_4_blocks"]
    emitted = emit(case.program(), machine_of(H200, 128), candidate=case.candidate, trace=level)
    facts = nvcc_facts(emitted.source, tmp_path, arch)
    assert {facts[kernel].spilled for kernel in ("ck_resident", "ck_portable")} == {0}
