"""Litmus tests of synchronisation: right primitives pass in the emulation, broken ones are noticed."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
import pytest

from benchmarks.gpu import litmus
from jax_cocktail.build.device import build_device_program
from jax_cocktail.device.cards import spec_for
from jax_cocktail.runtime.cuda import card as gpu_card
from tests.api.fake_card import FakeCard
from tests.cpu import sass
from tests.cpu.cuda_compilers import nvcc
from tests.cpu.emulation import emulator
from tests.cpu.emulation.emulator import EmulationError, Program

THREADS = 64  # of the emulated block
UNITS = 7  # not a multiple of any group
TRIALS = {  # of 12 rounds of so many units, or of one cluster
    "message passing, barrier": 36,
    "message passing, signal": 36,
    "message passing, tagged words": 36,
    "exchange of tagged words": 84,
    "store buffering, barrier": 72,
    "independent readers, signals": 24,
    "independent readers, barrier": 24,
    "transitivity, signals": 24,
    "transitivity, tagged words": 24,
    "early loads": 84,
    "resident values": 84,
    "message passing, cluster of 8": 48,
    "message passing, cluster of 16": 96,
}


def record(built: Program, name: str, rounds: int = 12, units: int = UNITS, seed: int = 0):
    """What one emulated launch of a test says."""
    test = litmus.LITMUSES[name]
    run = litmus.Run(test, units if test.cluster == 1 else test.cluster, rounds, THREADS)
    counts, memory = run.counts(), np.zeros(run.memory_bytes, np.uint8)
    operands = [run.numbers, litmus.weights()]
    built.launch(operands, [counts, memory], units=run.units, seed=seed, cluster=test.cluster)
    return run.record(counts)


@functools.cache
def right() -> Program:
    return emulator.build(litmus.text(THREADS))


@pytest.mark.parametrize("name", TRIALS)
def test_nothing_forbidden(name):
    assert set(TRIALS) == set(litmus.LITMUSES)
    for seed in range(4):
        found = record(right(), name, seed=seed)
        assert (found["ok"], found["trials"], found["forbidden"]) == (True, TRIALS[name], 0)
    if litmus.LITMUSES[name].group < 4:
        assert record(right(), name, units=3, seed=4)["ok"]


def test_readers_come_before_and_after_a_write():
    """Else they could not disagree."""
    found = [record(right(), "independent readers, barrier", 40, seed=seed) for seed in range(4)]
    seen = sum(each["seen"]["new before the barrier"] for each in found)
    assert 0 < seen < sum(each["trials"] for each in found)


def test_no_trial_is_not_ok():
    found = record(right(), "independent readers, signals", units=3)
    assert found == {
        "trials": 0,
        "forbidden": 0,
        "seen": {"stale": 0, "early": 0, "readers disagreed": 0},
        "ok": False,
    }


# ---- broken twins ------------------------------------------------------------------------------------------

BASE_H, UNITS_H = '#include "cocktail_base.h"\n', '#include "cocktail_units.h"\n'


def defined(macro: str) -> Mapping[str, str]:
    """A primitive replaced by a macro."""
    return {UNITS_H: f"{UNITS_H}#define {macro}\n"}


NO_WAIT = defined("ck_wait(unit) ck_block_barrier()")
NO_AWAIT = defined("ck_await_signal(unit, signal, value) ck_block_barrier()")
NO_POLL = {
    BASE_H: BASE_H
    + """template <class Read, class Done>
CK_INLINE auto ck_read_once(Read read, Done, CkWatch) { return ck_sleep(0), read(); }
#define ck_poll_with(read, done, ...) ck_read_once(read, done, CkWatch{nullptr, 0, ""})
"""
}
# Tags come before their values.
TORN = {
    UNITS_H: UNITS_H
    + """template <class T>
CK_INLINE void ck_send_torn(u64* exchange, i32 words, i32 first, const T* values, i32 count, u32 step) {
  static const u32 zeros[CK_THREADS] = {};
  ck_send_tagged(exchange, words, first, zeros, count, step);
  ck_sleep(0);
  ck_send_tagged(exchange, words, first, values, count, step);
}
#define ck_send_tagged ck_send_torn
"""
}
# What others should see is written after it was published.
PUT, SIGNAL = "ck_put(mine->payload, i);", "if constexpr (BY == BY_SIGNAL) ck_signal(unit, unit->index, i);"
MEET = "if constexpr (BY == BY_BARRIER) ck_meet(unit);"
CHAIN_PUT, CHAIN_SIGNAL = "ck_put(area->payload, i);", "ck_signal(unit, unit->index, i);"
STORE = "mine->payload[row + ck_lane()] = ck_value(i, ck_lane());"
LATE = {
    f"{PUT}\n    {SIGNAL}\n    {MEET}": f"{SIGNAL}\n{MEET}\nck_sleep(0);\n{PUT}",
    f"{CHAIN_PUT}\n      {CHAIN_SIGNAL}": f"{CHAIN_SIGNAL}\nck_sleep(0);\n{CHAIN_PUT}",
    f"{STORE}\n    ck_meet(unit);": f"ck_meet(unit);\nck_sleep(0);\n{STORE}",
}
# Nobody asks whether it has been read.
OVERTAKING = {
    "ck_await_signal(unit, partner, i);  // it has": "ck_block_barrier();  // it has",
    "ck_await_signal(unit, ready, i);": "ck_block_barrier();",
    "[=](u32 seen) { return i32(seen - i) >= 0; }": "[=](u32) { return true; }",
}
# A load that comes too soon, and memory that is not kept.
LOAD = "const u32 rewritten = theirs[at];"
MOVED = {
    f"ck_wait(unit);\n    {LOAD}": f"{LOAD}\nck_wait(unit);",
    "KEPT_AT = HELD_N ": "KEPT_AT = 0 ",
}
NO_CLUSTER_BARRIER = {"ck_meet(t.unit);": "ck_block_barrier();"}

# How it is broken, how that shows, and in which tests.
TWINS = {
    "no wait": (
        NO_WAIT,
        "stale",
        "message passing, barrier",
        "store buffering, barrier",
        "independent readers, signals",
        "independent readers, barrier",
        "early loads",
        "resident values",
    ),
    "no await": (
        NO_AWAIT,
        "stale",
        "message passing, signal",
        "transitivity, signals",
        "transitivity, tagged words",
    ),
    "no poll": (
        NO_POLL,
        "stale",
        "message passing, tagged words",
        "exchange of tagged words",
        "message passing, cluster of 8",
    ),
    "torn": (
        TORN,
        "stale",
        "message passing, tagged words",
        "exchange of tagged words",
        "transitivity, tagged words",
    ),
    "late": (
        LATE,
        "stale",
        "message passing, barrier",
        "message passing, signal",
        "transitivity, signals",
        "store buffering, barrier",
    ),
    "overtaking": (
        OVERTAKING,
        "early",
        "message passing, barrier",
        "message passing, signal",
        "message passing, tagged words",
        "transitivity, signals",
        "transitivity, tagged words",
        "message passing, cluster of 8",
    ),
    "moved": (MOVED, "stale", "early loads", "resident values"),
    "no cluster barrier": (
        NO_CLUSTER_BARRIER,
        "stale",
        "message passing, cluster of 8",
        "message passing, cluster of 16",
    ),
}


def broken(changes: Mapping[str, str], spin_limit: int = 1 << 14) -> str:
    """The text with every change made."""
    text = litmus.text(THREADS, spin_limit)
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


@functools.cache
def twin(kind: str) -> Program:
    return emulator.build(broken(TWINS[kind][0]))


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, (_, _, *all) in TWINS.items() for name in all]
)
def test_broken_twins_are_noticed(kind, name):
    found = [record(twin(kind), name, seed=seed) for seed in range(8)]
    assert any(each["seen"][TWINS[kind][1]] for each in found)
    assert all(each["ok"] == (each["forbidden"] == 0) for each in found)


def test_every_test_notices_something():
    assert {name for _, _, *names in TWINS.values() for name in names} == set(litmus.LITMUSES)


SILENT = defined("ck_signal(unit, signal, value) ck_block_barrier()")


def test_a_wait_without_end_fails():
    silent = emulator.build(broken(SILENT, spin_limit=100))
    with pytest.raises(EmulationError, match="spun too long in phase 1"):
        record(silent, "message passing, signal")


# ---- sanitizers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sanitizer", ["thread", "address"])
def test_sanitized(sanitizer):
    """All plain accesses are ordered, so what is forbidden is forbidden."""
    built = emulator.build(litmus.text(THREADS), sanitizer=sanitizer)
    for name, test in litmus.LITMUSES.items():
        if test.cluster <= 8:
            assert record(built, name, rounds=4, units=4, seed=1)["ok"]


def test_a_weaker_release_is_a_race():
    weaker = {BASE_H: f"{BASE_H}#define ck_store_release ck_store_relaxed\n"}
    built = emulator.build(broken(weaker), sanitizer="thread")
    with pytest.raises(EmulationError, match="data race"):
        record(built, "message passing, signal", rounds=4, units=2)


# ---- on a card ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(not sass.tools(), reason=sass.NO_TOOLS)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_compilers(arch):
    """Nothing spills, all blocks fit, and no load goes through a cache that nobody empties."""
    built = build_device_program(litmus.text(), nvcc(), arch)
    assert set(built.kernels) == {"ck_resident", "ck_portable"} and not built.spills
    registers = built.kernels["ck_portable"].registers
    assert spec_for(arch).resident_units(litmus.THREADS, registers, litmus.SCRATCH_BYTES) >= 4
    found = sass.opcodes(built.binary, "ck_portable")
    assert found["LD.E"] >= 4 and found["ST.E"] >= 2  # the weak accesses
    assert found["CCTL.IVALL"] > 20 and not any("CONSTANT" in opcode for opcode in found)
    assert (found["UCGABAR_WAIT"] > 0) == (arch != "sm_80")


@pytest.fixture
def fake(tmp_path, monkeypatch):
    made = FakeCard(tmp_path)
    monkeypatch.setenv("JAX_COCKTAIL_CUDA_DRIVER", str(made.path))
    monkeypatch.setattr(litmus, "THREADS", THREADS)
    return made


@pytest.mark.parametrize("sms", [3, 8])
def test_measured(fake, sms):
    """On all multiprocessors, by four blocks at least. The card has no room for larger clusters."""
    fake.set(sms=sms, pointers=6, in_cluster=16)
    binary = right().path.read_bytes()
    with gpu_card.Card() as card:
        names = litmus.names_of(card)
        found = {name: litmus.measure(card, binary, name, scale=1e-3) for name in names}
    assert set(names) == set(litmus.LITMUSES)
    none = {name for name, each in found.items() if "none" in each}
    assert none == {name for name, test in litmus.LITMUSES.items() if test.cluster > max(sms, 1)}
    assert all("912" in found[name]["none"] for name in none)
    assert all(each["ok"] and each["trials"] >= 25 for name, each in found.items() if name not in none)
    assert found["early loads"]["trials"] == 25 * max(sms, 4)


def test_wrong_is_a_record(fake):
    fake.set(sms=4, pointers=6)
    with gpu_card.Card() as card:
        found = litmus.measure(card, twin("no wait").path.read_bytes(), "early loads", scale=1e-3)
        assert not found["ok"] and found["forbidden"] == found["seen"]["stale"] > 0


def test_what_hangs_fails_the_launch(fake):
    fake.set(sms=4, pointers=6)
    silent = emulator.build(broken(SILENT, spin_limit=100)).path.read_bytes()
    with gpu_card.Card() as card, pytest.raises(gpu_card.CudaError, match="CUDA_ERROR_LAUNCH_FAILED"):
        litmus.measure(card, silent, "message passing, signal", scale=1e-3)


def test_blocks_that_do_not_fit(fake):
    fake.set(sms=1, pointers=6, per_sm=THREADS)
    with gpu_card.Card() as card, pytest.raises(gpu_card.CudaError, match="4 blocks do not fit: at most 1"):
        litmus.measure(card, right().path.read_bytes(), "early loads")


def test_older_cards_have_no_clusters(fake, monkeypatch):
    monkeypatch.setenv("FAKE_MAJOR", "8")
    with gpu_card.Card() as card:
        names = litmus.names_of(card)
    assert set(litmus.LITMUSES) - set(names) == {name for name in litmus.LITMUSES if "cluster" in name}
