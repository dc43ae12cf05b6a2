"""An H200 that is not here: XLA compiles for it from a description, with jax's CUDA plugin alone."""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

import jax_cocktail
from benchmarks.gpu.peer import target_text
from benchmarks.gpu.thunks import Thunk, thunks
from jax_cocktail.device.nvidia import H200

NO_PLUGIN = "needs jax-cuda13-plugin and jax-cuda13-pjrt of this jax version (--no-deps): .ci/run does it"
OURS = "jax_cocktail_gpu"
OURS_WITHOUT_GRAPH = "jax_cocktail_gpu_nograph"
FORCED = {"force": "cocktail", "strict": True}


def has_plugin() -> bool:
    """Whether jax can load XLA for NVIDIA GPUs in this process."""
    try:
        return importlib.util.find_spec("jax_plugins.xla_cuda13") is not None
    except ModuleNotFoundError:
        return False


@functools.cache
def cards(count: int, text: str = "") -> Any:
    """The devices of the described topology: so many cards of one host. `text`: another description than that
    of H200s."""
    jax.devices()  # jax loads the plugin while it looks for devices
    described = topologies.get_topology_desc(
        platform="cuda",
        topology_name=f"1x1x{count}",
        topology=f"1x1x{count}",
        target_config=text or target_text(H200),
    )
    return described.devices


def card(text: str = "") -> Any:
    return cards(1, text)[0]


def shapes(arguments: Any, text: str = "") -> Any:
    """The arguments of a function as shapes on the card."""
    where = SingleDeviceSharding(card(text))
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), arguments)


def ours(function: Callable[..., Any], **options: Any) -> Any:
    """The function through our compiler, whatever the model thinks of it."""
    return jax_cocktail.jit(function, options={**FORCED, **options})


# ---- compiling ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compiled:
    """An executable for the card: its module after all of XLA's passes, and the steps that it takes."""

    executable: Any
    text: str
    steps: list[Thunk]
    dumped: Mapping[str, str]

    def all(self, kind: str) -> list[Thunk]:
        """Every step of a kind, wherever it is."""
        return [each for step in self.steps for each in step.walk() if each.kind == kind]

    @property
    def captured(self) -> list[str]:
        """Kinds of the steps inside command buffers."""
        return [
            each.kind
            for buffer in self.all("kCommandBuffer")
            for step in buffer.inner
            for each in step.walk()
        ]

    @property
    def targets(self) -> list[str]:
        """Names of the custom calls."""
        return re.findall(r'custom_call_target="(\w+)"', self.text)


def compiled(
    jitted: Any, arguments: Any, folder: Path, text: str = "", options: Mapping[str, Any] | None = None
) -> Compiled:
    """Compiles a jitted function for the card; `folder`: for XLA's dumps, new or empty."""
    folder.mkdir(exist_ok=True)
    chosen = {"xla_gpu_autotune_level": 0, "xla_dump_to": str(folder), **(options or {})}
    executable = jitted.lower(*shapes(arguments, text)).compile(compiler_options=chosen)
    dumped = {path.name.split(".", 2)[-1]: path for path in sorted(folder.iterdir()) if path.is_file()}
    after = dumped.get("thunk_sequence_after_thunk_passes.txt") or dumped["thunk_sequence.txt"]
    config = {name: path.read_text() for name, path in dumped.items() if name == "gpu_target_config.pbtxt"}
    return Compiled(executable, executable.as_text(), thunks(after.read_text()), config)
