"""Parts: the functions of a long program are shared out, and the host compiler takes several parts at once.

The text stays one: without CK_PART_NUMBER it is the whole program. The parts depend on the text alone, so
that every machine makes the same binary of it. Functions that call the same template are in one part, since
each part that calls a template compiles it again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

PART_BYTES = 32 << 10  # [M] of text: the compiler takes 0.3 s for it, and 0.04 s for the headers
MOST_PARTS = 32
TEMPLATE_COST = 8  # [M] of a text that calls templates, as multiple of another one
_TEMPLATE = re.compile(r"\bck_(?:dot|conv|sort|scan|lapack)")  # those whose compilation takes long
Function = tuple[str, str]  # the head with its brace, and the body


def arranged(
    exports: Sequence[str],
    tables: Sequence[str],
    functions: Sequence[Function],
    entry: Sequence[str],
    part_bytes: int,
) -> list[str]:
    """The lines of a program. `exports`: what the runtime reads; `part_bytes`: of a part's text, 0 for a
    program that stays whole."""
    sizes = [len(head) + len(body) for head, body in functions]
    text = sum(sizes) + sum(map(len, entry))
    count = min(text // part_bytes, MOST_PARTS) if part_bytes else 1
    if count < 2 or sum(map(len, tables)) > text:  # each part has all tables
        return [*exports, *tables, *(f"{head}\n{body}\n}}" for head, body in functions), *entry]
    loads, parts = [sum(map(len, entry)), *[0] * (count - 1)], [list[str]() for _ in range(count)]
    heads = [head.replace("CK_NOINLINE", "CK_FUNCTION") for head, _ in functions]
    homes = dict[str, int]()  # of templates
    for head, (_, body), size in zip(heads, functions, sizes, strict=True):
        least = loads.index(min(loads))
        used = _TEMPLATE.search(body)
        home = homes.setdefault(used[0], least) if used else least
        loads[home] += size * (TEMPLATE_COST if used else 1)
        parts[home].append(f"{head}\n{body}\n}}")
    first, *others = parts
    lines = [
        *(_guarded(0, exports) if exports else []),
        *tables,
        *(head.removesuffix(" {") + ";" for head in heads),
    ]
    for number, part in enumerate(others, 1):
        lines += _guarded(number, part)
    return [*lines, *_guarded(0, [*first, *entry])]


def _guarded(number: int, lines: Sequence[str]) -> list[str]:
    return [f"#if CK_IN_PART({number})", *lines, "#endif"]
