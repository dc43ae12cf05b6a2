"""Recursion in the reference interpreter, which poisons memory that nobody has written."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax_cocktail import recursive
from jax_cocktail.analysis.verifier import verify
from jax_cocktail.lowering.edge import adapter
from jax_cocktail.primitives import translate
from jax_cocktail.recursion import levels as recursion_levels
from jax_cocktail.recursion import paths as recursion_paths
from jax_cocktail.recursion import siblings as recursion_siblings
from jax_cocktail.schedule.unit_count import asks_units, fix_unit_count
from tests.oracle.interpreter.common import ProgramFailure
from tests.oracle.interpreter.run import run
from tests.recursion_compare import check
from tests.recursion_levels_programs import BELOW, CHILDREN, child_sum, mutual, mutual_arguments
from tests.recursion_python import by_python, total, unrolled, widened

pytestmark = pytest.mark.one_jax  # about programs that are translated already


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(recursion_paths, "WEIGHT_BYTES", 0)
    monkeypatch.setattr(recursion_levels, "WIDTHS", (1, 2))
    monkeypatch.setattr(recursion_levels, "FOREST_WIDTHS", (1, 4))
    monkeypatch.setattr(recursion_siblings, "FRONTIER", 4)
    monkeypatch.setattr(recursion_siblings, "ROOM", 12)
    jax.clear_caches()


def fibonacci(recursive):
    return recursive(max_depth=16)(
        lambda self, n: lax.cond(n < 2, lambda: n, lambda: self(n - 1) + self(n - 2))
    )


def wave(recursive):
    """A vector in the frames, and a call on one side of a branch between others."""

    @recursive(out_like=lambda n, x: x, max_depth=16, max_calls=64)
    def wave(self, n, x):
        def more():
            y = jnp.sin(self(n - 1, x[::-1])) * x
            return y + lax.cond(n % 2 == 0, lambda: self(n - 2, x * 0.5), lambda: x)

        return lax.cond(n < 1, lambda: x, more)

    return wave


X = np.linspace(0.3, 1.1, 3, dtype=np.float32)
MOST = 5
CASES = {  # program, arguments, and by which of them it is differentiated
    "fibonacci": (fibonacci, (np.int32(7),), ()),
    "wave": (wave, (np.int32(5), X), (1,)),
    "functions": (mutual, mutual_arguments(4), (0, 1, 2, 4)),
    "children": (child_sum(BELOW[MOST]), (*CHILDREN[MOST], np.int32(len(BELOW[MOST]) - 1)), (0, 1)),
}


def interpreted(function, arguments, units=1):
    program = translate(adapter.program(jax.make_jaxpr(function)(*arguments)), "recursion")
    program = fix_unit_count(program, units)
    verify(program)
    shapes = jax.tree.structure(jax.eval_shape(function, *arguments))
    return jax.tree.unflatten(shapes, run(program, [np.asarray(x) for x in arguments]))


@pytest.mark.parametrize("units", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_values(name, units):
    make, arguments, _ = CASES[name]
    expected = by_python(lambda: make(unrolled)(*widened(arguments)))
    check(interpreted(make(recursive), arguments, units), expected, 1e-4)


@pytest.mark.parametrize("name", [name for name, (_, _, wanted) in CASES.items() if wanted])
def test_gradients(name):
    make, arguments, wanted = CASES[name]

    def gradient(recursive):
        return jax.value_and_grad(lambda *x: total(make(recursive)(*x)), wanted)

    expected = by_python(lambda: gradient(unrolled)(*widened(arguments)))
    check(interpreted(gradient(recursive), arguments), expected, 1e-4)


def test_lanes():
    """Uneven ones, with the gradient of each."""
    counts, vectors = np.asarray([4, 0, 3], np.int32), np.stack([X, -X, X * 2])

    def gradient(recursive):
        return jax.value_and_grad(lambda n, x: total(wave(recursive)(n, x)), 1)

    def lane(*arguments):
        return by_python(lambda: gradient(unrolled)(*widened(arguments)))

    lanes = [lane(*one) for one in zip(counts, vectors, strict=True)]
    expected = jax.tree.map(lambda *x: np.stack(x), *lanes)
    check(interpreted(jax.vmap(gradient(recursive)), (counts, vectors)), expected, 1e-4)


def test_ways_are_those_of_units():
    """What the tests of two units are about is there."""
    make, arguments, _ = CASES["fibonacci"]
    assert asks_units(translate(adapter.program(jax.make_jaxpr(make(recursive))(*arguments)), "recursion"))


@pytest.mark.parametrize("units", [1, 2])
def test_too_deep(units):
    with pytest.raises(ProgramFailure, match="called itself more than 16 deep; raise max_depth=16"):
        interpreted(fibonacci(recursive), (np.int32(17),), units)
    assert int(interpreted(fibonacci(recursive), (np.int32(16),), units)) == 987
