"""Every row of the benchmarks is planned for every target by every candidate, within a second each."""

from __future__ import annotations

import time
from functools import cache

import jax
import pytest

from benchmarks.gpu.rows import ROWS
from jax_cocktail.compiler import emit
from jax_cocktail.device.spec import A100, B200, H200
from jax_cocktail.lowering.variants import prepare, target_of
from jax_cocktail.schedule.policy import candidates

HOST_UNITS = 2
TARGETS = {"cpu": None, "sm_80": A100, "sm_90": H200, "sm_100": B200}


@cache
def prepared(row, target):
    function, arguments = ROWS[row].make(False)
    spec = TARGETS[target]
    return prepare(jax.make_jaxpr(function)(*arguments), row, "cpu" if spec is None else "cuda", spec)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("row", ROWS)
def test_every_candidate_is_planned(row, target):
    ready = prepared(row, target)
    units = HOST_UNITS if ready.spec is None else ready.spec.units
    for candidate in candidates(ready.programs, units, ready.spec):
        for program in ready.programs:
            start = time.process_time()
            emitted = emit(program, target_of(ready.platform), candidate=candidate, spec=ready.spec)
            print(
                f"{time.process_time() - start:7.3f} {row} {target} {candidate.text!r} {len(emitted.source)}"
            )
