"""Differences of two reports on a function, first the one that most likely explains a change of its time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from jax_cocktail.report.code import parsed, short
from jax_cocktail.report.values import SCHEMES, Captured, Contents, Counts, Left, place
from jax_cocktail_tools.report.html import block, fold, table
from jax_cocktail_tools.report.text import NOTABLE
from jax_cocktail_tools.svg import written
from jax_cocktail_tools.words import counted, counts, duration, size

SAME = 0.05  # times that differ by less are called equal
_NAMES = {"cocktail": "jax_cocktail", "stock": "stock XLA"}
Pair = tuple[Captured, Captured]  # the old one and the new one


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference. `topic`: what it is about; `text`: a sentence."""

    topic: str
    text: str


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of a report from an older one. `print` shows it as text.

    Attributes:
      function: the name of the function.
      old_seconds, new_seconds: measured time of one call by the one that `jit` uses; None if unknown.
      findings: the differences. If the time has changed, the first one explains it most likely.
      times: for each candidate, (name, old seconds, new seconds); None where it was not timed.
    """

    function: str
    old_seconds: float | None
    new_seconds: float | None
    findings: tuple[Finding, ...]
    times: tuple[tuple[str, float | None, float | None], ...] = ()

    @property
    def summary(self) -> str:
        """The change of the time."""
        old, new = self.old_seconds, self.new_seconds
        if not old or not new:
            return "the time of a call was not measured in both reports"
        times = f"{duration(old)} before, {duration(new)} now"
        if not self.has_new_time:
            return f"as fast as before: {times}"
        words = f"{new / old:.2f} times slower" if new > old else f"{old / new:.2f} times faster"
        return f"{words}: {times}"

    @property
    def has_new_time(self) -> bool:
        """True if the measured time has changed by more than noise."""
        old, new = self.old_seconds, self.new_seconds
        return bool(old and new and max(old, new) > (1 + SAME) * min(old, new))

    @property
    def _cause_and_rest(self) -> tuple[str, tuple[Finding, ...]]:
        """The reason for a change of the time, in words, or "" if there is none; and the other findings."""
        unknown = not self.old_seconds or not self.new_seconds
        if not self.findings or not (unknown or self.has_new_time):
            return "", self.findings
        first, *rest = self.findings
        words = "if the time has changed, most likely" if unknown else "most likely"
        return f"{words} because of {first.topic}: {first.text}", tuple(rest)

    def __str__(self) -> str:
        lines = [f"{self.function}: {self.summary}"]
        if not self.findings:
            return "\n".join([*lines, "  nothing else differs"])
        cause, rest = self._cause_and_rest
        lines += [f"  {cause}"] if cause else []
        lines += (f"  {finding.topic}: {finding.text}" for finding in rest)
        width = max((len(name) for name, *_ in self.times), default=0)
        lines += [f"  {'candidate':{width}}  {'us before':>12}  {'us now':>12}"] if self.times else []
        lines += (f"  {name:{width}}  {_us(old):>12}  {_us(new):>12}" for name, old, new in self.times)
        return "\n".join(line.rstrip() for line in lines)

    def _repr_html_(self) -> str:
        parts = [f"<p><b>{written(self.function)}</b>: {written(self.summary)}</p>"]
        cause, rest = self._cause_and_rest
        parts += [f"<p>{written(cause)}</p>"] if cause else []
        rows = [(written(finding.topic), written(finding.text)) for finding in rest]
        title = "other differences" if cause else "differences"
        parts += [fold(title, table(("of", "what"), rows), True)] if rows else []
        times = [(written(name), _us(old), _us(new)) for name, old, new in self.times]
        parts += [fold("candidates", table(("", "us before", "us now"), times, (1, 2)))] if times else []
        return block(parts)


def difference(new: Contents, old: Contents) -> Difference:
    """Compares two reports. Custom calls and loops are matched by their place in the source."""
    pairs, gained, lost = matched(old.captured, new.captured)
    choice, left = _choice(old, new), tuple(_left(old.left, new.left))
    causes = (
        *((*choice, *left) if new.captured else (*left, *choice)),  # nothing else is left to choose
        *(Finding("a custom call lost", _name(region)) for region in lost),
        *(Finding("a custom call gained", _name(region)) for region in gained),
        *_setting(old, new),
        *(() if gained or lost or left else _beside(old, new)),
        *_inner(old, new),
        *_same_programs(old, new, pairs, bool(gained or lost)),
        *_disturbance(old, new),
        *(finding for find in _OF_REGIONS for pair in pairs for finding in find(*pair)),
    )
    return Difference(new.function, _seconds(old), _seconds(new), causes, _times(old, new))


def _us(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e6:,.1f}"


def _seconds(report: Contents) -> float | None:
    return report.cocktail_seconds if report.choice == "cocktail" else report.stock_seconds


def _times(old: Contents, new: Contents) -> tuple[tuple[str, float | None, float | None], ...]:
    before, now = ({trial.name: trial.seconds for trial in report.trials} for report in (old, new))
    return tuple((name, before.get(name), now.get(name)) for name in dict.fromkeys((*before, *now)))


# ---- custom calls that are one -----------------------------------------------------------------------------
def matched(
    old: Sequence[Captured], new: Sequence[Captured]
) -> tuple[list[Pair], list[Captured], list[Captured]]:
    """The custom calls that are one in both reports, those gained, and those lost. Equal places count first,
    then equal functions and files, whose lines have moved; what is left of both is no match."""
    rest_old, rest_new, pairs = list(old), list(new), list[Pair]()
    for key in (_places, _functions):
        for region in tuple(rest_new):
            other = next((each for each in rest_old if key(each) == key(region)), None)
            if other is not None:
                pairs.append((other, region))
                rest_old.remove(other)
                rest_new.remove(region)
    return pairs, rest_new, rest_old


def _places(region: Captured) -> tuple[str, ...]:
    return region.control_flow


def _functions(region: Captured) -> tuple[str, ...]:
    """The outermost loops and branches by file and function, without the line."""
    return tuple(_unnumbered(text) for text in region.control_flow)


def _unnumbered(text: str) -> str:
    what, _, where = text.partition(" at ")
    found = parsed(where)
    return text if found is None else f"{what} at {found[0].rsplit('/', 1)[-1]} ({found[2]})"


def _name(region: Captured) -> str:
    """A custom call by its outermost control flow."""
    first = region.control_flow[0] if region.control_flow else counts(region.operators)
    what, _, where = first.partition(" at ")
    more = len(region.control_flow) - 1
    return place(what, short(where)) + (f" and {more} more" if more > 0 else "")


# ---- differences of whole reports --------------------------------------------------------------------------
def _choice(old: Contents, new: Contents) -> Iterator[Finding]:
    if old.choice != new.choice:
        before, now = (_NAMES.get(report.choice, report.choice) for report in (old, new))
        yield Finding("the choice", f"{now} runs it now ({new.why}); {before} did ({old.why})")


def _left(old: Sequence[Left], new: Sequence[Left]) -> Iterator[Finding]:
    keys = [Counter((_unnumbered(item.placed), item.reason) for item in left) for left in (old, new)]
    known: set[tuple[str, str]] = set()
    for item in new:
        key = _unnumbered(item.placed), item.reason
        if keys[1][key] > keys[0][key] and key not in known:
            known.add(key)
            where = place(item.what, short(item.where))
            yield Finding("a loop left to stock XLA", f"{where}: {place(item.reason, short(item.culprit))}")
    for item in old:
        key = _unnumbered(item.placed), item.reason
        if keys[0][key] > keys[1][key] and key not in known:
            known.add(key)
            yield Finding("a loop that stock XLA ran before", place(item.what, short(item.where)))


def _setting(old: Contents, new: Contents) -> Iterator[Finding]:
    pairs = (
        ("the device", old.made.device, new.made.device),
        ("the number of cores", old.made.cores, new.made.cores),
        ("the version of jax", old.made.jax, new.made.jax),
        ("the version of jax_cocktail", old.made.jax_cocktail, new.made.jax_cocktail),
    )
    yield from (
        Finding(topic, f"{before} before, {now} now") for topic, before, now in pairs if before != now
    )


def _beside(old: Contents, new: Contents) -> Iterator[Finding]:
    if text := _changed_counts(old.beside, new.beside):
        yield Finding("what stock XLA compiles beside the custom calls", text)


def _inner(old: Contents, new: Contents) -> Iterator[Finding]:
    """Differences of the jitted functions that are called, which have the same name in both reports."""
    before = {report.function: report for report in old.inner}
    for report in new.inner:
        other = before.get(report.function)
        if other is not None and other != report:
            findings = difference(report, other).findings
            yield from (Finding(f"{each.topic} in {report.function}", each.text) for each in findings)


def _same_programs(old: Contents, new: Contents, pairs: Sequence[Pair], changed: bool) -> Iterator[Finding]:
    """Equal programs whose time has changed: it is the machine."""
    before, now = _seconds(old), _seconds(new)
    changed = changed or old.beside != new.beside or old.inner != new.inner or old.choice != new.choice
    if changed or not pairs or not before or not now:
        return
    if not abs(now / before - 1) > SAME or any(a.fingerprint != b.fingerprint for a, b in pairs):
        return
    text = "the custom calls are the same"
    if new.choice == "cocktail" and old.stock_seconds and new.stock_seconds:
        ratio = new.stock_seconds / old.stock_seconds
        text += f"; stock XLA took {ratio:.2f} times its time of before"
    yield Finding("the machine", text)


def _disturbance(old: Contents, new: Contents) -> Iterator[Finding]:
    measured = old.trials and new.trials
    if measured and abs(old.others - new.others) >= NOTABLE:
        text = f"they held {old.others:.0%} of the cores while this was measured before, {new.others:.0%} now"
        yield Finding("other processes", text)
    if new.pressure and new.pressure != old.pressure:
        yield Finding("other processes", new.pressure)


# ---- differences of a custom call --------------------------------------------------------------------------
def _units(old: Captured, new: Captured) -> Iterator[Finding]:
    if old.units != new.units:
        yield Finding("the units", f"{old.units} before, {new.units} now, in {_name(new)}")


def _barriers(old: Captured, new: Captured) -> Iterator[Finding]:
    before, now = (sum(count for *_, count in region.barriers) for region in (old, new))
    if before != now:
        text = f"{before} before, {now} now in one iteration of each loop of {_name(new)}"
        yield Finding("the barriers", text)
    elif _differ(old.waits, new.waits):
        waits = counted(round(old.waits), "barrier")
        text = f"{waits} a call before, {round(new.waits):,} now, in {_name(new)}"
        yield Finding("the barriers", text)


def _bytes(old: Captured, new: Captured) -> Iterator[Finding]:
    before, now = (region.loaded_bytes + region.stored_bytes for region in (old, new))
    if _differ(before, now):
        text = f"{size(before)} a call before, {size(now)} now (predicted), in {_name(new)}"
        yield Finding("the bytes", text)


def _edges(old: Captured, new: Captured) -> Iterator[Finding]:
    before, now = (Counter[str](), Counter[str]())
    for region, found in ((old, before), (new, now)):
        for edge in region.edges:
            found[edge.scheme] += edge.times
    changed = [scheme for scheme in SCHEMES if before[scheme] != now[scheme]]
    if changed:
        text = ", ".join(f"{before[scheme]:,} {scheme} before and {now[scheme]:,} now" for scheme in changed)
        yield Finding("the edges", f"{text}, in {_name(new)}")


def _passes(old: Captured, new: Captured) -> Iterator[Finding]:
    for told, a, b in (("no longer changed", old, new), ("newly changed", new, old)):
        missing = [name for name in a.fired if name not in b.fired]
        if missing:
            yield Finding("the passes", f"{_name(new)} is {told} by {', '.join(missing)}")


def _memory(old: Captured, new: Captured) -> Iterator[Finding]:
    if _differ(old.workspace_bytes, new.workspace_bytes):
        before, now = size(old.workspace_bytes), size(new.workspace_bytes)
        yield Finding("the workspace", f"{before} before, {now} now, in {_name(new)}")


def _operators(old: Captured, new: Captured) -> Iterator[Finding]:
    if old.operators != new.operators:
        text = _changed_counts(old.operators, new.operators)
        yield Finding("the operators", f"{text}, in {_name(new)}" if text else "they have another order")


def _program(old: Captured, new: Captured) -> Iterator[Finding]:
    if old.fingerprint != new.fingerprint:
        before, now = (region.fingerprint[:16] for region in (old, new))
        yield Finding("the program", f"its fingerprint was {before} and is {now}, in {_name(new)}")


def _exits(old: Captured, new: Captured) -> Iterator[Finding]:
    if new.exited[0] > old.exited[0]:
        text = "{} of {} calls so far left by a side exit, and stock XLA ran them again".format(*new.exited)
        yield Finding("side exits", text)


def _changed_counts(old: Counts, new: Counts) -> str:
    """The primitives whose numbers differ, in words; "" if none does."""
    a, b = dict(old), dict(new)
    names = [name for name in dict.fromkeys((*a, *b)) if a.get(name, 0) != b.get(name, 0)]
    return ", ".join(f"{name} {a.get(name, 0)} times before and {b.get(name, 0)} now" for name in names)


def _differ(before: float, now: float) -> bool:
    return abs(before - now) > SAME * max(abs(before), abs(now))


_OF_REGIONS: tuple[Callable[[Captured, Captured], Iterator[Finding]], ...] = (
    *(_exits, _units, _operators, _barriers, _bytes, _edges, _passes, _memory, _program),
)
