"""A pack of small rows for the fake driver: what is compiled for a card is compiled for the emulation."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_check
from benchmarks.gpu import bundle, clock, latency, litmus, pack, packed
from benchmarks.gpu.results import Results
from benchmarks.gpu.run_pack import PackRun
from benchmarks.gpu.serving import TimeLimits
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
    """Compiles what measures a card for the emulation, with as many threads as on a card."""
    for module, text in (
        (gpu_micro, gpu_kernels.text()),
        (litmus, litmus.text()),
        (latency, latency.text()),
        (clock, clock.text()),
    ):
        patch.setattr(module, "program", lambda arch, text=text: emulator.build(text).path.read_bytes())


@contextmanager
def emulating() -> Any:
    """Emulates what `pack.make` asks for; there is no bundle, whose programs only jax could call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jax_cocktail.passes.limits_for", lambda *_: EAGER)
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


# ---- runs of it --------------------------------------------------------------------------------------------

CHECK = Path(gpu_check.__file__)
ROW, NEXT = "conjugate_gradient", "hidden_markov"  # in the order of a run
QUICK = TimeLimits(start=60, item=8, hung=2, inputs=60)


def begun(there, code="", resume=None):
    found = Results(there.folder.parent / "out", code or packed.source_digest(), small=True)
    found.reserve()
    if resume:
        found.resume(resume, lambda record: record.get("digest") in there.digests())
    return found


def ran(there, only=(ROW, NEXT), seconds=60.0, limits=QUICK, **how):
    """Runs the pack. Returns whether that was complete, and the file."""
    found = begun(there, **how)
    finished = PackRun(there, found, seconds, only, limits).run()
    return finished, json.loads(found.path.read_text())


def kernels(data):
    return data["sections"]["kernels"]


PRINTED = re.compile(rb"^ *[\d.]+ s  (.*):", re.MULTILINE)


def command(there, *more):
    out = there.folder.parent / "out"
    words = [sys.executable, str(CHECK), "--run", str(there.folder), "--out", str(out), "--only", ROW, NEXT]
    return [*map(str, (*words, "--budget", "60", *more))]
