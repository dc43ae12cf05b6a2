"""The worked examples of docs/contributing: their diffs apply, and the commands that they give pass."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from jax_cocktail.build.host import host_toolchain
from jax_cocktail.errors import BuildError

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "contributing"
SOURCE = ("jax_cocktail*", "tests", "docs", "benchmarks", "notebooks", "*_src", "[A-Z]*", "*.toml", "*.yml")


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def can_build() -> bool:
    try:
        host_toolchain()
    except BuildError:
        return False
    return find_spec("jax") is not None


def copy_source(target: Path) -> None:
    """Without what is built or installed beside it."""
    target.mkdir()
    for path in (path for pattern in SOURCE for path in ROOT.glob(pattern)):
        if path.is_dir():
            shutil.copytree(path, target / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, target)


def run(command: list[str], folder: Path, text: str = "") -> None:
    """A command in a copy of the source, which does not see the repository around it."""
    here = {
        "GIT_CEILING_DIRECTORIES": str(folder.parent),
        "JAX_PLATFORMS": "cpu",
        "PYTEST_ADDOPTS": "-q -x -p no:cacheprovider",
        "PYTHONPATH": str(folder),
    }
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **here}, input=text, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"


PAGE = pytest.mark.parametrize("page", ["add_an_operator", "write_a_pass", "add_a_target"])


@PAGE
def test_example_applies(page):
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    if shutil.which("git") is None or not (ROOT / ".git").exists():  # Bazel has the files of each test alone
        pytest.skip("git, or part of the source, is not here")
    patch = "".join(blocks(text, "diff"))
    command = ["git", "apply", "--check", "-"]
    done = subprocess.run(command, cwd=ROOT, input=patch, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@PAGE
def test_example_applies_and_runs(page, tmp_path):
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    patch = "".join(blocks(text, "diff"))
    commands = [shlex.split(line) for block in blocks(text, "sh") for line in block.splitlines()]
    assert patch and commands
    tests = [word for command in commands for word in command if word.startswith("tests/")]
    needed = {*re.findall(r"^--- a/(.*)$", patch, re.MULTILINE), *tests}
    missing = [name for name in needed if f"+++ b/{name}\n" not in patch and not (ROOT / name).is_file()]
    if shutil.which("git") is None or missing:  # Bazel runs each test without the others
        pytest.skip("git, or part of the source, is not here")
    copy = tmp_path / "source"
    copy_source(copy)
    run(["git", "apply", "-"], copy, patch)
    for python, *arguments in commands:
        assert python == "python"
        if can_build() or not any(word.startswith("tests/cpu") for word in arguments):
            run([sys.executable, *arguments], copy)
