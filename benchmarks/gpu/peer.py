"""What stock XLA makes of a row for a card that is not here: kernels launched, and bytes they move.

XLA compiles for the card from a description of it. Counted is what the optimised module runs; a loop counts
its trips, where XLA knows them, a branch its longest side. Bytes are those of operands and results, so that
what caches spare, and what a slice leaves alone, is counted all the same.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
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


@dataclass(frozen=True, slots=True)
class Cost:
    """Kernels and bytes of one execution; `decisions`: how often the host or a graph looks at a condition."""

    kernels: float = 0.0
    bytes: float = 0.0
    decisions: float = 0.0
    unknown: bool = False

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.kernels + other.kernels,
            self.bytes + other.bytes,
            self.decisions + other.decisions,
            self.unknown or other.unknown,
        )

    def times(self, factor: float) -> Cost:
        """As often as that."""
        return Cost(self.kernels * factor, self.bytes * factor, self.decisions * factor, self.unknown)


_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_LINE = re.compile(r"^\s*(?:ROOT )?%([\w.\-]+) = ((?:\([^=]*?\)|\S+)) ([\w\-]+)\((.*)$")
_SHAPE = re.compile(r"\b(pred|bf16|f8\w+|[sufc]\d+)\[([\d,]*)\]")
_FREE = frozenset(
    {
        "parameter",
        "constant",
        "tuple",
        "get-tuple-element",
        "bitcast",
        "after-all",
        "partition-id",
        "replica-id",
        "add-dependency",
        "opt-barrier",
        "async-done",
        "async-update",
        "copy-done",
    }
)


def _bytes(text: str) -> int:
    sizes = {"pred": 1, "bf16": 2}
    total = 0
    for dtype, extents in _SHAPE.findall(text):
        bits = int(re.findall(r"\d+", dtype)[0]) if dtype not in sizes else 0
        total += (sizes.get(dtype) or max(bits // 8, 1)) * prod(int(x) for x in extents.split(",") if x)
    return total


@dataclass(frozen=True)
class Module:
    """A module's text, read."""

    text: str

    @cached_property
    def _computations(self) -> Mapping[str, list[re.Match[str]]]:
        found: dict[str, list[re.Match[str]]] = {}
        current = ""
        for line in re.sub(r"/\*.*?\*/", "", self.text).splitlines():
            if head := _HEAD.match(line):
                current = "ENTRY" if head[1] else head[2]
                found[current] = []
            elif (match := _LINE.match(line)) and current:
                found[current].append(match)
        return found

    @property
    def cost(self) -> Cost:
        """Of one execution of the module."""
        return self._cost("ENTRY")

    def _cost(self, name: str) -> Cost:
        lines = self._computations.get(name, [])
        shapes = {line[1]: _bytes(line[2]) for line in lines}
        return sum((self._instruction(line, shapes) for line in lines), Cost())

    def _instruction(self, line: re.Match[str], shapes: Mapping[str, int]) -> Cost:
        name, _, opcode, rest = line.groups()
        if opcode in _FREE:
            return Cost()
        called = lambda key: re.findall(rf"\b{key}=%?([\w.\-]+)", rest)  # noqa: E731
        if opcode == "while":
            trips = re.search(r'"known_trip_count":\{"n":"(\d+)"', rest)
            number = int(trips[1]) if trips else UNKNOWN_TRIPS
            once = self._cost(called("body")[0]) + self._cost(called("condition")[0]) + Cost(decisions=1)
            return once.times(number) + Cost(unknown=trips is None)
        if opcode == "conditional":
            names = re.search(r"branch_computations=\{([^}]*)\}", rest)
            sides = re.findall(r"[\w.\-]+", names[1]) if names else called(r"(?:true|false)_computation")
            return max((self._cost(side) for side in sides), key=lambda c: c.kernels) + Cost(decisions=1)
        if opcode in ("call", "async-start"):
            return sum((self._cost(n) for n in called("to_apply") + called("calls")), Cost())
        operands = re.findall(r"%([\w.\-]+)", rest.split("), ")[0])
        moved = shapes[name] + sum(shapes.get(operand, 0) for operand in operands)
        return Cost(kernels=1, bytes=moved)
