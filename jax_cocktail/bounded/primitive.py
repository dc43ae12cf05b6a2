"""The JAX primitive `bounded_while`, with all its rules.

Stock XLA gets JAX's own loop, and so does our compiler. Forward mode runs the tangents beside the values
(`derive.pushed`) and needs no tape. Where JAX linearises, which a tangent of its partial evaluation tells,
the values come from a loop with a tape, and the tangents from one that is transposed to the backward loop.
All of these are bounded loops, so that higher derivatives need no further rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad, batching, mlir, partial_eval

from jax_cocktail.bounded.derive import (
    Active,
    Derived,
    active_of,
    pulled,
    pushed,
    saved,
    tangent,
    taped,
    varying,
)
from jax_cocktail.bounded.loop import Key, Loop, run
from jax_cocktail.bounded.option import unbounded
from jax_cocktail.errors import UnsupportedError
from jax_cocktail.recursion.reference import no_tangent
from jax_cocktail.recursion.task import NUMBER, Elements, batched, is_float, once, row_bytes

Results = list[Any]
# A longer tape has checkpoints. The memory of the machine does not count: where JAX derives a loop, neither
# the device nor the options are known, several processes have to trace the same, and stored plans would be
# lost.
TAPE_BYTES = 64 << 20

bounded_p = jex.Primitive("bounded_while")
bounded_p.multiple_results = True


def _abstract(*operands: Any, loop: Loop, elements: tuple[Elements, ...]) -> Results:
    return batched(loop.results, elements)


def expanded(
    *operands: Any, loop: Loop, elements: tuple[Elements, ...], together: bool = False
) -> Results:
    """The loop as JAX's own. `together`: batch elements with rows advance together, as others always do."""
    if not elements:
        return unbounded(run)(loop, operands)
    level, inner = elements[0], elements[1:]
    one = partial(expanded, loop=loop, elements=inner, together=together)
    if together or not (loop.rows or loop.row_results):
        every = jax.vmap(one, [0 if flag else None for flag in level.operands])(*operands)
        return [x if f else x.sum(axis=0, dtype=x.dtype) for x, f in zip(every, level.results, strict=True)]
    return _one_by_one(one, operands, level)


def _one_by_one(one: Any, operands: Sequence[Any], level: Elements) -> Results:
    """Runs one batch element after the other, so that none copies its tape in a trip that it does not make,
    and no sum over the batch exists for each of them."""
    batched = [x for x, flag in zip(operands, level.operands, strict=True) if flag]

    def element(own: Sequence[Any]) -> Results:
        given = iter(own)
        return list(one(*(next(given) if f else x for x, f in zip(operands, level.operands, strict=True))))

    types = jax.eval_shape(element, [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in batched])
    zeros = [jnp.zeros(t.shape, t.dtype) for t, f in zip(types, level.results, strict=True) if not f]

    def step(sums: Results, own: Sequence[Any]) -> tuple[Results, Results]:
        results = element(own)
        terms = [x for x, f in zip(results, level.results, strict=True) if not f]
        sums = [a + b for a, b in zip(sums, terms, strict=True)]
        return sums, [x for x, f in zip(results, level.results, strict=True) if f]

    sums, stacked = lax.scan(step, zeros, batched)
    kept, summed = iter(stacked), iter(sums)
    return [next(kept) if f else next(summed) for f in level.results]


@once
def _jitted(loop: Loop, elements: tuple[Elements, ...]) -> Any:
    return jax.jit(lambda *operands: bounded_p.bind(*operands, loop=loop, elements=elements))


def _eager(*operands: Any, loop: Loop, elements: tuple[Elements, ...]) -> Results:
    if jax.config.jax_disable_jit:
        return expanded(*operands, loop=loop, elements=elements)
    return list(_jitted(loop, elements)(*operands))


bounded_p.def_abstract_eval(_abstract)
bounded_p.def_impl(_eager)
mlir.register_lowering(bounded_p, mlir.lower_fun(partial(expanded, together=True), multiple_results=True))
mlir.register_lowering(bounded_p, mlir.lower_fun(expanded, multiple_results=True), platform="cpu")


# ---- derivatives -------------------------------------------------------------------------------------------


class _Batches:
    """The batch axes of a loop's values by origin: a derivative has those of what it belongs to."""

    def __init__(self, elements: tuple[Elements, ...], derived: Derived) -> None:
        keys = (*derived.operands, *derived.results)
        flags = [(*level.operands, *level.results) for level in elements]
        self._levels = [
            (level.size, dict(zip(keys, own, strict=True)))
            for level, own in zip(elements, flags, strict=True)
        ]

    def of(self, derived: Derived) -> tuple[Elements, ...]:
        return tuple(
            Elements(
                size,
                tuple(_has_axis(key, known) for key in derived.operands),
                tuple(_has_axis(key, known) for key in derived.results),
            )
            for size, known in self._levels
        )

    def differ(self, keys: Iterable[Key]) -> bool:
        """True if the tangent of one of these values has other axes than the value."""
        pairs = [(key, ("d", *_own(key))) for key in keys]
        return any(_has_axis(a, known) != _has_axis(b, known) for _, known in self._levels for a, b in pairs)


def _has_axis(key: Key, known: Mapping[Key, bool]) -> bool:
    whose, sort, _ = key
    if sort == "sum":
        return False
    # a cotangent has the axes of the tangent, and a tangent those of the value, unless it is known to differ
    others = {"c": ("c", "d", ""), "d": ("d", ""), "": ("", "d")}[whose]
    found = (known[other, *_own(key)] for other in others if (other, *_own(key)) in known)
    return next(found, True) if sort in ("saved", "trips", "count") else next(found)


def _own(key: Key) -> tuple[str, int]:
    return key[1:]


def _bound(derived: Derived, values: dict[Key, Any], batches: _Batches) -> None:
    """Binds a loop, and adds its results to the values."""
    operands = [values[key] for key in derived.operands]
    found = bounded_p.bind(*operands, loop=derived.loop, elements=batches.of(derived))
    values.update(zip(derived.results, found, strict=True))


def _varies_over_devices(value: Any) -> bool:
    """True for a value of `jax.shard_map` with check_vma=True, whose type says along which axes it varies."""
    kind = jax.typeof(value)
    varying = getattr(getattr(kind, "manual_axis_type", None), "varying", None)
    return bool(varying or getattr(kind, "vma", None))


def _jvp(primals: Any, tangents: Any, *, loop: Loop, elements: tuple[Elements, ...]) -> Any:
    if any(map(_varies_over_devices, primals)):
        raise UnsupportedError(
            f"{loop.name} has no derivative under jax.shard_map with check_vma=True; pass check_vma=False"
        )
    floats = list(map(is_float, loop.operands))  # a primal may be a number of Python's, which has no dtype
    moving = [not isinstance(t, ad.Zero) and flag for t, flag in zip(tangents, floats, strict=True)]
    active = active_of(loop, moving)
    linearises = any(isinstance(t, partial_eval.JaxprTracer) for t in tangents)
    if linearises and (trips := _segment(loop, active, elements)) > 1:
        return _jvp_in_segments(primals, tangents, loop, elements, trips)
    plain = Derived(loop, loop.operand_keys, loop.result_keys)
    values = dict(zip(plain.operands, primals, strict=True))
    values |= {
        ("d", *_own(key)): ad.instantiate_zeros(t)
        for key, t, flag in zip(plain.operands, tangents, floats, strict=True)
        if flag
    }
    batches = _Batches(elements, plain)
    if linearises:
        _bound(taped(loop, active), values, batches)
        values["", "count", 0] = values["", "trips", 0]
    results = [values[key] for key in plain.results] if linearises else []
    _bound(tangent(loop, active) if linearises else pushed(loop, active), values, batches)
    results = results or [values[key] for key in plain.results]
    pairs = [(("d", *_own(key)), x) for key, x in zip(plain.results, results, strict=True)]
    return results, [values[key] if key in values else no_tangent(x) for key, x in pairs]


ad.primitive_jvps[bounded_p] = _jvp


def _segment(loop: Loop, active: Active, elements: Sequence[Elements]) -> int:
    """The trips between two checkpoints; 0 if the tape has all trips."""
    if loop.checkpoints == 0 or loop.condition is None or loop.rows or loop.row_results:
        return 0
    if loop.checkpoints is not None:  # the last trip of `most` only tells that there are too many
        return -(-loop.most // loop.checkpoints) if loop.checkpoints < loop.most - 1 else 0
    kept = [aval for aval, flag in zip(loop.carried, saved(loop, active), strict=True) if flag]
    tape = row_bytes(kept) * loop.most * math.prod(level.size for level in elements)
    return math.isqrt(loop.most - 1) + 1 if tape > TAPE_BYTES else 0


@once
def _in_segments(loop: Loop, trips: int) -> Loop:
    """A loop over segments of so many trips. Its derivative keeps the carries at the begin of each segment,
    and runs the trips of a segment again, with a tape, in the backward loop."""
    inner = replace(loop, most=trips, checkpoints=0, origin=None)
    test, heads = jex.jaxpr_as_fun(loop.condition), len(loop.heads)
    fixed = heads + len(loop.constants)

    def condition(*values: Any) -> Any:
        return (values[heads] < loop.most) & test(*values[:heads], *values[heads + 1 :])[0]

    def body(*values: Any) -> Results:
        found = bounded_p.bind(*values[:fixed], *values[fixed + 1 :], loop=inner, elements=())
        return [values[fixed] + found[0], *found[1:]]

    carried = (NUMBER, *loop.carried)
    return replace(
        loop,
        most=-(-loop.most // trips),
        condition=jax.make_jaxpr(condition)(*loop.heads, *carried),
        body=jax.make_jaxpr(body)(*loop.heads, *loop.constants, *carried),
        constants=(*loop.heads, *loop.constants),
        carried=carried,
        checkpoints=0,
        origin=None,
    )


def _jvp_in_segments(
    primals: Any, tangents: Any, loop: Loop, elements: tuple[Elements, ...], trips: int
) -> Any:
    def arranged(values: Sequence[Any], zero: Any) -> list[Any]:
        heads, constants, carried, _ = loop.split(values)
        return [*heads, *heads, *constants, zero, *carried]

    outer, zero = _in_segments(loop, trips), jnp.int32(0)
    levels = tuple(
        Elements(x.size, tuple(arranged(x.operands, False)), (True, *x.results)) for x in elements
    )
    values = arranged(primals, zero), arranged(tangents, no_tangent(zero))
    found, moved = _jvp(*values, loop=outer, elements=levels)
    return found[1:], moved[1:]


def _without_tangents(chosen: Sequence[bool], loop: Loop, elements: tuple[Elements, ...]) -> Any:
    """Binds of the loop without tangents, and flags for its operands and results; None if the flags do not
    choose tangents, and these alone."""
    origin = loop.origin
    if origin is None or origin.taped or not any(chosen):
        return None
    if any(flag and key[0] != "d" for key, flag in zip(origin.operands, chosen, strict=True)):
        return None
    plain = Derived(origin.base, origin.base.operand_keys, origin.base.result_keys)
    batches = _Batches(elements, Derived(loop, origin.operands, origin.results))
    flags = [[key[0] == "" for key in keys] for keys in (origin.operands, origin.results)]
    return {"loop": origin.base, "elements": batches.of(plain)}, *flags


def _batch(operands: Any, dims: Any, *, loop: Loop, elements: tuple[Elements, ...]) -> Any:
    flags = tuple(d is not None for d in dims)
    (size,) = {x.shape[d] for x, d, f in zip(operands, dims, flags, strict=True) if f}
    moved = [jnp.moveaxis(x, d, 0) if f else x for x, d, f in zip(operands, dims, flags, strict=True)]
    level = Elements(size, flags, (True,) * len(loop.results))
    found = bounded_p.bind(*moved, loop=loop, elements=(level, *elements))
    alone = _without_tangents(flags, loop, elements)
    if alone is None:
        varies = varying(loop, flags) if size else level.results
        results = [x if flag else x[0] for x, flag in zip(found, varies, strict=True)]
        return results, [0 if flag else None for flag in varies]
    params, taken, given = alone  # one value for a batch of tangents, which have axes of their own
    own = iter(bounded_p.bind(*(x for x, flag in zip(operands, taken, strict=True) if flag), **params))
    results = [next(own) if f else x for x, f in zip(found, given, strict=True)]
    return results, [None if f else 0 for f in given]


batching.primitive_batchers[bounded_p] = _batch


def _partial_eval(trace: Any, *tracers: Any, **params: Any) -> Results:
    """Partial evaluation with unknown tangents: what has no tangent is computed now, and all of it again
    later, as for JAX's own loop."""
    later = trace.default_process_primitive(bounded_p, tracers, params)
    found = _without_tangents([not t.pval.is_known() for t in tracers], **params)
    if found is None:
        return list(later)
    known, taken, given = found
    own = [t.pval.get_known() for t, flag in zip(tracers, taken, strict=True) if flag]
    now = iter(bounded_p.bind(*own, **known))
    return [next(now) if flag else x for x, flag in zip(later, given, strict=True)]


def _partial_eval_of_equation(saveable: Any, unknown: Any, instantiated: Any, equation: Any) -> Any:
    """Partial evaluation of an equation, for `jax.checkpoint`: the equation now, that of later, and flags."""
    missing = [
        x
        for x, flag in zip(equation.invars, instantiated, strict=True)
        if not (flag or isinstance(x, jex.Literal))
    ]
    count = len(equation.outvars)
    if not any(unknown):
        return equation, equation, [False] * count, [True] * count, missing
    found = _without_tangents(unknown, **equation.params)
    if found is None:
        return None, equation, [True] * count, [True] * count, missing
    known, taken, given = found
    now = equation.replace(
        params=known,
        invars=[x for x, flag in zip(equation.invars, taken, strict=True) if flag],
        outvars=[x for x, flag in zip(equation.outvars, given, strict=True) if flag],
    )
    return now, equation, [not flag for flag in given], [True] * count, missing


partial_eval.custom_partial_eval_rules[bounded_p] = _partial_eval
partial_eval.partial_eval_jaxpr_custom_rules[bounded_p] = _partial_eval_of_equation


def _transpose(cotangents: Any, *operands: Any, loop: Loop, elements: tuple[Elements, ...]) -> Any:
    origin = loop.origin
    known = {} if origin is None else dict(zip(origin.operands, operands, strict=True))
    linear = {key for key, x in known.items() if ad.is_undefined_primal(x)}
    if origin is None or any(whose != "d" for whose, _, _ in linear):
        raise UnsupportedError("a loop can be transposed only after linearisation; use jax.vjp or jax.grad")
    given = dict(zip(origin.results, cotangents, strict=True))
    values = {key: x for key, x in known.items() if key not in linear}
    values |= {
        ("c", *_own(key)): ad.instantiate_zeros(ct) if isinstance(ct, ad.Zero) else ct
        for key, ct in given.items()
        if key[0] == "d"
    }
    batches = _Batches(elements, Derived(loop, origin.operands, origin.results))
    if origin.taped:
        back = pulled(origin.base, origin.active)
        sums = (key for key in back.operands if key[1] == "sum")
        values |= {key: jnp.zeros(*_type(origin.base.constants[key[2]])) for key in sums}
        _bound(back, values, batches)
    else:
        _pull_again(origin.base, values, linear, batches)
    return [values["c", *_own(key)] if key in linear else None for key in origin.operands]


def _type(aval: Any) -> tuple[Any, Any]:
    return aval.shape, aval.dtype


def _pull_again(base: Loop, values: dict[Key, Any], linear: set[Key], batches: _Batches) -> None:
    """The cotangents where the values of the loop were computed without a tape: they are computed again."""
    plain = Derived(base, base.operand_keys, base.result_keys)
    moving = [key for key in plain.operands if ("d", *_own(key)) in linear]
    if batches.differ(moving):
        raise UnsupportedError(
            "a batch of tangents of one loop cannot be transposed; use jax.vmap of jax.vjp"
        )
    results = [key for key in plain.results if ("c", *_own(key)) in values]

    def again(*own: Any) -> Results:
        found = values | dict(zip(moving, own, strict=True))
        _bound(plain, found, batches)
        return [found[key] for key in results]

    _, pull = jax.vjp(again, *(values[key] for key in moving))
    found = pull([values["c", *_own(key)] for key in results])
    values.update((("c", *_own(key)), x) for key, x in zip(moving, found, strict=True))


ad.primitive_transposes[bounded_p] = _transpose
