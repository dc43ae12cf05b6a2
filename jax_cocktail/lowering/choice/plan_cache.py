"""The plan cache: what planning and building has found, for this process and for later ones.

It is ATB's tiling cache for whole programs: a local table in the process, a global one in the cache folder.
A survey is found by its programs and the machine, an executable by its program, the candidate and the
compiler, and a call, which knows its executables, by its jaxpr. Names and positions in the user's program
count for none of them, so equal layers of different functions share all. An executable refers to its binary
in the cache of compiled programs, and is not found without.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from jax_cocktail import cache, portable
from jax_cocktail.build.executable import Executable
from jax_cocktail.cost.vector import Comparison
from jax_cocktail.lowering.choice.decisions import Plan
from jax_cocktail.lowering.run import background
from jax_cocktail.memory import MEMORY
from jax_cocktail.records import Store
from jax_cocktail.utask.plan import LaunchPlan

if TYPE_CHECKING:
    from jax_cocktail.compiler import Artifact

FOLDER = "plans"
_lock = threading.Lock()
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

    def __post_init__(self) -> None:
        if not self.plans or len(self.plans) != len(self.seconds):
            raise ValueError("not a survey")

    @property
    def best(self) -> Plan:
        return self.plans[self.seconds.index(min(self.seconds))]

    @property
    def assumed(self) -> Plan:
        """The best plan where nothing is measured."""
        return self.trusted or self.best


@dataclass(frozen=True, slots=True)
class Lookups:
    """Numbers of look-ups of this process. `here`: it was known in the process; `stored`: it was in
    the cache folder; `made`: it was in neither, and was made."""

    here: int = 0
    stored: int = 0
    made: int = 0


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """The work that the caches have saved this process.

    Attributes:
      surveys: comparisons of all candidates of a call: one that is found is neither planned nor priced.
      programs: planned and built programs: for one that is found, no pass and no compiler runs.
      calls: first calls of wrappers: one that is found runs our programs at once.
      compiled: runs of a host or device compiler for programs.
      changed_over: calls that the background has exchanged: our program for stock XLA's, or the reverse. A
        call that `jax.grad` or `jax.vmap` transforms counts once for all of its parts.
      waiting: calls that the background has not built, or not timed.
      failed: calls that stay with what runs them, since an error has occurred in the background.
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
    waiting: int
    failed: int
    resized: int


class _Table(Generic[V]):
    """Values of one kind, here and in the cache folder, with counters.

    `stored`: the type of the records; `value`: what a record stands for, None if it no longer does.
    """

    def __init__(
        self, kind: str, stored: type[Any], value: Callable[[Any], V | None] = lambda record: record
    ) -> None:
        self.kind, self.store, self._value = kind, Store(stored, FOLDER, f"{kind}-"), value

    def find(self, key: str) -> V | None:
        """The value with this key."""
        found, how = self._look(key, keeps=True)
        with _lock:
            MEMORY.lookups[self.kind][how] += 1
        return found

    def _look(self, key: str, keeps: bool) -> tuple[V | None, int]:
        """The value, and where it was found: the position of its counter."""
        here, place = MEMORY.plans[self.kind], (str(cache.cache_dir()), key)
        if (known := here.get(place)) is not None:
            return known, 0
        record = self.store.load(key)
        found = None if record is None else self._value(record)
        if found is not None and keeps:
            here.keep(place, found)
        return found, 2 if found is None else 1

    def value(self, key: str) -> V | None:
        """The value that `find` finds. This is not counted."""
        return self._look(key, keeps=False)[0]

    def has(self, key: str) -> bool:
        """True if `find` finds something. This is not counted."""
        return self.value(key) is not None

    def add(self, key: str, value: V, record: Any = None) -> None:
        """Keeps a value that was made now. `record`: what is stored of it, if not all."""
        self.keep(key, value)
        self.store.store(key, value if record is None else record)

    def keep(self, key: str, value: V) -> None:
        """Keeps a value for this process."""
        MEMORY.plans[self.kind].keep((str(cache.cache_dir()), key), value)

    def lookups(self) -> Lookups:
        return Lookups(*MEMORY.lookups[self.kind])


# ---- surveys -----------------------------------------------------------------------------------------------

_surveys = _Table[Survey]("survey", Survey)


def survey(key: str, make: Callable[[], Survey]) -> Survey:
    """The survey with this key; `make` makes it if it is not known."""
    found = _surveys.find(key)
    if found is None:
        found = make()
        _surveys.add(key, found)
    return found


# ---- stock XLA's kernels ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StockKernels:
    """The kernels that stock XLA makes of a program, and whether the runtime steps through a loop of it."""

    number: float
    steps: bool


_stock = _Table[StockKernels]("stock", StockKernels)


def stock_kernels(key: str, ask: Callable[[], StockKernels | None]) -> StockKernels | None:
    """The kernels of the program with this key; `ask` asks XLA if they are not known, and may not know."""
    found = _stock.find(key)
    if found is None and (found := ask()) is not None:
        _stock.add(key, found)
    return found


def knows_stock_kernels(key: str) -> bool:
    """True if `stock_kernels` need not ask XLA."""
    return _stock.has(key)


# ---- executables -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Program:
    """The record of an executable. `key`: that of its binary in the cache of compiled programs; for the
    rest see `Executable`."""

    key: str
    digest: str
    aliases: tuple[tuple[int, int], ...]
    workspace_bytes: int
    failures: tuple[str, ...]
    launch: LaunchPlan | None
    own_bytes: int
    sizes: tuple[int, ...]
    loops: tuple[int, ...]
    varying: tuple[int, ...] = ()


def _executable(record: Program) -> Executable | None:
    """The executable; None if its binary is gone or is another one."""
    place = cache.entry_folder(cache.cache_dir(), record.key)
    entry = cache.load(place, record.key) or portable.carried_program(record.key)
    if entry is None or entry.digest != record.digest:
        return None
    facts = {name: getattr(record, name) for name in _SHARED}
    return Executable(binary=entry.binary, path=entry.path, **facts)


_SHARED = tuple(field.name for field in fields(Program) if field.name != "key")
_programs = _Table[Executable]("program", Program, _executable)


def program(key: str) -> Executable | None:
    """The built program with this key; None if it has to be built."""
    return _programs.find(key)


def add_program(key: str, artifact: Artifact) -> None:
    """Keeps a program that was built now; for this process alone if its binary is not in the cache folder."""
    executable = artifact.executable
    if not artifact.key:
        _programs.keep(key, executable)
        return
    record = Program(artifact.key, **{name: getattr(executable, name) for name in _SHARED})
    _programs.add(key, executable, record)


def stored_program(name: str, record: Any) -> Program | None:
    """The program in a record of this name; None if it is one of another kind. Raises ValueError."""
    return _programs.store.parsed(record) if name.startswith(_programs.store.prefix) else None


def stored_survey(name: str, record: Any) -> Survey | None:
    """The survey in a record of this name; None if it is one of another kind. Raises ValueError."""
    return _surveys.store.parsed(record) if name.startswith(_surveys.store.prefix) else None


# ---- calls -------------------------------------------------------------------------------------------------

MOST_SECONDS = 0.1  # a call whose capture takes longer is not at hand


@dataclass(frozen=True, slots=True)
class _Call:
    """The keys of the programs that were built for a call. `seconds`: the time that its capture took."""

    programs: tuple[str, ...]
    seconds: float


_calls = _Table[_Call]("call", _Call)


def at_hand(key: str, most_seconds: float = MOST_SECONDS) -> bool:
    """True if the call with this key can be lowered to our programs, and its capture takes no longer."""
    found = _calls.find(key)
    return found is not None and found.seconds <= most_seconds and are_built(found.programs)


def is_built(key: str) -> bool:
    """True if the programs of the call with this key are in the plan cache. This is not counted."""
    found = _calls.value(key)
    return found is not None and are_built(found.programs)


def are_built(programs: Iterable[str]) -> bool:
    """True if the programs with these keys are in the plan cache."""
    return all(map(_programs.has, programs))


def add_call(key: str, programs: tuple[str, ...], seconds: float) -> None:
    """Keeps what was built for a call."""
    call = _Call(programs, seconds)
    if not _calls.has(key):
        _calls.add(key, call)


# ---- what was done -----------------------------------------------------------------------------------------


def count(artifact: Artifact) -> None:
    """Counts a program that was planned: the compiler ran, or its binary was there, for other lengths."""
    MEMORY.counts.compiled += not artifact.cached
    MEMORY.counts.resized += artifact.cached and bool(artifact.emitted.parameters)


def cache_info() -> CacheInfo:
    """Counts how often this process found what it needed in the caches, and how often it had to make it.

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
    counts, waiting = MEMORY.counts, background.waiting()
    numbers = counts.compiled, counts.changed_over, waiting, counts.failed, counts.resized
    return CacheInfo(surveys, programs, calls, *numbers)
