"""The programs of README.md and of the pages run, one after the other, and print what the pages say.

What a program prints is in a block ``text`` behind it, with ``...`` for what differs from machine to machine.
"""

from __future__ import annotations

import doctest
import re
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

import jax_cocktail
from tests.process import python

ROOT = Path(__file__).parents[2]
PAGES = [
    name
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if "```python\n" in path.read_text(encoding="utf-8") and (name := str(path.relative_to(ROOT)))
]
PROGRAM = re.compile(r"^```python\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
pytestmark = pytest.mark.all_candidates
FORCED = ("docs/explain.md", "docs/recursion.md")  # what they print is about ours; stock XLA may be faster
# One bundles all that the process has used of a folder, one counts what is compiled for another length.
ALONE = ("docs/export.md", "docs/tutorials/scan_rnn.md")
EIGHT = "docs/tutorials/several_devices_training.md"  # it has so many devices, in a process of its own
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def run(page: str, folder: Path, **options: object) -> list[str]:
    """Runs the programs of a page in one namespace; what each of them prints."""
    names: dict[str, object] = {"__name__": "page"}
    found = list[str]()
    text = (ROOT / page).read_text(encoding="utf-8")
    for program, wanted in PROGRAM.findall(text):
        with chdir(folder), redirect_stdout(StringIO()) as out, jax_cocktail.options(**options):
            exec(compile(program, page, "exec"), names)
        found.append(out.getvalue())
        if wanted:
            same = doctest.OutputChecker().check_output(spaced(wanted), spaced(found[-1]), FLAGS)
            assert same, f"{page}:\n{program}\nprints\n{found[-1]}\nand not\n{wanted}"
    jax_cocktail.wait()  # another page may count what is compiled
    return found


def spaced(text: str) -> str:
    """Arrays are padded with blanks behind their brackets, by how long other numbers are."""
    return re.sub(r"\[ +", "[", re.sub(r" +\]", "]", text))


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Runs a page once, and returns what its programs print."""
    known: dict[str, list[str]] = {}

    def of(page):
        if page not in known:
            folder = tmp_path_factory.mktemp("page")
            with pytest.MonkeyPatch.context() as patch:
                if page == "docs/export.md":
                    pytest.importorskip("flatbuffers", reason="of the test extra")
                if page in ALONE:
                    patch.setenv("JAX_COCKTAIL_CACHE_DIR", str(folder / "cache"))
                forced = {"force": "cocktail"} if page in FORCED else {}
                known[page] = run(page, folder, plans="cached", **forced)
        return known[page]

    return of


def marked(page: str) -> object:
    """One version of jax is enough for the tutorials."""
    return pytest.param(page, marks=pytest.mark.one_jax) if page.startswith("docs/tutorials/") else page


@pytest.mark.filterwarnings("ignore::jax_cocktail.CocktailWarning")
@pytest.mark.parametrize("page", [marked(page) for page in PAGES])
def test_programs_of_a_page_run(page, printed, tmp_path):
    if page == EIGHT:
        runs = f"run({page!r}, Path({str(tmp_path)!r}), plans='cached')"
        runs = f"from tests.api.test_pages import Path, run; {runs}"
        python(runs, XLA_FLAGS="--xla_force_host_platform_device_count=8")
    else:
        assert printed(page)


def test_every_program_is_found():
    """None is missed because it is fenced otherwise, nor is an output without a program."""
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        found = PROGRAM.findall(text)
        assert len(found) == len(re.findall(r"^ *(?:```|~~~)(?:py|python|pycon)\b", text, re.MULTILINE)), page
        assert sum(bool(wanted) for _, wanted in found) == text.count("```text\n"), page
    assert {"README.md", "docs/quickstart.md", "docs/recursion.md", "docs/export.md"} <= set(PAGES)


def test_a_wrong_output_is_seen(tmp_path, monkeypatch):
    (tmp_path / "page.md").write_text("```python\nprint(1)\n```\n\n```text\n2\n```\n")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    with pytest.raises(AssertionError, match=r"and not\s+2"):
        run("page.md", tmp_path)


def test_the_first_program(printed):
    (text,) = printed("README.md")
    assert text.startswith("[ 0  1  7 ... ") and "while at README.md" in text
    assert "collatz: runs on " in text


def test_the_timeline(printed):
    """Stock XLA may be faster; then there is nothing to record."""
    *_, report, table = printed("docs/quickstart.md")
    assert report.startswith("root: runs on ")
    assert re.match(r"root: (1 custom call|no custom calls) recorded\n", table)
    assert "while loop" in table or 'options={"force": "cocktail"}' in table or "stock XLA runs" in table


def test_libraries(printed):
    assert printed("docs/libraries.md") == ["3.375\n"]


def test_recursion(printed):
    gradients, mutual, errors = printed("docs/recursion.md")
    assert gradients.endswith("(3, 16, 8)\n")
    assert mutual == "[1 1 2 2 3 3 4 5 5 6]\n"
    said = "more than 16 deep; .*more than 100 times, .*a stack of 8 frames of 36 bytes, unrolled once; "
    assert re.search(said, errors, re.DOTALL)


def test_the_report_that_a_page_explains():
    """A report of its program has the lines that docs/explain.md has in its table."""
    page = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8").partition("\n## Loops that stay")[0]
    program, saved, compared = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert "report.save" in saved and "report.difference" in compared
    with jax_cocktail.options(force="cocktail", units=2), redirect_stdout(StringIO()) as out:
        exec(compile(program, "rnn.py", "exec"), {})
    # Nothing is timed where a choice is forced, nor always built; the program has a loop, and does not print.
    absent = ("candidate", "built in", "memory-bound subgraph at", "side exit at", "2 prints are kept")
    lines = [text.split("...")[0].strip(" :(") for text in re.findall(r"^\| `(.*?)` \|", page, re.MULTILINE)]
    assert len(lines) >= 10
    assert [line for line in lines if line not in absent and line not in out.getvalue()] == []
