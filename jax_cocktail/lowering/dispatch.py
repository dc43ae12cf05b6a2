"""What a wrapper calls: one jitted function at first, and later those that the background has made ready.

JAX keeps what it has compiled for a signature. So a call that stock XLA runs until our program is ready needs
another jitted function then. Each signature that has one is told from the others by the few arguments in
which they differ, and only those are looked at.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax

from jax_cocktail.lowering.recent import keep

MOST_ROUTES = 256  # beyond, the signature that switched first runs on stock XLA again
_SCALARS = (bool, int, float, complex)

Described = tuple[Any, ...]  # of a signature: one entry for each argument leaf


class Dispatch:
    """The jitted functions for one function of the user and one set of options.

    Attributes:
      call: what runs a call: a jitted function, or a look-up among several.
      base: a jitted function that takes every signature.
      waits: callers wait for what is compiled; nothing is left to the background.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        """`make` makes a jitted function with nothing compiled. All of them share what was traced."""
        self._make, self.waits = make, False
        self.base = self.call = make()
        self._lock = threading.Lock()
        self._seen: dict[Described, None] = {}
        self._routes: dict[Described, Any] = {}
        self._by_key: dict[Described, Any] = {}
        # Positions of leaves: those that tell signatures apart, and those of numbers that are static.
        self._telling: tuple[int, ...] = ()
        self._static: frozenset[int] = frozenset()

    def fresh(self) -> Any:
        """A jitted function with nothing compiled, to be made ready and passed to `switch`."""
        return self._make()

    def clear_cache(self) -> None:
        """Discards everything compiled."""
        with self._lock:
            jitted = (self.base, *self._routes.values())
            self._seen, self._routes, self._by_key = {}, {}, {}
            self.call = self.base
        for each in jitted:
            each.clear_cache()

    def note(self, args: tuple[Any, ...], kwargs: dict[str, Any], static: Collection[int]) -> Described:
        """Notes the signature of a call that `base` has compiled. `static`: the positions of the leaves of
        static arguments."""
        with self._lock:
            leaves = jax.tree.leaves((args, kwargs))
            self._static |= {n for n in static if isinstance(leaves[n], _SCALARS)}
            signature = tuple(_of(leaf, n in self._static) for n, leaf in enumerate(leaves))
            keep(self._seen, signature, None)
            self._sort()
        return signature

    def switch(self, signature: Described, jitted: Any) -> bool:
        """Lets another jitted function run the calls with a signature, from the next call on. False if the
        cache was cleared since the signature was noted."""
        with self._lock:
            if signature not in self._seen:
                return False
            if len(self._seen) == 1 and not self._routes:
                self.base = self.call = jitted
            else:
                keep(self._routes, signature, jitted, MOST_ROUTES)
                self._sort()
                self.call = self._routed
            return True

    def _sort(self) -> None:
        """Finds what tells the signatures apart."""
        known = [*self._seen, *self._routes]
        widest = max(map(len, known), default=0)
        self._telling = tuple(
            position
            for position in range(widest)
            if len({signature[position] for signature in known if position < len(signature)}) > 1
        )
        self._by_key = {self._key(signature): jitted for signature, jitted in self._routes.items()}

    def _key(self, signature: Sequence[Any]) -> Described:
        size = len(signature)
        return (size, *(signature[position] for position in self._telling if position < size))

    def _routed(self, /, *args: Any, **kwargs: Any) -> Any:
        leaves, static = jax.tree.leaves((args, kwargs)), self._static
        size = len(leaves)
        try:
            key = (size, *(_of(leaves[n], n in static) for n in self._telling if n < size))
            jitted = self._by_key.get(key, self.base)
        except TypeError:  # a static argument that cannot be hashed: JAX raises the error
            jitted = self.base
        return jitted(*args, **kwargs)


def _of(leaf: Any, static: bool) -> Any:
    """What tells a leaf from others. A number that is not static counts by its type. Several signatures may
    look alike, such as those of arrays on other devices: then one of them stays where it is."""
    if isinstance(leaf, _SCALARS):
        return (type(leaf), leaf) if static else type(leaf)
    shape = getattr(leaf, "shape", None)
    return leaf if shape is None else (shape, leaf.dtype)
