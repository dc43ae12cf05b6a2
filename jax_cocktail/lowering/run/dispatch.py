"""The callee of a wrapper: one jitted function at first, and later those that the background has made ready.

JAX keeps what it has compiled for a signature. So a call that stock XLA runs until our program is ready needs
another jitted function then. A signature has all that JAX's own key has; without that, calls that JAX tells
apart would displace each other. A call is told from others by the few parts in which their signatures differ.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.api_util import shaped_abstractify

from jax_cocktail.lowering.run.tickets import Tickets, transformations
from jax_cocktail.memory import Recent

MOST_SIGNATURES = 4096  # as many as JAX keeps of a function; the oldest of more is compiled anew

Leaf = tuple[Any, Any, Any, Any]  # shape, dtype, weak type, and where it is committed; or a static value
Place = tuple[int, int]  # of a part of a signature: the number of a leaf, and that of its part
_TREE, _SETTINGS = (-1, 0), (-1, 1)


@dataclass(frozen=True, slots=True)
class Signature:
    """The key of what JAX compiles for a call.

    Attributes:
      tree: the tree of the arguments, with the names of those that are passed by name.
      settings: JAX's settings in force.
      leaves: one entry for each leaf of the tree.
    """

    tree: Any
    settings: Any
    leaves: tuple[Leaf, ...]

    def part(self, place: Place) -> Any:
        """The part at a place; None if there is no such leaf."""
        number, part = place
        if number < 0:
            return (self.tree, self.settings)[part]
        return self.leaves[number][part] if number < len(self.leaves) else None


@dataclass(frozen=True, eq=False, slots=True)
class Reader:
    """Reads the signatures of calls.

    Attributes:
      static: finds the positions of the leaves of static arguments.
      settings: finds JAX's settings in force.
    """

    static: Callable[[tuple[Any, ...], dict[str, Any]], Collection[int]]
    settings: Callable[[], Any]

    def signature(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], static: Collection[int] | None = None
    ) -> Signature:
        """The signature of a call. `static`: as the function of this name finds it, if that is known.

        Raises:
          TypeError: an argument is none of JAX's.
        """
        static = self.static(args, kwargs) if static is None else static
        leaves, tree = jax.tree.flatten((args, kwargs))
        return self.signature_of(leaves, tree, static)

    def signature_of(self, leaves: Sequence[Any], tree: Any, static: Collection[int]) -> Signature:
        """The signature of a call with these leaves. Raises TypeError as `signature` does."""
        found = tuple(_leaf(leaf, number in static) for number, leaf in enumerate(leaves))
        return Signature(tree, self.settings(), found)


class Dispatch:
    """The jitted functions for one function of the user and one set of options.

    A signature changes over from one to another, in which it was not compiled. So two to four are enough,
    however many signatures there are.

    Attributes:
      call: what runs a call: a jitted function, or a `_Router` among several.
      base: the jitted function for calls with a new signature.
      generation: how often the cache was cleared.
      transforms: a call was made that JAX transforms (see `transformed`).
    """

    def __init__(self, make: Callable[[], Any], reader: Reader, tickets: Tickets) -> None:
        """`make` makes a jitted function with nothing compiled. All of them share what was traced."""
        self.fresh = make
        self._reader = reader
        self._tickets = tickets
        self.transforms = False
        self._lock = threading.RLock()
        self.generation = -1
        self._start()

    def _start(self) -> None:
        self.base = self.call = self.fresh()
        self.generation += 1
        self._functions = {0: self.base}
        self._number: Recent[Signature, int] = Recent(MOST_SIGNATURES)  # of the function that runs it
        # the functions whose lowering was stopped
        self._stopped: Recent[Signature, frozenset[int]] = Recent(MOST_SIGNATURES)
        self._settled: Recent[Signature, None] = Recent(MOST_SIGNATURES)
        self._remarks: Recent[Signature, str] = Recent(MOST_SIGNATURES)
        self._static: dict[Any, frozenset[int]] = {}  # the positions of static leaves, by tree
        self._telling: frozenset[Place] = frozenset()  # where signatures differ from the first one

    def clear_cache(self) -> None:
        """Discards everything compiled."""
        with self._lock:
            jitted = (*self._functions.values(), *self._tickets.clear())
            self._start()
        for each in jitted:
            each.clear_cache()

    def transformed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The jitted function for a call that JAX transforms while it is made; None if this is none."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        static = self._reader.static(args, kwargs)
        dynamic = (leaf for number, leaf in enumerate(leaves) if number not in static)
        found = tuple(map(transformations, dynamic))
        if None in found or not any(found):
            return None
        try:
            signature = self._reader.signature_of(list(map(_type_of, leaves)), tree, static)
            return self._tickets.function((signature, found))
        except TypeError:  # an argument is none of JAX's, or a static one cannot be hashed
            return None

    def note(self, args: tuple[Any, ...], kwargs: dict[str, Any], callee: Any) -> Signature:
        """Notes the signature of a call that is compiled now. `callee`: `call` at its beginning."""
        static = frozenset(self._reader.static(args, kwargs))
        signature = self._reader.signature(args, kwargs, static)
        jitted = callee.chosen(args, kwargs) if isinstance(callee, _Router) else callee
        with self._lock:
            if signature not in self._number:
                if static:
                    self._static[signature.tree] = static
                self._telling |= self._different(signature)
                self._number.keep(signature, self._numbered(jitted))
                self._route()
        return signature

    def is_settled(self, signature: Signature) -> bool:
        """True if a signature has changed over, which it does once. What JAX tells apart nevertheless is
        compiled where the calls run now, and the caller waits."""
        return signature in self._settled

    def function_of(self, signature: Signature) -> Any:
        """The jitted function that runs calls with a signature."""
        with self._lock:
            return self._functions.get(self._number.get(signature, -1), self.base)

    def tell(self, signature: Signature, remark: str) -> None:
        """Notes what runs calls with a signature, if it is not what was chosen."""
        self._remarks.keep(signature, remark)

    def remark(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The note about a call; "" if there is none."""
        try:
            return self.told(self._reader.signature(args, kwargs)) if self._remarks else ""
        except TypeError:  # nothing was traced yet that tells which arguments are static
            return ""

    def told(self, signature: Signature) -> str:
        """The note about a signature; "" if there is none."""
        return self._remarks.get(signature, "")

    def successor(self, signature: Signature) -> Any:
        """The jitted function that calls with a signature change over to."""
        with self._lock:
            others = self._stopped.get(signature, frozenset()) | {self._number.get(signature, self._first())}
            for number, jitted in self._functions.items():
                if number not in others:
                    return jitted
            self._functions[max(self._functions) + 1] = jitted = self.fresh()
            return jitted

    def divide(self, signature: Signature) -> Any:
        """The jitted function for a signature whose lowering was stopped: JAX keeps nothing that the other
        one lowers for it again."""
        with self._lock:
            stopped = self._stopped.get(signature, frozenset())
            number = self._number.get(signature, self._first())
            if stopped - {number}:  # by another thread, whose function this one shares
                return self._functions[number]
            self._stopped.keep(signature, frozenset({number}))
            jitted = self.successor(signature)
            self._number.keep(signature, self._numbered(jitted))
            self._telling |= self._different(signature)
            self._route()
            return jitted

    def switch(self, signature: Signature, jitted: Any, generation: int) -> bool:
        """Lets the successor run the calls with a signature, from the next call on. False if the cache was
        cleared since the `generation`."""
        with self._lock:
            if generation != self.generation:
                return False
            self._telling |= self._different(signature)
            self._number.keep(signature, self._numbered(jitted))
            self._settled.keep(signature, None)
            self._drop_unused()
            self._route()
            return True

    def drop_unused(self) -> None:
        """Drops the jitted functions that no call runs, with all that is compiled there."""
        with self._lock:
            self._drop_unused()

    def _drop_unused(self) -> None:
        used = {*self._number.values()} or {0}
        self._functions = {number: each for number, each in self._functions.items() if number in used}

    def _different(self, signature: Signature) -> frozenset[Place]:
        """The places where a signature differs from the first one that is known."""
        first = next(iter(self._number), signature)
        widest = max(len(first.leaves), len(signature.leaves))
        places = _TREE, _SETTINGS, *((n, part) for n in range(widest) for part in range(4))
        return frozenset(place for place in places if first.part(place) != signature.part(place))

    def _first(self) -> int:
        return min(self._functions)

    def _numbered(self, jitted: Any) -> int:
        """The number of a jitted function; that of the first if it was dropped."""
        return next((n for n, each in self._functions.items() if each is jitted), self._first())

    def _route(self) -> None:
        self.base = self._functions[self._first()]
        if len({*self._number.values()}) == 1:
            self.call = self._functions[next(iter(self._number.values()))]
            return
        telling = tuple(sorted(self._telling))
        known = {each: self._functions[number] for each, number in self._number.items()}
        jitted = {tuple(map(each.part, telling)): function for each, function in known.items()}
        self.call = _Router(self._reader, self.base, known, jitted, telling, self._static)


@dataclass(frozen=True, eq=False, slots=True)
class _Router:
    """Chooses a jitted function by the parts of a call at the places `telling`: the signatures differ there.

    So may arguments that JAX takes for equal, such as an array of NumPy and one of JAX. Then the whole
    signature is looked up, once.
    """

    reader: Reader
    base: Any  # for calls with a new signature
    known: Mapping[Signature, Any]
    jitted: dict[tuple[Any, ...], Any]
    telling: tuple[Place, ...]
    static: Mapping[Any, frozenset[int]]

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.chosen(args, kwargs)(*args, **kwargs)

    def chosen(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The jitted function for a call."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        try:
            static = self.static.get(tree, frozenset()) if self.static else frozenset[int]()
            key = tuple(self._part(place, leaves, tree, static) for place in self.telling)
            return self.jitted.get(key) or self._learn(key, args, kwargs)
        except TypeError:  # a static argument that cannot be hashed: JAX raises the error
            return self.base

    def _part(self, place: Place, leaves: list[Any], tree: Any, static: frozenset[int]) -> Any:
        number, part = place
        if number >= len(leaves):
            return None
        if number < 0:
            return tree if place == _TREE else self.reader.settings()
        leaf = leaves[number]
        if number in static and _may_be_static(leaf):
            return _static(leaf)[part]
        return _PARTS[part](leaf)

    def _learn(self, key: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        jitted = self.known.get(self.reader.signature(args, kwargs))
        if jitted is None:
            return self.base
        if len(self.jitted) < 2 * MOST_SIGNATURES:
            self.jitted[key] = jitted
        return jitted


def _placed(leaf: Any) -> Any:
    return leaf.sharding if getattr(leaf, "committed", False) else None


_PARTS: tuple[Callable[[Any], Any], ...] = (
    lambda leaf: getattr(leaf, "shape", type(leaf)),
    lambda leaf: getattr(leaf, "dtype", type(leaf)),
    lambda leaf: getattr(leaf, "weak_type", type(leaf)),  # NumPy has none
    _placed,
)


def _leaf(leaf: Any, static: bool) -> Leaf:
    if static and _may_be_static(leaf):
        return _static(leaf)
    aval = shaped_abstractify(leaf)  # a token has no shape
    return *(getattr(aval, part, type(aval)) for part in ("shape", "dtype", "weak_type")), _placed(leaf)


def _type_of(leaf: Any) -> Any:
    """The type of a transformed value; anything else as it is."""
    if not isinstance(leaf, jax.core.Tracer):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=getattr(leaf.aval, "weak_type", False))


def _may_be_static(leaf: Any) -> bool:
    return not isinstance(leaf, jax.Array | np.ndarray)


def _static(leaf: Any) -> Leaf:
    return type(leaf), leaf, False, None
