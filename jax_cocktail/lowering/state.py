"""Context of a lowering, per thread: the call, enclosing decisions, reports, background work."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from jax_cocktail.config import Options, from_token

if TYPE_CHECKING:
    from jax_cocktail.report import Report
    from jax_cocktail.timeline.values import Timeline

_PREFIX = "jax_cocktail__"
_SEPARATOR = "__"
_NUMBER = "_"


@dataclass(frozen=True, slots=True)
class Mark:
    """The contents of a marked inner `jit`'s name. `ticket`: its number, or 0 (`run.tickets`)."""

    function: str
    options: Options
    ticket: int = 0


def marked_name(options: Options, function: str, ticket: int = 0) -> str:
    """The name of the inner `jit`, which every JAX transformation preserves."""
    number = f"{_NUMBER}{ticket}" if ticket else ""
    return f"{_PREFIX}{options.token}{number}{_SEPARATOR}{function}"


def read_mark(name: Any) -> Mark | None:
    """The mark in the name of a `jit` equation; None if the name is not ours."""
    if not isinstance(name, str) or not name.startswith(_PREFIX):
        return None
    token, separator, function = name[len(_PREFIX) :].partition(_SEPARATOR)
    token, _, number = token.partition(_NUMBER)
    options = from_token(token)
    return Mark(function, options, int(number or 0)) if separator and options is not None else None


@dataclass(frozen=True, eq=False, slots=True)
class Recording:
    """A traced call: its results, flat, and the timeline of each custom call."""

    results: list[Any]
    regions: tuple[Timeline, ...]


class _State(threading.local):
    """Per-thread state.

    Attributes:
      arguments: (wrapper, positional, keyword, dispatch, callee) of the innermost call of a wrapper, or None.
        Without a dispatch, what is lowered now cannot be exchanged later.
      stock: stock XLA runs marked calls with force="auto", because it won for the enclosing call.
      reports: the list that collects reports for `explain`, or None.
      counts_stock: the reports tell what stock XLA makes of each region.
      recordings: the list that collects traced calls for `trace`, or None.
      beside: this thread works beside the caller's.
      again: a stored decision is to be measured again.
      too_long: why no call is timed on these arguments, or "".
      running: makes the call with what stock XLA has compiled for the caller; None if it cannot be had.
      compile_seconds: for which XLA has compiled that.
      divided: this call is lowered by itself, and then compiled.
      failure: an error for which stock XLA is to run a marked call, in the background; "" if there was none.
      ours: the number of marked calls that were lowered to our programs.
      begun: the work that this call has left to the background. Set only until the call returns.
    """

    arguments: tuple[Any, tuple[Any, ...], dict[str, Any], Any, Any] | None = None
    stock: bool = False
    reports: list[Report] | None = None
    counts_stock: bool = False
    recordings: list[Recording] | None = None
    beside: bool = False
    again: bool = False
    too_long: str = ""
    running: Callable[[], Any] | None = None
    compile_seconds: float = 0.0
    divided: bool = False
    failure: str = ""
    ours: int = 0
    begun: Any


STATE = _State()


class _Ending:
    """A flag that is set when the process ends. It has no lock, which a forked child could find taken."""

    _is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set


# The process ends: the background captures the calls that wait, which another process may compile. Then it
# stops.
HURRYING, ENDING = _Ending(), _Ending()


class Stopped(BaseException):
    """Ends work in the background because the process ends. Like KeyboardInterrupt, it is no Exception."""


class Failed(Exception):
    """Raised in the background if a program cannot be compiled because of an error that was told."""


class NotTraced(Exception):
    """Raised in the background if JAX does not find what the caller's thread has traced."""


# A call of a wrapper that is traced and compiled has precedence over the background, but not for longer.
FIRST_CALL_SECONDS, LOOK_SECONDS = 10.0, 0.002
FIRST_CALLS: dict[int, float] = {}  # when they began, by thread


def first_call_begins() -> None:
    """Notes that this thread traces a call of a wrapper."""
    if STATE.arguments is not None and not STATE.beside:
        FIRST_CALLS.setdefault(threading.get_ident(), time.monotonic())


def first_call_ends() -> None:
    """Notes that this thread has ended its outermost call of a wrapper."""
    FIRST_CALLS.pop(threading.get_ident(), None)


def go_on() -> None:
    """Work that takes long calls this now and then. In the background, it gives way to first calls.

    Raises:
      Stopped: the process ends, and this is the background.
    """
    while STATE.beside:
        if HURRYING.is_set() or ENDING.is_set():
            raise Stopped
        since = max(tuple(FIRST_CALLS.values()), default=-FIRST_CALL_SECONDS)
        if time.monotonic() >= since + FIRST_CALL_SECONDS:
            return
        time.sleep(LOOK_SECONDS)


@contextmanager
def in_state(**values: Any) -> Iterator[None]:
    """Sets fields of `STATE` in the block."""
    outer = {name: getattr(STATE, name) for name in values}
    vars(STATE).update(values)
    try:
        yield
    finally:
        vars(STATE).update(outer)


_WRAPPERS = "jax_cocktail.api"  # the module that makes the calls
_LOWERS = frozenset({"jax", "jaxlib"})
_NOT_THE_USERS = _LOWERS | sys.stdlib_module_names | {"jax_cocktail"}


def in_callback() -> bool:
    """True if the call in `STATE.arguments` has called the user's code, which has led here. On a CPU, the
    caller's thread runs host callbacks, and what these compile is no part of the call."""
    frame: FrameType | None = sys._getframe()
    lowers = called = False
    while frame is not None:
        if (module := str(frame.f_globals.get("__name__"))) == _WRAPPERS:
            return called
        package = module.partition(".")[0]
        lowers = lowers or package in _LOWERS
        called = called or (lowers and package not in _NOT_THE_USERS)  # and has called JAX
        frame = frame.f_back
    return False


def alone() -> AbstractContextManager[None]:
    """Runs JAX inside a lowering: hides the arguments and reports of the call being lowered, and leaves inner
    marked calls to stock XLA."""
    return in_state(arguments=None, reports=None, recordings=None, stock=True)


@contextmanager
def collecting(counts_stock: bool = False) -> Iterator[list[Report]]:
    """Collects a report for every marked call that is lowered in the block."""
    found: list[Report] = []
    with in_state(reports=found, counts_stock=counts_stock):
        yield found


@contextmanager
def recording() -> Iterator[list[Recording]]:
    """Traces the first call that is lowered in the block and runs our programs."""
    found: list[Recording] = []
    with in_state(recordings=found):
        yield found
