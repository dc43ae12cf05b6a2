"""Small values that cross the units of a GPU as tagged words, emulated, against `jax.jit` on the host."""

from __future__ import annotations

import re
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax_cocktail import compiler
from jax_cocktail.codegen.gpu import launch_plan
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.codegen.program import emit_program
from jax_cocktail.compiler import Emitted
from jax_cocktail.device.nvidia import H200
from jax_cocktail.lowering.choice.variants import prepare
from jax_cocktail.schedule.simplify.canonicalise import canonicalise
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.stitch.fuse import fuse
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail.utask.ir import LoopUTask, Region, operators_in, walk
from jax_cocktail_tools.models import MODELS
from jax_cocktail_tools.models.lstm import cell, cell_weights
from jax_cocktail_tools.models.model import generator
from tests.cpu.cuda_text import NO_NVCC, NVCC, nvcc_facts
from tests.cpu.emulated import KERNELS, SPEC, THREADS, Emulation, array, check_launches, greedy_decoder
from tests.cpu.emulation import emulator
from tests.cpu.emulation.emulator import EmulationError
from tests.null.meshes import crossing, exchange, lagging
from tests.null.programs import arguments, build
from tests.oracle.interpreter.run import run

HIDDEN, STEPS = 24, 5


def rnn(batch):
    """tanh(x + h W); the state has `batch` rows."""

    def run(xs, w, h):
        return lax.scan(lambda h, x: (jnp.tanh(x + h @ w), None), h, xs)[0]

    return run, (array(1, STEPS, batch, HIDDEN), array(2, HIDDEN, HIDDEN), array(3, batch, HIDDEN))


def lstm():
    """One layer."""

    def run(xs, weights):
        zeros = jnp.zeros((1, HIDDEN))

        def step(state, x):
            h, c = cell(x, *state, weights)
            return (h, c), h

        return lax.scan(step, (zeros, zeros), xs)

    return run, (array(1, STEPS, 1, HIDDEN), cell_weights(generator("lstm"), HIDDEN, HIDDEN))


def nasrnn():
    function, (xs, *weights) = MODELS["nasrnn"].make(1, small=True)
    return function, (xs[:STEPS], *weights)


CASES = {
    "rnn": lambda: rnn(1),
    "rows": lambda: rnn(3),
    "lstm": lstm,
    "nasrnn": nasrnn,
    "greedy": lambda: greedy_decoder(HIDDEN, 16),
}


def kinds(region: Region, kind: str) -> int:
    return sum(o.kind == kind for o in operators_in(region))


def check(monkeypatch, name, units, kernels=KERNELS, **how):
    """The program of a case, run on emulated units, equals stock."""
    launches = [(kernel, seed) for seed, kernel in enumerate(kernels)]
    return check_launches(monkeypatch, Emulation(**how), *CASES[name](), units, launches)


# -- emulated ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "units", "exchanges"),
    [("rows", 4, 1), ("lstm", 8, 1), ("nasrnn", 4, 1), ("greedy", 8, 2)],
)
def test_equals_stock(name, units, exchanges, monkeypatch):
    emitted = check(monkeypatch, name, units)
    loops = [s for s in walk(emitted.program.entry) if isinstance(s, LoopUTask) and not s.parallel]
    assert emitted.plan.most_units == units
    assert [(kinds(s.body, "wait"), kinds(s.body, "exchange")) for s in loops] == [(0, exchanges)]


def test_parts_that_leave_some_over(monkeypatch):
    """One unit makes the rest of 16 words in 9 parts; seven blocks have the parts of nine."""
    check(monkeypatch, "greedy", 9, ["ck_portable"], grid=7)


def test_no_race_among_threads(monkeypatch):
    check(monkeypatch, "rnn", 2, ["ck_resident"], sanitizer="thread")


# -- units without parts -------------------------------------------------------------------------------------
@cache
def text_of(make):
    """(text of a program on six units, a matrix, what comes of it)"""
    program = build(["float32[4,6]"], make)
    ready = fuse(canonicalise(simplify(exchange(program))))
    planned = compiler.schedule(ready, machine_of(SPEC, THREADS))
    (x,) = arguments(program, 0)
    return emit_program(planned.program, planned.plan, machine_of(SPEC, THREADS)).source, x, run(program, [x])


def launch(make, seed=0, *, text="", sanitizer=None, units=6, kernel=KERNELS[0]):
    own, x, expected = text_of(make)
    found = [np.zeros_like(y) for y in expected]
    program = emulator.build(text or own, sanitizer=sanitizer)
    program.launch([x], found, seed=seed, units=units, kernel=kernel)
    for result, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(result, y, rtol=1e-5, atol=1e-5)


MAKERS = [crossing, lagging]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_units_that_write_nothing(make, kernel):
    text = text_of(make)[0]
    assert "ck_send_nothing" in text
    for seed in range(4):
        launch(make, seed, kernel=kernel)


@pytest.mark.parametrize("make", MAKERS)
def test_no_race_with_units_that_write_nothing(make):
    launch(make, 1, sanitizer="thread")


@pytest.mark.parametrize("units", [1, 3, 5])
def test_any_grid(units):
    for make in MAKERS:
        launch(make, 2, kernel="ck_portable", units=units)


# -- what must not be left out -------------------------------------------------------------------------------
def edited(make, pattern, replacement):
    text, count = re.subn(pattern, replacement, text_of(make)[0])
    assert count
    return text


def fails(make, how, text, sanitizer=None):
    """Some order of the threads shows the fault of an edited text."""
    for seed in range(4):
        try:
            launch(make, seed, text=text, sanitizer=sanitizer)
        except (EmulationError, AssertionError) as error:
            assert re.search(how, str(error)), error
            return True
    return False


def test_sent_before_it_is_written():
    """No meeting between who writes a part and who sends it."""
    text = edited(crossing, r"ck_block_barrier\(\);(\s*\{?\s*ck_next_step)", r"\1")
    assert fails(crossing, "data race", text, sanitizer="thread")


def test_received_a_step_late():
    """What is awaited is the step before, in the other buffer."""
    late = r"unit->step -= 1; \1 unit->step += 1;"
    text = edited(crossing, r"(ck_receive_parts<[^;]*;)", late)
    assert fails(crossing, "Not equal|deadlock", text)


def test_slow_units_that_keep_silent():
    """Others overtake them, and what they wait for never comes; that they have nothing to send saves them."""
    slow = r"if (unit->index > 3) for (i32 k = 0; k < 99; ++k) ck_block_barrier(); \1"
    text = edited(lagging, r"(ck_receive_parts<)", slow)
    launch(lagging, text=text)
    assert fails(lagging, "deadlock", re.sub(r"ck_(send|receive)_nothing<[^;]*;", "", text))


# -- the real sizes ------------------------------------------------------------------------------------------
def emitted_for(name: str, batch: int = 1) -> Emitted:
    function, given = MODELS[name].make(batch, small=False)
    (program,) = prepare(jax.make_jaxpr(function)(*given), "test", machine_of(H200)).programs
    return compiler.emit(program, machine_of(H200), candidate=Candidate(H200.units))


@pytest.mark.parametrize(("name", "exchanges"), [("nasrnn", 1), ("lstm", 10)])
def test_a_step_is_one_exchange(name, exchanges):
    emitted = emitted_for(name)
    loops = [s for s in emitted.program.entry.body if isinstance(s, LoopUTask) and not s.parallel]
    assert [kinds(s.body, "wait") for s in loops] == [0] * len(loops)
    assert sum(kinds(s.body, "exchange") for s in loops) == exchanges
    assert not any(s.trip_count in (32, 500) for s in loops)  # no second buffer, no second step
    launch = launch_plan(emitted.program, emitted.plan, emitted.machine)
    assert launch.cooperative and launch.header_bytes == (128 + 16 * 256 + 255) // 256 * 256


@pytest.mark.skipif(not NVCC, reason=NO_NVCC)
def test_registers_of_a_step(tmp_path):
    facts = nvcc_facts(emitted_for("nasrnn").source, tmp_path, "sm_90")
    assert {name: kernel.spilled for name, kernel in facts.items()} == dict.fromkeys(KERNELS, 0)
