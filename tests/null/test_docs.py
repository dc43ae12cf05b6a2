"""What the documentation names exists: sections that modules cite, modules, files and pages."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from docs import pages
from jax_cocktail_tools.commands.result import read

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(p for p in (*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("*_src/README.md")))
FOLDERS = [ROOT, ROOT / "jax_cocktail", *ROOT.glob("*_src")]
MADE = pages.pages()

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def sections():
    return set(
        re.findall(r"^##+ ([0-9.]+?)\.? ", (DOCS / "design.md").read_text(encoding="utf-8"), re.MULTILINE)
    )


def test_modules_cite_sections_that_exist():
    cited = {}
    for folder in ("jax_cocktail", "jax_cocktail_tools", "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".md") and path.name != "test_docs.py":
                for text in re.findall(r"\(design, (sections? [^):]+)", path.read_text(encoding="utf-8")):
                    cited[path.name] = set(re.findall(r"\d+(?:\.\d+)?", text))
    assert len(cited) >= 7
    assert {name: found - sections() for name, found in cited.items() if found - sections()} == {}


@each_page
def test_files_that_a_page_names_exist(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    named = set(re.findall(r"`([\w./]*\w/[\w./]*\w+\.(?:py|md|h|cc|cu|json))`", text))
    missing = [name for name in named if not any((folder / name).exists() for folder in FOLDERS)]
    assert missing == []


@each_page
def test_modules_that_a_page_names_exist(page):
    """`package.module.name`: the module exists, and the name is in it."""
    wrong = []
    for dotted in re.findall(r"`([a-z_]+(?:\.\w+)+(?<!\.cc))`", page.read_text(encoding="utf-8")):
        parts = dotted.removeprefix("jax_cocktail.").split(".")
        base = ROOT if parts[0] in ("tests", "benchmarks", "jax_cocktail_tools") else ROOT / "jax_cocktail"
        if (base / parts[0]).is_dir() and not _exists(base, parts):
            wrong.append(dotted)
    assert wrong == []


def _exists(folder: Path, parts: list[str]) -> bool:
    for number, part in enumerate(parts):
        if (folder / part).is_dir():
            folder /= part
            continue
        module = folder / f"{part}.py"
        names = parts[number + 1 :] if module.is_file() else parts[number:]
        text = (module if module.is_file() else folder / "__init__.py").read_text(encoding="utf-8")
        return all(re.search(rf"\b{name}\b", text) for name in names)
    return True


def mechanisms():
    """The rows of the tables of docs/paper.md: the mechanism, where it is, and its tests."""
    text = (DOCS / "paper.md").read_text(encoding="utf-8")
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        head, _, *rows = (
            [cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()
        )
        assert head[-2:] == ["here", "test"]
        for cells in rows:
            assert len(cells) == len(head), cells
            yield cells[0], *cells[-2:]


def test_every_mechanism_of_the_papers_has_a_module_and_a_test_or_a_reason():
    def named(cell):
        return [name.split(".") for name in re.findall(r"`([a-z]\w*(?:\.\w+)+)`", cell)]

    found = list(mechanisms())
    assert len(found) > 70
    for mechanism, here, tests in found:
        if here.startswith("not built"):
            assert len(here) > 40 and tests == "-", f"{mechanism}: no reason"
            continue
        modules, headers = named(here), re.findall(r"`(\w+_src/\w+\.\w+)`", here)
        assert modules or headers, f"{mechanism}: no module"
        for parts in modules:
            base = ROOT if parts[0] in ("tests", "benchmarks") else ROOT / "jax_cocktail"
            assert _exists(base, parts), f"{mechanism}: {'.'.join(parts)}"
        assert named(tests), f"{mechanism}: no test"
        for parts in named(tests):
            module = Path(ROOT, *parts[:3]).with_suffix(".py")
            assert module.is_file() and _exists(ROOT, parts), f"{mechanism}: {'.'.join(parts)}"


@each_page
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", page.read_text(encoding="utf-8"))
    missing = [(page.parent / t).resolve() for t in targets if not (page.parent / t).exists()]
    assert [t for t in missing if not (t.is_relative_to(DOCS) and str(t.relative_to(DOCS)) in MADE)] == []


def test_every_page_is_in_the_navigation():
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = re.findall(r": ([\w/]+\.md)$", settings, re.MULTILINE) + re.findall(
        r"'(api/\w+\.md)'", str(pages.api_navigation(""))
    )
    assert len(named) == len(set(named))
    assert set(named) == {*MADE, *(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))}


def test_every_public_name_has_a_page():
    assert all(
        f"api/{name}.md" in MADE and f"({name}.md)" in MADE["api/index.md"] for name in pages.public_names()
    )
    assert all(pages.docstrings().values())
    assert "](docs/" not in "".join(MADE.values())


def test_what_a_browser_would_load_from_elsewhere_is_found():
    html = '<a href="https://a"></a><link rel="canonical" href="https://b"><script src="x.js"></script>'
    assert pages.remote(html) == []
    html += '<script src="https://c/x.js"></script><link rel="stylesheet" href="//d"><img src="http://e">'
    assert pages.remote(html) == ["https://c/x.js", "//d", "http://e"]


def rows(title):
    """The cells of the tables below a heading of the FAQ."""
    text = (DOCS / "faq.md").read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    return [line.strip("| ").split(" | ") for line in lines]


def test_every_error_is_in_the_index():
    named = {re.sub(r"\W.*", "", cells[0].strip("[`")) for cells in rows("Errors")}
    errors = {name for name in pages.public_names() if name.endswith(("Error", "Warning"))}
    assert errors and errors <= named


def test_messages_in_the_index_are_those_of_the_source():
    """Every part of a quoted message between two gaps is in a text of the source."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "jax_cocktail").rglob("*.py")]
    said = [n.value for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Constant)]
    said = [text for text in said if isinstance(text, str)]
    runtime = [path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("c*_src/runtime*.[hc]*"))]
    said += [re.sub(r'"\s*"', "", text) for text in runtime]
    quoted = [text for cells in rows("Warnings") for text in re.findall(r"`([^`]+)`", cells[0])]
    spans = [text for cells in rows("Errors") for text in re.findall(r"`([^`]+)`", " ".join(cells))]
    quoted += [text for text in spans if " " in text]
    parts = [part.strip() for text in quoted for part in text.split("...") if part.strip()]
    assert len(parts) >= 15
    assert [part for part in parts if not any(part in text for text in said)] == []


def test_modules_that_docstrings_name_exist():
    package = ROOT / "jax_cocktail"
    rooms = "|".join(sorted(p.name for p in package.iterdir() if (p / "__init__.py").is_file()))
    wrong = []
    for path in sorted(package.rglob("*.py")):
        named = re.findall(rf"`((?:{rooms})\.[\w.]+)`", path.read_text(encoding="utf-8"))
        wrong += [f"{path.name}: {dotted}" for dotted in named if not _exists(package, dotted.split("."))]
    assert wrong == []


def test_the_run_on_a_busy_machine_is_told_as_recorded():
    rows = read(ROOT / "benchmarks/results/bench_epyc_2_cores_busy.json").rows
    text = (DOCS / "limits.md").read_text(encoding="utf-8")
    for row in rows:
        cells = row.name, f"{row.ratio.middle:.2f}", f"{row.auto_ratio.middle:.2f}", row.choice
        assert f"| {' | '.join(cells)} |" in text
    slower = sum(row.ratio.middle < 1 for row in rows)
    for page in (ROOT / "README.md", DOCS / "index.md"):
        assert f"lose more often: {slower} of {len(rows)} in" in page.read_text(encoding="utf-8")


def test_the_newest_jax_is_told_as_recorded():
    found = read(ROOT / "benchmarks/results/bench_epyc_2_cores.json")
    assert found.versions["jax"] == "0.12.0.1"
    text = (DOCS / "limits.md").read_text(encoding="utf-8")
    for row in found.rows:
        cells = row.name, f"{row.ratio.middle:.2f}", f"{row.auto_ratio.middle:.2f}", row.choice
        assert f"| {' | '.join(cells)} |" in text
