"""Frozen values as plain data: dictionaries, lists, text and numbers, which JSON can hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
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


def from_plain(kind: Any, data: Any, where: str, finite: bool = True, least: float = -_MOST) -> Any:
    """The value of a type in such data. A field that is missing has its default.

    Args:
      kind: a dataclass of others, of tuples, of dictionaries by text, ``X | None``, bool, int, float and str;
        what is ``Any`` is taken as it is.
      data: what `to_plain` gave.
      where: the name of the data in messages.
      finite: numbers are smaller than 2^63, and none is a NaN.
      least: no finite number is smaller.

    Raises:
      ValueError: the data are none of this type; the message names the field that is wrong.
    """
    return _Reader(kind, finite, least).value(kind, data, where)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads values of one type: `whole` is what `Self` stands for."""

    whole: Any
    finite: bool
    least: float

    def value(self, kind: Any, data: Any, where: str) -> Any:
        if kind is Self:
            kind = self.whole
        if kind is Any:
            return data
        if isinstance(kind, UnionType):
            (other,) = (each for each in get_args(kind) if each is not NoneType)
            return None if data is None else self.value(other, data, where)
        if get_origin(kind) is tuple:
            return self._tuple(get_args(kind), data, where)
        if get_origin(kind) in (dict, Mapping):
            item = get_args(kind)[1]
            return {name: self.value(item, each, f"{where}.{name}") for name, each in _record(data, where)}
        if is_dataclass(kind):
            return self._fields(kind, dict(_record(data, where)), where)
        if kind is float and type(data) is int and abs(data) < _MOST:
            data = float(data)
        if type(data) is not kind:
            raise ValueError(f"{where}: {data!r:.60} is not of type {kind.__name__}")
        if kind in (int, float) and self.finite and not self.least <= data < _MOST:
            raise ValueError(f"{where}: {data!r:.60} is no size, time or count")
        return data

    def _tuple(self, kinds: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(data, list | tuple):
            raise ValueError(f"{where}: {data!r:.60} is no list")
        if kinds[-1] is Ellipsis:
            kinds = kinds[:1] * len(data)
        if len(kinds) != len(data):
            raise ValueError(f"{where}: {len(data)} items in place of {len(kinds)}")
        pairs = enumerate(zip(kinds, data, strict=True))
        return tuple(self.value(kind, item, f"{where}[{n}]") for n, (kind, item) in pairs)

    def _fields(self, kind: Any, data: dict[str, Any], where: str) -> Any:
        hints = _hints(kind)
        if unknown := sorted(set(data) - set(hints)):
            raise ValueError(f"{where} has no field {unknown[0]!r:.60}")
        needed = (f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING)
        if missing := [name for name in needed if name not in data]:
            raise ValueError(f"{where} lacks the field {missing[0]!r}")
        found = {name: self.value(hints[name], each, f"{where}.{name}") for name, each in data.items()}
        return kind(**found)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _record(data: Any, where: str) -> Iterator[tuple[str, Any]]:
    """The items of a dictionary."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{where}: {data!r:.60} is no record")
    yield from data.items()
