"""The machine that a program is compiled for: a code generation target and a device."""

from __future__ import annotations

from dataclasses import dataclass

from jax_cocktail.device.block import Block
from jax_cocktail.device.host import SERVER, HostSpec
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.device.target import Target


@dataclass(frozen=True, slots=True)
class Machine:
    """A code generation target and the specification of the GPU. `codegen.machines` makes machines.

    Attributes:
      target: the target's spellings.
      spec: the GPU's specification; None for the host, whose units are single threads.
      host: the figures of the host, for prices: what is planned does not depend on them.
    """

    target: Target
    spec: DeviceSpec | None = None
    host: HostSpec = SERVER

    def __post_init__(self) -> None:
        if self.spec is not None:
            self.spec.check_block(self.target.threads)
        elif self.target.has_threads:
            raise ValueError("the host needs a target without blocks of threads")

    @property
    def is_gpu(self) -> bool:
        """True if a unit is a block of threads."""
        return self.spec is not None

    @property
    def has_single_warps(self) -> bool:
        """True if a unit is a block of one warp."""
        return self.spec is not None and self.target.threads == self.spec.warp

    @property
    def block(self) -> Block:
        """The threads of a unit: one on the host."""
        return Block(1, 1) if self.spec is None else self.spec.block(self.target.threads)

    @property
    def platform(self) -> str:
        """The platform by jax's name: "cpu", "cuda" or "rocm"."""
        return "cpu" if self.spec is None else self.spec.platform
