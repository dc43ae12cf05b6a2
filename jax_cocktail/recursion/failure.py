"""Failure of a recursion that gets too deep or makes more calls than its tape has room for.

The results become NaN, or the minimum of their integer type, so that no program continues with wrong values.
The call raises an error that names the limit and the option to raise. The primitive `failure` returns its
status unchanged unless it is an error. `lowering` registers a lowering per platform that reports the error
(`lowers_to`); on other platforms the primitive does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import batching, mlir

from jax_cocktail.utask.failure import FINE, line_of

DEPTH, CALLS = 1, 2  # the statuses other than `FINE`

failure_p = jex.Primitive("failure")


def _abstract(status: Any, *, text: str) -> Any:
    return status


def _eager(status: Any, *, text: str) -> Any:
    """Raises directly under `jax.disable_jit`, where nothing is lowered."""
    failed = np.asarray(status)
    failed = failed[failed != FINE]
    if failed.size:
        raise jax.errors.JaxRuntimeError(f"OUT_OF_RANGE: jax_cocktail: {line_of(text, int(failed[0]))}")
    return status


def _batch(operands: Any, dims: Any, *, text: str) -> Any:
    """Checks the statuses of all batch elements, any of which may fail."""
    return failure_p.bind(*operands, text=text), dims[0]


failure_p.def_abstract_eval(_abstract)
failure_p.def_impl(_eager)
batching.primitive_batchers[failure_p] = _batch
mlir.register_lowering(failure_p, mlir.lower_fun(lambda status, *, text: status, multiple_results=False))


def lowers_to(rule: Callable[..., Any], platform: str) -> None:
    """Registers the lowering rule (of `jax.interpreters.mlir`) for failures on a platform."""
    mlir.register_lowering(failure_p, rule, platform=platform)


def description(name: str, max_depth: int, max_calls: int) -> str:
    """The error messages, one line for each status except `FINE`. `max_calls`: 0 if calls are not counted."""
    deep = (
        f"{name} called itself more than {max_depth} deep; raise max_depth={max_depth}, or look for a case "
        f"that does not end"
    )
    many = (
        f"{name} was called more than {max_calls} times, and its derivative keeps something of every call; "
        f"raise max_calls={max_calls}"
    )
    return "\n".join((deep, many) if max_calls else (deep,))


def check(status: Any, results: Sequence[Any], text: str) -> list[Any]:
    """Replaces the results by NaN or minima if `status` (int32 scalar) is an error.

    All results depend on the check, so the error is raised whichever of them the program uses.
    """
    status = failure_p.bind(status, text=text)
    filled = lax.cond(status == FINE, lambda x: list(x), lambda x: [nothing(y) for y in x], list(results))
    return list(filled)


def nothing(value: Any) -> Any:
    """The value that replaces a result if a call fails."""
    if jnp.issubdtype(value.dtype, jnp.inexact):
        return jnp.full(value.shape, jnp.nan, value.dtype)
    if jnp.issubdtype(value.dtype, jnp.integer):
        return jnp.full(value.shape, jnp.iinfo(value.dtype).min, value.dtype)
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return value
    return jnp.zeros(value.shape, value.dtype)
