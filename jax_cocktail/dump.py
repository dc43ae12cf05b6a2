"""Writes a program to a folder for reading: jaxpr, IR after each pass, C++ source, compiler command."""

from __future__ import annotations

import os
import re
import shutil
import warnings
from contextlib import suppress
from pathlib import Path

from jax_cocktail.codegen.program import emit_program
from jax_cocktail.compiler import Artifact
from jax_cocktail.errors import CocktailWarning
from jax_cocktail.schedule.sync.plan_tail import NOWHERE, Planned
from jax_cocktail.utask.ir import UProgram
from jax_cocktail.utask.plan import MemoryPlan
from jax_cocktail.utask.printer import print_plan, print_program

_NAME_LENGTH = 64  # of a function, in the name of its folder


class Dump:
    """One folder per program: ``<folder>/<function>_<region>_<fingerprint>/``."""

    def __init__(self, folder: str, function: str, region: int, fingerprint: str) -> None:
        name = re.sub(r"\W+", "_", function, flags=re.ASCII)[:_NAME_LENGTH]
        self._folder = Path(os.path.expanduser(folder)) / f"{name}_{region}_{fingerprint[:12]}"
        self._passes = 0
        self._works = True

    def write(self, name: str, text: str) -> None:
        """Writes one file. If the folder cannot be written, it warns once and continues."""
        if not self._works:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            data = (text if text.endswith("\n") else text + "\n").encode(errors="backslashreplace")
            (self._folder / name).write_bytes(data)
        except OSError as error:
            self._works = False
            text = f"dump_to: cannot write {self._folder} ({error.strerror}); choose another folder"
            warnings.warn(text, CocktailWarning, stacklevel=2)

    def program(self, name: str, program: UProgram, plan: MemoryPlan = NOWHERE) -> None:
        """Writes the IR after the pass `name`, and where its values lie, if that is known. File names sort in
        the order of the passes."""
        text = print_program(program) + ("" if plan is NOWHERE else "\n" + print_plan(plan))
        self.write(f"{self._passes:02d}_{name}.txt", text)
        self._passes += 1

    def observe(self, name: str, after: Planned, seconds: float) -> None:
        """An observer of `compiler.emit`."""
        del seconds
        self.program(name, after.program, after.plan)

    def finish(self, artifact: Artifact) -> None:
        """Writes the source, with comments that say where in the user's program statements come from, and
        copies the command and log of the compiler."""
        emitted = artifact.emitted
        source = emit_program(emitted.program, emitted.plan, emitted.machine, places=True)
        self.write("program.cu" if emitted.machine.is_gpu else "program.cc", source)
        built = Path(artifact.path).parent
        for name in ("command.txt", "log.txt") if artifact.path else ():
            with suppress(OSError):  # another process may clear the cache
                shutil.copyfile(built / name, self._folder / name)
