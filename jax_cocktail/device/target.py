"""The differences between code generation targets, as a table of spellings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jax_cocktail.device.tuning import PROGRAM
from jax_cocktail.utask.ir import UProgram


@dataclass(frozen=True, slots=True)
class Target:
    """The spellings of one target.

    Attributes:
      headers: the runtime headers that a program may need, in their order, without "cocktail_" and ".h".
      threads: the threads of a unit that run the same text; 1 if a unit is one thread.
      index: the type of the variables of lane loops.
      lanes: the text before a loop whose iterations are independent.
      copy: copies `{size}` bytes from `{source}` to `{target}`.
      table: the beginning of a static array of constants.
      wait: the second half of a barrier, behind which a unit may leave: the function returns `{left}`.
      stop: asks at the head of an iteration of `{loop}`, after `{trip}` of them, whether the call is stopped,
        in which case the function returns `{left}`; "" if it cannot be.
      block_barrier: the block barrier, for the threads of a unit; "" if a unit is one thread.
      prologue: lines before the first header.
      units: lines after the last header, in a program for several units.
      sized, apart, tagged, cluster: lines after the prologue, in a program with launch parameters, in one
        whose units do not meet, in one with exchanges, and in one whose units are one cluster. They use
        `{most_units}`, `{own_bytes}` and the other numbers of `program.facts`.
      own_sized: such lines where a launch parameter, that of number `{own_size}`, is the size of own memory.
      assume: tells the compiler that a condition holds, so that it need not think of loops without trips.
      sized_spaces: memory in which the places of arrays may be launch parameters.
      entry, epilogue: the head of the program's function, and the lines at its end.
      footer: lines after the function.
      outline_limit: from this number of lane loops on, each becomes a function.
      outline: the head of such a function, and its call, with `{result}` (a C type), `{name}` and
        `{parameters}`.
      part: the same for the function of a parallel loop's parts; "" if they are in the program's function.
      role: the same for the function of a role's loop.
      piece: the same for a piece of the program's function; "" if that stays whole.
      fail: the action of a unit with a nonzero status; `{code}` identifies the failure.
      fail_begin, fail_end: in a program that can fail, the first lines of its function, and the lines at its
        end in place of `epilogue`.
      far, near: tells the compiler that a parameter `{name}` points to global memory, or to shared memory of
        the unit.
      most_together: the most trips of a lane loop that the compiler may unroll; 0: no limit.
      holds: products may keep a matrix in registers while a loop runs.
      template_bytes: the bytes of shared memory that the templates of a program use while they run.
    """

    name: str
    headers: tuple[str, ...]
    entry: str
    copy: str
    table: str
    threads: int = 1
    index: str = "i64"
    lanes: str = ""
    wait: str = "ck_wait(unit);"
    stop: str = ""
    block_barrier: str = ""
    prologue: tuple[str, ...] = ()
    sized: tuple[str, ...] = ()
    own_sized: tuple[str, ...] = ()
    assume: str = ""
    sized_spaces: frozenset[str] = frozenset(("workspace", "own", "private"))
    apart: tuple[str, ...] = ()
    tagged: tuple[str, ...] = ()
    cluster: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    epilogue: tuple[str, ...] = ()
    footer: tuple[str, ...] = ()
    outline_limit: int = PROGRAM.outlined_loops
    outline: tuple[str, str] = ("CK_NOINLINE {result} {name}({parameters}) {{", "{name}({parameters})")
    part: tuple[str, str] = ("", "")
    role: tuple[str, str] = ("", "")
    piece: tuple[str, str] = ("", "")
    fail: str = ""
    fail_begin: tuple[str, ...] = ()
    fail_end: tuple[str, ...] = ()
    far: str = ""
    near: str = ""
    most_together: int = 0
    holds: bool = False
    template_bytes: Callable[[UProgram], int] = lambda program: 0

    def prologue_of(self, numbers: Mapping[str, int], cluster: bool) -> tuple[str, ...]:
        """The lines before the first header of a program. `numbers`: see `program.facts`; `cluster`: its
        units are one."""
        lines = (*self.prologue, *(self.sized if numbers["sizes"] else ()))
        lines += () if numbers["crosses"] else self.apart
        lines += self.tagged if numbers["tagged_words"] else ()
        return lines + (self.cluster if cluster else ())

    @property
    def has_threads(self) -> bool:
        """True if threads share the iterations of a lane loop."""
        return self.threads > 1
