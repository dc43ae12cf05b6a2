"""The cost of a call beside stock `jax.jit`: overhead by number of arguments, and calls by several threads.

    python -m benchmarks.calls overhead   microseconds per call with 4 and with 64 arguments, and of the
                                          wrapper alone: without a loop, with one, in a scope of options
    python -m benchmarks.calls threads    calls per second by 8 threads, each with a program of its own

`wrapper` is our `jit` around the program of stock XLA, `call` is stock's `jit` around our custom call, and
`ours` is both: what a user of ours has. All are timed in turn. The overhead is that of the fastest rounds:
other processes can only add to it.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import jax_cocktail
from jax_cocktail_tools.models.measure import interleaved_samples

ARGUMENTS = (4, 64)
CALLS, MOST_ROUNDS = 100, 100_000  # calls are per round
THREADS = 8
SCOPED = "in options(...)"
FORCED = {"force": "cocktail", "profile": "off", "compile": "now"}
Record = dict[str, Any]
SIZES = ((64, 4), (1024, 64), (16384, 64))  # elements and trips of the loops that threads call


def added(*arguments: Any) -> Any:
    """A loop with next to nothing to do that reads every argument."""
    return lax.fori_loop(0, 1, lambda _, total: sum(arguments, total), jnp.zeros_like(arguments[0]))


def overhead(seconds: float) -> list[Record]:
    """Microseconds per call of each kind."""
    ways: dict[str, Callable[..., Any]] = {
        "stock": jax.jit(added),
        "wrapper": jax_cocktail.jit(added, options={"force": "stock"}),
        "call": jax.jit(jax_cocktail.jit(added, options=FORCED)),
        "ours": jax_cocktail.jit(added, options=FORCED),
    }
    print(f"{'us':16}" + "".join(f"{name:>10}" for name in ways))
    few, many = ([jnp.full(8, float(n)) for n in range(count)] for count in ARGUMENTS)
    plain = {"stock": jax.jit(_plus), "wrapper": jax_cocktail.jit(_plus, options={"force": "stock"})}
    wrapped = {name: ways[name] for name in plain}
    rows = (
        (f"{len(few)} arguments", ways, few),
        (f"{len(many)} arguments", ways, many),
        ("without a loop", plain, few[:1]),
        ("with a loop", wrapped, few),
        (SCOPED, {**wrapped, "wrapper": jax_cocktail.jit(added)}, few),
    )
    return [_row(*row, seconds) for row in rows]


def _plus(x: Any) -> Any:
    return x + 1


def _row(name: str, ways: Mapping[str, Callable[..., Any]], given: Sequence[Any], seconds: float) -> Record:
    """Times the ways of one call, in turn, and prints them."""
    runs = [partial(_many, f, given, name == SCOPED and way != "stock") for way, f in ways.items()]
    fastest = interleaved_samples(runs, seconds=seconds, most=MOST_ROUNDS).fastest
    times = [time / CALLS * 1e6 for time in fastest]
    print(f"{name:16}" + "".join(f"{time:10.2f}" for time in times), flush=True)
    return {"call": name, **dict(zip(ways, times, strict=True))}


def _many(function: Callable[..., Any], arguments: Sequence[Any], scoped: bool) -> Any:
    with jax_cocktail.options(force="stock") if scoped else nullcontext():
        for _ in range(CALLS):
            result = function(*arguments)
    return result


def threads(seconds: float) -> list[Record]:
    """Calls per second by all threads together, by size of the program."""
    found = []
    print(f"{'calls/s':24}{'stock':>10}{'ours':>10}{'ratio':>8}")
    for elements, trips in SIZES:
        x = jnp.linspace(0, 1, elements)
        sides = [[_program(side, number, trips) for number in range(THREADS)] for side in ("stock", "ours")]
        for function in (f for side in sides for f in side):
            jax.block_until_ready(function(x))
        rates: list[list[float]] = [[], []]
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(rates[0]) < 5:
            for side, functions in enumerate(sides):
                rates[side].append(_rate(functions, x))
        stock, ours = (sorted(each)[len(each) // 2] for each in rates)
        print(f"{f'{elements} x {trips}':24}{stock:10.0f}{ours:10.0f}{ours / stock:8.2f}", flush=True)
        found.append({"elements": elements, "trips": trips, "stock": stock, "ours": ours})
    return found


def _program(side: str, number: int, trips: int) -> Callable[..., Any]:
    """A program of its own for every thread."""

    def function(x: Any) -> Any:
        return lax.fori_loop(0, trips, lambda i, a: jnp.sin(a) * (1 + number / 64) + x, x)

    return jax.jit(function) if side == "stock" else jax_cocktail.jit(function, options=FORCED)


def _rate(functions: Sequence[Callable[..., Any]], x: Any, seconds: float = 0.2) -> float:
    """Calls per second of one round, in which every thread waits for each of its calls."""
    begin, counts = threading.Barrier(len(functions) + 1), [0] * len(functions)
    ended = threading.Event()

    def serve(number: int) -> None:
        begin.wait()
        while not ended.is_set():
            jax.block_until_ready(functions[number](x))
            counts[number] += 1

    workers = [threading.Thread(target=serve, args=(number,)) for number in range(len(functions))]
    for worker in workers:
        worker.start()
    begin.wait()
    start = time.perf_counter()
    time.sleep(seconds)
    ended.set()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - start)


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calls")
    parser.add_argument("what", choices=("overhead", "threads"))
    parser.add_argument("--seconds", type=float, default=5.0, help="time spent timing each row")
    parser.add_argument("--out", type=Path, help="the same figures as JSON")
    options = parser.parse_args()
    found = {"overhead": overhead, "threads": threads}[options.what](options.seconds)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
