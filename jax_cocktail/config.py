"""Options: one table that says what there is, where a value comes from, and what it changes.

A value is looked up in this order: the `options=` of `jit`, the innermost `with options(...)` block, the
environment variable JAX_COCKTAIL_<NAME>, the default.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

VERSION = "0.1.0"


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `choices`: the words it may be; empty for numbers, flags and folders.

    `in_cache_key`: the option changes what is compiled, so it is part of the identity of a program.
    """

    name: str
    default: str | bool | int
    doc: str
    choices: tuple[str, ...] = ()
    in_cache_key: bool = False

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"JAX_COCKTAIL_{self.name.upper()}"


REGISTRY: tuple[Option, ...] = (
    Option(
        "force",
        "auto",
        "auto times stock XLA and ours on the first real arguments and keeps the winner; cocktail and stock"
        " skip that choice",
        choices=("auto", "cocktail", "stock"),
    ),
    Option("strict", False, "raise an error where control flow would be left to stock XLA"),
    Option("dump_to", "", "folder for every program: jaxpr, the IR after each pass, C++ source, command"),
    Option("cache_limit_bytes", 1 << 30, "how large the folder of built programs may grow"),
    Option(
        "profile",
        "auto",
        "auto times stock XLA and the best few of our candidates; full times all of them, for longer; off"
        " never times anything",
        choices=("auto", "off", "full"),
    ),
    Option(
        "units",
        0,
        "for how many threads, on a GPU thread blocks, programs are planned; 0 for one per core that the"
        " process may use, on a GPU one per multiprocessor",
        in_cache_key=True,
    ),
    Option(
        "gpu_arch",
        "",
        "the GPU architecture that code is made for; nothing: that of the device, else sm_90",
        choices=("", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120"),
        in_cache_key=True,
    ),
    Option(
        "errors",
        "deferred",
        "when a GPU program that fails says so: deferred is at its next call, sync waits for the end of every"
        " call",
        choices=("deferred", "sync"),
    ),
)
_BY_NAME = {option.name: option for option in REGISTRY}


@dataclass(frozen=True, slots=True)
class Options:
    """A value for every option of `REGISTRY`."""

    force: str = "auto"
    strict: bool = False
    dump_to: str = ""
    cache_limit_bytes: int = 1 << 30
    profile: str = "auto"
    units: int = 0
    gpu_arch: str = ""
    errors: str = "deferred"

    def __post_init__(self) -> None:
        for option in REGISTRY:
            value = _checked(option, getattr(self, option.name), f"option {option.name!r}")
            object.__setattr__(self, option.name, value)

    @property
    def token(self) -> str:
        """A short name of these values, the same in every process; `from_token` gives them back."""
        text = repr(sorted(asdict(self).items()))
        token = hashlib.sha256(text.encode()).hexdigest()[:8]
        _TOKENS[token] = self
        return token


_TOKENS: dict[str, Options] = {}
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


Scope = tuple[tuple[str, Any], ...]  # names and values of one block, hashable


class _Scopes(threading.local):
    """Per thread: the values of the `with options(...)` blocks around, innermost last."""

    values: tuple[Scope, ...] = ()


SCOPES = _Scopes()


def from_token(token: str) -> Options | None:
    """The options that have this token in this process."""
    return _TOKENS.get(token)


def check(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, in their right types; raises ValueError (or TypeError) that says what is allowed."""
    checked = {}
    for name, value in values.items():
        option = _BY_NAME.get(name)
        if option is None:
            raise TypeError(f"no option {name!r}; there are {', '.join(_BY_NAME)}")
        checked[name] = _checked(option, value, f"option {name!r}")
    return checked


def resolve(explicit: Mapping[str, Any], scopes: tuple[Scope, ...] | None = None) -> Options:
    """All options, with `explicit` (already checked) first in the order of look-up.

    `scopes`: instead of the `with options(...)` blocks around the call.
    """
    values: dict[str, Any] = {}
    for option in REGISTRY:
        text = os.environ.get(option.variable)
        if text is not None:
            values[option.name] = _parsed(option, text)
    for scope in SCOPES.values if scopes is None else scopes:
        values.update(scope)
    values.update(explicit)
    return Options(**values)


@contextmanager
def options(**values: Any) -> Iterator[None]:
    """Options for the calls made in a block of code by this thread: ``with options(force="stock"):``."""
    outer = SCOPES.values
    SCOPES.values = (*outer, tuple(sorted(check(values).items())))
    try:
        yield
    finally:
        SCOPES.values = outer


def _checked(option: Option, value: Any, where: str) -> str | bool | int:
    if isinstance(option.default, bool):
        if isinstance(value, bool):
            return value
        raise TypeError(f"{where} is True or False, not {value!r}")
    if isinstance(option.default, int):
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        raise ValueError(f"{where} is a number of at least 0, not {value!r}")
    if option.choices:
        if value in option.choices:
            return str(value)
        raise ValueError(
            f"{where} is one of {', '.join(choice or 'nothing' for choice in option.choices)}, not {value!r}"
        )
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{where} is a path, not {value!r}")


def _parsed(option: Option, text: str) -> str | bool | int:
    """The value of an environment variable."""
    value: str | bool | int = text
    if isinstance(option.default, bool):
        if text.lower() not in _TRUE | _FALSE:
            raise ValueError(f"{option.variable} is 0 or 1, not {text!r}")
        value = text.lower() in _TRUE
    elif isinstance(option.default, int):
        if not text.strip().isdecimal():
            raise ValueError(f"{option.variable} is a number of at least 0, not {text!r}")
        value = int(text)
    return _checked(option, value, option.variable)
