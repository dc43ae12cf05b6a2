"""The JAX primitive `recursion`, with all its rules.

`recursion` runs a task (see `recursion.task`). `reference` (`recursion.reference`) is a call of one of the
task's functions inside a body. Stock XLA gets an explicit stack machine (`recursion.machine`). So does our
compiler, which sees an ordinary loop over an ordinary branch.

Differentiation (`recursion.linear`): the jvp rule binds the task with a tape, and a second task that is
linear in the tangents and reads the tape. The transpose rule binds the transpose of the second task. All
three are tasks, so the rules apply to their own results, and Hessian-vector products, rematerialisation and
vmap need no further rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad, batching, mlir

from jax_cocktail.errors import UnsupportedError
from jax_cocktail.primitives.units import unit_count
from jax_cocktail.recursion import linear
from jax_cocktail.recursion.alike import merged
from jax_cocktail.recursion.failure import check, description
from jax_cocktail.recursion.levels import run_levels, widths
from jax_cocktail.recursion.linear import Kind, Source
from jax_cocktail.recursion.machine import StackPlan, planned, run_machine
from jax_cocktail.recursion.order import room_of
from jax_cocktail.recursion.paths import LevelPlan, levels_of, predicated, worth
from jax_cocktail.recursion.reference import no_tangent
from jax_cocktail.recursion.siblings import FRONTIER, Siblings, run_siblings, siblings_of
from jax_cocktail.recursion.task import RECURSION, TOKEN, Elements, Task, batched, is_float, once, row_bytes
from jax_cocktail.utask.failure import FINE

Results = list[Any]
MOST_ROWS = 1 << 30  # half the range of an int32


# -- recursion -----------------------------------------------------------------------------------------------
recursion_p = jex.Primitive(RECURSION)
recursion_p.multiple_results = True


def _abstract(*operands: Any, task: Task, elements: tuple[Elements, ...]) -> Results:
    return batched(task.results, elements)


def expanded(
    *operands: Any,
    task: Task,
    elements: tuple[Elements, ...],
    lockstep: bool = False,
    by_levels: bool = False,
    zeros: tuple[int, ...] = (),
) -> Results:
    """Expands the recursion into JAX's own loops and branches. `lockstep`: batch elements advance together.
    `by_levels`: run calls level by level if that is possible and pays. `zeros`: the operands that are known
    to be arrays of zeros without a sign."""
    siblings = siblings_of(planned(task)) if by_levels and not elements else ""
    if isinstance(siblings, str) or isinstance(_side_by_side(task, elements), LevelPlan):
        status, results = _run(operands, task, elements, lockstep, by_levels, zeros)
    else:
        status, results = lax.cond(
            unit_count() > 1,
            lambda: run_siblings(siblings, operands),
            lambda: run_machine(task, operands, unrolled=True),
        )
    token = jnp.zeros([level.size for level in elements if level.results[0]], TOKEN.dtype)
    return [token, *check(status, results, description(task.entry.name, task.max_depth, task.max_calls))]


def _run(
    operands: Sequence[Any],
    task: Task,
    elements: tuple[Elements, ...],
    lockstep: bool,
    by_levels: bool,
    zeros: tuple[int, ...] = (),
) -> tuple[Any, Results]:
    """The status of all batch elements, and the results without the token."""
    levels = _side_by_side(task, elements) if by_levels else ""
    if isinstance(levels, LevelPlan):
        levels = predicated(merged(levels, [k - 1 - task.numbers for k in zeros]))
        return run_levels(levels, operands, elements, lambda: _run(operands, task, elements, lockstep, False))
    if not elements:
        return run_machine(task, operands, unrolled=by_levels)
    level, inner = elements[0], elements[1:]
    batched = [x for x, flag in zip(operands, level.operands, strict=True) if flag]

    flags = level.results[1:]

    def one(element: Sequence[Any]) -> tuple[Any, Results]:
        own = iter(element)
        values = [next(own) if f else x for x, f in zip(operands, level.operands, strict=True)]
        return _run(values, task, inner, lockstep, by_levels)

    if lockstep:
        status, every = jax.vmap(one)(batched)
        results = [x if f else x.sum(axis=0, dtype=x.dtype) for x, f in zip(every, flags, strict=True)]
        return status.max(), results
    return _one_by_one(one, batched, flags)


def _one_by_one(
    one: Callable[[Sequence[Any]], tuple[Any, Results]], batched: Sequence[Any], flags: Sequence[bool]
) -> tuple[Any, Results]:
    """Runs one batch element after the other and accumulates sums, so that no sum exists per batch element.
    Without sums, batch elements are independent, and our compiler distributes them over all units."""
    _, types = jax.eval_shape(one, [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in batched])
    zeros = [jnp.zeros(t.shape, t.dtype) for t, flag in zip(types, flags, strict=True) if not flag]

    def step(sums: Results, element: Sequence[Any]) -> tuple[Results, tuple[Any, Results]]:
        status, results = one(element)
        terms = [x for x, flag in zip(results, flags, strict=True) if not flag]
        sums = [x + y for x, y in zip(sums, terms, strict=True)]
        return sums, (status, [x for x, flag in zip(results, flags, strict=True) if flag])

    sums, (statuses, stacked) = lax.scan(step, zeros, list(batched))
    summed, kept = iter(sums), iter(stacked)
    worst = statuses.max(initial=FINE)
    return worst, [next(kept) if flag else next(summed) for flag in flags]


def _side_by_side(task: Task, elements: tuple[Elements, ...]) -> LevelPlan | str:
    """The level-by-level strategy, or the reason why it is impossible or does not pay."""
    levels, size = levels_of(planned(task)), _trees(elements)
    if isinstance(levels, str):
        return levels
    if not size:
        return "the batch is empty"
    if (task.rows or task.row_results) and task.max_calls * size > MOST_ROWS:
        return "the tapes of all batch elements have too many rows"
    return levels if worth(levels) else "calls share no large matrix"


def _trees(elements: tuple[Elements, ...]) -> int:
    return math.prod(level.size for level in elements)


def schedule_text(task: Task, elements: tuple[Elements, ...], on_stock: bool = False) -> str:
    """One sentence for people: our compiler's strategy for a task. `on_stock`: stock XLA runs its loops."""
    plan, name = planned(task), _name(task, on_stock)
    found = _side_by_side(task, elements)
    if isinstance(found, LevelPlan):
        size = _trees(elements)
        what = f"level-synchronous, up to {widths(size)[-1]} calls at a time"
        trees = f" of {size} batch elements" if size > 1 else ""
        return f"{name}{what}{trees}, if there are at most {room_of(found, size)} calls; else with a stack"
    others = f"not level-synchronous: {found}"
    stack = _stack_text(planned(task, unrolled=True))
    siblings = (
        siblings_of(plan)
        if not elements
        else "batch-parallel: under vmap, each unit runs whole batch elements"
    )
    if on_stock or not isinstance(siblings, Siblings):
        return f"{name}{stack}; {others}"
    each = f"{FRONTIER} calls at a time, each with {_stack_text(plan)}"
    return f"{name}frontier-parallel on several units: {each}; on one unit, {stack}; {others}"


def stock_text(task: Task, elements: tuple[Elements, ...]) -> str:
    """One sentence for people: the strategy for a task that stock XLA compiles unchanged."""
    return _name(task, on_stock=True) + _stack_text(planned(task))


def _name(task: Task, on_stock: bool) -> str:
    name = f"{task.entry.name} at {task.entry.source}" if task.entry.source else task.entry.name
    return f"{name}: on stock XLA " if on_stock else f"{name}: "


def _stack_text(plan: StackPlan) -> str:
    stack = f"a stack of {plan.depth} frames of {row_bytes(plan.frame)} bytes"
    stack += ", unrolled once" if plan.levels > 1 else ""
    return stack + (f", {len(plan.tails)} calls in tail position reuse the frame" if plan.tails else "")


@once
def expanded_jaxpr(task: Task, elements: tuple[Elements, ...], zeros: tuple[int, ...] = ()) -> Any:
    """The jaxpr of `expanded`, for our compiler."""
    avals = [
        jax.ShapeDtypeStruct((*(x.size for x in elements if x.operands[k]), *aval.shape), aval.dtype)
        for k, aval in enumerate(task.operands)
    ]
    run = partial(expanded, task=task, elements=elements, by_levels=True, zeros=zeros)
    return jax.make_jaxpr(run)(*avals)


def _eager(*operands: Any, task: Task, elements: tuple[Elements, ...]) -> Results:
    if jax.config.jax_disable_jit:
        return expanded(*operands, task=task, elements=elements)

    def run(*given: Any) -> Results:
        if not isinstance(given[0], jax.core.Tracer):  # jax.debug_nans searches for the step that made a NaN
            raise FloatingPointError(f"invalid value encountered in {task.entry.name}, {task.entry.source}")
        return list(recursion_p.bind(*given, task=task, elements=elements))

    return list(jax.jit(run)(*operands))


def _in_lockstep(*operands: Any, **params: Any) -> Results:
    return expanded(*operands, **params, lockstep=True)


recursion_p.def_abstract_eval(_abstract)
recursion_p.def_impl(_eager)
# One batch element after the other is best on one core; other platforms are parallel.
mlir.register_lowering(recursion_p, mlir.lower_fun(_in_lockstep, multiple_results=True))
mlir.register_lowering(recursion_p, mlir.lower_fun(expanded, multiple_results=True), platform="cpu")


def _batch(operands: Any, dims: Any, *, task: Task, elements: tuple[Elements, ...]) -> Any:
    flags = tuple(d is not None for d in dims)
    (size,) = {x.shape[d] for x, d, f in zip(operands, dims, flags, strict=True) if f}
    moved = [jnp.moveaxis(x, d, 0) if f else x for x, d, f in zip(operands, dims, flags, strict=True)]
    level = Elements(size, flags, (True,) * len(task.results))
    found = recursion_p.bind(*moved, task=task, elements=(level, *elements))
    return found, [0] * len(found)


batching.primitive_batchers[recursion_p] = _batch


def _is_zero(tangent: Any) -> bool:
    return isinstance(tangent, ad.Zero)


def _jvp(primals: Any, tangents: Any, *, task: Task, elements: tuple[Elements, ...]) -> Any:
    active = tuple(not _is_zero(t) and is_float(p) for p, t in zip(primals, tangents, strict=True))
    parts = linear.linearise(task, active)
    forward = tuple(
        Elements(
            level.size,
            level.operands,
            tuple(kind is not Kind.RESULT or level.results[k] for kind, k in parts.forward_results),
        )
        for level in elements
    )
    made = list(
        zip(
            parts.forward_results,
            recursion_p.bind(*primals, task=parts.forward, elements=forward),
            strict=True,
        )
    )
    values: dict[Any, Any] = {source: x for source, x in made if source[0] is Kind.TAPE}
    values |= {(Kind.PRIMAL, k): x for k, x in enumerate(primals)}
    values |= {
        (Kind.TANGENT, k): ad.instantiate_zeros(t) for k, t in enumerate(tangents) if is_float(primals[k])
    }
    # a run-time value: like the tape, it is zero if a branch with the recursion was not taken
    values[Kind.NUMBER, 0] = lax.optimization_barrier(jnp.ones((), jnp.int32))
    levels = tuple(
        Elements(
            level.size,
            tuple(_has_elements(source, level) for source in parts.linear_operands),
            tuple(level.results[k] for k in parts.linear_results),
        )
        for level in elements
    )
    moved = recursion_p.bind(*(values[s] for s in parts.linear_operands), task=parts.linear, elements=levels)
    found = dict(zip(parts.linear_results, moved, strict=True))
    results = {source[1]: x for source, x in made if source[0] is Kind.RESULT}
    out = [results[k] for k in range(len(results))]
    return out, [found[k] if k in found else no_tangent(x) for k, x in enumerate(out)]


def _has_elements(source: Source, level: Elements) -> bool:
    kind, k = source
    if kind in (Kind.PRIMAL, Kind.TANGENT):
        return level.operands[k]
    return level.results[k] if kind is Kind.RESULT else kind is Kind.TAPE


ad.primitive_jvps[recursion_p] = _jvp


def _transpose(cotangents: Any, *operands: Any, task: Task, elements: tuple[Elements, ...]) -> Any:
    if task.linear is None:
        raise UnsupportedError(
            "a recursion can be transposed only after linearisation; use jax.vjp or jax.grad"
        )
    transposed, sources, targets = linear.transpose(task)
    if any(kind is Kind.PRIMAL and ad.is_undefined_primal(operands[k]) for kind, k in sources):
        raise UnsupportedError("a recursion cannot be transposed with respect to a nonlinear operand")
    dense = [ad.instantiate_zeros(ct) if _is_zero(ct) else ct for ct in cotangents]
    levels = tuple(
        Elements(
            level.size,
            tuple(_has_elements(source, level) for source in sources),
            tuple(level.operands[k] for k in targets),
        )
        for level in elements
    )
    values = [operands[k] if kind is Kind.PRIMAL else dense[k] for kind, k in sources]
    made = dict(zip(targets, recursion_p.bind(*values, task=transposed, elements=levels), strict=True))
    return [made[k] if ad.is_undefined_primal(x) else None for k, x in enumerate(operands)]


ad.primitive_transposes[recursion_p] = _transpose
