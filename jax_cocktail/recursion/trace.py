"""`recursive`: traces Python functions that call themselves into a task.

A function is traced once per type of its arguments. Calls of itself or of other recursive functions become
references. Values that the bodies close over, and arguments that every call passes on unchanged, become the
environment.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jax_cocktail import cells
from jax_cocktail.errors import RecursionTypeError, UnsupportedError
from jax_cocktail.primitives.jaxprs import constants
from jax_cocktail.recursion.check import endless, invariants, numberings, refuse_effects
from jax_cocktail.recursion.hoist import hoisted
from jax_cocktail.recursion.machine import planned
from jax_cocktail.recursion.primitive import recursion_p
from jax_cocktail.recursion.reference import reference_p
from jax_cocktail.recursion.structure import structure
from jax_cocktail.recursion.task import (
    TOKEN,
    Aval,
    Function,
    Numbering,
    Task,
    affordable,
    aval_of,
    evaluate,
    split,
)
from jax_cocktail.recursion.unroll import LEVELS
from jax_cocktail.utask.types import Source, plain

STACK_BYTES = 4 << 20  # the size of the stack if `max_depth` is not given
MOST_DEPTH = 1 << 16
MOST_LIMIT = 1 << 30  # half the range of an int32

Given: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]  # positional and keyword arguments

_PACKAGE = str(Path(__file__).parent.parent)
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class CallLimits:
    """The options `max_depth` and `max_calls`; None: as many as fit in a fixed amount of memory."""

    max_depth: int | None
    max_calls: int | None


@dataclass(eq=False, slots=True)
class _Member:
    """A function while its scope is traced. `shared`: for each argument, its value if all calls share it,
    else None; `caller`: the member that called it first; `body`: its jaxpr, (token, *other arguments) ->
    (token, *results)."""

    function: Recursive
    tree: Any
    arguments: tuple[Aval, ...]
    results: tuple[Aval, ...]
    results_tree: Any
    shared: Sequence[Any]
    caller: _Member | None
    body: Any = None

    def takes(self, tree: Any, leaves: Sequence[Any]) -> bool:
        """True if the arguments match the function's types."""
        pairs = zip(leaves, self.arguments, strict=False)
        return tree == self.tree and all(_fits(leaf, aval) for leaf, aval in pairs)


@dataclass(eq=False, slots=True)
class _Scope:
    """A call from outside and the functions found so far. `current`: the function being traced, with `token`;
    `shared`: that of each member, in the order of discovery."""

    number: int
    members: list[_Member] = field(default_factory=list)
    current: _Member | None = None
    token: Any = None
    shared: Sequence[Sequence[Any]] = ()


class _Active(threading.local):
    def __init__(self) -> None:
        self.scopes: list[_Scope] = []


_ACTIVE = _Active()


def where() -> str:
    """The line of the user's program that is running."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE + os.sep):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"


class Recursive:
    """A recursive function of arrays, made by `recursive`.

    It works under `jax.jit`, `jax_cocktail.jit`, `vmap`, `jvp`, `grad` of any order and `checkpoint`. Stock
    XLA runs it as a loop with a stack; `jax_cocktail.explain` reports the strategy that `jax_cocktail.jit`
    uses.

    A call beyond `max_depth`, or beyond `max_calls` under differentiation, sets its results to NaN (integers:
    the minimum). It raises `jax.errors.JaxRuntimeError` (`ValueError` if JAX calls the compiled program
    directly) on the CPU and, at the next call, in our GPU programs; stock XLA on a GPU does not raise. `vmap`
    makes a `cond` run both sides for all batch elements, so a guarded call may fail for an element that does
    not need it. Calls in a `scan`, or in a `fori_loop` with constant bounds, have derivatives; calls in a
    `while_loop` do not. Under `jax.shard_map`, values that differ between devices need ``check_vma=False``.
    """

    def __init__(self, body: Callable[..., Any], out_like: Any, limits: CallLimits) -> None:
        functools.update_wrapper(self, body)
        self.body = body
        self.out_like = out_like
        self.limits = limits
        self.born = next(_numbers)
        code = getattr(body, "__code__", None)
        self._signature = inspect.signature(body)
        self.name = plain(str(getattr(body, "__name__", "recursion")))
        self.source = (
            str(Source(cells.shown(code.co_filename), code.co_firstlineno, self.name)) if code else ""
        )

        def run(*given: Any) -> Any:
            return _from_outside(self, given)

        run.__name__ = run.__qualname__ = self.name
        self._jitted = jax.jit(run)

    def __repr__(self) -> str:
        return f"<recursive function {self.name}>"

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Calls the function on pytrees of arrays."""
        given = self.bound(args, named)
        scope = _ACTIVE.scopes[-1] if _ACTIVE.scopes else None
        if scope is not None and self.born < scope.number:
            return _refer(scope, _named(scope, self, given), given)
        return self._jitted(*given)

    def bound(self, args: Sequence[Any], named: Mapping[str, Any]) -> Given:
        """Binds arguments to the parameters of the body except the first. Keyword arguments become positional
        if possible, and defaults are filled in."""
        try:
            bound = self._signature.bind(None, *args, **named)
        except TypeError as error:
            raise TypeError(
                f"{self.name}{self._signature} receives itself as its first parameter, and a call passes "
                f"only the others: {error}, at {where()}"
            ) from None
        bound.apply_defaults()
        return bound.args[1:], bound.kwargs


def _from_outside(function: Recursive, given: Given) -> Any:
    leaves, tree = jax.tree.flatten(given)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    _refuse_varying(function, leaves)
    avals = tuple(aval_of(leaf) for leaf in leaves)
    members = _traced(function, tree, avals, [[None] * len(leaves)])
    bodies = [structure(m.body, opens_loops=True, most_trips=0) for m in members]
    if endless(bodies):
        raise RecursionTypeError(
            f"{function.name} never returns, since every call makes another one; put the call on one side of "
            "a jax.lax.cond or switch, and a result on the other (jax.vmap makes a cond run both sides)",
            function.source,
        )
    same = invariants(bodies)
    shared = [[None if k is None else leaves[k] for k in own] for own in same]
    if any(value is not None for value in shared[0]):
        members = _traced(function, tree, avals, shared)
    for member in members:
        member.body = hoisted(member.body, runs=member is members[0])
    environment, task = _task(function, members)
    _refuse_varying(function, environment)
    passed = [leaf for leaf, value in zip(leaves, members[0].shared, strict=True) if value is None]
    operands = (jnp.zeros((), TOKEN.dtype), *environment, *passed)
    results = recursion_p.bind(*operands, task=task, elements=())[1:]
    return jax.tree.unflatten(members[0].results_tree, results)


def _refuse_varying(function: Recursive, values: Sequence[Any]) -> None:
    """Raises UnsupportedError for values that vary between devices: JAX's check of them does not see through
    recursion. If the check is off, no value is marked."""
    kinds = (getattr(jax.typeof(value), "manual_axis_type", None) for value in values)
    if any(getattr(kind, "varying", ()) for kind in kinds):
        raise UnsupportedError(
            f"{function.name} gets values that differ between devices, and the check of jax.shard_map does "
            "not see through recursion; use jax.shard_map(..., check_vma=False)",
            function.source,
        )


def _traced(
    function: Recursive, tree: Any, avals: tuple[Aval, ...], shared: Sequence[Sequence[Any]]
) -> list[_Member]:
    """Traces the function and those that it calls. `shared`: for each, as far as known, the values of the
    arguments that all calls share."""
    scope = _Scope(next(_numbers), shared=shared)
    _ACTIVE.scopes.append(scope)
    try:
        _join(scope, function, tree, avals)
        for member in scope.members:  # grows during the loop
            scope.current = member
            member.body = _body(scope, member)
    finally:
        _ACTIVE.scopes.pop()
    return scope.members


def _join(scope: _Scope, function: Recursive, tree: Any, avals: tuple[Aval, ...]) -> _Member:
    """Adds a new function to the scope."""
    like = function.out_like
    args, named = jax.tree.unflatten(tree, avals)
    if callable(like):
        with _noted(f"out_like= of {function.name}, called with the arguments of a call: {function.source}"):
            like = like(*args, **named)
    elif like is None:
        if not args and not named:
            raise RecursionTypeError(
                f"{function.name} has no arguments; declare its result with out_like=", function.source
            )
        like = next(iter((*args, *named.values())))
    leaves, results_tree = jax.tree.flatten(like)
    position = len(scope.members)
    shared = scope.shared[position] if position < len(scope.shared) else [None] * len(avals)
    results = tuple(aval_of(x) for x in leaves)
    member = _Member(function, tree, avals, results, results_tree, shared, scope.current)
    scope.members.append(member)
    return member


def _body(scope: _Scope, member: _Member) -> Any:
    function = member.function

    def myself(*args: Any, **named: Any) -> Any:
        if scope not in _ACTIVE.scopes:
            raise RecursionTypeError(
                f"the first parameter of {function.name} was called after {function.name} had returned; "
                "call the function by its own name instead",
                where(),
            )
        if scope is not _ACTIVE.scopes[-1]:
            raise _inside_of(function)
        return _refer(scope, scope.members.index(member), function.bound(args, named))

    def run(token: Any, *passed: Any) -> list[Any]:
        scope.token = token  # reset below: it must not outlive the trace
        given = iter(passed)
        leaves = [next(given) if value is None else value for value in member.shared]
        try:
            args, named = jax.tree.unflatten(member.tree, leaves)
            with _noted(_what_calls_return(member)):
                results = function.body(myself, *args, **named)
        finally:
            scope.token = None
        return [token, *_results(member, results)]

    open_arguments = [a for a, value in zip(member.arguments, member.shared, strict=True) if value is None]
    body = jax.make_jaxpr(run)(TOKEN, *open_arguments)
    refuse_effects(body, function.name, function.source)
    if numberings(body) - {Numbering.NONE}:
        raise RecursionTypeError(
            f"the body of {function.name} differentiates one of its own calls; differentiate {function.name} "
            "as a whole, or return the derivative together with the value",
            function.source,
        )
    return body


@contextmanager
def _noted(what: str) -> Iterator[None]:
    """Adds a note to a TypeError of JAX or of the user's code that does not name the function."""
    try:
        yield
    except RecursionTypeError:
        raise
    except TypeError as error:
        error.add_note(what)
        raise


def _what_calls_return(member: _Member) -> str:
    function = member.function
    types = jax.tree.unflatten(member.results_tree, [_spelled(a) for a in member.results])
    why = ", like its first argument (else declare out_like=)" if function.out_like is None else ""
    return f"in the body of {function.name}, whose calls return {types}{why}: {function.source}"


def _inside_of(function: Recursive) -> RecursionTypeError:
    return RecursionTypeError(
        f"{function.name} is called by a recursive function that is defined in the body of {function.name}; "
        "define it outside that body, and pass the values that it needs as arguments",
        where(),
    )


def _named(scope: _Scope, function: Recursive, given: Given) -> int:
    """The number of a function that is called by its name. New argument types give it a new number, unless it
    is among the callers."""
    leaves, tree = jax.tree.flatten(given)
    if any(_calling(outer, function) for outer in _ACTIVE.scopes[:-1]):
        raise _inside_of(function)
    member = _calling(scope, function)
    if member is None:
        own = (m for m in scope.members if m.function is function)
        member = next((m for m in own if m.takes(tree, leaves)), None)
    if member is None:
        member = _join(scope, function, tree, tuple(aval_of(leaf) for leaf in leaves))
    return scope.members.index(member)


def _calling(scope: _Scope, function: Recursive) -> _Member | None:
    """The function's member if the function is being traced or has called the one being traced; else None."""
    member = scope.current
    while member is not None and member.function is not function:
        member = member.caller
    return member


def _refer(scope: _Scope, found: int, given: Given) -> Any:
    """Traces a call of a member inside a body."""
    leaves, tree = jax.tree.flatten(given)
    member = scope.members[found]
    function = member.function
    if tree != member.tree:
        raise RecursionTypeError(
            f"{function.name} is called with arguments of another structure than in its first call: {tree} "
            f"instead of {member.tree}",
            where(),
        )
    typed = [
        _as_typed(leaf, aval, f"argument {k} of {function.name}", where)
        for k, (leaf, aval) in enumerate(zip(leaves, member.arguments, strict=True))
    ]
    passed = [x for x, value in zip(typed, member.shared, strict=True) if value is None]
    results = reference_p.bind(
        scope.token,
        *passed,
        function=found,
        numbering=Numbering.NONE,
        results=member.results,
    )
    return jax.tree.unflatten(member.results_tree, results[1:])


def _as_typed(value: Any, aval: Aval, what: str, place: Callable[[], str]) -> Any:
    """Converts the value to the expected type. Raises RecursionTypeError if that is not possible."""
    found = aval_of(value)
    if not _fits(value, aval):
        raise RecursionTypeError(
            f"{what} is {_spelled(aval)} in the first call and {_spelled(found)} here; all calls must have "
            "arguments and results of one type: pad arrays, and pass the used length as a number",
            place(),
        )
    return jnp.asarray(value, aval.dtype)


def _fits(value: Any, aval: Aval) -> bool:
    """True if JAX's promotion can give a value this type: Python scalars and weak types convert, but floats
    never become integers."""
    found = aval_of(value)
    if found.shape != aval.shape or found.dtype == aval.dtype:
        return bool(found.shape == aval.shape)
    is_weak = not hasattr(value, "dtype") or bool(getattr(value, "weak_type", False))
    return is_weak and jnp.result_type(value, aval.dtype) == aval.dtype


def _spelled(aval: Any) -> str:
    return f"{np.dtype(aval.dtype).name if not _is_key(aval) else aval.dtype}{list(aval.shape)}"


def _is_key(aval: Any) -> bool:
    return bool(jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended))


def _results(member: _Member, results: Any) -> list[Any]:
    """The leaves of a body's result. Raises RecursionTypeError if they do not match `out_like`."""
    function = member.function
    leaves, tree = jax.tree.flatten(results)
    spelled = jax.tree.map(lambda x: _spelled(aval_of(x)), results)
    wanted = jax.tree.unflatten(member.results_tree, [_spelled(a) for a in member.results])
    fits = tree == member.results_tree and all(map(_fits, leaves, member.results))
    if not fits:
        raise RecursionTypeError(
            f"{function.name} returned {spelled} but {wanted} was expected; convert the result, or declare "
            "its type with out_like= (default: the type of the first argument)",
            function.source,
        )
    return [jnp.asarray(x, a.dtype) for x, a in zip(leaves, member.results, strict=True)]


def _task(function: Recursive, members: Sequence[_Member]) -> tuple[list[Any], Task]:
    """The values of the environment, and the task that uses it."""
    environment: dict[int, Any] = {}
    for member in members:
        environment |= {id(value): value for value in constants(member.body)}
    places = {key: k for k, key in enumerate(environment)}
    avals = tuple(aval_of(value) for value in environment.values())
    functions = tuple(_closed(member, avals, places) for member in members)
    limits = function.limits
    depth = 1 if limits.max_depth is None else limits.max_depth
    task = Task(functions, avals, (), Numbering.NONE, depth, limits.max_calls or 0)
    if limits.max_depth is None:
        most = affordable(planned(task).frame, STACK_BYTES, MOST_DEPTH)
        even = most - most % (LEVELS + 1)  # a multiple allows unrolling
        task = replace(task, max_depth=even or most)
    return list(environment.values()), task


def _closed(member: _Member, avals: Sequence[Aval], places: dict[int, int]) -> Function:
    """The function with the environment as further operands."""
    own = [places[id(value)] for value in constants(member.body)]
    passed = tuple(a for a, value in zip(member.arguments, member.shared, strict=True) if value is None)

    def run(token: Any, *operands: Any) -> list[Any]:
        environment, arguments = split(operands, len(avals))
        return evaluate(member.body, [environment[k] for k in own], [token, *arguments])

    body = jax.make_jaxpr(run)(TOKEN, *avals, *passed)
    name, source = member.function.name, member.function.source
    return Function(name, body, (), passed, (), member.results, source)


def recursive(
    fun: Callable[..., Any] | None = None,
    /,
    *,
    out_like: Any = None,
    max_depth: int | None = None,
    max_calls: int | None = None,
) -> Any:
    """Makes a function of arrays that may call itself.

    The body receives the function as its first parameter and may call it anywhere inside `lax.cond`,
    `lax.switch`, loops or `jax.vmap`. Functions may call each other by name; they then share both limits.

    Args:
      fun: ``fun(self, *args)`` on pytrees of arrays, without side effects. Parameters may have defaults. All
        calls must have arguments, and results, of one shape and dtype. Values that it closes over, and
        arguments that every call passes on unchanged, are not copied.
      out_like: the type of the result: a pytree of arrays or `jax.ShapeDtypeStruct`, or a function of the
        arguments that returns one. Default: the type of the first argument.
      max_depth: the most calls active at a time, 1 to 2**30, which sets the size of the stack. Default: as
        many frames as fit in 4 MiB, at most 65536. If it is even and calls are not in tail position, small
        functions are unrolled: a frame holds two levels of calls, with the same limits and errors.
      max_calls: the most calls in total under differentiation, 1 to 2**30, which sets the size of the saved
        activations. Default: as many as fit in 16 MiB, at most 65536. Small limits make stock XLA faster.

    Returns:
      The function of `args`, a `Recursive`. Its docstring describes transformations and run-time errors.

    Raises:
      ValueError: a limit is out of range.
      RecursionTypeError: (by a call) types differ between calls, or the function never returns.
      UnsupportedError: (by a call) the body has side effects or uses an axis name of `jax.vmap`.

    Examples:
      >>> @jax_cocktail.recursive(max_depth=32)
      ... def fibonacci(self, n):
      ...     return lax.cond(n < 2, lambda: n, lambda: self(n - 1) + self(n - 2))
      >>> print(jax_cocktail.jit(fibonacci)(10))
      55
    """

    for name, limit in (("max_depth", max_depth), ("max_calls", max_calls)):
        is_number = isinstance(limit, int) and not isinstance(limit, bool)
        if limit is not None and not (is_number and 0 < limit <= MOST_LIMIT):
            raise ValueError(f"{name} must be an integer from 1 to {MOST_LIMIT} or None, not {limit!r}")

    def wrapped(body: Callable[..., Any]) -> Recursive:
        return Recursive(body, out_like, CallLimits(max_depth, max_calls))

    return wrapped if fun is None else wrapped(fun)
