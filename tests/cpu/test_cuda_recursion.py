"""Recursion on the targets for GPUs: the stack machine, siblings and lanes in parallel, calls level by level,
emulated."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail import recursive
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.compiler import Emitted
from jax_cocktail.device.nvidia import H200
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.lowering.choice.survey import survey
from jax_cocktail.lowering.choice.variants import prepare
from jax_cocktail.recursion import levels as recursion_levels
from tests.case import QUICK
from tests.cpu.emulated import SPEC, WAVES, Emulation

SIZE = 48  # the weights of a pair are worth reading once for several calls
LEFT = jnp.asarray([0, 0, 0, 0, 0, 0, 2, 5], jnp.int32)  # of nodes 5, 6 and 7; the others are leaves
RIGHT = jnp.asarray([0, 0, 0, 0, 0, 1, 3, 6], jnp.int32)
ROOT = jnp.int32(7)


@recursive(max_depth=32)
def fib(self, n):
    return lax.cond(n < 2, lambda: n, lambda: self(n - 1) + self(n - 2))


@recursive(out_like=lambda a, b: a, max_depth=64)
def halves(self, a, b):
    """Intervals are halved until they are short: which ones depends on floats."""

    def divided():
        middle = (a + b) / 2
        return self(a, middle) + self(middle, b)

    return lax.cond((b - a) * jnp.cos(a) ** 2 < 0.2, lambda: jnp.sin(a) * (b - a), divided)


def encode(inputs: Any, weights: Any, root: Any) -> Any:
    @recursive(out_like=lambda node: inputs[0], max_depth=16, max_calls=16)
    def encoded(self, node):
        def inner():
            return jnp.tanh(jnp.concatenate([self(LEFT[node]), self(RIGHT[node])]) @ weights)

        return lax.cond(node < 5, lambda: inputs[node], inner)

    return encoded(root)


def loss(inputs: Any, weights: Any) -> Any:
    return (encode(inputs, weights, ROOT) ** 2).sum()


def forest_loss(inputs: Any, weights: Any) -> Any:
    roots = jnp.asarray([7, 5, 6], jnp.int32)
    many = jnp.stack([inputs, inputs + 1, inputs - 1])
    return (jax.vmap(encode, (0, None, 0))(many, weights, roots) ** 2).sum()


def operands() -> tuple[Any, Any]:
    random = np.random.default_rng(3)
    inputs = random.normal(size=(8, SIZE)).astype(np.float32)
    weights = random.normal(size=(2 * SIZE, SIZE)).astype(np.float32) / 10
    return jnp.asarray(inputs), jnp.asarray(weights)


@recursive(max_depth=16, out_like=lambda n, x: x)
def wave(self, n, x):
    """One call in a branch of its own, and a vector in the frames."""

    def more():
        return jnp.sin(self(n - 1, x[::-1])) + lax.cond(n % 3 == 0, lambda: self(n // 2, x * n), lambda: x)

    return lax.cond(n < 1, lambda: x, more)


CASES = {
    "wave": (lambda n, x: wave(n, x), (jnp.int32(9), jnp.arange(5, dtype=jnp.float32))),
    "fibonacci": (lambda n: fib(n), (jnp.int32(8),)),
    "intervals": (lambda a: halves(a, a + 2.0), (jnp.float32(0.3),)),
    "many intervals": (jax.vmap(lambda a: halves(a, a + 1.0)), (jnp.linspace(0.0, 2.0, 5),)),
    "interval gradient": (jax.grad(lambda a: halves(a, 2.0)), (jnp.float32(0.3),)),
    "tree": (lambda x, w: encode(x, w, ROOT), operands()),
    "tree gradient": (jax.grad(loss, (0, 1)), operands()),
    "forest gradient": (jax.grad(forest_loss, (0, 1)), operands()),
}


@pytest.fixture(autouse=True)
def _few_widths(monkeypatch):
    """Every width is text of its own, and the host compiler is slow with it."""
    monkeypatch.setattr(recursion_levels, "WIDTHS", (1, 2))
    monkeypatch.setattr(recursion_levels, "FOREST_WIDTHS", (1, 4))


CASES_OF_WAVES = ("wave", "many intervals", "tree", "forest gradient")


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    "name, units, spec",
    [
        *((name, 3, SPEC) for name in CASES),
        *((name, 1, SPEC) for name in ("fibonacci", "tree")),
        *((name, 3, WAVES[wave]) for wave in WAVES for name in CASES_OF_WAVES),
    ],
    ids=lambda value: value.arch if isinstance(value, DeviceSpec) else str(value),
)
def test_emulated(name, units, spec, monkeypatch):
    function, arguments = CASES[name]
    with jax.default_matmul_precision("highest"):
        stock = jax.jit(function, compiler_options=QUICK)(*arguments)
        emulation = Emulation(launches=[], spec=spec).install(monkeypatch)
        options = {"force": "cocktail", "units": units}
        ours = jax_cocktail.jit(lambda *x: function(*x), options=options)(*arguments)
    assert emulation.launches
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(stock), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", ["tree", "intervals", "many intervals"])
@pytest.mark.parametrize("kernel", ["ck_resident", "ck_portable"])
def test_no_races(kernel, name, monkeypatch):
    function, arguments = CASES[name]
    with jax.default_matmul_precision("highest"):
        stock = jax.jit(function, compiler_options=QUICK)(*arguments)
        Emulation(sanitizer="thread", kernel=kernel, seed=1).install(monkeypatch)
        options = {"force": "cocktail", "units": 2}
        ours = jax_cocktail.jit(lambda *x: function(*x), options=options)(*arguments)
    np.testing.assert_allclose(ours, stock, rtol=2e-4, atol=2e-4)


def planned_for_h200(depth: int, lanes: int, units: int) -> Emitted:
    """Frames of a number and 64 floats."""

    @recursive(max_depth=depth, out_like=lambda n, x: x)
    def wave(self, n, x):
        return lax.cond(n < 1, lambda: x, lambda: jnp.sin(self(n - 1, x * 2)) + self(n // 2, x))

    x = jnp.ones((lanes, 64))
    jaxpr = jax.make_jaxpr(jax.vmap(lambda x: wave(jnp.int32(5), x)))(x)
    prepared = prepare(jaxpr, "wave", machine_of(H200))
    survey(prepared, units)
    return next(e for (candidate, _), e in prepared.emitted.items() if candidate.units == units)


@pytest.mark.parametrize("lanes, units", [(1, 1), (8, 1), (8, 4)])
def test_a_stack_is_in_the_memory_of_its_unit_if_it_fits(lanes, units):
    """One stack for all lanes that a unit runs, one after the other."""
    near, far = planned_for_h200(16, lanes, units).plan, planned_for_h200(1 << 14, lanes, units).plan
    frames = 64 * 4 << 14
    assert near.own_bytes > 16 * 64 * 4 / 2 and near.workspace_bytes + near.private_bytes <= 64
    assert far.own_bytes <= H200.shared_bytes
    stacks = far.private_bytes if units > 1 else far.workspace_bytes
    assert frames / 2 <= stacks < 4 * frames
