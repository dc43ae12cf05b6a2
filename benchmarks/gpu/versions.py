"""The versions of what runs here, and what the vendor's tool says of the clocks; jax is not imported."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import shutil
import subprocess
from typing import Any

from jax_cocktail.config import VERSION

PACKAGES = (
    *("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda13-pjrt", "nvidia-cudnn-cu13"),
    *("jax-rocm7-plugin", "jax-rocm7-pjrt", "jax-rocm60-plugin", "jax-rocm60-pjrt", "numpy", "torch"),
)
_QUERY = "--query-gpu=driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,mig.mode.current"
TOOLS = {  # what prints the clocks, by program
    "nvidia-smi": (_QUERY, "--format=csv"),
    "rocm-smi": ("--showclocks", "--showmaxpower", "--showcomputepartition", "--csv"),
}
_SECONDS = 20.0


def found() -> dict[str, Any]:
    """`jax_cocktail`, `python`, `packages` by name, and `clocks`: what the vendor's tool says, or ""."""
    packages = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    return {
        "jax_cocktail": VERSION,
        "python": platform.python_version(),
        "packages": packages,
        "clocks": _clocks(),
    }


def _clocks() -> str:
    for name, arguments in TOOLS.items():
        if program := shutil.which(name):
            try:
                done = subprocess.run(
                    [program, *arguments], capture_output=True, text=True, timeout=_SECONDS, check=False
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                return str(error)
            return done.stdout.strip()
    return ""
