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
        last; `tagged`, `cluster`: after the prologue of a program with exchanges, and of one whose units are
        one cluster. With `{most_units}`, `{own_bytes}` and
        the other numbers of `program.facts`.
      entry, epilogue: head of the program's function; lines at its end.
      footer: lines after the function.
      stage_limit: lane loops from which each becomes a function.
      stage: head of the function of a stage, and its call, with `{result}` (a C type), `{name}` and
        `{parameters}`.
      part: the same of a function for the parts of a parallel loop; "" where they stand in the program's own
        function.
      fail: what a unit that the status is not 0 for does: `{code}` says which failure it is.
      fail_begin, fail_end: in a program that can fail, the first lines of its function, and the lines at its
        end in place of `epilogue`.
      fail_text: function that tells a code's meaning, with `{count}` and `{lines}` (strings of C); "" where
        the call knows it.
      far, near: what tells the compiler where a pointer `{name}` that a function got points to: to memory of
        all units, or to what a unit has near.
      most_together: trips of a lane loop that the compiler may write out side by side; 0: as it likes.
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
    cluster: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    epilogue: tuple[str, ...] = ()
    footer: tuple[str, ...] = ()
    stage_limit: int = 32
    stage: tuple[str, str] = ("CK_NOINLINE {result} {name}({parameters}) {{", "{name}({parameters})")
    part: tuple[str, str] = ("", "")
    fail: str = ""
    fail_begin: tuple[str, ...] = ()
    fail_end: tuple[str, ...] = ()
    fail_text: str = ""
    far: str = ""
    near: str = ""
    most_together: int = 0
    template_bytes: Callable[[UProgram], int] = lambda program: 0

    @property
    def has_threads(self) -> bool:
        """True if the iterations of a lane loop are dealt out to threads."""
        return self.threads > 1
