"""From a seed to a translated program."""

from __future__ import annotations

import jax

from jax_cocktail.lowering.edge import adapter
from jax_cocktail.primitives import translate
from tests.generator.draw import Draw
from tests.generator.passes import Task
from tests.generator.programs import program


def task(seed: int, without: frozenset[int] = frozenset()) -> Task:
    """The program of a seed, translated; some of its operands may be overwritten."""
    made, draw = program(seed), Draw(seed, 4)
    arguments = made.arguments()
    with jax.enable_x64(made.x64):
        traced = adapter.program(jax.make_jaxpr(made.function(without))(*arguments))
    donated = tuple(n for n in range(len(arguments)) if draw.chance(0.3))
    translated = translate(traced, f"random_{seed}", donated)
    exact = tuple(kind.exact for kind in made.kinds)
    return Task(seed, translated, tuple(arguments), exact, made.tolerance)
