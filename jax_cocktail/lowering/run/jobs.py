"""The jobs of the background: calls that are to change over, and parts of calls that JAX transforms."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jax_cocktail import warning
from jax_cocktail.lowering.run.tickets import Ticket
from jax_cocktail.lowering.state import Call


@dataclass(eq=False, slots=True)
class Job:
    """A call that is to change over.

    Attributes:
      settings, mesh: JAX's, in the caller's thread.
      call: its number, by which it is among the begun ones until it ends.
      again: its decision is known, and is to be measured again.
      runs_ours: our program runs it now; if not, stock XLA does.
      detach: another process may compile it if this one ends.
      generation: that of the dispatch.
      kept_bytes: of arguments that nobody else may need.
      kept: the identities of all arguments.
      results: of the call, as far as they are alive and XLA still computes them.
      place: the line of the user's program that has made it.
      compiled: the time at which XLA had compiled it; None before. `compile_seconds`: for which it did.
      returned: the time at which it had returned; None before.
      seconds: for which it has run, at least.
      late: XLA still compiled it when it was waited for no longer.
      changed: the call has changed over.
      ready: set when the job is done, or when XLA has compiled the call in a thread of its own.
    """

    marked: Any
    dispatch: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    signature: Any
    settings: Mapping[str, Any]
    mesh: Any
    call: int
    again: bool
    runs_ours: bool
    detach: bool
    generation: int
    kept_bytes: int
    kept: frozenset[int]
    results: tuple[weakref.ref[Any], ...] = ()
    place: warning.Line | None = None
    compiled: float | None = None
    compile_seconds: float = 0.0
    returned: float | None = None
    seconds: float = 0.0
    late: bool = False
    changed: bool = False
    ready: threading.Event = field(default_factory=threading.Event)

    @property
    def key(self) -> Any:
        return id(self.dispatch), self.generation, self.signature

    @property
    def name(self) -> str:
        name: str = self.marked.function_name
        return name

    @property
    def runner(self) -> str:
        """The program that runs the call until it changes over."""
        return "our program" if self.runs_ours else "stock XLA"

    def tell(self, remark: str) -> None:
        """Notes what runs its call, if that is not what was chosen."""
        self.dispatch.tell(self.signature, remark)


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """A part of a call that JAX transforms: a call that was lowered for a ticket, and is to be built.

    Attributes:
      part: names it.
      work: builds it.
      call: without arguments: the options for XLA's compiler are those of the wrapper.
      place: the line of the user's program that has made the call.
      detach: another process may compile it if this one ends.
    """

    ticket: Ticket
    part: str
    work: Callable[[], object]
    call: Call | None
    settings: Mapping[str, Any]
    mesh: Any
    place: warning.Line | None
    detach: bool
    kept_bytes: int = 0
    kept: frozenset[int] = frozenset()

    @property
    def key(self) -> Any:
        return id(self)

    @property
    def name(self) -> str:
        return self.ticket.name

    @property
    def runner(self) -> str:
        """The program that runs the part until the call changes over."""
        return "stock XLA"

    def tell(self, remark: str) -> None:
        """Nobody asks what runs a part of a call."""
