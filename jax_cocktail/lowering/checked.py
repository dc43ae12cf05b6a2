"""The option plans="checked": whatever the plan cache supplies is planned again and compared.

ATB compares the tiling of a kernel with a fresh one in the same way. A difference is a bug of ours, or a cache
that somebody has changed: the key of an entry then lacks something that the plan depends on.
"""

from __future__ import annotations

from dataclasses import fields

from jax_cocktail.compiler import Artifact, Executable
from jax_cocktail.errors import StalePlanError
from jax_cocktail.lowering.plan_cache import Survey

_ADVICE = (
    'please report this, with both; until then plans="fresh" leaves the plan cache alone, and'
    " jax_cocktail.clear_cache() empties it"
)


def check_survey(known: Survey, fresh: Survey, function: str) -> None:
    """Raises StalePlanError if a survey from the plan cache is not that of today."""
    if known != fresh:
        raise StalePlanError(
            f"{function}: the plan cache has another comparison of the candidates than planning makes now: it"
            f" has {_told(known)}, and now it is {_told(fresh)}; {_ADVICE}"
        )


def _told(survey: Survey) -> str:
    pairs = zip(survey.plans, survey.seconds, strict=True)
    return ", ".join(f"{plan.name} {seconds * 1e6:.3f} us" for plan, seconds in pairs)


def differences(known: Executable, fresh: Executable) -> tuple[str, ...]:
    """What differs in two programs, apart from where they lie."""
    names = (field.name for field in fields(Executable) if field.name != "path")
    return tuple(name for name in names if getattr(known, name) != getattr(fresh, name))


def stale_program(known: Executable, fresh: Artifact, function: str, dump: str) -> StalePlanError:
    """The error for a program from the plan cache that differs from the one that was planned now."""
    found = ", ".join(differences(known, fresh.executable))
    return StalePlanError(
        f"{function}: the program in the plan cache is not the one that planning makes now; they differ in"
        f" {found}. The cached one (fingerprint {known.digest[:16]}) is {known.path}, with its source beside"
        f" it; every stage of the new one (fingerprint {fresh.digest[:16]}) is in {dump}; {_ADVICE}"
    )
