"""Rules that the sources keep: sizes, imports, paths, documentation."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE, TOOLS = ROOT / "jax_cocktail", ROOT / "jax_cocktail_tools"

CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
LAYERS = [re.findall(r"\w+", layer) for layer in CONTRACTS[0]["layers"]]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
MAY_IMPORT_JAX = {"api", "bounded", "lowering", "primitives", "recursion"}
IMPORTS_TOOLS = {"__main__", "report/report", "timeline/trace"}  # the last two at use

LONGEST_MODULE, LONGEST_FUNCTION, LONGEST_LINE = 500, 60, 110


def modules():
    return sorted(PACKAGE.rglob("*.py"))


def modules_and_tools():
    return [*modules(), *sorted(TOOLS.rglob("*.py"))]


def sources():
    folders = (
        "jax_cocktail",
        "jax_cocktail_tools",
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


def offenders(paths, rule):
    """What a rule finds in each of the files, for those in which it finds something."""
    return {name(path): found for path in paths if (found := rule(path))}


def text_of(path):
    return path.read_text(encoding="utf-8")


def tree_of(path):
    return ast.parse(text_of(path))


def lines_with(pattern):
    """A rule that finds the lines with a pattern."""
    return lambda path: [line for line in text_of(path).splitlines() if pattern.search(line)]


def layer_of(path):
    """First name below its package: "api", "utask", ...; "" for the package's own __init__."""
    return path.relative_to(ROOT).with_suffix("").parts[1].replace("__init__", "")


def imports(tree):
    """Every name that is imported anywhere in the file, and True if the import is absolute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, True) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{node.module}.{alias.name}", node.level == 0) for alias in node.names)


def test_modules_and_lines_are_short():
    def long(path):
        lines = text_of(path).splitlines()
        here = [f"{len(lines)} lines"] if len(lines) > LONGEST_MODULE else []
        return here + [f"line {k}" for k, line in enumerate(lines, 1) if len(line) > LONGEST_LINE]

    assert offenders(sources(), long) == {}


def test_functions_are_short():
    def long(path):
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        functions = (node for node in ast.walk(tree_of(path)) if isinstance(node, kinds))
        return [f.name for f in functions if f.end_lineno - f.lineno >= LONGEST_FUNCTION]

    assert offenders(modules_and_tools(), long) == {}


def test_imports_are_absolute():
    def relative(path):
        return [imported for imported, absolute in imports(tree_of(path)) if not absolute]

    assert offenders(modules_and_tools(), relative) == {}


def test_the_compiler_imports_tools_at_use():
    """`import jax_cocktail` and its public functions read no tool: the command line does, and methods do."""
    importing = set()
    for path in modules():
        tree, place = tree_of(path), str(path.relative_to(PACKAGE).with_suffix(""))
        own = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert place == "__main__" or not any("jax_cocktail_tools" in text for text in own), place
        importing |= {place for imported, _ in imports(tree) if imported.startswith("jax_cocktail_tools")}
    assert importing == IMPORTS_TOOLS


def test_emitters_do_not_read_their_own_text():
    """What passes over a kernel have to know is in its nodes; see `codegen.kernel`."""
    found = offenders(
        (PACKAGE / "codegen").rglob("*.py"),
        lambda path: [imported for imported, _ in imports(tree_of(path)) if imported.split(".")[0] == "re"],
    )
    assert found == {}


def test_tests_stand_alone():
    """What two test modules need is in a third one: Bazel runs each without the others."""
    found = offenders(
        sorted((ROOT / "tests").rglob("test_*.py")),
        lambda path: [imported for imported, _ in imports(tree_of(path)) if ".test_" in imported],
    )
    assert found == {}


def test_every_layer_is_known():
    assert {layer_of(path) for path in modules()} <= {*RANK, ""}


def test_linter_knows_what_must_not_import_jax():
    here = {layer_of(path) for path in modules()} - {"", "__main__"}
    assert {module.split(".")[1] for module in CONTRACTS[-1]["source_modules"]} == here - MAY_IMPORT_JAX


def test_no_path_of_one_machine():
    pattern = re.compile(r"(?<![\w.}$*])/(home|root|work|tmp|Users|usr/local|opt)/")
    assert offenders(sources(), lines_with(pattern)) == {}


def test_nothing_is_left_open():
    pattern = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|NotImplemented" + r"Error)\b")
    assert offenders(sources(), lines_with(pattern)) == {}


def test_public_names_are_documented():
    def undocumented(path):
        tree, kinds = tree_of(path), (ast.FunctionDef, ast.ClassDef)
        public = [node for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]
        strict = layer_of(path) in {"", "api", "report", "config", "errors", "compiler", "build", "cache"}
        here = [] if tree.body == [] or ast.get_docstring(tree) else ["the module"]
        return here + [node.name for node in public if strict and not ast.get_docstring(node)]

    assert offenders(modules_and_tools(), undocumented) == {}


def test_docstrings_begin_with_what_a_thing_is_or_does():
    """A noun, a verb or "True if", where a question would ask the reader."""
    asks = re.compile(r"(What|Where|How|Whether|Which|Who|When|Why|Of)\b|The same\b")
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)

    def asking(path):
        documented = (node for node in ast.walk(tree_of(path)) if isinstance(node, kinds))
        return [text for node in documented if asks.match(text := ast.get_docstring(node) or "")]

    assert offenders(modules_and_tools(), asking) == {}


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
