"""Reports as plain data: dictionaries, lists, text and numbers, which JSON can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Self, TypeVar, get_args, get_origin, get_type_hints

from jax_cocktail.report.values import Contents

SCHEMA = 1  # of the data; one that cannot be read as before has another number
_MOST = 1 << 63  # sizes, times and counts are smaller
_R = TypeVar("_R", bound=Contents)


def to_plain(report: Contents) -> dict[str, Any]:
    """The report with its schema."""
    return {"schema": SCHEMA, **_plain(report)}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    for kind in (bool, int, float):  # sizes are integers that know more
        if isinstance(value, kind):
            return kind(value)
    return value


def from_plain(kind: type[_R], data: Mapping[str, Any]) -> _R:
    """The report in such data. A field that is missing has its default.

    Raises:
      ValueError: the data are no report of this schema; the message names the field that is wrong.
    """
    schema = data.get("schema") if isinstance(data, Mapping) else None
    if type(schema) is not int or schema != SCHEMA:
        found = data.get("schema") if isinstance(data, Mapping) else data
        raise ValueError(f"not a report of schema {SCHEMA}: its schema is {found!r:.60}")
    values = {name: value for name, value in data.items() if name != "schema"}
    found = _made(kind, values, kind, "report")
    assert isinstance(found, kind)
    return found


def _made(kind: Any, value: Any, whole: type[Contents], where: str) -> Any:
    """A value of this type from plain data. `whole`: the type of reports inside; `where`: the field."""
    if kind is Self:
        kind = whole
    if isinstance(kind, UnionType):
        return None if value is None else _made(_without_none(kind), value, whole, where)
    if get_origin(kind) is tuple:
        return _tuple(get_args(kind), value, whole, where)
    if isinstance(kind, type) and is_dataclass(kind):
        return _record(kind, value, whole, where)
    if kind is float and type(value) is int and abs(value) < _MOST:
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"{where}: {value!r:.60} is not of type {kind.__name__}")
    if kind in (int, float) and not abs(value) < _MOST:
        raise ValueError(f"{where}: {value!r:.60} is no number that a report has")
    return value


def _without_none(kind: UnionType) -> Any:
    (other,) = (each for each in get_args(kind) if each is not NoneType)
    return other


def _tuple(kinds: tuple[Any, ...], value: Any, whole: type[Contents], where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{where}: {value!r:.60} is no list")
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(value)
    if len(kinds) != len(value):
        raise ValueError(f"{where}: {len(value)} items in place of {len(kinds)}")
    pairs = enumerate(zip(kinds, value, strict=True))
    return tuple(_made(kind, item, whole, f"{where}[{n}]") for n, (kind, item) in pairs)


def _record(kind: Any, value: Any, whole: type[Contents], where: str) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: {value!r:.60} is no record")
    hints = get_type_hints(kind)
    unknown = sorted(set(value) - set(hints))
    if unknown:
        raise ValueError(f"{where} has no field {unknown[0]!r:.60}")
    try:
        return kind(
            **{name: _made(hints[name], item, whole, f"{where}.{name}") for name, item in value.items()}
        )
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from None
