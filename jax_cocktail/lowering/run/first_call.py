"""The first call of a large function: whichever program is compiled first runs it.

XLA may take minutes where our compiler takes seconds. So the caller's thread only lowers the call, and waits:
XLA compiles it in a thread of its own. XLA cannot be stopped, and that thread ends when it is done.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from itertools import islice
from typing import Any

from jax_cocktail.lowering.run import background
from jax_cocktail.lowering.run.background import begun
from jax_cocktail.lowering.state import in_state
from jax_cocktail.primitives.jaxprs import equations_in

LARGE = 200  # equations: XLA has compiled smaller functions before our program could be ready


class Divided(BaseException):
    """Raised by the lowering of a first call that is to be made by `first_call`. It is no Exception, so that
    nothing in between takes it for an error."""


def is_large(jaxpr: Any) -> bool:
    """True if XLA may take long to compile a jaxpr."""
    return next(islice(equations_in(jaxpr), LARGE, None), None) is not None


def first_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The results of a call that this thread has begun to lower, and that the background was offered."""
    job = begun()
    callee = job.dispatch.divide(job.signature)
    with in_state(divided=True):  # also where JAX does not find what is lowered here, and lowers it again
        return _first_result(job, callee, args, kwargs)


def _first_result(job: Any, callee: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    lowered = callee.lower(*args, **kwargs)
    compiled: Future[None] = Future()
    compiled.add_done_callback(lambda _: job.ready.set())
    work = threading.Thread(target=_compile, args=(lowered, job, compiled), name="jax_cocktail XLA")
    try:
        work.start()
    except RuntimeError:  # the limit of threads is reached
        return callee(*args, **kwargs)
    job.ready.wait()
    if job.changed and not compiled.done():
        return job.dispatch.call(*args, **kwargs)
    compiled.result()
    return callee(*args, **kwargs)


def _compile(lowered: Any, job: Any, compiled: Future[None]) -> None:
    """Lets XLA compile what the caller's thread has lowered."""
    try:
        with in_state(compiles=job), background.settings(job):
            lowered.compile()
    except BaseException as error:  # the caller gets it
        compiled.set_exception(error)
    else:
        compiled.set_result(None)
