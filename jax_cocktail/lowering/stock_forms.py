"""The forms of stock XLA that a call is timed in, beside ours.

On a CPU there is one. On a GPU, options of XLA's compiler make others: captured in command buffers, and with
unrolled loops in these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax_cocktail.cost import xla
from jax_cocktail.cost.hlo import Module
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.lowering import gpu_call, stopwatch
from jax_cocktail.lowering.decisions import FORMS, STOCK, UNROLLED
from jax_cocktail.utask.ir import UProgram

# The largest graph that is tried. Estimate: to make, instantiate and upload a node takes about 5 us, so this
# is a tenth of a second in the first call. XLA also visits all nodes again if an argument has moved, and in
# every call if a slice is copied.
MOST_NODES = 20_000


def runners(
    jaxpr: Any, arguments: Sequence[Any], options: Mapping[str, Any], on_gpu: bool
) -> dict[str, stopwatch.Compiled]:
    """The compiled forms by name, the default first. `options`: of the user, for XLA's compiler.

    A form that XLA refuses is left out.
    """
    found = {STOCK: stopwatch.runner(jaxpr, arguments, options)}
    for name, form in FORMS.items() if on_gpu else ():
        if name == UNROLLED and not worth_unrolling(found[STOCK].text):
            continue
        compiled = stopwatch.captured_runner(jaxpr, arguments, options, form)
        found |= {name: compiled} if compiled else {}
    return found


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
