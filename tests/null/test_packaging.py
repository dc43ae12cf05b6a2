"""What a wheel carries, and that the two README commands are what the Makefile has."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def settings():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_wheel_carries_the_runtime_sources(tmp_path):
    pytest.importorskip("hatchling", reason="the test extra is not installed")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("common_src", "cpu_src", "gpu_src", "cuda_src", "rocm_src"):
        expected = {
            f"jax_cocktail/_src/{path.relative_to(ROOT)}"
            for path in (ROOT / folder).rglob("*")
            if path.is_file()
        }
        assert expected
        assert expected <= names
    tools = {str(path.relative_to(ROOT)) for path in (ROOT / "jax_cocktail_tools").rglob("*.py")}
    assert {"jax_cocktail/py.typed", "jax_cocktail_tools/py.typed", *tools} <= names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/")) or "BUILD" in name]


def test_run_time_needs_nothing_more():
    needed = {item.split(">")[0].split("=")[0] for item in settings()["project"]["dependencies"]}
    assert needed == {"jax", "jaxlib", "numpy", "absl-py", "filelock"}


def test_compiler_is_pinned():
    (compiler,) = settings()["project"]["optional-dependencies"]["compiler"]
    assert compiler.startswith("ziglang==")


@pytest.mark.parametrize("command", ["demo", "test"])
def test_readme_commands_exist(command):
    assert f"make {command}" in (ROOT / "README.md").read_text()
    assert f"\n{command}: " in (ROOT / "Makefile").read_text()
