"""The probes of latencies: what they compute in the emulation, and what compilers make of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gpu import latency
from jax_cocktail.build.device import build_device_program
from jax_cocktail.runtime.cuda import card as gpu_card
from tests.api.fake_card import FakeCard
from tests.cpu import sass
from tests.cpu.cuda_compilers import nvcc
from tests.cpu.emulation import emulator

THREADS = 64  # of the emulated block, whatever the probe wants
PROBES = {
    name: replace(
        probe,
        threads=THREADS,
        rounds=2,
        size=min(probe.size, 4096),
        memory=max(min(2 * probe.memory, 1 << 20), 16),
    )
    for name, probe in latency.probes(1 << 20, clusters=True).items()
}


@pytest.fixture(scope="module")
def built():
    return emulator.build(latency.text(THREADS))


@pytest.mark.parametrize("name", PROBES)
def test_chains(built, name):
    """Every chain ends where it should, in both lengths, and another end is noticed."""
    probe = PROBES[name]
    for long in (False, True):
        result, memory = np.zeros(probe.words, np.uint32), np.zeros(probe.memory, np.uint8)
        built.launch([probe.numbers(long), latency.VALUES], [result, memory], units=1)
        assert probe.problem(result, long) == ""
        result[2] += 1 << 20
        assert "elsewhere" in probe.problem(result, long)


def test_measured(tmp_path, monkeypatch, built):
    """Through the driver, from a binary. The emulation's clock counts nanoseconds."""
    monkeypatch.setenv("JAX_COCKTAIL_CUDA_DRIVER", str(FakeCard(tmp_path).path))
    with gpu_card.Card() as card:
        assert {"bulk copy of 8 KiB", "division"} <= set(latency.probes_of(card))
        found = latency.measure(card, built.path.read_bytes(), PROBES["block barrier, 64 threads"])
        assert found["clocks"] > 0
        monkeypatch.setattr(latency, "VALUES", np.zeros(4, np.float32))
        with pytest.raises(gpu_card.CudaError, match="ended elsewhere"):
            latency.measure(card, built.path.read_bytes(), PROBES["multiply-add"])


LINKS = latency.SHORT + latency.LONG  # the text holds the chains of both lengths
CHAINS = {
    "LDG.E.64.STRONG.SM": LINKS,
    "LD.E.64.STRONG.GPU": 2 * LINKS,  # one of them followed by what an acquire does:
    "CCTL.IVALL": LINKS,
    "LDS.64": LINKS,
    "LDS.128": LINKS,
    "FCHK": LINKS,  # of a division
    "MUFU.RCP": 4 * LINKS,  # of a division, tanh, a logistic and a reciprocal
    "CALL": 2 * LINKS,  # of a division, and the call itself
    "I2F.U32.RP": LINKS,
    "BAR.SYNC": 2 * LINKS,
    "SHFL.BFLY": LINKS,
    "HMMA.1688.F32.TF32": 2 * LINKS,
    "MEMBAR.ALL.GPU": LINKS,
    "LDGSTS": LINKS,
}
NEWER = {"UBLKCP": LINKS, "SYNCS.PHASECHK": LINKS}


@pytest.mark.skipif(not sass.tools(), reason=sass.NO_TOOLS)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_compilers_keep_the_chains(arch):
    """Every link of a chain is an instruction of its own, and nothing spills."""
    program = build_device_program(latency.text(), nvcc(), arch)
    found = sass.opcodes(program.binary, "ck_portable")
    assert not program.spills
    for opcode, least in {**CHAINS, **({} if arch == "sm_80" else NEWER)}.items():
        assert sum(n for name, n in found.items() if name.startswith(opcode)) >= least, opcode
