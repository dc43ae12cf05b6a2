"""The lines of the user's program that a report names."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator

from jax_cocktail import cells
from jax_cocktail.report.values import Contents, Node

_PLACE = re.compile(r"(?P<file>.+?):(?P<line>\d+)(?: \((?P<function>.*)\))?")
_LONGEST = 200  # characters of a line that are kept


def parsed(where: str) -> tuple[str, int, str] | None:
    """File, line and function of a place; None if the text is not one."""
    match = _PLACE.fullmatch(where)
    return None if match is None else (match["file"], int(match["line"]), match["function"] or "")


def short(where: str) -> str:
    """``file:line`` without folders and the function; the text itself if it is no place."""
    found = parsed(where)
    return where if found is None else f"{found[0].rsplit('/', 1)[-1]}:{found[1]}"


def flat(nodes: tuple[Node, ...]) -> Iterator[Node]:
    """Every node, each before those inside it."""
    for node in nodes:
        yield node
        yield from flat(node.inner)


def code_of(report: Contents) -> tuple[tuple[str, str], ...]:
    """The line at every place that the report names, where its file (or cell of a notebook) is at hand."""
    found: dict[str, str] = {}
    for where in dict.fromkeys(_places(report)):
        place = parsed(where)
        if place is not None:
            file = cells.file_of(place[0])
            linecache.checkcache(file)
            line = linecache.getline(file, place[1]).strip()
            if line:
                found[where] = line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."
    return tuple(found.items())


def _places(report: Contents) -> Iterator[str]:
    for region in report.captured:
        for text in (*region.control_flow, *(t for e in region.edges for t in (e.made, e.read))):
            yield text.partition(" at ")[2]
        yield from (where for _, where, _ in region.barriers)
        yield from (where for _, where in region.lengths)
        yield from (text.partition(" at ")[2] for text in region.messages)
        yield from (text.partition(": ")[0] for text in region.exits)
        yield from (where for node in flat(region.tree) for where in (node.where, *node.others))
    for left in report.left:
        yield from (left.where, left.culprit)
