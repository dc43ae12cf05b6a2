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
from jax_cocktail.lowering.edge.hoists import moved_out
from jax_cocktail.primitives.jaxprs import communicates, equations_in
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
            mapped = jax.shard_map(function, mesh=each, in_specs=(P(), spec), out_specs=P(), check_vma=check)
            traced = jax.make_jaxpr(mapped)(weights(), inputs(mesh))
            changed = moved_out(traced)
            (scan,) = (each for each in equations_in(changed) if each.primitive.name == "scan")
            assert not communicates(scan)
            result = jax.jit(jex.jaxpr_as_fun(changed))(weights(), inputs(mesh))
            same(result, list(jax.jit(mapped)(weights(), inputs(mesh))))


def loops_run(function: Any, *arguments: Any) -> str:
    """The text of our program, whose loops are all ours: none is left to XLA."""
    text = ours(function).lower(*arguments).as_text()
    assert "stablehlo.while" not in text and "stablehlo.case" not in text, text
    assert not jax_cocktail.explain(ours(function))(*arguments).left
    return str(text)


def mapped_both(function: Any, mesh: Mesh, ins: Any, outs: Any) -> list[Any]:
    """The function under `shard_map`, with JAX's check of what varies and without."""
    specs = {"mesh": mesh, "in_specs": ins, "out_specs": outs}
    return [jax.shard_map(function, check_vma=check, **specs) for check in (True, False)]


@case
def invariants_leave_loops(mesh: Mesh) -> None:
    """Weights that are divided over the devices and gathered by each iteration, and the like."""

    @jax.jit
    def gathered(w: jax.Array) -> jax.Array:
        return lax.all_gather(w * 2, "d", tiled=True) + lax.psum(w.sum(), "d")

    def scanned(w: jax.Array, xs: jax.Array) -> Any:
        def step(h: jax.Array, x: jax.Array) -> Any:
            h = jnp.tanh(h @ jax.checkpoint(gathered)(w) + x + lax.axis_index("d"))
            return h, h.sum(-1)

        return lax.scan(step, xs[0] * 0, xs)[1]

    def nested(w: jax.Array, xs: jax.Array) -> Any:
        def outer(h: jax.Array, _: None) -> Any:
            return lax.scan(lambda h, x: (jnp.tanh(h @ gathered(w) + x), None), h, xs)[0], h.sum(-1)

        return lax.scan(outer, xs[0] * 0, None, length=3)[1]

    def carried(w: jax.Array, xs: jax.Array) -> Any:
        def step(carry: Any, x: jax.Array) -> Any:
            h, kept = carry
            return (jnp.tanh(h @ gathered(kept) + x), kept), h.sum(-1)

        return lax.scan(step, (xs[0] * 0, w), xs)[1]

    spread = weights(8 * mesh.size)[:, :8]  # each device has 8 rows, and the gathered matrix all of them
    xs = jax.random.normal(jax.random.key(1), (6, 2 * mesh.size, 8 * mesh.size))
    spread = jnp.tile(spread, (1, mesh.size))
    for function in (scanned, nested, carried):
        for mapped in mapped_both(function, mesh, (P("d"), ROWS), ROWS):
            text = loops_run(mapped, spread, xs)
            assert text.count("stablehlo.all_gather") == text.count("stablehlo.all_reduce") == 1, text
            agrees(mapped, spread, xs)


@case
def invariants_of_while_loops(mesh: Mesh) -> None:
    """Also for loops that run no iteration."""

    def function(w: jax.Array, n: jax.Array, xs: jax.Array) -> Any:
        def go(state: Any) -> Any:
            return (state[0] < n + 0 * lax.axis_index("d")) & (state[0] < lax.psum(w.sum() * 0 + 9, "d"))

        def step(state: Any) -> Any:
            k, xs = state
            return k + 1, jnp.tanh(xs @ lax.pmax(w, "d")) + lax.axis_index("d")

        xs = lax.while_loop(go, step, (jnp.int32(0), xs))[1]
        return lax.fori_loop(0, n, lambda k, xs: xs * lax.psum(w, "d")[0, 0] + k, xs)

    for mapped in mapped_both(function, mesh, (P(), P(), ROWS), ROWS):
        for n in (0, 1, 5):
            agrees(mapped, weights(), jnp.int32(n), inputs(mesh))
        assert loops_run(mapped, weights(), jnp.int32(3), inputs(mesh)).count("stablehlo.all_reduce") == 3


@case
def while_loops_in_branches_keep_their_collectives(mesh: Mesh) -> None:
    """A device takes a side in which the loop runs no iteration, and others do not: nobody communicates.

    XLA moves what is invariant out of such loops, and its program waits then without end. So the loop has a
    sum that is not.
    """

    def function(n: jax.Array, xs: jax.Array) -> Any:
        def looped(n: jax.Array, xs: jax.Array) -> jax.Array:
            def step(k: jax.Array, both: Any) -> Any:
                return both[0] * 0.5, both[1] + lax.psum(both[0].sum(), "d")

            xs, total = lax.fori_loop(0, n, step, (xs, jnp.float32(0)))
            return xs + total

        first = lax.axis_index("d") == 0
        return lax.cond(first | (n > 0), looped, lambda n, xs: xs + lax.axis_index("d"), n, xs)

    specs = {"in_specs": (P(), ROWS), "out_specs": ROWS}
    mapped = jax.shard_map(function, mesh=mesh, check_vma=False, **specs)
    for n in (0, 2):
        agrees(mapped, jnp.int32(n), inputs(mesh), least=0)
    inside = jax.jit(jax.shard_map(ours(function), mesh=mesh, check_vma=False, **specs))
    same(inside(jnp.int32(0), inputs(mesh)), jax.jit(mapped)(jnp.int32(0), inputs(mesh)))


@case
def indices_of_devices(mesh: Mesh) -> None:
    """`axis_index` is no communication: neither a loop nor a branch stays with XLA for it."""

    def function(xs: jax.Array) -> Any:
        def step(h: jax.Array, x: jax.Array) -> Any:
            odd = lambda h: h * lax.axis_index("d") + lax.axis_index("d")  # noqa: E731
            h = lax.cond(x.sum() > 0, odd, lambda h: h - 0.5 * lax.axis_index("d"), h)
            return lax.cond(lax.axis_index("d") == 0, lambda h: h + 1, lambda h: h, h) + x, h.sum(-1)

        return lax.scan(step, xs[0] * 0, xs)[1]

    for mapped in mapped_both(function, mesh, ROWS, ROWS):
        text = loops_run(mapped, inputs(mesh))
        assert "all_reduce" not in text
        agrees(mapped, inputs(mesh))


@case
def loops_that_keep_their_collectives(mesh: Mesh) -> None:
    """A loop of no iterations makes none, and references are named by position."""

    def never(w: jax.Array, xs: jax.Array) -> Any:
        return lax.scan(lambda h, x: (h @ lax.psum(w, "d") + x, None), xs.sum(0), xs[:0])[0]

    def referred(w: jax.Array, xs: jax.Array) -> Any:
        kept = jax.new_ref(jnp.zeros_like(xs[0]))

        def step(h: jax.Array, x: jax.Array) -> Any:
            kept[...] += h
            return jnp.tanh(h @ lax.pmean(w, "d") + x), None

        return lax.scan(step, xs[0] * 0, xs)[0] + kept[...]

    specs = {"mesh": mesh, "in_specs": (P(), ROWS), "out_specs": P("d"), "check_vma": False}
    for function in (never, referred):
        mapped = jax.shard_map(function, **specs)
        agrees(mapped, weights(), inputs(mesh), least=0)


@case
def sums_leave_while_loops(mesh: Mesh) -> None:
    def function(n: jax.Array, w: jax.Array, xs: jax.Array) -> Any:
        def step(state: Any) -> Any:
            k, h, total, mean = state
            h = jnp.tanh(h @ w)
            return k + 1, h, total + lax.psum(h.sum(), "d"), mean - lax.pmean(h.sum((0, 1)), "d")

        start = jnp.int32(0), xs, jnp.float32(3), jnp.zeros(8)
        _, h, total, mean = lax.while_loop(lambda s: s[0] < n, step, start)
        return h, total, mean

    for mapped in mapped_both(function, mesh, (P(), P(), ROWS), (ROWS, P(), P())):
        for n in (0, 1, 7):
            agrees(mapped, jnp.int32(n), weights(), inputs(mesh))
        text = loops_run(mapped, jnp.int32(3), weights(), inputs(mesh))
        assert text.count("stablehlo.all_reduce") == 2, text

    def ends(w: jax.Array, xs: jax.Array) -> Any:
        """The condition needs the sum."""

        def step(state: Any) -> Any:
            h, total = state
            return jnp.tanh(recurrent(w, h)[..., None] + h), total + lax.psum(jnp.abs(h).sum(), "d")

        return lax.while_loop(lambda s: s[1] < 300.0 * mesh.size, step, (xs, jnp.float32(0)))[1]

    for mapped in mapped_both(ends, mesh, (P(), ROWS), P()):
        agrees(mapped, weights(), inputs(mesh))


@case
def stacked_results_leave_loops(mesh: Mesh) -> None:
    """What a loop communicates only to stack it is communicated once, behind the loop."""
    size = mesh.size
    ring = [(k, (k + 1) % size) for k in range(size)]

    def function(w: jax.Array, xs: jax.Array) -> Any:
        def step(h: jax.Array, x: jax.Array) -> Any:
            h = jnp.tanh(h @ w + x)
            wide = jnp.broadcast_to(h[:1], (size, 8)) * 2
            stacks = {
                "gathered": lax.all_gather(h, "d"),
                "tiled": lax.all_gather(h, "d", axis=1, tiled=True),
                "largest": lax.pmax(h.max(), "d"),
                "smallest": lax.pmin(h, "d"),
                "moved": lax.ppermute(h, "d", ring),
                "scattered": lax.psum_scatter(wide, "d", tiled=True),
                "exchanged": lax.all_to_all(wide, "d", 0, 1, tiled=True),
                "again": lax.pmax(lax.ppermute(h.sum(), "d", ring), "d"),
                "sum": lax.psum(h.sum(0), "d"),
            }
            return h, stacks

        return jax.tree.map(lambda rows: rows[None], lax.scan(step, xs[0] * 0, xs)[1])

    for mapped in mapped_both(function, mesh, (P(), ROWS), P("d")):
        loops_run(mapped, weights(), inputs(mesh))
        agrees(mapped, weights(), inputs(mesh))


@case
def training_with_divided_weights(mesh: Mesh) -> None:
    """Each device keeps a part of the weights (fully sharded data parallelism)."""

    def train(part: jax.Array, xs: jax.Array) -> Any:
        def loss(part: jax.Array) -> jax.Array:
            def step(h: jax.Array, x: jax.Array) -> Any:
                return jnp.tanh(h @ lax.all_gather(part, "d", tiled=True) + x), h.sum(-1)

            return (lax.scan(step, xs[0] * 0, xs)[1] ** 2).mean()

        def update(part: jax.Array, _: None) -> Any:
            value, gradient = jax.value_and_grad(loss)(part)
            return part - 0.01 * gradient, lax.pmean(value, "d")

        return lax.scan(update, part, None, length=3)

    w = weights(8 * mesh.size)
    xs = jax.random.normal(jax.random.key(1), (6, 2 * mesh.size, 8 * mesh.size))
    for mapped in mapped_both(train, mesh, (P("d"), ROWS), (P("d"), P())):
        agrees(mapped, w, xs)
        report = jax_cocktail.explain(ours(mapped))(w, xs)
        assert sum(len(each.left) for each in (report, *report.inner)) == 1, report


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
def steps_without_loops(mesh: Mesh) -> None:
    """What a loop that communicates computes in an iteration becomes ours, although it has no loop."""

    def train(w: jax.Array, xs: jax.Array) -> Any:
        def loss(w: jax.Array) -> jax.Array:
            table = jax.nn.log_softmax(jnp.tanh(xs * w))
            return -jnp.minimum(table * xs, jnp.clip(table, -1.0, 1.0) * xs).mean()

        def step(w: jax.Array, _: None) -> Any:
            value, gradient = jax.value_and_grad(loss)(w)
            return w - 0.1 * lax.pmean(gradient, "d"), lax.pmean(value, "d")

        return lax.scan(step, w, None, length=5)

    w = jnp.linspace(-1.0, 1.0, 64)
    for mapped in mapped_both(train, mesh, (P(), ROWS), P()):
        agrees(mapped, w, inputs(mesh, 50, 64))
        assert loops_that_communicate(mapped, w, inputs(mesh, 50, 64)) == 1
        report = jax_cocktail.explain(ours(mapped))(w, inputs(mesh, 50, 64))
        assert [len(each.left) for each in (report, *report.inner) if each.left] == [1], report
        few = jax_cocktail.explain(ours(mapped))(w[:4], inputs(mesh, 2, 4))
        assert not any(each.captured for each in (few, *few.inner)), few


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
