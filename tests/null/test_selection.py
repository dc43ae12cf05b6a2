"""What a usual run takes of many cases, and the seconds that its files may take."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import combinations, product
from pathlib import Path

import pytest

from tests import seconds
from tests.selection import at_even_distances, covering

ROOT = Path(__file__).parents[2]


def cases(*axes):
    return [frozenset((f"p{n}", str(value)) for n, value in enumerate(case)) for case in product(*axes)]


@pytest.mark.parametrize(
    ("count", "found"), [(1, [0]), (3, [0, 3, 6]), (10, [*range(10)]), (99, [*range(10)])]
)
def test_even_distances(count, found):
    assert at_even_distances(range(10), count) == found


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_every_combination_is_covered(strength):
    every = cases("abcd", range(5), "xyz")
    chosen = [every[number] for number in covering(every, strength)]
    assert {c for case in every for c in combinations(sorted(case), strength)} == {
        c for case in chosen for c in combinations(sorted(case), strength)
    }
    assert len(chosen) <= {1: 5, 2: 24, 3: 60}[strength]


def test_less_than_the_strength_takes_every_case():
    assert covering(cases(range(4)), 2) == [0, 1, 2, 3]


def outcomes(folder, text, name="", **environment):
    """The counts of pytest's last line, for a file of tests beside the options of this repository."""
    file = folder / "test_some.py"
    file.write_text(text)
    (folder / "conftest.py").write_text(CONFTEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{file.name}{name}"]
    here = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": "", **environment}
    if not environment:
        here.pop("JAX_COCKTAIL_TEST_ALL", None)
    run = subprocess.run(command, cwd=folder, env=here, capture_output=True, text=True)
    return {word: int(number) for number, word in re.findall(r"(\d+) (passed|deselected)", run.stdout)}


CONFTEST = """
from tests.selection import MARKERS, deselect

def pytest_configure(config):
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)

def pytest_collection_modifyitems(config, items):
    deselect(config, items)
"""
TESTS = """
import pytest

@pytest.mark.long
def test_long(): pass

@pytest.mark.sampled(2)
@pytest.mark.parametrize("n", range(6))
def test_sampled(n): pass

@pytest.mark.covering(1)
@pytest.mark.parametrize("m", range(3))
@pytest.mark.parametrize("n", range(3))
def test_covering(m, n): pass
"""


@pytest.mark.parametrize(
    ("name", "environment", "expected"),
    [
        ("", {}, {"passed": 5, "deselected": 11}),
        ("::test_long", {}, {"passed": 1}),
        ("::test_sampled[4]", {}, {"passed": 1}),
        ("", {"JAX_COCKTAIL_TEST_ALL": "1"}, {"passed": 16}),
    ],
)
def test_marks_leave_out_and_names_ask(tmp_path, name, environment, expected):
    assert outcomes(tmp_path, TESTS, name, **environment) == expected


# ---- seconds -----------------------------------------------------------------------------------------------

BUDGET = {f"file {n}": 20.0 for n in range(12)}


def test_a_file_at_twice_its_budget_is_named():
    assert seconds.exceeding(BUDGET, BUDGET) == []
    (line,) = seconds.exceeding({**BUDGET, "file 3": 41.0}, BUDGET)
    assert line == "file 3 took 41 s and may take 20 s here"
    (line,) = seconds.exceeding({**BUDGET, "new": 26.0}, BUDGET)
    assert line == "new took 26 s and may take 5 s here"


def test_a_slow_machine_is_no_fault_of_a_file():
    slow = {name: 2.5 * budget for name, budget in BUDGET.items()}
    assert seconds.slowness(slow, BUDGET) == 2.5
    assert seconds.exceeding(slow, BUDGET) == []
    assert seconds.exceeding({**slow, "new": 60.0}, BUDGET) == []
    assert len(seconds.exceeding({**slow, "new": 65.0, "file 3": 101.0}, BUDGET)) == 2


def test_few_files_and_few_seconds_tell_nothing():
    assert seconds.exceeding({"file 1": 999.0}, BUDGET) == []
    assert seconds.exceeding({**BUDGET, "new": 24.0}, BUDGET) == []


def test_the_budget_names_files_that_exist():
    budgets = seconds.budgets()
    assert len(budgets) >= 2 * seconds.LEAST_FILES
    if not (ROOT / ".git").exists():
        pytest.skip("Bazel has the files of each test alone")
    assert [name for name in budgets if not (ROOT / name).is_file()] == []
