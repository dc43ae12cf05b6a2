"""The plan cache: what planning and building has found, for this process and for later ones.

It is ATB's tiling cache for whole programs: a local table in the process, a global one in the cache folder.
A survey is found by its programs and the machine, an executable by its program, the candidate and the
compiler, and a call, which knows its executables, by its jaxpr. Names and positions in the user's program
count for none of them, so equal layers of different functions share all. An executable refers to its binary
in the cache of compiled programs, and is not found without.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from jax_cocktail import cache, portable
from jax_cocktail.compiler import Artifact, Executable
from jax_cocktail.cost.price import Comparison, Price
from jax_cocktail.lowering.decisions import Plan, number_of, plan_of, typed
from jax_cocktail.lowering.recent import keep
from jax_cocktail.utask.plan import LaunchPlan

MOST_HERE = 64  # entries that this process keeps of each kind
FOLDER = "plans"
_FORMAT = 2
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Survey:
    """Plans with different programs and their prices in seconds, the simplest first.

    `comparison` compares the cheapest with stock XLA. `trusted`: the cheapest without memory-bound regions
    whose predicted gain is smaller than the model's error; None if nothing else was captured. `dispatched`:
    of each region, the seconds of stock XLA's price that dispatches in and around loops take.
    """

    plans: tuple[Plan, ...]
    seconds: tuple[float, ...]
    comparison: Comparison
    trusted: Plan | None
    dispatched: tuple[float, ...]

    @property
    def best(self) -> Plan:
        return self.plans[self.seconds.index(min(self.seconds))]


@dataclass(frozen=True, slots=True)
class Lookups:
    """How often this process looked something up: `here`: it was known in the process; `stored`: it was in
    the cache folder; `made`: it was in neither, and was made."""

    here: int = 0
    stored: int = 0
    made: int = 0


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """What the caches have saved this process.

    Attributes:
      surveys: comparisons of all candidates of a call: one that is found is neither planned nor priced.
      programs: planned and built programs: for one that is found, no pass and no compiler runs.
      calls: first calls of wrappers: one that is found runs our programs at once.
      compiled: runs of a host or device compiler for programs.
      changed_over: calls that stock XLA ran until the background had our program ready.
      resized: programs that were planned and not compiled: a binary compiled for other lengths serves them,
        with other launch parameters.

    Examples:
      >>> before = jax_cocktail.cache_info()
      >>> def twice_halved(x):
      ...     return lax.fori_loop(0, 2, lambda _, c: c / 2, x)
      >>> print(jax_cocktail.jit(twice_halved, options={"force": "cocktail"})(8.0))
      2.0
      >>> jax_cocktail.cache_info().compiled - before.compiled <= 1  # 0 if an earlier process has compiled it
      True
    """

    surveys: Lookups
    programs: Lookups
    calls: Lookups
    compiled: int
    changed_over: int
    resized: int


class _Table(Generic[V]):
    """Values of one kind, here and in the cache folder, with counters."""

    def __init__(self, kind: str, parsed: Callable[[Any], V | None]) -> None:
        self._kind, self._parsed = kind, parsed
        self._here: dict[tuple[str, str], V] = {}
        self._counts = [0, 0, 0]
        self._lock = threading.Lock()

    def find(self, key: str) -> V | None:
        """The value with this key. A stored one that is damaged does not count."""
        found, how = self._look(key, keeps=True)
        with self._lock:
            self._counts[how] += 1
        return found

    def _look(self, key: str, keeps: bool) -> tuple[V | None, int]:
        """The value, and where it was found: the position of its counter."""
        place = str(cache.cache_dir()), key
        if (known := self._here.get(place)) is not None:
            return known, 0
        found = None
        with suppress(ValueError, KeyError, TypeError, AttributeError, OverflowError):
            found = self._parsed(_sealed(cache.read_record(FOLDER, f"{self._kind}-{key}")))
        if found is not None and keeps:
            keep(self._here, place, found, MOST_HERE)
        return found, 2 if found is None else 1

    def has(self, key: str) -> bool:
        """True if `find` finds something. This is not counted."""
        return self._look(key, keeps=False)[0] is not None

    def add(self, key: str, value: V, facts: dict[str, Any]) -> None:
        """Keeps a value that was made now. `facts`: what is stored of it."""
        keep(self._here, (str(cache.cache_dir()), key), value, MOST_HERE)
        with suppress(OSError):
            cache.write_record(FOLDER, f"{self._kind}-{key}", _seal(facts))

    def lookups(self) -> Lookups:
        return Lookups(*self._counts)

    def forget(self) -> None:
        self._here.clear()


def _seal(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts with their digest: a damaged size would not be noticed before the program runs."""
    return {"format": _FORMAT, "facts": facts, "sha256": portable.digest_of_facts(facts)}


def _sealed(record: Any) -> Any:
    """The facts in a record. Raises ValueError, KeyError or TypeError if it is damaged."""
    if record["format"] != _FORMAT or record["sha256"] != portable.digest_of_facts(record["facts"]):
        raise ValueError("not what this version writes")
    return record["facts"]


# ---- surveys -----------------------------------------------------------------------------------------------


def _survey(facts: Any) -> Survey:
    plans = tuple(map(plan_of, facts["plans"]))
    seconds = tuple(map(number_of, facts["seconds"]))
    ours, stock = (_price(facts["comparison"][side]) for side in ("ours", "stock"))
    if not plans or len(plans) != len(seconds):
        raise ValueError("not a survey")
    trusted = None if facts["trusted"] is None else plan_of(facts["trusted"])
    dispatched = tuple(map(number_of, facts["dispatched"]))
    return Survey(plans, seconds, Comparison(ours, stock), trusted, dispatched)


def _price(facts: Any) -> Price:
    return Price(**{name: number_of(value) for name, value in facts.items()})


_surveys = _Table("survey", _survey)


def survey(key: str, make: Callable[[], Survey]) -> Survey:
    """The survey with this key; `make` makes it if it is not known."""
    found = _surveys.find(key)
    if found is None:
        found = make()
        _surveys.add(key, found, asdict(found))
    return found


# ---- stock XLA's kernels ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StockKernels:
    """What stock XLA makes of a program: its kernels, and whether the runtime steps through a loop of it."""

    number: float
    steps: bool


_stock = _Table("stock", lambda facts: StockKernels(number_of(facts["number"]), typed(facts["steps"], bool)))


def stock_kernels(key: str, ask: Callable[[], StockKernels | None]) -> StockKernels | None:
    """The kernels of the program with this key; `ask` asks XLA if they are not known, and may not know."""
    found = _stock.find(key)
    if found is None and (found := ask()) is not None:
        _stock.add(key, found, asdict(found))
    return found


# ---- executables -------------------------------------------------------------------------------------------


def _executable(facts: Any) -> Executable | None:
    """What a record describes; None if its binary is gone or is another one."""
    key, digest = typed(facts["key"], str), typed(facts["digest"], str)
    entry = cache.load(cache.entry_folder(cache.cache_dir(), key), key) or portable.carried_program(key)
    if entry is None or entry.digest != digest:
        return None
    launch = facts["launch"]
    return Executable(
        entry.binary,
        digest,
        entry.path,
        aliases=tuple((typed(a, int), typed(b, int)) for a, b in facts["aliases"]),
        workspace_bytes=typed(facts["workspace_bytes"], int),
        failures=tuple(typed(line, str) for line in facts["failures"]),
        launch=None if launch is None else LaunchPlan.from_attribute([typed(n, int) for n in launch]),
        own_bytes=typed(facts["own_bytes"], int),
        sizes=tuple(typed(n, int) for n in facts["sizes"]),
    )


_programs = _Table("program", _executable)


def program(key: str) -> Executable | None:
    """The built program with this key; None if it has to be built."""
    return _programs.find(key)


def add_program(key: str, artifact: Artifact) -> None:
    """Keeps a program that was built now."""
    executable = artifact.executable
    launch = None if executable.launch is None else list(executable.launch.attribute)
    facts = {
        "key": artifact.key,
        "digest": executable.digest,
        "aliases": [list(pair) for pair in executable.aliases],
        "workspace_bytes": executable.workspace_bytes,
        "failures": list(executable.failures),
        "launch": launch,
        "own_bytes": executable.own_bytes,
        "sizes": list(executable.sizes),
    }
    _programs.add(key, executable, facts)


# ---- calls -------------------------------------------------------------------------------------------------

MOST_SECONDS = 0.1  # a call whose capture takes longer is not at hand


@dataclass(frozen=True, slots=True)
class _Call:
    """What was built for a call: the keys of its programs. `seconds`: the time that its capture took."""

    programs: tuple[str, ...]
    seconds: float


def _call(facts: Any) -> _Call:
    return _Call(tuple(typed(key, str) for key in facts["programs"]), number_of(facts["seconds"]))


_calls = _Table("call", _call)


def at_hand(key: str) -> bool:
    """True if the call with this key can be lowered to our programs without a delay."""
    found = _calls.find(key)
    return found is not None and found.seconds <= MOST_SECONDS and all(map(_programs.has, found.programs))


def add_call(key: str, programs: tuple[str, ...], seconds: float) -> None:
    """Keeps what was built for a call."""
    call = _Call(programs, seconds)
    if not _calls.has(key):
        _calls.add(key, call, asdict(call))


# ---- what was done -----------------------------------------------------------------------------------------

_compiled = _resized = _changed_over = 0


def count(artifact: Artifact) -> None:
    """Counts a program that was planned: the compiler ran, or its binary was there, for other lengths."""
    global _compiled, _resized
    _compiled += not artifact.cached
    _resized += artifact.cached and bool(artifact.emitted.parameters)


def count_changed_over() -> None:
    """Counts a call that has changed over to our program."""
    global _changed_over
    _changed_over += 1


def cache_info() -> CacheInfo:
    """Says how often this process found what it needed in the caches, and how often it had to make it.

    A program is looked up when it is to be called for the first time, a survey when candidates are to be
    compared. What a function has compiled stays with it and is not looked up again.

    Returns:
      A `CacheInfo`.

    Examples:
      >>> info = jax_cocktail.cache_info()
      >>> print("from earlier processes:", info.programs.stored, "compiled:", info.compiled)
      from earlier processes: ... compiled: ...
    """
    surveys, programs, calls = (table.lookups() for table in (_surveys, _programs, _calls))
    return CacheInfo(surveys, programs, calls, _compiled, _changed_over, _resized)


def forget() -> None:
    """Removes every plan, here and in the cache folder."""
    for table in (_surveys, _stock, _programs, _calls):
        table.forget()
    cache.clear_records(FOLDER)
