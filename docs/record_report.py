"""Records the report of the picture in docs/explain.md: `python -m docs.record_report`.

The program is the first one on that page, on two threads of this machine. The report is in
docs/pictures/report.json, without what is only true of this machine.
"""

from __future__ import annotations

import linecache
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax_cocktail
from jax_cocktail.report import Setting

DOCS = Path(__file__).parent
RECORDED = DOCS / "pictures" / "report.json"
OPTIONS = {"force": "cocktail", "units": 2}
FILE = "rnn.py"  # as the page calls it


def record() -> None:
    """Runs the program of the page and keeps its report."""
    page = (DOCS / "explain.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```python\n(.*?)```", page.partition("\n## Edges")[0], re.DOTALL)
    lines = [f"{line}\n" for line in text.splitlines()]
    linecache.cache[FILE] = (len(text), None, lines, FILE)
    names: dict[str, Any] = {}
    with jax_cocktail.options(**OPTIONS):
        exec(compile(text, FILE, "exec"), names)
        report = jax_cocktail.explain(names["rnn"])(*names["arguments"])
    captured = tuple(replace(region, path="", seconds=0.0, cached=True) for region in report.captured)
    here = {"trials": (), "others": 0.0, "pressure": "", "made": Setting()}
    kept = replace(report, captured=captured, stock_seconds=None, cocktail_seconds=None, **here)
    kept.save(RECORDED)


if __name__ == "__main__":
    record()
