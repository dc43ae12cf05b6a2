"""Options: a table of their names, defaults and choices, and the look-up of their values.

The first of these that sets an option determines its value: the `options=` argument of `jit`, the innermost
`with options(...)` block, the environment variable JAX_COCKTAIL_<NAME>, the default.
"""

from __future__ import annotations

import hashlib
import math
import numbers
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from typing import Any, cast

from jax_cocktail.cache import DEFAULT_LIMIT_BYTES
from jax_cocktail.device.cards import ARCHES
from jax_cocktail.utask.candidate import OFF, Named, spelled

VERSION = "0.1.0"
"""The version of jax_cocktail, as text.

Examples:
  >>> [int(number) for number in jax_cocktail.__version__.split(".")[:2]]
  [0, 1]
"""
BACKGROUND, NOW = "background", "now"  # of the option `compile`
CACHED, FRESH, CHECKED = "cached", "fresh", "checked"  # of the option `plans`
DEFERRED, SYNC, LOG = "deferred", "sync", "log"  # of the option `errors`
CONTROL_FLOW, MEMORY_BOUND = "control_flow", "memory_bound"  # of the option `scope`
LIMIT = "max_seconds"
MOST_TRIPS = 1 << 30  # of a loop with a bound: half the range of an int32



@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
      name: its keyword.
      default: its default value, which also determines its type.
      choices: the allowed words or numbers; empty if any number, flag or folder is allowed.
      most: the largest allowed integer; None if there is none.
    """

    name: str
    default: str | bool | int | float | Named
    choices: tuple[str | int, ...] = ()
    most: int | None = None

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"JAX_COCKTAIL_{self.name.upper()}"

    @property
    def integers(self) -> str:
        """The integers that it allows, in words."""
        return "an integer >= 0" if self.most is None else f"an integer from 0 to {self.most}"


def _first_of(*choices: str | int) -> Any:
    """A field of `Options` with one of these values, the first by default."""
    return field(default=choices[0], metadata={"choices": choices})


@dataclass(frozen=True, slots=True)
class Options:
    """A value for each option, which has the same meaning as a keyword of `options`.

    Attributes:
      force: ``"auto"`` takes the faster one of our program and stock XLA, ``"cocktail"`` and ``"stock"`` take
        one of them.
      scope: ``"control_flow"``, or ``"memory_bound"`` to take subgraphs without control flow as well.
      strict: raise StrictModeError for a loop or branch that cannot be compiled.
      dump_to: a folder to write every program to; "" for none.
      cache_limit_bytes: the maximum size of the folder of built programs.
      compile: ``"background"``, or ``"now"`` to let the first call wait for our program.
      profile: ``"auto"``, ``"full"`` to time all candidates, or ``"off"`` to time none.
      plans: ``"cached"``, ``"fresh"`` to plan every program again, or ``"checked"`` to compare both.
      units: the number of threads, or of thread blocks of a GPU; 0 for all.
      gpu_arch: such as ``"sm_90"``; "" for that of the device.
      errors: ``"deferred"``, ``"sync"`` or ``"log"``: when a failing GPU program raises, and what is logged.
      trace: 0 to 3: how much `trace` records.
      reproducible: run one program from the first call on, whatever was measured, stored or is busy.
      max_trips: the most trips of each `while_loop` of JAX's, which then has a gradient; 0 for no bound, also
        inside of a function that has one.
      detach: a process that ends early leaves what it has begun to compile to one of low priority.
      choices: what our programs take in place of what is usual, such as ``{"unroll.1": 4}``; `explain` lists
        the choices of a function. In an environment variable: ``unroll.1=4,hoist=off``.
      without: the passes that are left out, such as ``("hoist", "distribute")``: choices that are off.
      max_seconds: for which a program of ours may run on a CPU; a call that takes longer is stopped.

    Raises:
      TypeError: a value has the wrong type.
      ValueError: a value is not allowed.

    Examples:
      >>> forced = jax_cocktail.Options(force="cocktail", compile="now")
      >>> print(forced.force, forced.strict)
      cocktail False
      >>> print(jax_cocktail.jit(lambda x: lax.fori_loop(0, 3, lambda _, c: c / 2, x), options=forced)(8.0))
      1.0
    """

    force: str = _first_of("auto", "cocktail", "stock")
    scope: str = _first_of(CONTROL_FLOW, MEMORY_BOUND)
    strict: bool = False
    dump_to: str = ""
    cache_limit_bytes: int = DEFAULT_LIMIT_BYTES
    compile: str = _first_of(BACKGROUND, NOW)
    profile: str = _first_of("auto", "off", "full")
    plans: str = _first_of(CACHED, FRESH, CHECKED)
    units: int = 0
    gpu_arch: str = _first_of("", *ARCHES)
    errors: str = _first_of(DEFERRED, SYNC, LOG)
    trace: int = _first_of(0, 1, 2, 3)
    reproducible: bool = False
    max_trips: int = field(default=0, metadata={"most": MOST_TRIPS})
    detach: bool = True
    choices: Named = ()
    without: tuple[str, ...] = ()
    max_seconds: float = field(default=math.inf, compare=False)  # of a call: all have the same program

    def __post_init__(self) -> None:
        for option in REGISTRY:
            value = _checked(option, getattr(self, option.name), f"option {option.name!r}")
            object.__setattr__(self, option.name, value)
        if self.reproducible:  # neither times, nor cores, nor the moment of a change over count
            implied: dict[str, str | int] = {"compile": NOW, "profile": "off", "units": self.units or 1}
            for name, implied_value in implied.items():
                object.__setattr__(self, name, implied_value)
        if self.pinned:  # a name that the function does not have is an error of its call
            object.__setattr__(self, "compile", NOW)

    @property
    def pinned(self) -> Named:
        """All that is named: `choices`, and off for what is left out."""
        return tuple(sorted((dict(self.choices) | dict.fromkeys(self.without, OFF)).items()))

    @property
    def token(self) -> str:
        """A short name of these values, the same in every process; `from_token` reverses it."""
        text = repr(sorted((name, value) for name, value in asdict(self).items() if name != LIMIT))
        token = hashlib.sha256(text.encode()).hexdigest()[:8]
        _TOKENS[token] = self
        return token


REGISTRY = tuple(Option(each.name, cast(Any, each.default), **each.metadata) for each in fields(Options))
_BY_NAME = {option.name: option for option in REGISTRY}
NAMES = frozenset(_BY_NAME)
_TOKENS: dict[str, Options] = {}
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


Scope = tuple[tuple[str, Any], ...]  # names and values of one block, hashable


class _Scopes(threading.local):
    """Per thread: the values of the enclosing `with options(...)` blocks, innermost last.

    `limit`: the option `max_seconds` of the innermost block that sets it; nothing compiled depends on it.
    """

    values: tuple[Scope, ...] = ()
    limit: float | None = None


SCOPES = _Scopes()
OPEN_SCOPES: set[int] = set()  # the threads in such blocks: a call looks for its own only if there are any


def _enter(values: tuple[Scope, ...], limit: float | None = None) -> None:
    """Lets this thread be in these blocks."""
    changes = limit != SCOPES.limit
    SCOPES.values, SCOPES.limit = values, limit
    thread = threading.get_ident()
    (OPEN_SCOPES.discard if not values and limit is None else OPEN_SCOPES.add)(thread)
    if changes:
        with _limits_lock:
            _LIMITS.pop(thread, None)
            if limit is not None:
                _LIMITS[thread] = limit
            for tell in _TOLD:
                tell(limit, max(_LIMITS.values(), default=None))


_FOLLOWED: dict[str, Callable[[Any], AbstractContextManager[Any]]] = {}  # by the name of an option


def follow(name: str, enter: Callable[[Any], AbstractContextManager[Any]]) -> None:
    """Lets somebody enter a context with every block that sets this option, to which its value is given."""
    _FOLLOWED[name] = enter


_TOLD: list[Callable[[float | None, float | None], None]] = []
_LIMITS: dict[int, float] = {}  # by thread
_limits_lock = threading.RLock()  # a signal handler may open a block, too


def tell_limits(tell: Callable[[float | None, float | None], None]) -> None:
    """Lets somebody be told of the limit in force in a thread, and of the longest one in any thread, by this
    thread, whenever its own changes."""
    with _limits_lock:
        _TOLD.append(tell)
        tell(SCOPES.limit, max(_LIMITS.values(), default=None))


def _forget_threads() -> None:
    """A forked child has this thread alone."""
    global _limits_lock
    _limits_lock = threading.RLock()
    for other in {*OPEN_SCOPES, *_LIMITS} - {threading.get_ident()}:
        OPEN_SCOPES.discard(other)
        _LIMITS.pop(other, None)
    for tell in _TOLD:
        tell(SCOPES.limit, SCOPES.limit)


os.register_at_fork(after_in_child=_forget_threads)


def from_token(token: str) -> Options | None:
    """The options with this token; None if this process has not made one for them."""
    return _TOKENS.get(token)


def check(values: Mapping[str, Any]) -> dict[str, Any]:
    """Converts values to the types of their options.

    Raises:
      TypeError: a name is unknown, or a value has the wrong type.
      ValueError: a value is not allowed. The message lists the allowed ones.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"options must be a dictionary, such as {{'force': 'cocktail'}}, not {values!r}")
    checked = {}
    for name, value in values.items():
        option = _BY_NAME.get(name)
        if option is None:
            raise TypeError(f"no option {name!r}; the options are {', '.join(_BY_NAME)}")
        checked[name] = _checked(option, value, f"option {name!r}")
    return checked


def explicit(options: Options | Mapping[str, Any] | None) -> dict[str, Any]:
    """The values that the argument `options=` sets. Raises as `check` does."""
    if options is None:
        return {}
    if isinstance(options, Options):
        without_limit = options.max_seconds == math.inf  # then that of the block or the process counts
        names = (option.name for option in REGISTRY if not (without_limit and option.name == LIMIT))
        return {name: getattr(options, name) for name in names}
    return check(options)


def resolve(explicit: Mapping[str, Any], scopes: tuple[Scope, ...] | None = None) -> Options:
    """The values of all options for one call.

    Args:
      explicit: checked values that take precedence over all others.
      scopes: replaces the enclosing `with options(...)` blocks if given.

    Raises:
      ValueError: an environment variable has a value that is not allowed.
    """
    values: dict[str, Any] = {}
    for option in REGISTRY:
        text = os.environ.get(option.variable)
        if text is not None:
            values[option.name] = parsed(option, text)
    for scope in SCOPES.values if scopes is None else scopes:
        values.update(scope)
    values.update(explicit)
    return Options(**values)


@contextmanager
def options(**values: Any) -> Iterator[None]:
    """A context manager that sets options for the calls that this thread makes inside the block.

    Args:
      **values: values by the names of options, which `Options` describes.

    Yields:
      Nothing.

    Raises:
      TypeError: a name is unknown, or a value has the wrong type.
      ValueError: a value is not allowed.

    Examples:
      >>> eighth = jax_cocktail.jit(lambda x: lax.fori_loop(0, 3, lambda _, c: c / 2, x))
      >>> with jax_cocktail.options(force="stock"):
      ...     print(eighth(8.0))
      1.0
    """
    outer = SCOPES.values, SCOPES.limit
    checked = check(values)
    limit = checked.pop(LIMIT, SCOPES.limit)
    _enter((*SCOPES.values, tuple(sorted(checked.items()))) if checked else SCOPES.values, limit)
    try:
        with ExitStack() as stack:
            for name in checked.keys() & _FOLLOWED.keys():
                stack.enter_context(_FOLLOWED[name](checked[name]))
            yield
    finally:
        _enter(*outer)


def _checked(option: Option, value: Any, where: str) -> str | bool | int | float | Named | tuple[str, ...]:
    if isinstance(option.default, tuple):
        return _named(value, where) if option.name == "choices" else _names(value, where)
    if isinstance(option.default, bool):
        if isinstance(value, bool):
            return value
        raise TypeError(f"{where} must be True or False, not {value!r}")
    if isinstance(option.default, float):
        number = _real(value)
        if number > 0:
            return number
        raise ValueError(f"{where} must be a number > 0, not {value!r}")
    is_number = isinstance(option.default, int)
    if option.choices:
        if value in option.choices and not isinstance(value, bool):
            return int(value) if is_number else str(value)
        allowed = ", ".join('""' if choice == "" else str(choice) for choice in option.choices)
        raise ValueError(f"{where} must be one of {allowed}, not {value!r}")
    if is_number:
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if is_integer and value >= 0 and (option.most is None or value <= option.most):
            return int(value)
        raise ValueError(f"{where} must be {option.integers}, not {value!r}")
    if isinstance(value, str | os.PathLike):
        path = os.fspath(value)
        if "\0" in path:
            raise ValueError(f"{where} must be a path, and none has a null character: {value!r}")
        return path
    raise TypeError(f"{where} must be a path, not {value!r}")


def _named(value: Any, where: str) -> Named:
    """Alternatives by the names of choices, sorted; the numbers of a mapping may be numbers."""
    if isinstance(value, str):
        value = [each.partition("=")[::2] for each in value.split(",") if each.strip()]
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    try:
        found = {name.strip(): taken for name, taken in pairs}
    except (TypeError, ValueError, AttributeError):
        raise TypeError(f"{where} must be a dictionary, such as {{'unroll.1': 4}}, not {value!r}") from None
    texts = spelled(found)
    if not all(name and taken for name, taken in texts.items()):
        raise ValueError(f"{where} must give each name what is taken, such as 'unroll.1=4', not {value!r}")
    return tuple(sorted(texts.items()))


def _names(value: Any, where: str) -> tuple[str, ...]:
    """Names, sorted: an iterable of them, or a text with commas."""
    names = value.split(",") if isinstance(value, str) else value
    if isinstance(names, Mapping) or not isinstance(names, Iterable):
        raise TypeError(f"{where} must be names, such as ('hoist', 'distribute'), not {value!r}")
    found = list(names)
    if not all(isinstance(name, str) for name in found):
        raise TypeError(f"{where} must be names, such as ('hoist', 'distribute'), not {value!r}")
    return tuple(sorted({name.strip() for name in found} - {""}))


def _real(value: Any) -> float:
    """A real number, infinite if it is too large; NaN for anything else."""
    if isinstance(value, bool) or not issubclass(type(value), numbers.Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def parsed(option: Option, text: str) -> str | bool | int | float | Named | tuple[str, ...]:
    """The value of an environment variable. Raises ValueError if it is not allowed."""
    value: str | bool | int | float = text
    if isinstance(option.default, bool):
        if text.lower() not in _TRUE | _FALSE:
            raise ValueError(f"{option.variable} must be 0 or 1, not {text!r}")
        value = text.lower() in _TRUE
    elif isinstance(option.default, float):
        with suppress(ValueError):
            value = float(text)
    elif isinstance(option.default, int):
        if not text.strip().isdecimal():
            raise ValueError(f"{option.variable} must be {option.integers}, not {text!r}")
        value = int(text)
    return _checked(option, value, option.variable)
