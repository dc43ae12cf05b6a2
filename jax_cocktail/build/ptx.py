"""Joins texts in PTX, what nvcc made of the parts of a program, to the text of one module."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

_HEADER = re.compile(r"\A.*?^\.address_size .*?\n", re.MULTILINE | re.DOTALL)
_VARIABLE = re.compile(
    r"^(?:\.(?:extern|visible|weak) +)?\.(?:const|global|shared)\b"
    r"[^;]*?([\w$]+)(?:\[\d*\])*\s*(?:=[^;]*)?;\n",
    re.MULTILINE,
)
_FUNCTION = re.compile(r"^(?:\.(?:visible|weak) +)?\.func\s+(?:\([^)]*\)\s*)?([\w$]+)", re.MULTILINE)


def joined(texts: Sequence[str]) -> str:
    """The text of one module with the kernels of all texts. A variable that several texts define alike is
    defined once. Functions, which every text has for itself, get other names where the names are equal."""
    modules, variables, names = list[str](), set[str](), set[str]()
    for number, text in enumerate(texts):
        module = _without(_HEADER.sub("", text), variables) if number else text
        own = {found[1] for pattern in (_VARIABLE, _FUNCTION) for found in pattern.finditer(module)}
        variables |= {found[0] for found in _VARIABLE.finditer(module) if found[1] not in names}
        modules.append(_renamed(module, own & names, f"_{number}"))
        names |= own
    return "".join(modules)


def _without(module: str, variables: Collection[str]) -> str:
    """The text without these definitions."""
    return _VARIABLE.sub(lambda found: "" if found[0] in variables else found[0], module)


def _renamed(module: str, names: Collection[str], suffix: str) -> str:
    """The text with a suffix at these names."""
    if not names:
        return module
    known = "|".join(map(re.escape, sorted(names)))
    return re.sub(rf"(?<![\w$])(?:{known})(?![\w$])", lambda found: found[0] + suffix, module)
