"""Random expressions of a given type, from the top down.

Inexact values stay below about four, and no operator on them has a jump or a steep slope: what rounding
changes stays small. Whatever decides (predicates, indices, counts) is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.generator.draw import HALVES, INTEGERS, Draw, Kind, extreme_values, numpy_dtype

Slot = tuple[Kind, Any]
COUNT = Kind("int32", (), True)
MODES = ("clip", "fill", "wrap")


def cast(x: Any, dtype: str) -> Any:
    return lax.convert_element_type(x, numpy_dtype(dtype))


def fit(x: Any, shape: Sequence[int]) -> Any:
    """The elements of an array in another shape: some are left out or repeated."""
    flat = jnp.ravel(x)
    size = 1
    for extent in shape:
        size *= extent
    if flat.size == 0:
        return jnp.zeros(shape, flat.dtype)
    if flat.size == size:
        return jnp.reshape(flat, shape)
    if x.ndim < len(shape) and shape[len(shape) - x.ndim :] == tuple(x.shape):
        return jnp.broadcast_to(x, shape)
    if flat.size < size:
        flat = jnp.tile(flat, -(-size // flat.size))
    return jnp.reshape(flat[:size], shape)


class Expressions:
    """Makes values from those of `slots`, by the choices of `draw`."""

    def __init__(self, draw: Draw, slots: Sequence[Slot]) -> None:
        self.draw, self.slots = draw, slots

    def make(self, kind: Kind, depth: int) -> Any:
        """A value of the kind; `depth` bounds the operators in a chain."""
        if depth <= 0 or self.draw.chance(0.12):
            return self.leaf(kind)
        if kind.dtype == "bool":
            own = (self._comparison, self._logic)
        elif not kind.is_float:
            own = (self._integer, self._integer, self._bits, self._product, self._random, self._chain)
        elif kind.exact:
            own = (self._exact_float, self._exact_float)
        else:
            own = (self._smooth, self._smooth, self._smooth, self._product, self._product)
        shared: tuple[Callable[[Kind, int], Any], ...] = (
            *(self._move, self._slice, self._update, self._gather, self._scatter, self._scatter),
            *(self._sort, self._reduce, self._cumulate, self._select, self._window),
        )
        made = self.draw.of((*own, *own, *shared))(kind, depth - 1)
        return cast(fit(made, kind.shape), kind.dtype)

    # ---- operands ------------------------------------------------------------------------------------------

    def leaf(self, kind: Kind) -> Any:
        """A slot as a value of the kind, or a constant."""
        if self.draw.chance(0.1):
            special = self.draw.of(extreme_values(kind.dtype)) if kind.exact else 0.25
            value = special if self.draw.chance(0.5) else self.draw.below(3)
            return jnp.full(kind.shape, value, numpy_dtype(kind.dtype))
        usable = [slot for slot in self.slots if slot[0].exact or not kind.exact]
        alike = [slot for slot in usable if slot[0] == kind]
        if alike and self.draw.chance(0.6):
            return self.draw.of(alike)[1]
        found, value = self.draw.of(usable)
        return cast(fit(self._tamed(found, value, kind), kind.shape), kind.dtype)

    def _tamed(self, found: Kind, value: Any, kind: Kind) -> Any:
        """What can be cast to the kind with one outcome, and is small if the kind is inexact."""
        if found.is_float and not kind.is_float:
            whole = jnp.clip(jnp.where(value == value, value, 0), -100, 100)
            return jnp.abs(whole) if kind.dtype.startswith("u") else whole
        if kind.exact or not kind.is_float or found.dtype == "bool":
            return value
        if found.is_float:
            return jnp.clip(value, -2, 2) if found.exact else value
        return cast(value % 7, "float32") * 0.25

    def scalar(self, depth: int = 1) -> Any:
        """An exact int32, of any size."""
        return self.make(COUNT, depth)

    def predicate(self) -> Any:
        return self.make(Kind("bool", (), True), 2)

    def _indices(self, shape: Sequence[int], extent: int) -> Any:
        """Indices, mostly in bounds."""
        found = self.make(Kind("int32", tuple(shape), True), 1)
        return found if self.draw.chance(0.15) else jnp.abs(found % max(extent, 1))

    def _axis(self, kind: Kind) -> int:
        return self.draw.below(len(kind.shape))

    def _grown(self, kind: Kind) -> tuple[Kind, int]:
        """A kind with one more axis, and which."""
        axis = self.draw.below(len(kind.shape) + 1)
        extent = self.draw.of((1, 2, 3, 4, 5, 8))
        return kind.like(shape=(*kind.shape[:axis], extent, *kind.shape[axis:])), axis

    # ---- element by element --------------------------------------------------------------------------------

    def _comparison(self, kind: Kind, depth: int) -> Any:
        operand = Kind(self.draw.of(("int32", "uint8", "float32", "int8")), kind.shape, True)
        x, y = self.make(operand, depth), self.make(operand, depth)
        if operand.is_float and self.draw.chance(0.2):
            return jnp.isfinite(x)
        return self.draw.of((lax.lt, lax.le, lax.eq, lax.ne, lax.gt, lax.ge))(x, y)

    def _logic(self, kind: Kind, depth: int) -> Any:
        x = self.make(kind, depth)
        if self.draw.chance(0.2):
            return ~x
        return self.draw.of((lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor))(x, self.make(kind, depth))

    def _integer(self, kind: Kind, depth: int) -> Any:
        x, y = self.make(kind, depth), self.make(kind, depth)
        binary = (lax.add, lax.sub, lax.mul, lax.min, lax.max, lax.div, lax.rem, lax.add, lax.sub)
        unary = (lax.neg, lax.abs, lax.sign) if kind.dtype.startswith("i") else (lax.bitwise_not,)
        if self.draw.chance(0.2):
            return self.draw.of(unary)(x)
        if self.draw.chance(0.1):
            return lax.clamp(lax.min(x, y), self.make(kind, depth), lax.max(x, y))
        return self.draw.of(binary)(x, y)

    def _bits(self, kind: Kind, depth: int) -> Any:
        x, y = self.make(kind, depth), self.make(kind, depth)
        shifts = (lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic)
        if self.draw.chance(0.2):
            return self.draw.of((lax.population_count, lax.clz, lax.bitwise_not))(x)
        return self.draw.of((*shifts, lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor))(x, y)

    def _chain(self, kind: Kind, depth: int) -> Any:
        """By way of another type: integers wrap, and floats saturate."""
        narrow = self.make(kind.like(dtype=self.draw.of(("int8", "int16", "uint8", "uint16"))), depth)
        return cast(
            cast(narrow, self.draw.of(("float32", "float32", "int32", "uint32", "int16"))), kind.dtype
        )

    def _random(self, kind: Kind, depth: int) -> Any:
        key = jax.random.fold_in(jax.random.key(self.draw.below(9)), self.scalar(depth))
        return jax.random.bits(key, kind.shape, "uint32")

    def _exact_float(self, kind: Kind, depth: int) -> Any:
        x, y = self.make(kind, depth), self.make(kind, depth)
        whole = (lax.floor, lax.ceil, lax.round) if kind.dtype not in HALVES else (lax.neg,)
        if self.draw.chance(0.4):
            return self.draw.of((lax.neg, lax.abs, *whole))(x)
        if kind.dtype not in HALVES and self.draw.chance(0.3):  # one rounding, which everybody must make
            return self.draw.of((lax.add, lax.sub))(self.leaf(kind), self.leaf(kind))
        return self.draw.of((lax.min, lax.max))(x, y)

    def _smooth(self, kind: Kind, depth: int) -> Any:
        x = self.make(kind, depth)
        unary = (
            *(jnp.tanh, jnp.sin, jnp.cos, jax.nn.sigmoid, lax.erf, lax.neg, jnp.abs, jnp.arctan),
            *(lambda x: jnp.exp(-jnp.abs(x)), lambda x: jnp.log1p(jnp.abs(x))),
            *(lambda x: jnp.sqrt(jnp.abs(x) + 0.5), lambda x: lax.integer_pow(x, 2) * 0.25),
        )
        if self.draw.chance(0.4):
            return self.draw.of(unary)(x)
        y = self.make(kind, depth)
        binary = (
            *(lambda x, y: (x + y) * 0.5, lambda x, y: (x - y) * 0.5, lambda x, y: x * y * 0.25),
            *(lax.min, lax.max, lambda x, y: x / (1 + jnp.abs(y))),
        )
        return self.draw.of(binary)(x, y)

    def _select(self, kind: Kind, depth: int) -> Any:
        if self.draw.chance(0.3):
            which = jnp.abs(self.make(Kind("int32", kind.shape, True), depth) % 3)
            return lax.select_n(which, *(self.make(kind, depth) for _ in range(3)))
        shape = kind.shape if self.draw.chance(0.7) else ()
        chosen = self.make(Kind("bool", shape, True), depth)
        return jnp.where(chosen, self.make(kind, depth), self.make(kind, depth))

    # ---- movement ------------------------------------------------------------------------------------------

    def _move(self, kind: Kind, depth: int) -> Any:
        if not kind.shape:
            return jnp.broadcast_to(self.make(kind, depth), (2, 2))
        axis, way = self._axis(kind), self.draw.below(5)
        if way == 0:
            order = list(range(len(kind.shape)))[::-1]
            return jnp.transpose(self.make(kind.like(shape=kind.shape[::-1]), depth), order)
        if way == 1:
            return lax.rev(self.make(kind, depth), (axis,))
        extent = kind.shape[axis]
        if way == 2 and extent > 1:
            cut = 1 + self.draw.below(extent - 1)
            shapes = ((*kind.shape[:axis], n, *kind.shape[axis + 1 :]) for n in (cut, extent - cut))
            return jnp.concatenate([self.make(kind.like(shape=s), depth) for s in shapes], axis)
        if way == 3 and extent > 2:
            shape = (*kind.shape[:axis], extent - 2, *kind.shape[axis + 1 :])
            edges = [(0, 0, 0)] * len(shape)
            edges[axis] = self.draw.of(((1, 1, 0), (2, 0, 0), (-1, 3, 0)))
            filler = cast(self.leaf(kind.like(shape=())), kind.dtype)
            return lax.pad(self.make(kind.like(shape=shape), depth), filler, edges)
        return jnp.roll(self.make(kind, depth), self.draw.below(3), axis)

    def _slice(self, kind: Kind, depth: int) -> Any:
        """A part of a longer array, at a place that is known or not."""
        if not kind.shape:
            return self.make(kind.like(shape=(4,)), depth)[self.scalar() % 4]
        axis = self._axis(kind)
        more, stride = self.draw.below(4), self.draw.of((1, 1, 2))
        extent = kind.shape[axis] * stride + more
        longer = kind.like(shape=(*kind.shape[:axis], extent, *kind.shape[axis + 1 :]))
        x = self.make(longer, depth)
        if stride == 2 or self.draw.chance(0.3):
            return lax.slice_in_dim(x, 0, kind.shape[axis] * stride, stride, axis)
        return lax.dynamic_slice_in_dim(x, self.scalar(), kind.shape[axis], axis)

    def _update(self, kind: Kind, depth: int) -> Any:
        if not kind.shape:
            return self.make(kind, depth)
        axis = self._axis(kind)
        size = self.draw.below(kind.shape[axis] + 1)
        part = kind.like(shape=(*kind.shape[:axis], size, *kind.shape[axis + 1 :]))
        update = self.make(part, depth)
        return lax.dynamic_update_slice_in_dim(self.make(kind, depth), update, self.scalar(), axis)

    def _gather(self, kind: Kind, depth: int) -> Any:
        if not kind.shape:
            return self.leaf(kind)
        axis, extent = self._axis(kind), self.draw.of((1, 3, 5, 6))
        table = self.make(kind.like(shape=(*kind.shape[:axis], extent, *kind.shape[axis + 1 :])), depth)
        if self.draw.chance(0.3):
            whole = jnp.abs(self._indices(kind.shape, extent) % extent)
            return jnp.take_along_axis(table, whole, axis)
        mode = self.draw.of(MODES)
        indices = self._indices((kind.shape[axis],), extent)
        filler = {"fill_value": 1} if mode == "fill" else {}
        return jnp.take(table, indices, axis=axis, mode=mode, **filler)

    def _scatter(self, kind: Kind, depth: int) -> Any:
        """Into rows; those that several updates hit are added to, or compared, but not overwritten."""
        if not kind.shape:
            return self.leaf(kind)
        extent, count = kind.shape[0], self.draw.of((1, 2, 5))
        array = self.make(kind, depth)
        update = self.make(kind.like(shape=(count, *kind.shape[1:])), depth)
        indices = self._indices((count,), extent)
        place = array.at[indices] if self.draw.chance(0.6) else array.at[indices[:1]]
        update = update if place.index.shape == (count,) else update[:1]
        ways = ("min", "max") if kind.is_float or kind.dtype == "bool" else ("add", "min", "max", "mul")
        mode = self.draw.of((None, None, "drop", "clip"))
        if place.index.shape == (1,):
            return place.set(update, mode=mode)
        if kind.is_float and not kind.exact and self.draw.chance(0.5):
            return place.add(update, mode=mode) * 0.25
        return getattr(place, self.draw.of(ways))(update, mode=mode)

    # ---- along axes ----------------------------------------------------------------------------------------

    def _sort(self, kind: Kind, depth: int) -> Any:
        if not kind.shape:
            return self.leaf(kind)
        axis = self._axis(kind)
        key = Kind(self.draw.of(("int32", "float32", "uint8")), kind.shape, True)
        way = self.draw.below(4)
        if way == 0:
            _, moved = lax.sort((self.make(key, depth), self.make(kind, depth)), dimension=axis, num_keys=1)
            return moved
        if way == 1 and kind.dtype in INTEGERS:
            return jnp.argsort(self.make(key, depth), axis=axis)
        if way == 2 and kind.exact and kind.shape[-1] > 0 and kind.dtype != "bool":
            values, places = lax.top_k(self.make(kind, depth), 1 + self.draw.below(kind.shape[-1]))
            return places if kind.dtype in INTEGERS and self.draw.chance(0.5) else values
        return lax.sort(self.make(kind, depth), dimension=axis)

    def _reduce(self, kind: Kind, depth: int) -> Any:
        grown, first = self._grown(kind)
        axis: Any = first
        if self.draw.chance(0.3) and grown.size <= 64:  # along two axes
            grown, second = self._grown(grown)
            axis = (first + (second <= first), second)
        x = self.make(grown, depth)
        if kind.dtype == "bool":
            return self.draw.of((jnp.any, jnp.all))(x, axis=axis)
        if kind.dtype == "float32" and not kind.exact and self.draw.chance(0.1):
            return self._long_mean(kind)
        if kind.is_float:
            ways = (jnp.max, jnp.min) if kind.exact else (jnp.max, jnp.min, jnp.mean, jnp.mean)
            return self.draw.of(ways)(x, axis=axis)
        if self.draw.chance(0.3) and axis is first:
            operand = grown.like(dtype=self.draw.of(("float32", "int32", "uint8")), exact=True)
            return self.draw.of((jnp.argmax, jnp.argmin))(self.make(operand, depth), axis=axis)
        ways = (jnp.sum, jnp.sum, jnp.prod, jnp.max, jnp.min)
        return self.draw.of(ways)(x, axis=axis)

    def _long_mean(self, kind: Kind) -> Any:
        """Of so many elements that a plain sum would lose digits, along the first or the last axis."""
        x, count = self.leaf(kind), self.draw.of((1025, 2100))
        waves = jnp.sin(jnp.arange(count, dtype="float32"))
        if self.draw.chance(0.5):
            return jnp.mean(x[..., None] + waves, axis=-1)
        return jnp.mean(x + jnp.reshape(waves, (count, *[1] * len(kind.shape))), axis=0)

    def _cumulate(self, kind: Kind, depth: int) -> Any:
        if not kind.shape or kind.dtype == "bool":
            return self.leaf(kind)
        x, axis, reverse = self.make(kind, depth), self._axis(kind), self.draw.chance(0.4)
        if not kind.is_float:
            ways = (lax.cumsum, lax.cummax, lax.cummin, lax.cumprod)
            return self.draw.of(ways)(x, axis=axis, reverse=reverse)
        if kind.exact or self.draw.chance(0.5):
            return self.draw.of((lax.cummax, lax.cummin))(x, axis=axis, reverse=reverse)
        return lax.cumsum(x, axis=axis, reverse=reverse) / max(kind.shape[axis], 1)

    def _window(self, kind: Kind, depth: int) -> Any:
        if not kind.shape or kind.dtype not in ("float32", "int32"):
            return self.leaf(kind)
        if len(kind.shape) == 3 and not kind.exact and kind.size:
            return self._convolution(kind, depth)
        if kind.dtype == "float32" and not kind.exact and kind.size and self.draw.chance(0.4):
            return self._pooling_gradient(kind, depth)
        sizes = [1] * len(kind.shape)
        sizes[self._axis(kind)] = 2
        lowest = extreme_values("int32")[0] if kind.dtype == "int32" else -jnp.inf
        first = jnp.asarray(lowest, kind.dtype)
        return lax.reduce_window(self.make(kind, depth), first, lax.max, sizes, [1] * len(sizes), "SAME")

    def _pooling_gradient(self, kind: Kind, depth: int) -> Any:
        """Goes to the largest elements of windows of exact values, which are the same for everybody."""
        sizes = [1] * len(kind.shape)
        sizes[self._axis(kind)] = 2

        def pooled(x: Any) -> Any:
            return lax.reduce_window(x, -jnp.inf, lax.max, sizes, [1] * len(sizes), "SAME")

        compared = self.make(kind.like(exact=True), depth)
        whole = jnp.clip(jnp.where(compared == compared, compared, 0), -9, 9)
        return jax.vjp(pooled, whole)[1](self.make(kind, depth))[0] * 0.5

    def _convolution(self, kind: Kind, depth: int) -> Any:
        """Along the middle axis of [rows, places, features]."""
        rows, places, features = kind.shape
        inner, width = self.draw.of((1, 2, 3)), self.draw.of((1, 2, 3))
        orders = self.draw.of((("NWC", "WIO", "NWC"), ("NCW", "OIW", "NCW"), ("NWC", "OIW", "NWC")))
        x = self.make(kind.like(shape=(rows, places, inner)), depth)
        w = self.make(kind.like(shape=(width, inner, features)), depth)
        x = jnp.swapaxes(x, 1, 2) if orders[0] == "NCW" else x
        w = jnp.transpose(w, (2, 1, 0)) if orders[1] == "OIW" else w
        made = lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=orders)
        made = jnp.swapaxes(made, 1, 2) if orders[2] == "NCW" else made
        return made / (inner * width)

    def _product(self, kind: Kind, depth: int) -> Any:
        """A matrix product, with the leading axes of its result as a batch or as rows."""
        if not kind.shape:
            return self.make(kind, depth)
        if kind.size and self.draw.chance(0.25):
            return self._contraction(kind, depth)
        inner = self.draw.of((1, 3, 4, 8))
        rows, columns = (*kind.shape[:-1], inner), (inner, kind.shape[-1])
        scale = 1.0 / inner if kind.is_float else 1
        if len(kind.shape) == 3 and self.draw.chance(0.4):
            x = self.make(kind.like(shape=rows), depth)
            y = self.make(kind.like(shape=(kind.shape[0], *columns)), depth)
            return cast(jnp.matmul(x, y) * scale, kind.dtype)
        x, y = self.make(kind.like(shape=rows), depth), self.make(kind.like(shape=columns), depth)
        if self.draw.chance(0.3):
            y = jnp.swapaxes(self.make(kind.like(shape=columns[::-1]), depth), 0, 1)
        return cast(jnp.matmul(x, y) * scale, kind.dtype)

    def _contraction(self, kind: Kind, depth: int) -> Any:
        """Of several axes in any order: in a batch, free, or contracted."""
        names = "abcdefgh"[: 2 + self.draw.below(5)]
        sizes = {name: self.draw.of((1, 2, 2, 3)) for name in names}
        roles = {name: self.draw.of(("batch", "left", "right", "both", "both")) for name in names}
        sides = [
            self.draw.order([n for n in names if roles[n] in ("batch", "both", side)])
            for side in ("left", "right")
        ]
        result = self.draw.order([n for n in names if roles[n] != "both"])
        x, y = (self.make(kind.like(shape=tuple(sizes[n] for n in side)), depth) for side in sides)
        made = jnp.einsum(f"{''.join(sides[0])},{''.join(sides[1])}->{''.join(result)}", x, y)
        inner = math.prod(sizes[n] for n in names if roles[n] == "both")
        return cast(made * (1.0 / inner if kind.is_float else 1), kind.dtype)
