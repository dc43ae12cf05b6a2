"""Rows at small sizes, and the microbenchmarks, run by the emulation of the tests: no card is needed."""

from __future__ import annotations

from typing import Any

import jax

import jax_cocktail
from benchmarks.gpu.rows import Row
from jax_cocktail import passes
from jax_cocktail.runtime.cuda import micro_kernels as gpu_kernels
from tests.cpu.emulated import Emulation
from tests.cpu.emulation import emulator
from tests.cpu.micro_runs import small_runs
from tests.cpu.runner import EAGER

UNITS = 3


class _Patch:
    """What the emulation needs of a test's monkeypatch: here the process ends with it."""

    setattr = staticmethod(setattr)


def row(row: Row) -> dict[str, Any]:
    """The emulated program against stock XLA on the host, with exact products."""
    function, arguments = row.make(True)
    expected = jax.jit(function)(*arguments)
    passes.limits_for = lambda *_: EAGER  # small work is divided all the same
    emulation = Emulation(launches=[]).install(_Patch())
    options = {"force": "cocktail", "strict": True, "units": UNITS}
    found = {}
    for emulation.kernel in ("ck_resident", "ck_portable"):
        with jax.default_matmul_precision("highest"):
            result = jax_cocktail.jit(function, options=options)(*arguments)
        found[emulation.kernel] = row.difference(result, expected)
    launches = emulation.launches or []
    return {
        "differences": found,
        "ok": bool(launches) and max(found.values()) <= row.tolerance,
        "launches": len(launches) // len(found),
        "blocks": max((emitted.plan.most_units for emitted, _, _ in launches), default=0),
    }


def micro() -> dict[str, Any]:
    """Every kernel of `micro.cu`."""
    problems, runs = [], small_runs()
    program = emulator.build(gpu_kernels.text())
    for run in runs:
        result = run.result()
        program.launch([run.numbers, run.data], [result], units=run.units, cluster=run.cluster)
        problems += [problem] if (problem := run.problem(result)) else []
    return {"ok": not problems, "problems": problems, "kernels": len(runs)}
