"""What a process carries of another machine: records and programs that stand beside its cache folder.

The name of a record that depends on the machine has two parts: what it is about, and the machine. A carried
record is found by the first part alone, since another machine has made it.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

_MOST_USED = 4096
_OF_A_MACHINE = re.compile(r"(?s)(.*[0-9a-f]{64})-[0-9a-f]{64}")
Place = tuple[str, str]  # of a record: the folder in the cache folder, and the name

_lock = threading.Lock()
_used: dict[tuple[str, Place], None] = {}  # the latest, by cache folder and place
_records: dict[Place, Mapping[str, Any]] = {}
_elsewhere: dict[Place, Mapping[str, Any]] = {}  # the same, by the first part of the name
_programs: dict[str, Any] = {}  # by key
_digests: set[str] = set()  # of their binaries


# ---- names -------------------------------------------------------------------------------------------------


def name_of(what: Sequence[str], machine: Sequence[str]) -> str:
    """The name of a record about something that is true of a machine."""
    return f"{_digest_of(what)}-{_digest_of(machine)}"


def _digest_of(parts: Sequence[str]) -> str:
    """The SHA-256 of length-prefixed texts."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode(errors="surrogateescape")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def digest_of_facts(facts: Any) -> str:
    """The SHA-256 that a record may have beside its facts."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


# ---- what was used -----------------------------------------------------------------------------------------


def note_use(root: str, folder: str, name: str) -> None:
    """Remembers that this process has read or written a record in the cache folder `root`."""
    with _lock:
        _used.pop((root, (folder, name)), None)
        _used[root, (folder, name)] = None
        for old in list(_used)[:-_MOST_USED] if len(_used) > _MOST_USED else ():
            del _used[old]


def used(root: str) -> tuple[Place, ...]:
    """The records of a cache folder that this process has used, the least recent first."""
    with _lock:
        return tuple(place for here, place in _used if here == root)


def forget_use(folder: str) -> None:
    """Forgets the use of all records in a folder: they are removed."""
    with _lock:
        for each in [each for each in _used if each[1][0] == folder]:
            del _used[each]


# ---- what is carried ---------------------------------------------------------------------------------------


def carry(records: Mapping[Place, Mapping[str, Any]], programs: Mapping[str, Any]) -> None:
    """Adds records, and programs by their keys, to what this process carries."""
    _records.update(records)
    for (folder, name), value in records.items():
        if match := _OF_A_MACHINE.fullmatch(name):
            _elsewhere[folder, match[1]] = value
    _programs.update(programs)
    _digests.update(program.digest for program in programs.values())


def carried_records() -> Mapping[Place, Mapping[str, Any]]:
    """All records that this process carries."""
    return dict(_records)


def carried_record(folder: str, name: str) -> Any:
    """The record of this name that the process carries, or that of another machine; None if there is none."""
    found = _records.get((folder, name))
    if found is None and (match := _OF_A_MACHINE.fullmatch(name)):
        found = _elsewhere.get((folder, match[1]))
    return None if found is None else dict(found)


def carries(digest: str) -> bool:
    """True if the process carries the program whose binary has this digest."""
    return digest in _digests


def carried_program(key: str) -> Any:
    """The program of this key that the process carries; None if there is none."""
    return _programs.get(key)
