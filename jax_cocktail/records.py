"""Records: frozen values in the cache folder, all in one format.

A record is a file with a value as plain data (`plain`) and the digest of these. One that is damaged, is of
another format or is no value of its type is as good as absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from jax_cocktail import cache, portable
from jax_cocktail.plain import from_plain, to_plain

FORMAT = 6  # of all records
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Store(Generic[V]):
    """The records of one type. `kind`: a frozen dataclass, whose numbers are not negative; `folder`: in the
    cache folder; `prefix`: of their names there."""

    kind: type[V]
    folder: str
    prefix: str = ""

    def load(self, key: str) -> V | None:
        """The value of this key in the cache folder, or that the process carries; None if there is none."""
        with suppress(ValueError):
            return self.parsed(cache.read_record(self.folder, self.prefix + key))
        return None

    def store(self, key: str, value: V) -> Path | None:
        """Stores a value and returns its file; None if it cannot be written."""
        with suppress(OSError):
            return cache.write_record(self.folder, self.prefix + key, self.record(value))
        return None

    def record(self, value: V) -> Mapping[str, Any]:
        """The data of a record."""
        return sealed(to_plain(value))

    def parsed(self, record: Any) -> V:
        """The value in a record. Raises ValueError."""
        if not isinstance(record, Mapping) or record.get("format") != FORMAT:
            raise ValueError(f"{self.folder}: not a record of format {FORMAT}")
        facts = record.get("facts")
        if record.get("sha256") != portable.digest_of_facts(facts):
            raise ValueError(f"{self.folder}: a record is damaged")
        value: V = from_plain(self.kind, facts, self.folder, least=0)
        return value


def sealed(facts: Any) -> dict[str, Any]:
    """Plain data with their digest: a damaged size would not be noticed before the program runs."""
    return {"format": FORMAT, "facts": facts, "sha256": portable.digest_of_facts(facts)}
