"""What a trip of a loop costs under stock XLA: `while` and `cond`, by mode, with and without work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.gpu import thunks
from benchmarks.gpu.peers import MODES
from benchmarks.gpu.timing import interleaved

FEW, MANY = 20, 220


def _work(x: Any, products: int) -> Any:
    for _ in range(products):
        x = jnp.tanh(x @ x) * 0.5
    return x + 0.001


def unknown_trips(products: int) -> Callable[..., Any]:
    """A while loop that asks for its condition before every trip."""

    def function(x: Any, trips: Any) -> Any:
        return lax.while_loop(lambda s: s[0] < trips, lambda s: (s[0] + 1, _work(s[1], products)), (0, x))[1]

    return function


def branches(products: int) -> Callable[..., Any]:
    """The same loop with a branch in every trip, whose side depends on the data."""

    def function(x: Any, trips: Any) -> Any:
        def step(state: Any) -> Any:
            n, x = state
            return n + 1, lax.cond(x[0, 0] > 0.5, lambda x: x * 0.5, lambda x: _work(x, products), x)

        return lax.while_loop(lambda s: s[0] < trips, step, (0, x))[1]

    return function


def known_trips(products: int) -> Callable[..., Any]:
    """A scan: XLA knows the number of trips. `trips` is a Python number."""

    def function(x: Any, trips: int) -> Any:
        return lax.fori_loop(0, trips, lambda _, x: _work(x, products), x)

    return function


CASES: dict[str, tuple[Callable[[int], Callable[..., Any]], int]] = {
    "while, empty body": (unknown_trips, 0),
    "while, 5 products": (unknown_trips, 5),
    "scan, empty body": (known_trips, 0),
    "scan, 5 products": (known_trips, 5),
    "while with cond": (branches, 1),
}


def measure(name: str, dump: str, small: bool = False) -> dict[str, Any]:
    """Seconds of one trip in each mode, and whether XLA captured anything."""
    make, products = CASES[name]
    x = jnp.asarray(np.random.default_rng(3).standard_normal((64, 64)).astype(np.float32) * 0.1)
    found: dict[str, Any] = {}
    for mode, options in MODES.items():
        if mode == "graphs_unrolled" and make is not known_trips:
            continue
        before = thunks.dumps(dump)
        runs = [_compiled(make(products), x, trips, options, make is known_trips) for trips in (FEW, MANY)]
        few, many = interleaved(dict(enumerate(runs)), 0.05 if small else 1.0).values()
        record: dict[str, Any] = {"seconds_per_trip": (many - few) / (MANY - FEW)}
        if dump:
            record |= thunks.captured_of(options, thunks.dumps(dump) - before)
        found[mode] = record
    return found


def _compiled(
    function: Callable[..., Any], x: Any, trips: int, options: dict[str, Any], static: bool
) -> Callable[[], Any]:
    lowered = jax.jit(function, static_argnums=(1,) if static else ()).lower(x, trips)
    executable = lowered.compile(compiler_options=options or None)
    arguments = (x,) if static else (x, trips)
    return lambda: executable(*arguments)
