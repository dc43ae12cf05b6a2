"""Programs over meshes of H200s that are not here: what XLA makes of one under `shard_map`."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.h200.card import OURS, cards, ours

AUTOTUNE = {"xla_gpu_autotune_level": 0}


def states(w, xs):
    return lax.scan(lambda h, x: (jnp.tanh(h @ w + x), h.sum(-1)), xs[0] * 0, xs)[1]


def step(w, xs):
    """Of training: each device has a part of the batch."""
    gradient = jax.grad(lambda w: (states(w, xs) ** 2).mean())(w)
    return w - 0.1 * lax.pmean(gradient, "d")


def gathered(part, xs):
    """Each device has a part of the weights, too."""
    return jax.grad(lambda w: (states(lax.all_gather(w, "d", tiled=True), xs) ** 2).mean())(part)


@pytest.mark.parametrize("count", [2, 8])
@pytest.mark.parametrize(
    ("function", "weights", "collectives"),
    [(step, P(), {"all-reduce": 1}), (gathered, P("d"), {"all-gather": 1, "reduce-scatter": 1})],
    ids=["data-parallel", "fully-sharded"],
)
def test_one_call_and_no_loop(function, weights, collectives, count):
    """The module is for one device, with its shard: one custom call of ours, and as many collectives as the
    program needs, none of them in a loop."""
    mesh = Mesh(np.array(cards(count)), ("d",))
    mapped = jax.shard_map(
        function, mesh=mesh, in_specs=(weights, P(None, "d")), out_specs=weights, check_vma=False
    )
    places = {(64, 64): weights, (20, 4 * count, 64): P(None, "d")}
    arguments = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
        for shape, spec in places.items()
    ]
    executable = ours(mapped).lower(*arguments).compile(compiler_options=AUTOTUNE)
    text = executable.as_text()
    assert re.findall(r'custom_call_target="(\w+)"', text) == [OURS]
    assert re.findall(r"num_partitions=(\d+)", text) == [str(count)]
    found = re.findall(r" (all-\w+|reduce-scatter|collective-\w+|while)(?:-start)?\(", text)
    assert {name: found.count(name) for name in found} == collectives
