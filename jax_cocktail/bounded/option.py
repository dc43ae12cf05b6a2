"""The option `max_trips`: a bound for JAX's own `while_loop`, in what `jit` traces.

While a function is traced with the option, `bind` of JAX's primitive makes a bounded loop in place of its
own. This attribute of the public `jax.extend.core.primitives.while_p`, and the names of its parameters, are
all that we rely on beside JAX's documented interfaces. If a release moves them, a test fails
(tests/api/test_bounded_option.py), and JAX raises its own error for the gradient.

The bound is a user context of JAX's, which is part of the keys of its caches: what is traced inside an inner
`jit` with one bound is not found again with another one, or without.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, wraps
from threading import Lock
from typing import Any, TypeVar

import jax
from jax.extend.core.primitives import while_p

from jax_cocktail.recursion.task import is_float

T = TypeVar("T")


_LOCK = Lock()


def _bound() -> Any:
    """The context that holds the bound of this thread. Two threads may ask first at the same time."""
    with _LOCK:
        return _made()


@cache
def _made() -> Any:
    """The context is made with the first bound, and JAX's loop wrapped."""
    context, stock = jax.make_user_context(None), while_p.bind

    def bind(*operands: Any, **params: Any) -> Any:
        most = context.value
        if most is None or not _has_gradient(params):
            return stock(*operands, **params)
        from jax_cocktail.bounded.while_loop import bounded

        return bounded(operands, params, most, None)

    while_p.bind = bind
    return context


def _has_gradient(params: Any) -> bool:
    """True if a loop carries numbers with tangents, and has no side effect."""
    condition, body = params["cond_jaxpr"], params["body_jaxpr"]
    return not (condition.effects or body.effects) and any(map(is_float, body.out_avals))


def bounding(most: int) -> AbstractContextManager[Any]:
    """A context in which JAX's loops are bounded; 0: as outside."""
    return _bound()(most) if most else nullcontext()


def unbounded(function: Callable[..., T]) -> Callable[..., T]:
    """A function whose own loops are JAX's, whatever the bound."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> T:
        if not _made.cache_info().currsize:
            return function(*args, **kwargs)
        with _bound()(None):
            return function(*args, **kwargs)

    return run


def bounded_as_here(function: Callable[..., T]) -> Callable[..., T]:
    """A function that has the bound which is in force now, wherever it is called."""
    if not _made.cache_info().currsize or (most := _bound().value) is None:
        return function

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> T:
        with _bound()(most):
            return function(*args, **kwargs)

    return run
