"""Programs for a processor that the user names with the compiler."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from jax_cocktail import cache
from jax_cocktail.build import host as build

PROGRAM = """#include "cocktail_base.h"
CK_EXPORT int ck_program(const void* const*, void* const*, u8*, CkUnit*) { return 3; }
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder in use."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("JAX_COCKTAIL_CACHE_DIR", str(folder))
    return folder


@pytest.mark.skipif(platform.machine() != "x86_64", reason="of x86-64 processors")
def test_a_processor_that_the_user_names(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two machines build the same program for it, whatever their own processors are."""
    name, keys = "x86-64-v2", []
    command = " ".join(build.host_toolchain().command)
    for here in ("one processor", "another one"):
        monkeypatch.setattr(build, "_processor", lambda here=here: here)
        for chosen in (command, f"{command} -march={name}", f"{command} -march=native"):
            build._find_toolchain.cache_clear()
            monkeypatch.setenv("CXX", chosen)
            keys.append(build.build_program(PROGRAM, build.host_toolchain()).key)
    build._find_toolchain.cache_clear()
    assert len(set(keys)) == 5 and keys[1] == keys[4]
    compiled = (cache.entry_folder(root, keys[1]) / "command.txt").read_text(encoding="utf-8")
    assert f"-march={name}" in compiled and "native" not in compiled
