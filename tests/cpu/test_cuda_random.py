"""Random nested control flow on the targets for GPUs, emulated; `python -m tests.fuzz` runs it for longer."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cpu.emulated import WAVES, check_program
from tests.strategies import programs

RUN = settings(
    max_examples=12, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize(("kernel", "outline_limit"), [("ck_resident", 0), ("ck_portable", 32)])
@RUN
@given(program=programs(), seed=st.integers(0, 5), units=st.integers(1, 3))
def test_random_programs(kernel, outline_limit, program, seed, units):
    how = {"kernel": kernel, "outline_limit": outline_limit, "cluster": seed % 2 == 1}
    check_program(program, seed, units, **how)


@pytest.mark.parametrize("spec", WAVES.values(), ids=lambda spec: spec.arch)
@settings(RUN, max_examples=6)
@given(program=programs(), seed=st.integers(6, 11), units=st.integers(1, 3))
def test_random_programs_of_waves(spec, program, seed, units):
    check_program(program, seed, units, spec=spec, threads=128, outline_limit=0 if seed % 2 else 32)


@pytest.mark.parametrize(("spec", "sanitizer"), [(WAVES[64], "thread"), (WAVES[32], "address")], ids=str)
@settings(RUN, max_examples=4)
@given(program=programs(), seed=st.integers(6, 11), units=st.integers(2, 3))
def test_random_programs_of_waves_have_no_races(spec, sanitizer, program, seed, units):
    check_program(program, seed, units, spec=spec, sanitizer=sanitizer)


@RUN
@given(program=programs(), seed=st.integers(0, 5), units=st.integers(1, 3))
def test_random_programs_have_no_races(program, seed, units):
    check_program(program, seed, units, sanitizer="thread", cluster=seed % 2 == 1)
