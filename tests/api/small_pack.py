"""A pack of small rows for the fake driver: what is compiled for a card is compiled for the emulation."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import bundle, clock, latency, litmus, pack
from jax_cocktail import compiler
from jax_cocktail.codegen.cuda import cuda
from jax_cocktail.codegen.gpu import launch_plan
from jax_cocktail.compiler import Artifact
from jax_cocktail.device.machine import Machine
from jax_cocktail.runtime.cuda import micro as gpu_micro
from jax_cocktail.runtime.cuda import micro_kernels as gpu_kernels
from tests.cpu.emulated import SPEC, THREADS
from tests.cpu.emulation import emulator
from tests.cpu.runner import EAGER

UNITS = replace(SPEC, units=4, cluster_units=1)
CARD = f"sms={UNITS.units}"  # FAKE_FACTS of a card with as many


def emulated(emitted: Any) -> Artifact:
    """Stands for the CUDA compiler."""
    binary = emulator.build(emitted.source).path.read_bytes()
    launch = launch_plan(emitted.program, emitted.plan, emitted.machine, emitted.sizes)
    return Artifact(binary, hashlib.sha256(binary).hexdigest(), emitted, 0.0, False, "", launch)


def measures(patch: pytest.MonkeyPatch) -> None:
    """What measures a card, for the emulation, with as many threads as on a card."""
    for module, text in (
        (gpu_micro, gpu_kernels.text()),
        (litmus, litmus.text()),
        (latency, latency.text()),
        (clock, clock.text()),
    ):
        patch.setattr(module, "program", lambda arch, text=text: emulator.build(text).path.read_bytes())


@contextmanager
def emulating() -> Any:
    """What `pack.make` asks for is emulated; there is no bundle, whose programs only jax could call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "limits_for", lambda *_: EAGER)
        patch.setattr(pack, "machine_of", lambda spec: Machine(cuda(THREADS), spec))
        patch.setattr(pack, "build", emulated)
        patch.setattr(bundle, "make", lambda *_: "")
        measures(patch)
        yield patch


def made(folder: Path, rows: Sequence[str]) -> Path:
    """A new pack of these rows."""
    with emulating():
        assert pack.make(folder, UNITS, rows, small=True) == 0
    return folder


def copied(folder: Path, target: Path) -> Path:
    """The pack where the card is."""
    target.mkdir()
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target
