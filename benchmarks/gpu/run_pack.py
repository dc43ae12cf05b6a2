"""Runs a pack on the card that is here, in the order of worth, and keeps what it finds item by item.

One process uses the card (`worker`), others make arguments (`inputs`). An item that takes too long is
recorded as an error, its process is ended, and a new one goes on with the next item. After a hang, programs
whose blocks wait for each other in the same way are skipped, and the file says why.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu import versions
from benchmarks.gpu.packed import MAIN, Pack, Packed, Row, described, judged_right
from benchmarks.gpu.pool import Stuck, python_path
from benchmarks.gpu.results import NO_CARD, Record, Results, tell
from benchmarks.gpu.serving import CannotStart, Inputs, Item, TimeLimits, Worker
from jax_cocktail.runtime.cuda.card import Facts
from jax_cocktail.runtime.cuda.measure import judged

SKIPPED = "skipped"
OURS = ("kernels", "measure", "litmus", "host two streams")  # beginnings of the names of a pack's items
LEAST_SECONDS = 2.0  # with less time left no item is begun; most take one
ANSWERS = {True: "", False: ", WRONG", None: ", not judged: this machine makes other inputs"}


@dataclass
class PackRun:
    """A run. `results`: what it completes; `seconds`: no item is begun later; `only`: some rows, and no
    figures; `again`: of what has failed before, and nothing else."""

    pack: Pack
    results: Results
    seconds: float
    only: Sequence[str] = ()
    limits: TimeLimits = TimeLimits()
    again: bool = False
    _hung: dict[str, str] = field(default_factory=dict)  # the first program that hung, by crossing

    @functools.cached_property
    def _rows(self) -> dict[str, Row]:
        return {row.name: row for row in self.pack.rows() if not self.only or row.name in self.only}

    def run(self) -> bool:
        """Runs all items for which there is time; True if nothing is left to do."""
        end = time.monotonic() + self.seconds
        try:
            with self._processes(end) as (worker, inputs):
                return self._run(worker, inputs, end)
        except CannotStart as error:
            self._end(f"the card cannot be used: {error}")
        except Stuck as error:
            self._end(f"{error}: the machine has to be started again")
        return False

    def _end(self, why: str) -> None:
        self.results.ended = why
        if self.results.card == NO_CARD:
            self.results.keep({"no_card": why}, "versions", "all")
        self.results.write()
        tell(why)

    def _run(self, worker: Worker, inputs: Inputs, end: float) -> bool:
        if self.again and not any(where.startswith(OURS) for where in self.results.failures()):
            return True
        inputs.begin(list(self._rows))
        card = worker.start()
        facts = Facts(**card["facts"])
        self._begin(facts)
        todo = self._todo(card["figures"])
        for number, item in enumerate(todo):
            if time.monotonic() + LEAST_SECONDS > end:
                self._end(f"no time left for {len(todo) - number} items of the pack, the next one {item[1]}")
                return False
            self._keep(item, self._record(item, worker, inputs), facts)
        self._end("all items of the pack are there")
        return True

    def _record(self, item: Item, worker: Worker, inputs: Inputs) -> Record:
        crossing = self._crossing(item)
        if crossing in self._hung and not self.again:
            return {SKIPPED: f"{self._hung[crossing]}, hung, and waits in the same way ({crossing})"}
        for row in _rows_of(item):
            if problem := inputs.problem(row):
                return {"error": f"{row} has no arguments: {problem}"}
        worker.ready()
        # If this ends the machine, another run does not begin with it again.
        place = self._place(item)
        self.results.keep(self._of(item, {"error": "it was begun, and never answered"}), *place)
        try:
            record = worker.ask(item, self.limits.hung if self._hung else self.limits.item)
        except KeyboardInterrupt:  # it is not to blame
            self.results.drop(*place)
            raise
        if record.get("hung"):
            self._hung[crossing or item[1]] = self._named(item)
        return record

    def _of(self, item: Item, record: Record) -> Record:
        """A record with everything that says of what it is."""
        known = described(self._program(item)) if item[0] == "program" else {}
        return {**known, **record, "digest": item[2]}

    def _named(self, item: Item) -> str:
        return ", ".join(self._place(item)[1:])

    def _crossing(self, item: Item) -> str:
        """The way in which the blocks of an item's programs wait for each other; "" if they do not. Figures
        of a kind count as one way."""
        if item[0] not in ("program", "streams"):
            return item[0]
        found = (self._rows[row].best() for row in _rows_of(item))
        return self._program(item).crossing if item[0] == "program" else next((p.crossing for p in found), "")

    def _program(self, item: Item) -> Packed:
        return next(program for program in self._rows[item[1]].programs if program.digest == item[2])

    # ---- what is there, and what is to be done -------------------------------------------------------------

    def _begin(self, card: Facts) -> None:
        """Says what is here."""
        facts = self.pack.facts
        self.results.found_on(card.name)
        here = {**asdict(card), "arch": card.arch, "cards": 1, "platform": "cuda"}
        pack = {"compiler": facts["compiler"], "pack": facts["versions"], "spec": facts["spec"]}
        self.results.keep({"card": here, **pack, **versions.found()}, "versions", "all")
        if not self.again:
            self._warn(card, facts)
        self._refresh()
        self._judge(card)

    def _warn(self, card: Facts, facts: Mapping[str, Any]) -> None:
        """Says what may be wrong with the pack."""
        if facts["sources"] != self.results.code:
            self.results.say("the pack was made from other sources than these: make it again")
        release = re.search(r"(\d+)\.(\d+)", facts["compiler"])
        if release and int(release[1]) * 1000 + int(release[2]) * 10 > card.driver:
            old = f"CUDA {card.driver // 1000}.{card.driver % 1000 // 10}"
            self.results.say(f"the driver is of {old}, {facts['compiler']} is newer: it may refuse programs")

    def _refresh(self) -> None:
        """Judges programs that are known by what the pack says of them now."""
        for row in self._rows.values():
            for program in row.programs:
                record = self.results.known("kernels", row.name, program.label)
                if record and record.get("digest") == program.digest:
                    record |= described(program)
                    if "difference" in record:
                        same = record["same_inputs"]
                        record["ok"] = judged_right(record["difference"], same, program.limit)

    def _todo(self, figures: Mapping[str, Sequence[str]]) -> list[Item]:
        """Items without a record, the most important first; `again`, those whose record is an error as well.
        What hung in the run that this one resumes counts here, too."""
        known = {item: self._known(item) for item in self._items(figures)}
        for item, record in known.items():
            if record and record.get("hung"):
                self._hung[self._crossing(item) or item[1]] = self._named(item)
        if self.again:
            return [item for item, record in known.items() if record is None or "error" in record]
        return [item for item, record in known.items() if record is None]

    def _items(self, figures: Mapping[str, Sequence[str]]) -> Iterator[Item]:
        """Everything, in the order of worth."""

        def measures(kind: str) -> Iterator[Item]:
            names = () if self.only else figures[kind]
            yield from ((kind, name, self.pack.facts[kind]) for name in names)

        rows = tuple(self._rows.values())
        yield from measures("micro")
        yield from measures("litmus")
        for main in (True, False):
            for row in rows:
                if (row.name in MAIN) is main:
                    yield "program", row.name, row.best().digest
        for phase in ("exact", "other", "traced"):
            for row in rows:
                yield from (("program", row.name, p.digest) for p in row.programs if p.phase == phase)
        yield from measures("latency")
        waiting = [row for row in rows if row.best().crossing in ("barrier", "exchange")]
        if len(waiting) > 1 and not self.only:
            pair = waiting[:2]
            yield "streams", " + ".join(row.name for row in pair), "+".join(r.best().digest for r in pair)

    def _place(self, item: Item) -> tuple[str, ...]:
        """The section of the record of an item, and its keys there."""
        kind, name, _ = item
        if kind == "program":
            return "kernels", name, self._program(item).label
        if kind == "streams":
            return "host", f"two streams: {name}"
        return ("litmus", name) if kind == "litmus" else ("measure", "card", "figures", name)

    def _known(self, item: Item) -> Record | None:
        record = self.results.known(*self._place(item))
        return record if record and record.get("digest") == item[2] and SKIPPED not in record else None

    def _keep(self, item: Item, record: Record, card: Facts) -> None:
        place = self._place(item)
        if "timeline" in record:
            record = dict(record)
            self.results.timelines.setdefault(item[1], {})[place[-1]] = record.pop("timeline")
        self.results.keep(self._of(item, record), *place)
        if place[0] == "measure":
            self._judge(card)
        what = ", ".join(place[1:] if place[0] == "kernels" else place[-1:])
        tell(f"{self.results.seconds:6.1f} s  {what}: {_words(record)}")

    def _judge(self, card: Facts) -> None:
        """The card as the planner sees it from its figures."""
        measured = self.results.sections.setdefault("measure", {}).setdefault("card", {})
        found = judged(card, measured.setdefault("figures", {}))
        measured |= {"spec": asdict(found.spec), "kept_from_table": dict(found.left)}

    # ---- processes -----------------------------------------------------------------------------------------

    @contextmanager
    def _processes(self, end: float) -> Iterator[tuple[Worker, Inputs]]:
        """The one that uses the card, and those that make arguments."""
        environment = {**os.environ, **python_path(), "JAX_PLATFORMS": "cpu"}
        with ExitStack() as ends:
            made = tempfile.TemporaryDirectory(prefix="pack-", ignore_cleanup_errors=True)
            folder = ends.enter_context(made)
            inputs = Inputs(self.pack, Path(folder), environment, self.limits.inputs, end)
            ends.callback(inputs.end)
            command = [sys.executable, "-m", "benchmarks.gpu.worker", str(self.pack.folder), folder]
            worker = Worker(command, environment, Path(folder, "worker.log"), self.limits, end)
            ends.callback(worker.end)
            yield worker, inputs


def _rows_of(item: Item) -> Sequence[str]:
    """The rows whose arguments an item needs."""
    return item[1].split(" + ") if item[0] in ("program", "streams") else ()


def _words(record: Record) -> str:
    for key in ("error", SKIPPED, "none"):
        if key in record:
            return str(record[key])
    if "trials" in record:
        return f"{record['trials']} trials" + ("" if record["ok"] else f", {record['forbidden']} FORBIDDEN")
    if "rate" in record:
        return f"{record['rate'] / 1e12:.3g} T/s"
    if "clocks" in record:
        return f"{record['clocks']:.4g} clocks"
    if "seconds" not in record:
        return f"an answer without a figure: {record}"[:200]
    words = f"{record['seconds'] * 1e6:.4g} us"
    if "predicted_seconds" in record:
        words += f", predicted {record['predicted_seconds'] * 1e6:.4g}"
    return words + ANSWERS[record.get("ok", True)]
