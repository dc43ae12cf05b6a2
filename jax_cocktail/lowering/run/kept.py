"""The arguments of a call, kept for the background."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import jax
import numpy as np

from jax_cocktail.lowering.run.queue import Queue

MOST_BYTES = 1 << 30  # of copies of arguments, and of arguments for calls that wait behind another


def kept(
    args: tuple[Any, ...], kwargs: dict[str, Any], given_away: frozenset[int], queue: Queue[Any]
) -> tuple[tuple[Any, ...], dict[str, Any], int]:
    """The arguments as they are now, for later, and the bytes that this takes.

    What the caller gives away or may change is copied. Of what exceeds the limit only the types are kept, and
    nothing can be measured on it. The arguments of the first call in the `queue` count only as far as they
    are copied: they are needed soon.
    """
    leaves, tree = jax.tree.flatten((args, kwargs))
    size = 0
    for number, leaf in enumerate(leaves):
        copied = isinstance(leaf, np.ndarray) or number in given_away
        counts = copied or (len(queue) and id(leaf) not in queue.kept)
        if not (counts and isinstance(leaf, jax.Array | np.ndarray)):
            continue
        leaves[number] = _type_of(leaf)
        if queue.kept_bytes + size + leaf.nbytes <= MOST_BYTES:
            with suppress(Exception):  # there is no memory for a copy
                leaves[number] = leaf.copy() if copied else leaf
                size += leaf.nbytes
    args, kwargs = jax.tree.unflatten(tree, leaves)
    return args, kwargs, size


def _type_of(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = leaf.sharding if getattr(leaf, "committed", False) else None
    weak = getattr(leaf, "weak_type", False)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=weak)


def is_tracer(leaf: Any) -> bool:
    """True if JAX traces or transforms a value."""
    return isinstance(leaf, jax.core.Tracer)
