"""Traced programs on the host and in the emulation: results, timelines of several units, sanitizers, cost."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from jax_cocktail.codegen.gpu import launch_plan
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.codegen.stamps import CROSSINGS, EVERYTHING, STAGES
from jax_cocktail.compiler import emit
from jax_cocktail.device.nvidia import H200
from jax_cocktail.timeline.trace import Trace
from jax_cocktail.utask.candidate import Candidate, way
from tests.cpu.cuda_text import NO_NVCC, NVCC, nvcc_facts
from tests.cpu.emulated import SPEC, THREADS
from tests.cpu.emulation import emulator
from tests.cpu.fake_gpu.calls import run as run_call
from tests.cpu.fake_gpu.driver import Call
from tests.cpu.runner import EAGER
from tests.cpu.sanitizers import SANITIZERS, NoSanitizer, complaint
from tests.cpu.traced import memory_of_results, on_blocks, on_threads, timeline_of
from tests.golden.programs import DIVIDED
from tests.null.programs import arguments
from tests.null.wavefronts import stacked_lstm
from tests.oracle.interpreter.run import run

LEVELS = (CROSSINGS, STAGES, EVERYTHING)
OUTLINED = [("ck_resident", True), ("ck_portable", True)]  # the first one has a loop for each role


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
def test_threads(level, units):
    case = DIVIDED["lstm_2_cores"]
    program, values = case.program(), arguments(case.program())
    plain = emit(program, candidate=case.candidate)
    emitted = emit(program, candidate=case.candidate, trace=level)
    expected = [r.copy() for r in on_threads(plain, values, units)()]
    *results, rings = on_threads(emitted, values, units)()
    for x, y in zip(results, expected, strict=True):
        assert x.tobytes() == y.tobytes()
    found = timeline_of(emitted, rings)
    check(found, emitted, units)
    for crossing in found.crossings:  # one clock for all: nobody is released before the last one has come
        assert min(crossing.released) >= max(crossing.arrived)


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_threads_share_no_ring(tmp_path, sanitizer):
    case = DIVIDED["lstm_2_cores"]
    emitted = emit(case.program(), candidate=case.candidate, trace=EVERYTHING)
    try:
        assert complaint(emitted, arguments(case.program()), sanitizer, tmp_path) == ""
    except NoSanitizer as reason:
        pytest.skip(str(reason))


def test_it_costs_little():
    """Stamps of level 2 take at most a tenth of the time. Whole calls cannot be compared on a busy machine;
    the time of a stamp is that of an arrival of a unit that is alone, which has nothing to do."""
    program = stacked_lstm(1, 200, 1, 128)
    emitted = emit(program, candidate=Candidate(2), trace=STAGES)
    call = on_threads(emitted, arguments(program), 1)
    found = [timeline_of(emitted, call()[-1].copy()) for _ in range(5)]
    stamp = min(s.length for each in found for s in each.tracks[0] if s.stamp.kind == "arrive")
    shortest = min(each.end - each.start for each in found)
    assert 0 < stamp * found[0].stamps < shortest / 10


# ---- the emulation -----------------------------------------------------------------------------------------
def emulated(program, level, monkeypatch, *, outlined=False, pipeline=False):
    monkeypatch.setattr("jax_cocktail.passes.limits_for", lambda *_: EAGER)
    machine = machine_of(SPEC, THREADS)
    if outlined:
        machine = replace(machine, target=replace(machine.target, outline_limit=0))
    return emit(program, machine, candidate=way(3, pipeline=pipeline), trace=level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("kernel", "outlined"), [("ck_resident", False), *OUTLINED])
def test_blocks(monkeypatch, level, kernel, outlined):
    program = stacked_lstm(2, 5, 1, 24)
    values = arguments(program)
    emitted = emulated(program, level, monkeypatch, outlined=outlined, pipeline=outlined)
    *results, rings = on_blocks(emitted, values, kernel)
    for x, y in zip(results, run(program, values), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5)
    found = timeline_of(emitted, rings)
    check(found, emitted, emitted.plan.most_units)
    assert len(found.tracks) == emitted.plan.most_units * (THREADS // 32 if level == EVERYTHING else 1)
    assert found.crossings
    drawn = ElementTree.fromstring(Trace("lstm", None, (found,)).to_svg())
    texts = {element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert {"unit 0", "unit 2", "critical path", "matrix product"} - texts == set(
        ["matrix product"] if level == CROSSINGS else []
    )


@pytest.mark.parametrize("sanitizer", ["thread", "address"])
def test_stamps_race_with_nothing(monkeypatch, sanitizer):
    program = stacked_lstm(1, 3, 1, 24)
    emitted = emulated(program, EVERYTHING, monkeypatch)
    *_, rings = on_blocks(emitted, arguments(program), "ck_resident", sanitizer)
    check(timeline_of(emitted, rings), emitted, emitted.plan.most_units)


def test_the_handler_passes_rings_on(monkeypatch, handlers, xla, fake):
    """They are one more result: on a card, XLA's client copies them to the host."""
    program = stacked_lstm(1, 3, 1, 24)
    emitted = emulated(program, STAGES, monkeypatch)
    operands, results = [np.array(v, order="C") for v in arguments(program)], memory_of_results(emitted)
    plan = launch_plan(emitted.program, emitted.plan, emitted.machine, emitted.sizes)
    workspace = np.full(plan.workspace_bytes, 0xA5, np.uint8)
    addresses = [[array.ctypes.data for array in each] for each in (operands, [*results, workspace])]
    call = Call(emulator.build(emitted.source).path.read_bytes(), plan, *addresses)
    fake.set(pointers=len(operands) + len(results) + 2 + len(plan.sizes))
    assert run_call(handlers, xla, call) is None
    check(timeline_of(emitted, results[-1]), emitted, emitted.plan.most_units)
    for x, y in zip(results, run(program, operands), strict=False):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5)


@pytest.mark.skipif(NVCC is None, reason=NO_NVCC)
@pytest.mark.parametrize(("level", "arch"), [(STAGES, "sm_80"), (STAGES, "sm_90"), (EVERYTHING, "sm_100")])
def test_it_compiles(tmp_path, level, arch):
    """Stamps take a few registers and spill none."""
    case = DIVIDED["exchange_4_blocks"]
    emitted = emit(case.program(), machine_of(H200, 128), candidate=case.candidate, trace=level)
    facts = nvcc_facts(emitted.source, tmp_path, arch)
    assert {facts[kernel].spilled for kernel in ("ck_resident", "ck_portable")} == {0}
