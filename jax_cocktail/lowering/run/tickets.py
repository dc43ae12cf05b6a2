"""Calls that JAX transforms while they are made: under an eager `grad` or `vmap`.

Such a call becomes several, the values and the gradients, and only JAX sees their arguments. JAX lowers each
of them as if it were another function, so nothing tells which call of the user it belongs to, but the name
of the marked function. So these calls have jitted functions of their own, whose marks carry the number of a
ticket. Stock XLA runs what is lowered for a ticket, and the background builds it. When all of it is built,
the call gets a new ticket, for which JAX lowers everything again: to our programs, which are at hand. A part
that is met later, such as a gradient after a value, lets the call change over once more.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import jax
import numpy as np

from jax_cocktail.memory import Recent

MOST_TICKETS = 4096  # as many as JAX keeps of a function
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
      changed: the parts for which the calls have changed over, each once. They are lowered again now.
      lowered: the time at which something was lowered for it last.
    """

    def __init__(self, name: str, replace: Callable[[], None], changed: frozenset[str] = frozenset()) -> None:
        """`replace` lets another ticket stand for these calls."""
        self.number, self.name, self.changed, self.lowered = next(_numbers), name, changed, time.monotonic()
        self._replace, self._lock = replace, threading.Lock()
        self._open: Counter[str] = Counter()
        self._ours: set[str] = set()
        _tickets[self.number] = self

    def begin(self, part: str) -> None:
        """Notes a part that is to be built."""
        with self._lock:
            self._open[part] += 1
            self.lowered = time.monotonic()

    def end(self, part: str, ours: bool) -> bool:
        """Notes that a part is done, and True if the calls change over: all parts are done, and our programs
        run one for which they have not changed. `ours`: they run this one."""
        with self._lock:
            self._open[part] -= 1
            if ours:
                self._ours.add(part)
            changes = not self._open.total() and not self._ours <= self.changed
            self.changed |= self._ours if changes else set()
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
            self._known.keep(signature, found)  # as the latest
            return found[1]

    def _issue(self, signature: Hashable, changed: frozenset[str] = frozenset()) -> tuple[Ticket, Any]:
        issued = Ticket(self._name, partial(self._replace, signature), changed)
        return issued, self._make(issued.number)

    def _replace(self, signature: Hashable) -> None:
        with self._lock:
            if (found := self._known.get(signature)) is not None:
                self._known.keep(signature, self._issue(signature, found[0].changed))

    def clear(self) -> tuple[Any, ...]:
        """Discards all of them, and returns their functions."""
        with self._lock:
            functions = tuple(function for _, function in self._known.values())
            self._known.clear()
            return functions


def transformations(leaf: Any) -> tuple[str, ...] | None:
    """The transformations of a leaf of a call, the innermost last, with the sizes of batches: () for a value.
    None if it is traced, or transformed in another way."""
    names = list[str]()
    while isinstance(leaf, jax.core.Tracer):
        name, axis = type(leaf).__name__, getattr(leaf, "batch_dim", "")
        leaf = getattr(leaf, "primal", getattr(leaf, "val", None)) if name in _TRANSFORMS else None
        names.append(f"{name} {axis} {np.shape(leaf)}" if leaf is not None else name)
    is_value = isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float | complex)
    return tuple(names) if is_value or not names else None
