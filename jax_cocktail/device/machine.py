"""A machine: what a program is compiled for."""

from __future__ import annotations

from dataclasses import dataclass

from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.device.target import Target


@dataclass(frozen=True, slots=True)
class Machine:
    """How programs are spelled for a machine, and what its GPU can do. `codegen.machines` makes them.

    Attributes:
      target: the spellings.
      spec: the GPU; None for the host, whose units are single threads.
    """

    target: Target
    spec: DeviceSpec | None = None

    def __post_init__(self) -> None:
        if self.is_gpu != self.target.has_threads:
            raise ValueError("programs of a GPU, and no others, are spelled for blocks of threads")
        if self.spec is not None and self.target.threads % self.spec.warp:
            raise ValueError(f"a block of {self.spec.name} has a multiple of {self.spec.warp} threads")

    @property
    def is_gpu(self) -> bool:
        """True if a unit is a block of threads."""
        return self.spec is not None

    @property
    def platform(self) -> str:
        """What jax calls it."""
        return "cpu" if self.spec is None else self.spec.platform
