"""Emitted programs for the host in a program of their own, under the compiler's sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np

from jax_cocktail.build import host as build
from jax_cocktail.compiler import Emitted

SANITIZERS = ("thread", "address,undefined")
DRIVER = """
#include "{program}"
#include "runtime_units.h"
{data}
int main() {{
  const void* operands[] = {{{operands}nullptr}};
  void* results[] = {{{results}nullptr}};
  const i64 sizes[] = {{{sizes}0}};
  const Given given = {{nullptr, {workspace}, {own_bytes}, sizes}};
  Entry entry = {{ck_program, {most_units}}};
  for (i64 call = 0; call < {calls}; ++call) {{
    End end = {{}};
    if (!RunProgram(&entry, operands, results, given, 1 + call % 3, &end) || end.code) return 1;
  }}
  return 0;
}}
"""


# Each unit in turn does not end, once it has passed some barriers. The others wait for it there, and pass no
# further one, or they are in the loop too. Calls that end are in between: every unit and every barrier has a
# part in their result.
STOPPED = """
#include "runtime_units.h"
static i64 forever, barriers, stays;
static i64 sums[CK_MOST_UNITS], passed[CK_MOST_UNITS];
int ck_program(const void* const*, void* const* results, u8*, CkUnit* unit) {
  i64 count = unit->count;
  passed[unit->index] = 0;
  for (i64 k = 0;; ++k) {
    sums[unit->index] = k + unit->index;
    if (k == barriers && forever != 0 && (unit->index == stays || forever == 2)) {
      for (i64 trip = 0;; ++trip) {
        if (ck_stops(unit, unit->alarm, k, trip)) return 0;
      }
    }
    ck_arrive(unit);
    if (ck_wait(unit)) return 0;
    ++passed[unit->index];
    if (k == 4) break;
    ck_arrive(unit);
    if (ck_wait(unit)) return 0;
    ++passed[unit->index];
  }
  if (unit->index == 0) {
    i64 sum = 0;
    for (i64 i = 0; i < count; ++i) sum += sums[i];
    *(i64*)results[0] = sum - count * (count - 1) / 2 == 4 * count;
  }
  return 0;
}
int main() {
  Entry entry = {ck_program, CK_MOST_UNITS, 0, 0};
  i64 right = 0, counts[] = {1, 2, 3, 11};
  void* results[] = {&right};
  for (i64 count : counts) {
    for (stays = 0; stays < count; stays += 1 + count / 4) {
      for (forever = 1; forever <= 2; ++forever) {
        for (barriers = 0; barriers < 4; barriers += 3) {
          End end = {};
          ck_cpu_limit(1000000);
          if (!RunProgram(&entry, nullptr, results, {nullptr, 0, 0, nullptr}, count, &end)) return 1;
          if (end.reason != kTimeIsOver || end.loop != barriers || end.limit != 1000000) return 2;
          for (i64 i = 0; i < count; ++i) {
            if (passed[i] > 2 * barriers) return 7;
          }
          ck_cpu_limit(0);
          end = {};
          right = 0;
          i64 before = forever;
          forever = 0;
          if (!RunProgram(&entry, nullptr, results, {nullptr, 0, 0, nullptr}, count, &end)) return 3;
          forever = before;
          if (end.reason != kGoesOn || !right) return 4;
        }
      }
    }
  }
  for (Run& run : runs) {
    if (run.used || run.alarm) return 5;
  }
  return running_units == 0 ? 0 : 6;
}
"""


class NoSanitizer(Exception):
    """The machine cannot build with a sanitizer. The message says why."""


def driver_text(emitted: Emitted, arguments: Sequence[np.ndarray], calls: int = 24) -> str:
    """A main function that runs the program by one, two and three units in turn."""
    plan, lines = emitted.plan, []
    for number, array in enumerate(arguments):
        data = ", ".join(str(byte) for byte in array.tobytes()) or "0"
        lines.append(f"alignas(64) unsigned char a{number}[] = {{{data}}};")
    aliased = {result: operand for operand, result in plan.aliases}
    results = []
    for number, value in enumerate(emitted.program.entry.results):
        lines.append(f"alignas(64) unsigned char r{number}[{max(value.type.nbytes, 1)}];")
        results.append(f"a{aliased[number]}, " if number in aliased else f"r{number}, ")
    if emitted.stamps is not None:
        lines.append(f"alignas(64) unsigned char rings[{4 * prod(emitted.stamps.shape)}];")
        results.append("rings, ")
    return DRIVER.format(
        program="program.cc",
        data="\n".join(lines),
        operands="".join(f"a{number}, " for number in range(len(arguments))),
        results="".join(results),
        most_units=plan.most_units,
        own_bytes=plan.own_bytes,
        sizes="".join(f"{size}, " for size in emitted.sizes),
        workspace=plan.workspace_bytes,
        calls=calls,
    )


def complaint(emitted: Emitted, arguments: Sequence[np.ndarray], sanitizer: str, folder: Path) -> str:
    """What a sanitizer says of a program, or "". Raises NoSanitizer."""
    (folder / "program.cc").write_text(emitted.source)
    return complaint_of(driver_text(emitted, arguments), sanitizer, folder)


def complaint_of(text: str, sanitizer: str, folder: Path) -> str:
    """What a sanitizer says of a text with a main function, or "". Raises NoSanitizer."""
    host = next((c for c in ("g++", "clang++") if shutil.which(c)), None)
    if host is None:
        raise NoSanitizer("the sanitizers need g++ or clang++")
    (folder / "driver.cc").write_text(text)
    flags = ["-std=c++17", "-O1", "-g", "-w", "-fwrapv", "-mfma", f"-fsanitize={sanitizer}"]
    includes = [f"-I{path}" for path in build.program_folders("cpu_src")]
    command = [host, *flags, *includes, str(folder / "driver.cc"), "-o", str(folder / "run"), "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "cannot find" in done.stderr:
        raise NoSanitizer(f"the library of the {sanitizer} sanitizer is not installed")
    if done.returncode:
        return done.stderr[-3000:]
    done = subprocess.run([folder / "run"], capture_output=True, text=True, timeout=120, check=False)
    found = done.returncode != 0 or "Sanitizer" in done.stderr or "runtime error" in done.stderr
    return f"exit status {done.returncode}: {done.stderr[-4000:]}" if found else ""
