"""What a program says of the shardings of its values: more cases of `sharded_arguments`."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_cocktail
from tests.api.several_devices import ROWS, calls, case, inputs, ours, recurrent, same, weights
from tests.api.sharded_arguments import agrees, divided_inputs, put


@case
def copied_arguments(mesh: Mesh) -> None:
    w, xs = (put(mesh, each) for each in (weights(), inputs(mesh)))
    agrees(recurrent, w, xs)
    agrees(jax.grad(lambda w, xs: recurrent(w, xs).sum()), w, xs)


@case
def shardings_of_jit(mesh: Mesh) -> None:
    w, xs = divided_inputs(mesh)
    copied, rows = NamedSharding(mesh, P()), NamedSharding(mesh, ROWS)
    agrees(recurrent, weights(), inputs(mesh), in_shardings=(copied, rows))
    agrees(recurrent, weights(), inputs(mesh), in_shardings=(copied, rows), out_shardings=rows)
    agrees(recurrent, w, xs, out_shardings=copied, moved=["all-gather"])
    if 12 % mesh.size == 0:
        by_steps = NamedSharding(mesh, P("d"))
        agrees(recurrent, w, xs, out_shardings=by_steps, moved=["all-gather", "all-to-all"])
    abstract = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding) for a in (w, xs)]
    compiled = ours(recurrent).lower(*abstract).compile()
    assert "jax_cocktail_cpu" in compiled.as_text()
    same(compiled(w, xs), jax.jit(recurrent)(w, xs))


@case
def constraints_inside(mesh: Mesh) -> None:
    w, xs = divided_inputs(mesh)
    copied, rows = NamedSharding(mesh, P()), NamedSharding(mesh, ROWS)

    def function(w: jax.Array, xs: jax.Array) -> Any:
        first = recurrent(w, lax.with_sharding_constraint(xs * 2, rows))
        whole = lax.with_sharding_constraint(first, copied)
        return lax.fori_loop(0, 3, lambda i, a: jnp.sin(a), whole)

    agrees(function, w, xs, least=2, moved=["all-gather"])
    agrees(function, w, put(mesh, xs), least=2, moved=["all-gather"])
    free = NamedSharding(mesh, P(P.UNCONSTRAINED, None, "d"))  # the rows, and the columns of weights

    def unconstrained(w: jax.Array, xs: jax.Array) -> jax.Array:
        return recurrent(w, lax.with_sharding_constraint(xs, free))

    same(ours(unconstrained)(w, xs), jax.jit(unconstrained)(w, xs))

    def looped(w: jax.Array, xs: jax.Array) -> Any:
        def step(h: jax.Array, x: jax.Array) -> Any:
            h = lax.with_sharding_constraint(jnp.tanh(h @ w + x), NamedSharding(mesh, P("d")))
            return h, h

        return lax.scan(step, xs[0] * 0, xs)

    agrees(looped, w, xs)


@case
def explicit_meshes(mesh: Mesh) -> None:
    explicit = jax.make_mesh((mesh.size,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    w, xs = divided_inputs(explicit)
    agrees(recurrent, w, xs)
    with jax.set_mesh(explicit):
        agrees(recurrent, w, xs)


@case
def types_that_say_shardings(mesh: Mesh) -> None:
    """What our program has whole or divided may be another axis than the type of a value says."""
    explicit = jax.make_mesh((mesh.size,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    w, xs = divided_inputs(explicit)
    reshard = jax.sharding.reshard

    def mixed(xs: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 5, lambda i, x: jax.nn.softmax(x, 1) + 0.1 * x, xs)

    def moving(xs: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 3, lambda i, x: reshard(jnp.sin(reshard(x, P())), ROWS), xs)

    with jax.set_mesh(explicit):
        gathered = ["all-gather", "all-reduce"]
        agrees(mixed, xs, moved=gathered)
        agrees(moving, xs)
        agrees(lambda w, xs: recurrent(w, reshard(xs, P())), w, xs, moved=gathered)
        agrees(lambda w, xs: reshard(recurrent(w, xs), P()), w, xs, moved=gathered)
        if 8 % mesh.size == 0:
            agrees(lambda w, xs: recurrent(reshard(w, P("d")), xs), w, xs, moved=gathered)


@case
def shardings_of_inner_jits(mesh: Mesh) -> None:
    if 12 % mesh.size:
        return
    w, xs = divided_inputs(mesh)
    copied, by_steps = NamedSharding(mesh, P()), NamedSharding(mesh, P("d"))
    moved = ["all-gather", "all-to-all"]
    agrees(lambda w, xs: jax.jit(recurrent, out_shardings=copied)(w, xs), w, xs, moved=moved)
    agrees(lambda w, xs: jax.jit(recurrent, out_shardings=by_steps)(w, xs), w, xs, moved=moved)
    doubled = jax.jit(lambda xs: xs * 2, in_shardings=copied)
    agrees(lambda w, xs: recurrent(w, doubled(xs)), w, xs, moved=moved)


@case
def meshes_in_force(mesh: Mesh) -> None:
    with jax.set_mesh(mesh):
        agrees(recurrent, *divided_inputs(mesh))


@case
def devices_in_another_order(mesh: Mesh) -> None:
    other = Mesh(np.array(mesh.devices)[::-1], ("d",))
    agrees(recurrent, *divided_inputs(other))
    agrees(recurrent, *divided_inputs(mesh))


@case
def donated_arguments(mesh: Mesh) -> None:
    def function(w: jax.Array, xs: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 3, lambda i, a: jnp.sin(a) @ w, xs)

    found = []
    for wrap in (jax.jit, ours):
        w, xs = divided_inputs(mesh)
        result = wrap(function, donate_argnums=1)(w, xs)
        found.append((xs.is_deleted(), result.sharding, result.committed, np.asarray(result)))
    assert found[0][:3] == found[1][:3], found
    np.testing.assert_allclose(found[0][3], found[1][3], rtol=2e-5, atol=2e-5)


@case
def inside_of_other_functions(mesh: Mesh) -> None:
    w, xs = divided_inputs(mesh)
    assert calls(jax.jit(lambda w, xs: ours(recurrent)(w, xs) * 2), w, xs) == 1
    rows = NamedSharding(mesh, ROWS)
    outer = jax.jit(lambda w, xs: ours(recurrent)(w, lax.with_sharding_constraint(xs * 2, rows)))
    assert calls(outer, w, xs) == 1
    same(outer(w, xs), jax.jit(recurrent)(w, xs * 2))

    def repeated(xs: jax.Array) -> jax.Array:  # a place that nothing else warns of
        return lax.fori_loop(0, 3, lambda i, a: jnp.sin(a), xs)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        unknown = jax.jit(lambda xs: ours(repeated)(xs * 2))
        assert calls(unknown, xs) == (mesh.size == 1)
        same(unknown(xs), jax.jit(repeated)(xs * 2))
    assert (mesh.size == 1) == (not caught), caught
    # the weights are known to be whole, but not what the batch is
    partly = jax.jit(lambda w, xs: ours(recurrent)(w, xs * 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert calls(partly, w, xs) == (mesh.size == 1)
        same(partly(w, xs), jax.jit(recurrent)(w, xs * 2))


@case
def a_shard_map_and_a_loop(mesh: Mesh) -> None:
    mapped = jax.shard_map(recurrent, mesh=mesh, in_specs=(P(), ROWS), out_specs=ROWS)

    def function(w: jax.Array, xs: jax.Array) -> Any:
        return mapped(w, xs), recurrent(w * 2, xs)

    w, xs = divided_inputs(mesh)
    agrees(function, w, xs, least=2)
    report = jax_cocktail.explain(ours(function))(w, xs)
    assert sum(len(each.captured) for each in (report, *report.inner)) == 2, report


@case
def transformed_calls(mesh: Mesh) -> None:
    w, xs = divided_inputs(mesh)
    several = put(mesh, jnp.stack([weights(), weights() * 2]))
    mapped = jax.vmap(ours(recurrent), (0, None))
    same(mapped(several, xs), jax.vmap(jax.jit(recurrent), (0, None))(several, xs))
    assert calls(jax.jit(mapped), several, xs) == 1
