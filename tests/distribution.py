"""Says for every loop of a program which transforms fire, and why the others do not."""

from __future__ import annotations

from jax_cocktail.device.tuning import LOOPS, LoopTuning
from jax_cocktail.schedule.loops.distribution.distribute import distribute
from jax_cocktail.schedule.loops.layers import layers
from jax_cocktail.schedule.simplify.hoist import hoist
from jax_cocktail.schedule.simplify.simplify import simplify
from jax_cocktail.utask.ir import UProgram
from jax_cocktail.utask.remarks import Remark


def explain_distribution(program: UProgram, limits: LoopTuning = LOOPS) -> list[str]:
    """One line per loop and transform, with the line of the user's program; `program` as translated.

    Loops that have been unrolled have no line of their own beyond the one that says so.
    """
    heard: list[Remark] = []
    separated = layers(simplify(program), limits, heard.append)
    distribute(hoist(separated, heard.append), limits, heard.append)
    return [str(remark) for remark in dict.fromkeys(heard)]
