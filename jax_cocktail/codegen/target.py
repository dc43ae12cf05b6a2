"""What differs between targets: a table of spellings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """Spellings of one target.

    `headers`: runtime headers, by the feature that needs them; `lanes`: put before a loop whose iterations
    are independent; `reduction`: the same for a reduction of `{op}` into `{name}`; `entry`: head of the
    program's function; `units`: declarations of a program that runs in several units, on `{most_units}` and
    `{own_bytes}`.
    """

    name: str
    headers: dict[str, str]
    lanes: str
    reduction: str
    entry: str
    units: tuple[str, ...] = ()
