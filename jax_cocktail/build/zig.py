"""The clang in the `ziglang` package: a compiler for machines that have no other."""

from __future__ import annotations

from pathlib import Path

from jax_cocktail.build.job import package_folders, private_root
from jax_cocktail.cache import prepare_root


def zig() -> tuple[str, dict[str, str]] | None:
    """The program, called directly because `python -m ziglang` takes 0.15 s longer, and its environment; None
    if the package is not installed."""
    folders = package_folders("ziglang")
    binary = Path(folders[0]) / "zig" if folders else None
    if binary is None or not binary.is_file():
        return None
    try:
        folder = prepare_root() / "zig"
    except OSError:
        folder = private_root() / "zig"
    return str(binary), {"ZIG_GLOBAL_CACHE_DIR": str(folder), "ZIG_LOCAL_CACHE_DIR": str(folder)}
