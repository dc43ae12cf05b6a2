"""The known cards, and the one to plan for."""

from __future__ import annotations

from jax_cocktail.device.amd import MI100, MI250X, MI300X, MI355X, RX_7900_XTX
from jax_cocktail.device.nvidia import A100, B200, B300, H100, H200, L40S, RTX_3090, RTX_5090
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.errors import BuildError

# The known cards. The last one of an architecture represents it.
NVIDIA = (A100, RTX_3090, L40S, H100, H200, B200, B300, RTX_5090)
AMD = (MI100, MI250X, MI300X, MI355X, RX_7900_XTX)
CARDS = (*NVIDIA, *AMD)
DEFAULT = H200
DEFAULTS = {spec.platform: spec for spec in (DEFAULT, MI300X)}  # to plan for where there is no device
_BY_ARCH = {spec.arch: spec for spec in CARDS}
ARCHES = tuple(_BY_ARCH)


def spec_for(arch: str) -> DeviceSpec:
    """The card that represents an architecture: "sm_90", also as "sm_90a". BuildError if there is none."""
    spec = _BY_ARCH.get(arch) or _BY_ARCH.get(arch.rstrip("af") if arch.startswith("sm_") else arch)
    if spec is None:
        raise BuildError(
            f"there is no device of the architecture {arch!r} to plan for",
            f"set the option gpu_arch (or JAX_COCKTAIL_GPU_ARCH) to one of {', '.join(ARCHES)}",
        )
    return spec


def card_like(name: str, arch: str) -> DeviceSpec:
    """The known card of this name and architecture, else the one that represents the architecture."""
    return next((spec for spec in CARDS if (spec.name, spec.arch) == (name, arch)), None) or spec_for(arch)
