"""Compiles programs for GPUs with the compilers of their platform, through the same cache as CPU programs."""

from __future__ import annotations

from jax_cocktail.build import cuda, rocm
from jax_cocktail.build.job import Job, is_done, obtain
from jax_cocktail.build.kernels import Compilers, DeviceBuilt, DeviceToolchain, kernels_of, unknown_arch
from jax_cocktail.cache import DEFAULT_LIMIT_BYTES
from jax_cocktail.device.cards import ARCHES, DEFAULT
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.errors import BuildError

_PLATFORMS = {each.platform: each for each in (cuda.COMPILERS, rocm.COMPILERS)}


def device_toolchain(arch: str = "", platform: str = DEFAULT.platform) -> DeviceToolchain:
    """The compiler to use for an architecture ("sm_90", "gfx942"); for any of the platform if it is "".
    Raises BuildError if there is none."""
    return (_compilers(arch) if arch else _PLATFORMS[platform]).find(arch)


def build_device_program(
    source: str,
    toolchain: DeviceToolchain,
    device: DeviceSpec | str,
    *,
    cache_limit_bytes: int = DEFAULT_LIMIT_BYTES,
    options: tuple[str, ...] = (),
) -> DeviceBuilt:
    """Compiles a program's text for a device or an architecture ("sm_90"), or takes it from the cache.

    `options`: further arguments of the compiler.

    Raises:
      BuildError: the architecture is unknown, there is no compiler for it, or the compiler fails.
    """
    arch = device if isinstance(device, str) else device.arch
    built = obtain(device_job(source, toolchain, arch, options), cache_limit_bytes)
    made = built.binary, built.digest, built.path, built.seconds, built.cached
    return DeviceBuilt(*made, arch, kernels_of(built.facts), built.key)


def device_program_is_built(source: str, toolchain: DeviceToolchain, arch: str) -> bool:
    """True if `build_device_program` finds the text in the cache. Raises BuildError as `device_job` does."""
    return is_done(device_job(source, toolchain, arch))


def device_job(source: str, toolchain: DeviceToolchain, arch: str, options: tuple[str, ...] = ()) -> Job:
    """The compilation of a text for an architecture. Raises BuildError unless the toolchain knows it."""
    compilers = _compilers(arch)
    if compilers.platform != toolchain.platform or not toolchain.knows(arch):
        raise unknown_arch(arch, toolchain, compilers.install)
    return compilers.job(source, toolchain, arch, options)


def _compilers(arch: str) -> Compilers:
    """Those of the platform with this architecture. Raises BuildError if no platform has it."""
    for compilers in _PLATFORMS.values():
        if compilers.arch.fullmatch(arch):
            return compilers
    raise BuildError(f"{arch!r} is not an architecture of a GPU", f"one of {', '.join(ARCHES)}")
