"""`recursive`: from Python functions that call themselves to a task.

A function is traced once for every type of its arguments; the calls that it makes of itself, or of other
recursive functions, become references. What the bodies close over, and what every call hands on unchanged,
becomes the environment.
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

from jax_cocktail.errors import RecursionTypeError, UnsupportedError
from jax_cocktail.primitives.jaxprs import constants
from jax_cocktail.recursion.check import endless, invariants, numberings, refuse_effects
from jax_cocktail.recursion.machine import plan_machine
from jax_cocktail.recursion.primitive import recursion_p
from jax_cocktail.recursion.reference import reference_p
from jax_cocktail.recursion.task import (
    TOKEN,
    Aval,
    Function,
    Numbering,
    Task,
    aval_of,
    evaluate,
    row_bytes,
    split,
)
from jax_cocktail.recursion.unroll import LEVELS

STACK_BYTES = 4 << 20  # of frames, if `max_depth` is not given
MOST_DEPTH = 1 << 16
MOST_LIMIT = 1 << 30  # half of what numbers of 32 bits tell apart

Given: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]  # positional arguments, and those by name

_PACKAGE = str(Path(__file__).parent.parent)
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Limits:
    """`max_depth`, `max_calls`: None for as much as fits into a fixed amount of memory."""

    max_depth: int | None
    max_calls: int | None


@dataclass(eq=False, slots=True)
class _Member:
    """A function while its scope is traced. `shared`: for each argument, the value that it always has, or
    None; `caller`: the member that it was first called by; `body`: its jaxpr, (token, *the other arguments)
    -> (token, *results)."""

    function: Recursive
    tree: Any
    arguments: tuple[Aval, ...]
    results: tuple[Aval, ...]
    results_tree: Any
    shared: Sequence[Any]
    caller: _Member | None
    body: Any = None

    def takes(self, tree: Any, leaves: Sequence[Any]) -> bool:
        """Whether arguments are of the function's types."""
        pairs = zip(leaves, self.arguments, strict=False)
        return tree == self.tree and all(_fits(leaf, aval) for leaf, aval in pairs)


@dataclass(eq=False, slots=True)
class _Scope:
    """A call from outside, and the functions that it has met so far. `current`: the one whose body is
    traced, with `token`; `shared`: of members, as they are met."""

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
    """The line of the user's program that is being run."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE + os.sep):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"


class Recursive:
    """A recursive function of arrays; see `recursive`."""

    def __init__(self, body: Callable[..., Any], out_like: Any, limits: Limits) -> None:
        functools.update_wrapper(self, body)
        self.body = body
        self.out_like = out_like
        self.limits = limits
        self.born = next(_numbers)
        code = getattr(body, "__code__", None)
        self._signature = inspect.signature(body)
        self.name: str = getattr(body, "__name__", "recursion")
        self.source = f"{code.co_filename}:{code.co_firstlineno} ({self.name})" if code else ""

        def run(*given: Any) -> Any:
            return _from_outside(self, given)

        run.__name__ = run.__qualname__ = self.name
        self._jitted = jax.jit(run)

    def __repr__(self) -> str:
        return f"<recursive function {self.name}>"

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Calls the function with pytrees of arrays."""
        given = self.bound(args, named)
        scope = _ACTIVE.scopes[-1] if _ACTIVE.scopes else None
        if scope is not None and self.born < scope.number:
            return _refer(scope, _named(scope, self, given), given)
        return self._jitted(*given)

    def bound(self, args: Sequence[Any], named: Mapping[str, Any]) -> Given:
        """Arguments as Python binds them to the parameters of the body but for the first: an argument is
        given by name only if it has to be, and defaults are given like all else."""
        try:
            bound = self._signature.bind(None, *args, **named)
        except TypeError as error:
            raise TypeError(
                f"{self.name}{self._signature} gets itself as its first parameter, and a call gives the "
                f"others: {error}, at {where()}"
            ) from None
        bound.apply_defaults()
        return bound.args[1:], bound.kwargs


def _from_outside(function: Recursive, given: Given) -> Any:
    leaves, tree = jax.tree.flatten(given)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    _refuse_varying(function, leaves)
    avals = tuple(aval_of(leaf) for leaf in leaves)
    members = _traced(function, tree, avals, [[None] * len(leaves)])
    if endless([m.body for m in members]):
        raise RecursionTypeError(
            f"{function.name} calls itself whatever its arguments are; put the call on one side of a "
            "jax.lax.cond or switch, and a result on the other (jax.vmap makes a cond run both of its sides)",
            function.source,
        )
    same = invariants([m.body for m in members])
    shared = [[None if k is None else leaves[k] for k in own] for own in same]
    if any(value is not None for value in shared[0]):
        members = _traced(function, tree, avals, shared)
    environment, task = _task(function, members)
    _refuse_varying(function, environment)
    passed = [leaf for leaf, value in zip(leaves, members[0].shared, strict=True) if value is None]
    operands = (jnp.zeros((), TOKEN.dtype), *environment, *passed)
    results = recursion_p.bind(*operands, task=task, lanes=())[1:]
    return jax.tree.unflatten(members[0].results_tree, results)


def _refuse_varying(function: Recursive, values: Sequence[Any]) -> None:
    """JAX's check of what differs between devices does not see through recursion; nothing is marked if it is
    off."""
    kinds = (getattr(jax.typeof(value), "manual_axis_type", None) for value in values)
    if any(getattr(kind, "varying", ()) for kind in kinds):
        raise UnsupportedError(
            f"{function.name} gets values that differ between devices where jax.shard_map checks for them; "
            "pass jax.shard_map(..., check_vma=False) to call it",
            function.source,
        )


def _traced(
    function: Recursive, tree: Any, avals: tuple[Aval, ...], shared: Sequence[Sequence[Any]]
) -> list[_Member]:
    """The function and those that it meets. `shared`: for every one of them, as far as known, the values of
    arguments that all calls share."""
    scope = _Scope(next(_numbers), shared=shared)
    _ACTIVE.scopes.append(scope)
    try:
        _join(scope, function, tree, avals)
        for member in scope.members:  # grows on the way
            scope.current = member
            member.body = _body(scope, member)
    finally:
        _ACTIVE.scopes.pop()
    return scope.members


def _join(scope: _Scope, function: Recursive, tree: Any, avals: tuple[Aval, ...]) -> _Member:
    """A function that has not been met before."""
    like = function.out_like
    args, named = jax.tree.unflatten(tree, avals)
    if callable(like):
        with _noted(f"out_like= of {function.name}, which gets the arguments of a call: {function.source}"):
            like = like(*args, **named)
    elif like is None:
        if not args and not named:
            raise RecursionTypeError(
                f"{function.name} has no arguments; say what it returns with out_like=", function.source
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
        scope.token = token  # and not for longer than it lives
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
    if any(numbering is not Numbering.NONE for numbering in numberings(body)):
        raise RecursionTypeError(
            f"the body of {function.name} differentiates a call of its own; differentiate {function.name} "
            "as a whole, or return the derivative beside the value",
            function.source,
        )
    return body


@contextmanager
def _noted(what: str) -> Iterator[None]:
    """Where JAX, or the user's own code, does not know what its error is about."""
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
    why = ", like its first argument; say out_like= if that is not so" if function.out_like is None else ""
    return f"in the body of {function.name}, whose calls return {types}{why}: {function.source}"


def _inside_of(function: Recursive) -> RecursionTypeError:
    return RecursionTypeError(
        f"{function.name} is called by a recursive function that is defined in the body of {function.name}; "
        "define it beside it, and hand it what it needs as arguments",
        where(),
    )


def _named(scope: _Scope, function: Recursive, given: Given) -> int:
    """The number of a function that is called by its name. A new one for new types of arguments, if it is not
    itself what calls."""
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
    """The function, if it is what is traced, or has called that."""
    member = scope.current
    while member is not None and member.function is not function:
        member = member.caller
    return member


def _refer(scope: _Scope, found: int, given: Given) -> Any:
    """A call from inside, of a member."""
    leaves, tree = jax.tree.flatten(given)
    member = scope.members[found]
    function = member.function
    if tree != member.tree:
        raise RecursionTypeError(
            f"{function.name} is called with arguments of another structure than at first: {tree} instead of "
            f"{member.tree}",
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
    """The value in the type that is expected."""
    found = aval_of(value)
    if not _fits(value, aval):
        raise RecursionTypeError(
            f"{what} is {_spelled(aval)} at first and {_spelled(found)} here; all calls take arguments and "
            "return results of one type: pad arrays, and pass what is used of them as a number",
            place(),
        )
    return jnp.asarray(value, aval.dtype)


def _fits(value: Any, aval: Aval) -> bool:
    """Whether a value has a type, as far as JAX's promotion goes: Python scalars and weak types give way, but
    no float becomes an integer."""
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
    """The leaves of what a body returned, if they are what was announced."""
    function = member.function
    leaves, tree = jax.tree.flatten(results)
    spelled = jax.tree.map(lambda x: _spelled(aval_of(x)), results)
    wanted = jax.tree.unflatten(member.results_tree, [_spelled(a) for a in member.results])
    fits = tree == member.results_tree and all(map(_fits, leaves, member.results))
    if not fits:
        raise RecursionTypeError(
            f"{function.name} returned {spelled} where {wanted} was announced; convert the result, or say "
            "out_like= what it returns (without it, that is the type of the first argument)",
            function.source,
        )
    return [jnp.asarray(x, a.dtype) for x, a in zip(leaves, member.results, strict=True)]


def _task(function: Recursive, members: Sequence[_Member]) -> tuple[list[Any], Task]:
    """The environment's values, and the task over it."""
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
        most = _affordable(plan_machine(task).frame, STACK_BYTES, MOST_DEPTH)
        even = most - most % (LEVELS + 1)  # so that it can be unrolled
        task = replace(task, max_depth=even or most)
    return list(environment.values()), task


def _closed(member: _Member, avals: Sequence[Aval], places: dict[int, int]) -> Function:
    """The function with the environment as operands."""
    own = [places[id(value)] for value in constants(member.body)]
    passed = tuple(a for a, value in zip(member.arguments, member.shared, strict=True) if value is None)

    def run(token: Any, *operands: Any) -> list[Any]:
        environment, arguments = split(operands, len(avals))
        return evaluate(member.body, [environment[k] for k in own], [token, *arguments])

    body = jax.make_jaxpr(run)(TOKEN, *avals, *passed)
    name, source = member.function.name, member.function.source
    return Function(name, body, (), passed, (), member.results, source)


def _affordable(avals: Sequence[Aval], most_bytes: int, most: int) -> int:
    """How many rows of these types fit into so much memory."""
    return max(min(most_bytes // max(row_bytes(avals), 1), most), 1)


def recursive(
    fun: Callable[..., Any] | None = None,
    /,
    *,
    out_like: Any = None,
    max_depth: int | None = None,
    max_calls: int | None = None,
) -> Any:
    """A function of arrays that may call itself.

    The body gets the function as its first parameter, and calls it like any other inside of `lax.cond`,
    `lax.switch`, loops, or `jax.vmap`::

        @jax_cocktail.recursive(out_like=lambda node: jax.ShapeDtypeStruct((512,), jnp.float32))
        def encode(self, node):
            def inner():
                return jnp.tanh(jnp.concatenate([self(left[node]), self(right[node])]) @ w + b)
            return lax.cond(is_leaf[node], lambda: inputs[node], inner)

        vector = encode(root)

    This is the tree model of COCKTAILER (OSDI'23, section 5). Recursive functions may call each other by
    their names. The result works under `jax.jit`, `jax_cocktail.jit`, `vmap`, `grad` and all else; the trees
    may have any shape without compiling again, since it is data.

    Args:
      fun: ``fun(self, *args)``, of pytrees of arrays; parameters may have defaults, and be given by name.
        All calls take arguments, and return results, of one shape and dtype. What it closes over (weights,
        tables of a tree), and arguments that every call hands on as they are, are not copied.
      out_like: what a call returns: a pytree of arrays or of `jax.ShapeDtypeStruct`, or a function of the
        arguments that returns one. Default: like the first argument.
      max_depth: most calls under way at a time. Default: as many as 4 MiB of frames hold, at most 65536.
      max_calls: most calls in all, for differentiation, which keeps something of each. Default: as many as
        16 MiB hold, at most 65536.

    Returns:
      The function of `args`. A call that goes too deep, or is differentiated and makes too many calls, makes
      its results NaN (integers: the least number), and raises `jax.errors.JaxRuntimeError` (a `ValueError`
      where JAX calls the compiled program directly): on the CPU, and on a GPU if the program is ours, at the
      next call. Under `vmap` a `cond` runs both of its sides in all lanes, so a call that it guards may then
      fail in a lane that does not want it.

    Raises:
      RecursionTypeError: when it is called, if a call has arguments of another type than the first one, if
        the body returns anything but `out_like`, or if every call makes another one.
    """

    for name, limit in (("max_depth", max_depth), ("max_calls", max_calls)):
        is_number = isinstance(limit, int) and not isinstance(limit, bool)
        if limit is not None and not (is_number and 0 < limit <= MOST_LIMIT):
            raise ValueError(f"{name} is an integer from 1 to {MOST_LIMIT} or None, not {limit!r}")

    def wrapped(body: Callable[..., Any]) -> Recursive:
        return Recursive(body, out_like, Limits(max_depth, max_calls))

    return wrapped if fun is None else wrapped(fun)
