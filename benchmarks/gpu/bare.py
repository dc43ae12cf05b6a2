"""Programs that measure a card: a text of our own behind numbers, with nothing that planned programs have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from jax_cocktail.build.device import build_device_program, device_toolchain

_BARE = {"CK_SHARED_BYTES": 0, "CK_OWN_BYTES": 0, "CK_RESIDENT_BYTES": 0}


def text_of(numbers: Mapping[str, int], *files: str) -> str:
    """The complete CUDA text: numbers, then files of this folder."""
    lines = [f"#define {name} {value}" for name, value in {**_BARE, **numbers}.items()]
    return "\n".join(
        [*lines, *(Path(__file__).with_name(name).read_text(encoding="utf-8") for name in files)]
    )


def compiled(text: str, arch: str) -> bytes:
    """The machine code of a text, possibly from the cache. Raises BuildError."""
    return build_device_program(text, device_toolchain(arch), arch).binary
