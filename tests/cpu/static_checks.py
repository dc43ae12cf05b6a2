"""Static checks: what the CUDA compiler makes of the benchmark's programs, for cards that need not be here.

    python -m tests.cpu.static_checks                   all programs on all cards, held to limits and record
    python -m tests.cpu.static_checks sm_90 lstm/1      only these cards, only these programs
    python -m tests.cpu.static_checks --update          records what was found

Recorded numbers belong to one release of nvcc and lie in tests/golden/cuda_static_checks; with another
release only the limits count.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax

from benchmarks.gpu.rows import ROWS
from jax_cocktail.build.device import build_device_program, device_toolchain
from jax_cocktail.build.kernels import DeviceBuilt, DeviceToolchain
from jax_cocktail.codegen.gpu import launch_plan
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.compiler import Emitted
from jax_cocktail.device.cards import spec_for
from jax_cocktail.device.nvidia import A100, B200, H200
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.lowering.choice.decisions import Plan
from jax_cocktail.lowering.choice.survey import survey
from jax_cocktail.lowering.choice.variants import prepare
from jax_cocktail.utask.ir import UOperator, is_parallel, walk
from tests.cpu import sass

CARDS = {spec.arch: spec for spec in (A100, H200, B200)}
FEW_GENERIC = 48  # accesses by an address of any memory: copies of what is not aligned, which are rare
FEW_BYTES = 64  # spilled once per call they cost nothing, and users are told; in a loop there are none
RECORDED = Path(__file__).parents[1] / "golden" / "cuda_static_checks"


@dataclass(frozen=True, slots=True)
class Planned:
    """A row planned for a card in the way that the model finds cheapest; a program for each captured part."""

    row: str
    spec: DeviceSpec
    plan: Plan
    programs: tuple[Emitted, ...]


@functools.cache
def planned(row: str, arch: str) -> Planned:
    """The programs of a row, as they are when no card can be asked."""
    spec = spec_for(arch)
    function, arguments = ROWS[row].make(False)
    prepared = prepare(jax.make_jaxpr(function)(*arguments), row, machine_of(spec))
    best = survey(prepared, spec.units).best
    numbers = range(len(prepared.programs))
    return Planned(row, spec, best, tuple(prepared.emitted[best.candidate, n] for n in numbers))


# ---- what was found ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """One program and its two kernels.

    units: blocks that find work. resident_shared, portable_shared: dynamic shared memory of a block, bytes.
    block_barriers, waits: barriers of a block and of the device (or exchanges) in the program, each counted
    once, whatever runs it.
    loops: parallel loops. kernels: by name what `KernelFacts` says, and `barriers`: of a block, in the
    machine code; `loads_in_loops`: from local memory; `generic`: accesses by an address of any memory (None
    where no tool reads machine code).
    """

    units: int
    threads: int
    resident_shared: int
    portable_shared: int
    block_barriers: int
    waits: int
    loops: int
    kernels: Mapping[str, Mapping[str, int | None]]


def found(emitted: Emitted, spec: DeviceSpec, toolchain: DeviceToolchain) -> Found:
    """Compiles a program, or takes it from the cache."""
    built = build_device_program(emitted.source, toolchain, spec)
    launch = launch_plan(emitted.program, emitted.plan, emitted.machine)
    statements = list(walk(emitted.program.entry))
    kinds = [each.kind for each in statements if isinstance(each, UOperator)]
    return Found(
        units=launch.most_units,
        threads=launch.threads,
        resident_shared=launch.resident_shared_bytes,
        portable_shared=launch.portable_shared_bytes,
        block_barriers=kinds.count("block_barrier"),
        waits=kinds.count("wait") + kinds.count("exchange"),
        loops=sum(is_parallel(each) for each in statements),
        kernels=_kernels(built),
    )


def _kernels(built: DeviceBuilt) -> dict[str, dict[str, int | None]]:
    kernels: dict[str, dict[str, int | None]] = {}
    loads = sass.local_loads(built.binary, in_loops=True) if sass.tools() else {}
    generic = sass.generic_accesses(built.binary) if sass.tools() else {}
    for name, facts in built.kernels.items():
        barriers = None
        if sass.tools():
            codes = sass.opcodes(built.binary, name)
            barriers = sum(n for opcode, n in codes.items() if opcode.startswith("BAR.SYNC"))
        read = {"barriers": barriers, "loads_in_loops": loads.get(name), "generic": generic.get(name)}
        kernels[name] = {**asdict(facts), **read}
    return kernels


def problems(each: Found, spec: DeviceSpec) -> list[str]:
    """The limits that a program breaks on a card, in words; empty if there are none."""
    said = []
    if each.waits and each.units > spec.units:
        said.append(f"{each.units} blocks never run at the same time, {spec.name} has {spec.units} units")
    shared = {"ck_resident": each.resident_shared, "ck_portable": each.portable_shared}
    if shared.keys() != each.kernels.keys():
        return [*said, f"the kernels are {', '.join(each.kernels)}"]
    for name, facts in each.kernels.items():
        numbers = {key: value or 0 for key, value in facts.items()}
        if numbers["spill_bytes"] > FEW_BYTES:
            said.append(f"{name} spills {numbers['spill_bytes']} bytes")
        if numbers["loads_in_loops"]:
            said.append(f"{name} loads {numbers['loads_in_loops']} times from local memory in loops")
        if numbers.get("generic", 0) > FEW_GENERIC:
            said.append(f"{name} has {numbers['generic']} accesses whose memory the compiler does not know")
        memory = shared[name] + numbers["shared_bytes"]
        if memory > spec.shared_bytes:
            said.append(f"{name} takes {memory} bytes of shared memory, a block has {spec.shared_bytes}")
        if not spec.resident_units(each.threads, numbers["registers"], min(memory, spec.shared_bytes)):
            said.append(f"{name} uses {numbers['registers']} registers in each of {each.threads} threads")
    return said


# ---- what is recorded --------------------------------------------------------------------------------------


def recorded(row: str, arch: str, release: str, folder: Path | None = None) -> list[Any] | None:
    """The numbers of a row, a program after the other; None if there are none for this release of the
    compiler. `folder`: where they are, if not those of nvcc."""
    path = _path(arch, folder)
    everything = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    numbers = everything.get(release, {}).get(row)
    return numbers if numbers is None else list(numbers)


def record(arch: str, release: str, rows: Mapping[str, list[Any]], folder: Path | None = None) -> None:
    """Keeps the numbers of some rows; those of other rows and releases stay."""
    path = _path(arch, folder)
    everything = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    everything[release] = dict(sorted({**everything.get(release, {}), **rows}.items()))
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(dict(sorted(everything.items())), indent=1) + "\n", encoding="utf-8")


def _path(arch: str, folder: Path | None) -> Path:
    return (folder or RECORDED) / f"{arch}.json"


def plain(numbers: list[Found]) -> list[Any]:
    """As it is recorded. What no tool here could read is left out."""
    text = json.dumps([asdict(each) for each in numbers])
    programs = json.loads(text)
    for program in programs:
        for name, facts in program["kernels"].items():
            program["kernels"][name] = {key: value for key, value in facts.items() if value is not None}
    return list(programs)


def differences(here: list[Any], there: list[Any]) -> list[str]:
    """Where two lists of recorded numbers differ, as "program 0, ck_resident, registers: 40, recorded 38"."""
    if len(here) != len(there):
        return [f"{len(here)} programs, recorded {len(there)}"]
    said = []
    for number, (one, other) in enumerate(zip(here, there, strict=True)):
        mine, theirs = _flat(one), _flat(other)
        for key in sorted(mine.keys() & theirs.keys()):  # a tool may be missing
            if mine[key] != theirs[key]:
                said.append(f"program {number}, {key}: {mine[key]}, recorded {theirs[key]}")
    return said


def _flat(program: Mapping[str, Any]) -> dict[str, Any]:
    values = {key: value for key, value in program.items() if key != "kernels"}
    for name, facts in program["kernels"].items():
        values |= {f"{name}, {key}": value for key, value in facts.items()}
    return values


# ---- all of them -------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    """Prints a line for every row and card; 1 if a limit is broken or a recorded number differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.cpu.static_checks")
    parser.add_argument("only", nargs="*", help=f"of {', '.join(CARDS)}, {', '.join(ROWS)}")
    parser.add_argument("--update", action="store_true", help="record what is found")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_intermixed_args(arguments)
    unknown = set(asked.only) - CARDS.keys() - ROWS.keys()
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    archs = [arch for arch in CARDS if arch in asked.only] or list(CARDS)
    rows = [row for row in ROWS if row in asked.only] or list(ROWS)
    toolchain = device_toolchain()
    failed, numbers = False, dict[str, dict[str, list[Any]]]()
    with ThreadPoolExecutor(asked.jobs) as pool:
        work = [(arch, row) for arch in archs for row in rows]
        for (arch, row), outcome in zip(work, pool.map(lambda job: _one(*job, toolchain), work), strict=True):
            seconds, programs, said = outcome
            if not said:  # what breaks a limit is not recorded
                numbers.setdefault(arch, {})[row] = programs
            known = None if asked.update else recorded(row, arch, toolchain.release)
            said = said + (differences(programs, known) if known is not None else [])
            failed |= bool(said)
            print(f"{arch:7}{row:22}{seconds:7.1f} s  {'; '.join(said) or 'ok'}", flush=True)
    if asked.update and toolchain.kind == "nvcc":
        for arch, each in numbers.items():
            record(arch, toolchain.release, each)
    return int(failed)


def _one(arch: str, row: str, toolchain: DeviceToolchain) -> tuple[float, list[Any], list[str]]:
    start = time.perf_counter()
    spec, programs = CARDS[arch], planned(row, arch).programs
    numbers = [found(emitted, spec, toolchain) for emitted in programs]
    said = [problem for each in numbers for problem in problems(each, spec)]
    return time.perf_counter() - start, plain(numbers), said


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
