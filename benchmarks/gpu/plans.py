"""Rows as the policy plans them for a card, compiled but not run: facts and predictions."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import jax

from benchmarks.gpu.roofline import predict
from jax_cocktail.build.device import build_device_program, device_toolchain
from jax_cocktail.build.kernels import check_registers
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.compiler import Artifact, Emitted, build
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.lowering.choice.stock_forms import unrolled_seconds
from jax_cocktail.lowering.choice.survey import survey
from jax_cocktail.lowering.choice.variants import prepare


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan of the policy. `name`: of the plan; `programs`: one for each region of ours; seconds:
    of all regions, the model's, also of stock XLA in its default form, and captured with unrolled loops (None
    if it cannot be)."""

    name: str
    programs: tuple[Emitted, ...]
    seconds: float
    stock_seconds: float
    unrolled_seconds: float | None


def planned(name: str, function: Callable[..., Any], arguments: tuple[Any, ...], spec: DeviceSpec) -> Planned:
    """The cheapest plan, as `jax_cocktail.jit` takes it on such a card if it is not to measure."""
    prepared = prepare(jax.make_jaxpr(function)(*arguments), name, machine_of(spec))
    found = survey(prepared, spec.units)
    plan, seconds = found.best, min(found.seconds)
    programs = tuple(prepared.emitted[plan.candidate, number] for number in prepared.taken(plan))
    unrolled = unrolled_seconds(prepared.programs, spec)
    return Planned(plan.name, programs, seconds, found.comparison.stock.seconds, unrolled)


def facts(plan: Planned, spec: DeviceSpec) -> dict[str, Any]:
    """The compiler's figures of every program, added up or the largest."""
    artifacts = [build(emitted) for emitted in plan.programs]
    launches = [artifact.launch for artifact in artifacts if artifact.launch]
    built = {f"{n}:{k}": v for n, a in enumerate(artifacts) for k, v in _kernels(a, spec).items()}
    text = "".join(artifact.source for artifact in artifacts)
    checks = [check_registers(_built(a, spec), spec, a.emitted.target.threads) for a in artifacts]
    return {
        "compiler": str(device_toolchain(spec.arch)),
        "registers": max(k["registers"] for k in built.values()),
        "spill_bytes": sum(k["spill_bytes"] for k in built.values()),
        "resident_shared_bytes": max(launch.resident_shared_bytes for launch in launches),
        "portable_shared_bytes": max(launch.portable_shared_bytes for launch in launches),
        "workspace_bytes": sum(launch.workspace_bytes for launch in launches),
        "blocks": max(launch.most_units for launch in launches),
        "threads": max(launch.threads for launch in launches),
        "binary_bytes": sum(len(artifact.binary) for artifact in artifacts),
        "waits_in_text": len(re.findall(r"\bck_wait\(", text)),
        "block_barriers_in_text": len(re.findall(r"\bck_block_barrier\(", text)),
        "kernels": built,
        "remarks": [check.remark for check in checks if check.remark],
    }


def _built(artifact: Artifact, spec: DeviceSpec) -> Any:
    """From the cache."""
    return build_device_program(artifact.source, device_toolchain(spec.arch), spec)


def _kernels(artifact: Artifact, spec: DeviceSpec) -> dict[str, dict[str, int]]:
    return {name: asdict(found) for name, found in _built(artifact, spec).kernels.items()}


def prediction(plan: Planned, spec: DeviceSpec) -> dict[str, Any]:
    """The model's figures of a call, and of stock XLA."""
    each = [predict(emitted, spec) for emitted in plan.programs]
    levels = {level for p in each for level in p.bytes_by_level}
    return {
        "plan": plan.name,
        "seconds": plan.seconds,
        "stock_seconds": plan.stock_seconds,
        "unrolled_seconds": plan.unrolled_seconds,
        "launches": sum(p.kernels for p in each),
        "barriers": sum(p.barriers for p in each),
        "flops": sum(p.flops for p in each),
        "bytes": {level: sum(p.bytes_by_level.get(level, 0.0) for p in each) for level in sorted(levels)},
    }
