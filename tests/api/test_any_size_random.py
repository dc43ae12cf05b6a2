"""Random programs that are planned for a size that stands for others, and run with their own."""

from __future__ import annotations

import pytest

from tests.generator import general
from tests.generator.tasks import task

SEEDS = range(24)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_programs(seed):
    found = general.check(task(seed))
    if found == general.NOT_GENERAL:
        pytest.skip("no axis of this program can have any size")
    assert found == ""


@pytest.mark.parametrize("seed", [pytest.param(n, marks=[pytest.mark.long] * (n > 6)) for n in range(40)])
def test_random_programs_on_a_gpu(seed):
    found = general.check_on_gpu(task(seed))
    if found == general.NOT_GENERAL:
        pytest.skip("no axis of this program can have any size")
    assert found == ""
