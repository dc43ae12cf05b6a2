"""What happens when a recursion gets too deep, or makes more calls than its tape has room for.

Results are then NaN, or the least number of their type, so that nothing goes on with a wrong one; and the
call raises an error that names the limit and the option to raise. `failure` is the primitive for that: a
status in, the same status out, unless it is an error. How it tells is the business of the layer above, which
gives it a lowering for a platform (`lowers_to`); elsewhere it does nothing.
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

DEPTH, CALLS = 1, 2  # beside `FINE`

failure_p = jex.Primitive("failure")


def _abstract(status: Any, *, text: str) -> Any:
    return status


def _eager(status: Any, *, text: str) -> Any:
    """Under `jax.disable_jit`, where nothing is lowered."""
    failed = np.asarray(status)
    failed = failed[failed != FINE]
    if failed.size:
        raise jax.errors.JaxRuntimeError(f"OUT_OF_RANGE: jax_cocktail: {line_of(text, int(failed[0]))}")
    return status


def _batch(operands: Any, dims: Any, *, text: str) -> Any:
    """The statuses of all lanes: any of them may fail."""
    return failure_p.bind(*operands, text=text), dims[0]


failure_p.def_abstract_eval(_abstract)
failure_p.def_impl(_eager)
batching.primitive_batchers[failure_p] = _batch
mlir.register_lowering(failure_p, mlir.lower_fun(lambda status, *, text: status, multiple_results=False))


def lowers_to(rule: Callable[..., Any], platform: str) -> None:
    """From now on a failure on the platform is lowered by this rule of `jax.interpreters.mlir`."""
    mlir.register_lowering(failure_p, rule, platform=platform)


def description(name: str, max_depth: int, max_calls: int) -> str:
    """What to tell the user, one line for every status but `FINE`. `max_calls`: 0 if nobody counts calls."""
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
    """The results, or no numbers if `status` (int32 scalar) says that they are wrong.

    All of them wait for the error: whatever the program goes on to use, it hears of it.
    """
    status = failure_p.bind(status, text=text)
    filled = lax.cond(status == FINE, lambda x: list(x), lambda x: [_nothing(y) for y in x], list(results))
    return list(filled)


def _nothing(value: Any) -> Any:
    if jnp.issubdtype(value.dtype, jnp.inexact):
        return jnp.full(value.shape, jnp.nan, value.dtype)
    if jnp.issubdtype(value.dtype, jnp.integer):
        return jnp.full(value.shape, jnp.iinfo(value.dtype).min, value.dtype)
    return jnp.zeros(value.shape, value.dtype)
