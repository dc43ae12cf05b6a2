"""A stack of LSTM layers in every usual spelling comes out as one product and one loop per layer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cocktail
from jax_cocktail.analysis.verifier import verify
from jax_cocktail.device.tuning import LoopTuning
from jax_cocktail.lowering.edge.adapter import program as adapt
from jax_cocktail.primitives import translate
from jax_cocktail.schedule.loops.distribution.distribute import distribute
from jax_cocktail.schedule.loops.layers import layers
from jax_cocktail.schedule.simplify.hoist import hoist
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.utask.ir import LoopUTask, UOperator, walk
from tests.distribution import explain_distribution
from tests.oracle.interpreter.run import run

LAYERS, BATCH, HIDDEN, STEPS = 3, 2, 4, 7
ALWAYS = LoopTuning(flops=0, trips=2, chunk=3)


def cell(gates, c):
    i, f, g, o = jnp.split(gates, 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def state():
    return (jnp.zeros((LAYERS, BATCH, HIDDEN)),) * 2


def scan_in_scan(xs, w, r, b):
    def step(state, x):
        def layer(x, given):
            h, c, w, r, b = given
            h, c = cell(x @ w + h @ r + b, c)
            return h, (h, c)

        y, state = lax.scan(layer, x, (*state, w, r, b))
        return state, y

    (h, _), ys = lax.scan(step, state(), xs)
    return h[-1], ys


def python_loop(xs, w, r, b):
    def step(state, x):
        hs, cs = [], []
        for k in range(LAYERS):
            x, c = cell(x @ w[k] + state[0][k] @ r[k] + b[k], state[1][k])
            hs.append(x)
            cs.append(c)
        return (jnp.stack(hs), jnp.stack(cs)), x

    (h, _), ys = lax.scan(step, state(), xs)
    return h[-1], ys


def python_loop_with_updates(xs, w, r, b):
    def step(state, x):
        h, c = state
        for k in range(LAYERS):
            x, new = cell(x @ w[k] + h[k] @ r[k] + b[k], c[k])
            h, c = h.at[k].set(x), c.at[k].set(new)
        return (h, c), x

    (h, _), ys = lax.scan(step, state(), xs)
    return h[-1], ys


def fori_in_scan(xs, w, r, b):
    def step(state, x):
        def layer(k, given):
            x, h, c = given
            x, new = cell(x @ w[k] + h[k] @ r[k] + b[k], c[k])
            return x, h.at[k].set(x), c.at[k].set(new)

        x, *state = lax.fori_loop(0, LAYERS, layer, (x, *state))
        return tuple(state), x

    (h, _), ys = lax.scan(step, state(), xs)
    return h[-1], ys


def layers_outside(xs, w, r, b):
    def layer(xs, given):
        w, r, b = given

        def step(state, x):
            state = cell(x @ w + state[0] @ r + b, state[1])
            return state, state[0]

        zeros = jnp.zeros((BATCH, HIDDEN))
        (h, _), ys = lax.scan(step, (zeros, zeros), xs)
        return ys, h

    ys, h = lax.scan(layer, xs, (w, r, b))
    return h[-1], ys


def one_matrix(xs, w, r, b):
    both = jnp.concatenate([w, r], 1)

    def step(state, x):
        def layer(x, given):
            h, c, w, b = given
            h, c = cell(jnp.concatenate([x, h], -1) @ w + b, c)
            return h, (h, c)

        y, state = lax.scan(layer, x, (*state, both, b))
        return state, y

    (h, _), ys = lax.scan(step, state(), xs)
    return h[-1], ys


def weights():
    random = np.random.default_rng(5)
    shapes = ((STEPS, BATCH, HIDDEN), *((LAYERS, HIDDEN, 4 * HIDDEN),) * 2, (LAYERS, 4 * HIDDEN))
    return tuple(random.normal(size=s).astype(np.float32) for s in shapes)


def transformed(function, arguments, limits=ALWAYS):
    """The distributed program, with stock's results."""
    program = translate(adapt(jax.make_jaxpr(function)(*arguments)), "test")
    separated = layers(simplify(program), limits)
    after = simplify(distribute(hoist(separated), limits))
    verify(after)
    given = [np.asarray(x) for x in arguments]
    expected = jax.tree.leaves(jax.jit(function)(*arguments))
    for ours, stock in zip(run(after, given), expected, strict=True):
        np.testing.assert_allclose(ours, stock, rtol=2e-5, atol=2e-5)
    return after


def loops(region):
    return [s for s in region.body if isinstance(s, LoopUTask)]


def dots(region):
    return [s.output.type.shape for s in region.body if isinstance(s, UOperator) and s.kind == "dot"]


SPELLINGS = [scan_in_scan, python_loop, python_loop_with_updates, fori_in_scan, one_matrix]


@pytest.mark.parametrize("function", SPELLINGS, ids=lambda f: f.__name__)
def test_every_layer_is_a_product_and_a_loop(function):
    after = transformed(function, weights())
    assert dots(after.entry) == [(STEPS, BATCH, 4 * HIDDEN)] * LAYERS
    recurrences = loops(after.entry)
    assert [loop.trip_count for loop in recurrences] == [STEPS] * LAYERS
    assert all(dots(loop.body) == [(BATCH, 4 * HIDDEN)] and not loops(loop.body) for loop in recurrences)


def test_layers_outside_stay_outside():
    after = transformed(layers_outside, weights())
    (over_layers,) = loops(after.entry)
    assert over_layers.trip_count == LAYERS
    assert dots(over_layers.body) == [(STEPS, BATCH, 4 * HIDDEN)]
    (recurrence,) = loops(over_layers.body)
    assert dots(recurrence.body) == [(BATCH, 4 * HIDDEN)]


def test_weights_are_sliced_outside_the_loops():
    after = transformed(scan_in_scan, weights())
    inside = [s for loop in loops(after.entry) for s in walk(loop.body) if isinstance(s, UOperator)]
    used = after.entry.parameters[1:3]
    assert not any(v in used for s in inside for v in s.inputs)


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 6, 7])
def test_unknown_number_of_steps(steps):
    def function(xs, w, r, b, steps):
        def step(t, state):
            return cell(xs[t] @ w[0] + state[0] @ r[0] + b[0], state[1])

        zeros = jnp.zeros((BATCH, HIDDEN))
        return lax.fori_loop(0, steps, step, (zeros, zeros))

    after = transformed(function, (*weights(), np.int32(steps)))
    chunks, rest = loops(after.entry)
    assert dots(chunks.body) == [(3, BATCH, 4 * HIDDEN)]
    assert len(dots(rest.body)) == 2


def test_backwards_and_both_ways():
    def function(xs, w, r, b):
        def run(k, reverse):
            def step(state, x):
                state = cell(x @ w[k] + state[0] @ r[k] + b[k], state[1])
                return state, state[0]

            zeros = jnp.zeros((BATCH, HIDDEN))
            return lax.scan(step, (zeros, zeros), xs, reverse=reverse)[1]

        return jnp.concatenate([run(0, False), run(1, True)], -1)

    after = transformed(function, weights())
    assert dots(after.entry) == [(STEPS, BATCH, 4 * HIDDEN)] * 2


def test_gradients_keep_their_results():
    """Whatever is divided in a backward pass, its numbers are stock's."""
    for function in (scan_in_scan, python_loop):
        transformed(jax.grad(lambda *a, f=function: f(*a)[0].sum(), argnums=(1, 2)), weights())


def test_explanation_names_the_line():
    program = translate(adapt(jax.make_jaxpr(scan_in_scan)(*weights())), "test")
    lines = explain_distribution(program, ALWAYS)
    assert any(line.startswith("unroll: a loop over 3 layers") and __file__ in line for line in lines)
    assert any("3 products taken out, 3 loops left" in line for line in lines)


# -- built --------------------------------------------------------------------------------------------------
WIDE = 32  # from where on the products are worth taking out


def large():
    random = np.random.default_rng(6)
    shapes = ((21, BATCH, WIDE), *((LAYERS, WIDE, 4 * WIDE),) * 2, (LAYERS, 4 * WIDE))
    return tuple((random.normal(size=s) * WIDE**-0.5).astype(np.float32) for s in shapes)


def one_layer(xs, w, r, b, steps, tolerance):
    """Ends after `steps` steps, or when the state is small."""

    def step(given):
        t, h, c = given
        h, c = cell(xs[t] @ w[0] + h @ r[0] + b[0], c)
        return t + 1, h, c

    start = (jnp.int32(0), *(jnp.ones((BATCH, WIDE)),) * 2)
    return lax.while_loop(lambda v: (v[0] < steps) & (jnp.abs(v[1]).max() > tolerance), step, start)


def bounded(xs, w, r, b, steps):
    step = lambda t, s: cell(xs[t] @ w[1] + s[0] @ r[1] + b[1], s[1])  # noqa: E731
    return lax.fori_loop(0, steps, step, (jnp.ones((BATCH, WIDE)),) * 2)


@pytest.mark.parametrize("steps", [0, 1, 15, 16, 17, 21, 40])
def test_built_loops_of_unknown_length(steps):
    ours, stock = jax_cocktail.jit(bounded), jax.jit(bounded)
    until = jax_cocktail.jit(one_layer), jax.jit(one_layer)
    with jax_cocktail.options(force="cocktail"):
        for mine, other, more in (
            (ours, stock, ()),
            (*until, (np.float32(1e-9),)),
            (*until, (np.float32(0.5),)),
        ):
            arguments = (*large(), np.int32(steps), *more)
            for x, y in zip(mine(*arguments), other(*arguments), strict=True):
                np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6)
