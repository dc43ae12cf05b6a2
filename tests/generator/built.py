"""Checks built programs: against stock XLA, and under sanitizers."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jax_cocktail
from jax_cocktail.compiler import emit
from tests.cpu.sanitizers import SANITIZERS, complaint
from tests.generator.passes import Task, Variant, difference, variants
from tests.generator.programs import program
from tests.generator.tasks import task


def check(seed: int, without: frozenset[int] = frozenset()) -> str:
    """How the built programs of a seed differ from stock XLA, or ""."""
    made, how = program(seed), task(seed, without)
    arguments = made.arguments()
    with jax.enable_x64(made.x64):
        stock = [np.asarray(x) for x in jax.jit(made.function(without))(*arguments)]
        for variant in _on_host(seed):
            candidate = variant.candidate
            options = {"force": "cocktail", "strict": True, "units": candidate.units}
            with variant.installed():
                ours = _called(jax_cocktail.jit(made.function(without), options=options), arguments, seed % 2)
            found = difference(how, [np.asarray(x) for x in ours], stock)
            if found:
                return f"{variant}: {found}"
    return ""


def _called(jitted: Any, arguments: Sequence[Any], beside: int) -> Any:
    """The result of our program, which is built `beside` the caller or while it waits."""
    if not beside:
        return jitted(*arguments)
    with jax_cocktail.options(compile="background"):
        jitted(*arguments)
        jax_cocktail.wait()
        return jitted(*arguments)


def check_sanitized(task: Task) -> str:
    """What sanitizers say of the emitted programs, or ""."""
    for variant in _on_host(task.seed):
        with variant.installed():
            emitted = emit(task.program, candidate=variant.candidate)
        for sanitizer in SANITIZERS:
            with tempfile.TemporaryDirectory() as folder:
                found = complaint(emitted, task.arguments, sanitizer, Path(folder))
            if found:
                return f"{variant}, {sanitizer}: {found}"
    return ""


def _on_host(seed: int) -> list[Variant]:
    return [variant for variant in variants(seed) if not variant.machine.is_gpu]
