"""Puts our `jit` in the place of `jax.jit`, for libraries that call it themselves."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from contextlib import ContextDecorator
from typing import Any

import jax

Make = Callable[..., Any]  # called in place of `jax.jit`, with its arguments

# JAX needs its own jitted functions in places, and ours are made of them.
_KEEP_STOCK = frozenset({"jax", "jaxlib", "jax_cocktail"})


class _Blocks(threading.local):
    """Per thread: the replacements whose blocks are open, innermost last."""

    open: tuple[Replacement, ...] = ()


class Replacement(ContextDecorator):
    """The result of `replace_jit`: a context manager, a decorator, and a switch for the whole process."""

    def __init__(self, make: Make) -> None:
        self.make = make

    def __enter__(self) -> None:
        _INSTALLATION.fill()
        _BLOCKS.open = (*_BLOCKS.open, self)

    def __exit__(self, *error: object) -> None:
        _BLOCKS.open = _without_last(_BLOCKS.open, self)
        _INSTALLATION.leave()

    def install(self) -> None:
        """Replaces `jax.jit` for all threads, until `remove`. A block takes precedence in its thread."""
        _INSTALLATION.fill(self)

    def remove(self) -> None:
        """Undoes one `install`.

        Raises:
          ValueError: it is not installed.
        """
        if self not in _INSTALLATION.installed:
            raise ValueError("this replacement of jax.jit is not installed")
        _INSTALLATION.leave(self)


class _Installation:
    """`jax.jit` itself: ours as long as any replacement is in force, in whatever thread."""

    def __init__(self) -> None:
        self.stock: Make = jax.jit
        self.installed: tuple[Replacement, ...] = ()
        self._uses = 0
        self._lock = threading.Lock()

    def fill(self, installed: Replacement | None = None) -> None:
        with self._lock:
            if jax.jit is not _jit:
                self.stock = jax.jit
                vars(jax)["jit"] = _jit
            self._uses += 1
            if installed is not None:
                self.installed = (*self.installed, installed)

    def leave(self, installed: Replacement | None = None) -> None:
        with self._lock:
            self._uses -= 1
            if installed is not None:
                self.installed = _without_last(self.installed, installed)
            if not self._uses and jax.jit is _jit:  # else somebody replaced it after us
                vars(jax)["jit"] = self.stock


@functools.wraps(jax.jit)
def _jit(*arguments: Any, **options: Any) -> Any:
    in_force = _BLOCKS.open or _INSTALLATION.installed
    caller = inspect.currentframe()
    caller = caller and caller.f_back
    name = str(caller.f_globals.get("__name__")) if caller else ""
    if not in_force or name.partition(".")[0] in _KEEP_STOCK:
        return _INSTALLATION.stock(*arguments, **options)
    return in_force[-1].make(*arguments, **options)


def _without_last(stack: tuple[Replacement, ...], item: Replacement) -> tuple[Replacement, ...]:
    last = len(stack) - 1 - stack[::-1].index(item)
    return stack[:last] + stack[last + 1 :]


_BLOCKS, _INSTALLATION = _Blocks(), _Installation()
