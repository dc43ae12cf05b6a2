"""Calls that JAX transforms while they are made: under an eager `grad` or `vmap`.

Such a call becomes several, the values and the gradients, and only JAX sees their arguments. JAX lowers each
of them as if it were another function, so nothing tells which call of the user it belongs to, but the name
of the marked function. So these calls have jitted functions of their own, whose marks carry the number of a
ticket. Stock XLA runs what is lowered for a ticket, and the background builds it. When all of it is built,
the call gets a new ticket, for which JAX lowers everything again: to our programs, which are at hand.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import jax
import numpy as np

from jax_cocktail.memory import Recent

MOST_TICKETS = 256  # of a dispatch, by signature
_TRANSFORMS = frozenset({"JVPTracer", "LinearizeTracer", "BatchTracer"})
_numbers = itertools.count(1)
_tickets: weakref.WeakValueDictionary[int, Ticket] = weakref.WeakValueDictionary()


class Transformed(BaseException):
    """Raised by the lowering of a call that is to be made with a ticket. The wrapper catches it. It is no
    Exception, so that nothing in between takes it for an error."""


class Ticket:
    """Stands for the calls with one signature that JAX transforms in one way.

    Attributes:
      number: in the marks of what is lowered for it.
      name: of the user's function.
      settled: it has changed over, which it does once.
      lowered: the time at which something was lowered for it last.
    """

    def __init__(self, name: str, replace: Callable[[], None], settled: bool = False) -> None:
        """`replace` lets another ticket stand for these calls."""
        self.number, self.name, self.settled, self.lowered = next(_numbers), name, settled, time.monotonic()
        self._replace, self._lock = replace, threading.Lock()
        self._open: set[Hashable] = set()
        self._ours = False
        _tickets[self.number] = self

    def begin(self, part: Hashable) -> None:
        """Notes a part that is to be built."""
        with self._lock:
            self._open.add(part)
            self.lowered = time.monotonic()

    def end(self, part: Hashable, ours: bool) -> bool:
        """Notes that a part is done, and True if the calls change over: all parts are done, and our programs
        run one of them. `ours`: they run this one."""
        with self._lock:
            self._open.discard(part)
            self._ours |= ours
            changes = self._ours and not self._open and not self.settled
            self.settled |= changes
        if changes:
            self._replace()
        return changes


def ticket(number: int) -> Ticket | None:
    """The ticket with this number; None if its calls have changed over, or nobody can make them any more."""
    return _tickets.get(number)


class Tickets:
    """The jitted functions for calls that JAX transforms, each with its ticket, by signature."""

    def __init__(self, name: str, make: Callable[[int], Any]) -> None:
        """`make` makes a jitted function with nothing compiled, for the number of a ticket."""
        self._name, self._make = name, make
        self._lock = threading.RLock()
        self._known: Recent[Hashable, tuple[Ticket, Any]] = Recent(MOST_TICKETS)

    def function(self, signature: Hashable) -> Any:
        """The jitted function for calls with a signature."""
        with self._lock:
            found = self._known.get(signature) or self._issue(signature)
            return found[1]

    def _issue(self, signature: Hashable, settled: bool = False) -> tuple[Ticket, Any]:
        def replace() -> None:
            with self._lock:
                if signature in self._known:
                    self._issue(signature, settled=True)

        issued = Ticket(self._name, replace, settled)
        self._known.keep(signature, (issued, self._make(issued.number)))
        return self._known[signature]

    def clear(self) -> tuple[Any, ...]:
        """Discards all of them, and returns their functions."""
        with self._lock:
            functions = tuple(function for _, function in self._known.values())
            self._known.clear()
            return functions


def transformations(leaf: Any) -> tuple[str, ...] | None:
    """The transformations of a leaf of a call, the innermost first: () for a value. None if it is traced, or
    transformed in another way."""
    names = []
    while isinstance(leaf, jax.core.Tracer):
        names.append(type(leaf).__name__)
        leaf = getattr(leaf, "primal", getattr(leaf, "val", None)) if names[-1] in _TRANSFORMS else None
    is_value = isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float | complex)
    return tuple(names) if is_value or not names else None
