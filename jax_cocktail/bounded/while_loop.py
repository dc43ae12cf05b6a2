"""`while_loop`: a loop with a bound on its trips, which has a gradient."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import source_info_util

from jax_cocktail import cells
from jax_cocktail.bounded.loop import Loop
from jax_cocktail.bounded.option import bounded_as_here, unbounded
from jax_cocktail.bounded.primitive import bounded_p
from jax_cocktail.config import MOST_TRIPS
from jax_cocktail.errors import UnsupportedError
from jax_cocktail.primitives.jaxprs import interpret
from jax_cocktail.recursion.failure import failure_p, nothing
from jax_cocktail.recursion.task import aval_of
from jax_cocktail.utask.failure import FINE
from jax_cocktail.utask.types import plain

T = TypeVar("T")
EXCEEDED = 1  # the status other than `FINE`


def while_loop(
    cond_fun: Callable[[T], Any],
    body_fun: Callable[[T], T],
    init_val: T,
    *,
    max_trips: int,
    checkpoints: int | None = None,
) -> T:
    """Same as `jax.lax.while_loop`, for a loop that ends after at most `max_trips` trips. It has a gradient.

    The number of trips stays data: forward and backward take the trips that the condition asks for, whatever
    the bound. Forward mode, `vmap` and higher derivatives work as for any function, in `jax.jit` as in `jit`.

    For the gradient, the loop keeps the carried values at the begin of each trip that the gradient reads: an
    array of ``max_trips + 1`` rows for each of them. The backward loop computes each trip again. If these
    arrays are larger than 64 MiB, or `checkpoints` is given, the loop keeps only some of the rows, and the
    backward loop computes the trips from one to the next twice.

    Args:
      cond_fun: from the carried values to a boolean: whether there is another trip.
      body_fun: from the carried values to the next ones, of the same shapes and dtypes.
      init_val: the first carried values, a pytree of arrays.
      max_trips: the most trips. 0 is a bound as well (unlike for the option of this name): any trip is an
        error.
      checkpoints: how many rows to keep; None for all of them, or for about the square root of `max_trips`
        if all would be too large. The backward loop then needs memory for ``checkpoints`` rows and
        ``max_trips / checkpoints`` more. From `max_trips` on: all of them, however large they are.

    Returns:
      The last carried values. If the loop would take more than `max_trips` trips, they are NaN, or the
      minimum of their integer type, and the call raises an error that names this option.

    Raises:
      TypeError: `max_trips` or `checkpoints` is no integer, or `body_fun` changes a shape or dtype.
      ValueError: `max_trips` is negative, `checkpoints` is less than 1, or one of them is too large.
      UnsupportedError: a function has a side effect, such as `jax.debug.print`.
      jax.errors.JaxRuntimeError: (by the call) the loop took more trips.

    Examples:
      >>> def root(a):
      ...     step = lambda x: (x + a / x) / 2
      ...     return jax_cocktail.while_loop(lambda x: abs(x * x - a) > 1e-5 * a, step, a, max_trips=50)
      >>> print(f"{jax.grad(root)(4.0):.3f}")
      0.250
    """
    most = _count("max_trips", max_trips, 0)
    kept = None if checkpoints is None else _count("checkpoints", checkpoints, 1)
    return _looped(cond_fun, body_fun, init_val, most, kept)


def _looped(cond_fun: Any, body_fun: Any, init_val: T, most: int, kept: int | None) -> T:
    """The loop as JAX traces it, with ours in place of JAX's."""
    leaves, tree = jax.tree.flatten(init_val)
    leaves = [x if isinstance(x, jax.Array) else jnp.asarray(x) for x in leaves]
    condition, body = bounded_as_here(cond_fun), bounded_as_here(body_fun)
    trace = jax.make_jaxpr(lambda init: lax.while_loop(condition, body, init))
    with jax.disable_jit(False):  # else JAX would run the loop in Python
        traced = unbounded(trace)(init_val)

    def apply(equation: Any, operands: Sequence[Any]) -> Sequence[Any]:
        if equation.primitive.name == "while":
            return bounded(operands, equation.params, most, kept)
        found = equation.primitive.bind(*operands, **equation.params)
        return found if equation.primitive.multiple_results else [found]

    results = interpret(traced, leaves, lambda atom, value: value, apply)
    last: T = jax.tree.unflatten(tree, results)
    return last


def _count(name: str, value: Any, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {value!r}") from None
    if isinstance(value, bool) or not least <= number <= MOST_TRIPS:
        raise ValueError(f"{name} must be an integer from {least} to {MOST_TRIPS}, not {value!r}")
    return number


def bounded(operands: Sequence[Any], params: Any, most: int, checkpoints: int | None) -> list[Any]:
    """Runs a `while` equation of JAX's, which has these parameters, as a bounded loop."""
    counts = params["cond_nconsts"], params["body_nconsts"]
    avals = tuple(map(aval_of, operands))
    name = f"while_loop at {_place()}"
    loop = _loop(params["cond_jaxpr"], params["body_jaxpr"], counts, avals, most, checkpoints, name)
    trips, *last = bounded_p.bind(*operands, loop=loop, elements=())
    text = (
        f"{name} took more than {most} trips; raise max_trips={most}, "
        "or look for a condition that stays true"
    )
    status = failure_p.bind(jnp.where(trips > most, jnp.int32(EXCEEDED), jnp.int32(FINE)), text=text)
    # all results depend on the check, so the error is raised whichever of them the program uses
    checked = (jnp.where(status == FINE, x, nothing(x)) for x in last)
    return [_like(x, aval) for x, aval in zip(checked, params["body_jaxpr"].out_avals, strict=True)]


def _like(value: Any, aval: Any) -> Any:
    """A value that gives way to other types as JAX's own loop says."""
    if not getattr(aval, "weak_type", False):
        return value
    return lax.convert_element_type_p.bind(value, new_dtype=aval.dtype, weak_type=True, sharding=None)


def _place() -> str:
    """The user's line that is traced now."""
    place = str(source_info_util.summarize(source_info_util.current()))
    match = re.match(r"(?s)(.*?)(:\d+)[:\d]*(.*)", place)
    return plain(cells.shown(match[1]) + match[2] + match[3] if match else place)


@functools.lru_cache(maxsize=512)
def _loop(
    condition: Any,
    body: Any,
    counts: tuple[int, int],
    avals: tuple[Any, ...],
    most: int,
    checkpoints: int | None,
    name: str,
) -> Loop:
    """One loop for equal equations, so that what JAX caches by it is found again. It may take one trip more
    than `most`, which tells that it would have gone on."""
    if condition.effects or body.effects:
        effects = sorted({type(effect).__name__ for effect in (*condition.effects, *body.effects)})
        raise UnsupportedError(
            f"{name} has effects ({', '.join(effects)}), and a loop with a bound may have none: "
            "jax.debug.print has one, and so have collectives, axis_index (NamedAxisEffect) and references; "
            "return values together with the result, use jax.pure_callback, or jax.lax.while_loop"
        )
    first, second = counts
    heads, constants, carried = avals[:first], avals[first : first + second], avals[first + second :]
    return Loop(name, most + 1, condition, body, heads, constants, carried, checkpoints=checkpoints)
