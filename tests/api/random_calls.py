"""Random sequences of calls that change over, compared with `jax.jit`: trees, shapes, weak types, names,
static and donated arguments, settings, devices and threads. Run it with two devices:

    XLA_FLAGS=--xla_force_host_platform_device_count=2 python -m tests.api.random_calls SEED COUNT
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jax_cocktail
from tests.api.beside import OPTIONS

SETTINGS: tuple[Callable[[], Any], ...] = (
    contextlib.nullcontext,
    lambda: jax.default_matmul_precision("highest"),
    lambda: jax.enable_x64(True),
    lambda: jax.numpy_dtype_promotion("strict"),
)
LEAVES: tuple[Callable[[], Any], ...] = (
    lambda: jnp.arange(4.0),
    lambda: jnp.ones((2, 3)),
    lambda: jnp.arange(4, dtype=jnp.int32),
    lambda: np.arange(4.0),
    lambda: np.float32(2),
    lambda: 2.0,
    lambda: 3,
    lambda: True,
    lambda: jnp.asarray(2.0),
    lambda: None,
    lambda: jax.device_put(jnp.arange(4.0), jax.devices()[0]),
    lambda: jax.device_put(jnp.arange(4.0), jax.devices()[1]),
)
_compiled = [0]  # how often XLA has compiled `function`


def _count(event: str, _: float, fun_name: str = "", **__: Any) -> None:
    _compiled[0] += "backend_compile" in event and "function" in fun_name


jax.monitoring.register_event_duration_secs_listener(_count)


def function(x: Any, steps: int = 3, y: Any = None) -> Any:
    """A loop for each leaf."""

    def looped(leaf: Any) -> Any:
        first = jnp.asarray(leaf) if y is None else jnp.asarray(leaf) + jnp.asarray(y)
        return lax.fori_loop(
            0, steps, lambda _, c: lax.cond(c.sum() > 0, lambda v: v - v // 2, lambda v: v - v, c), first
        )

    return jax.tree.map(looped, x)


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `tree` makes new arguments, which may be donated."""

    tree: Callable[[], Any]
    other: Callable[[], Any]
    named: bool
    steps: int | None
    setting: Callable[[], Any]
    in_thread: bool

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        by_name = {} if self.steps is None else {"steps": self.steps}
        if (y := self.other()) is not None:
            by_name["y"] = y
        return ((), {"x": self.tree(), **by_name}) if self.named else ((self.tree(),), by_name)

    def outcome(self, jitted: Any) -> Any:
        """The results, and which arguments are deleted; or the type of the error."""
        with self.setting():
            args, kwargs = self.arguments()
            try:
                results = jax.block_until_ready(jitted(*args, **kwargs))
            except Exception as error:
                return type(error)
            deleted = [isinstance(x, jax.Array) and x.is_deleted() for x in jax.tree.leaves((args, kwargs))]
            types = [(leaf.dtype, leaf.weak_type, leaf.sharding) for leaf in jax.tree.leaves(results)]
            return jax.tree.map(np.asarray, results), types, deleted

    def made(self, jitted: Any) -> Any:
        """The same, in the thread that is drawn."""
        if not self.in_thread:
            return self.outcome(jitted)
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(self.outcome(jitted)))
        thread.start()
        thread.join()
        return found[0]


def drawn_tree(draw: random.Random, depth: int = 2) -> Callable[[], Any]:
    """What makes a random tree."""
    kind = draw.choice(("leaf", "leaf", "list", "tuple", "dict")) if depth else "leaf"
    if kind == "leaf":
        return draw.choice(LEAVES)
    inner = [drawn_tree(draw, depth - 1) for _ in range(draw.randint(1, 2))]
    if kind == "dict":
        names = draw.sample("abc", len(inner))
        return lambda: {name: each() for name, each in zip(names, inner, strict=True)}
    return lambda: (list if kind == "list" else tuple)(each() for each in inner)


def drawn_call(draw: random.Random) -> Call:
    """A random call."""
    other = draw.choice((lambda: None, lambda: 2, lambda: jnp.asarray(2, jnp.int32)))
    steps, setting = draw.choice((None, 2, 4)), draw.choice(SETTINGS)
    return Call(drawn_tree(draw), other, draw.random() < 0.3, steps, setting, draw.random() < 0.3)


def alike(found: Any, expected: Any) -> bool:
    """True if two outcomes are equal, bit by bit."""
    if isinstance(expected, type) or isinstance(found, type):
        return found is expected
    trees = [jax.tree.structure(each) for each in (found, expected)]
    leaves = zip(*map(jax.tree.leaves, (found, expected)), strict=True)
    return trees[0] == trees[1] and all(np.array_equal(a, b) for a, b in leaves)


def check(seed: int) -> None:
    """Draws a sequence and checks it: results, compilations, and what `explain` says."""
    draw = random.Random(seed)
    calls = [drawn_call(draw) for _ in range(draw.randint(2, 4))]
    options = {"static_argnames": "steps", **draw.choice(({}, {"donate_argnames": "x"}))}
    before = _compiled[0]
    jax.clear_caches()
    stock = jax.jit(function, **options)
    expected = [call.made(stock) for call in calls]
    compiled = _compiled[0] - before
    ours = jax_cocktail.jit(function, options=OPTIONS, **options)
    counts = []
    for number in range(3):
        before = _compiled[0]
        for call, wanted in zip(calls, expected, strict=True):
            found = call.made(ours)
            assert alike(found, wanted), (seed, number, found, wanted)
            if draw.random() < 0.5 or number:
                assert jax_cocktail.wait(60)
        assert jax_cocktail.wait(60)
        counts.append(_compiled[0] - before)
    assert sum(counts) <= 2 * compiled and counts[2] == 0, (seed, counts, compiled)
    for call, wanted in zip(calls, expected, strict=True):
        if not isinstance(wanted, type):
            explained(call, ours, seed)


def explained(call: Call, ours: Any, seed: int) -> None:
    """Checks that a call ends on what `explain` says."""
    with call.setting():
        args, kwargs = call.arguments()
        report = jax_cocktail.explain(ours)(*args, **kwargs)
        callee = ours._dispatch.call
        runs = callee.chosen(args, kwargs) if hasattr(callee, "chosen") else callee
        has_ours = "jax_cocktail_cpu" in runs.lower(*args, **kwargs).as_text()
    assert report.now == "", (seed, report.now)
    assert has_ours == (report.choice == "cocktail"), (seed, report.choice)


def main(seed: int, count: int) -> None:
    """Checks so many sequences, from a seed on."""
    for number in range(seed, seed + count):
        check(number)
    print(f"{count} sequences")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
