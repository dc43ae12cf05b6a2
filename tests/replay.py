"""Compares the texts that two commits make of the tests' programs: emitted sources, and the IR after passes.

    python -m tests.replay COMMIT                     the working tree against a commit
    python -m tests.replay COMMIT tests/              the same for all tests, which takes most of an hour
    python -m tests.replay COMMIT --ignore-names      identifiers may differ alike, and comments
    python -m tests.replay COMMIT tests/null -k dot   only these tests: the rest of the line goes to pytest
    python -m tests.replay --record FOLDER            writes the texts of the working tree into a new folder
    python -m tests.replay --against FOLDER           compares the working tree with a folder

Without paths these tests run: tests/null, tests/golden, and tests/api/test_planning.py, which plans every
model for every target. The other tests of tests/api and tests/cpu have further programs, and run them.

Each side runs its own tests. A text belongs to the test that made it, whatever its file; a test that makes
other programs than before is reported, too. The exit status is 1 if any text differs; the differences are
printed.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import hashlib
import importlib
import inspect
import json
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
TESTS = ("tests/null", "tests/golden", "tests/api/test_planning.py")
PASSES = ("schedule", "placement", "stitch")  # packages
INDEX = "index.json"
SHOWN = 20  # differing texts, of those that differ in the same lines one
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")

Texts = Mapping[str, str]  # by "test::name[parameters] number"


# ---- recording ---------------------------------------------------------------------------------------------


class Recorder:
    """Keeps texts by test, as a plugin of pytest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index: dict[str, str] = {}
        self.numbers: Counter[str] = Counter()

    def record(self, text: str, kind: str = "") -> None:
        """Keeps a text under the test that runs, and its kind."""
        path, _, test = os.environ.get("PYTEST_CURRENT_TEST", "no test").partition("::")
        test = (test.rpartition(" ")[0] or path) + kind  # without the phase
        key = f"{test} {self.numbers[test]}"
        self.numbers[test] += 1
        digest = hashlib.sha256(text.encode()).hexdigest()
        (self.folder / digest).write_text(text, encoding="utf-8")
        self.index[key] = digest

    def pytest_sessionfinish(self) -> None:
        (self.folder / INDEX).write_text(json.dumps(self.index, indent=0), encoding="utf-8")


def _watch(module: ModuleType, name: str, record: Callable[[Any], None]) -> None:
    """Records what a function returns to those who import it from now on, or call it by its module."""
    function = getattr(module, name)

    @functools.wraps(function)
    def watched(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        record(result)
        return result

    setattr(module, name, watched)


def _passes() -> Iterator[tuple[ModuleType, str]]:
    """The public functions of the package that return a program: passes, and lists of them."""
    import jax_cocktail

    for package in PASSES:
        for info in pkgutil.walk_packages(
            [str(Path(jax_cocktail.__file__).parent / package)], f"jax_cocktail.{package}."
        ):
            module = importlib.import_module(info.name)
            for name, function in vars(module).items():
                here = inspect.isfunction(function) and function.__module__ == info.name
                if here and name[0] != "_" and function.__annotations__.get("return") == "UProgram":
                    yield module, name


def _collect(folder: Path, arguments: Sequence[str]) -> int:
    """Runs the tests of the tree that is first on the path, and records what they emit."""
    import pytest

    from jax_cocktail import compiler
    from jax_cocktail.utask.printer import print_program

    folder.mkdir(parents=True)
    recorder = Recorder(folder)
    for module, name in [*_passes(), (compiler, "transform")]:
        _watch(module, name, lambda program: recorder.record(print_program(program), " IR"))
    _watch(compiler, "emit_program", lambda text: recorder.record(getattr(text, "source", text)))
    return int(pytest.main(["-q", "-p", "no:xdist", "-p", "no:cacheprovider", *arguments], [recorder]))


def _start(tree: Path, folder: Path, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    """The collector of this file in a process of its own, on the tests and the package of a tree."""
    present = [a for a in arguments if not a.startswith("tests/") or (tree / a.partition("::")[0]).exists()]
    command = [sys.executable, str(Path(__file__).resolve()), "--collect", str(folder), *present]
    environment = {**os.environ, "PYTHONPATH": str(tree), "JAX_PLATFORMS": "cpu", "PYTHONHASHSEED": "0"}
    return subprocess.Popen(command, cwd=tree, env=environment)


def texts(folder: Path) -> Texts:
    """What was recorded in a folder."""
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    return {key: (folder / digest).read_text(encoding="utf-8") for key, digest in index.items()}


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """A tree of the commit, for as long as the block runs."""
    with tempfile.TemporaryDirectory() as parent:
        tree = Path(parent) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


# ---- comparing ---------------------------------------------------------------------------------------------


def without_names(text: str) -> str:
    """The text with every identifier replaced by the number of its first appearance. Comment lines go: they
    name lines of users' files."""
    numbers: dict[str, int] = {}
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("//"))
    return IDENTIFIER.sub(lambda m: f"n{numbers.setdefault(m.group(), len(numbers))}", code)


def _by_test(texts: Texts) -> dict[str, list[tuple[str, str]]]:
    """The keys and texts of every test, in the order in which it emitted them."""
    found: dict[str, list[tuple[str, str]]] = {}
    for key in sorted(texts, key=lambda key: (len(key), key)):  # number 10 after number 9
        found.setdefault(key.rpartition(" ")[0], []).append((key, texts[key]))
    return found


def pairs(before: Texts, after: Texts, ignore_names: bool = False) -> list[tuple[str, str, str]]:
    """The key, the old and the new text of what both sides emitted. Equal texts of a test belong together,
    whatever their numbers; what is left of the test is paired in order."""
    found, others = [], _by_test(after)
    for test, old in _by_test(before).items():
        new = {key: without_names(text) if ignore_names else text for key, text in others.get(test, [])}
        left = []
        for key, text in old:
            same = without_names(text) if ignore_names else text
            number = next((number for number, other in new.items() if other == same), None)
            if number is None:
                left.append((key, text))
            else:
                del new[number]
                found.append((key, text, text))
        found += [(key, text, after[number]) for (key, text), number in zip(left, new, strict=False)]
    return sorted(found)


def differences(both: Iterable[tuple[str, str, str]]) -> dict[str, list[str]]:
    """By key, the unified difference of every pair that is not the same."""
    return {
        key: list(difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=1))
        for key, old, new in both
        if old != new
    }


def report(before: Texts, after: Texts, ignore_names: bool = False) -> tuple[str, bool]:
    """What changed, in words, and whether nothing did."""
    both = pairs(before, after, ignore_names)
    found = differences(both)
    alike: dict[tuple[str, ...], str] = {}
    for key, lines in found.items():
        alike.setdefault(tuple(line for line in lines if line[:1] in "+-"), key)
    parts = []
    for key in list(alike.values())[:SHOWN]:
        parts += [f"==== {key}", *found[key]]
    count, same = len(both), len(both) - len(found)
    parts += [
        f"{count} texts on both sides: {same} the same, {len(found)} differ in {len(alike)} ways",
        f"{len(before) - count} only before, {len(after) - count} only after",
    ]
    return "\n".join(parts), not found and count > 0


def _wait(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    if any([process.wait() not in (0, 1) for process in processes]):  # 1: tests failed, which pytest has said
        raise SystemExit("recording broke off; see above")


def main(arguments: Sequence[str]) -> int:
    """Runs one of the commands above; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.replay",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("commit", nargs="?")
    parser.add_argument("--ignore-names", action="store_true")
    for name in ("--record", "--against", "--collect"):
        parser.add_argument(name, type=Path, metavar="FOLDER")
    known, rest = parser.parse_known_args(arguments)
    if known.commit and (known.collect or known.commit.startswith("tests")):
        known.commit, rest = None, [known.commit, *rest]
    if known.collect:
        return _collect(known.collect, rest)
    selected = rest if any(a.startswith("tests/") for a in rest) else [*TESTS, *rest]
    if known.record:
        _wait([_start(ROOT, known.record.resolve(), selected)])
        return 0
    with tempfile.TemporaryDirectory() as parent:
        after, before = Path(parent) / "after", known.against
        if before is not None:
            _wait([_start(ROOT, after, selected)])
        elif known.commit:
            before = Path(parent) / "before"
            with checkout(known.commit) as tree:
                _wait([_start(tree, before, selected), _start(ROOT, after, selected)])
        else:
            parser.error("name a commit, or a folder with --record or --against")
        text, same = report(texts(before), texts(after), known.ignore_names)
    print(text)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
