"""What stock XLA makes of a row for a card that is not here, for which it compiles from a description.
`jax_cocktail.cost.hlo` counts the kernels and bytes of the result."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.gpu.peers import NoPeer
from jax_cocktail.device.spec import DeviceSpec

PLUGINS = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")
UNKNOWN_TRIPS = 10  # of a loop whose trip count XLA does not know
_TARGET = """gpu_device_info {{
  threads_per_block_limit: {spec.threads_per_block}
  threads_per_warp: {spec.warp}
  shared_memory_per_block: 49152
  shared_memory_per_core: {spec.shared_per_unit}
  threads_per_core_limit: {spec.threads_per_unit}
  core_count: {spec.units}
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth}
  l2_cache_size: {spec.l2_bytes}
  clock_rate_ghz: 1.98
  device_memory_size: {spec.memory_bytes}
  shared_memory_per_block_optin: {spec.shared_bytes}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: {spec.registers}
  registers_per_block_limit: {spec.registers}
  runtime_version: "13.0.0"
  driver_version: "13.0.0"
  compile_time_toolkit_version: "13.0.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{spec.name}"
"""


def target_text(spec: DeviceSpec) -> str:
    """A card as XLA wants it described. Without the three versions it drops defaults silently."""
    major, minor = divmod(int(spec.arch[3:].rstrip("af")), 10)
    return _TARGET.format(spec=spec, bandwidth=int(spec.memory_rate), major=major, minor=minor)


def compile_for(
    spec: DeviceSpec, function: Callable[..., Any], arguments: tuple[Any, ...], **options: Any
) -> str:
    """The optimised module of stock XLA, as text. Raises `NoPeer` without jax's CUDA plugin."""
    for name in PLUGINS:
        try:
            importlib.import_module(name).initialize()
            break
        except ImportError:
            continue
        except Exception:  # jax may have loaded it already, and there is no driver
            break
    else:
        raise NoPeer("jax-cuda13-plugin and jax-cuda13-pjrt of this jax version are not installed")
    described = topologies.get_topology_desc(
        platform="cuda", topology_name="1x1x1", topology="1x1x1", target_config=target_text(spec)
    )
    where = NamedSharding(Mesh(np.array(described.devices[:1]), ("x",)), PartitionSpec())
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments)
    lowered = jax.jit(function, in_shardings=where, out_shardings=where).lower(*shapes)
    return str(lowered.compile(compiler_options={"xla_gpu_autotune_level": 0, **options}).as_text())
