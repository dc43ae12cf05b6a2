"""Programs under `shard_map` lowered for GPUs over meshes that have no devices."""

from __future__ import annotations

import hashlib

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_cocktail
from jax_cocktail.compiler import Artifact
from jax_cocktail.lowering.choice import variants
from jax_cocktail.utask.plan import LaunchPlan

pytestmark = pytest.mark.all_candidates

BINARY = b"not looked at while lowering"
OURS = "@jax_cocktail_gpu("


def function(x):
    return lax.fori_loop(0, 5, lambda _, y: jnp.tanh(y) + x, x)


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("devices", [2, 8])
def test_a_mesh_without_devices(monkeypatch, devices, check):
    """`shard_map` over an abstract mesh: one call, for one device, with the shapes of its shard."""

    def build(emitted, *, cache_limit_bytes):
        plan = LaunchPlan(256, 132, 128, 4096, 1024, 4352, cooperative=True)
        return Artifact(BINARY, hashlib.sha256(BINARY).hexdigest(), emitted, 0.0, True, "program", plan)

    monkeypatch.setattr(variants, "build", build)
    mesh = AbstractMesh((devices,), ("d",))
    mapped = jax.shard_map(
        lambda x: lax.psum(function(x), "d"), mesh=mesh, in_specs=P("d"), out_specs=P(), check_vma=check
    )
    where = NamedSharding(mesh, P("d"))
    x = jax.ShapeDtypeStruct((8 * devices,), jnp.float32, sharding=where)
    traced = jax_cocktail.jit(mapped, options={"force": "cocktail", "strict": True}).trace(x)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count(OURS) == text.count("stablehlo.all_reduce") == 1, text
    (line,) = (line for line in text.splitlines() if OURS in line)
    assert line.split(" : ")[-1].startswith("(tensor<8xf32>)") and "while" not in text
