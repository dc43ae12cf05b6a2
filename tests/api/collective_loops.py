"""Loops with collectives over several devices: more cases of `several_devices`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_cocktail
from jax_cocktail.lowering.edge.adapter import Calls
from jax_cocktail.lowering.edge.flatten import flatten
from jax_cocktail.lowering.edge.meshes import parts_in, with_parts
from jax_cocktail.primitives.jaxprs import communicates, open_jaxpr
from tests.api.several_devices import (
    ROWS,
    agrees,
    calls,
    case,
    divided,
    inputs,
    ours,
    recurrent,
    same,
    weights,
)


def loops_that_communicate(function: Any, *arguments: Any) -> int:
    """The number of loops with collectives in the module that our `jit` of a function makes."""
    text = ours(function).lower(*arguments).as_text()
    return sum("all_reduce" in each or "all_gather" in each for each in text.split("stablehlo.while")[1:])


def summed(axis: str, start: float, others: Any = ()) -> Callable[..., Any]:
    """Sums over devices in a loop whose iterations do not need them. `others`: axes over which they vary."""

    def function(w: jax.Array, xs: jax.Array) -> Any:
        def step(carry: Any, x: jax.Array) -> Any:
            h, total, mean = carry
            h = jnp.tanh(h @ w + x)
            local = h.sum()
            total = lax.psum(local, axis) + total + lax.psum(local * 2, axis)
            return (h, total, mean - lax.pmean(h.sum(0), axis) * 0.5), lax.psum(local**2, axis)

        begin = jnp.float32(start), jnp.zeros(xs.shape[-1])
        begin = xs[0] * 0, *(lax.pcast(begin, others, to="varying") if others else begin)
        (_, total, mean), each = lax.scan(step, begin, xs)
        return total, mean, each

    return function


@case
def sums_leave_loops(mesh: Mesh) -> None:
    for start in (0.0, 3.0):
        for check in (True, False):
            mapped = jax.shard_map(
                summed("d", start), mesh=mesh, in_specs=(P(), ROWS), out_specs=P(), check_vma=check
            )
            agrees(mapped, weights(), inputs(mesh))
            text = ours(mapped).lower(weights(), inputs(mesh)).as_text()
            assert "stablehlo.while" not in text and text.count("all_reduce") == 3, text
            assert not jax_cocktail.explain(ours(mapped))(weights(), inputs(mesh)).left


@case
def loops_without_their_sums(mesh: Mesh) -> None:
    """XLA may have to run what the sums have left: JAX accepts its types, and it computes the same."""
    meshes = [mesh]
    if mesh.size % 2 == 0:
        meshes.append(Mesh(np.array(mesh.devices).reshape(2, -1), ("d", "e")))
    for each in meshes:
        spec = P(None, each.axis_names)

        def function(w: jax.Array, xs: jax.Array, others: Any = each.axis_names[1:]) -> Any:
            total, mean, losses = summed("d", 3.0, others)(w, xs)
            return lax.psum((total, mean, losses), others) if others else (total, mean, losses)

        for check in (True, False):
            mapped = jax.shard_map(
                function, mesh=each, in_specs=(P(), spec), out_specs=P(), check_vma=check
            )
            traced = jax.make_jaxpr(mapped)(weights(), inputs(mesh))
            flat = {part.key: flatten(part.closed, Calls()) for part in parts_in(traced)}
            closed = {key: each.close(each.equations) for key, each in flat.items()}
            (scan,) = (
                equation
                for each in closed.values()
                for equation in open_jaxpr(each).eqns
                if equation.primitive.name == "scan"
            )
            assert not communicates(scan)
            result = jax.jit(jex.jaxpr_as_fun(with_parts(traced, closed)))(weights(), inputs(mesh))
            same(result, list(jax.jit(mapped)(weights(), inputs(mesh))))


@case
def sums_that_stay(mesh: Mesh) -> None:
    """The loop needs each sum, or what it makes of them is not linear, or it starts with something else."""
    steps = {
        "needed": lambda h, t, s: (h + t * 0.01, t + s),
        "scaled": lambda h, t, s: (h, t * 0.5 + s),
        "rounded": lambda h, t, s: (h, t + jnp.round(s)),
        "multiplied": lambda h, t, s: (h, t * s),
        "shifted": lambda h, t, s: (h, t + (s + 1)),
    }
    def running(total: jax.Array, xs: jax.Array) -> Any:
        """Each step's sum is a result as well."""
        return lax.scan(lambda t, x: ((new := t + lax.psum(x.sum(), "d")), new), total, xs)

    mapped = jax.shard_map(running, mesh=mesh, in_specs=(P(), ROWS), out_specs=P())
    same(ours(mapped)(np.float32(10), inputs(mesh)), jax.jit(mapped)(np.float32(10), inputs(mesh)))
    for name, step in steps.items():

        def function(w: jax.Array, xs: jax.Array, step: Any = step) -> Any:
            def body(carry: Any, x: jax.Array) -> Any:
                h, total = carry
                h = jnp.tanh(h @ w + x)
                return step(h, total, lax.psum(h.sum(), "d")), h.sum()

            (h, total), _ = lax.scan(body, (xs[0] * 0, jnp.float32(2)), xs)
            return h.sum()[None], total

        specs = {"in_specs": (P(), ROWS), "out_specs": (P("d"), P())}
        mapped = jax.shard_map(function, mesh=mesh, **specs)
        report = jax_cocktail.explain(ours(mapped))(weights(), inputs(mesh))
        assert "communicates" in report.left[0].reason, (name, report)
        same(ours(mapped)(weights(), inputs(mesh)), jax.jit(mapped)(weights(), inputs(mesh)))


def trained(w: jax.Array, xs: jax.Array) -> Any:
    """Training on all devices: the loop over steps needs the sum of the gradients."""

    def step(w: jax.Array, _: None) -> Any:
        loss, gradient = jax.value_and_grad(lambda w: (recurrent(w, xs) ** 2).mean())(w)
        return w - 0.1 * lax.pmean(gradient, "d"), lax.pmean(loss, "d")

    return lax.scan(step, w, None, length=4)


@case
def training(mesh: Mesh) -> None:
    for check in (True, False):
        mapped = jax.shard_map(trained, mesh=mesh, in_specs=(P(), ROWS), out_specs=P(), check_vma=check)
        for function in (mapped, jax.jit(mapped)):
            agrees(function, weights(), inputs(mesh))
        assert loops_that_communicate(mapped, weights(), inputs(mesh)) <= 1
        inside = jax.jit(
            jax.shard_map(ours(trained), mesh=mesh, in_specs=(P(), ROWS), out_specs=P(), check_vma=check)
        )
        assert calls(inside, weights(), inputs(mesh)) >= 1
        same(inside(weights(), inputs(mesh)), jax.jit(mapped)(weights(), inputs(mesh)))
        report = jax_cocktail.explain(ours(mapped))(weights(), inputs(mesh))
        assert report.choice == "cocktail" and any(each.captured for each in (report, *report.inner)), report


@case
def training_that_is_measured(mesh: Mesh) -> None:
    mapped = jax.shard_map(trained, mesh=mesh, in_specs=(P(), ROWS), out_specs=P())
    jitted = jax_cocktail.jit(mapped, options={"compile": "background", "plans": "cached", "profile": "full"})
    stock = jax.jit(mapped)(weights(), inputs(mesh, 500))
    same(jitted(weights(), inputs(mesh, 500)), stock)
    assert jax_cocktail.wait()
    same(jitted(weights(), inputs(mesh, 500)), stock)
    report = jax_cocktail.explain(jitted)(weights(), inputs(mesh, 500))
    assert any(each.trials for each in (report, *report.inner)), report


@case
def rollouts(mesh: Mesh) -> None:
    """Proximal policy optimisation: rollouts, advantages and gradients on each device, and their mean."""

    def rollout(w: jax.Array, key: jax.Array, state: jax.Array) -> Any:
        def act(carry: Any, _: None) -> Any:
            key, state = carry
            key, own = jax.random.split(key)
            logits = jnp.tanh(state @ w)
            action = jax.random.categorical(own, logits)
            chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], 1)[:, 0]
            state = state * 0.9 + 0.1 * jax.nn.one_hot(action, state.shape[-1])
            return (key, state), (state, action, chosen, -jnp.abs(state).sum(-1))

        (key, _), (states, actions, old, rewards) = lax.scan(act, (key, state), None, length=6)
        _, gains = lax.scan(lambda g, r: (r + 0.9 * g,) * 2, rewards[0] * 0, rewards, reverse=True)
        return key, (states, actions, old, gains - gains.mean())

    def loss(w: jax.Array, data: Any) -> jax.Array:
        states, actions, old, gains = data
        logits = jax.nn.log_softmax(jnp.tanh(states @ w))
        ratio = jnp.exp(jnp.take_along_axis(logits, actions[..., None], -1)[..., 0] - old)
        return -jnp.minimum(ratio * gains, jnp.clip(ratio, 0.8, 1.2) * gains).mean()

    def optimised(w: jax.Array, keys: jax.Array, states: jax.Array) -> Any:
        def update(carry: Any, _: None) -> Any:
            w, key = carry
            key, data = rollout(w, key, states)
            return (w - 0.05 * lax.pmean(jax.grad(loss)(w, data), "d"), key), lax.pmean(loss(w, data), "d")

        (w, _), losses = lax.scan(update, (w, keys[0]), None, length=3)
        return w, losses

    keys = jax.random.split(jax.random.key(7), mesh.size)
    states = jax.random.normal(jax.random.key(8), (4 * mesh.size, 8))
    specs = {"in_specs": (P(), P("d"), P("d")), "out_specs": P()}
    for check in (True, False):
        mapped = jax.shard_map(optimised, mesh=mesh, check_vma=check, **specs)
        agrees(mapped, weights(), keys, states)


@case
def a_while_loop_that_communicates(mesh: Mesh) -> None:
    def function(w: jax.Array, xs: jax.Array) -> Any:
        def step(state: Any) -> Any:
            n, xs, _ = state
            ys = recurrent(w, xs)
            return n + 1, xs * 0.5, lax.pmax(jnp.abs(ys).max(), "d")

        start = jnp.int32(0), xs, jnp.float32(9)
        n, _, last = lax.while_loop(lambda s: (s[0] < 20) & (s[2] > 0.1), step, start)
        return n, last

    mapped = jax.shard_map(function, mesh=mesh, in_specs=(P(), ROWS), out_specs=P())
    agrees(mapped, weights(), inputs(mesh))


@case
def gathered_in_a_loop(mesh: Mesh) -> None:
    def function(w: jax.Array, xs: jax.Array) -> Any:
        def step(xs: jax.Array, _: None) -> Any:
            ys = lax.all_gather(recurrent(w, xs), "d")
            return xs * 0.5 + ys.mean(), ys.sum()[None]

        return lax.scan(step, xs, None, length=3)

    specs = {"in_specs": (P(), ROWS), "out_specs": (ROWS, ROWS)}
    agrees(jax.shard_map(function, mesh=mesh, **specs), weights(), inputs(mesh))


@case
def axes_of_explicit_type(mesh: Mesh) -> None:
    typed = jax.make_mesh((mesh.size,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    xs = jax.device_put(inputs(mesh), NamedSharding(typed, ROWS))
    w = jax.device_put(weights(), NamedSharding(typed, P()))
    agrees(divided(recurrent, typed), w, xs)
    agrees(jax.grad(lambda w, xs: divided(recurrent, typed)(w, xs).sum()), w, xs)
