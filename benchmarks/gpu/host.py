"""Costs of a call on the host: of an empty program, of ours and of stock XLA's, waited for and not, captured
in a command buffer and not, and inside of a branch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_cocktail
from benchmarks.gpu.peers import COMMAND_BUFFERS, Run, compiled
from benchmarks.gpu.rows import ROWS
from benchmarks.gpu.timing import interleaved
from jax_cocktail_tools.models import largest_difference

ROW = "attention/1"  # a short call: its kernel takes some tens of microseconds
FORCED = {"force": "cocktail", "strict": True}


def calls(small: bool, seconds: float) -> dict[str, Any]:
    """Median seconds of a call by form: `waited`, each for itself, and `started`, of many with one wait."""
    function, arguments = ROWS[ROW].make(small)
    ours = jax_cocktail.jit(function, options=FORCED)
    one = jnp.float32(1)
    runs: dict[str, Run] = {
        "empty": compiled(lambda x: x, (one,)),
        "one addition": compiled(lambda x: x + 1, (one,)),
        "ours": lambda: ours(*arguments),
        "ours, captured": compiled(ours, arguments, **COMMAND_BUFFERS),
        "stock": compiled(function, arguments),
        "stock, captured": compiled(function, arguments, **COMMAND_BUFFERS),
    }
    return {
        "row": ROW,
        "waited": interleaved(runs, seconds / 2, most_calls=1),
        "started": interleaved(runs, seconds / 2),
    }


def branch(small: bool, seconds: float) -> dict[str, Any]:
    """Our call as the taken branch of `lax.cond`, which XLA captures with all of its kernels."""
    function, arguments = ROWS[ROW].make(small)
    ours = jax_cocktail.jit(function, options=FORCED)
    inside = in_a_branch(function, ours)
    runs: dict[str, Run] = {
        "in a branch": compiled(inside, (True, *arguments)),
        "in a branch, captured": compiled(inside, (True, *arguments), **COMMAND_BUFFERS),
    }
    expected = ours(*arguments)
    differences = {name: largest_difference(run(), expected) for name, run in runs.items()}
    found = {"row": ROW, "started": interleaved(runs, seconds / 2), "differences": differences}
    return {**found, "ok": max(differences.values()) == 0}


def in_a_branch(function: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """``(flag, *arguments)``: our call, or zeros."""

    def chosen(flag: Any, *given: Any) -> Any:
        zeros = lambda *g: jax.tree.map(jnp.zeros_like, jax.eval_shape(function, *g))  # noqa: E731
        return jax.lax.cond(flag, ours, zeros, *given)

    return chosen


def magnitude(result: Any) -> float:
    """The largest magnitude in a result."""
    return max(float(np.max(np.abs(np.asarray(leaf)))) for leaf in jax.tree.leaves(result))


CASES: dict[str, Callable[[bool, float], dict[str, Any]]] = {"calls": calls, "branch": branch}
