"""The card that is here: NVIDIA's as its driver describes it, AMD's as jax does."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax

from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.lowering.edge import gpu_call
from jax_cocktail.plain import from_plain, to_plain
from jax_cocktail.runtime.cuda import card as gpu_card
from jax_cocktail.runtime.cuda import measure as gpu_measure
from jax_cocktail.runtime.drivers import HIP

ROCM = "rocm"
UNMEASURED = "microbenchmarks are written for CUDA's driver; predictions take the figures of the table"


def is_amd() -> bool:
    """True if CUDA's driver has no card, and jax has an AMD card in this process. Asking jax starts its
    backends, so processes that only measure NVIDIA's card do not."""
    return not gpu_card.count()[0] and bool(gpu_call.gpu(platform=ROCM).kind)


def description() -> tuple[dict[str, Any], str]:
    """What the card says of itself; if there is none, nothing and the reason."""
    number, why = gpu_card.count()
    if number:
        with gpu_card.Card() as card:
            facts = {**asdict(card.facts), "arch": card.facts.arch}
        return {**facts, "cards": number, "platform": "cuda"}, ""
    if not is_amd():
        return {}, f"{why}, and jax has no AMD card"
    found, devices = gpu_call.gpu(platform=ROCM), jax.local_devices(backend=ROCM)
    return {
        "name": found.kind,
        "driver": gpu_call.driver_version(ROCM),
        "memory_bytes": (devices[0].memory_stats() or {}).get("bytes_limit", 0),
        "attributes": {"units": found.units},
        "arch": found.arch,
        "cards": len(devices),
        "platform": ROCM,
    }, ""


def keep_spec(work: Path) -> DeviceSpec:
    """The figures of the AMD card, which processes without jax's GPU read, too."""
    found = gpu_call.spec_of(platform=ROCM)
    _path(work).write_text(json.dumps(to_plain(found), indent=1) + "\n")
    return found


def spec(work: Path) -> DeviceSpec:
    """The figures of the card, measured ones if there are any. `work`: folder of the run."""
    if _path(work).exists():
        return from_plain(DeviceSpec, json.loads(_path(work).read_text()), "a device")
    facts = gpu_card.describe()
    return gpu_measure.kept(facts.name, facts.arch) or gpu_card.spec_of(facts)


def arch() -> str:
    """The architecture that this process compiles for."""
    return gpu_call.gpu(platform=ROCM if is_amd() else gpu_call.CUDA).arch


def release(card: dict[str, Any]) -> str:
    """The driver of a card's description, with its release."""
    number = card["driver"]
    if card.get("platform", "cuda") == ROCM:
        return HIP.release(number)
    return f"CUDA driver {number // 1000}.{number % 1000 // 10}"


def _path(work: Path) -> Path:
    return work / "card.json"
