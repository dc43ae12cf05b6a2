"""The JAX primitive `reference`: a call of a recursive function inside a body, allowed wherever an equation
is.

Operands: token, the number of the call if the caller gives it, arguments. Results: token, the number of the
call if it is fresh, results. See `recursion.task`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad, batching

from jax_cocktail.recursion.task import NUMBER, TOKEN, Aval, Numbering, is_float

Results = list[Any]


def reference_results(numbering: Numbering, results: Sequence[Aval]) -> tuple[Aval, ...]:
    """The results of a reference: token, the callee's number if it is fresh, results."""
    return (TOKEN, *([NUMBER] if numbering is Numbering.FRESH else []), *results)


def no_tangent(value: Any) -> Any:
    """The zero tangent of an integer."""
    return ad.Zero(jax.typeof(value).to_tangent_aval())


reference_p = jex.Primitive("reference")
reference_p.multiple_results = True


def _abstract_reference(
    *operands: Any, function: int, numbering: Numbering, results: tuple[Aval, ...]
) -> Results:
    return [jax.core.ShapedArray(aval.shape, aval.dtype) for aval in reference_results(numbering, results)]


def _outside(*operands: Any, **params: Any) -> Any:
    raise TypeError(
        "a recursive function was called through its first parameter after it had returned; "
        "call it by its own name instead"
    )


reference_p.def_abstract_eval(_abstract_reference)
reference_p.def_impl(_outside)


def _jvp_reference(primals: Any, tangents: Any, *, numbering: Numbering, **params: Any) -> Any:
    """Binds a call for the values and the callee's number, and a linear call with that number."""
    after = Numbering.GIVEN if numbering is Numbering.GIVEN else Numbering.FRESH
    made = reference_p.bind(*primals, numbering=after, **params)
    start = 1 + (numbering is Numbering.GIVEN)
    number = primals[1] if numbering is Numbering.GIVEN else made[1]
    moves = [
        ad.instantiate_zeros(t) for p, t in zip(primals[start:], tangents[start:], strict=True) if is_float(p)
    ]
    kept = tuple(aval for aval in params["results"] if is_float(aval))
    moved = iter(
        reference_p.bind(
            ad.instantiate_zeros(tangents[0]),
            number,
            *moves,
            numbering=Numbering.GIVEN,
            **{**params, "results": kept},
        )
    )
    out = [made[0], *made[2:]] if numbering is Numbering.NONE else made
    return out, [next(moved) if is_float(x) else no_tangent(x) for x in out]


ad.primitive_jvps[reference_p] = _jvp_reference


def _transpose_reference(cotangents: Any, token: Any, number: Any, *moves: Any, **params: Any) -> Any:
    dense = [ad.instantiate_zeros(ct) if isinstance(ct, ad.Zero) else ct for ct in cotangents]
    wanted = tuple(
        Aval(m.aval.shape, m.aval.dtype) if ad.is_undefined_primal(m) else Aval(m.shape, m.dtype)
        for m in moves
    )
    made = reference_p.bind(dense[0], number, *dense[1:], **{**params, "results": wanted})
    found = [x if ad.is_undefined_primal(m) else None for x, m in zip(made[1:], moves, strict=True)]
    return [made[0] if ad.is_undefined_primal(token) else None, None, *found]


ad.primitive_transposes[reference_p] = _transpose_reference


def _batch_reference(operands: Any, dims: Any, **params: Any) -> Any:
    """Runs a vmap inside a body as one call after the other."""
    flags = [d is not None for d in dims]
    moved = [jnp.moveaxis(x, d, 0) for x, d, f in zip(operands, dims, flags, strict=True) if f]

    def one(element: Sequence[Any]) -> Results:
        own = iter(element)
        values = (next(own) if f else x for x, f in zip(operands, flags, strict=True))
        return list(reference_p.bind(*values, **params))

    found = lax.map(one, moved)
    return found, [0] * len(found)


batching.primitive_batchers[reference_p] = _batch_reference
