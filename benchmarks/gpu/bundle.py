"""The bundle of a pack: with it `jax_cocktail.jit` compiles nothing on a card that is elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

import jax_cocktail
from benchmarks.gpu.packed import ANSWERED, AUTO
from benchmarks.gpu.rows import ROWS
from jax_cocktail.codegen.machines import machine_of
from jax_cocktail.config import CACHED, NOW, Options
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.lowering.choice.request import known_survey
from jax_cocktail.lowering.choice.variants import building, prepare
from jax_cocktail.lowering.edge import custom_call
from jax_cocktail.lowering.state import Mark
from jax_cocktail.schedule.policy import shortlist

CARDS = ("NVIDIA H100 80GB HBM3", "NVIDIA H200")  # by the names that jax and the driver give them
OPTIONS = Options(force="cocktail", strict=True, plans=CACHED, compile=NOW)


def make(path: Path, rows: Sequence[str], spec: DeviceSpec, small: bool) -> str:
    """Plans and builds what calls of these rows ask for, on cards with these figures, and writes a bundle.
    Returns its digest; "" if there are no rows. Raises BuildError and BundleError."""
    if not rows:
        return ""
    custom_call.register_cpu()  # a bundle brings the runtime library too, which else would be compiled there
    for name in rows:
        function, arguments = ROWS[name].make(small)
        for precision in (None, "highest") if name in ANSWERED else (None,):
            for card in dict.fromkeys((*CARDS, spec.name)):
                with jax.default_matmul_precision(precision):
                    _build(name, function, arguments, replace(spec, name=card))
    return jax_cocktail.save_bundle(path)


def _build(name: str, function: Callable[..., Any], arguments: Sequence[Any], spec: DeviceSpec) -> None:
    def fresh(*given: Any) -> Any:  # what is traced depends on the precision
        return function(*given)

    closed, mark = (
        jax.make_jaxpr(fresh)(*arguments),
        Mark(name, OPTIONS),
    )  # what is prepared dies with `closed`
    prepared = prepare(closed, name, machine_of(spec))
    found = known_survey(prepared, spec.units, mark)
    plans = [prepared.forced(found.best)]
    if name in AUTO:  # what a call times that nobody forces
        plans += [found.plans[k] for k in shortlist(found.seconds, False)]
        plans += [found.trusted] if found.trusted else []
    with building(prepared, list(dict.fromkeys(plans)), mark):
        pass
