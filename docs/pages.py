"""A hook of mkdocs: pages that are made, and a check that the site asks nothing of a network.

The changelog and the rules of security are files of the repository's root, so that they are written once.
Every public name has a page with its docstring.
"""

from __future__ import annotations

import ast
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
PACKAGE = "jax_cocktail"
FROM_ROOT = {"changelog.md": "CHANGELOG.md", "security.md": "SECURITY.md"}
GROUPS = {  # title -> public names; whatever is in none of them is added to the last
    "Compile": ("jit", "replace_jit", "recursive", "while_loop", "wait"),
    "Look inside": ("explain", "Report", "trace", "Trace"),
    "Options": ("options", "Options"),
    "Store and export": (
        "cache_info",
        "CacheInfo",
        "clear_cache",
        "export",
        "load",
        "save_bundle",
        "load_bundle",
    ),
    "Errors and warnings": (),
    "Other names": (),
}
_ASSUMED = (
    "Every name has an example, which the tests run. The examples assume `import jax`,"
    " `import jax.numpy as jnp`, `from jax import lax` and `import jax_cocktail`."
)
SEE = (  # names, and the page that explains them; the last one is for all others
    (("jit", "wait"), "Quickstart", "quickstart.md"),
    (("explain", "Report"), "Reading explain", "explain.md"),
    (("trace", "Trace"), "Where the time goes", "explain.md#where-the-time-goes"),
    (("options", "Options"), "Options", "options.md"),
    (("cache_info", "CacheInfo", "clear_cache"), "The cache", "options.md#the-cache"),
    (("recursive",), "Recursion", "recursion.md"),
    (("while_loop",), "Differentiate an adaptive solver", "tutorials/adaptive_solver.md"),
    (("replace_jit",), "Libraries", "libraries.md"),
    (("export", "load"), "Export", "export.md"),
    (("save_bundle", "load_bundle"), "Bundles", "export.md#bundles"),
    ((), "FAQ and error index", "faq.md"),
)
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}  # by the browser


def on_config(config: MkDocsConfig) -> None:
    """Puts the pages of the API into the navigation."""
    for entry in config.nav or ():
        if isinstance(entry, dict) and isinstance(entry.get("API"), str):
            entry["API"] = api_navigation(entry["API"])


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages."""
    from mkdocs.structure.files import File  # tests read the pages without mkdocs

    for name, text in pages().items():
        files.append(File.generated(config, name, content=text))
    return files


def on_post_build(config: MkDocsConfig) -> None:
    """Raises if a page loads something from elsewhere: the site is read without a network."""
    from mkdocs.exceptions import PluginError

    for page in sorted(Path(config.site_dir).rglob("*.html")):
        if found := remote(page.read_text(encoding="utf-8")):
            raise PluginError(f"{page} loads {', '.join(found)}; put the file into docs")


def pages() -> dict[str, str]:
    """The text of every page that is made, by file name."""
    made = {page: _linked((ROOT / source).read_text(encoding="utf-8")) for page, source in FROM_ROOT.items()}
    made["api/index.md"] = _overview()
    for name in public_names():
        made[f"api/{name}.md"] = _page(name)
    return made


def _page(name: str) -> str:
    """The page of a public name, with a link to what explains it at length."""
    _, head, address = next((line for line in SEE if name in line[0]), SEE[-1])
    shown = f"::: {PACKAGE}.{name}\n    options:\n      show_root_full_path: true\n"
    return f"---\ntitle: {name}\nhide: [toc]\n---\n\n{shown}\nSee also: [{head}](../{address})\n"


def public_names() -> tuple[str, ...]:
    """What the package exports."""
    tree = ast.parse((ROOT / PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return tuple(ast.literal_eval(node.value))
    raise ValueError(f"{PACKAGE} has no __all__")


def groups() -> dict[str, tuple[str, ...]]:
    """The public names by topic."""
    exported, placed = public_names(), {name for names in GROUPS.values() for name in names}
    errors = tuple(name for name in exported if name.endswith(("Error", "Warning")))
    rest = tuple(name for name in exported if name not in placed and name not in errors)
    found = {title: tuple(n for n in names if n in exported) for title, names in GROUPS.items()}
    return found | {"Errors and warnings": errors, "Other names": rest}


def api_navigation(overview: str) -> list[Any]:
    """The part of the navigation below "API"."""
    listed = ({title: [{name: f"api/{name}.md"} for name in names]} for title, names in groups().items())
    return [overview, *listed]


def remote(html: str) -> list[str]:
    """The addresses from which a browser loads what the page consists of."""
    found = list[str]()

    class Finder(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            given = dict(attrs)
            if tag == "link" and given.get("rel") in ("canonical", "next", "prev", "edit"):
                return
            address = given.get(LOADED.get(tag, ""), "") or ""
            if address.startswith(("http:", "https:", "//")):
                found.append(address)

    Finder().feed(html)
    return found


def _overview() -> str:
    """A table of all public names, each with the first sentence of its docstring."""
    lines = ["# API", "", _ASSUMED, ""]
    for title, names in groups().items():
        lines += [f"## {title}", "", "| name | what it is |", "|---|---|"]
        lines += [f"| [`{name}`]({name}.md) | {_summary(name)} |" for name in names]
        lines.append("")
    return "\n".join(lines)


def docstrings() -> dict[str, str]:
    """The docstrings of all public names, read from the source."""
    return {name: _docstring(PACKAGE, name) for name in public_names()}


def _docstring(module: str, name: str) -> str:
    """The docstring of a name, or of what its module imports under that name."""
    place = ROOT / module.replace(".", "/")
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _docstring(str(node.module), alias.name)
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return ast.get_docstring(node) or ""
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            value = after.value if isinstance(after, ast.Expr) else None
            return str(value.value).strip() if isinstance(value, ast.Constant) else ""
    raise ValueError(f"{module} has no {name}")


def _summary(name: str) -> str:
    return docstrings()[name].partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def _linked(text: str) -> str:
    """Links of the repository's root as links among the pages."""
    for place, page in (("docs/", ""), ("CHANGELOG.md)", "changelog.md)"), ("SECURITY.md)", "security.md)")):
        text = text.replace(f"]({place}", f"]({page}")
    return text
