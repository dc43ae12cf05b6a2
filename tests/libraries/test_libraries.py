"""Programs of other libraries: equal to stock XLA, with as many loops captured as the table says."""

from __future__ import annotations

import warnings
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.libraries import inference, learning, solvers  # noqa: F401 (they fill the table)
from tests.libraries.check import LOOP, CannotRun, count, difference, ours, ready, stock
from tests.libraries.table import PROGRAMS, Program


def parameter(program: Program):
    missing = find_spec(program.library) is None
    marks = [
        pytest.mark.skipif(missing, reason=f"{program.library} is not installed"),
        pytest.mark.xdist_group(program.library),  # one process imports it
        *[pytest.mark.not_in_ci] * (not program.in_ci),
    ]
    return pytest.param(program, id=program.name, marks=marks)


@pytest.mark.parametrize("program", [parameter(program) for program in PROGRAMS])
def test_program(program, record_property):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the library
        try:
            made = ready(program)
            reference = stock(made)(*made.arguments)
        except CannotRun as error:
            pytest.skip(str(error))
        found = count(made)
        worst = difference(ours(made)(*made.arguments), reference)
    record_property("told", f"{found}, difference {worst:.1e}")
    assert found.captured[LOOP] >= program.loops, found.left
    assert worst <= program.tolerance


def made_of(function, *arguments):
    made = ready(Program("", "jax", lambda: (function, *arguments), loops=1, tolerance=0.0, in_ci=True))
    return count(made)


def test_counts_loops_and_branches_apart():
    def body(c, x):
        return jax.pure_callback(np.sin, x, x), x

    x = jnp.ones(3)
    assert str(made_of(lambda x: lax.scan(lambda c, x: (c + x, c), 0.0, x), x)) == "captured 1 of 1 loops"
    found = made_of(lambda x: lax.scan(body, x[0], x), x)
    assert str(found) == "captured 0 of 1 loops"
    assert "pure_callback" in found.left[0][1]
    assert "branches" in str(made_of(lambda x: lax.cond(x[0] > 0, jnp.sin, jnp.cos, x), x))


def test_a_program_that_jax_cannot_trace_is_skipped():
    with pytest.raises(CannotRun, match="TracerBoolConversionError"):
        made_of(lambda x: x if x else -x, jnp.float32(1))


@pytest.mark.parametrize(
    "ours, stock, expected",
    [
        ([1.0, 8.0], [1.5, 8.0], 0.0625),  # relative to the largest element
        ([np.nan, 1.0], [np.nan, 1.0], 0.0),
        ([np.nan, 1.0], [2.0, 1.0], np.inf),
        ([np.inf, 1.0], [np.inf, 1.0], 0.0),
        ([np.inf, 1.0], [2.0, 1.0], np.inf),
    ],
)
def test_difference(ours, stock, expected):
    assert difference((np.array(ours), 1.0 + np.zeros(2)), (np.array(stock), np.ones(2))) == expected
