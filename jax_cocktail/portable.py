"""Records and programs from another machine, which a process carries beside its cache folder.

The name of a record that depends on the machine has two parts: what it is about, and the machine. A carried
record is found by the first part alone, since another machine has made it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jax_cocktail.memory import MEMORY, Place

_OF_A_MACHINE = re.compile(r"(?s)(.*[0-9a-f]{64})-[0-9a-f]{64}")


# ---- names -------------------------------------------------------------------------------------------------


def name_of(what: Sequence[str], machine: Sequence[str]) -> str:
    """The name of a record about something that is true of a machine."""
    return f"{digest_of(what)}-{digest_of(machine)}"


def digest_of(parts: Sequence[str | bytes]) -> str:
    """The SHA-256 of length-prefixed parts."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode(errors="surrogateescape") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def digest_of_facts(facts: Any) -> str:
    """The SHA-256 that a record may have beside its facts."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


# ---- what was used -----------------------------------------------------------------------------------------


def note_use(root: str, folder: str, name: str) -> None:
    """Remembers that this process has read or written a record in the cache folder `root`."""
    MEMORY.used.keep((root, (folder, name)), None)


def used(root: str) -> tuple[Place, ...]:
    """The records of a cache folder that this process has used, the least recent first."""
    return tuple(place for here, place in list(MEMORY.used) if here == root)


def forget_use(folder: str) -> None:
    """Forgets the use of all records in a folder: they are removed."""
    for each in [each for each in list(MEMORY.used) if each[1][0] == folder]:
        MEMORY.used.pop(each, None)


# ---- what is carried ---------------------------------------------------------------------------------------


def carry(records: Mapping[Place, Mapping[str, Any]], programs: Mapping[str, Any]) -> None:
    """Adds records, and programs by their keys, to what this process carries."""
    carried = MEMORY.carried
    carried.records.update(records)
    for (folder, name), value in records.items():
        if match := _OF_A_MACHINE.fullmatch(name):
            carried.elsewhere[folder, match[1]] = value
    carried.programs.update(programs)
    carried.digests.update(program.digest for program in programs.values())


def carried_records() -> Mapping[Place, Mapping[str, Any]]:
    """All records that this process carries."""
    return dict(MEMORY.carried.records)


def carried_record(folder: str, name: str) -> Any:
    """The record of this name that the process carries, or that of another machine; None if there is none."""
    found = MEMORY.carried.records.get((folder, name))
    if found is None and (match := _OF_A_MACHINE.fullmatch(name)):
        found = MEMORY.carried.elsewhere.get((folder, match[1]))
    return None if found is None else dict(found)


def carries(digest: str) -> bool:
    """True if the process carries the program whose binary has this digest."""
    return digest in MEMORY.carried.digests


def carried_program(key: str) -> Any:
    """The program of this key that the process carries; None if there is none."""
    return MEMORY.carried.programs.get(key)
