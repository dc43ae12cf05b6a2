"""Context of a lowering, per thread: the call, enclosing decisions, reports, background work."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

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


class Call(NamedTuple):
    """A call of a wrapper. Without a `dispatch`, what is lowered for it cannot be exchanged later.

    Attributes:
      marked: the wrapper's function.
      args, kwargs: the arguments of the call.
      dispatch: the jitted functions for the wrapper's options.
      callee: the one that was called, or what chose it.
      number: tells it from all other calls that go on; 0 if no wrapper was called.
    """

    marked: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dispatch: Any = None
    callee: Any = None
    number: int = 0


class _State(threading.local):
    """Per-thread state.

    Attributes:
      given: a frame, and the call for which JAX lowers there; see `calling`.
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
      devices: of this process, which run at the same time what is lowered, and share its cores.
      shardings: those of the arguments of the function that is lowered, if another one calls it, with their
        types (`edge.shardings`).
      ours: the number of marked calls that were lowered to our programs.
      compiles: the job of the call that this thread compiles for another one, or None.
    """

    given: tuple[FrameType | None, Call | None] = (None, None)
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
    devices: int = 1
    shardings: tuple[tuple[str, str], ...] = ()
    ours: int = 0
    compiles: Any = None


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
FIRST_CALLS: dict[int, tuple[float, int]] = {}  # when they began, and the outermost call, by thread


def first_call_begins() -> None:
    """Notes that this thread traces a call of a wrapper."""
    if call() is not None and not STATE.beside:
        thread, (*_, outermost) = threading.get_ident(), (0, *map(id, _calls()))
        if FIRST_CALLS.get(thread, (0.0, -1))[1] != outermost:  # none, or one that was interrupted at its end
            FIRST_CALLS[thread] = time.monotonic(), outermost


def first_call_ends(number: int = 0) -> None:
    """Notes that this thread has ended its outermost call of a wrapper. `number`: of the call that ends, if
    it may be another one."""
    if number in (0, FIRST_CALLS.get(threading.get_ident(), (0.0, 0))[1]):
        FIRST_CALLS.pop(threading.get_ident(), None)


def go_on() -> None:
    """Work that takes long calls this now and then. In the background, it gives way to first calls.

    Raises:
      Stopped: the process ends, and this is the background.
    """
    while STATE.beside:
        if HURRYING.is_set() or ENDING.is_set():
            raise Stopped
        since, _ = max(tuple(FIRST_CALLS.values()), default=(-FIRST_CALL_SECONDS, 0))
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


# ---- the call, found on the stack: a call of what is compiled already notes nothing ------------------------

_LOWERS = frozenset({"jax", "jaxlib"})
_NOT_THE_USERS = _LOWERS | sys.stdlib_module_names | {"jax_cocktail"}


BEGUN: dict[int, Any] = {}  # the jobs of calls that have not returned, by their numbers
_Variables = Callable[[Mapping[str, Any]], Sequence[Any]]
# By the identity of the code, which takes long to hash.
_WRAPPERS: dict[int, tuple[CodeType, _Variables]] = {}


def finds_calls(wrapper: Callable[..., Any], variables: _Variables) -> None:
    """Lets `call` find calls of a wrapper. `variables`: takes its local variables, and returns the parts of a
    `Call` but for the number."""
    assert isinstance(wrapper, FunctionType)
    _WRAPPERS[id(wrapper.__code__)] = wrapper.__code__, variables


def _frames() -> Iterator[FrameType]:
    """The frames of this thread, the innermost one first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _calls() -> Iterator[FrameType]:
    return (frame for frame in _frames() if id(frame.f_code) in _WRAPPERS)


def call() -> Call | None:
    """The innermost call of a wrapper in this thread, or what stands for it (`calling`)."""
    place, given = STATE.given
    for frame in _frames():
        if frame is place:
            break
        if wrapper := _WRAPPERS.get(id(frame.f_code)):
            marked, args, kwargs, dispatch, callee = wrapper[1](frame.f_locals)
            return Call(marked, args, kwargs, dispatch, callee, id(frame))
    return given


def calling(instead: Call | None) -> AbstractContextManager[None]:
    """In the block, JAX lowers for this call instead of those around the block; None: for none. Call it in
    the `with` statement itself: the block is known by the frame of the caller."""
    return in_state(given=(sys._getframe(1), instead))


def in_callback() -> bool:
    """True if `call` has called the user's code, which has led here. On a CPU, the caller's thread runs host
    callbacks, and what these compile is no part of the call."""
    lowers = called = False
    for frame in _frames():
        if frame is STATE.given[0] or id(frame.f_code) in _WRAPPERS:
            return called
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        lowers = lowers or package in _LOWERS
        called = called or (lowers and package not in _NOT_THE_USERS)  # and has called JAX
    return False


def alone() -> AbstractContextManager[None]:
    """Runs JAX inside a lowering: hides the call that is lowered and its reports, and leaves inner marked
    calls to stock XLA. Call it in the `with` statement itself, like `calling`."""
    return in_state(given=(sys._getframe(1), None), reports=None, recordings=None, stock=True)


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
