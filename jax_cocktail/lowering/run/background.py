"""Builds and measures beside the user's program: nobody waits for a compiler.

The first call of a new program is lowered as stock XLA runs it, unless an earlier process has left ours. A
thread of ours then lowers the same call again, the way it is lowered when the caller waits: it plans, builds,
measures, and lets XLA compile the module as it is chosen. From then on, calls with this signature run the new
executable (see `dispatch`). The thread never runs the user's function: JAX finds what the caller's thread has
traced.
"""

from __future__ import annotations

import atexit
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from typing import Any

import jax

from jax_cocktail import warning
from jax_cocktail.build import command
from jax_cocktail.config import BACKGROUND, CACHED, CHECKED
from jax_cocktail.errors import EXPECTED
from jax_cocktail.lowering import state
from jax_cocktail.lowering.run.jobs import Job, Part
from jax_cocktail.lowering.run.kept import is_tracer, kept
from jax_cocktail.lowering.run.queue import Queue
from jax_cocktail.lowering.run.tickets import ticket
from jax_cocktail.lowering.state import (
    BEGUN,
    ENDING,
    HURRYING,
    STATE,
    Call,
    Failed,
    Mark,
    NotTraced,
    Stopped,
    call,
    calling,
    first_call_ends,
    go_on,
    in_callback,
    in_state,
)
from jax_cocktail.memory import MEMORY

_HURRY_SECONDS = 0.5  # for the capture of all calls that wait, at the end of the process
_QUIET_SECONDS = 0.3  # after a part of a call was lowered, JAX may lower another one
SLOW_SECONDS = 2.0  # a call that takes longer is not run again to be timed
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


def _may_wait(mark: Mark) -> bool:
    """True unless the caller is to wait, or has asked for a report, or for a check."""
    options = mark.options
    if options.compile != BACKGROUND or options.plans == CHECKED or STATE.beside or ENDING.is_set():
        return False
    return STATE.reports is None and STATE.recordings is None and _mesh() is not None


def offered(mark: Mark) -> bool:
    """True if what is lowered now may run on stock XLA until our program is ready: it is a wrapper's call
    with arguments of its own, or has a ticket, and nobody has asked for a report on it, or for a check."""
    if not _may_wait(mark):
        return False
    if mark.ticket:
        return True
    signature, here = note(mark), call()
    return signature is not None and here is not None and not here.dispatch.is_settled(signature)


def transforms(mark: Mark) -> bool:
    """True if what is lowered now is part of a wrapper's call that JAX transforms, and that can be made with
    a ticket. Our programs are found in the plan cache then."""
    if mark.ticket or mark.options.plans != CACHED or not _may_wait(mark):
        return False
    dispatch, here = dispatch_of(mark), call()
    if dispatch is None or here is None:
        return False
    return dispatch.transformed(here.args, here.kwargs) is not None


def dispatch_of(mark: Mark) -> Any:
    """The dispatch of the wrapper's call that is lowered now; None if it is lowered inside of another one, or
    cannot be exchanged later."""
    here = None if mark.ticket else call()
    if here is None or here.dispatch is None:
        return None
    return here.dispatch if here.marked.variant(mark.options) is here.dispatch else None


def may_detach(mark: Mark) -> bool:
    """True if another process may compile a call when this one ends."""
    return mark.options.detach and mark.options.plans == CACHED


def note(mark: Mark) -> Any:
    """Notes the call that is lowered now, and returns its signature; None if it is not a wrapper's call with
    arguments of its own."""
    here = call() if mark.options.compile == BACKGROUND else None
    if here is None or here.dispatch is None:
        return None
    if any(map(is_tracer, jax.tree.leaves((here.args, here.kwargs)))):
        return None
    dispatch = here.dispatch
    signature = dispatch.note(here.args, here.kwargs, here.callee)
    if dispatch.is_settled(signature) and dispatch.told(signature):
        dispatch.tell(signature, "")  # the caller compiles our program now
        MEMORY.counts.changed_over += 1
    return signature


def tell(mark: Mark, remark: str) -> None:
    """Notes what runs the call that is lowered now, if it is not what was chosen."""
    signature, here = note(mark), call()
    if signature is not None and here is not None:
        here.dispatch.tell(signature, remark)


def start(mark: Mark, again: bool = False, *, runs_ours: bool) -> None:
    """Lets the call that is lowered now change over to what the background chooses. See `offered`.

    Args:
      mark: of the call.
      again: measures its decision again.
      runs_ours: until then, our program runs it; if not, stock XLA does.
    """
    here = call()
    assert here is not None
    marked, args, kwargs, dispatch, callee, number = here
    signature = dispatch.note(args, kwargs, callee)
    kept_args, kept_kwargs, size = kept(args, kwargs, marked.given_away(args, kwargs), _queue)
    job = Job(
        marked,
        dispatch,
        kept_args,
        kept_kwargs,
        signature,
        settings=_settings_here(),
        mesh=_mesh(),
        call=number,
        again=again,
        runs_ours=runs_ours,
        detach=may_detach(mark),
        generation=dispatch.generation,
        kept_bytes=size,
        kept=frozenset(map(id, jax.tree.leaves((kept_args, kept_kwargs)))),
        place=warning.line(),
    )
    _listen()
    if not runs_ours:
        dispatch.tell(signature, "stock XLA runs it until our program is compiled in the background")
    BEGUN[number] = job  # before the thread can ask for it
    BEGUN[number] = _queue.add(job)


def is_settled(mark: Mark) -> bool:
    """True if the calls with the ticket of a mark have changed over, and now is the time to be lowered."""
    found = ticket(mark.ticket)
    return found is not None and bool(found.changed)


def build(mark: Mark, part: str, work: Callable[[], object]) -> None:
    """Lets the background build what is lowered now for the ticket of a mark. `part` names it, and `work`
    builds it."""
    if (found := ticket(mark.ticket)) is not None:
        found.begin(part)
        where = warning.line(), may_detach(mark)
        here = call()
        without = None if here is None else Call(here.marked, (), {})
        _queue.add(Part(found, part, work, without, _settings_here(), _mesh(), *where))


def begun() -> Any:
    """The job of the call that is made or compiled now; None if it has left nothing to the background."""
    if STATE.compiles is not None:
        return STATE.compiles
    here = call()
    return None if here is None else BEGUN.get(here.number)


def runs(job: Job, results: Any) -> None:
    """Notes what the call returns: the first run of the program has precedence, too."""
    leaves = (x for x in jax.tree.leaves(results) if isinstance(x, jax.Array) and not is_tracer(x))
    job.results = tuple(map(weakref.ref, leaves))
    job.returned = time.monotonic()


def _settings_here() -> Mapping[str, Any]:
    return {name: getattr(jax.config, f"jax_{name}") for name in _SETTINGS}


def _mesh() -> Any:
    """JAX's mesh in this thread; None inside of a `shard_map` that is being lowered."""
    try:
        return jax.sharding.get_mesh()
    except ValueError:
        return None


@cache
def _listen() -> None:
    """Lets JAX tell when it has compiled a call."""
    jax.monitoring.register_event_duration_secs_listener(_is_compiled)


def _is_compiled(event: str, seconds: float, **_: Any) -> None:
    if event != "/jax/core/compile/backend_compile_duration" or (job := begun()) is None:
        return
    if STATE.compiles is not None or not in_callback():
        job.compiled, job.compile_seconds = time.monotonic(), seconds


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
    first_call_ends()  # who waits inside of one needs no precedence
    return _queue.wait(timeout)


# ---- the thread --------------------------------------------------------------------------------------------


def _do(job: Job | Part) -> None:
    if isinstance(job, Part):
        _build(job)
        return
    try:
        _change_over(job)
    finally:
        job.args, job.kwargs = (), {}  # who still waits for XLA has the job
        job.ready.set()
    if job.detach and len(_queue) == 1 and not (ENDING.is_set() or HURRYING.is_set()):
        for each in when_idle:
            each()


def _build(job: Part) -> None:
    """Builds a part of a call, while JAX lowers and runs no other one."""
    end, ours = time.monotonic() + state.FIRST_CALL_SECONDS, False
    while time.monotonic() < min(end, job.ticket.lowered + _QUIET_SECONDS) and not HURRYING.is_set():
        if ENDING.is_set():
            raise Stopped
        time.sleep(state.LOOK_SECONDS)
    try:
        with calling(job.call), in_state(beside=True, ours=0), _of(job):
            job.work()
            ours = STATE.ours > 0
    finally:
        if job.ticket.end(job.part, ours):
            MEMORY.counts.changed_over += 1


def _change_over(job: Job) -> None:
    _let_end(job)
    too_long = "stock XLA has not compiled it yet" if job.late else ""
    if job.seconds >= SLOW_SECONDS:
        too_long = f"a call takes more than {job.seconds:.0f} s"
    jitted = job.dispatch.successor(job.signature)
    try:
        if _compiled(job, jitted, too_long) and job.dispatch.switch(job.signature, jitted, job.generation):
            job.changed = True
            MEMORY.counts.changed_over += 1
            _LOG.info("jax_cocktail: %s changes over to what was chosen", job.name)
        job.dispatch.tell(job.signature, "")  # it runs what was chosen
    except Failed as error:  # which was told
        _count(job, str(error))
    except NotTraced:  # the caller's thread has to do it
        job.dispatch.switch(job.signature, jitted, job.generation)
        job.dispatch.tell(job.signature, f"{job.runner} runs it; the next call compiles what is chosen")
    finally:
        job.dispatch.drop_unused()


def _fails(job: Job | Part, error: Exception) -> None:
    """Tells the user once. The call stays with what runs it."""
    expected = isinstance(error, EXPECTED)
    cause = (str(error) if expected else f"{type(error).__name__}: {error}").splitlines()[0]
    why = _count(job, cause)
    _LOG.debug("jax_cocktail: %s stays with %s", job.name, job.runner, exc_info=error)
    remedy = "" if expected else "; this is a bug, please report it with your program"
    with warning.at(job.place):
        warning.warn((cause, ""), f"{job.name}: stays with {job.runner}, since {why}{remedy}")


def _count(job: Job | Part, cause: str) -> str:
    """Notes that a call stays with what runs it because of an error, and returns the reason."""
    MEMORY.counts.failed += 1
    why = f"the compilation in the background failed: {cause}"
    job.tell(f"{job.runner} runs it, since {why}")
    return why


_queue: Queue[Job | Part] = Queue(_do, _fails)


def waiting() -> int:
    """The number of calls, and of parts of calls, that are not built or not timed."""
    return len(_queue)


def _compiled(job: Job, jitted: Any, too_long: str) -> bool:
    """Compiles a call as is chosen for it. False if stock XLA is to run it, which does so already.
    `too_long`: why no call is timed."""
    running = job.dispatch.function_of(job.signature)
    given_away = job.marked.given_away(job.args, job.kwargs)
    no_stock = job.again or job.runs_ours or given_away or too_long
    stock = None if no_stock else partial(running, *job.args, **job.kwargs)
    found = {"again": job.again, "too_long": too_long, "running": stock}
    found["compile_seconds"] = job.compile_seconds
    with (
        calling(Call(job.marked, job.args, job.kwargs)),
        in_state(beside=True, ours=0, failure="", **found),
        _of(job),
    ):
        lowered = jitted.lower(*job.args, **job.kwargs)
        if STATE.failure:
            raise Failed(STATE.failure)
        if not STATE.ours and not job.runs_ours:
            return False
        go_on()
        lowered.compile()
        return _is_traced(job)  # caches were cleared if not, so that the function is traced again


def _is_traced(job: Job) -> bool:
    """True if JAX still knows what it has traced."""
    try:
        job.dispatch.fresh().trace(*job.args, **job.kwargs)
    except NotTraced:
        return False
    return True


def _let_end(job: Job) -> None:
    """Waits until the call has ended, with its results: XLA's compilation and the first run need all cores.
    A call that takes very long is not waited for."""
    end, behind = time.monotonic() + state.FIRST_CALL_SECONDS, job.returned is not None and not _runs(job)
    while (BEGUN.get(job.call) is job or _runs(job)) and time.monotonic() < end:
        if ENDING.is_set():
            raise Stopped
        if HURRYING.is_set():
            break
        time.sleep(state.LOOK_SECONDS)
    job.late = BEGUN.get(job.call) is job and job.compiled is None
    if job.compiled is not None:  # what ended unseen, while others were before it, counts until it returned
        ended = job.returned if behind and job.returned is not None else time.monotonic()
        job.seconds = ended - job.compiled


def _runs(job: Job) -> bool:
    """True if XLA computes a result of the call."""
    for reference in job.results:
        result = reference()
        with suppress(RuntimeError):  # it was donated since
            is_ready = getattr(result, "is_ready", None)  # arrays of keys have none
            if is_ready is not None and not is_ready():
                return True
    return False


@contextmanager
def _of(job: Job | Part) -> Iterator[None]:
    """Works for the caller's thread: with JAX's settings there, and leaving the cores to it."""
    with warning.at(job.place), command.low_priority(), settings(job):
        yield


@contextmanager
def settings(job: Job | Part) -> Iterator[None]:
    """JAX's settings as they are in the caller's thread."""
    with ExitStack() as stack:
        for name, value in job.settings.items():
            if getattr(jax.config, f"jax_{name}") != value:
                stack.enter_context(getattr(jax, name)(value))
        if job.mesh is not None and not job.mesh.empty:
            stack.enter_context(jax.set_mesh(job.mesh))
        yield


# ---- the end of the process, and of a part of it -----------------------------------------------------------


when_idle: list[Callable[[], None]] = []  # what is called when a call has changed over and none waits
before_end: list[Callable[[], None]] = []  # what is called when the calls that wait have been captured


@atexit.register
def _end() -> None:
    """Ends the work: compilers are stopped at once, and what XLA compiles is waited for."""
    try:
        if any(job.detach for job in _queue.jobs()):
            HURRYING.set()
            _queue.wait(_HURRY_SECONDS)
        for each in before_end:
            each()
    finally:  # a thread that is in XLA when the interpreter ends would crash
        ENDING.set()
        if len(_queue):
            command.refuse()
            _queue.join()


def _forget() -> None:
    """A forked child has none of the threads."""
    global _queue
    state.FIRST_CALLS.clear()
    BEGUN.clear()
    _queue = Queue(_do, _fails)


os.register_at_fork(after_in_child=_forget)
