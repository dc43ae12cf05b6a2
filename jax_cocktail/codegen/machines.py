"""The machines that code is emitted for."""

from __future__ import annotations

from dataclasses import replace

from jax_cocktail.codegen.cpu import CPU
from jax_cocktail.codegen.cuda import cuda
from jax_cocktail.device.machine import Machine
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.errors import UnsupportedError

HOST = Machine(CPU)
_TARGETS = {"cuda": cuda}  # by platform; each takes the threads of a block


def machine_of(spec: DeviceSpec | None, threads: int | None = None) -> Machine:
    """The host, or a GPU with this many threads per block; None: its target's default."""
    if spec is None:
        return HOST
    if spec.platform not in _TARGETS:
        raise UnsupportedError(f"no code is made for the platform {spec.platform}")
    target = _TARGETS[spec.platform]
    return Machine(target() if threads is None else target(threads), spec)


def with_threads(machine: Machine, threads: int) -> Machine:
    """The machine with this many threads per block; 0 leaves it as it is, as does a host."""
    if machine.spec is None or threads in (0, machine.target.threads):
        return machine
    sized = _TARGETS[machine.spec.platform](threads)
    return replace(machine, target=replace(sized, outline_limit=machine.target.outline_limit))
