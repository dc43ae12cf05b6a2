"""Writes a program to a folder for reading: jaxpr, IR after each pass, where its values lie and how long they
live, source, the compiler's command, how it is launched, machine code."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

from jax_cocktail.build.command import answer
from jax_cocktail.codegen.program import emit_program
from jax_cocktail.compiler import Artifact, emit
from jax_cocktail.device.machine import Machine
from jax_cocktail.schedule.memory.liveness import liveness
from jax_cocktail.schedule.sync.plan_tail import NOWHERE, Planned
from jax_cocktail.utask.ir import UProgram
from jax_cocktail.utask.plan import LaunchPlan, MemoryPlan
from jax_cocktail.utask.printer import print_plan, print_program
from jax_cocktail.warning import warn

_NAME_LENGTH = 64  # of a function, in the name of its folder
# By the name of the file: what disassembles a binary, if it is installed.
_CPU_TOOLS = {"program.asm": ("objdump", "--disassemble", "--demangle", "--no-show-raw-insn")}
_GPU_TOOLS = {"program.sass": ("cuobjdump", "-sass"), "program.ptx": ("cuobjdump", "-ptx")}




def name_of(function: str, region: int, fingerprint: str) -> str:
    """The name of a program, for people and for folders."""
    name = re.sub(r"\W+", "_", function, flags=re.ASCII)[:_NAME_LENGTH]
    return f"{name}_{region}_{fingerprint[:12]}"


def dump_program(
    folder: str,
    function: str,
    region: int,
    jaxpr: str,
    translated: UProgram,
    machine: Machine,
    artifact: Artifact,
) -> str:
    """Runs the passes on a translated program again, writes what each makes of it, and what is known of the
    built program. Returns the folder of the program."""
    candidate = artifact.emitted.candidate
    dump = Dump(folder, function, region, artifact.fingerprint)
    dump.write("jaxpr.txt", jaxpr)
    dump.write("candidate.txt", candidate.text)
    dump.program("translate", translated)
    emit(translated, machine, observers=(dump.observe,), candidate=candidate)
    dump.finish(artifact)
    return dump.folder


def dump_decision(folder: str, function: str, key: str, text: str) -> None:
    """Writes what decided between our program and stock XLA, beside the folders of the programs."""
    Dump(folder, f"{function}_decision", 0, key).write("decision.txt", text)


class Dump:
    """One folder per program: ``<folder>/<function>_<region>_<fingerprint>/``."""

    def __init__(self, folder: str, function: str, region: int, fingerprint: str) -> None:
        self._root = Path(os.path.expanduser(folder))
        self._folder = self._root / name_of(function, region, fingerprint)
        self._passes = 0
        self._works = True

    @property
    def folder(self) -> str:
        """The output folder."""
        return str(self._folder)

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
            warn(("dump_to", str(self._root)), text)

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
        """Writes what is known of the built program: its memory, its launch, the source, with comments that
        say where in the user's program statements come from, and machine code if there is a disassembler.
        Copies the command and log of the compiler."""
        emitted = artifact.emitted
        lives = liveness(emitted.program, emitted.plan.layouts).mask
        self.write("memory.txt", print_plan(emitted.plan, lives))
        self.write("launch.txt", _launch(artifact))
        source = emit_program(emitted.program, emitted.plan, emitted.machine, places=True).source
        self.write("program.cu" if emitted.machine.is_gpu else "program.cc", source)
        built = Path(artifact.path).parent
        for name in ("command.txt", "log.txt") if artifact.path else ():
            with suppress(OSError):  # another process may clear the cache
                shutil.copyfile(built / name, self._folder / name)
        tools = _GPU_TOOLS if emitted.machine.is_gpu else _CPU_TOOLS
        for name, tool in tools.items() if artifact.path else ():
            if shutil.which(tool[0]) and (text := answer([*tool, artifact.path])):
                self.write(name, text)


def _launch(artifact: Artifact) -> str:
    """The launch: units, threads and shared memory."""
    executable, emitted = artifact.executable, artifact.emitted
    facts: dict[str, object] = {
        "candidate": emitted.candidate.text,
        "units": emitted.mesh.units,
        "fingerprint": emitted.fingerprint,
        "binary": executable.path,
        "sha256": executable.digest,
        "aliases (operand, result)": executable.aliases,
        "workspace_bytes": executable.workspace_bytes,
        "failures": executable.failures,
    }
    return "\n".join(f"{name}: {value}" for name, value in (facts | _fields(executable.launch)).items())


def _fields(plan: LaunchPlan | None) -> dict[str, object]:
    return {} if plan is None else {f"launch.{f.name}": getattr(plan, f.name) for f in fields(plan)}
