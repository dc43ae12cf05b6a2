"""Measures a card at its first use, once per driver and machine, and stores the result on disk.

The measurement takes a fraction of a second, and every plan depends on it. If it fails, a warning is shown
once and the figures of a table are used (`jax_cocktail.device.spec`).
"""

from __future__ import annotations

import threading
import time

from jax_cocktail.cache import cache_dir
from jax_cocktail.device import store as device_store
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.device.store import Measured
from jax_cocktail.errors import BuildError
from jax_cocktail.memory import MEMORY
from jax_cocktail.runtime.cuda import micro as gpu_micro
from jax_cocktail.runtime.cuda.card import Card, CudaError, Facts
from jax_cocktail.runtime.drivers import CUDA
from jax_cocktail.warning import warn

SECONDS = 1.5  # the budget in all, compilation included
LEAST_SECONDS = 0.4  # the budget for launches, however long compilation took
TIMES = 3  # repetitions of each launch
_CUT_SHORT = "a measurement was begun and did not end"

_lock = threading.Lock()


def kept(name: str, arch: str) -> DeviceSpec | None:
    """The measured figures of a card with the installed driver; None if there are none."""
    driver = CUDA.installed()
    found = _read(name, arch, driver)
    return found.spec if found else MEMORY.cards.get(_key(name, arch, driver))


def measure_once(name: str, arch: str, ordinal: int = 0) -> None:
    """Measures a card unless it has been measured with this driver. `kept` then returns the figures, if any.

    `name`, `arch`: those of the card that jax uses; `ordinal`: its number for the driver.
    """
    driver = CUDA.installed()
    if done(name, arch):
        return
    key = _key(name, arch, driver)
    with _lock:
        if key not in MEMORY.cards:
            MEMORY.cards[key] = _once(name, arch, ordinal, driver)


def done(name: str, arch: str) -> bool:
    """True if there is nothing to measure: it was done, here or before."""
    driver = CUDA.installed()
    found = _read(name, arch, driver)
    if found is not None and found.failed != _CUT_SHORT:  # if so, another process may be measuring now
        return True
    return _key(name, arch, driver) in MEMORY.cards


def _key(name: str, arch: str, driver: int) -> tuple[str, ...]:
    return name, arch, str(driver), str(cache_dir())


def _read(name: str, arch: str, driver: int) -> Measured | None:
    found = device_store.load_measured(name)
    return found if found and (found.spec.arch, found.driver) == (arch, driver) else None


def _once(name: str, arch: str, ordinal: int, driver: int) -> DeviceSpec | None:
    """Lets one process measure; the others wait and read its result."""
    with device_store.one_measures(name) as ours:
        found = _read(name, arch, driver)
        if found is not None and found.failed != _CUT_SHORT:
            return found.spec
        try:
            if not ours:
                raise CudaError("another process has been measuring it for too long")
            found = found or _measured(name, arch, ordinal, driver)
        except (CudaError, BuildError, OSError, ValueError) as error:
            _tell(name, str(error))
            return None
    if found.failed:
        _tell(name, found.failed)
    return found.spec


def _tell(name: str, why: str) -> None:
    text = f"{name} was not measured, so programs are planned with the numbers of a table: {why}"
    warn((text, ""), text)


def _measured(name: str, arch: str, ordinal: int, driver: int) -> Measured:
    """Measures and stores the figures. It raises only before the first launch; such obstacles may be
    temporary, so the next process tries again."""
    start = time.perf_counter()
    gpu_micro.program(arch)
    until = max(start + SECONDS, time.perf_counter() + LEAST_SECONDS)
    with Card(ordinal) as card:
        facts = card.facts
        if (facts.name, facts.arch) != (name, arch):
            raise CudaError(
                f"the driver's card {ordinal} is {facts.name} ({facts.arch}), not {name} ({arch})"
            )
        table, names = gpu_micro.measured_spec(facts, {})[0], gpu_micro.names_of_spec(facts)
        # A process that finds this entry knows that its predecessor died while measuring, and does not try.
        device_store.store_measured(Measured(table, driver, failed=_CUT_SHORT))
        try:
            figures = gpu_micro.measure(card, times=TIMES, only=tuple(names.values()), until=until)
            found = judged(facts, figures)
        except Exception as error:
            found = Measured(table, driver, failed=f"{type(error).__name__}: {error}")
    device_store.store_measured(found)
    return found


def judged(facts: Facts, figures: gpu_micro.Figures) -> Measured:
    """The result to store: the plausible figures of a measurement, or a failure if there are none."""
    spec, left = gpu_micro.measured_spec(facts, figures)
    nothing = len(left) == len(gpu_micro.names_of_spec(facts))
    return Measured(spec, facts.driver, left, failed=next(iter(left.values())) if nothing else "")
