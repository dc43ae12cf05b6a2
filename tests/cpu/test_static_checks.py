"""Static checks: the benchmark's programs at full size, compiled for cards that are not here.

Every test holds one program to what its card can launch, and to what is recorded for this release of nvcc.
A usual run takes three programs a card, and a long one those of CASES; ``python -m tests.cpu.static_checks``
takes all programs on all cards.
"""

from __future__ import annotations

import dataclasses
import json

import pytest

from benchmarks.gpu.rows import ROWS
from jax_cocktail.device.nvidia import A100, H200
from jax_cocktail_tools.models import MODELS
from tests.cpu import static_checks
from tests.cpu.cuda_compilers import nvcc, nvrtc

# A minute or a good part of it on one core: begun first, and for one card only.
SLOW = ("skipnet/1", "lstm/64", "blockdrop/64", "blockdrop/1", "lstm/1")
# Where an architecture makes a difference: products on tensor cores, copies ahead, exchange between blocks.
ELSEWHERE = ("nasrnn/1", "nasrnn/64", "attention/1", "seq2seq/1", "rae/1", "vmapped_while")
USUAL = ("nasrnn/1", "attention/1", "rae/1", "collatz/10000", "lorenz/100000")
CASES = [
    *(("sm_90", row) for row in ROWS if not row.endswith("_gradient")),
    *((arch, row) for arch in ("sm_80", "sm_100") for row in ELSEWHERE),
]


def marked(case):
    return pytest.param(*case, marks=[] if case[1] in USUAL else [pytest.mark.long])


@pytest.mark.parametrize(
    ("arch", "row"), [*map(marked, sorted(CASES, key=lambda case: [*SLOW, case[1]].index(case[1])))]
)
def test_program(arch, row):
    toolchain, spec = nvcc(), static_checks.CARDS[arch]
    programs = static_checks.planned(row, arch).programs
    assert programs, "nothing was captured"
    numbers = [static_checks.found(emitted, spec, toolchain) for emitted in programs]
    assert [problem for each in numbers for problem in static_checks.problems(each, spec)] == []
    known = static_checks.recorded(row, arch, toolchain.release)
    assert known is not None or not static_checks.recorded("rae/1", arch, toolchain.release), (
        "record this row too"
    )
    if known is not None:
        differ = static_checks.differences(static_checks.plain(numbers), known)
        assert differ == [], f"if meant: python -m tests.cpu.static_checks {arch} {row} --update"


@pytest.mark.parametrize("row", ["collatz/10000", "collatz/1000000", "lorenz/100000"])
def test_threads_of_elements_meet_nowhere(row):
    """Where a program is one loop of which each element has a thread: no barrier is recorded."""
    for release in json.loads((static_checks.RECORDED / "sm_90.json").read_text()):
        (program,) = static_checks.recorded(row, "sm_90", release)
        assert program["block_barriers"] == program["waits"] == 0 < program["units"]
        assert all(kernel["barriers"] == kernel["spill_bytes"] == 0 for kernel in program["kernels"].values())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("row", USUAL)
def test_nvrtc_agrees(row):
    """The compiler that every jax[cuda13] brings compiles the same text within the same limits."""
    (emitted,) = static_checks.planned(row, "sm_90").programs
    assert static_checks.problems(static_checks.found(emitted, H200, nvrtc()), H200) == []


def test_the_cases_are_enough():
    """Every model on a card, and every card with programs of one block and of many."""
    models = {f"{model.name}/{batch}" for model in MODELS.values() for batch in model.batches}
    assert models <= {row for arch, row in CASES if arch == "sm_90"}
    assert {arch for arch, _ in CASES} == set(static_checks.CARDS) and set(ELSEWHERE) <= set(ROWS)


# ---- the checks themselves ---------------------------------------------------------------------------------

FINE = {"registers": 64, "spill_bytes": 0, "stack_bytes": 0, "shared_bytes": 0, "loads_in_loops": 0}


def made(units=4, threads=256, shared=(4096, 1024), **facts):
    """A program with these facts of its resident kernel."""
    kernels = {"ck_resident": {**FINE, **facts}, "ck_portable": dict(FINE)}
    return static_checks.Found(units, threads, *shared, block_barriers=3, waits=1, loops=1, kernels=kernels)


@pytest.mark.parametrize(
    ("program", "word"),
    [
        (made(spill_bytes=72), "ck_resident spills 72 bytes"),
        (made(loads_in_loops=2), "loads 2 times from local memory"),
        (made(generic=static_checks.FEW_GENERIC + 1), "whose memory the compiler does not know"),
        (made(generic=static_checks.FEW_GENERIC), ""),
        (made(units=H200.units + 1), "never run at the same time"),
        (made(shared=(H200.shared_bytes + 1, 0)), "shared memory"),
        (made(shared=(0, H200.shared_bytes), shared_bytes=0), ""),
        (made(shared=(H200.shared_bytes, 0), shared_bytes=16), "shared memory"),
        (made(threads=1024, registers=65), "65 registers in each of 1024 threads"),
        (made(threads=1024, registers=64), ""),
        (dataclasses.replace(made(), kernels={"ck_portable": FINE}), "the kernels are ck_portable"),
        (made(), ""),
    ],
)
def test_limits(program, word):
    said = static_checks.problems(program, H200)
    assert len(said) == (1 if word else 0) and word in "".join(said)


def test_limits_are_those_of_the_card():
    program = made(shared=(200 << 10, 0))
    assert static_checks.problems(program, H200) == [] and len(static_checks.problems(program, A100)) == 1


def test_records(tmp_path, monkeypatch):
    monkeypatch.setattr(static_checks, "RECORDED", tmp_path / "new")
    one, other = static_checks.plain([made()]), static_checks.plain([made(registers=70), made()])
    assert static_checks.recorded("row", "sm_90", "13.0") is None
    static_checks.record("sm_90", "13.0", {"row": one, "another": other})
    static_checks.record("sm_90", "13.1", {"row": other})
    static_checks.record("sm_90", "13.0", {"third": one})
    assert (
        static_checks.recorded("row", "sm_90", "13.0") == one
        and static_checks.recorded("row", "sm_90", "13.1") == other
    )
    assert (
        static_checks.recorded("another", "sm_90", "13.0") == other
        and static_checks.recorded("row", "sm_80", "13.0") is None
    )
    assert set(json.loads((tmp_path / "new" / "sm_90.json").read_text())) == {"13.0", "13.1"}


def test_differences():
    one, other = static_checks.plain([made()]), static_checks.plain([made(registers=70)])
    assert static_checks.differences(one, one) == []
    assert static_checks.differences(one, other) == ["program 0, ck_resident, registers: 64, recorded 70"]
    assert static_checks.differences(one, one * 2) == ["1 programs, recorded 2"]
    without = static_checks.plain([made(loads_in_loops=None)])  # nothing here reads machine code
    assert "loads_in_loops" not in without[0]["kernels"]["ck_resident"]
    assert static_checks.differences(without, one) == static_checks.differences(one, without) == []


@pytest.mark.parametrize("arch", static_checks.CARDS)
def test_what_is_recorded_keeps_the_limits(arch):
    """Nobody records a spill."""
    path = static_checks.RECORDED / f"{arch}.json"
    assert path.is_file(), "python -m tests.cpu.static_checks --update"
    for rows in json.loads(path.read_text()).values():
        assert rows.keys() <= ROWS.keys()
        for programs in rows.values():
            numbers = [static_checks.Found(**program) for program in programs]
            assert [
                problem
                for each in numbers
                for problem in static_checks.problems(each, static_checks.CARDS[arch])
            ] == []
