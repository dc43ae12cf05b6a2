"""What differs between targets: a table of spellings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jax_cocktail.utask.ir import UProgram


@dataclass(frozen=True, slots=True)
class Target:
    """Spellings of one target.

    Attributes:
      headers: runtime headers, by the feature that needs them.
      threads: threads of a unit that run the same text; 1 where a unit is one thread.
      index: type of the variables of lane loops.
      lanes: put before a loop whose iterations are independent.
      reduction: the same for a reduction of `{op}` into `{name}`.
      copy: copies `{size}` bytes `{source}` -> `{target}`.
      table: what a static array of constants begins with.
      meet: the barrier of the threads of a unit; "" where there is one thread.
      prologue, units: lines before the first header, and, of a program that runs in several units, after the
        last; `tagged`: after the prologue of a program with exchanges. With `{most_units}`, `{own_bytes}` and
        the other numbers of `program.facts`.
      entry, epilogue: head of the program's function; lines at its end.
      footer: lines after the function.
      stage_limit: lane loops from which each becomes a function.
      part: head of a function for the parts of a parallel loop, and its call, with `{name}` and
        `{parameters}`; "" where they stand in the program's own function.
      template_bytes: near memory that the templates of a program use while they run.
    """

    name: str
    headers: dict[str, str]
    entry: str
    copy: str
    table: str
    threads: int = 1
    index: str = "i64"
    lanes: str = ""
    reduction: str = ""
    meet: str = ""
    prologue: tuple[str, ...] = ()
    tagged: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    epilogue: tuple[str, ...] = ()
    footer: tuple[str, ...] = ()
    stage_limit: int = 32
    part: tuple[str, str] = ("", "")
    template_bytes: Callable[[UProgram], int] = lambda program: 0

    @property
    def has_threads(self) -> bool:
        """True if the iterations of a lane loop are dealt out to threads."""
        return self.threads > 1
