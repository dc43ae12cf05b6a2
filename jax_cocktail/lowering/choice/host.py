"""The figures of the host by which a call is priced. They are measured while the background has no
work, or before the first call that has its program compiled now."""

from __future__ import annotations

import logging
from functools import cache

from jax_cocktail.build import command
from jax_cocktail.config import BACKGROUND, FRESH
from jax_cocktail.device.host import SERVER, HostSpec
from jax_cocktail.lowering.run.background import may_detach, when_idle
from jax_cocktail.lowering.run.stopwatch import Watch
from jax_cocktail.lowering.state import Mark

_LOG = logging.getLogger("jax_cocktail")


def host_of(mark: Mark, runs_there: bool) -> HostSpec:
    """The figures for a call: of no machine in particular if it is reproducible. Those that were measured do
    not count where nothing does that was stored. Who waits for a compiler waits for them, too, if the call
    `runs_there`."""
    options = mark.options
    if options.reproducible:
        return SERVER
    if runs_there and options.compile != BACKGROUND and options.force != "stock" and may_detach(mark):
        measure_host()
    from jax_cocktail.runtime import host_figures  # a call of a cached program has no prices

    return host_figures.host(measured=options.plans != FRESH)


@cache
def measure_host() -> None:
    """Measures this machine, unless an earlier process has done it. If prices have been made, they stay."""
    from jax_cocktail.runtime import host_figures  # and the compiler

    try:
        with command.low_priority():
            host_figures.measure_once(lambda: Watch().others)
    except Exception as error:  # the table's figures do
        _LOG.debug("jax_cocktail: the processor was not measured: %s", error)


when_idle.append(measure_host)
