"""Builds and measures beside the user's program: nobody waits for a compiler.

The first call of a new program is lowered as stock XLA runs it. A thread of ours then lowers the same call
again, the way it is lowered when the caller waits: it plans, builds, measures, and lets XLA compile the
module with our calls. From then on, calls with this signature run the new executable (see `dispatch`). The
thread never runs the user's function: JAX finds what the caller's thread has traced.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jax_cocktail.build import command, progress
from jax_cocktail.config import BACKGROUND, CHECKED
from jax_cocktail.lowering import plan_cache
from jax_cocktail.lowering.state import ENDING, STATE, Mark, NotTraced, Stopped, go_on, in_state

MOST_WAITING = 64  # calls; more stay with stock XLA in this process
MOST_KEPT_BYTES = 1 << 30  # of copies of arguments, and of arguments for calls that wait behind another
# The first call of a program has precedence: XLA's compilation and the first run need all cores.
_FIRST_CALL_SECONDS, _LOOK_SECONDS = 10.0, 0.002
_LOG = logging.getLogger("jax_cocktail")

# JAX's settings that may differ between threads and that a trace depends on, each by the name of its context
# manager. If one is missing here, JAX does not find the trace, and the caller waits at the next call.
_SETTINGS = (
    "debug_infs",
    "debug_key_reuse",
    "debug_nans",
    "default_device",
    "default_matmul_precision",
    "default_prng_impl",
    "enable_x64",
    "numpy_dtype_promotion",
    "numpy_rank_promotion",
    "threefry_partitionable",
)


@dataclass(eq=False, slots=True)
class _Job:
    """A call that is to change over.

    `settings` and `mesh`: JAX's, in the caller's thread; `caller`: the state of that thread; `call`: what it
    has in `arguments` until the call ends, None if it is known to have ended; `again`: its decision is known,
    and is to be measured again; `generation`: that of the dispatch; `kept_bytes`: of arguments that nobody
    else may need; `results`: of the call, as far as they are alive and XLA still computes them.
    """

    marked: Any
    dispatch: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    signature: Any
    settings: Mapping[str, Any]
    mesh: Any
    caller: Mapping[str, Any]
    call: Any
    again: bool
    generation: int
    kept_bytes: int
    results: tuple[weakref.ref[Any], ...] = ()

    def same(self, other: _Job) -> bool:
        """True if both stand for one call."""
        signed = self.signature == other.signature and self.dispatch is other.dispatch
        within = self.settings == other.settings and self.mesh == other.mesh
        return signed and within and self.generation == other.generation


class _Queue:
    """Jobs, and the thread that does them one by one. It ends when there are none."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.jobs: deque[_Job] = deque()
        self.thread: threading.Thread | None = None
        self.doing: tuple[_Job, ...] = ()  # at most one

    def add(self, job: _Job) -> None:
        with self.changed:
            if any(map(job.same, (*self.jobs, *self.doing))):
                return
            if len(self.jobs) >= MOST_WAITING:
                _LOG.info("jax_cocktail: %s stays with stock XLA: too many wait", job.marked.function_name)
                return
            self.jobs.append(job)
            if self.thread is None:
                thread = threading.Thread(target=self._work, name="jax_cocktail", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # the limit of threads is reached, or the process ends
                    self.jobs.pop()
                    _LOG.info("jax_cocktail: %s stays with stock XLA: %s", job.marked.function_name, error)
                else:
                    self.thread = thread

    def _work(self) -> None:
        while self._next():
            (job,) = self.doing
            try:
                _do(job)
            except Stopped:
                pass
            except Exception as error:  # the call stays where it is
                name = job.marked.function_name
                _LOG.debug("jax_cocktail: %s stays with stock XLA: %r", name, error)
            del job  # lets go of the arguments

    def _next(self) -> bool:
        with self.changed:
            more = bool(self.jobs) and not ENDING.is_set()
            self.doing = (self.jobs.popleft(),) if more else ()
            if not more:
                self.thread = None
            self.changed.notify_all()
            return more

    def wait(self, seconds: float | None) -> bool:
        """Waits until all jobs are done. False if the time is over before."""
        end = None if seconds is None else time.monotonic() + seconds
        with progress.line(self._told) as told, self.changed:
            while self.thread is not None:
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self.changed.wait(
                    progress.EVERY_SECONDS if left is None else min(left, progress.EVERY_SECONDS)
                )
                told()
        return True

    def _told(self) -> str:
        names = [job.marked.function_name for job in self.doing]
        behind = f", {len(self.jobs)} more after it" if self.jobs else ""
        return f"compiling {', '.join(names)}{behind}" if names else ""


_queue = _Queue()


def offered(mark: Mark) -> bool:
    """True if what is lowered now may run on stock XLA until our program is ready: it is a wrapper's call
    with arguments of its own, and nobody has asked for a report on it, or for a check."""
    if mark.options.compile != BACKGROUND or STATE.beside or ENDING.is_set():
        return False
    if mark.options.plans == CHECKED:
        return False
    if STATE.reports is not None or STATE.recordings is not None:
        return False
    signature, call = note(mark), STATE.arguments
    return signature is not None and call is not None and signature not in call[3].waiting


def note(mark: Mark) -> Any:
    """Notes the call that is lowered now, and returns its signature; None if it is not a wrapper's call with
    arguments of its own."""
    if mark.options.compile != BACKGROUND or STATE.arguments is None:
        return None
    marked, args, kwargs, dispatch = STATE.arguments
    if dispatch is None or any(map(_is_tracer, jax.tree.leaves((args, kwargs)))):
        return None
    return dispatch.note(args, kwargs, marked.static_leaves(args, kwargs))


def start(again: bool = False) -> None:
    """Lets the call that is lowered now change over when our program is ready. See `offered`.

    `again`: measures its decision again.
    """
    assert STATE.arguments is not None
    marked, args, kwargs, dispatch = STATE.arguments
    signature = dispatch.note(args, kwargs, marked.static_leaves(args, kwargs))
    kept_args, kept_kwargs, size = _kept(args, kwargs, marked.given_away(args, kwargs))
    job = _Job(
        marked,
        dispatch,
        kept_args,
        kept_kwargs,
        signature,
        settings={name: getattr(jax.config, f"jax_{name}") for name in _SETTINGS},
        mesh=jax.sharding.get_mesh(),
        caller=vars(STATE),
        call=STATE.arguments,
        again=again,
        generation=dispatch.generation,
        kept_bytes=size,
    )
    STATE.begun = job
    _queue.add(job)


def runs(job: _Job, results: Any) -> None:
    """Tells what the call returns: the first run of the program has precedence, too."""
    leaves = (x for x in jax.tree.leaves(results) if isinstance(x, jax.Array) and not _is_tracer(x))
    job.results = tuple(map(weakref.ref, leaves))


def wait(timeout: float | None = None) -> bool:
    """Waits until every program that is built in the background is ready, and calls have changed over.

    On a terminal, a line on standard error tells what is being done.

    Args:
      timeout: the most seconds to wait; None: as long as it takes.

    Returns:
      False if the time was over before. The work goes on then.

    Examples:
      >>> eighth = jax_cocktail.jit(lambda x: lax.fori_loop(0, 3, lambda _, c: c / 2, x))
      >>> first = eighth(8.0)  # runs on stock XLA, and starts the compilation
      >>> jax_cocktail.wait()
      True
      >>> second = eighth(8.0)  # runs whatever is faster
    """
    return _queue.wait(timeout)


# ---- the thread --------------------------------------------------------------------------------------------


def _do(job: _Job) -> None:
    _let_end(job)
    call, jitted = (job.marked, job.args, job.kwargs, None), job.dispatch.fresh()
    try:
        with (
            in_state(arguments=call, beside=True, again=job.again, ours=0),
            _settings(job),
            command.low_priority(),
        ):
            lowered = jitted.lower(*job.args, **job.kwargs)
            if not STATE.ours:
                return
            go_on()
            lowered.compile()
            if not _is_traced(job):  # caches were cleared, so that the function is traced again
                return
    except NotTraced:
        job.dispatch.waiting.add(job.signature)  # the caller's thread has to do it
        job.dispatch.switch(job.signature, jitted, job.generation)
        return
    if job.dispatch.switch(job.signature, jitted, job.generation):
        plan_cache.count_changed_over()
        _LOG.info("jax_cocktail: %s changes over to its compiled program", job.marked.function_name)


def _is_traced(job: _Job) -> bool:
    """True if JAX still knows what it has traced."""
    try:
        job.dispatch.fresh().trace(*job.args, **job.kwargs)
    except NotTraced:
        return False
    return True


def _let_end(job: _Job) -> None:
    """Waits until the call has ended, with its results. One that runs for very long is not waited for."""
    end = time.monotonic() + _FIRST_CALL_SECONDS
    while (job.caller.get("arguments") is job.call or _runs(job)) and time.monotonic() < end:
        if ENDING.is_set():
            raise Stopped
        time.sleep(_LOOK_SECONDS)
    job.call = None


def _runs(job: _Job) -> bool:
    """True if XLA computes a result of the call."""
    for reference in job.results:
        result = reference()
        with suppress(RuntimeError):  # it was donated since
            if result is not None and not result.is_ready():
                return True
    return False


@contextmanager
def _settings(job: _Job) -> Iterator[None]:
    """JAX's settings as they are in the caller's thread."""
    with ExitStack() as stack:
        for name, value in job.settings.items():
            if getattr(jax.config, f"jax_{name}") != value:
                stack.enter_context(getattr(jax, name)(value))
        if not job.mesh.empty:
            stack.enter_context(jax.set_mesh(job.mesh))
        yield


# ---- arguments ---------------------------------------------------------------------------------------------


def _kept(
    args: tuple[Any, ...], kwargs: dict[str, Any], given_away: frozenset[int]
) -> tuple[tuple[Any, ...], dict[str, Any], int]:
    """The arguments as they are now, for later, and the bytes that this takes.

    What the caller gives away or may change is copied. Of what exceeds the limit only the types are kept, and
    nothing can be measured on it. The arguments of the first call in the queue count only as far as they are
    copied: they are needed soon.
    """
    leaves, tree = jax.tree.flatten((args, kwargs))
    waiting = (*_queue.jobs, *_queue.doing)
    before, size = sum(job.kept_bytes for job in waiting), 0
    shared = {id(leaf) for job in waiting for leaf in jax.tree.leaves((job.args, job.kwargs))}
    for number, leaf in enumerate(leaves):
        copied = isinstance(leaf, np.ndarray) or number in given_away
        counts = copied or (waiting and id(leaf) not in shared)
        if not (counts and isinstance(leaf, jax.Array | np.ndarray)):
            continue
        leaves[number] = _type_of(leaf)
        if before + size + leaf.nbytes <= MOST_KEPT_BYTES:
            with suppress(Exception):  # there is no memory for a copy
                leaves[number] = leaf.copy() if copied else leaf
                size += leaf.nbytes
    kept = jax.tree.unflatten(tree, leaves)
    return kept[0], kept[1], size


def _type_of(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = leaf.sharding if getattr(leaf, "committed", False) else None
    weak = getattr(leaf, "weak_type", False)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=weak)


def _is_tracer(leaf: Any) -> bool:
    return isinstance(leaf, jax.core.Tracer)


# ---- the end of the process, and of a part of it -----------------------------------------------------------


@atexit.register
def _end() -> None:
    """Ends the work: compilers are stopped at once, and what XLA compiles is waited for."""
    ENDING.set()
    thread = _queue.thread
    if thread is not None:
        command.refuse()
        thread.join()


def _forget() -> None:
    """A forked child has none of the threads."""
    global _queue
    _queue = _Queue()


os.register_at_fork(after_in_child=_forget)
