"""The results of a run as text: what `gpu_check.py` prints last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from benchmarks.gpu import here
from benchmarks.gpu.peers import FORMS
from benchmarks.gpu.roofline import limit_seconds
from benchmarks.gpu.targets import judged, measured_card
from benchmarks.gpu.ways import compared
from jax_cocktail.device.cards import spec_for
from jax_cocktail.device.spec import DeviceSpec

STATES = {True: "agrees", False: "DIFFERS", None: "not judged: this machine makes other inputs"}
WAYS = ("by threads", "together", "stock")
MOST_PLACES = 8  # that are listed of one reason
PRECISIONS = ("highest", "default")
Results = Mapping[str, Any]
LimitOf = Callable[[str, DeviceSpec], float | None]


def text(results: Results) -> str:
    """Tables of all sections that there are, problems, and targets."""
    sections = results["sections"]
    parts = [_heading(results)]
    limit = _no_limit if results.get("small") else limit_seconds
    packed, kernels, predicted = (partial(table, limit=limit) for table in (_packed, _kernels, _predicted))
    calls = (_timed, partial(_timed, section="torch"), _host, _answers, _ways)
    card = (_compared, _figures, _litmus, _stock_loops, _captured)
    tables = (*calls, packed, kernels, *card, predicted)
    for table in tables:
        lines = list(table(sections))
        parts += ["\n".join(lines)] if lines else []
    parts += ["\n".join(results.get("events", ())), "\n".join(_problems(sections))]
    parts += ["\n".join(_targets(results))]
    return "\n\n".join(part for part in parts if part)


def _heading(results: Results) -> str:
    versions = results["sections"].get("versions", {}).get("all", {})
    card = versions.get("card")
    if card:
        what = (
            f"{card['name']} ({card['arch']}, {card['attributes']['units']} multiprocessors),"
            f" {here.release(card)}"
        )
    else:
        why = versions.get("no_card", "the versions could not be read")
        what = f"no GPU here ({why}): times below are PREDICTIONS of the model for an H200"
    packages = ", ".join(f"{name} {version}" for name, version in versions.get("packages", {}).items())
    return f"{what}\n{packages}; {versions.get('compiler', 'no compiler for GPUs')}"


def _no_limit(row: str, spec: DeviceSpec) -> None:
    """Of rows of small sizes."""


def _us(value: float | None) -> str:
    return f"{value * 1e6:.1f}" if value else "-"


def _timed(sections: Mapping[str, Any], section: str = "times") -> Iterator[str]:
    """Wall time of asynchronous calls with one wait, by form."""
    rows = sections.get(section, {})
    timed = {form for row in rows.values() for form in row.get("seconds", {})}
    if not rows or (section != "times" and not timed):
        return
    unforced = sections.get("auto", {}) if section == "times" else {}
    forms = (
        *(form for form in FORMS if form in timed or section == "times"),
        *(["auto"] if unforced else []),
    )
    widths = {form: max(12, len(form) + 2) for form in forms}
    heads = "".join(f"{form:>{width}}" for form, width in widths.items())
    yield f"{'us a call':20}{heads}{'ratio':>8}  auto takes  float64"
    for name, row in rows.items():
        chosen = unforced.get(name, {})
        seconds = {**row.get("seconds", {}), "auto": chosen.get("seconds", {}).get("auto")}
        columns = "".join(f"{_us(seconds.get(form)):>{width}}" for form, width in widths.items())
        pair = seconds.get("stock"), seconds.get("ours")
        ratio = f"{pair[0] / pair[1]:.2f}" if all(pair) else "-"
        choice = chosen.get("choice") or "-"
        yield f"{name:20}{columns}{ratio:>8}  {choice:10}  {_verdict(sections, name)}"


def _host(sections: Mapping[str, Any]) -> Iterator[str]:
    """Calls that are waited for one by one, or together."""
    found = sections.get("host", {})
    forms = {form: each for each in found.values() for form in each.get("started", {})}
    if forms:
        yield f"{'us a call on the host':32}{'waited for':>12}{'started':>12}"
    for form, each in forms.items():
        yield f"{form:32}{_us(each.get('waited', {}).get(form)):>12}{_us(each['started'][form]):>12}"
    for name, each in found.items():
        if "alone_seconds" in each:
            alone = " and ".join(map(_us, each["alone_seconds"]))
            yield f"{name}: {_us(each['seconds'])} us together, {alone} alone, {STATES[each['ok']]}"


def _answers(sections: Mapping[str, Any]) -> Iterator[str]:
    """Of whole calls against float64, with the programs of a pack."""
    rows = {name: row for name, row in sections.get("answers", {}).items() if "ok" in row}
    if rows:
        yield "answers of calls, largest difference to float64: ours, stock XLA's, the limit"
    for name, row in rows.items():
        each = (
            " ".join((p, *(_gap(row[p][side]) for side in ("ours", "stock", "limit")))) for p in PRECISIONS
        )
        yield f"  {name:20}{'; '.join(each)}: {STATES[row['ok']]}"


def _gap(value: float | None) -> str:
    """A difference, which JSON does not have if it is infinite."""
    return "inf" if value is None else f"{value:.1e}"


def _ways(sections: Mapping[str, Any]) -> Iterator[str]:
    """Batches of loops: a thread for each element, all elements together, and stock XLA."""
    rows = tuple(compared(sections))
    if rows:
        heads = "".join(f"{way:>13}{'predicted':>11}{'off by':>8}" for way in WAYS)
        yield f"{'batches of loops, us':22}{heads}{'ours':>11}{'differs by':>12}  jit takes   ranked"
    for row in rows:
        pairs = ((pair.measured, pair.predicted) for pair in (row.threads, row.together, row.stock))
        columns = "".join(f"{_us(a):>13}{_us(b):>11}{_over(a, b):>8}" for a, b in pairs)
        gap = "-" if row.difference is None else f"{row.difference:.1e}"
        ranked = {True: "rightly", False: "WRONGLY", None: "-"}[row.ranked]
        yield f"{row.row:22}{columns}{_us(row.ours):>11}{gap:>12}  {row.choice or '-':10}  {ranked}"


def _litmus(sections: Mapping[str, Any]) -> Iterator[str]:
    """Tests of the synchronisation between blocks."""
    rows = {name: row for name, row in sections.get("litmus", {}).items() if "trials" in row}
    if rows:
        yield f"{'litmus tests':44}{'trials':>12}{'forbidden':>12}  seen"
    for name, row in rows.items():
        seen = ", ".join(f"{word}: {number}" for word, number in row["seen"].items() if number)
        wrong = "" if row["ok"] else "  WRONG"
        yield f"  {name:42}{row['trials']:12}{row['forbidden']:12}  {seen}{wrong}".rstrip()


def _verdict(sections: Mapping[str, Any], name: str) -> str:
    record = sections.get("correct", {}).get(name)
    if not record or "ok" not in record:
        return "not checked"
    worst = record.get("highest", {}).get("ours")
    return ("agrees" if record["ok"] else "DIFFERS") + (f" ({worst:.1e})" if worst is not None else "")


def _packed(sections: Mapping[str, Any], limit: LimitOf) -> Iterator[str]:
    """The programs of a pack. A call also clears the workspace of those whose blocks wait for each other."""
    card = measured_card(sections)
    rows = [
        (f"{name}, {label}", record, limit(name, card) if card else None)
        for name, records in sections.get("kernels", {}).items()
        for label, record in records.items()
        if "seconds" in record
    ]
    if rows:
        heads = ("us", "and clearing", "limit", "predicted", "off by", "GHz")
        yield f"{'packed programs':60}" + "".join(f"{head:>13}" for head in heads) + "  float64"
    for name, record, least in rows:
        times = record["seconds"], record["predicted_seconds"]
        clock = f"{record['sm_clock'] / 1e9:.2f}" if "sm_clock" in record else "-"
        seconds = times[0], record.get("call_seconds"), least, times[1]
        columns = (*map(_us, seconds), _over(*times), clock)
        yield f"{name:60}" + "".join(f"{column:>13}" for column in columns) + f"  {STATES[record['ok']]}"


def _kernels(sections: Mapping[str, Any], limit: LimitOf) -> Iterator[str]:
    rows = {n: r["kernel"] for n, r in sections.get("times", {}).items() if "seconds" in r.get("kernel", {})}
    if not rows:
        return
    yield f"{'our kernels alone':20}{'us':>12}{'limit us':>12}{'ratio':>8}  launches"
    card = measured_card(sections)
    for name, kernel in rows.items():
        least = limit(name, card) if card else None
        ratio = _over(kernel["seconds"], least)
        calls = ", ".join(f"{call['kernel']} x {call['grid']} blocks" for call in kernel["calls"])
        yield f"{name:20}{_us(kernel['seconds']):>12}{_us(least):>12}{ratio:>8}  {calls}"


def _compared(sections: Mapping[str, Any]) -> Iterator[str]:
    """Predictions with the measured numbers of the card, beside what was measured."""
    plans, rows = sections.get("plan", {}), sections.get("times", {})
    lines = [line for name, row in rows.items() if (line := _comparison(name, row, plans))]
    if lines:
        heads = ("kernel", "predicted", "off by", "stock", "predicted", "off by", "ratio", "predicted")
        yield f"{'model and card, us':20}" + "".join(f"{head:>11}" for head in heads)
        yield from lines


def _comparison(name: str, row: Mapping[str, Any], plans: Mapping[str, Any]) -> str:
    """A line of the table, "" if nothing of the row was both predicted and measured."""
    kernel, wall = row.get("kernel", {}), row.get("seconds", {})
    plan = next((p for key, p in plans.items() if key == f"{name}@card" and "seconds" in p), {})
    pairs = (
        (kernel.get("seconds"), kernel.get("predicted_seconds", plan.get("seconds"))),
        (wall.get("stock"), plan.get("stock_seconds")),
    )
    if not any(all(pair) for pair in pairs):
        return ""
    columns = [word for pair in pairs for word in (_us(pair[0]), _us(pair[1]), _over(*pair))]
    columns.append(_over(wall.get("stock"), wall.get("ours")))
    columns.append(_over(plan.get("stock_seconds"), plan.get("seconds")))
    return f"{name:20}" + "".join(f"{column:>11}" for column in columns)


def _over(value: float | None, other: float | None) -> str:
    return f"{value / other:.2f}" if value and other else "-"


def _figures(sections: Mapping[str, Any]) -> Iterator[str]:
    figures = sections.get("measure", {}).get("card", {}).get("figures", {})
    if figures:
        yield "the card"
    for name, figure in figures.items():
        if "seconds" in figure:
            yield f"  {name:44}{figure['seconds'] * 1e6:10.3f} us"
        elif "rate" in figure:
            yield f"  {name:44}{figure['rate'] / 1e12:10.3f} T/s"
        elif "clocks" in figure:
            yield f"  {name:44}{figure['clocks']:10.1f} clocks"
        else:
            yield f"  {name:44}{'-':>10}     {figure.get('error', figure.get('none'))}"


def _stock_loops(sections: Mapping[str, Any]) -> Iterator[str]:
    loops = sections.get("stock_loops", {})
    if loops:
        yield "stock XLA, us a trip"
    for name, modes in loops.items():
        words = []
        for mode, record in modes.items():
            if isinstance(record, dict) and "seconds_per_trip" in record:
                held = {True: " (captured)", False: " (not captured)", None: ""}[record.get("captured")]
                words.append(f"{mode} {record['seconds_per_trip'] * 1e6:.2f}{held}")
        yield f"  {name:24}{'; '.join(words) or modes.get('error', modes.get('skipped', '-'))}"


def _captured(sections: Mapping[str, Any]) -> Iterator[str]:
    rows = {name: record for name, record in sections.get("captured", {}).items() if "ok" in record}
    if rows:
        yield "our call in a branch of a command buffer"
    for name, record in rows.items():
        held = {True: "captured", False: "not captured", None: "nobody looked"}[record.get("captured")]
        same = "the same results" if max(record["differences"]) == 0 else "OTHER RESULTS"
        yield f"  {name:24}{held}, {same}{'' if record['ok'] else ': NOT RIGHT'}"


def _predicted(sections: Mapping[str, Any], limit: LimitOf) -> Iterator[str]:
    """Figures that need no card; times are the model's."""
    plans, codes = sections.get("plan", {}), sections.get("code", {})
    rows = {key: {**plans.get(key, {}), **codes.get(key, {})} for key in {**plans, **codes}}
    if not rows:
        return
    yield (
        f"{'for':7}{'PREDICTED us':20}{'ours':>10}{'stock':>10}{'ratio':>7}{'unrolled':>10}{'limit':>9}"
        f"{'barriers':>10}{'MB':>9}{'regs':>6}{'spill':>6}{'shared':>9}{'meets':>6}  {'emulated':10}"
        f"{'stock: kernels':>15}{'MB':>9}  plan"
    )
    for key, row in rows.items():
        name, _, arch = key.partition("@")
        spec = measured_card(sections) if arch == "card" else spec_for(arch)
        least = limit(name, spec) if spec else None
        yield f"{arch:7}{name:20}" + _predicted_line(row, name, least, sections)


def _predicted_line(
    row: Mapping[str, Any], name: str, least: float | None, sections: Mapping[str, Any]
) -> str:
    if "seconds" not in row:
        return "  " + str(row.get("error", row.get("skipped", "-"))).splitlines()[0][:80]
    moved = sum(row["bytes"].values()) / 1e6
    compiled = "registers" in row
    shared = f"{row['resident_shared_bytes'] / 1024:.0f} KiB" if compiled else "-"
    ratio = row["stock_seconds"] / row["seconds"]
    numbers = (
        f"{_us(row['seconds']):>10}{_us(row['stock_seconds']):>10}{ratio:7.1f}"
        f"{_us(row.get('unrolled_seconds')):>10}{_us(least):>9}"
        f"{row['barriers']:10.0f}{moved:9.1f}"
    )
    code = (
        f"{row['registers'] if compiled else '-':>6}{row['spill_bytes'] if compiled else '-':>6}{shared:>9}"
        f"{row['block_barriers_in_text'] if compiled else '-':>6}"
    )
    emulated = sections.get("emulate", {}).get(name, {})
    state = {True: "agrees", False: "DIFFERS", None: "-"}[emulated.get("ok")]
    peer = sections.get("stock_for_card", {}).get(name, {})
    kernels = f"{peer['kernels']:.0f}{'?' if peer['unknown'] else ''}" if "kernels" in peer else "-"
    megabytes = f"{peer['bytes'] / 1e6:.1f}" if "kernels" in peer else "-"
    return f"{numbers}{code}  {state:10}{kernels:>15}{megabytes:>9}  {row['plan']}"


def _problems(sections: Mapping[str, Any]) -> Iterator[str]:
    """Items that failed, were not there, or found no time: our programs first."""
    found: dict[str, list[str]] = {}
    for section in sorted(sections, key=lambda name: name != "kernels"):
        for where, part in _parts(sections[section], (section,)):
            for kind in ("error", "skipped", "none"):
                if isinstance(part.get(kind), str):
                    found.setdefault(part[kind].splitlines()[0][:200], []).append(" ".join(where))
    if found:
        yield "not done:"
    for reason, places in found.items():
        more = f"; and {len(places) - MOST_PLACES} more" if len(places) > MOST_PLACES else ""
        yield f"  {'; '.join(places[:MOST_PLACES])}{more}: {reason}"


def _parts(
    of: Mapping[str, Any], where: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """All records, and what is inside of them."""
    for name, part in of.items():
        if isinstance(part, Mapping):
            place = where if name == "all" else (*where, name)
            yield place, part
            yield from _parts(part, place)


def _targets(results: Results) -> Iterator[str]:
    found = judged(results)
    measured = [row for row in found if "value" in row]
    if measured:
        yield f"{'target (on an H200)':44}{'limit':>12}{'found':>10}  state"
    for row in measured:
        limit = f"{'>=' if row['least'] else '<='} {row['limit']:g} {row['unit']}"
        yield f"{row['target']:44}{limit:>12}{row['value']:>10.2f}  {row['state']}"
    if len(measured) < len(found):
        yield f"not measured: {len(found) - len(measured)} of {len(found)} targets"
