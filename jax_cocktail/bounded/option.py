"""The option `max_trips`: a bound for JAX's own `while_loop`, in what `jit` traces.

While a function is traced with the option, `bind` of JAX's primitive makes a bounded loop in place of its
own. This attribute of the public `jax.extend.core.primitives.while_p`, and the names of its parameters, are
all that we rely on beside JAX's documented interfaces. If a release moves them, a test fails
(tests/api/test_bounded_option.py), and JAX raises its own error for the gradient.

The bound is a user context of JAX's, which is part of the keys of its caches: what is traced inside an inner
`jit` with one bound is not found again with another one, or without. A function of ours that is called
meanwhile finds the bound among the enclosing blocks of options, and so may set another one, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, wraps
from threading import Lock
from typing import Any, TypeVar

import jax
import jax.extend.core as jex
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core.primitives import while_p

from jax_cocktail import config
from jax_cocktail.primitives.jaxprs import open_jaxpr
from jax_cocktail.recursion.task import is_float

T = TypeVar("T")
_WITHOUT = "jax_cocktail: max_trips=0"

_LOCK = Lock()


def _bound() -> Any:
    """The context that holds the bound of this thread: None outside of what has one, and 0 where the bound is
    switched off inside. Two threads may ask first at the same time."""
    with _LOCK:
        return _made()


@cache
def _made() -> Any:
    """The context is made with the first bound, and JAX's loop wrapped."""
    context, stock = jax.make_user_context(None), while_p.bind

    def bind(*operands: Any, **params: Any) -> Any:
        most = context.value
        if most is None or not _may_have_bound(params):
            return stock(*operands, **params)
        if not most:
            return stock(*operands, **_without_bound(params))
        from jax_cocktail.bounded.while_loop import bounded

        return bounded(operands, params, most, None)

    def inside(most: int) -> AbstractContextManager[Any]:
        return nullcontext() if context.value is None else context(most)

    while_p.bind = bind
    config.follow("max_trips", inside)
    return context


def _may_have_bound(params: Any) -> bool:
    """True if a loop carries numbers with tangents, has no side effect, and nobody has switched its bound
    off."""
    condition, body = params["cond_jaxpr"], params["body_jaxpr"]
    if condition.effects or body.effects or not any(map(is_float, body.out_avals)):
        return False
    return all(each.params.get("name") != _WITHOUT for each in open_jaxpr(condition).eqns)


def _without_bound(params: Any) -> dict[str, Any]:
    """The parameters of a loop that never has a bound. JAX's rules (`vmap`, `jvp`) bind a loop again, perhaps
    where there is one: a name in the condition, which they keep, says so and changes no value."""
    condition = params["cond_jaxpr"]
    test = jex.jaxpr_as_fun(condition)
    named = jax.make_jaxpr(lambda *v: checkpoint_name(test(*v)[0], _WITHOUT))(*condition.in_avals)
    return {**params, "cond_jaxpr": named}


@contextmanager
def bounding(most: int) -> Iterator[None]:
    """A context in which JAX's loops are bounded, and the functions of ours that are called; 0: they are not,
    whatever is around."""
    with config.options(max_trips=most), _bound()(most) if most else nullcontext():
        yield


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
