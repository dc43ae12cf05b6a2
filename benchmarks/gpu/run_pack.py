"""Runs a pack on the card that is here, and merges what it finds into a results file, item by item.

One process uses the card (`worker`), another one makes arguments (`inputs`). An item that takes too long is
recorded as an error, its process is ended, and a new one goes on with the next item.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.packed import PHASES, Pack, write
from benchmarks.gpu.pool import Record, stop
from benchmarks.gpu.targets import judge_all
from jax_cocktail.runtime.cuda.card import Facts
from jax_cocktail.runtime.cuda.measure import judged

ITEM_SECONDS = 30.0  # before an item counts as hanging
RESULTS = Path(__file__).resolve().parents[1] / "results"
Item = tuple[str, str, str]  # "program", row, digest; "figure", name, digest; or "card"


@dataclass
class Worker:
    """A process that answers items, started when it is needed."""

    command: Sequence[str]
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    _rest: bytes = b""

    def ask(self, item: Item, seconds: float) -> Record:
        """The record of an item; an `error` if there is none after so long."""
        if self.process is None:
            self.process = subprocess.Popen(
                self.command,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            self._rest = b""
        try:
            return self._answer(self.process, item, seconds)
        except (OSError, ValueError) as error:
            self.end()
            return {"error": str(error)}

    def _answer(self, process: subprocess.Popen[bytes], item: Item, seconds: float) -> Record:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(item).encode() + b"\n")
        process.stdin.flush()
        end = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(end - time.monotonic(), 0)):
                    raise ValueError(f"stopped after {seconds:.0f} s")
                data = os.read(process.stdout.fileno(), 1 << 16)
                if not data:
                    raise ValueError(f"the process ended with status {process.wait()}")
                self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        record: Record = json.loads(line)
        return record

    def end(self) -> None:
        """Ends the process, whatever it does."""
        if self.process is not None:
            stop(self.process)
            self.process.communicate()
            self.process = None


@dataclass
class PackRun:
    """A run. `out`: the folder of the results file, which is completed if it is there or in `RESULTS`;
    `seconds`: no item is begun later; `only`: some rows, and no figures; `item_seconds`: the limit of one."""

    pack: Pack
    out: Path
    seconds: float
    only: Sequence[str] = ()
    item_seconds: float = ITEM_SECONDS
    data: dict[str, Any] = field(default_factory=dict)
    path: Path = Path()

    def run(self) -> bool:
        """Runs all items for which there is time; True if nothing is left to do."""
        end = time.monotonic() + self.seconds
        with _processes(self.pack) as (worker, make):
            card = worker.ask(("card", "", ""), self.item_seconds)
            if "error" in card:
                print(f"the card cannot be used: {card['error']}", flush=True)
                return False
            facts = Facts(**card["facts"])
            self._begin(facts)
            todo = self._todo(card["figures"])
            if rows := list(dict.fromkeys(name for kind, name, _ in todo if kind == "program")):
                make(rows)
            for item in todo:
                if time.monotonic() > end:
                    print("no time left", flush=True)
                    return False
                record = worker.ask(item, self.item_seconds)
                if "error" in record:
                    worker.end()  # the card may be lost to it
                self._keep(item, record, facts)
        return True

    # ---- the results file ----------------------------------------------------------------------------------

    def _begin(self, card: Facts) -> None:
        """Reads what there is of this card."""
        name = f"gpu_check_{card.name.lower().replace(' ', '_')}.json"
        self.path = self.out / name
        known = next((p for p in (self.path, RESULTS / name) if p.exists()), None)
        self.data = json.loads(known.read_text()) if known else {"quick": False, "seconds": 0, "sections": {}}
        facts = self.pack.facts
        self.data["small"] = facts["small"]
        versions = self.data["sections"].setdefault("versions", {}).setdefault("all", {})
        versions |= {"card": {**asdict(card), "arch": card.arch, "cards": 1}, "compiler": facts["compiler"]}
        versions.setdefault("packages", {})

    def _section(self, item: Item) -> tuple[dict[str, Any], str]:
        """Where the record of an item belongs, and its key there."""
        kind, name, digest = item
        sections = self.data["sections"]
        if kind == "figure":
            return sections.setdefault("measure", {}).setdefault("card", {}).setdefault("figures", {}), name
        row = self.pack.row(name)
        assert row is not None
        label = next(program.label for program in row.programs if program.digest == digest)
        return sections.setdefault("kernels", {}).setdefault(name, {}), label

    def _todo(self, figures: Mapping[str, Sequence[str]]) -> list[Item]:
        """Items without a record, the most important first; then those whose record is an error."""
        rows = [row for row in self.pack.rows() if not self.only or row.name in self.only]
        items: list[Item] = [
            ("program", row.name, program.digest)
            for phase in PHASES
            for row in rows
            for program in row.programs
            if program.phase == phase
        ]
        if not self.only:
            items += [("figure", name, self.pack.facts[kind]) for kind in figures for name in figures[kind]]
        known = {item: self._known(item) for item in items}
        fresh = [item for item in items if known[item] is None]
        return fresh + [item for item in items if "error" in (known[item] or {})]

    def _known(self, item: Item) -> Record | None:
        section, key = self._section(item)
        record: Record | None = section.get(key)
        return record if record and record.get("digest") == item[2] else None

    def _keep(self, item: Item, record: Record, card: Facts) -> None:
        section, key = self._section(item)
        section[key] = {**record, "digest": item[2]}
        sections = self.data["sections"]
        if item[0] == "figure":
            card = {
                k: v for k, v in sections["versions"]["all"]["card"].items() if k not in ("arch", "cards")
            }
            found = judged(Facts(**card), section)
            sections["measure"]["card"] |= {"spec": asdict(found.spec), "kept_from_table": dict(found.left)}
        self.data["targets"] = judge_all({} if self.data["small"] else sections)
        write(self.path, self.data)
        print(f"{item[1]}, {key}: {_words(record)}", flush=True)


def _words(record: Record) -> str:
    for key in ("error", "none"):
        if key in record:
            return str(record[key])
    if "rate" in record:
        return f"{record['rate'] / 1e12:.3g} T/s"
    if "clocks" in record:
        return f"{record['clocks']:.4g} clocks"
    words = f"{record['seconds'] * 1e6:.4g} us"
    if "ok" not in record:
        return words
    return f"{words}, predicted {record['predicted_seconds'] * 1e6:.4g}" + ("" if record["ok"] else ", WRONG")


@contextmanager
def _processes(pack: Pack) -> Iterator[tuple[Worker, Callable[[Sequence[str]], None]]]:
    """The worker, and what begins to make the arguments of rows beside it."""
    root = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"}
    with tempfile.TemporaryDirectory(prefix="pack-") as folder, ExitStack() as ends:

        def command(module: str) -> list[str]:
            return [sys.executable, "-m", f"benchmarks.gpu.{module}", str(pack.folder), folder]

        def make(rows: Sequence[str]) -> None:
            made = subprocess.Popen([*command("inputs"), *rows], env=environment)
            ends.callback(made.wait)
            ends.callback(made.kill)

        worker = Worker(command("worker"), environment)
        ends.callback(worker.end)
        yield worker, make
