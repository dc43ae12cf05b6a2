"""Random loops as models have them: recurrent layers, small linear systems, complex numbers.

Each makes an inexact array from values that the expressions give.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.generator.draw import Draw, Kind
from tests.generator.expressions import Expressions

Layer = tuple[Any, ...]  # the state of a layer, and its last one if the layer looks further back
Weights = Sequence[tuple[Any, Any]]
Maker = Callable[..., Any]


def _maker(here: Expressions) -> Maker:
    """Makes inexact arrays of given extents, in the widest type that the program has."""
    dtype = "float64" if any(kind.dtype == "float64" for kind, _ in here.slots) else "float32"
    return lambda *shape: here.make(Kind(dtype, shape, False), 1)


# ---- recurrent layers --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Cell:
    """Layers of one size, stacked. `places`: start, size and stride of each gate in a product."""

    size: int
    places: tuple[tuple[int, int, int], ...]

    def step(self, hidden: Sequence[Layer], given: Any, weights: Weights) -> tuple[list[Layer], Any]:
        """The next states and the result. `given`: the product with the inputs."""
        after: list[Layer] = []
        for (h, *last), (u, w) in zip(hidden, weights, strict=True):
            made = ((after[-1][0] @ u if after else given) + h @ w) / self.size
            first, *gates = (self._gate(made, *place) for place in self.places)
            x = jnp.tanh(first)
            if gates:
                x = x * jax.nn.sigmoid(gates[0]) + h * jax.nn.sigmoid(gates[1]) * 0.5
            if gates[2:]:
                x = jnp.tanh(x) * jax.nn.sigmoid(gates[2])
            after.append((x * 0.5 + last[0] * 0.4, h) if last else (x,))
        return after, after[-1][0]

    def _gate(self, made: Any, start: int, size: int, stride: int) -> Any:
        gate = lax.slice_in_dim(made, start, start + (size - 1) * stride + 1, stride, axis=1)
        return jnp.pad(gate, ((0, 0), (0, self.size - size)))


def _places(draw: Draw, gates: int, size: int) -> tuple[tuple[int, int, int], ...]:
    """Where gates lie in a product: side by side, mixed, or anywhere."""
    way = draw.of(("together", "together", "mixed", "anywhere"))
    if way != "anywhere":
        return tuple((n, size, gates) if way == "mixed" else (n * size, size, 1) for n in range(gates))
    stride, aligned = draw.of((1, 2)), draw.chance(0.7)
    largest = size if gates > 1 else max(size // stride, 1)
    parts = [1 + draw.below(largest)] * gates if draw.chance(0.5) else None
    found = []
    for part in parts or [1 + draw.below(largest) for _ in range(gates)]:
        room = gates * size - (part - 1) * stride
        start = draw.below(-(-room // part)) * part if aligned else draw.below(room)
        found.append((start, part, stride))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Layers:
    """Layers over time. `inputs` have steps first, as have `others`, each with its weights, and read from the
    other end or not. `ahead`: products with the inputs, if they are made before the loop."""

    cell: _Cell
    first: Sequence[Layer]
    inputs: Any
    others: Sequence[tuple[Any, Any, bool]]
    ahead: Any
    reverse: bool

    def scanned(self, weights: Weights) -> tuple[Any, Any]:
        def step(hidden: Sequence[Layer], rows: tuple[Any, Sequence[Any]]) -> tuple[list[Layer], Any]:
            return self.cell.step(hidden, self._given(*rows, weights), weights)

        rows = self.inputs if self.ahead is None else self.ahead
        others = [array for array, *_ in self.others]
        return lax.scan(step, list(self.first), (rows, others), reverse=self.reverse)

    def in_place(self, i: Any, hidden: Sequence[Layer], rows: Any, weights: Weights) -> tuple[Any, Any]:
        """The step on a row; its result replaces that row, or the one as far from the other end."""
        last = rows.shape[0] - 1
        others = [array[last - i if backward else i] for array, _, backward in self.others]
        row = rows[i] if self.ahead is None else self.ahead[i]
        hidden, made = self.cell.step(hidden, self._given(row, others, weights), weights)
        return hidden, rows.at[last - i if self.reverse else i].set(jnp.reshape(made, rows.shape[1:]))

    def _given(self, row: Any, others: Sequence[Any], weights: Weights) -> Any:
        made = row if self.ahead is not None else jnp.reshape(row, (row.shape[0], -1)) @ weights[0][0]
        for x, (_, w, _) in zip(others, self.others, strict=True):
            made = made + x @ w
        return made


def recurrent(draw: Draw, here: Expressions) -> Any:
    """Stacked recurrent layers over time, with gates side by side."""
    make = _maker(here)
    count, gates, batch = 1 + draw.below(3), draw.of((1, 3, 4)), draw.of((1, 2, 4))
    size, trips = draw.of((2, 4, 8)), draw.of((1, 3, 6))
    split, states = size // 2 if draw.chance(0.3) else size, 2 if draw.chance(0.2) else 1
    weights = [(make(size, gates * size), make(size, gates * size)) for _ in range(count)]
    inputs = make(trips, batch, split, size // split)
    others = draw.of((0, 0, 0, 1, 4))
    ahead = jnp.reshape(inputs, (trips, batch, size)) @ weights[0][0] if draw.chance(0.2) else None
    layers = _Layers(
        _Cell(size, _places(draw, gates, size)),
        [tuple(make(batch, size) for _ in range(states)) for _ in range(count)],
        inputs,
        [(make(trips, batch, size), make(size, gates * size), draw.chance(0.6)) for _ in range(others)],
        ahead,
        draw.chance(0.2),
    )
    end, derives, keeps_rows = _end(draw, here, trips), draw.chance(0.3), draw.chance(0.5)

    def result(weights: Weights) -> Any:
        if end is None:
            hidden, rows = layers.scanned(weights)
        else:
            hidden, rows = end(lambda i, c: layers.in_place(i, *c, weights), (layers.first, inputs))
        found = [rows if keeps_rows else rows[-1], hidden]
        found += [] if ahead is None else [jnp.mean(ahead, 0) / size]
        return jnp.concatenate([jnp.ravel(x) for x in jax.tree.leaves(found)])

    if end is None and derives:
        gradients = jax.grad(lambda w: jnp.mean(result(w)))(weights)
        return jnp.tanh(jnp.concatenate([jnp.ravel(g) for g in jax.tree.leaves(gradients)]))
    return result(weights)


def _end(draw: Draw, here: Expressions, trips: int) -> Callable[..., Any] | None:
    """A loop that ends after all trips, after a computed number of them, or at a sign; None: a scan."""
    way = draw.of(("scan", "scan", "all", "all", "count", "sign"))
    if way == "scan":
        return None
    if way == "sign":
        signs = here.make(Kind("int32", (trips,), True), 1)

        def until(step: Callable[[Any, Any], Any], first: Any) -> Any:
            def goes_on(carry: tuple[Any, Any]) -> Any:
                return (carry[0] < trips) & (lax.dynamic_index_in_dim(signs, carry[0], 0, False) % 5 != 0)

            return lax.while_loop(goes_on, lambda c: (c[0] + 1, step(*c)), (jnp.int32(0), first))[1]

        return until
    count = trips if way == "all" else jnp.abs(here.scalar() % (trips + 1))
    return lambda step, first: lax.fori_loop(0, count, step, first)


def rotated(draw: Draw, here: Expressions) -> Any:
    """Arrays of one shape that change places in a loop; some are computed anew on the way."""
    make, size, count = _maker(here), draw.of((2, 4, 6)), draw.of((2, 2, 3))
    first = [make(size, size) for _ in range(count)]
    first = [x @ make(size, size) / size if draw.chance(0.5) else x for x in first]
    weights, order = make(size, size), draw.order(range(count))
    anew, end = [draw.chance(0.3) for _ in range(count)], _end(draw, here, 5)

    def step(_: Any, arrays: Sequence[Any]) -> list[Any]:
        moved = [arrays[n] for n in order]
        return [jnp.tanh(x @ weights / size) if new else x for x, new in zip(moved, anew, strict=True)]

    found = lax.fori_loop(0, 3, step, first) if end is None else end(step, first)
    return jnp.stack([jnp.mean(x, 0) for x in found])


# ---- small systems and complex numbers ---------------------------------------------------------------------


def factored(draw: Draw, here: Expressions) -> Any:
    """A small symmetric system, factored and solved; several times, each on what the last one gave."""
    make = _maker(here)
    size, columns, way, trips = draw.of((1, 2, 3, 5)), draw.of((1, 3)), draw.below(6), draw.below(4)
    matrix, lower, transposes = make(size, size), draw.chance(0.5), draw.chance(0.5)

    def step(_: Any, x: Any) -> Any:
        system = matrix @ matrix.T + (3 + size) * jnp.eye(size, dtype=x.dtype) + 0.01 * (x @ x.T)
        if way == 0:
            factor = lax.linalg.cholesky(system)
            factor = factor if lower else factor.T
            x = lax.linalg.triangular_solve(factor, x, left_side=True, lower=lower, transpose_a=transposes)
        elif way == 1:
            x = jnp.linalg.solve(system, x)
        elif way == 2:
            x = jnp.linalg.qr(system)[1] @ x / (9 + 9 * size)
        elif way == 3:
            below, above = (jnp.pad(jnp.diag(system, k), side) for k, side in ((-1, (1, 0)), (1, (0, 1))))
            x = lax.linalg.tridiagonal_solve(below, jnp.diag(system), above, x)
        elif way == 4:  # by eigenvectors, whose signs and order do not show
            vectors, values = lax.linalg.eigh(system, lower=lower)
            x = vectors @ ((vectors.T @ x) / values[:, None])
        else:
            left, values, right = jnp.linalg.svd(system, full_matrices=False)
            x = left @ (right @ x) / size + jnp.linalg.svd(x, compute_uv=False)[0] / (1 + values[0])
        return jnp.tanh(x)

    return lax.fori_loop(0, trips, step, make(size, columns))


def _grown(z: Any, w: Any, flag: Any, way: int) -> Any:
    """A small complex array by way of others."""
    made = (
        lambda: z * z * 0.5 + 0.25j,
        lambda: w @ z,
        lambda: jnp.exp(z) * 1j,
        lambda: z / (w @ jnp.conj(z) + (20 + 1j)),
        lambda: jnp.concatenate([z[1:], jnp.conj(z[:1])]) - z * (0.5 + 0.5j),
        lambda: jnp.where(flag, jnp.conj(z), jnp.cumsum(z, 0)),
    )[way]()
    return made / (1 + jnp.real(made * jnp.conj(made)))


def complex_loop(draw: Draw, here: Expressions) -> Any:
    """Loops and branches on complex numbers, inside of a loop on their parts."""
    make = _maker(here)
    size, trips, ways = draw.of((1, 2, 4)), draw.below(4), [draw.below(6) for _ in range(3)]
    parts, first = (make(size, size), make(size, size)), (make(size, 2), make(size, 2))
    flags = here.make(Kind("bool", (2,), True), 1)
    counts = jnp.abs(here.make(Kind("int32", (2,), True), 1) % 4)
    by_columns, derives = draw.chance(0.4), draw.chance(0.2)

    def column(z: Any, w: Any, count: Any) -> Any:
        z = lax.fori_loop(0, trips, lambda _, z: _grown(z, w, flags[1], ways[0]), z)
        z = lax.cond(flags[0], lambda z: _grown(z, w, flags[1], ways[1]), lambda z: z * 1j, z)
        if derives:
            return z

        def step(carry: tuple[Any, Any]) -> tuple[Any, Any]:
            return carry[0] + 1, _grown(carry[1], w, flags[1], ways[2])

        return lax.while_loop(lambda carry: carry[0] < count, step, (jnp.int32(0), z))[1]

    def after(re: Any, im: Any) -> tuple[Any, Any]:
        z, w = lax.complex(re, im), lax.complex(*parts)
        z = jax.vmap(column, (1, None, 0), 1)(z, w, counts) if by_columns else column(z, w, counts[0])
        return jnp.real(z), jnp.imag(z)

    def step(_: Any, found: tuple[Any, Any]) -> tuple[Any, ...]:
        made: Any = after
        if derives:
            made = jax.grad(lambda *parts: sum(jnp.sum(x * x) for x in after(*parts)), (0, 1))
        return tuple(jnp.tanh(x) for x in made(*found))

    return jnp.concatenate(lax.fori_loop(0, 2 + draw.below(2), step, first))
