"""The programs of README.md run, one after the other, and print what the README says."""

from __future__ import annotations

import importlib.util
import re
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

import jax_cocktail

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """By section, what its programs print."""
    folder = tmp_path_factory.mktemp("readme")
    with pytest.MonkeyPatch.context() as patch:
        # A bundle takes all that the process has used of a folder, and other tests may have removed some.
        patch.setenv("JAX_COCKTAIL_CACHE_DIR", str(folder / "cache"))
        return _run(folder)


def _run(folder):
    names: dict[str, object] = {}
    found: dict[str, list[str]] = {}
    for section in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]:
        title = section.partition("\n")[0]
        if title == "Export" and importlib.util.find_spec("flatbuffers") is None:
            continue  # of the test extra
        for program in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
            force = "cocktail" if title == "Recursion" else "auto"  # stock XLA may be faster
            settings = jax_cocktail.options(force=force, plans="cached")
            with chdir(folder), redirect_stdout(StringIO()) as out, settings:
                exec(compile(program, "README.md", "exec"), names)
            found.setdefault(title, []).append(out.getvalue())
    return found


def test_every_section_with_a_program_ran(printed):
    library = "Libraries that call `jax.jit` themselves"
    questions = ["What happened to my loop?", "Where does the time go?"]
    titles = ["Ten lines", library, *questions, "Recursion", "Export"]
    assert printed[library] == ["3.375\n"]
    assert list(printed) == [t for t in titles if t != "Export" or importlib.util.find_spec("flatbuffers")]


def test_the_first_program(printed):
    (roots,) = printed["Ten lines"]
    assert re.fullmatch(r"\[ *1\.4142\d* +3\. +10\. *\]\n", roots)


def test_the_report(printed):
    (report,) = printed["What happened to my loop?"]
    assert report.startswith("root: runs on ") and "while at README.md" in report


def test_the_timeline(printed):
    """Stock XLA may be faster; then there is nothing to record."""
    (table,) = printed["Where does the time go?"]
    assert re.match(r"root: (1 custom call|no custom calls) recorded\n", table)
    assert "while loop" in table or 'options={"force": "cocktail"}' in table or "stock XLA runs" in table


def test_recursion(printed):
    gradients, mutual, errors = printed["Recursion"]
    assert gradients.endswith("(3, 16, 8)\n")
    assert mutual == "[1 1 2 2 3 3 4 5 5 6]\n"
    said = "more than 16 deep; .*more than 100 times, .*a stack of 8 frames of 36 bytes, unrolled once; "
    assert re.search(said, errors, re.DOTALL)


def test_the_report_that_a_page_explains():
    """A report of its program has the lines that docs/explain.md has in its table."""
    page = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8").partition("\n## Loops that stay")[0]
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    with jax_cocktail.options(force="cocktail", units=2), redirect_stdout(StringIO()) as out:
        exec(compile(program, "rnn.py", "exec"), {})
    # Nothing is timed where a choice is forced, nor always built; the program has a loop, and does not print.
    absent = ("candidate", "built in", "memory-bound subgraph at", "side exit at", "2 prints are kept")
    lines = [text.split("...")[0].strip(" :(") for text in re.findall(r"^\| `(.*?)` \|", page, re.MULTILINE)]
    assert len(lines) >= 10
    assert [line for line in lines if line not in absent and line not in out.getvalue()] == []
