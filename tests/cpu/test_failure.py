"""Programs that can fail: on the host by several units, and for a GPU, emulated."""

from __future__ import annotations

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail import recursive
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.compiler import emit
from jax_cocktail.lowering.choice.variants import prepare
from jax_cocktail.placement.place import place
from jax_cocktail.recursion.failure import failure_p
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail.utask.failure import KIND
from jax_cocktail.utask.ir import is_parallel, operators_in, walk
from tests.cpu.emulated import SPEC, Emulation
from tests.cpu.runner import EAGER

ERRORS = (jax.errors.JaxRuntimeError, ValueError)
OURS = {"force": "cocktail", "strict": True}
TEXT = "too deep\ntoo many"


@recursive(max_depth=8, out_like=lambda n, x: x)
def decay(self, n, x):
    return lax.cond(n < 1, lambda: x, lambda: self(n - 1, x) * 0.5 + 1)


def lanes(n, x):
    return jax.vmap(decay)(n, x)


def rows(n, x):
    """Every unit has a part of each row, and checks the row's status itself."""

    def row(carry, given):
        status, values = given
        waves = lax.fori_loop(0, 3, lambda _, c: jnp.sin(c) * values, values)
        return carry, waves + failure_p.bind(status, text=TEXT)

    return lax.scan(row, 0, (n, x))[1]


X = jnp.linspace(0, 1, 6 * 32).reshape(6, 32)
NUMBERS = jnp.array([0, 7, 3, 5, 1, 2])
CASES = {
    "lanes": (lanes, NUMBERS, NUMBERS.at[4].set(8)),
    "rows": (rows, NUMBERS * 0, (NUMBERS * 0).at[4].set(1)),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def _wanted(function, numbers):
    return np.asarray(jax.jit(function)(numbers, X))


@pytest.mark.parametrize("units", [1, 3])
def test_on_the_host(case, units, monkeypatch):
    monkeypatch.setattr("jax_cocktail.passes.place", partial(place, limits=EAGER))
    function, good, bad = case
    ours = jax_cocktail.jit(function, options={**OURS, "units": units})
    for _ in range(3):
        np.testing.assert_allclose(ours(good, X), _wanted(function, good), rtol=1e-6)
        with pytest.raises(ERRORS, match="decay called itself more than 8 deep|jax_cocktail: too deep"):
            jax.block_until_ready(ours(bad, X))


def can_fail(region):
    return any(operator.kind == KIND for operator in operators_in(region))


def test_parts_check_for_themselves(monkeypatch):
    """What the tests here are about is there: a check inside of a parallel loop, one outside of any."""
    monkeypatch.setattr("jax_cocktail.passes.place", partial(place, limits=EAGER))
    for name, (function, good, _) in CASES.items():
        (program,) = prepare(jax.make_jaxpr(function)(good, X), name).programs
        entry = emit(program, candidate=Candidate(3)).program.entry
        parts = [s for s in walk(entry) if is_parallel(s)]
        assert parts and can_fail(entry)
        assert any(can_fail(s.body) for s in parts) == (name == "rows")
        monkeypatch.setattr("jax_cocktail.passes.limits_for", lambda *_: EAGER)
        text = emit(program, machine_of(SPEC, 64), candidate=Candidate(3)).source
        (line,) = (line for line in text.splitlines() if "ck_fail" in line)
        assert ("unit->index == 0" in line) == (name == "lanes")


@pytest.mark.parametrize("outline_limit", [32, 0])
@pytest.mark.parametrize("units, cluster", [(1, False), (3, False), (3, True)])
def test_on_an_emulated_card(case, units, cluster, outline_limit, monkeypatch):
    function, good, bad = case
    monkeypatch.setattr("jax_cocktail.passes.limits_for", lambda *_: EAGER)
    emulation = Emulation(launches=[], outline_limit=outline_limit, cluster=cluster).install(monkeypatch)
    ours = jax_cocktail.jit(function, options={**OURS, "units": units})
    for seed in range(2):
        emulation.seed = seed
        np.testing.assert_allclose(ours(good, X), _wanted(function, good), rtol=1e-5)
        with pytest.raises(Exception, match="error word: 1"):
            jax.block_until_ready(ours(bad, X))
    assert emulation.launches
    text = emulation.launches[0][0].source
    if outline_limit == 0 and units > 1:
        assert re.search(r"\bpart\d+<RESIDENT>\(workspace, unit->error", text)


def test_codes_of_a_program_with_several_texts_on_a_card(monkeypatch):
    def function(n, m):
        def trip(_, c):
            return c + failure_p.bind(n, text=TEXT) + failure_p.bind(m, text="third")

        return lax.fori_loop(0, 3, trip, 5)

    emulation = Emulation(launches=[]).install(monkeypatch)
    ours = jax_cocktail.jit(function, options=OURS)
    assert int(ours(0, 0)) == 5
    for n, m, code in ((1, 0, 1), (2, 0, 2), (0, 1, 3), (2, 1, 2)):
        with pytest.raises(Exception, match=f"error word: {code}"):
            jax.block_until_ready(ours(n, m))
    assert len(emulation.launches) == 1  # those that went through
