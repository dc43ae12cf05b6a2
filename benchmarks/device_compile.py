"""CPU seconds that the phases of nvcc take for the benchmark's programs. Needs nvcc, and no GPU.

    python -m benchmarks.device_compile                        every row, for sm_90
    python -m benchmarks.device_compile --rows lstm --arch sm_80
    python -m benchmarks.device_compile --whole                as if all kernels were one part

The phases are the host's preprocessor (gcc), the compiler to PTX (cicc), the compiler to machine code
(ptxas), and packing (fatbinary). Each part of a program takes the first two, and a look at its text by ptxas.
`longest` counts the part that takes longest of all: the others run beside it. The rest is counted as on one
core.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

from benchmarks.gpu.rows import ROWS
from benchmarks.gpu.sass.programs import CARDS, planned
from jax_cocktail.build import cuda
from jax_cocktail.build.device import device_job, device_toolchain
from jax_cocktail.build.job import Job, commands_of

PHASES = ("gcc", "cicc", "ptxas", "fatbinary")


@dataclass(frozen=True, slots=True)
class Compiled:
    """What it took to compile a program. `commands`: for each part, then for the binary, CPU seconds by
    phase; `lines`, `functions`: of PTX."""

    commands: tuple[Counter[str], ...]
    lines: int
    functions: int

    @property
    def seconds(self) -> Counter[str]:
        """CPU seconds by phase."""
        return sum(self.commands, Counter[str]())

    @property
    def longest(self) -> float:
        """CPU seconds of the parts that take longest, one after the other."""
        *parts, last = (each.total() for each in self.commands)
        return max(parts, default=0.0) + last


def compiled(job: Job) -> Compiled:
    """Compiles, phase by phase, past the cache. Raises subprocess.CalledProcessError."""
    with tempfile.TemporaryDirectory() as name:
        folder, commands = Path(name), commands_of(job)
        (folder / job.language.file).write_text(job.source, encoding="utf-8")
        taken = [_phases(words, folder) for words in commands[:-1]]
        if taken and job.language.join is not None:
            texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("part*"))]
            (folder / job.language.joined).write_text(job.language.join(texts), encoding="utf-8")
        taken.append(_phases(commands[-1], folder))
        text = max((path.read_text("utf-8") for path in folder.glob("*.ptx")), key=len)
    functions = re.findall(r"^(?:\.visible )?\.(?:func|entry)[^;{]*\{", text, re.MULTILINE)
    return Compiled(tuple(taken), text.count("\n"), len(functions))


def _phases(words: Sequence[str], folder: Path) -> Counter[str]:
    """Runs what nvcc would run. Its temporary files stay in the folder."""
    environment = {**os.environ, "TMPDIR": str(folder)}
    taken = Counter[str]()
    for line in re.findall(r"^#\$ (.*)$", _run([*words, "--dryrun"], folder, environment), re.MULTILINE):
        if assignment := re.match(r"(\w+)=(.*)", line):
            environment[assignment[1]] = assignment[2]
            continue
        before = getrusage(RUSAGE_CHILDREN)
        _run(["sh", "-c", line], folder, environment)
        after = getrusage(RUSAGE_CHILDREN)
        program = Path(shlex.split(line)[0]).name
        taken[program] += after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return taken


def _run(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Runs a command. Returns its messages."""
    done = subprocess.run(words, cwd=folder, env=environment, check=True, text=True, capture_output=True)
    return done.stderr


def rows(names: str, arch: str) -> Iterator[tuple[str, str]]:
    """Names and texts of the programs of the rows whose names have `names` in them."""
    for row in (each for each in ROWS if names in each):
        for number, program in enumerate(planned(row, CARDS[arch])):
            yield row if number == 0 else f"{row}, {number}", program.emitted.source


def main() -> None:
    """Prints a table, a line for each program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device_compile")
    parser.add_argument("--rows", default="", help="those whose names have this in them")
    parser.add_argument("--arch", choices=CARDS, default="sm_90")
    parser.add_argument("--whole", action="store_true", help="all kernels are one part")
    given = parser.parse_args()
    if given.whole:
        cuda.PART_BYTES = 1 << 62
    toolchain = device_toolchain(given.arch)
    if toolchain.kind != "nvcc":
        parser.error(f"{toolchain} has no phases: install nvcc")
    heads = ("lines", "PTX", "functions", *PHASES, "all", "longest")
    print(f"{'program':22}" + "".join(f"{head:>10}" for head in heads))
    for name, text in rows(given.rows, given.arch):
        found = compiled(device_job(text, toolchain, given.arch))
        counts = (text.count("\n"), found.lines, found.functions)
        taken = (*(found.seconds[phase] for phase in PHASES), found.seconds.total(), found.longest)
        line = "".join(f"{count:10}" for count in counts) + "".join(f"{each:10.2f}" for each in taken)
        print(f"{name:22}{line}", flush=True)


if __name__ == "__main__":
    main()
