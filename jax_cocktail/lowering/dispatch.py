"""What a wrapper calls: one jitted function at first, and later those that the background has made ready.

JAX keeps what it has compiled for a signature. So a call that stock XLA runs until our program is ready needs
another jitted function then. Each signature that has one is told from the others by the few arguments in
which they differ, and only those are looked at.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jax_cocktail.lowering.recent import keep

MOST_ROUTES = 256  # beyond, the signature that switched first runs on stock XLA again
_SCALARS = (bool, int, float, complex)

Described = tuple[Any, ...]  # of a signature: one entry for each argument leaf


class Dispatch:
    """The jitted functions for one function of the user and one set of options.

    Attributes:
      call: what runs a call: a jitted function, or a `_Router` among several.
      base: a jitted function that takes every signature.
      waiting: signatures whose callers wait for what is compiled; they are not left to the background.
      generation: how often the cache was cleared.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        """`make` makes a jitted function with nothing compiled. All of them share what was traced."""
        self.fresh = make
        self.waiting: set[Described] = set()
        self.generation = 0
        self.base = self.call = make()
        self._lock = threading.Lock()
        self._seen: dict[Described, None] = {}
        self._routes: dict[Described, Any] = {}
        self._static: frozenset[int] = frozenset()  # the positions of the leaves of static arguments

    def clear_cache(self) -> None:
        """Discards everything compiled."""
        with self._lock:
            jitted = (self.base, *self._routes.values())
            self._seen, self._routes = {}, {}
            self.waiting.clear()
            self.generation += 1
            self.call = self.base
        for each in jitted:
            each.clear_cache()

    def note(self, args: tuple[Any, ...], kwargs: dict[str, Any], static: Collection[int]) -> Described:
        """Notes the signature of a call that `base` has compiled. `static`: the positions of the leaves of
        static arguments."""
        with self._lock:
            leaves = jax.tree.leaves((args, kwargs))
            self._static |= frozenset(static)
            signature = tuple(_of(leaf, n in self._static) for n, leaf in enumerate(leaves))
            keep(self._seen, signature, None)
            if self._routes:
                self._route()
        return signature

    def switch(self, signature: Described, jitted: Any, generation: int) -> bool:
        """Lets another jitted function run the calls with a signature, from the next call on. False if the
        cache was cleared since the `generation`."""
        with self._lock:
            if generation != self.generation:
                return False
            keep(self._seen, signature, None)
            if len(self._seen) == 1 and not self._routes:
                self.base = self.call = jitted
            else:
                keep(self._routes, signature, jitted, MOST_ROUTES)
                self._route()
            return True

    def _route(self) -> None:
        known = [*self._seen, *self._routes]
        widest = max(map(len, known))
        telling = tuple(n for n in range(widest) if len({s[n] for s in known if n < len(s)}) > 1)
        jitted = {_key(signature, telling): jitted for signature, jitted in self._routes.items()}
        self.call = _Router(self.base, jitted, telling, self._static)


@dataclass(frozen=True, eq=False, slots=True)
class _Router:
    """Chooses a jitted function by the leaves at the positions `telling`, which tell the signatures apart.

    `base`: for all others; `static`: the positions of the leaves of static arguments.
    """

    base: Any
    jitted: Mapping[Described, Any]
    telling: tuple[int, ...]
    static: frozenset[int]

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        leaves = jax.tree.leaves((args, kwargs))
        size = len(leaves)
        try:
            key = (size, *(_of(leaves[n], n in self.static) for n in self.telling if n < size))
            jitted = self.jitted.get(key, self.base)
        except TypeError:  # a static argument that cannot be hashed: JAX raises the error
            jitted = self.base
        return jitted(*args, **kwargs)


def _key(signature: Described, telling: tuple[int, ...]) -> Described:
    size = len(signature)
    return (size, *(signature[n] for n in telling if n < size))


def _of(leaf: Any, static: bool) -> Any:
    """What tells a leaf from others: its value if it is static, else its type. Several signatures may look
    alike, such as those of arrays on other devices: then one of them stays where it is."""
    if static and not isinstance(leaf, jax.Array | np.ndarray):  # those are never static
        return type(leaf), leaf
    if isinstance(leaf, _SCALARS):
        return type(leaf)
    return getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
