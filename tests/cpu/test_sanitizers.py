"""Emitted programs of several units under the thread and address sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest

from jax_cocktail import compiler
from jax_cocktail.build import host as build
from jax_cocktail.compiler import emit
from jax_cocktail.placement.place import place
from jax_cocktail.utask.candidate import Candidate
from jax_cocktail.utask.ir import UProgram
from tests.cpu.runner import EAGER
from tests.golden.programs import PROGRAMS
from tests.null.programs import arguments

DRIVER = """
#include "{program}"
#include "runtime_units.h"
{data}
int main() {{
  const void* operands[] = {{{operands}nullptr}};
  void* results[] = {{{results}nullptr}};
  Entry entry = {{ck_program, {most_units}, {own_bytes}}};
  for (i64 call = 0; call < 24; ++call) {{
    int code = 0;
    if (!RunProgram(&entry, operands, results, nullptr, {workspace}, 1 + call % 3, &code) || code) return 1;
  }}
  return 0;
}}
"""


def driver_text(program: UProgram, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """The emitted program, and a main function that runs it by one, two and three units."""

    monkeypatch.setattr(compiler, "place", partial(place, limits=EAGER))
    emitted = emit(program, candidate=Candidate(units=2))
    plan = emitted.plan
    assert plan.most_units > 1, "nothing was divided"
    names = {True: [], False: []}
    lines = []
    for number, array in enumerate(arguments(program)):
        data = ", ".join(str(byte) for byte in array.tobytes())
        lines.append(f"alignas(64) unsigned char a{number}[] = {{{data}}};")
        names[True].append(f"a{number}, ")
    aliased = {result: operand for operand, result in plan.aliases}
    for number, value in enumerate(program.entry.results):
        lines.append(f"alignas(64) unsigned char r{number}[{max(value.type.nbytes, 1)}];")
        names[False].append(f"a{aliased[number]}, " if number in aliased else f"r{number}, ")
    text = DRIVER.format(
        program="program.cc",
        data="\n".join(lines),
        operands="".join(names[True]),
        results="".join(names[False]),
        most_units=plan.most_units,
        own_bytes=plan.own_bytes,
        workspace=plan.workspace_bytes,
    )
    return emitted.source, text


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
@pytest.mark.parametrize("name", ["lstm_cell", "greedy_decoder", "softmax"])
def test_emitted_programs(name: str, sanitizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = next((c for c in ("g++", "clang++") if shutil.which(c)), None)
    if host is None:
        pytest.skip("the sanitizers need g++ or clang++")
    source, driver = driver_text(PROGRAMS[name](), monkeypatch)
    (tmp_path / "program.cc").write_text(source)
    (tmp_path / "driver.cc").write_text(driver)
    command = [host, "-std=c++17", "-O1", "-g", "-w", "-fwrapv", "-mfma", f"-fsanitize={sanitizer}"]
    command += [
        *(f"-I{folder}" for folder in build.program_folders("cpu_src")),
        str(tmp_path / "driver.cc"),
        "-o",
        str(tmp_path / "run"),
    ]
    done = subprocess.run([*command, "-lpthread"], capture_output=True, text=True, check=False)
    if done.returncode and "cannot find" in done.stderr:
        pytest.skip(f"the library of the {sanitizer} sanitizer is not installed")
    assert done.returncode == 0, done.stderr[-3000:]
    done = subprocess.run([tmp_path / "run"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and "Sanitizer" not in done.stderr, done.stderr[-4000:]
