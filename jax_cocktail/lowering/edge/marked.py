"""The functions that JAX sees for a function of the user: an outer `jit`, which calls the marked inner one.

They do not keep the user's function alive. So they can be shared: a function that is jitted again, with equal
options, is not traced again, and what it closes over dies with it and with its wrappers.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jax_cocktail.config import SCOPES, Options
from jax_cocktail.lowering.edge import intercept
from jax_cocktail.lowering.edge.adapter import settings_in_force
from jax_cocktail.lowering.edge.notices import MARK_LOST, refuse
from jax_cocktail.lowering.run.dispatch import Dispatch, Reader
from jax_cocktail.lowering.run.tickets import Tickets
from jax_cocktail.lowering.state import STATE, Mark, NotTraced, first_call_begins, marked_name
from jax_cocktail.memory import MEMORY
from jax_cocktail.primitives.jaxprs import open_jaxpr
from jax_cocktail.utask.types import plain

Reference = Callable[[], Any]  # gives the user's function
Static = tuple[tuple[int, ...], tuple[str, ...]]  # the positions and the names of static arguments
_NESTS_TOKENS = jax.__version_info__ >= (0, 12)  # before, JAX cannot lower an inner `jit` with tokens
_NAMES = ("__module__", "__name__", "__qualname__", "__doc__")


@dataclass(frozen=True, eq=False, slots=True)
class _Record:
    """Notes that the outer functions take when they are traced."""

    inner: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    static: dict[tuple[int, tuple[str, ...]], Static] = field(default_factory=dict)
    traced: list[weakref.ref[Any]] = field(default_factory=list)  # the jaxprs, as long as they live

    def static_leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> frozenset[int]:
        """The positions of the leaves of static arguments among all leaves."""
        positions, names = self.static.get((len(args), tuple(sorted(kwargs))), ((), ()))
        return _positions(_flags(args, kwargs, positions, names))


class _StandIn:
    """A function of ours that has the name and the signature of the user's."""

    def __init__(self, call: Callable[..., Any], reference: Reference, name: str) -> None:
        self._call, self._reference = call, reference
        function = reference()
        vars(self).update({n: getattr(function, n) for n in _NAMES if hasattr(function, n)})
        self.__name__ = name

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __repr__(self) -> str:
        return repr(self._reference())

    @property
    def __wrapped__(self) -> Any:
        return self._reference()


class Marked:
    """All jitted functions for one function of the user and one set of JAX's options.

    Raises:
      TypeError: JAX cannot jit the function.
    """

    def __init__(self, function: Callable[..., Any], jit_options: Mapping[str, Any]) -> None:
        if isinstance(function, staticmethod) or inspect.isgeneratorfunction(function):
            jax.jit(function)  # raises the error that says why; our stand-in would hide it
        self.function_name = _name_of(function)
        self._reference = _reference(function)
        self._jit_options = dict(jit_options)
        self._variants: dict[str, Dispatch] = {}
        self._record = _Record()

    def variant(self, options: Options) -> Dispatch:
        """The jitted functions for these options of ours."""
        token = options.token
        if token not in self._variants:
            made = self._reference, self._record, options, self.function_name
            make = functools.partial(_jitted, made, {}, self._jit_options)
            tickets = Tickets(self.function_name, functools.partial(_ticketed, made, self._jit_options))
            reader = Reader(self._record.static_leaves, settings_in_force)
            self._variants[token] = Dispatch(make, reader, tickets)
        return self._variants[token]

    def clear_cache(self) -> None:
        for known in (*self._variants.values(), *self._record.inner):
            known.clear_cache()

    def given_away(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> frozenset[int]:
        """The positions of the leaves that the caller donates among all leaves."""
        return _positions(_flags(args, kwargs, *self._donated()))

    def dynamic_leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        """The array arguments in the order of the inner function's inputs; None if that is unknown."""
        static = self._record.static.get((len(args), tuple(sorted(kwargs))))
        if static is None:
            return None
        positions, names = static
        dynamic = tuple(a for i, a in enumerate(args) if i not in positions)
        return jax.tree.leaves((dynamic, {k: v for k, v in kwargs.items() if k not in names}))

    def donated_leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[bool] | None:
        """A flag for each of `dynamic_leaves`: the caller donates it."""
        static = self._record.static.get((len(args), tuple(sorted(kwargs))))
        if static is None:
            return None
        flags, by_name = _flags(args, kwargs, *self._donated())
        dynamic = tuple(given for i, given in enumerate(flags) if i not in static[0])
        return jax.tree.leaves((dynamic, {k: v for k, v in by_name.items() if k not in static[1]}))

    def _donated(self) -> tuple[set[int], set[str]]:
        """The donated parameters by position and by name. JAX completes each from the other if only one is
        given."""
        numbers, names = (self._jit_options.get(f"donate_arg{what}") for what in ("nums", "names"))
        numbers = () if numbers is None else (numbers,) if isinstance(numbers, int) else numbers
        names = () if names is None else (names,) if isinstance(names, str) else names
        try:
            parameters = list(inspect.signature(self._reference()).parameters)
        except (TypeError, ValueError):  # nothing is known of them
            parameters = []
        if numbers and names:
            return set(numbers), set(names)
        by_number = {name for n, name in enumerate(parameters) if n in numbers}
        by_name = {n for n, name in enumerate(parameters) if name in names}
        return set(numbers) | by_name, set(names) | by_number

    @property
    def compiler_options(self) -> Mapping[str, Any]:
        """The options for XLA's compiler when this function is the outermost jitted one."""
        return dict(self._jit_options.get("compiler_options") or {})

    def inputs_with(self, var: Any) -> tuple[Any, ...]:
        """All inputs of the traced inner function that has the input `var`, unused inputs included."""
        jaxprs = (jaxpr for traced in self._record.traced if (jaxpr := traced()) is not None)
        inputs = (tuple(open_jaxpr(jaxpr).invars) for jaxpr in jaxprs)
        return next((invars for invars in inputs if var in invars), ())


def _flags(
    args: tuple[Any, ...], kwargs: dict[str, Any], positions: Collection[int], names: Collection[str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """For each leaf, whether it belongs to one of the arguments at `positions` or with one of the `names`."""
    positional = tuple(
        jax.tree.map(lambda _, chosen=i in positions: chosen, arg) for i, arg in enumerate(args)
    )
    by_name = {k: jax.tree.map(lambda _, chosen=k in names: chosen, v) for k, v in kwargs.items()}
    return positional, by_name


def _positions(flags: Any) -> frozenset[int]:
    return frozenset(n for n, chosen in enumerate(jax.tree.leaves(flags)) if chosen)


def marked_of(function: Callable[..., Any], jit_options: Mapping[str, Any]) -> Marked:
    """The jitted functions that all wrappers of this function with equal options share.

    Raises:
      TypeError: JAX cannot jit the function.
    """
    number = id(function)
    try:
        key = frozenset(jit_options.items())
        # with a default: what refers to the function
        forgetting = functools.partial(MEMORY.wrapped.pop, number)
        reference = weakref.ref(function, forgetting)
    except TypeError:  # an option cannot be hashed, or nothing can refer weakly to the function
        return Marked(function, jit_options)
    _, known = MEMORY.wrapped.setdefault(number, (reference, {}))
    if key not in known:
        known[key] = Marked(function, jit_options)
    return known[key]


_Made = tuple[Reference, _Record, Options, str]


def _jitted(made: _Made, inner: dict[Static, Any], jit_options: Mapping[str, Any], ticket: int = 0) -> Any:
    """A jitted function with nothing compiled. It refers to no wrapper, so that a wrapper dies with its last
    user. `inner`: what all of them share. `ticket`: the number in the mark."""
    reference, _, _, name = made
    return jax.jit(_StandIn(_outer(*made, inner, ticket), reference, name), **jit_options)


def _ticketed(made: _Made, jit_options: Mapping[str, Any], ticket: int) -> Any:
    """A jitted function with nothing compiled or traced, for calls with a ticket."""
    return _jitted(made, {}, jit_options, ticket)


def _outer(
    reference: Reference,
    record: _Record,
    options: Options,
    name: str,
    inner: dict[Static, Any],
    ticket: int,
) -> Callable[..., Any]:
    """The function that JAX sees: it calls the marked inner `jit`, one of `inner` by its static arguments."""

    def region(*args: Any, **kwargs: Any) -> Any:
        if STATE.beside:  # the user's function runs in the user's threads alone
            raise NotTraced
        if options.max_trips or SCOPES.values:  # of a function with a bound that calls this one, perhaps
            from jax_cocktail.bounded.option import bounding  # few need it

            with bounding(options.max_trips):
                return reference()(*args, **kwargs)
        return reference()(*args, **kwargs)

    stand_in = _StandIn(region, reference, marked_name(options, name, ticket))

    def outer(*args: Any, **kwargs: Any) -> Any:
        # jax calls the function itself under disable_jit, and to find the source of a debug_nans error
        if jax.config.jax_disable_jit or any(map(_is_array, jax.tree.leaves((args, kwargs)))):
            return region(*args, **kwargs)
        first_call_begins()
        # Arguments that JAX has not replaced by tracers are static, however they were declared.
        static = (
            tuple(i for i, arg in enumerate(args) if _is_static(arg)),
            tuple(name for name, arg in kwargs.items() if _is_static(arg)),
        )
        record.static[len(args), tuple(sorted(kwargs))] = static
        if static not in inner:
            inner[static] = jax.jit(
                stand_in, static_argnums=static[0], static_argnames=static[1], keep_unused=True
            )
            record.inner.add(inner[static])
        traced = inner[static].trace(*args, **kwargs)
        if not intercept.reaches(getattr(traced, "fun_name", stand_in.__name__)):
            _lost(traced.jaxpr, Mark(name, options))
        if not _NESTS_TOKENS and _has_tokens(traced.jaxpr.jaxpr):
            return region(*args, **kwargs)
        if not STATE.beside:  # the caller's thread has noted it
            alive = (ref for ref in record.traced if ref() is not None)
            record.traced[:] = *alive, weakref.ref(traced.jaxpr)
        return inner[static](*args, **kwargs)

    return outer


def _has_tokens(jaxpr: Any) -> bool:
    """True if a jaxpr takes, captures or returns tokens, which alone have no shape."""
    values = (*jaxpr.invars, *jaxpr.constvars, *jaxpr.outvars)
    return any(not hasattr(value.aval, "shape") for value in values)


def _lost(jaxpr: Any, mark: Mark) -> None:
    """Reports that stock XLA runs, because our lowering rule will not see the call."""
    report = refuse(jaxpr, mark, MARK_LOST, quiet=mark.options.force == "stock")
    if STATE.reports is not None:
        STATE.reports.append(report)


def _reference(function: Callable[..., Any]) -> Reference:
    try:
        return weakref.ref(function)
    except TypeError:
        return lambda: function


def _name_of(function: Any) -> str:
    while isinstance(function, functools.partial) and not hasattr(function, "__name__"):
        function = function.func
    return plain(str(getattr(function, "__name__", type(function).__name__)))


def _is_array(leaf: Any) -> bool:
    """True for arrays of numbers, which are never static."""
    return isinstance(leaf, jax.Array | np.ndarray) and not isinstance(leaf, jax.core.Tracer)


def _is_static(argument: Any) -> bool:
    leaves = jax.tree.leaves(argument)
    return bool(leaves) and not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
