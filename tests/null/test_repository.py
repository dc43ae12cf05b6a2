"""Rules that the sources keep: sizes, imports, paths, documentation."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "jax_cocktail"

CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
LAYERS = [re.findall(r"\w+", layer) for layer in CONTRACTS[0]["layers"]]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
MAY_IMPORT_JAX = {"api", "commands", "lowering", "models", "primitives", "recursion"}

LONGEST_MODULE, LONGEST_FUNCTION, LONGEST_LINE = 500, 60, 110


def modules():
    return sorted(PACKAGE.rglob("*.py"))


def sources():
    folders = (
        "jax_cocktail",
        "tests",
        "benchmarks",
        "common_src",
        "cpu_src",
        "gpu_src",
        "cuda_src",
        "rocm_src",
    )
    kinds = {".py", ".h", ".cc", ".cuh", ".cu", ".hip"}
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in kinds]
    emitted = ROOT / "tests" / "golden"
    return sorted(path for path in found if path.suffix == ".py" or path.parent != emitted)


def name(path):
    return str(path.relative_to(ROOT))


EACH_MODULE = pytest.mark.parametrize("path", modules(), ids=name)
EACH_SOURCE = pytest.mark.parametrize("path", sources(), ids=name)


def layer_of(path):
    """First name below the package: "api", "utask", ...; "" for the package's own __init__."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0].replace("__init__", "")


def imports(tree):
    """Every module that is imported anywhere in the file, in absolute form."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@EACH_SOURCE
def test_size(path):
    lines = path.read_text().splitlines()
    assert len(lines) <= LONGEST_MODULE
    assert [k for k, line in enumerate(lines, 1) if len(line) > LONGEST_LINE] == []


@EACH_MODULE
def test_functions_are_short(path):
    tree = ast.parse(path.read_text())
    functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    long = {
        f.name: f.end_lineno - f.lineno + 1 for f in functions if f.end_lineno - f.lineno >= LONGEST_FUNCTION
    }
    assert long == {}


@EACH_MODULE
def test_imports_run_one_way(path):
    layer = layer_of(path)
    for imported in imports(ast.parse(path.read_text())):
        top, *rest = imported.split(".")
        if top in ("jax", "jaxlib"):
            assert layer in MAY_IMPORT_JAX, f"{name(path)} imports {imported}"
        elif top == "jax_cocktail" and layer and rest and rest[0] in RANK and rest[0] != layer:
            assert RANK[rest[0]] > RANK[layer], (
                f"{name(path)} imports {imported}, which lies above it or beside it"
            )


def test_emitters_do_not_read_their_own_text():
    """What passes over a kernel have to know is in its nodes; see `codegen.kernel`."""
    trees = [ast.parse(path.read_text()) for path in (PACKAGE / "codegen").rglob("*.py")]
    assert [imported for tree in trees for imported in imports(tree) if imported.split(".")[0] == "re"] == []


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("test_*.py")), ids=name)
def test_tests_stand_alone(path):
    """What two test modules need is in a third one: Bazel runs each without the others."""
    found = [imported for imported in imports(ast.parse(path.read_text())) if ".test_" in imported]
    assert found == []


@EACH_MODULE
def test_every_layer_is_known(path):
    assert layer_of(path) in {*RANK, ""}


def test_linter_knows_what_must_not_import_jax():
    here = {layer_of(path) for path in modules()} - {"", "__main__"}
    assert {module.split(".")[1] for module in CONTRACTS[-1]["source_modules"]} == here - MAY_IMPORT_JAX


@EACH_SOURCE
def test_no_path_of_one_machine(path):
    pattern = re.compile(r"(?<![\w.}$*])/(home|root|work|tmp|Users|usr/local|opt)/")
    assert [line for line in path.read_text().splitlines() if pattern.search(line)] == []


@EACH_SOURCE
def test_nothing_is_left_open(path):
    pattern = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|NotImplemented" + r"Error)\b")
    assert [line for line in path.read_text().splitlines() if pattern.search(line)] == []


@EACH_MODULE
def test_public_names_are_documented(path):
    tree = ast.parse(path.read_text())
    assert tree.body == [] or ast.get_docstring(tree), "the module says what it is"
    kinds = (ast.FunctionDef, ast.ClassDef)
    undocumented = [
        node.name
        for node in tree.body
        if isinstance(node, kinds) and not node.name.startswith("_") and not ast.get_docstring(node)
    ]
    if layer_of(path) in {"", "api", "report", "config", "errors", "compiler", "build", "cache"}:
        assert undocumented == []


def test_folders_of_the_device_families_say_what_they_are():
    for folder in ("gpu_src", "cuda_src", "rocm_src"):
        assert (ROOT / folder / "README.md").read_text().strip()


def test_public_names():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    (exported,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
    ]
    assert {"jit", "explain", "options", "clear_cache"} <= set(exported)
    readme = (ROOT / "README.md").read_text()
    assert all(f"jax_cocktail.{public}" in readme for public in ("jit", "explain", "options", "clear_cache"))
