"""Program texts of the CUDA target written by hand around a small body, and what nvcc says about them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jax_cocktail.device.amd import MI300X, RX_7900_XTX
from jax_cocktail.device.block import Block
from jax_cocktail.device.nvidia import H200
from tests.cpu.emulation import emulator

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "cuda_src", ROOT / "gpu_src", ROOT / "common_src")
NVCC = shutil.which("nvcc")
NO_NVCC = "needs nvcc on PATH"  # reason of skipped tests

CARDS = {emulator.CUDA: H200, emulator.WAVES_OF_64: MI300X, emulator.WAVES_OF_32: RX_7900_XTX}


def block(threads: int, gpu: emulator.Gpu = emulator.CUDA) -> Block:
    """The threads of a unit, for plans of templates."""
    return CARDS[gpu].block(threads)


def program(
    body: str,
    *,
    threads: int = 64,
    scratch: int = 4096,
    operands: int = 1,
    results: int = 1,
    most_units: int = 1,
    shared: int = 0,
    own: int = 0,
    resident: int = 0,
    headers: Sequence[str] = ("cocktail_block.h",),
    prelude: str = "",
) -> str:
    """Text of a program whose units run `body`.

    threads: of one block. scratch, shared, own, resident: bytes. prelude: text before `ck_body` (tables,
    functions). The body sees `operands[i]` (const void*), `results[i]` (void*), `workspace` (u8*), `unit`
    and RESIDENT.
    """
    numbers = {
        "CK_THREADS": threads,
        "CK_SCRATCH_BYTES": scratch,
        "CK_OPERANDS": operands,
        "CK_RESULTS": results,
        "CK_MOST_UNITS": most_units,
        "CK_SHARED_BYTES": shared,
        "CK_OWN_BYTES": own,
        "CK_RESIDENT_BYTES": resident,
    }
    wanted = dict.fromkeys(("cocktail_base.h", "cocktail_units.h", *headers))
    lines = [f"#define {name} {number}" for name, number in numbers.items()]
    lines += [f'#include "{name}"' for name in wanted]
    lines += [
        prelude,
        "template <bool RESIDENT>",
        "CK_INLINE void ck_body(const void* const* operands, void* const* results, u8* workspace, "
        "CkUnit* unit) {",
        "(void)operands, (void)results, (void)workspace, (void)unit;",
        body,
        "}",
        "CK_ENTRIES",
        "",
    ]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Facts:
    """What ptxas says about one kernel. registers: per thread; spilled, stack: bytes per thread."""

    registers: int
    spilled: int
    stack: int


_KERNEL = re.compile(r"Compiling entry function '(\w+)'")
_REGISTERS = re.compile(r"Used (\d+) registers")
_MEMORY = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


def nvcc_facts(source: str, folder: Path, arch: str = "sm_90", flags: Sequence[str] = ()) -> dict[str, Facts]:
    """Compiles a program to a cubin in `folder`; kernel -> facts. Warnings are errors, as everywhere."""
    assert NVCC, NO_NVCC
    path = folder / f"program_{arch}.cu"
    path.write_text(source, encoding="utf-8")
    command = [NVCC, "-cubin", "-std=c++17", f"-arch={arch}", "-O3", "--ptxas-options=-v"]
    command += ["-Werror=all-warnings", *(f"-I{f}" for f in FOLDERS), *flags]
    command += ["-o", str(path.with_suffix(".cubin")), str(path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"nvcc refused {path}:\n{run.stdout}{run.stderr}"
    _, *parts = _KERNEL.split(run.stdout + run.stderr)  # name, what follows, name ...
    return {name: _facts(text) for name, text in zip(parts[::2], parts[1::2], strict=True)}


def _facts(text: str) -> Facts:
    """Facts of a kernel with all functions that it calls."""
    memory = [tuple(map(int, m)) for m in _MEMORY.findall(text)]
    registers = max(map(int, _REGISTERS.findall(text)))
    return Facts(registers, sum(stores + loads for _, stores, loads in memory), max(m[0] for m in memory))
