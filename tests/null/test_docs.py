"""What the documentation names exists: sections that modules cite, modules, files and pages."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(p for p in (*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("*_src/README.md")))
FOLDERS = [ROOT, ROOT / "jax_cocktail", *ROOT.glob("*_src")]
MADE = runpy.run_path(str(DOCS / "pages.py"))["pages"]()  # from sections of the README

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def sections():
    return set(
        re.findall(r"^##+ ([0-9.]+?)\.? ", (DOCS / "design.md").read_text(encoding="utf-8"), re.MULTILINE)
    )


def test_modules_cite_sections_that_exist():
    cited = {}
    for folder in ("jax_cocktail", "tests"):
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
        base = ROOT if parts[0] in ("tests", "benchmarks") else ROOT / "jax_cocktail"
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


@each_page
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", page.read_text(encoding="utf-8"))
    missing = [t for t in targets if not (page.parent / t).exists()]
    assert [t for t in missing if not (page.parent == DOCS and t in MADE)] == []


def test_every_page_is_in_the_navigation():
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {*MADE, *(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))}
    assert [page for page in sorted(pages) if f": {page}\n" not in settings] == []


def test_pages_from_the_readme_have_its_text():
    assert MADE["recursion.md"].startswith("# Recursion\n\nJAX has no recursive functions")
    assert "## Ten lines\n\n```python" in MADE["quickstart.md"]
    assert "](docs/" not in "".join(MADE.values())


def test_modules_that_docstrings_name_exist():
    package = ROOT / "jax_cocktail"
    rooms = "|".join(sorted(p.name for p in package.iterdir() if (p / "__init__.py").is_file()))
    wrong = []
    for path in sorted(package.rglob("*.py")):
        named = re.findall(rf"`((?:{rooms})\.[\w.]+)`", path.read_text(encoding="utf-8"))
        wrong += [f"{path.name}: {dotted}" for dotted in named if not _exists(package, dotted.split("."))]
    assert wrong == []
