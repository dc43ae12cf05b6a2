"""A hook of mkdocs: pages whose text is in a file of the repository's root, so that it is written once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
LIBRARIES = "Libraries that call `jax.jit` themselves"
SECTIONS = {  # page -> its title, and the sections of the README that it is made of
    "quickstart.md": ("Quickstart", ("Install", "Ten lines", LIBRARIES, "Measure it yourself")),
    "options.md": ("Options", ("Options",)),
    "recursion.md": ("Recursion", ("Recursion",)),
    "export.md": ("Export", ("Export",)),
    "limits.md": ("Limits", ("What is captured", "Limits")),
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages."""
    from mkdocs.structure.files import File  # tests read the pages without mkdocs

    for name, text in pages().items():
        files.append(File.generated(config, name, content=text))
    return files


def pages() -> dict[str, str]:
    """The text of every page, by file name."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", readme, re.MULTILINE)
    sections = {title: text.strip() for title, text in found}
    made = {name: _page(title, parts, sections) for name, (title, parts) in SECTIONS.items()}
    for name in ("CHANGELOG.md", "SECURITY.md"):
        made[name.lower()] = (ROOT / name).read_text(encoding="utf-8")
    return {name: _linked(text) for name, text in made.items()}


def _page(title: str, parts: tuple[str, ...], sections: dict[str, str]) -> str:
    heads = ("" if part == title else f"## {part}\n\n" for part in parts)
    return f"# {title}\n\n" + "\n\n".join(h + sections[p] for h, p in zip(heads, parts, strict=True)) + "\n"


def _linked(text: str) -> str:
    """Links of the repository's root as links among the pages."""
    for place, page in (("docs/", ""), ("CHANGELOG.md)", "changelog.md)"), ("SECURITY.md)", "security.md)")):
        text = text.replace(f"]({place}", f"]({page}")
    return text
