"""Cheap sums over all calls, for terms that are products or mostly zero.

The gradient of weights is a sum of one product per call. The factors are stored, and multiplied for many
calls at a time after the recursion: a matrix product of tall factors replaces one outer product per call. The
gradient of a table is zero except in the rows that a call has read; these are added in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_cocktail.recursion.blocks import Accumulate, AddInto, BasicBlock, Keep
from jax_cocktail.recursion.memory import put, row
from jax_cocktail.recursion.structure import Atom, Const, Op, Var
from jax_cocktail.recursion.task import Aval

CHUNK = 32  # the fewest calls whose factors are multiplied at a time
WIDE_CHUNK = 256  # the most; each chunk reads and writes the sum once
_MOVES = frozenset({"transpose", "reshape", "pad"})  # of a sum is the sum of them; pads are with zeros
_PATCHES = frozenset({"dynamic_update_slice", "scatter-add", "scatter_add"})


@dataclass(frozen=True, eq=False, slots=True)
class Site:
    """A place that adds a product to a sum. `finish`: transposes, reshapes and pads of the product."""

    target: int
    params: Mapping[str, Any]
    factors: tuple[Aval, Aval]
    product: Aval
    finish: tuple[Callable[..., Sequence[Any]], ...]


def rewrite(blocks: Sequence[BasicBlock], may_keep: bool) -> tuple[Site, ...]:
    """Replaces sums by cheaper steps. `may_keep`: calls are numbered and few enough to store factors."""
    uses: dict[Var, int] = {}
    for block in blocks:
        for v in _all_reads(block):
            uses[v] = uses.get(v, 0) + 1
    repeats = {block.function for block in blocks if block.is_header}
    sites: list[Site] = []
    for block in blocks:
        keeps = may_keep and block.function not in repeats
        makers = {v: step for step in block.steps if isinstance(step, Op) for v in step.outputs}
        block.steps = [
            _better(step, makers, uses, sites, keeps) if isinstance(step, Accumulate) else step
            for step in block.steps
        ]
    return tuple(sites)


def _all_reads(block: BasicBlock) -> list[Var]:
    assert block.end is not None
    found: list[Any] = [a for step in block.steps for a in step.inputs]
    found += block.end.atoms
    return [v for v in found if isinstance(v, Var)]


def _better(
    step: Accumulate, makers: Mapping[Var, Op], uses: Mapping[Var, int], sites: list[Site], keeps: bool
) -> Accumulate | AddInto | Keep:
    value, moves = step.value, list[Op]()
    maker = makers.get(value)
    while maker is not None and _is_move(maker, makers) and uses[value] == 1:
        assert isinstance(maker.inputs[0], Var)
        moves.append(maker)
        value = maker.inputs[0]
        maker = makers.get(value)
    if maker is None or uses[value] != 1:
        return step
    if maker.name in _PATCHES and not moves and _is_zero(maker.inputs[0], makers):
        if maker.name == "dynamic_update_slice":
            return AddInto(step.target, _add_slice, _add_slice_in_row, maker.inputs[1:])
        return AddInto(step.target, *_scattering(maker), maker.inputs[1:])
    if maker.name == "dot_general" and keeps:
        factors, product_type = maker.inputs, value.aval
        if moves and _is_outer(maker) and moves[-1].name == "transpose":
            factors, product_type = factors[::-1], moves.pop().outputs[0].aval
        types = (factors[0].aval, factors[1].aval)
        finish = tuple(partial(_moved, move) for move in moves[::-1])
        sites.append(Site(step.target, maker.params, types, product_type, finish))
        return Keep(len(sites) - 1, factors)
    return step


def _is_move(step: Op, makers: Mapping[Var, Op]) -> bool:
    if step.name not in _MOVES or not isinstance(step.inputs[0], Var):
        return False
    return step.name != "pad" or _is_zero(step.inputs[1], makers)


def _moved(move: Op, value: Any) -> Sequence[Any]:
    return move.run(value, *(jnp.zeros((), value.dtype) for _ in move.inputs[1:]))


def _is_outer(product: Op) -> bool:
    """True if this is the outer product of two vectors, whose transpose is the product in reverse order."""
    return product.outputs[0].aval.ndim == 2 and all(factor.aval.ndim == 1 for factor in product.inputs)


def _is_zero(atom: Atom, makers: Mapping[Var, Op]) -> bool:
    if isinstance(atom, Const):
        return not np.any(np.asarray(atom.value))
    maker = makers.get(atom) if isinstance(atom, Var) else None
    return maker is not None and maker.is_zero


def _add_slice(total: Any, update: Any, *starts: Any) -> Any:
    """Adds a slice in place. `starts` are clamped and never count from the end."""
    old = lax.dynamic_slice(total, starts, update.shape, allow_negative_indices=False)
    return lax.dynamic_update_slice(total, old + update, starts, allow_negative_indices=False)


def _add_slice_in_row(total: Any, at: Any, update: Any, *starts: Any) -> Any:
    spare = [has - takes for has, takes in zip(total.shape[1:], update.shape, strict=True)]
    clamped = [clamped_start(s, most) for s, most in zip(starts, spare, strict=True)]
    return _add_slice(total, update[None], at, *clamped)


def clamped_start(start: Any, most: int) -> Any:
    """A clamped start as int32. Unclamped, not every index fits in an int32."""
    top = min(most, jnp.iinfo(start.dtype).max)
    return jnp.clip(start, 0, top).astype(jnp.int32)


def _scattering(patch: Op) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def run(total: Any, *rest: Any) -> Any:
        return patch.run(total, *rest)[0]

    def run_in_row(total: Any, at: Any, *rest: Any) -> Any:
        return put(total, at, run(row(total, at), *rest))

    return run, run_in_row


def with_products(
    sums: Sequence[Any], blocks: Sequence[BasicBlock] | None, sites: Sequence[Site], products: Sequence[Any]
) -> list[Any]:
    """The sums with the products of all sites added. A sum that `blocks` never update is just its product;
    None: any sum may be updated."""
    steps = (step for block in blocks or () for step in block.steps)
    added = {s.target for s in steps if isinstance(s, Accumulate | AddInto)}
    added |= set() if blocks is not None else {site.target for site in sites}
    found = list(sums)
    for site, value in zip(sites, products, strict=True):
        found[site.target] = found[site.target] + value if site.target in added else value
        added.add(site.target)
    return found


# -- the factors ---------------------------------------------------------------------------------------------
def capacity(max_calls: int) -> int:
    """The number of stored rows, in whole chunks."""
    return -(-max_calls // CHUNK) * CHUNK


def product(site: Site, kept: Sequence[Any], count: Any, begin: Any = 0) -> Any:
    """The sum of a site's products over `count` rows from `begin` on.

    It multiplies wide chunks, and the remainder in one product of at most twice as many rows. A sum of few
    calls is this one product, without an addition.
    """
    room = kept[0].shape[0]
    rest = (jnp.maximum(count, 1) - 1) % WIDE_CHUNK + 1

    def widest(sizes: Sequence[int]) -> Any:
        which = sum((rest > size).astype(jnp.int32) for size in sizes[:-1])
        return lax.switch(which, [partial(some, size) for size in sizes]) if sizes[1:] else some(sizes[0])

    def some(size: int) -> Any:
        first = jnp.minimum(begin, room - size)
        at = first + jnp.arange(size, dtype=jnp.int32)
        is_kept = (at >= begin) & (at < begin + jnp.minimum(count, rest))
        return _multiplied(site, [_masked(lax.dynamic_slice_in_dim(x, first, size), is_kept) for x in kept])

    def chunk(first: Any) -> Any:
        return _multiplied(site, [lax.dynamic_slice_in_dim(x, begin + first, WIDE_CHUNK) for x in kept])

    total = widest(_sizes(min(room, WIDE_CHUNK)))
    if room > WIDE_CHUNK:
        _, total = lax.while_loop(
            lambda state: state[0] < count,
            lambda state: (state[0] + WIDE_CHUNK, state[1] + chunk(state[0])),
            (rest, total),
        )
    for finish in site.finish:
        (total,) = finish(total)
    return total


def _sizes(most: int) -> list[int]:
    """The possible row counts of a product, doubled up to `most`."""
    sizes = [CHUNK]
    while sizes[-1] < most:
        sizes.append(min(2 * sizes[-1], most))
    return sizes


def _multiplied(site: Site, factors: Sequence[Any]) -> Any:
    """The sum over all rows of the products of the factors."""
    params = dict(site.params)
    (left, right), (left_batch, right_batch) = params.pop("dimension_numbers")
    dims = (
        ((0, *(d + 1 for d in left)), (0, *(d + 1 for d in right))),
        (tuple(d + 1 for d in left_batch), tuple(d + 1 for d in right_batch)),
    )
    return lax.dot_general_p.bind(*factors, dimension_numbers=dims, **params)


def _masked(rows: Any, is_kept: Any) -> Any:
    return jnp.where(jax.lax.expand_dims(is_kept, range(1, rows.ndim)), rows, jnp.zeros((), rows.dtype))
