"""The forms of stock XLA that a call is timed in, beside ours.

On a CPU there is one. On a GPU, options of XLA's compiler make others: captured in command buffers, and with
unrolled loops in these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from jax_cocktail.cost import xla
from jax_cocktail.cost.hlo import Module
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.lowering.choice.decisions import FORMS, STOCK, UNROLLED
from jax_cocktail.lowering.edge import gpu_call
from jax_cocktail.lowering.run import stopwatch
from jax_cocktail.lowering.state import STATE
from jax_cocktail.utask.ir import UProgram

# The largest graph that is tried. Estimate: to make, instantiate and upload a node takes about 5 us, so this
# is a tenth of a second in the first call. XLA also visits all nodes again if an argument has moved, and in
# every call if a slice is copied.
MOST_NODES = 20_000
LONG_SECONDS = 1e-3  # of a call: the way from a wrapper's arguments to a compiled program takes microseconds


def runners(
    jaxpr: Any, arguments: Sequence[Any], options: Mapping[str, Any], on_gpu: bool
) -> dict[str, stopwatch.Compiled]:
    """The compiled forms by name, the default first. `options`: of the user, for XLA's compiler.

    A form that XLA refuses is left out.
    """
    # without arguments, nobody knows whether the jaxpr is that of the caller's function or of one inside
    running = _running() if arguments and not on_gpu else None
    found = {STOCK: running or stopwatch.runner(jaxpr, arguments, options)}
    for name, form in FORMS.items() if on_gpu else ():
        if name == UNROLLED and not worth_unrolling(found[STOCK].text):
            continue
        compiled = stopwatch.captured_runner(jaxpr, arguments, options, form)
        found |= {name: compiled} if compiled else {}
    return found


def _running() -> stopwatch.Compiled | None:
    """The call as stock XLA has compiled it for the caller, so that it need not be compiled again.

    None if it cannot be had, or if it is so short that the way to the caller's function counts.
    """
    if STATE.running is None:
        return None
    compiled = stopwatch.Compiled(STATE.running, None, STATE.compile_seconds)
    with suppress(Exception):  # the race finds out whether the call fails
        if stopwatch.turn(compiled) >= LONG_SECONDS:
            return compiled
    return None


def unrolled_seconds(programs: Sequence[UProgram], spec: DeviceSpec | None) -> float | None:
    """Seconds of a call of these programs in the unrolled form, an estimate; None if they have none. `spec`:
    of the GPU, None for the host."""
    if spec is None or not gpu_call.captures_loops(spec.platform):
        return None
    each = [xla.unrolled_seconds(program, spec) for program in programs]
    return None if None in each else sum(filter(None, each))


def unmeasured_advice(programs: Sequence[UProgram], spec: DeviceSpec | None) -> str:
    """The price of what only the caller can ask for, where nothing is measured; "" if there is none."""
    seconds = unrolled_seconds(programs, spec)
    return "" if seconds is None else f", about {seconds * 1e6:.1f} us as one graph with unrolled loops"


def worth_unrolling(text: str) -> bool:
    """True if a module has a loop of known trip count, and with such loops unrolled is no enormous graph."""
    return 0 < Module(text).unrolled_nodes <= MOST_NODES
