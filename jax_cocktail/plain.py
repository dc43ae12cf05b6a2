"""Frozen values as plain data: dictionaries, lists, text and numbers, which JSON can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Self, get_args, get_origin, get_type_hints

_MOST = 1 << 63  # sizes, times and counts are smaller


def to_plain(value: Any) -> Any:
    """The data of a dataclass, and of all that is in it."""
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): to_plain(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    for kind in (bool, int, float):  # sizes are integers that know more
        if isinstance(value, kind):
            return kind(value)
    return value


def from_plain(kind: Any, data: Any, where: str, whole: Any = None) -> Any:
    """The value of a type in such data. A field that is missing has its default.

    Args:
      kind: a dataclass, tuple, dict, ``X | None``, bool, int, float or str.
      data: what `to_plain` gave.
      where: the name of the data in messages.
      whole: what `Self` stands for.

    Raises:
      ValueError: the data are none of this type; the message names the field that is wrong.
    """
    if kind is Self:
        kind = whole
    if isinstance(kind, UnionType):
        return None if data is None else from_plain(_without_none(kind), data, where, whole)
    if get_origin(kind) is tuple:
        return _tuple(get_args(kind), data, where, whole)
    if get_origin(kind) is dict:
        if not isinstance(data, Mapping):
            raise ValueError(f"{where}: {data!r:.60} is no record")
        item = get_args(kind)[1]
        return {name: from_plain(item, each, f"{where}.{name}", whole) for name, each in data.items()}
    if is_dataclass(kind):
        return _record(kind, data, where, whole)
    if kind is float and type(data) is int and abs(data) < _MOST:
        return float(data)
    if type(data) is not kind:
        raise ValueError(f"{where}: {data!r:.60} is not of type {kind.__name__}")
    if kind in (int, float) and not abs(data) < _MOST:
        raise ValueError(f"{where}: {data!r:.60} is no size, time or count")
    return data


def _without_none(kind: UnionType) -> Any:
    (other,) = (each for each in get_args(kind) if each is not NoneType)
    return other


def _tuple(kinds: tuple[Any, ...], data: Any, where: str, whole: Any) -> tuple[Any, ...]:
    if not isinstance(data, list | tuple):
        raise ValueError(f"{where}: {data!r:.60} is no list")
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(data)
    if len(kinds) != len(data):
        raise ValueError(f"{where}: {len(data)} items in place of {len(kinds)}")
    pairs = enumerate(zip(kinds, data, strict=True))
    return tuple(from_plain(kind, item, f"{where}[{n}]", whole) for n, (kind, item) in pairs)


def _record(kind: Any, data: Any, where: str, whole: Any) -> Any:
    if not isinstance(data, Mapping):
        raise ValueError(f"{where}: {data!r:.60} is no record")
    hints = get_type_hints(kind)
    if unknown := sorted(set(data) - set(hints)):
        raise ValueError(f"{where} has no field {unknown[0]!r:.60}")
    needed = (f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING)
    if missing := [name for name in needed if name not in data]:
        raise ValueError(f"{where} lacks the field {missing[0]!r}")
    return kind(
        **{name: from_plain(hints[name], each, f"{where}.{name}", whole) for name, each in data.items()}
    )
