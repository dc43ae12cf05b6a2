"""The file that a run on a card writes: one of at most 2 MB for its figures, and one for its timelines.

A file belongs to one state of the sources. So figures of new kernels never stand beside calls of old ones: of
the file that a run resumes, only records of the same sources are kept, and those of programs whose machine
code is still the same.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "results"
MOST_BYTES = 2 << 20
RESERVE = ".reserve"  # is given up if the disk fills, so that the file can still be written
RESERVE_BYTES = 3 * MOST_BYTES
NO_CARD = "no card"
DIGEST = 8  # characters of the sources' digest in the name of a file
Record = dict[str, Any]
Section = dict[str, Record]
Timelines = dict[str, dict[str, list[str]]]


@dataclass
class Results:
    """The results so far, and the place where they are written.

    folder: of the files; code: the digest of the sources; small: the sizes of the tests; card: its name;
    sections: records by section and item; timelines: tables by row and program; ended: the reason why the run
    ended; events: what happened on the way.
    """

    folder: Path
    code: str
    small: bool = False
    quick: bool = False
    card: str = NO_CARD
    before: float = 0.0  # seconds of the runs that this one resumes
    resumed: Path | None = None
    sections: dict[str, Section] = field(default_factory=dict)
    timelines: Timelines = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    ended: str = "it was cut off"
    start: float = field(default_factory=time.monotonic)
    _changing: threading.RLock = field(default_factory=threading.RLock)  # sections run side by side

    def resume(self, path: Path, keeps: Callable[[Record], bool]) -> None:
        """Takes over the records of an earlier run that are of these sources. `keeps`: True if a record of
        other sources counts as well. Raises OSError, ValueError, KeyError or AttributeError."""
        data = json.loads(path.read_text(encoding="utf-8"))
        card = data["sections"].get("versions", {}).get("all", {}).get("card")
        self.card, self.resumed = card["name"] if card else NO_CARD, path.absolute()
        self.before = float(data["seconds"])
        if bool(data["small"]) != self.small:
            raise ValueError("it has other sizes")
        self.events += map(str, data.get("events", []))
        for name, section in data["sections"].items():
            if kept := _kept(section, lambda record: self._is_of(record) or keeps(record)):
                self.sections[name] = kept
        others = path.with_name(timelines_name(path.name))
        if others.exists() and others != path:
            self._take(json.loads(others.read_text(encoding="utf-8")))

    def _take(self, timelines: Timelines) -> None:
        """The timelines of records that were taken over."""
        for row, tables in timelines.items():
            known = {name: table for name, table in tables.items() if self.known("kernels", row, name)}
            self.timelines |= {row: known} if known else {}

    def _is_of(self, record: Record) -> bool:
        return record.get("code") == self.code

    def found_on(self, card: str) -> None:
        """Says which card this is. What was found on another one is dropped."""
        if self.card not in (NO_CARD, card):
            self.events.append(f"what was found on {self.card} is left out: this is {card}")
            self.sections.clear()
            self.timelines.clear()
            self.before = 0.0
        self.card = card
        if self.path.exists() and self.path.absolute() != self.resumed:
            self._set_aside()
        self.resumed = self.path.absolute()

    def _set_aside(self) -> None:
        """Gives another name to the files of a run that this one does not resume."""
        number = 1
        while (other := self.path.with_name(f"{self.path.stem}_{number}.json")).exists():
            number += 1
        self.say(f"{self.path.name} is there already, and is called {other.name} now")
        for path, target in ((self.path, other), (self._beside(self.path), self._beside(other))):
            with suppress(FileNotFoundError):
                os.replace(path, target)

    def _beside(self, path: Path) -> Path:
        """The file of the timelines."""
        return path.with_name(timelines_name(path.name))

    def known(self, section: str, *keys: str) -> Record | None:
        """A record, or None."""
        found: Any = self.sections.get(section)
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return found

    def keep(self, record: Record, section: str, *keys: str) -> None:
        """Adds a record, or replaces it, and writes the file."""
        with self._changing:
            place: Any = self.sections.setdefault(section, {})
            for key in keys[:-1]:
                place = place.setdefault(key, {})
            place[keys[-1]] = {**record, "code": self.code}
            self.write()

    def say(self, event: str) -> None:
        """Adds a line to what happened, once, and prints it."""
        if event not in self.events:
            self.events.append(event)
            tell(event)

    def drop(self, section: str, *keys: str) -> None:
        """Removes a record, and writes the file."""
        with self._changing:
            place: Any = self.sections[section]
            for key in keys[:-1]:
                place = place[key]
            del place[keys[-1]]
            self.write()

    def failures(self) -> list[str]:
        """The items that failed, are wrong or were skipped, with their sections."""
        return [" ".join(where) for where, record in _records(self.sections) if not is_good(record)]

    @property
    def seconds(self) -> float:
        """Of this run and those that it resumes."""
        return self.before + time.monotonic() - self.start

    @property
    def path(self) -> Path:
        """The file of the figures."""
        card = re.sub(r"[^a-z0-9]+", "_", self.card.lower()).strip("_")
        return self.folder / f"gpu_check_{card}_{self.code[:DIGEST]}.json"

    @property
    def data(self) -> Record:
        """The contents of the file, as plain data."""
        from benchmarks.gpu.targets import judged

        found = {
            "code": self.code,
            "date": time.strftime("%Y-%m-%dT%H:%M:%S"),
            "small": self.small,
            "quick": self.quick,
            "seconds": round(self.seconds, 1),
            "ended": self.ended,
            "events": self.events,
            "sections": self.sections,
        }
        return {**found, "targets": judged(found)}

    def write(self) -> bool:
        """Writes both files; False if that is not possible, which is said once. The next item tries again."""
        with self._changing:
            try:
                self._write(self.path, _bounded(self.data))
                if self.timelines:
                    self._write(self._beside(self.path), _shortened(self.timelines))
            except OSError as error:
                self.say(f"{self.folder} cannot be written: {error}")
                return False
            return True

    def _write(self, path: Path, data: Any) -> None:
        try:
            write(path, data)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            with suppress(FileNotFoundError):
                (self.folder / RESERVE).unlink()
                self.events.append(f"{self.folder} has no room left: {error}")
            write(path, data)

    def reserve(self) -> None:
        """Keeps room for the files until `release`."""
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
        with suppress(OSError), open(self.folder / RESERVE, "wb") as file:
            file.write(bytes(RESERVE_BYTES))

    def release(self) -> None:
        """Gives up the reserve."""
        with suppress(OSError):
            (self.folder / RESERVE).unlink()


def _kept(records: Mapping[str, Any], wanted: Callable[[Record], bool]) -> Section:
    """The wanted records at any depth: one that has none of its own is a folder of others."""
    found: Section = {}
    for name, record in records.items():
        if not isinstance(record, dict):
            continue
        if "code" in record:
            if wanted(record):
                found[name] = record
        elif inner := _kept(record, wanted):
            found[name] = inner
    return found


def is_good(record: Record) -> bool:
    """True unless an item failed, is wrong or was skipped."""
    return not {"error", "skipped"} & set(record) and record.get("ok") is not False


def _records(of: Mapping[str, Any], where: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Record]]:
    """All records, with their places."""
    for name, found in of.items():
        if isinstance(found, dict) and "code" in found:
            yield (*where, name), found
        elif isinstance(found, dict):
            yield from _records(found, (*where, name))


def _bounded(data: Record) -> Record:
    """The data, without what failed items printed if it would be too long otherwise."""
    if len(json.dumps(data, indent=1)) < MOST_BYTES:
        return data
    words = "what failed items printed is left out: it is too long"
    sections = {name: _without(section, ("output", "log")) for name, section in data["sections"].items()}
    return {**data, "events": [*data["events"], words], "sections": sections}


def _shortened(timelines: Timelines) -> Timelines:
    """As many timelines as fit."""
    found, left = {}, MOST_BYTES - 2
    for row, tables in timelines.items():
        left -= len(json.dumps({row: tables}, indent=1))
        if left >= 0:
            found[row] = tables
    return found


def _without(record: Any, names: tuple[str, ...]) -> Any:
    if not isinstance(record, dict):
        return record
    return {key: _without(value, names) for key, value in record.items() if key not in names}


def timelines_name(name: str) -> str:
    """The name of the file with the timelines of a file of figures."""
    return name.replace("gpu_check_", "timelines_", 1)


def write(path: Path, data: Any) -> None:
    """Writes strict JSON atomically. Raises OSError."""
    text = json.dumps(_finite(data), indent=1, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.new")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _finite(data: Any) -> Any:
    """The data with None for what JSON has no word for."""
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def tell(text: str) -> None:
    """Prints a line, even if nobody listens any more."""
    with suppress(OSError, UnicodeError):
        print(text, flush=True)


def newest(folder: Path = FOLDER) -> dict[str, Path]:
    """The file of the latest run on each card that timed anything, by the card's name."""
    found: dict[str, tuple[str, Path]] = {}
    for path in sorted(folder.glob("gpu_check_*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        sections, date = data["sections"], data.get("date", "")
        card = sections.get("versions", {}).get("all", {}).get("card")
        kernels = (each for row in sections.get("kernels", {}).values() for each in row.values())
        timed = any("seconds" in each for each in (*kernels, *sections.get("times", {}).values()))
        if card and timed and date >= found.get(card["name"], ("", path))[0]:
            found[card["name"]] = date, path
    return {name: path for name, (_, path) in found.items()}
