"""Programs that often leave by a side exit: stock XLA runs them from the next lowering on, in any process."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from dataclasses import replace

from jax_cocktail import cache
from jax_cocktail.lowering.choice import decisions
from jax_cocktail.lowering.edge import custom_call
from jax_cocktail.memory import MEMORY

FEWEST_CALLS = 8
OFTEN = 0.25  # of the calls; each of them runs on our program first and on stock XLA then


def watch(key: str, decision: decisions.Decision, digests: Sequence[str]) -> None:
    """Watches the programs with these digests, which have side exits, on behalf of a decision for them."""
    if digests:
        MEMORY.watched.keep((str(cache.cache_dir()), key), (decision, tuple(digests)))


def remember(key: str) -> None:
    """Changes the stored decision to stock XLA if one of its programs has often left in this process."""
    here = str(cache.cache_dir()), key
    decision, digests = MEMORY.watched.get(here, (None, ()))
    for exits, calls in map(custom_call.exits, digests):
        if decision is not None and calls >= FEWEST_CALLS and exits > OFTEN * calls:
            why = f"the program left by a side exit in {exits} of {calls} calls"
            decisions.store(key, replace(decision, choice="stock", why=why))
            MEMORY.watched.pop(here, None)


@atexit.register
def _remember_all() -> None:
    for folder, key in list(MEMORY.watched):
        if folder == str(cache.cache_dir()):
            remember(key)
