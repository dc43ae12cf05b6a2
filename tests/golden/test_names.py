"""Names, files and lines of the user's program are data, and what is compiled does not depend on them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from jax_cocktail.codegen.machines import HOST, machine_of
from jax_cocktail.codegen.program import emit_program
from jax_cocktail.compiler import Artifact, emit
from jax_cocktail.device.nvidia import H200
from jax_cocktail.dump import Dump
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail.utask.ir import UProgram, walk
from jax_cocktail.utask.printer import fingerprint, print_program
from jax_cocktail.utask.rewrite import rewrite
from jax_cocktail.utask.types import Source, plain
from tests.golden.programs import DIVIDED, PROGRAMS
from tests.names import NAMES
from tests.null.programs import build, matmul, random_program


def moved(program: UProgram, name: str) -> UProgram:
    """The program with a name in place of its own, and every statement at a place with this name."""
    lines = iter(range(10**6))
    entry = rewrite(program, lambda s: replace(s, source=Source(f"/a/{name}.py", next(lines), name)))
    assert len({s.source for s in walk(entry.entry)}) == sum(1 for _ in walk(entry.entry))
    return replace(entry, name=plain(name))


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_plain_is_one_short_printable_line(name):
    for text in (plain(name), str(Source(name, 3, name))):
        assert text.isprintable() and text.encode().decode() == text
    assert len(plain(name)) == min(len(name), 200)
    assert plain("größe <lambda>.<locals> 漢字") == "größe <lambda>.<locals> 漢字"


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_no_name_is_emitted(name):
    program = PROGRAMS["skipped_branch"]()
    ours, other = emit(program), emit(moved(program, name))
    assert (other.source, other.fingerprint) == (ours.source, ours.fingerprint)
    assert print_program(other.program).count("\n") == print_program(ours.program).count("\n")


@pytest.mark.parametrize("machine", [HOST, machine_of(H200, 128)], ids=["cpu", "gpu"])
def test_no_position_is_emitted(machine):
    programs = [case.program() for case in DIVIDED.values() if case.on_gpu == machine.is_gpu]
    for program in (*programs, *map(random_program, range(12))):
        there = moved(program, "there.py")
        assert fingerprint(there) == fingerprint(program)
        for candidate in (Candidate(1), Candidate(4)):
            ours = emit(program, machine, candidate=candidate)
            assert emit(there, machine, candidate=candidate).source == ours.source


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_dump_is_one_folder_whose_comments_end(name, tmp_path: Path):
    emitted = emit(moved(PROGRAMS["skipped_branch"](), name))
    dump = Dump(str(tmp_path / "dumps"), name, 0, "0123456789abcdef")
    dump.write("jaxpr.txt", name)
    dump.finish(Artifact(b"", "", emitted, 0.0, False, ""))
    assert [each.name for each in tmp_path.iterdir()] == ["dumps"]
    (folder,) = (tmp_path / "dumps").iterdir()
    assert sorted(each.name for each in folder.iterdir()) == [
        "jaxpr.txt",
        "launch.txt",
        "memory.txt",
        "program.cc",
    ]
    lines = (folder / "program.cc").read_text(encoding="utf-8").split("\n")
    comments = [line for line in lines[1:] if line.lstrip().startswith("//")]
    assert comments and all(line.isprintable() and line[-1] in ")0123456789" for line in comments)
    assert [line for line in lines if line not in comments] == emitted.source.split("\n")


def test_comments_do_not_divide_functions():
    """Equal parts of a program share a function, whatever lines they stand in."""

    def chain(b, x, *weights):
        return [x := matmul(b, x, w) for w in weights][-1:]

    program = build(["float32[8,2048]", *["float32[2048,2048]"] * 4], chain)
    machine = machine_of(H200, 128)
    machine = replace(machine, target=replace(machine.target, outline_limit=0))
    emitted = emit(moved(program, "f"), machine, candidate=Candidate(4))
    told = emit_program(emitted.program, emitted.plan, machine, places=True).source
    lines = [line for line in told.split("\n") if not line.lstrip().startswith("// f.py:")]
    assert len(lines) < told.count("\n") and "\n".join(lines) == emitted.source
    assert max(Counter(re.findall(r"part\d+<RESIDENT>", told)).values()) > 1
