"""Which modules know that there are several makers of GPUs: targets, devices, builds, drivers, calls."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAKERS = re.compile(r"cuda|rocm|nvcc|nvrtc|hiprtc|hipcc|nvidia|\b(amd|hip)\b", re.IGNORECASE)
TARGETS = ("codegen/cuda.py", "codegen/rocm.py", "codegen/machines.py")
LAYERS = ("build", "device", "runtime")
PLATFORMS = ("lowering/edge/gpu_call.py",)  # the table of platforms
LOOKING = (
    "commands/checks.py",
    "commands/bench.py",
)  # `doctor` names what it looks for, `bench` what it runs on


def _words(tree: ast.Module) -> Iterator[str]:
    """Names, imports and strings; documentation may compare makers."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    bodies = [n.body[0] for n in ast.walk(tree) if isinstance(n, documented) and n.body]
    docstrings = {id(first.value) for first in bodies if isinstance(first, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                yield text
            case ast.Name(id=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Attribute(attr=name) | ast.alias(name=name):
                yield name
            case ast.ImportFrom(module=str(name)):
                yield name


def test_no_pass_names_a_maker_of_gpus() -> None:
    """A new target adds modules, and changes none of the compiler's."""
    package = ROOT / "jax_cocktail"
    naming = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if any(map(MAKERS.search, _words(ast.parse(path.read_text(encoding="utf-8")))))
    }
    rest = {name for name in naming if name.split("/")[0] not in LAYERS}
    assert rest <= {*TARGETS, *PLATFORMS, *LOOKING}
    assert set(TARGETS) <= naming


def test_bazel_knows_the_tests_of_amds_gpus() -> None:
    """Targets `_rocm` are listed by file; those with the name are among them."""
    for build in ROOT.glob("tests/*/BUILD.bazel"):
        lists = re.findall(r"\brocm = \[(.*?)\]", build.read_text(encoding="utf-8"), re.DOTALL)
        listed = set(re.findall(r'"(\w+)"', "".join(lists)))
        files = {path.stem.removeprefix("test_") for path in build.parent.glob("test_*.py")}
        assert listed <= files and {name for name in files if "rocm" in name} <= listed, build


def test_bazel_knows_the_tests_with_cases_for_a_long_run() -> None:
    """The suites `long` have every file of whose cases a usual run leaves some out."""
    marks = r"mark\.(long|sampled|covering)\b"
    leaves_out = re.compile(marks + r"|selection import ALL|\bimport .*\b(buckets|chosen)\b")
    about = {"test_selection.py", Path(__file__).name}
    for build in ROOT.glob("tests/*/BUILD.bazel"):
        lists = re.findall(r"\blong = \[(.*?)\]", build.read_text(encoding="utf-8"), re.DOTALL)
        found = {
            path.stem.removeprefix("test_")
            for path in build.parent.glob("test_*.py")
            if path.name not in about and leaves_out.search(path.read_text(encoding="utf-8"))
        }
        assert set(re.findall(r'"(\w+)"', "".join(lists))) == found, build
