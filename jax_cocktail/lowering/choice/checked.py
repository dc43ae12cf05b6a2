"""The option plans="checked": whatever the plan cache supplies is planned again and compared.

ATB compares the tiling of a kernel with a fresh one in the same way. If they differ, the key of an entry
lacks something that the plan depends on, or somebody has changed the cache.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING

from jax_cocktail.build.executable import Executable
from jax_cocktail.errors import StalePlanError
from jax_cocktail.lowering.choice.plan_cache import StockKernels, Survey
from jax_cocktail.lowering.state import Mark

if TYPE_CHECKING:
    from jax_cocktail.compiler import Artifact

_ADVICE = (
    'please report this, with both; until then plans="fresh" leaves the plan cache alone, and'
    " jax_cocktail.clear_cache() empties it"
)


def check_survey(known: Survey, fresh: Survey, mark: Mark) -> None:
    """Raises StalePlanError if a survey from the plan cache is not the one that is made now."""
    if known != fresh:
        raise StalePlanError(
            f"{mark.function}: the plan cache compares the candidates otherwise than planning does now:"
            f" {_prices_text(known)}, and now {_prices_text(fresh)}; {_ADVICE}"
        )


def _prices_text(survey: Survey) -> str:
    pairs = zip(survey.plans, survey.seconds, strict=True)
    return ", ".join(f"{plan.name} {seconds * 1e6:.3f} us" for plan, seconds in pairs)


def check_kernels(known: StockKernels | None, fresh: StockKernels | None, mark: Mark) -> None:
    """Raises StalePlanError if XLA makes other kernels now than the plan cache knows."""
    if known != fresh:
        raise StalePlanError(
            f"{mark.function}: the plan cache says {known} of XLA, and now it is {fresh}; {_ADVICE}"
        )


def check_program(known: Executable, fresh: Artifact, mark: Mark, dump: Callable[[str], str]) -> None:
    """Raises StalePlanError if a program from the plan cache is not the one that is planned now. `dump`
    writes this one to a folder, and returns its place there."""
    names = (field.name for field in fields(Executable) if field.name != "path")
    differ = [name for name in names if getattr(known, name) != getattr(fresh.executable, name)]
    if not differ:
        return
    folder = dump(mark.options.dump_to or tempfile.mkdtemp(prefix="jax_cocktail_stale_"))
    raise StalePlanError(
        f"{mark.function}: the program in the plan cache is not the one that planning makes now; they differ"
        f" in {', '.join(differ)}. The cached one (fingerprint {known.digest[:16]}) is {known.path}, with its"
        f" source beside it. All stages of the new one (fingerprint {fresh.digest[:16]}) are in {folder};"
        f" {_ADVICE}"
    )
