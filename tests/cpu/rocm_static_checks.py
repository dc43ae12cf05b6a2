"""Static checks: what clang makes of the benchmark's programs for AMD's cards, which need not be here.

    python -m tests.cpu.rocm_static_checks                  all programs, all cards, held to limits and record
    python -m tests.cpu.rocm_static_checks gfx942 lstm/1    only these cards, only these programs
    python -m tests.cpu.rocm_static_checks --update         records what was found

The compiler is the clang of the `compiler` extra, for it knows all cards, and writes assembly on its way.
Recorded numbers belong to one release of it and lie in tests/golden/rocm_static_checks.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.rows import ROWS
from jax_cocktail.build import code_object
from jax_cocktail.build.device import device_job
from jax_cocktail.build.job import commands_of
from jax_cocktail.build.kernels import DeviceToolchain
from jax_cocktail.build.rocm import _freestanding
from jax_cocktail.cache import BINARY
from jax_cocktail.codegen.gpu import launch_plan
from jax_cocktail.compiler import Emitted, build
from jax_cocktail.device.cards import AMD
from jax_cocktail.device.spec import DeviceSpec
from tests.cpu import gcn
from tests.cpu.static_checks import differences, planned, record, recorded

CARDS = {spec.arch: spec for spec in AMD}
RECORDED = Path(__file__).parents[1] / "golden" / "rocm_static_checks"
_NOTES = {
    "registers": ".vgpr_count",  # with those of matrix instructions
    "matrix_registers": ".agpr_count",
    "scalar_registers": ".sgpr_count",
    "scratch_bytes": ".private_segment_fixed_size",
    "shared_bytes": ".group_segment_fixed_size",
}
_SCRATCH = ("buffer_load", "buffer_store", "scratch_load", "scratch_store")  # nothing else takes these


@dataclass(frozen=True, slots=True)
class Found:
    """One program and its two kernels.

    resident_shared, portable_shared: dynamic shared memory of a block, bytes. kernels: by name the numbers of
    `_NOTES` and, counted once each in the kernel and all that it calls, `matrix`: matrix instructions;
    `barriers`: of a block; `scratch`: accesses to private memory, which are registers that functions save at
    their beginning and end, and `scratch_in_loops`: those in loops; `flat_in_loops`: accesses in loops by an
    address of any memory.
    """

    units: int
    threads: int
    resident_shared: int
    portable_shared: int
    kernels: Mapping[str, Mapping[str, int]]


def taken(emitted: Emitted, spec: DeviceSpec, toolchain: DeviceToolchain) -> Found:
    """As a build takes it: in another way if registers do not suffice."""
    first = found(emitted, spec, toolchain)
    if not any(facts["scratch_bytes"] for facts in first.kernels.values()):
        return first
    return found(build(emitted, compiler=toolchain).emitted, spec, toolchain)


def found(emitted: Emitted, spec: DeviceSpec, toolchain: DeviceToolchain) -> Found:
    """Compiles a program, past the cache: the assembly is read on the way."""
    job = device_job(emitted.source, toolchain, spec.arch)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / job.language.file).write_text(job.source, encoding="utf-8")
        environment = {**os.environ, **dict(toolchain.environment)}
        for words in commands_of(job):
            done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
        assembly, binary = (folder / "stage0").read_text(encoding="utf-8"), (folder / BINARY).read_bytes()
    launch = launch_plan(emitted.program, emitted.plan, emitted.machine)
    return Found(
        units=launch.most_units,
        threads=launch.threads,
        resident_shared=launch.resident_shared_bytes,
        portable_shared=launch.portable_shared_bytes,
        kernels=_kernels(gcn.functions(assembly), binary),
    )


def _kernels(code: Mapping[str, tuple[gcn.Instruction, ...]], binary: bytes) -> dict[str, dict[str, int]]:
    kernels = {}
    for name, said in code_object.resources(binary).items():
        here, notes = gcn.reached(code, name), {}
        for key, note in _NOTES.items():
            notes[key] = int(str(said.get(note, 0)))
        kernels[name] = {
            **notes,
            "matrix": gcn.count(here, "v_mfma", "v_wmma", "v_smfmac"),
            "barriers": gcn.count(here, "s_barrier"),
            "scratch": gcn.count(here, *_SCRATCH),
            "scratch_in_loops": gcn.count(here, *_SCRATCH, in_loops=True),
            "flat_in_loops": gcn.count(here, "flat_", in_loops=True),
        }
    return kernels


def problems(each: Found, spec: DeviceSpec, exception: str = "") -> list[str]:
    """The limits that a program breaks on a card, in words; empty if there are none. `exception`: why it may
    use private memory in loops."""
    said = []
    shared = {"ck_resident": each.resident_shared, "ck_portable": each.portable_shared}
    if shared.keys() != each.kernels.keys():
        return [f"the kernels are {', '.join(each.kernels)}"]
    for name, facts in each.kernels.items():
        if facts["scratch_in_loops"] and not exception:
            said.append(f"{name} has {facts['scratch_in_loops']} accesses to private memory in loops")
        if facts["shared_bytes"]:
            said.append(f"{name} has {facts['shared_bytes']} bytes of shared memory that nobody planned")
        if shared[name] > spec.shared_bytes:
            said.append(
                f"{name} takes {shared[name]} bytes of shared memory, a block has {spec.shared_bytes}"
            )
        if not spec.resident_units(each.threads, facts["registers"], min(shared[name], spec.shared_bytes)):
            said.append(f"{name} uses {facts['registers']} registers in each of {each.threads} threads")
    return said


def exceptions(arch: str) -> Mapping[str, str]:
    """Why rows may use private memory in loops of their programs, by row."""
    path = RECORDED / "exceptions.json"
    return dict(json.loads(path.read_text(encoding="utf-8")).get(arch, {})) if path.is_file() else {}


def plain(numbers: list[Found]) -> list[Any]:
    """As it is recorded."""
    return [
        {name: getattr(each, name) for name in each.__slots__ if name != "kernels"}
        | {"kernels": {name: dict(facts) for name, facts in each.kernels.items()}}
        for each in numbers
    ]


def check(
    row: str, arch: str, toolchain: DeviceToolchain, update: bool = False
) -> tuple[list[Any], list[str]]:
    """The numbers of a row's programs, and what is wrong with them."""
    spec = CARDS[arch]
    numbers = [taken(emitted, spec, toolchain) for emitted in planned(row, arch).programs]
    assert numbers, "nothing was captured"
    exception = exceptions(arch).get(row, "")
    said = [problem for each in numbers for problem in problems(each, spec, exception)]
    if exception and not any(
        facts["scratch_in_loops"] for each in numbers for facts in each.kernels.values()
    ):
        said.append("the exception is not needed any more")
    known = None if update else recorded(row, arch, toolchain.release, RECORDED)
    return plain(numbers), said + (differences(plain(numbers), known) if known is not None else [])


# ---- all of them -------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    """Prints a line for every row and card; 1 if a limit is broken or a recorded number differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.cpu.rocm_static_checks")
    parser.add_argument("only", nargs="*", help=f"of {', '.join(CARDS)}, {', '.join(ROWS)}")
    parser.add_argument("--update", action="store_true", help="record what is found")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_intermixed_args(arguments)
    unknown = set(asked.only) - CARDS.keys() - ROWS.keys()
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    toolchain = _freestanding()
    if toolchain is None:
        parser.error("needs ziglang (the compiler extra)")
    failed = False
    work = [
        (arch, row)
        for arch in [arch for arch in CARDS if arch in asked.only] or list(CARDS)
        for row in [row for row in ROWS if row in asked.only] or list(ROWS)
    ]
    one = partial(_one, toolchain=toolchain, update=asked.update)
    with ThreadPoolExecutor(asked.jobs) as pool:
        for (arch, row), (seconds, programs, said) in zip(work, pool.map(one, work), strict=True):
            if asked.update and not said:  # what breaks a limit is not recorded
                record(arch, toolchain.release, {row: programs}, RECORDED)
            failed |= bool(said)
            print(f"{arch:8}{row:22}{seconds:7.1f} s  {'; '.join(said) or 'ok'}", flush=True)
    return int(failed)


def _one(
    job: tuple[str, str], toolchain: DeviceToolchain, update: bool
) -> tuple[float, list[Any], list[str]]:
    start, (arch, row) = time.perf_counter(), job
    numbers, said = check(row, arch, toolchain, update)
    return time.perf_counter() - start, numbers, said


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
