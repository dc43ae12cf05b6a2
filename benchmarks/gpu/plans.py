"""Rows as the policy plans them for a card, compiled but not run: facts and predictions."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from jax_cocktail.build_device import build_device_program, check_registers, device_toolchain
from jax_cocktail.codegen.cuda import cuda, launch_plan
from jax_cocktail.compiler import Emitted, build, emit
from jax_cocktail.device import DeviceSpec
from jax_cocktail.lowering.variants import prepare
from jax_cocktail.schedule.policy import candidates, worth_planning
from jax_cocktail.schedule.predict import predict
from jax_cocktail.schedule.price import our_price, stock_price
from jax_cocktail.utask.candidate import Candidate


@dataclass(frozen=True, slots=True)
class Planned:
    """The cheapest candidate. `programs`: one for each region; seconds: the model's, of all of them."""

    candidate: Candidate
    programs: tuple[Emitted, ...]
    seconds: float
    stock_seconds: float
    refused: tuple[str, ...]


def planned(name: str, function: Callable[..., Any], arguments: tuple[Any, ...], spec: DeviceSpec) -> Planned:
    """Plans every candidate that deserves it and takes the cheapest; the others cost nothing more."""
    prepared = prepare(jax.make_jaxpr(function)(*arguments), name, "cuda")
    prices: dict[Candidate, float] = {}
    found: dict[Candidate, tuple[Emitted, ...]] = {}
    refused: list[str] = []
    for candidate in candidates(prepared.programs, spec.units, spec):
        if not worth_planning(candidate, prices):
            continue
        try:
            programs = tuple(
                emit(program, cuda(), candidate=candidate, spec=spec) for program in prepared.programs
            )
        except Exception as error:  # a candidate less
            refused.append(f"{candidate.name}: {type(error).__name__}: {error}")
            continue
        found[candidate] = programs
        prices[candidate] = sum(our_price(e.program, e.mesh.size, spec).seconds for e in programs)
    if not found:
        raise RuntimeError("; ".join(refused) or "nothing to plan")
    best = min(prices, key=lambda candidate: prices[candidate])
    stock = sum(stock_price(program, 1, spec).seconds for program in prepared.programs)
    return Planned(best, found[best], prices[best], stock, tuple(refused))


def facts(plan: Planned, spec: DeviceSpec) -> dict[str, Any]:
    """What the compiler says of every program, added up or the largest; bytes and seconds are predictions."""
    toolchain = device_toolchain(spec.arch)
    kernels: dict[str, dict[str, int]] = {}
    sizes, remarks = [], []
    for number, emitted in enumerate(plan.programs):
        built = build_device_program(build(emitted, spec).source, toolchain, spec)
        remarks.append(check_registers(built, spec, emitted.target.threads).remark)
        sizes.append(len(built.binary))
        for kernel, found in built.kernels.items():
            kernels[f"{number}:{kernel}"] = {k: getattr(found, k) for k in found.__slots__}
    launches = [launch_plan(e.program, e.plan, e.target.threads) for e in plan.programs]
    text = "".join(emitted.source for emitted in plan.programs)
    return {
        "compiler": str(toolchain),
        "registers": max(k["registers"] for k in kernels.values()),
        "spill_bytes": sum(k["spill_bytes"] for k in kernels.values()),
        "resident_shared_bytes": max(launch.resident_shared_bytes for launch in launches),
        "portable_shared_bytes": max(launch.portable_shared_bytes for launch in launches),
        "workspace_bytes": sum(launch.workspace_bytes for launch in launches),
        "blocks": max(launch.most_units for launch in launches),
        "binary_bytes": sum(sizes),
        "waits_in_text": len(re.findall(r"\bck_wait\(", text)),
        "meets_in_text": len(re.findall(r"\bck_meet\(", text)),
        "kernels": kernels,
        "remarks": [remark for remark in remarks if remark],
    }


def prediction(plan: Planned, spec: DeviceSpec) -> dict[str, Any]:
    """What the model says that a call will take, and under stock XLA."""
    each = [predict(emitted, spec) for emitted in plan.programs]
    levels = {level for p in each for level in p.bytes_by_level}
    return {
        "candidate": plan.candidate.name,
        "seconds": plan.seconds,
        "limit_seconds": sum(p.limit_seconds for p in each),
        "stock_seconds": plan.stock_seconds,
        "launches": sum(p.kernels for p in each),
        "barriers": sum(p.barriers for p in each),
        "flops": sum(p.flops for p in each),
        "bytes": {level: sum(p.bytes_by_level.get(level, 0.0) for p in each) for level in sorted(levels)},
        "refused": list(plan.refused),
    }
