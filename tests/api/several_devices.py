"""Programs over several devices, each run by stock XLA and by ours: `main` runs those of some modules, on as
many devices of the host as it is told. Its last line says as JSON what is wrong with each."""

from __future__ import annotations

import json
import os
import traceback
import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_cocktail
from tests.process import python

FORCED = {"force": "cocktail"}
CASES: dict[str, Callable[[Mesh], None]] = {}
ROWS = P(None, "d")  # the second axis is divided


def case(function: Callable[[Mesh], None]) -> Callable[[Mesh], None]:
    CASES[function.__name__] = function
    return function


def weights(width: int = 8) -> jax.Array:
    return jax.random.normal(jax.random.key(0), (width, width)) * 0.3


def inputs(mesh: Mesh, steps: int = 12, width: int = 8) -> jax.Array:
    return jax.random.normal(jax.random.key(1), (steps, 2 * mesh.size, width))


def recurrent(w: jax.Array, xs: jax.Array) -> jax.Array:
    return lax.scan(lambda h, x: (jnp.tanh(h @ w + x), h.sum(-1)), xs[0] * 0, xs)[1]


def divided(function: Any, mesh: Mesh, check: bool = True) -> Any:
    return jax.shard_map(function, mesh=mesh, in_specs=(P(), ROWS), out_specs=ROWS, check_vma=check)


def ours(function: Any, **options: Any) -> Any:
    return jax_cocktail.jit(function, options=FORCED, **options)


def same(mine: Any, stock: Any) -> None:
    """Checks values, types and shardings."""
    assert jax.tree.structure(mine) == jax.tree.structure(stock)
    for left, right in zip(jax.tree.leaves(mine), jax.tree.leaves(stock), strict=True):
        assert (left.dtype, left.shape, left.weak_type) == (right.dtype, right.shape, right.weak_type)
        assert left.sharding == right.sharding, (left.sharding, right.sharding)
        np.testing.assert_allclose(np.asarray(left), np.asarray(right), rtol=2e-5, atol=2e-5)


def calls(jitted: Any, *arguments: Any) -> int:
    return int(jitted.lower(*arguments).as_text().count("jax_cocktail_cpu"))


def agrees(function: Any, *arguments: Any, least: int = 1, **options: Any) -> Any:
    """Checks our program of a function against stock XLA's, and that it has so many custom calls at least."""
    jitted = ours(function, **options)
    assert calls(jitted, *arguments) >= least, jitted.lower(*arguments).as_text()
    result = jitted(*arguments)
    same(result, jax.jit(function, **options)(*arguments))
    return result


def raised(function: Any, *arguments: Any) -> tuple[type, str]:
    try:
        jax.block_until_ready(function(*arguments))
    except Exception as error:
        return type(error), str(error)
    raise AssertionError("no error")


# ---- jit around shard_map, and inside of it ----------------------------------------------------------------


@case
def around(mesh: Mesh) -> None:
    for check in (True, False):
        agrees(divided(recurrent, mesh, check), weights(), inputs(mesh))


@case
def inside(mesh: Mesh) -> None:
    stock = jax.jit(divided(recurrent, mesh))(weights(), inputs(mesh))
    for check in (True, False):
        mapped = jax.jit(divided(ours(recurrent), mesh, check))
        assert calls(mapped, weights(), inputs(mesh)) == 1
        same(mapped(weights(), inputs(mesh)), stock)
        same(divided(ours(recurrent), mesh, check)(weights(), inputs(mesh)), stock)  # not in a jit


@case
def around_and_inside(mesh: Mesh) -> None:
    both = ours(divided(ours(recurrent), mesh))
    assert calls(both, weights(), inputs(mesh)) == 1
    same(both(weights(), inputs(mesh)), jax.jit(divided(recurrent, mesh))(weights(), inputs(mesh)))


@case
def inside_other_jits(mesh: Mesh) -> None:
    mapped = jax.jit(divided(jax.jit(recurrent), mesh))
    agrees(lambda w, xs: mapped(w, xs * 2).sum() + mapped(w, xs).sum(), weights(), inputs(mesh), least=2)


@case
def a_loop_around(mesh: Mesh) -> None:
    """The body of a `shard_map` is divided also where the `shard_map` is in a loop."""
    mapped = divided(lambda w, xs: recurrent(w, xs)[..., None] + xs, mesh)

    def repeated(w: jax.Array, xs: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 3, lambda i, xs: mapped(w, xs) * 0.5, xs)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        xs = jax.device_put(inputs(mesh), NamedSharding(mesh, ROWS))
        agrees(repeated, weights(), xs)
    assert all("devices" in str(each.message) or "shard_map" in str(each.message) for each in caught), caught


@case
def two_bodies_and_a_loop_beside(mesh: Mesh) -> None:
    first, second = divided(recurrent, mesh), divided(lambda w, xs: recurrent(w * 2, xs), mesh, False)

    def function(w: jax.Array, xs: jax.Array) -> jax.Array:
        total = first(w, xs).sum() + second(w, xs).sum()
        return lax.fori_loop(0, 3, lambda i, a: jnp.sin(a), total)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        agrees(function, weights(), inputs(mesh), least=2)
        report = jax_cocktail.explain(ours(function))(weights(), inputs(mesh))
    assert len(report.inner) == 2 and all(each.captured for each in report.inner)
    if mesh.size > 1:
        assert f"{mesh.size} devices" in str(caught[0].message)
        assert [each.what for each in report.left] == ["scan"], report.left
    else:
        assert not caught and report.captured


@case
def gradients(mesh: Mesh) -> None:
    for check in (True, False):
        mapped = divided(recurrent, mesh, check)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            gradient = jax.grad(lambda w, xs, f=mapped: (f(w, xs) ** 2).sum(), argnums=(0, 1))
            agrees(gradient, weights(), inputs(mesh), least=2)


@case
def a_mesh_of_two_axes(mesh: Mesh) -> None:
    if mesh.size % 2:
        return
    square = Mesh(np.array(mesh.devices).reshape(2, -1), ("a", "b"))

    def function(w: jax.Array, xs: jax.Array) -> jax.Array:
        return lax.psum(recurrent(w, xs), "b")

    spec = P(None, ("a", "b"))
    mapped = jax.shard_map(function, mesh=square, in_specs=(P(), spec), out_specs=P(None, "a"))
    agrees(mapped, weights(), inputs(mesh))


@case
def axes_that_stay_automatic(mesh: Mesh) -> None:
    """XLA divides such a body further, so it stays with stock XLA."""
    if mesh.size % 2:
        return
    square = Mesh(np.array(mesh.devices).reshape(2, -1), ("a", "b"))
    mapped = jax.shard_map(
        recurrent,
        mesh=square,
        in_specs=(P(), P(None, "a")),
        out_specs=P(None, "a"),
        axis_names={"a"},
    )
    jitted = ours(mapped)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = jitted(weights(), inputs(mesh))
        report = jax_cocktail.explain(jitted)(weights(), inputs(mesh))
    same(result, jax.jit(mapped)(weights(), inputs(mesh)))
    if square.shape["b"] > 1:
        assert "automatic" in str(caught[0].message) and "automatic" in report.left[0].reason


@case
def closed_over_constants(mesh: Mesh) -> None:
    table = np.arange(4096.0, dtype=np.float32) / 4096

    def function(w: jax.Array, xs: jax.Array) -> jax.Array:
        return recurrent(w, xs + jnp.asarray(table)[: xs.shape[-1]]) + recurrent(w * table.sum(), xs)

    agrees(divided(jax.jit(function), mesh), weights(), inputs(mesh))


@case
def branches_and_keys(mesh: Mesh) -> None:
    def function(key: jax.Array, xs: jax.Array) -> Any:
        key = jax.random.fold_in(key, lax.axis_index("d"))

        def step(carry: Any, x: jax.Array) -> Any:
            key, total = carry
            key, own = jax.random.split(key)
            total = lax.cond(x.sum() > 0, lambda t: t + 1, lambda t: t * 0.5, total)
            return (key, total), jax.random.uniform(own, x.shape)

        start = key, xs[0, :, 0]
        (key, total), drawn = lax.scan(step, start, xs)
        return drawn, total

    specs = {"in_specs": (P(), ROWS), "out_specs": (ROWS, P("d"))}
    agrees(jax.shard_map(function, mesh=mesh, **specs), jax.random.key(3), inputs(mesh))


@case
def measured_once(mesh: Mesh) -> None:
    """One decision for all devices, by times of the whole call, which the next call finds."""
    mapped = divided(lambda w, xs: recurrent(w, xs), mesh)
    jitted = jax_cocktail.jit(mapped, options={"compile": "now", "plans": "cached"})
    jitted(weights(), inputs(mesh, steps=3000))
    report = jax_cocktail.explain(jitted)(weights(), inputs(mesh, steps=3000))
    assert report.why.startswith("measured before"), report.why
    assert {"stock XLA", "1 unit"} <= {each.name for each in report.trials}
    mine = max(len(os.sched_getaffinity(0)) // mesh.size, 1)
    assert all(each.units <= mine for each in report.captured), report
    same(jitted(weights(), inputs(mesh, 3000)), jax.jit(mapped)(weights(), inputs(mesh, 3000)))


@case
def in_the_background(mesh: Mesh) -> None:
    with TemporaryDirectory() as new, patch.dict(os.environ, JAX_COCKTAIL_CACHE_DIR=new):
        _in_the_background(mesh)  # nothing changes over to what an earlier run has compiled


def _in_the_background(mesh: Mesh) -> None:
    mapped = divided(lambda w, xs: recurrent(w, xs) * 2, mesh)
    jitted = jax_cocktail.jit(mapped, options={**FORCED, "compile": "background", "plans": "cached"})
    stock = jax.jit(mapped)(weights(), inputs(mesh))
    same(jitted(weights(), inputs(mesh)), stock)
    before = jax_cocktail.cache_info().changed_over
    assert jax_cocktail.wait()
    same(jitted(weights(), inputs(mesh)), stock)
    info = jax_cocktail.cache_info()
    assert info.changed_over == before + 1 or before, info
    assert not info.failed and not jax_cocktail.explain(jitted)(weights(), inputs(mesh)).now


@case
def several_units_at_once(mesh: Mesh) -> None:
    """Every device asks for all cores, with barriers between them, and nobody waits for another device."""
    wide = weights(256) / 16
    mapped = divided(lambda w, xs: recurrent(w, xs), mesh)
    jitted = jax_cocktail.jit(mapped, options={**FORCED, "units": 4})
    xs = inputs(mesh, 60, 256)
    report = jax_cocktail.explain(jitted)(wide, xs)
    assert report.captured[0].units > 1 and report.captured[0].waits, report
    stock = jax.jit(mapped)(wide, xs)
    for _ in range(5):
        same(jitted(wide, xs), stock)


@case
def donated_and_committed(mesh: Mesh) -> None:
    def function(w: jax.Array, xs: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 3, lambda i, a: jnp.sin(a) @ w, xs)

    mapped, spread = divided(function, mesh), NamedSharding(mesh, ROWS)
    deleted = []
    for wrap in (jax.jit, ours):
        xs = jax.device_put(inputs(mesh), spread)
        result = wrap(mapped, donate_argnums=1)(jax.device_put(weights(), NamedSharding(mesh, P())), xs)
        deleted.append((xs.is_deleted(), np.asarray(result), result.sharding, result.committed))
    assert deleted[0][0] == deleted[1][0] and deleted[0][2:] == deleted[1][2:]
    np.testing.assert_allclose(deleted[1][1], deleted[0][1], rtol=2e-5, atol=2e-5)


# ---- bad input ---------------------------------------------------------------------------------------------


@case
def one_device(mesh: Mesh) -> None:
    single = Mesh(np.array(mesh.devices).ravel()[:1], ("d",))
    agrees(divided(recurrent, single), weights(), inputs(single))
    last = Mesh(np.array(mesh.devices).ravel()[-1:], ("d",))
    agrees(divided(recurrent, last), weights(), inputs(last))


@case
def shards_that_do_not_divide(mesh: Mesh) -> None:
    xs = jnp.ones((5, 2 * mesh.size + 1, 8))
    if mesh.size > 1:
        mapped = divided(recurrent, mesh)
        assert raised(ours(mapped), weights(), xs) == raised(jax.jit(mapped), weights(), xs)
        jitted = [wrap(recurrent, in_shardings=(None, NamedSharding(mesh, ROWS))) for wrap in (ours, jax.jit)]
        assert raised(jitted[0], weights(), xs) == raised(jitted[1], weights(), xs)


@case
def devices_that_are_not_there(mesh: Mesh) -> None:
    same_twice = Mesh(np.array([mesh.devices.flat[0]] * 2), ("d",))
    no_mesh = jax.sharding.AbstractMesh((2 * mesh.size,), ("d",))
    for each in (same_twice, no_mesh):
        mapped = divided(recurrent, each)
        xs = inputs(each)
        assert raised(ours(mapped), weights(), xs) == raised(jax.jit(mapped), weights(), xs)


@case
def an_axis_that_is_no_axis(mesh: Mesh) -> None:
    def function(w: jax.Array, xs: jax.Array) -> jax.Array:
        return lax.psum(recurrent(w, xs), "no such axis")

    mapped = divided(function, mesh)
    assert raised(ours(mapped), weights(), inputs(mesh)) == raised(jax.jit(mapped), weights(), inputs(mesh))


@case
def gradients_of_empty_stacks(mesh: Mesh) -> None:
    """Sums over devices that a loop of no iterations stacks, alone and in a loop that iterates."""

    def empty(w: jax.Array, xs: jax.Array) -> Any:
        def step(h: jax.Array, x: jax.Array) -> Any:
            return jnp.tanh(h @ w + x), lax.psum(jnp.sin(x) @ w * h, "d")

        h, stacked = lax.scan(step, xs[0] * 0.5, xs[:0])
        return lax.psum(h.sum(), "d") + (stacked**2).sum()

    def repeated(w: jax.Array, xs: jax.Array) -> Any:
        return lax.scan(lambda total, x: (total + empty(w, x[None]), None), jnp.float32(0), xs)[0]

    ins = (P(), ROWS)
    for function in (empty, repeated):
        whole = jax.shard_map(function, mesh=mesh, in_specs=ins, out_specs=P())
        inside = jax.shard_map(jax.grad(function, (0, 1)), mesh=mesh, in_specs=ins, out_specs=ins)
        for gradient in (jax.grad(whole, (0, 1)), inside):
            agrees(gradient, weights(), inputs(mesh), least=0)


@case
def an_error_of_one_device(mesh: Mesh) -> None:
    @jax_cocktail.recursive(max_depth=6, max_calls=32, out_like=lambda n: n)
    def grow(self: Any, n: jax.Array) -> jax.Array:
        return lax.cond(n < 1, lambda: n, lambda: self(n - 1) + 1)

    mapped = jax.shard_map(
        lambda n: grow(n[0])[None], mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False
    )
    few = jnp.arange(mesh.size, dtype=jnp.int32) % 3
    agrees(mapped, few)
    many = few.at[mesh.size - 1].set(9)
    (mine, text), (stock, other) = raised(ours(mapped), many), raised(jax.jit(mapped), many)
    assert mine is stock and "grow" in text and "grow" in other, (text, other)
    agrees(mapped, few)  # what failed leaves nothing behind


def cases_of(*modules: str) -> list[str]:
    """The names of the cases of some modules."""
    for each in modules:
        import_module(each)
    return [name for name, each in CASES.items() if each.__module__ in modules]


@cache
def wrong(devices: int, *modules: str) -> dict[str, str]:
    """What is wrong with each case of some modules, in a process with so many devices."""
    out = python(
        f"from tests.api.several_devices import main; main({devices}, *{modules})",
        XLA_FLAGS=f"--xla_force_host_platform_device_count={devices}",
    )
    found: dict[str, str] = json.loads(out.splitlines()[-1])  # JAX prints lines of its own
    return found


def main(devices: int, *modules: str) -> None:
    mesh, wrong = Mesh(np.array(jax.devices()), ("d",)), dict[str, str]()
    assert mesh.size == devices
    for name in cases_of(*modules):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", jax_cocktail.CocktailWarning)
                CASES[name](mesh)
            wrong[name] = ""
        except Exception:
            wrong[name] = traceback.format_exc()
    print(json.dumps(wrong))
