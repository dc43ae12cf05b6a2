"""The machines that code is emitted for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from jax_cocktail.codegen.cpu import CPU
from jax_cocktail.codegen.cuda import cuda
from jax_cocktail.codegen.rocm import rocm
from jax_cocktail.device.host import SERVER, HostSpec
from jax_cocktail.device.machine import Machine
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.device.target import Target
from jax_cocktail.device.tuning import BLOCK
from jax_cocktail.errors import UnsupportedError

HOST = Machine(CPU)
_TARGETS: dict[str, Callable[[int, DeviceSpec], Target]] = {  # by platform; of blocks of so many threads
    "cuda": lambda threads, spec: cuda(threads),
    "rocm": lambda threads, spec: rocm(threads, spec.warp, spec.dies),
}


def machine_of(spec: DeviceSpec | None, threads: int | None = None, host: HostSpec = SERVER) -> Machine:
    """The host with these figures, or a GPU with this many threads per block; None: its target's default."""
    if spec is None:
        return HOST if host is SERVER else replace(HOST, host=host)
    if spec.platform not in _TARGETS:
        raise UnsupportedError(f"no code is made for the platform {spec.platform}")
    return Machine(_TARGETS[spec.platform](BLOCK.threads if threads is None else threads, spec), spec)


def with_threads(machine: Machine, threads: int) -> Machine:
    """The machine with this many threads per block; 0 leaves it as it is, as does a host."""
    if machine.spec is None or threads in (0, machine.target.threads):
        return machine
    sized = _TARGETS[machine.spec.platform](threads, machine.spec)
    return replace(machine, target=replace(sized, outline_limit=machine.target.outline_limit))
