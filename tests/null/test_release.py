"""What is said of a release in several places is the same in all of them, and the sdist has what it needs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

from jax_cocktail.config import VERSION

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
DISTRIBUTIONS = {"haiku": "dm-haiku", "ott": "ott-jax"}  # those that are not imported by their names


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def setting(name):
    return re.search(rf"^{name}=(\S+)", read(".ci/common"), re.MULTILINE)[1]


def numbers(version):
    return tuple(map(int, version.split(".")))


@pytest.mark.parametrize(
    "name, pattern",
    [
        ("pyproject.toml", r'^version = "(.*)"'),
        ("CITATION.cff", r"^version: (.*)"),
        ("MODULE.bazel", r'^ +version = "(.*)"'),
    ],
)
def test_version(name, pattern):
    assert re.search(pattern, read(name), re.MULTILINE)[1] == VERSION


def test_changelog_begins_with_what_is_unreleased():
    first, *others = re.findall(r"^## (.*)", read("CHANGELOG.md"), re.MULTILINE)
    assert first == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", title) for title in others)


def test_supported_versions_of_jax():
    page = read("docs/versioning.md")
    (needed,) = (item for item in PROJECT["dependencies"] if item.startswith("jax>"))
    least, beyond = re.fullmatch(r"jax>=([\d.]+),<([\d.]+)", needed).groups()
    assert f"`{needed.removeprefix('jax')}`" in page
    rows = re.findall(r"^\| (newest, )?(\d+\.[\d.]+) \| (3\.\d+)", page, re.MULTILINE)
    assert [version for newest, version, _ in rows if not newest] == [
        setting("oldest_jax"),
        setting("between_jax"),
    ]
    assert rows[0][1] == least
    (newest,) = (version for newest, version, _ in rows if newest)
    assert rows[-1][1] == newest
    assert numbers(beyond) == (numbers(newest)[0], numbers(newest)[1] + 1)
    assert PROJECT["requires-python"] == f">={rows[0][2]}"


def test_every_library_of_the_table_is_in_the_extra():
    used = set()
    for path in (ROOT / "tests" / "libraries").glob("*.py"):
        used |= set(re.findall(r'^@program\("(\w+)"', path.read_text(encoding="utf-8"), re.MULTILINE))
    extra = PROJECT["optional-dependencies"]["ecosystem"]
    assert {DISTRIBUTIONS.get(name, name) for name in used} == {item.split(">=")[0] for item in extra}
    assert [item for item in extra if "<" in item or "==" in item] == []


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_issue_templates_ask_for_what_is_needed(path):
    text = path.read_text(encoding="utf-8")
    assert {"program", "explain", "doctor"} <= set(re.findall(r"^    id: (\w+)", text, re.MULTILINE))
    assert "jax_cocktail.explain(" in text and "python -m jax_cocktail doctor" in text


def sdist(root, folder):
    """Builds the sdist of a tree into `folder`. Returns the names in it."""
    pytest.importorskip("hatchling", reason="the test extra is not installed")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
    subprocess.run(command, cwd=root, check=True, capture_output=True)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def test_sdist_has_what_it_needs_and_nothing_else(tmp_path):
    names = sdist(ROOT, tmp_path)
    kinds = (
        "jax_cocktail/**/*.py",
        "jax_cocktail_tools/**/*.py",
        *(f"{kind}_src/**/*.*" for kind in ("common", "cpu", "gpu", "cuda", "rocm")),
    )
    built = {str(path.relative_to(ROOT)) for kind in kinds for path in ROOT.glob(kind)}
    built = {name for name in built if "__pycache__" not in name and not name.endswith("BUILD.bazel")}
    assert len(built) > 300
    others = {"LICENSE", "README.md", "CITATION.cff", "pyproject.toml"}
    others |= {"jax_cocktail/py.typed", "jax_cocktail_tools/py.typed"}
    assert {*built, *others, "tests/null/test_release.py"} <= names
    hidden = {name for name in names if any(part.startswith(".") for part in name.split("/"))}
    assert hidden <= {".gitignore"}  # hatchling reads it when it builds the wheel
    assert [name for name in names if re.search(r"__pycache__|\.py[co]$|BUILD|\.so$", name)] == []


def test_sdist_after_bazel(tmp_path):
    """Bazel links to a folder of links to ours. Hatchling must not see ours there first, and then no more."""
    tree, links = tmp_path / "tree", tmp_path / "links"
    shutil.copytree(
        ROOT / "jax_cocktail", tree / "jax_cocktail", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, tree)
    before = sdist(tree, tmp_path / "before")
    links.mkdir()
    (links / "jax_cocktail").symlink_to(tree / "jax_cocktail")
    (tree / "bazel-tree").symlink_to(links)
    assert sdist(tree, tmp_path / "after") == before and "jax_cocktail/api.py" in before


def test_importing_is_cheap():
    """What a program with jax pays for `import jax_cocktail`: few modules, nothing else than filelock."""
    code = (
        "import sys; before = set(sys.modules); import jax_cocktail; import json;"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    names = re.findall(r'"([\w.]+)"', found)
    others = {name.split(".")[0] for name in names} - sys.stdlib_module_names
    assert others == {"jax_cocktail", "filelock"}
    assert sum(name.startswith("jax_cocktail") for name in names) <= 20
