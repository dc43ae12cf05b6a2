"""A built program as its calls need it: known without the compiler that has made it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jax_cocktail.utask.plan import LaunchPlan

if TYPE_CHECKING:
    from jax_cocktail.codegen.stamps import StampTable


@dataclass(frozen=True, slots=True)
class Executable:
    """A built program as its calls need it.

    `binary`: shared object with the entry `ck_program`; `digest`: its sha256; `path`: of the built program;
    `aliases`: (operand, result) pairs that share memory; `failures`: the messages of its error codes;
    `launch`: how a GPU runs it, None for the CPU; `stamps`: those of a traced program; `own_bytes`: memory of
    each unit; `sizes`: the launch parameters; `loops`: see `compiler.Emitted`; `varying`: the numbers
    (`schedule.general`) for which it serves other calls as well.

    `forms`: of a program for symbolic sizes, what the runtime evaluates in each call (`utask.forms`); then
    `shapes` are those of the operands and results, and in them, in `sizes`, `workspace_bytes` and `own_bytes`
    a negative number stands for a form.
    """

    binary: bytes
    digest: str
    path: str
    aliases: tuple[tuple[int, int], ...]
    workspace_bytes: int
    failures: tuple[str, ...]
    launch: LaunchPlan | None = None
    stamps: StampTable | None = None
    own_bytes: int = 0
    sizes: tuple[int, ...] = ()
    loops: tuple[int, ...] = ()
    varying: tuple[int, ...] = ()
    forms: tuple[int, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
