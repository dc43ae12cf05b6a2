"""The kernels of the rows, planned for a card as `gpu_check` plans them, and compiled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.gpu.rows import ROWS
from benchmarks.gpu.sass.state import Content
from jax_cocktail.build.device import build_device_program, device_toolchain
from jax_cocktail.codegen.gpu import launch_plan
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.compiler import Emitted
from jax_cocktail.device.nvidia import A100, B200, H200
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.lowering.choice.survey import survey
from jax_cocktail.lowering.choice.variants import Prepared, prepare
from jax_cocktail.utask.ir import UProgram
from jax_cocktail.utask.plan import LaunchPlan

RECORD = Path(__file__).parents[2] / "results" / "gpu_check_nvidia_h100_80gb_hbm3.json"
CARDS = {spec.arch: spec for spec in (A100, H200, B200)}


@dataclass(frozen=True, slots=True)
class Planned:
    """A program of a row. `plan`: its name; `translated`: before all passes; `operands`: their contents, or
    bytes if other parts of the call compute them."""

    plan: str
    translated: UProgram
    emitted: Emitted
    operands: tuple[Content, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled program. `contents`: of its operands, results and workspace, or their bytes."""

    source: str
    binary: bytes
    launch: LaunchPlan
    contents: tuple[Content, ...]


def record() -> Mapping[str, Any]:
    """The sections of the run on a card that is committed."""
    sections: Mapping[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))["sections"]
    return sections


def recorded_card() -> DeviceSpec:
    """The card of the record."""
    return DeviceSpec(**record()["measure"]["card"]["spec"])


def card_of(arch: str) -> DeviceSpec:
    """The card to plan for: the recorded one if it is of this architecture, else that of the table."""
    return spec if (spec := recorded_card()).arch == arch else CARDS[arch]


def planned(row: str, spec: DeviceSpec, plan: str = "") -> tuple[Planned, ...]:
    """The programs of a row's cheapest plan by the model, or of the one with this name.

    Raises:
      ValueError: there is no such plan.
    """
    function, arguments = ROWS[row].make(False)
    closed = jax.make_jaxpr(function)(*arguments)
    prepared = prepare(closed, row, machine_of(spec))
    found = survey(prepared, spec.units, thorough=bool(plan))
    plans = {each.name: each for each in found.plans}
    chosen = plans.get(plan) if plan else found.best
    if chosen is None:
        raise ValueError(f"{row} has no plan {plan!r}, only {', '.join(map(repr, plans))}")
    numbers = prepared.taken(chosen)
    values = dict(zip(closed.jaxpr.invars, jax.tree.leaves(arguments), strict=True))
    return tuple(
        Planned(
            chosen.name,
            prepared.programs[n],
            prepared.emitted[chosen.candidate, n],
            _operands(prepared, n, values),
        )
        for n in numbers
    )


def _operands(prepared: Prepared, number: int, known: Mapping[Any, Any]) -> tuple[Content, ...]:
    """Of a region: the arguments of the call among its operands, and the sizes of the others."""
    region = prepared.captured.regions[number]
    types = [value.type for value in prepared.programs[number].entry.parameters]
    return tuple(
        np.asarray(known[var]) if var in known else of.nbytes
        for var, of in zip(region.operands, types, strict=True)
    )


def spilled(program: Planned) -> int:
    """Bytes of a thread that a program spills."""
    emitted = program.emitted
    spec = emitted.machine.spec
    assert spec is not None, "a program for a GPU"
    return sum(build_device_program(emitted.source, device_toolchain(spec.arch), spec).spills.values())


def compiled(program: Planned, *, lines: bool = False) -> Program:
    """Compiles a program, or takes it from the cache. `lines`: with the source line of every instruction."""
    emitted = program.emitted
    spec = emitted.machine.spec
    assert spec is not None, "a program for a GPU"
    options = ("-lineinfo",) if lines else ()
    binary = build_device_program(emitted.source, device_toolchain(spec.arch), spec, options=options).binary
    launch = launch_plan(emitted.program, emitted.plan, emitted.machine, emitted.sizes)
    results = [value.type.nbytes for value in emitted.program.entry.results]
    return Program(emitted.source, binary, launch, (*program.operands, *results, launch.workspace_bytes))
