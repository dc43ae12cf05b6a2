"""A card is measured when it is first used: once for each driver and machine, then kept on disk.

What takes part of a second is worth it, because every plan depends on it; what goes wrong leaves the numbers
of a table (`jax_cocktail.device.spec`), which is told once.
"""

from __future__ import annotations

import threading
import time
import warnings

from jax_cocktail.cache import cache_dir
from jax_cocktail.device import store as device_store
from jax_cocktail.device.spec import DeviceSpec
from jax_cocktail.device.store import Measured
from jax_cocktail.errors import BuildError, CocktailWarning
from jax_cocktail.runtime.cuda import micro as gpu_micro
from jax_cocktail.runtime.cuda.card import Card, CudaError, Facts
from jax_cocktail.runtime.cuda.driver import driver_version

SECONDS = 1.5  # in all, the compiler included, which is waited for
LEAST_SECONDS = 0.4  # for the launches, however long that took
TIMES = 3  # each launch is repeated
_CUT_SHORT = "a measurement was begun and did not end"

_lock = threading.Lock()
# By card, architecture, driver and folder: serves where nothing can be kept, and keeps us from trying again.
_known: dict[tuple[str, ...], DeviceSpec | None] = {}


def kept(name: str, arch: str) -> DeviceSpec | None:
    """What was found out about a card with the driver that is here; None if nothing was."""
    driver = driver_version()
    found = _read(name, arch, driver)
    return found.spec if found else _known.get(_key(name, arch, driver))


def measure_once(name: str, arch: str, ordinal: int = 0) -> None:
    """Measures a card if nobody has with this driver; `kept` then has what was found, if anything was.

    `name`, `arch`: of the card that jax uses; `ordinal`: its number for the driver.
    """
    driver = driver_version()
    key, found = _key(name, arch, driver), _read(name, arch, driver)
    if found is not None and found.failed != _CUT_SHORT:  # if so, somebody may be at it now
        return
    with _lock:
        if key not in _known:
            _known[key] = _once(name, arch, ordinal, driver)


def forget() -> None:
    """Removes all that was measured, of every card."""
    with _lock:
        _known.clear()
        device_store.forget()


def _key(name: str, arch: str, driver: int) -> tuple[str, ...]:
    return name, arch, str(driver), str(cache_dir())


def _read(name: str, arch: str, driver: int) -> Measured | None:
    found = device_store.load_measured(name)
    return found if found and (found.spec.arch, found.driver) == (arch, driver) else None


def _once(name: str, arch: str, ordinal: int, driver: int) -> DeviceSpec | None:
    """One process measures; those that waited for it read."""
    with device_store.one_measures(name) as ours:
        found = _read(name, arch, driver)
        if found is not None and found.failed != _CUT_SHORT:
            return found.spec
        try:
            if not ours:
                raise CudaError("another process has been at it for long")
            found = found or _measured(name, arch, ordinal, driver)
        except (CudaError, BuildError, OSError, ValueError) as error:
            _tell(name, str(error))
            return None
    if found.failed:
        _tell(name, found.failed)
    return found.spec


def _tell(name: str, why: str) -> None:
    text = f"{name} was not measured, and is planned for with the numbers of a table: {why}"
    warnings.warn(text, CocktailWarning, stacklevel=2)


def _measured(name: str, arch: str, ordinal: int, driver: int) -> Measured:
    """Measures, and keeps what was found. Raises before anything was launched: what is in the way then may go
    away, and the next process tries again."""
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
        # Whoever finds this knows that the process died, and does not do what killed it.
        device_store.store_measured(Measured(table, driver, failed=_CUT_SHORT))
        try:
            figures = gpu_micro.measure(card, times=TIMES, only=tuple(names.values()), until=until)
            found = judged(facts, figures)
        except Exception as error:
            found = Measured(table, driver, failed=f"{type(error).__name__}: {error}")
    device_store.store_measured(found)
    return found


def judged(facts: Facts, figures: gpu_micro.Figures) -> Measured:
    """What is to be kept of a measurement; that it failed, if none of its figures is of use."""
    spec, left = gpu_micro.measured_spec(facts, figures)
    nothing = len(left) == len(gpu_micro.names_of_spec(facts))
    return Measured(spec, facts.driver, left, failed=next(iter(left.values())) if nothing else "")
