"""A report as HTML for notebooks: sections that fold, without scripts, in the colours of the page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from jax_cocktail.report.code import short
from jax_cocktail.report.values import SCHEMES, Captured, Contents, Edge, Left, Node, Trial, place
from jax_cocktail_tools.report.picture import draw_region
from jax_cocktail_tools.report.text import NOTABLE, kept_messages, measured, runs_on, speedup
from jax_cocktail_tools.svg import written
from jax_cocktail_tools.words import brief, counted, counts, duration, size

CLASS = "jax-cocktail"
MOST_ROWS = 200  # of a table; the rest is counted
# Everything is relative to the colour of the text around it, so it can be read on light and dark pages.
STYLE = f"""<style>
.{CLASS} {{ font-size: 13px; line-height: 1.45; max-width: 1180px; overflow-x: auto; }}
.{CLASS} details {{ margin: 4px 0 4px 2px; padding-left: 12px;
  border-left: 2px solid rgba(128,128,128,.35); }}
.{CLASS} summary {{ cursor: pointer; margin-left: -6px; }}
.{CLASS} table {{ border-collapse: collapse; margin: 6px 0; background: none; color: inherit;
  font-size: inherit; }}
.{CLASS} th, .{CLASS} td {{ padding: 2px 10px 2px 0; text-align: left; vertical-align: top;
  background: none; color: inherit; border: none; border-bottom: 1px solid rgba(128,128,128,.25); }}
.{CLASS} th.number, .{CLASS} td.number {{ text-align: right; white-space: nowrap; }}
.{CLASS} code {{ font-size: 12px; background: none; color: inherit; white-space: pre; }}
.{CLASS} .faint {{ opacity: .7; }}
.{CLASS} p {{ margin: 4px 0; }}
</style>"""


def page(body: str, title: str) -> str:
    """A whole file around a part of one, in the reader's choice of light or dark."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="color-scheme" content="light dark"><title>{written(title)}</title></head>\n'
        f'<body style="font-family: sans-serif; margin: 16px">\n{body}\n</body></html>\n'
    )


def html(report: Contents) -> str:
    """The report as a part of a page."""
    return block(_parts(report))


def block(parts: Iterable[str]) -> str:
    """Parts with their style."""
    return "\n".join((f'<div class="{CLASS}">', STYLE, *parts, "</div>"))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table of cells that are HTML. `numbers`: the columns that are aligned to the right."""
    made = [_row(heads, numbers, "th")]
    all_rows = list(rows)
    made += (_row(row, numbers, "td") for row in all_rows[:MOST_ROWS])
    rest = len(all_rows) - MOST_ROWS
    made += [f'<tr><td colspan="{len(heads)}">+ {rest} more</td></tr>'] if rest > 0 else []
    return f"<table>{''.join(made)}</table>"


def _row(cells: Sequence[str], numbers: Sequence[int], kind: str) -> str:
    right = ' class="number"'
    made = (f"<{kind}{right if n in numbers else ''}>{cell}</{kind}>" for n, cell in enumerate(cells))
    return f"<tr>{''.join(made)}</tr>"


def fold(title: str, body: str, is_open: bool = False) -> str:
    """A section that folds; both are HTML."""
    shown = ' open=""' if is_open else ""
    return f"<details{shown}><summary>{title}</summary>\n{body}\n</details>"


def _parts(report: Contents) -> Iterator[str]:
    yield f"<p><b>{written(report.function)}</b> {written(runs_on(report))}</p>"
    yield from (f"<p>{written(line)}</p>" for line in measured(report))
    yield from (f"<p>{written(text)}</p>" for text in (report.now, report.pressure) if text)
    yield from (f"<p>recursion {written(text)}</p>" for text in dict.fromkeys(report.recursions))
    if report.trials:
        yield fold("candidates, as measured", _trials(report.trials, report.others), True)
    for number, region in enumerate(report.captured):
        title = f"<b>custom call {number}</b>: {written(counts(region.operators))}"
        yield fold(title, "\n".join(_region(report, number, region)), True)
    if report.left:
        title = f"<b>left to stock XLA</b>: {counted(len(report.left), 'part')}"
        yield fold(title, _left(report.left, dict(report.code)), True)
    if report.beside:
        yield f"<p>also compiled by stock XLA: {written(counts(report.beside))}</p>"
    yield from (fold(f"inside: {written(r.function)}", "\n".join(_parts(r))) for r in report.inner)
    made = report.made
    if made.jax:
        cores = counted(made.cores, "core")
        versions = f"jax_cocktail {made.jax_cocktail}, jax {made.jax}, {made.device}, {cores}"
        yield f'<p class="faint">{written(versions)}</p>'


def _trials(trials: Sequence[Trial], others: float) -> str:
    rows = (
        (
            f"<b>{written(trial.name)}</b>" if trial.chosen else written(trial.name),
            f"{trial.seconds * 1e6:,.1f}",
            speedup(trial, trials[0], others),
            "chosen" if trial.chosen else "",
        )
        for trial in sorted(trials, key=lambda t: t.seconds)
    )
    made = table(("candidate", "us per call", "speedup", ""), rows, (1, 2))
    if others >= NOTABLE:
        made += f"<p>other processes held {others:.0%} of the cores during the measurement</p>"
    return made


def _region(report: Contents, number: int, region: Captured) -> Iterator[str]:
    units = f"{region.units} units; " if region.units > 1 else ""
    waits = counted(round(region.waits), "barrier") if region.waits else "no barrier"
    moved = f"loads {size(region.loaded_bytes)}, stores {size(region.stored_bytes)} (predicted)"
    yield f"<p>{written(region.scope)}; {units}a call: {waits}; {moved}</p>"
    if region.stock is not None:
        stock = f"{counted(round(region.stock.kernels), 'kernel')}, {size(region.stock.bytes)}"
        yield f"<p>under stock XLA: {stock}</p>"
    if region.tree:
        yield fold("picture", draw_region(report, number), True)
        yield fold("program, beside your lines", _program(region, dict(report.code)))
    if region.memory:
        rows = (
            (written(m.space), *map(size, (m.bytes, m.bound_bytes, m.separate_bytes))) for m in region.memory
        )
        heads = ("space", "size", "lower bound", "without reuse")
        title = f"memory: {size(region.workspace_bytes)} of workspace"
        yield fold(title, table(heads, rows, (1, 2, 3)))
    if region.edges:
        yield fold(_edges_title(region.edges), _edges(region.edges))
    notes = [f"launch parameter: {place(f'the length {n}', where)}" for n, where in region.lengths]
    notes += kept_messages(region.messages)
    notes += (f"side exit at {text}" for text in dict.fromkeys(region.exits))
    if region.exited[0]:
        notes.append("{} of {} calls so far left by a side exit".format(*region.exited))
    yield from (f"<p>{written(note)}</p>" for note in notes)
    if region.fired or region.remarks:
        remarks = "".join(f"<p>{written(text)}</p>" for text in region.remarks)
        yield fold(f"changed by the passes: {written(', '.join(region.fired))}", remarks)
    if region.choices:
        yield fold("choices", "".join(f"<p>{written(each)}</p>" for each in region.choices))
    built = "from the cache" if region.cached else "built"
    files = f"<p>files: <code>{written(region.path)}</code></p>" if region.path else ""
    told = f"{built} in {duration(region.seconds)}; fingerprint {region.fingerprint[:16]}"
    yield f'<p class="faint">{written(told)}</p>{files}'


def _program(region: Captured, code: dict[str, str]) -> str:
    heads = ("uTask", "trips", "barriers", "predicted", "where", "your lines")
    rows = (
        (
            f"{'&emsp;' * depth}{written(node.what)}",
            "" if node.trips is None else f"{node.trips:,}",
            str(node.barriers or ""),
            brief(node.seconds) + (" per iteration" if node.kind == "loop" else ""),
            "<br>".join(map(_where, (node.where, *node.others))),
            "<br>".join(f"<code>{written(code.get(at, ''))}</code>" for at in (node.where, *node.others)),
        )
        for depth, node in _nested(region.tree)
    )
    return table(heads, rows, (1, 2, 3))


def _nested(nodes: Sequence[Node], depth: int = 0) -> Iterator[tuple[int, Node]]:
    for node in nodes:
        yield depth, node
        yield from _nested(node.inner, depth + 1)


def _where(where: str) -> str:
    """A place, with all of it for a reader who points at it."""
    return f'<span title="{written(where)}">{written(short(where))}</span>'


def _edges_title(edges: Sequence[Edge]) -> str:
    found = ((scheme, sum(e.times for e in edges if e.scheme == scheme)) for scheme in SCHEMES)
    told = ", ".join(f"{number:,} {scheme}" for scheme, number in found if number)
    return f"edges: {told}; they save {size(sum(e.saved_bytes for e in edges))}"


def _edges(edges: Sequence[Edge]) -> str:
    rows = (
        (
            written(edge.scheme),
            *(_operator(text) for text in (edge.made, edge.read)),
            str(edge.times),
            size(edge.bytes),
            size(edge.saved_bytes),
            written(edge.why),
        )
        for edge in edges
    )
    heads = ("scheme", "made by", "read by", "times", "bytes", "saved", "why")
    return table(heads, rows, (3, 4, 5))


def _operator(text: str) -> str:
    what, _, where = text.partition(" at ")
    return f"{written(what)} {_where(where)}"


def _left(left: Sequence[Left], code: dict[str, str]) -> str:
    rows = []
    for item, same in groupby(left):
        lines = (item.where, item.culprit)
        rows.append(
            (
                written(place(item.what, "", len(tuple(same)))),
                _where(item.where),
                written(item.reason),
                _where(item.culprit),
                "<br>".join(f"<code>{written(code[line])}</code>" for line in lines if line in code),
            )
        )
    return table(("what", "where", "because", "of", "your lines"), rows)
