"""Every row of the benchmarks is planned for host and GPU by every candidate, in little time each."""

from __future__ import annotations

import time
from functools import cache

import jax
import pytest

from benchmarks.gpu.rows import ROWS
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.compiler import emit
from jax_cocktail.device.nvidia import A100, H200
from jax_cocktail.lowering.choice.variants import prepare
from jax_cocktail.schedule.policy import candidates
from jax_cocktail.stitch.edges import GLOBAL, edges

pytestmark = pytest.mark.one_jax  # long, and about passes, of which jax knows nothing

HOST_UNITS = 2
# Of the GPUs, one without clusters and one with them; test_static_checks.py plans for a B200.
TARGETS = {"cpu": None, "sm_80": A100, "sm_90": H200}
MOST_SECONDS = 4.0  # of CPU time: twice what an idle core takes for SkipNet, as machines do much else


@cache
def prepared(row, target):
    function, arguments = ROWS[row].make(False)
    return prepare(jax.make_jaxpr(function)(*arguments), row, machine_of(TARGETS[target]))


@pytest.mark.parametrize("target", ["cpu", pytest.param("sm_80", marks=pytest.mark.long), "sm_90"])
@pytest.mark.parametrize("row", ROWS)
def test_every_candidate_is_planned(row, target):
    ready = prepared(row, target)
    machine = ready.machine
    units = HOST_UNITS if machine.spec is None else machine.spec.units
    for candidate in candidates(ready.programs, units, machine):
        for program in ready.programs:
            start = time.process_time()
            emitted = emit(program, machine, candidate=candidate)
            seconds = time.process_time() - start
            print(f"{seconds:7.3f} {row} {target} {candidate.text!r} {len(emitted.source)}")
            assert seconds < MOST_SECONDS
            alone = emitted.plan.most_units == 1
            for edge in edges(emitted.program, emitted.plan):
                assert edge.bytes > 0 and edge.saved_bytes >= 0
                assert not (alone and edge.scheme == GLOBAL)
