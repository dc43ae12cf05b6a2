"""The value that `explain` returns."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jax_cocktail.plain import from_plain, to_plain
from jax_cocktail.report.values import Contents

if TYPE_CHECKING:
    from jax_cocktail_tools.report.difference import Difference

SCHEMA = 1  # of the data; one that cannot be read as before has another number


@dataclass(frozen=True, slots=True, repr=False)
class Report(Contents):
    """Describes how one call is compiled. `print` shows it as text, and a notebook as a page.

    Attributes:
      function: its name.
      captured: the regions that became custom calls.
      left: the loops and branches that stock XLA runs, and with scope="memory_bound" the subgraphs.
      beside: the primitives around the regions, which stock XLA compiles.
      recursions: the execution strategy of each recursion, one sentence each.
      choice: ``"cocktail"`` or ``"stock"``: the one that `jit` uses.
      why: the reason for `choice`.
      stock_seconds, cocktail_seconds: measured seconds per call of stock XLA and of our best candidate; None
        if nothing was measured.
      trials: everything that was timed.
      others: the fraction of our cores that other processes held during the measurement.
      pressure: how other processes have slowed down this process's calls so far; "" if they have not.
      now: what runs such calls in this process, and why, if it is not `choice`; "" if it is.
      inner: reports of jitted functions that are called from code that stock XLA runs.
      made: where the report was made: versions and device.
      code: the lines of your program that the report names, each with its ``file:line (function)``.

    Examples:
      >>> def eighth(x):
      ...     return lax.fori_loop(0, 3, lambda _, c: c / 2, x)
      >>> forced = jax_cocktail.jit(eighth, options={"force": "cocktail"})
      >>> report = jax_cocktail.explain(forced)(8.0)
      >>> print(report.choice, report.why, len(report.captured), sep="; ")
      cocktail; the option force is "cocktail"; 1
      >>> report.save("eighth.html")  # or .svg, .txt, and .json, which `Report.load` reads
      >>> print(jax_cocktail.explain(forced)(8.0).difference(report))
      eighth: the time of a call was not measured in both reports
        nothing else differs
    """

    @property
    def workspace_bytes(self) -> int:
        return sum(region.workspace_bytes for region in self.captured)

    def __repr__(self) -> str:
        """As `print` shows it: a prompt shows what `explain` returns."""
        return str(self)

    def __str__(self) -> str:
        from jax_cocktail_tools.report.text import text

        return text(self)

    def _repr_html_(self) -> str:
        from jax_cocktail_tools.report.html import html

        return html(self)

    def to_svg(self) -> str:
        """A picture of the program, as the text of an SVG file: loops, branches and stages as boxes in boxes,
        with predicted times and your lines beside them, barriers, and the edges between stages by scheme."""
        from jax_cocktail_tools.report.picture import draw

        return draw(self)

    def to_dict(self) -> dict[str, Any]:
        """The report as dictionaries, lists, text and numbers, with a number for their schema."""
        return {"schema": SCHEMA, **to_plain(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Report:
        """The report that `to_dict` gave.

        Raises:
          ValueError: the data are no report, or one of another schema.
        """
        schema = data.get("schema") if isinstance(data, Mapping) else None
        if type(schema) is not int or schema != SCHEMA:
            found = data.get("schema") if isinstance(data, Mapping) else data
            raise ValueError(f"not a report of schema {SCHEMA}: its schema is {found!r:.60}")
        values = {name: value for name, value in data.items() if name != "schema"}
        report = from_plain(cls, values, "report")
        assert isinstance(report, Report)
        return report

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the report to a file, in the form that its suffix names: ``.json`` (which `load` reads),
        ``.html``, ``.svg`` or ``.txt``. All but ``.txt`` contain the lines of your program that it names.

        Raises:
          ValueError: the suffix is another one.
          OSError: the file cannot be written.
        """
        path = Path(path)
        if path.suffix not in _FORMS:
            *others, last = _FORMS
            raise ValueError(f"{path.name!r}: the suffix of a report is {', '.join(others)} or {last}")
        path.write_text(_FORMS[path.suffix](self), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Report:
        """The report in a ``.json`` file that `save` has written.

        Raises:
          ValueError: the file contains no report, or one of another schema.
          OSError: the file cannot be read.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{path} is no JSON ({error}); try: a file that `Report.save` has written"
            ) from None
        return cls.from_dict(data)

    def difference(self, old: Report) -> Difference:
        """Compares this report with an older one: times, choice, custom calls, loops left to stock XLA,
        units, barriers, bytes, edges, passes and versions. It first says what most likely explains a change
        of the time. Custom calls are matched by their place in your program.

        Raises:
          TypeError: `old` is no report.
        """
        from jax_cocktail_tools.report.difference import difference

        if not isinstance(old, Report):
            raise TypeError(f"an older Report is needed, not {old!r}: Report.load reads a saved one")
        return difference(self, old)


def _page(report: Report) -> str:
    from jax_cocktail_tools.report.html import html, page

    return page(html(report), report.function)


_FORMS: dict[str, Callable[[Report], str]] = {
    ".json": lambda report: json.dumps(report.to_dict(), indent=1) + "\n",
    ".html": _page,
    ".svg": Report.to_svg,
    ".txt": lambda report: f"{report}\n",
}
