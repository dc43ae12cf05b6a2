"""The public functions: `jit`, a drop-in replacement for `jax.jit`, and what reports, stores and exports."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.export  # `jax` alone does not have it
from jax.extend import source_info_util

from jax_cocktail import cache, config
from jax_cocktail.config import LIMIT, OPEN_SCOPES, SCOPES, Options, Scope
from jax_cocktail.lowering.choice import decisions
from jax_cocktail.lowering.choice.bundle import load_bundle as load_bundle
from jax_cocktail.lowering.choice.bundle import save_bundle as save_bundle
from jax_cocktail.lowering.choice.plan_cache import CacheInfo as CacheInfo
from jax_cocktail.lowering.choice.plan_cache import cache_info as cache_info
from jax_cocktail.lowering.edge import custom_call, failure_call, intercept
from jax_cocktail.lowering.edge.marked import Marked, marked_of
from jax_cocktail.lowering.edge.notices import MARK_LOST
from jax_cocktail.lowering.edge.replacement import Replacement
from jax_cocktail.lowering.lower import lower
from jax_cocktail.lowering.run.background import runs
from jax_cocktail.lowering.run.background import wait as wait
from jax_cocktail.lowering.run.dispatch import Dispatch
from jax_cocktail.lowering.run.first_call import Divided, first_call
from jax_cocktail.lowering.run.tickets import Transformed
from jax_cocktail.lowering.state import (
    BEGUN,
    FIRST_CALLS,
    Call,
    calling,
    collecting,
    finds_calls,
    first_call_ends,
    recording,
)
from jax_cocktail.memory import MEMORY
from jax_cocktail.report import Report
from jax_cocktail.runtime import trust as permissions
from jax_cocktail.runtime.python import meant
from jax_cocktail.runtime.trust import Trust

if TYPE_CHECKING:
    from jax_cocktail.timeline.trace import Trace

_OF_A_CALL = "args", "kwargs", "known", "callee"  # variables of `Jit.__call__`
_FOLDER = os.path.dirname(os.path.abspath(__file__))


def jit(
    fun: Callable[..., Any] | None = None,
    /,
    *,
    options: Options | Mapping[str, Any] | None = None,
    **jit_options: Any,
) -> Any:
    """A drop-in replacement for `jax.jit` that compiles loops and branches with jax_cocktail.

    Each region with a loop or branch becomes one XLA custom call. Stock XLA compiles everything else, and the
    whole call if it measures faster (option ``force``).

    A call of the result raises StrictModeError if the option ``strict`` is set and a loop or branch cannot be
    compiled. Without ``strict`` it emits a CocktailWarning and stock XLA runs the program.

    Args:
      fun: the function to compile. If it is missing, `jit` returns a decorator.
      options: jax_cocktail's options by name (see `options`). They take precedence over ``with options(...)``
        and over environment variables.
      **jit_options: all options of `jax.jit`, with the same meaning.

    Returns:
      A function that can be used wherever `jax.jit(fun)` can. This includes `grad`, `vmap`, `checkpoint`, a
      nested `jit`, and ahead-of-time compilation (`lower`, `trace`, `eval_shape`).

    Raises:
      TypeError: `fun` is no function, `options` names an unknown option, or a value has the wrong type.
      ValueError: an option has a value that is not allowed.

    Examples:
      >>> @jax_cocktail.jit
      ... def root(a):
      ...     return lax.while_loop(lambda x: abs(x * x - a) > 1e-5 * a, lambda x: (x + a / x) / 2, a)
      >>> print(f"{root(2.0):.3f}")
      1.414
    """
    explicit = config.explicit(options)
    misplaced = {name: value for name, value in jit_options.items() if name in config.NAMES}
    if misplaced:
        raise TypeError(f"jax.jit has no such options: write jit(..., options={misplaced!r})")
    if fun is None:
        return lambda f: Jit(f, jit_options, explicit)
    return Jit(fun, jit_options, explicit)


def replace_jit(**options: Any) -> Replacement:
    """A context manager that makes `jax.jit` ours, for libraries that call it themselves.

    Inside the block, `jax.jit` is `jit` with these options: for this thread, and for every way to call it
    (``jax.jit(f)``, ``@jax.jit``, ``functools.partial(jax.jit, ...)``). What is jitted in the block stays
    ours after it. What was jitted before stays stock, and so does a ``jit`` that was imported by name before
    (``from jax import jit``); one imported in the block follows the blocks from then on. JAX's own calls
    stay stock. Blocks may be nested, and the innermost one counts. The end of the outermost block restores
    `jax.jit`, also after an exception.

    The result is a decorator as well: the block is then open while the decorated function runs. For a whole
    process, call its method ``install()``, before the imports of the libraries: all threads then get ours,
    until ``remove()``.

    Args:
      **options: jax_cocktail's options by name (see `options`). They take precedence, as in `jit`.

    Returns:
      A context manager and decorator, with the methods ``install`` and ``remove``.

    Raises:
      TypeError: an option is unknown, or a value has the wrong type.
      ValueError: an option has a value that is not allowed.

    Examples:
      >>> def eighth(x):  # of a library
      ...     return jax.jit(lambda x: lax.fori_loop(0, 3, lambda _, c: c / 2, x))(x)
      >>> with jax_cocktail.replace_jit(force="cocktail"):
      ...     print(eighth(8.0))
      1.0
    """
    explicit = config.explicit(options)

    def make(*arguments: Any, **jit_options: Any) -> Any:
        return jit(*arguments, options=explicit, **jit_options)

    return Replacement(make)


def explain(fun: Callable[..., Any], *, stock: bool = False) -> Callable[..., Report]:
    """Returns a function that reports how a call of `fun` is compiled, instead of calling it.

    If the arguments are arrays and no decision is stored yet, stock XLA and the best candidates of ours are
    timed on them, as in a call of `jit`. With abstract arguments (`jax.ShapeDtypeStruct`) nothing runs.

    Args:
      fun: a function, or the result of `jit`, whose options are then used.
      stock: compile each region with stock XLA as well, and report its kernels and bytes.

    Returns:
      A function that takes the arguments of `fun` and returns a `Report`. The report lists the custom calls
      with the values in them and where they are kept, the control flow left to stock XLA with the reason and
      the source line, and all measured times. A notebook shows it as a page; it can be saved, drawn and
      compared with an older one.

    Raises:
      TypeError: `fun` is no function.
      StrictModeError: (by the returned function) the option ``strict`` is set and a loop or branch cannot be
        compiled.

    Examples:
      >>> def network(w, xs):
      ...     return lax.scan(lambda h, x: (jnp.tanh(w @ h + x), h.sum()), xs[0], xs)
      >>> report = jax_cocktail.explain(network)(jnp.ones((64, 64)), jnp.ones((100, 64)))
      >>> print(report.function, report.left)
      network ()
    """
    known, bound = _wrapper_of(fun)

    def explained(*args: Any, **kwargs: Any) -> Report:
        positional = (*bound, *args)
        report = _lowered(known.copy(), positional, kwargs, stock)[0]
        return dataclasses.replace(report, now=known._select().remark(positional, kwargs))

    return _Asked(explained, "explain", fun)


def trace(fun: Callable[..., Any]) -> Callable[..., Trace]:
    """Returns a function that calls `fun` and records what every unit does, and when.

    The program is the one that `jit` would run, with stamps of the clock in it: a unit is a thread, or a
    thread block of a GPU. It runs twice, and the second run is recorded; with side effects, it runs once.
    Nothing is recorded of what stock XLA runs. The option ``trace`` says how much is recorded.

    Args:
      fun: a function, or the result of `jit`, whose options are then used.

    Returns:
      A function that takes the arguments of `fun` and returns a `Trace`. This has the results of the call and
      the timeline of each custom call.

    Raises:
      TypeError: `fun` is no function.
      StrictModeError: (by the returned function) the option ``strict`` is set and a loop or branch cannot be
        compiled.

    Examples:
      >>> @jax_cocktail.jit(options={"force": "cocktail"})
      ... def root(a):
      ...     return lax.while_loop(lambda x: abs(x * x - a) > 1e-5 * a, lambda x: (x + a / x) / 2, a)
      >>> found = jax_cocktail.trace(root)(2.0)
      >>> print(f"{found.results:.3f}, {len(found.regions)} custom call")
      1.414, 1 custom call
      >>> picture = found.to_svg()  # as a notebook shows it
      >>> found.perfetto("root.json")  # open it at https://ui.perfetto.dev
    """
    from jax_cocktail.lowering.choice.tracing import unrecorded
    from jax_cocktail.timeline.trace import Trace

    known, bound = _wrapper_of(fun)

    def traced(*args: Any, **kwargs: Any) -> Trace:
        fresh, positional = known.copy(), (*bound, *args)
        with recording() as recordings:
            report, lowered = _lowered(fresh, positional, kwargs)
        notes, name = unrecorded(report, bool(recordings)), known._marked.function_name
        for found in recordings:
            if len(found.results) == lowered.out_tree.num_leaves:
                results = jax.tree.unflatten(lowered.out_tree, found.results)
                return Trace(name, results, found.regions, notes)
        return Trace(name, fresh(*positional, **kwargs), sum((f.regions for f in recordings), ()), notes)

    return _Asked(traced, "trace", fun)


class _Asked:
    """A function of the arguments, as `explain` and `trace` return it. A prompt that shows it says so."""

    def __init__(self, call: Callable[..., Any], how: str, fun: Callable[..., Any]) -> None:
        self._call, self._how = call, how
        functools.update_wrapper(self, fun, updated=())

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __repr__(self) -> str:
        name = getattr(self.__wrapped__, "__name__", "the function")  # type: ignore[attr-defined]
        return f"<jax_cocktail.{self._how} of {name}: call it with the arguments of {name}>"


def _wrapper_of(fun: Any) -> tuple[Jit, tuple[Any, ...]]:
    """The wrapper of a function, and the object that a method is bound to."""
    bound: tuple[Any, ...] = ()
    if isinstance(fun, types.MethodType) and isinstance(fun.__func__, Jit):
        fun, bound = fun.__func__, (fun.__self__,)
    return fun if isinstance(fun, Jit) else Jit(fun, {}, {}), bound


def _lowered(
    fresh: Jit, args: tuple[Any, ...], kwargs: dict[str, Any], counts_stock: bool = False
) -> tuple[Report, Any]:
    """The report on a call that is lowered now, and what JAX has lowered."""
    with collecting(counts_stock) as reports:
        lowered = fresh.lower(*args, **kwargs)
    if not reports:
        why = "jax.disable_jit is in force" if jax.config.jax_disable_jit else MARK_LOST
        return Report(fresh._marked.function_name, choice="stock", why=why), lowered
    first, *inner = reports
    return dataclasses.replace(first, inner=(*first.inner, *inner)), lowered


def clear_cache() -> None:
    """Removes all built programs, plans, decisions and GPU measurements from the cache folder on disk.

    It also frees what this process keeps of recent compilations. What could not be built is tried again.

    The folder is ``$JAX_COCKTAIL_CACHE_DIR``, else ``$XDG_CACHE_HOME/jax_cocktail``, else
    ``~/.cache/jax_cocktail``. Functions that this process has already compiled keep working; their own
    `clear_cache` method forgets them, and to `jit` one again compiles it again.

    Examples:
      >>> jax_cocktail.clear_cache()
    """
    cache.clear_cache()
    cache.clear_all_records()
    MEMORY.forget()


def export(
    fun: Callable[..., Any],
    *,
    platforms: Sequence[str] | None = None,
    disabled_checks: Sequence[jax.export.DisabledSafetyCheck] = (),
) -> Callable[..., jax.export.Exported]:
    """Same as `jax.export.export(jit(fun))`, with our custom calls permitted in the exported program.

    A process that reads the program has to trust it (`load`). With symbolic sizes
    (`jax.export.symbolic_shape`), a CPU runs our programs at most sizes, and stock XLA at the others.

    Args:
      fun: a function, or the result of `jit`, whose options are then used.
      platforms: as of `jax.export.export`.
      disabled_checks: as of `jax.export.export`.

    Returns:
      A function that takes the arguments of `fun`, or `jax.ShapeDtypeStruct` in their place, and returns a
      `jax.export.Exported`.

    Raises:
      TypeError: `fun` is no function.

    Examples:
      >>> def eighth(x):
      ...     return lax.fori_loop(0, 3, lambda _, c: c / 2, x)
      >>> exported = jax_cocktail.export(eighth)(jnp.ones(3))
      >>> print(exported.call(jnp.array([8.0, 16.0, 24.0])))
      [1. 2. 3.]
    """
    known, bound = _wrapper_of(fun)
    ours = map(jax.export.DisabledSafetyCheck.custom_call, (*custom_call.TARGETS, failure_call.TARGET))
    checks = (*ours, *disabled_checks)

    @functools.wraps(fun, updated=())
    def exported(*args: Any, **kwargs: Any) -> jax.export.Exported:
        make = jax.export.export(known, platforms=platforms, disabled_checks=checks)
        return make(*bound, *args, **kwargs)

    return exported


def load(*, trust: Trust = False) -> None:
    """Registers the custom call handlers, so that this process can run exported programs with our calls.

    An exported program contains machine code. A process runs what it has compiled itself, and what this
    user's cache folder records. Everything else is refused with an error until `trust` names it. Trust an
    exported program only if you would also run a script from the same source.

    The handlers for NVIDIA's and AMD's GPUs are included if JAX's option ``jax_platforms`` names them, or if
    it is unset and JAX's plugin for them is installed.

    Args:
      trust: the programs that may run as well. ``bytes``: an exported program. Exactly the calls that it
        contains are permitted: none if it was exported as stock XLA runs it. A path: a file with an exported
        program, or a folder of such files. A text of 64 hexadecimal digits: the digest of one call.
        ``True``: whatever this process is given from now on. An iterable of these: all of them.

    Raises:
      BuildError: the libraries with the handlers cannot be built. The message says what to try.
      OSError: a file of `trust` cannot be read.
      TypeError: `trust` is none of these.

    Examples:
      >>> def eighth(x):
      ...     return lax.fori_loop(0, 3, lambda _, c: c / 2, x)
      >>> blob = jax_cocktail.export(eighth)(jnp.ones(2)).serialize()  # in one process
      >>> jax_cocktail.load(trust=blob)  # in another one
      >>> print(jax.export.deserialize(blob).call(jnp.array([8.0, 16.0])))
      [1. 2.]
    """
    permissions.trust(trust)
    for platform in custom_call.expected_platforms():
        custom_call.register(platform)


class Jit:
    """The result of `jit`: a thin wrapper that forwards everything to a `jax.jit` function.

    It keeps the arguments of a call until the call returns, so that a first lowering can time the candidates
    on them.
    """

    def __new__(cls, function: Any, jit_options: Any, explicit: Mapping[str, Any], shared: Any = None) -> Jit:
        return super().__new__(_Limited if LIMIT in explicit else cls)

    def __init__(
        self,
        function: Callable[..., Any],
        jit_options: Mapping[str, Any],
        explicit: Mapping[str, Any],
        shared: Marked | None = None,
    ) -> None:
        if not callable(function):
            raise TypeError(f"Expected a callable value, got {function}")  # as JAX says it
        self._function = function
        self._jit_options = dict(jit_options)
        self._explicit = dict(explicit)
        self._scoped: dict[tuple[Scope, ...], Dispatch] = {}
        functools.update_wrapper(self, function, updated=())
        self._marked = marked_of(function, jit_options) if shared is None else shared
        self._dispatch = self._marked.variant(config.resolve(self._explicit, scopes=()))

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        # All calls pay for what stands here. Of those that are compiled, `state.call` finds what it needs.
        dispatch = self._select() if OPEN_SCOPES else self._dispatch
        callee = dispatch.call
        known: Dispatch | None = dispatch
        if dispatch.transforms and (ticketed := dispatch.transformed(args, kwargs)) is not None:
            callee, known = ticketed, None  # noqa: F841 (`state.call` reads it)
        divided = transformed = False  # what follows is outside of `except`, for the user's tracebacks
        try:
            try:
                results = callee(*args, **kwargs)
            except Divided:
                divided = True
            except Transformed:
                transformed = True
            if divided:
                results = first_call(args, kwargs)
            if transformed:
                dispatch.transforms = True
                return self(*args, **kwargs)
            if BEGUN and (job := BEGUN.get(id(sys._getframe()))) is not None:
                runs(job, results)
            if OPEN_SCOPES and SCOPES.limit is not None:
                jax.block_until_ready(results)
            return results
        except (jax.errors.JaxRuntimeError, ValueError, KeyboardInterrupt) as error:
            try:
                ours = meant(error)
            except KeyboardInterrupt as interrupt:  # Python calls its handler at once
                raise meant(interrupt) from None
            if ours is error:
                raise
            raise ours from None
        finally:
            if BEGUN:
                BEGUN.pop(id(sys._getframe()), None)
            if FIRST_CALLS:
                first_call_ends(id(sys._getframe()))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_dispatch" not in self.__dict__:
            raise AttributeError(name)
        attributes = getattr(self._function, "__dict__", {})
        return attributes[name] if name in attributes else getattr(self._select().base, name)

    def __reduce__(self) -> Any:
        return Jit, (self._function, self._jit_options, self._explicit)

    def __repr__(self) -> str:
        try:
            return f"<jax_cocktail.jit of {self._function!r}>"
        except Exception:  # of the function's own `__repr__`
            return f"<jax_cocktail.jit of {self._marked.function_name}>"

    def lower(self, /, *args: Any, **kwargs: Any) -> Any:
        """Same as `jax.jit(f).lower`."""
        try:
            with calling(Call(self._marked, args, kwargs)):
                return self._select().base.lower(*args, **kwargs)
        finally:
            first_call_ends()

    # JAX asks whether a function to export has `trace` and `eval_shape`; from Python 3.12 on, that does not
    # find what `__getattr__` returns.
    def trace(self, /, *args: Any, **kwargs: Any) -> Any:
        """Same as `jax.jit(f).trace`."""
        return self._select().base.trace(*args, **kwargs)

    def eval_shape(self, /, *args: Any, **kwargs: Any) -> Any:
        """Same as `jax.jit(f).eval_shape`."""
        return self._select().base.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """Same as `jax.jit(f).clear_cache`: discards everything traced and compiled in this process."""
        self._marked.clear_cache()

    def copy(self) -> Jit:
        """A wrapper of the same function, with nothing traced yet."""
        fresh = Marked(self._function, self._jit_options)
        return Jit(self._function, self._jit_options, self._explicit, fresh)

    def _select(self) -> Dispatch:
        """The jitted functions for the options in force."""
        scopes = SCOPES.values
        if not scopes:
            return self._dispatch
        if scopes not in self._scoped:
            self._scoped[scopes] = self._marked.variant(config.resolve(self._explicit, scopes))
        return self._scoped[scopes]


class _Limited(Jit):
    """A wrapper with a limit of its own for the seconds of a call."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        with config.options(max_seconds=self._explicit[LIMIT]):
            return super().__call__(*args, **kwargs)


# Source locations must point to the user's program, never to our frames.
for _place in ("api.py", "bounded", "lowering", "recursion", "primitives"):
    source_info_util.register_exclusion(os.path.join(_FOLDER, _place))
finds_calls(Jit.__call__, lambda found: (found["self"]._marked, *map(found.get, _OF_A_CALL)))
intercept.install(lower)
custom_call.register_quietly()
decisions.versions()  # takes milliseconds, which a first call would spend otherwise
failure_call.install()
