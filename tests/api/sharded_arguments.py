"""Programs with divided arguments and no `shard_map` over several devices: cases like `several_devices`."""

from __future__ import annotations

import os
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_cocktail
from tests.api.several_devices import (
    FORCED,
    ROWS,
    calls,
    case,
    inputs,
    ours,
    raised,
    recurrent,
    same,
    weights,
)

MOVES = ("all-gather(", "all-to-all(", "collective-permute(", "all-reduce(", "reduce-scatter(")


def put(mesh: Mesh, array: Any, *spec: Any) -> jax.Array:
    return jax.device_put(array, NamedSharding(mesh, P(*spec)))


def divided_inputs(mesh: Mesh, steps: int = 12, width: int = 8) -> tuple[jax.Array, jax.Array]:
    return put(mesh, weights(width)), put(mesh, inputs(mesh, steps, width), None, "d")


def moves(jitted: Any, *arguments: Any) -> dict[str, int]:
    """The collectives in a compiled module."""
    text = jitted.lower(*arguments).compile().as_text()
    return {name.rstrip("("): n for name in MOVES if (n := text.count(name))}


def agrees(function: Any, *arguments: Any, least: int = 1, moved: Any = None, **options: Any) -> Any:
    """Checks our program against stock XLA's, the number of custom calls, and that nothing else than `moved`
    communicates."""
    jitted = ours(function, **options)
    assert calls(jitted, *arguments) >= least, jax_cocktail.explain(jitted)(*arguments)
    result = jitted(*arguments)
    same(result, jax.jit(function, **options)(*arguments))
    if least:
        found = moves(jitted, *arguments)
        assert found.keys() <= set(moved or ()), found
    return result


def reasons(function: Any, *arguments: Any, **options: Any) -> list[str]:
    """The reasons why stock XLA runs loops of the function, without the option `force`."""
    jitted = jax_cocktail.jit(function, options={"compile": "now", "plans": "fresh", **options})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = jax_cocktail.explain(jitted)(*arguments)
        same(jitted(*arguments), jax.jit(function)(*arguments))
    assert not report.captured, report
    return [each.reason for each in report.left]


# ---- axes that are independent -----------------------------------------------------------------------------


@case
def a_batch(mesh: Mesh) -> None:
    w, xs = divided_inputs(mesh)
    agrees(recurrent, w, xs)
    agrees(recurrent, weights(), xs)  # XLA copies weights that no device has in particular
    agrees(lambda w, xs: recurrent(w, jnp.sin(xs) * 2).T + 1, w, xs)
    agrees(lambda w, xs: recurrent(w, xs) + recurrent(w * 2, xs[::-1]), w, xs)


@case
def chains(mesh: Mesh) -> None:
    """Each device runs until its own chains are done: stock XLA asks all of them in each iteration."""

    def chain(x: jax.Array, n: jax.Array) -> Any:
        return lax.while_loop(lambda c: c[1] < n, lambda c: (jnp.sin(c[0]) * 1.5, c[1] + 1), (x, 0))

    n = put(mesh, jnp.arange(4 * mesh.size) % 7, "d")
    x = put(mesh, jnp.linspace(0, 1, 4 * mesh.size * 3).reshape(-1, 3), "d")
    agrees(jax.vmap(chain), x, n)
    if mesh.size > 1:
        assert moves(jax.jit(jax.vmap(chain)), x, n)


@case
def heads(mesh: Mesh) -> None:
    """A decoder with a cache of keys and values, divided by heads."""
    n, d, steps = 2 * mesh.size, 4, 6

    def decode(w: jax.Array, x: jax.Array) -> jax.Array:
        def step(carry: Any, i: jax.Array) -> Any:
            x, keys, values = carry
            q, k, v = jnp.einsum("hd,phde->phe", x, w)
            keys, values = keys.at[:, i].set(k), values.at[:, i].set(v)
            scores = jnp.where(jnp.arange(steps) <= i, jnp.einsum("hd,htd->ht", q, keys), -1e9)
            x = jnp.einsum("ht,htd->hd", jax.nn.softmax(scores), values)
            return (x, keys, values), x

        cache = jnp.zeros((n, steps, d))
        return lax.scan(step, (x, cache, cache), jnp.arange(steps))[1]

    w = put(mesh, jax.random.normal(jax.random.key(2), (3, n, d, d)), None, "d")
    agrees(decode, w, put(mesh, jnp.ones((n, d)), "d"))


@case
def a_branch_for_each_element(mesh: Mesh) -> None:
    def step(x: jax.Array, _: Any) -> Any:
        return lax.cond(x.sum() > 0, lambda x: jnp.sin(x) - 0.5, lambda x: x * x, x), x.max()

    def function(xs: jax.Array) -> Any:
        return jax.vmap(lambda x: lax.scan(step, x, length=5))(xs)

    agrees(function, put(mesh, inputs(mesh)[0], "d"))


@case
def numbers_of_elements(mesh: Mesh) -> None:
    """Random numbers and counts depend on the place in the whole batch."""

    def function(key: jax.Array, xs: jax.Array) -> Any:
        table = jnp.arange(xs.shape[1]) * 1.0

        def step(carry: Any, x: jax.Array) -> Any:
            key, own = jax.random.split(carry[0])
            drawn = jax.random.uniform(own, x.shape) + jnp.arange(x.shape[0])[:, None]
            return (key, carry[1] + drawn * table[:, None]), drawn * x

        return lax.scan(step, (key, xs[0] * 0), xs)[1]

    _, xs = divided_inputs(mesh)
    agrees(function, jax.random.key(3), xs)
    keys = put(mesh, jax.random.split(jax.random.key(4), 2 * mesh.size), "d")
    agrees(lambda keys, xs: jax.vmap(function, (0, 1), 1)(keys, xs[..., None]), keys, xs)


@case
def gradients_of_divided_batches(mesh: Mesh) -> None:
    """Each device adds up its own part of the gradient, and there is one sum over devices after the loops."""

    def loss(w: jax.Array, xs: jax.Array) -> jax.Array:
        return (recurrent(w, xs) ** 2).mean()

    w, xs = divided_inputs(mesh)
    agrees(jax.grad(loss, argnums=(0, 1)), w, xs, moved=["all-reduce"])
    agrees(jax.value_and_grad(loss), w, xs, moved=["all-reduce"])
    agrees(jax.grad(jax.checkpoint(loss)), w, xs, moved=["all-reduce"])
    same(jax.grad(ours(loss))(w, xs), jax.grad(jax.jit(loss))(w, xs))
    remarks = jax_cocktail.explain(ours(jax.grad(loss)))(w, xs).captured[0].remarks
    parts = f"each device computes one of {mesh.size} parts, by the axis d of the mesh"
    assert {parts, "devices add up what they have computed, after the program"} <= set(remarks), remarks
    stepped = ours(lambda w, xs: w - 0.1 * jax.grad(loss)(w, xs))
    assert calls(stepped, w, xs) == 1
    same(stepped(w, xs), w - 0.1 * jax.jit(jax.grad(loss))(w, xs))


@case
def gradients_of_tables(mesh: Mesh) -> None:
    def loss(table: jax.Array, words: jax.Array) -> jax.Array:
        def step(h: jax.Array, word: jax.Array) -> Any:
            return jnp.tanh(h + table[word]), None

        return lax.scan(step, jnp.zeros((words.shape[1], 4)), words)[0].sum()

    words = put(mesh, jnp.arange(6 * 2 * mesh.size).reshape(6, -1) % 5, None, "d")
    agrees(jax.grad(loss), put(mesh, jnp.linspace(0, 1, 20).reshape(5, 4)), words, moved=["all-reduce"])


@case
def two_axes_of_a_mesh(mesh: Mesh) -> None:
    if mesh.size % 2:
        return
    square = Mesh(np.array(mesh.devices).reshape(2, -1), ("a", "b"))
    cells = jax.random.normal(jax.random.key(5), (6, 2 * mesh.size, mesh.size))

    def each(xs: jax.Array) -> jax.Array:
        return lax.scan(lambda h, x: (jnp.tanh(h * 0.5 + x), h), xs[0] * 0, xs)[1]

    agrees(each, put(square, cells, None, "a", "b"))
    agrees(each, put(square, cells, None, ("a", "b")))
    agrees(each, put(square, cells, None, ("b", "a")))
    agrees(each, put(square, cells, None, None, "b"))
    a, b = put(square, cells, None, ("a", "b")), put(square, cells, None, "a")
    agrees(lambda a, b: each(a) + each(b), a, b, moved=["all-gather", "all-to-all", "collective-permute"])
    w = put(square, weights())
    agrees(recurrent, w, put(square, inputs(mesh), None, "b"))
    # the product needs all columns of the weights, which are gathered once
    columns, rows = put(square, weights(), None, "b"), put(square, inputs(mesh), None, "a")
    agrees(recurrent, columns, rows, moved=["all-gather"])


# ---- axes that communicate ---------------------------------------------------------------------------------


@case
def an_axis_that_communicates(mesh: Mesh) -> None:
    """It is left to stock XLA with the reason; who insists has all devices compute the same."""

    def mixed(xs: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 5, lambda i, x: jax.nn.softmax(x, 0) + 0.1 * x, xs)

    _, xs = divided_inputs(mesh)
    x = put(mesh, inputs(mesh)[0], "d")
    forced = ours(mixed)
    assert calls(forced, x) == 1
    same(forced(x), jax.jit(mixed)(x))
    if mesh.size > 1:
        remarks = jax_cocktail.explain(forced)(x).captured[0].remarks
        assert any("devices compute the same: reduce at" in each for each in remarks), remarks
    if mesh.size > 1:
        (reason,) = reasons(mixed, x)
        assert "reduce at" in reason and "needs values of all devices" in reason and "bytes" in reason, reason
        assert not reasons(lambda xs: xs * 2, xs)


@case
def some_axes_of_a_mesh_communicate(mesh: Mesh) -> None:
    if mesh.size < 8:
        return
    square = Mesh(np.array(mesh.devices).reshape(2, -1), ("a", "b"))

    def mixed(xs: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 5, lambda i, x: jax.nn.softmax(x, 1) + 0.1 * x, xs)

    xs = put(square, inputs(mesh)[:, :, 0].T, "a", "b")
    forced = ours(mixed)
    assert calls(forced, xs) == 1
    same(forced(xs), jax.jit(mixed)(xs))
    assert "reduce" in reasons(mixed, xs)[0]


# ---- which program runs ------------------------------------------------------------------------------------


@case
def measured_on_all_devices(mesh: Mesh) -> None:
    def function(w: jax.Array, xs: jax.Array) -> jax.Array:
        return recurrent(w, xs) * 3

    arguments = divided_inputs(mesh, steps=3000)
    jitted = jax_cocktail.jit(function, options={"compile": "now", "plans": "cached"})
    jitted(*arguments)
    report = jax_cocktail.explain(jitted)(*arguments)
    assert report.why.startswith("measured before"), report.why
    assert {"stock XLA", "1 unit"} <= {each.name for each in report.trials}
    mine = max(len(os.sched_getaffinity(0)) // mesh.size, 1)
    assert all(each.units <= mine for each in report.captured), report
    same(jitted(*arguments), jax.jit(function)(*arguments))
    stock = jax_cocktail.jit(function, options={"force": "stock"})
    assert calls(stock, *arguments) == 0


@case
def exchanged_in_the_background(mesh: Mesh) -> None:
    def function(w: jax.Array, xs: jax.Array) -> jax.Array:
        return recurrent(w, xs) * 4

    arguments = divided_inputs(mesh)
    jitted = jax_cocktail.jit(function, options={**FORCED, "compile": "background", "plans": "cached"})
    stock = jax.jit(function)(*arguments)
    same(jitted(*arguments), stock)
    before = jax_cocktail.cache_info().changed_over
    assert jax_cocktail.wait()
    same(jitted(*arguments), stock)
    info = jax_cocktail.cache_info()
    assert info.changed_over == before + 1 or info.calls.stored, info  # an earlier process has built it
    assert not info.failed and not jax_cocktail.explain(jitted)(*arguments).now


@case
def other_shardings_of_one_function(mesh: Mesh) -> None:
    """A function may be called with its arguments divided in one way, then in another one."""

    def function(w: jax.Array, xs: jax.Array) -> jax.Array:
        return recurrent(w, xs) * 5

    w, xs = divided_inputs(mesh)
    for compile_ in ("now", "background"):
        jitted = jax_cocktail.jit(function, options={**FORCED, "compile": compile_, "plans": "cached"})
        for _ in range(2):
            for each in (xs, put(mesh, xs), inputs(mesh)):
                weight = weights() if each.sharding.num_devices == 1 else w
                same(jitted(weight, each), jax.jit(function)(weight, each))
            assert jax_cocktail.wait()


# ---- bad input ---------------------------------------------------------------------------------------------


@case
def shards_that_do_not_fit(mesh: Mesh) -> None:
    """JAX refuses to divide arguments unevenly; inside a function, XLA pads them."""
    rows, uneven = NamedSharding(mesh, ROWS), jnp.ones((5, 2 * mesh.size + 1, 8))
    if mesh.size > 1:
        jitted = [wrap(recurrent, in_shardings=(None, rows)) for wrap in (ours, jax.jit)]
        assert raised(jitted[0], weights(), uneven) == raised(jitted[1], weights(), uneven)

    def function(w: jax.Array, xs: jax.Array) -> jax.Array:
        return recurrent(w, jnp.concatenate([xs, xs[:, :1]], 1))

    agrees(function, *divided_inputs(mesh), moved=["all-gather", "all-to-all"])


@case
def a_mesh_of_one_device(mesh: Mesh) -> None:
    for device in (0, -1):
        single = Mesh(np.array([mesh.devices.ravel()[device]]), ("d",))
        agrees(recurrent, *divided_inputs(single))
    if mesh.size > 1:
        narrow = Mesh(np.array(mesh.devices)[:, None], ("a", "b"))
        agrees(recurrent, put(narrow, weights()), put(narrow, inputs(mesh), None, "a", "b"))
        agrees(recurrent, put(narrow, weights()), put(narrow, inputs(mesh), None, "b"))


@case
def meshes_that_differ(mesh: Mesh) -> None:
    if mesh.size > 1:
        half = Mesh(np.array(mesh.devices)[: mesh.size // 2], ("d",))
        w, xs = put(half, weights()), put(mesh, inputs(mesh), None, "d")
        mine, stock = raised(ours(recurrent), w, xs), raised(jax.jit(recurrent), w, xs)
        assert mine[0] is stock[0], (mine, stock)
        other = Mesh(mesh.devices, ("e",))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            w = put(other, weights())
            same(ours(recurrent)(w, xs), jax.jit(recurrent)(w, xs))


@case
def messages_and_failures(mesh: Mesh) -> None:
    def told(w: jax.Array, xs: jax.Array) -> jax.Array:
        def step(h: jax.Array, x: jax.Array) -> Any:
            jax.debug.callback(lambda n: None, h[0, 0])
            return jnp.tanh(h @ w + x), None

        return lax.scan(step, xs[0] * 0, xs)[0]

    @jax_cocktail.recursive(max_depth=6, max_calls=32, out_like=lambda n: n)
    def grow(self: Any, n: jax.Array) -> jax.Array:
        return lax.cond(n < 1, lambda: n, lambda: self(n - 1) + 1)

    n = put(mesh, jnp.arange(mesh.size, dtype=jnp.int32) % 3, "d")
    agrees(jax.vmap(grow), n, least=0)
    if mesh.size > 1:
        (reason,) = reasons(told, *divided_inputs(mesh))
        assert "messages would come from all of them" in reason, reason


@case
def a_step_of_training(mesh: Mesh) -> None:
    """What is not linear in the sum over devices comes after it."""

    def loss(w: jax.Array, xs: jax.Array) -> jax.Array:
        return jnp.log1p((recurrent(w, xs) ** 2).mean())

    def step(w: jax.Array, moments: jax.Array, xs: jax.Array) -> Any:
        value, g = jax.value_and_grad(loss)(w, xs)
        moments = 0.9 * moments + 0.1 * g * g
        return value, w - 0.1 * g / (jnp.sqrt(moments) + 1e-3), moments

    w, xs = divided_inputs(mesh)
    agrees(step, w, w * 0, xs, moved=["all-reduce"])

    def normalised(w: jax.Array, xs: jax.Array) -> jax.Array:
        first = recurrent(w, xs)
        first = (first - first.mean(1, keepdims=True)) / (first.std(1, keepdims=True) + 1)
        return recurrent(w, xs * first[..., None])

    agrees(normalised, w, xs, moved=["all-reduce"])
    agrees(jax.grad(lambda w, xs: (normalised(w, xs) ** 2).sum()), w, xs, moved=["all-reduce"])
