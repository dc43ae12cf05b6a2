"""Axis rules: the operand axes from which each axis of an operator's result is computed tile by tile.

A *tie* means: if the result is cut along one axis into equal parts, part i is the same operator (with adapted
sizes) on part i of the tied operands and on the whole of the others. An axis of an operand in no tie is
*consumed*: some result element needs all of it, or elements of another part. Nothing is tied by default: a
kind without a rule consumes every axis of its operands. GSPMD (Xu et al. 2021, section 3.5) propagates
shardings by the same facts; here they must be sound without exception.

The table of operator kinds names the rule of each kind; `OWN` holds the rules of single kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd

from jax_cocktail.utask.ir import UOperator, once
from jax_cocktail.utask.maps import Position, axis_groups, positions
from jax_cocktail.utask.operators import KINDS, OperatorKind
from jax_cocktail.utask.types import Shape


@dataclass(frozen=True, slots=True)
class Tie:
    """One axis along which an operator falls into independent parts.

    `outputs`: the axis of each result; `inputs`: the tied axis of each operand, None if it is read whole;
    `parts`: the tie holds for this number of equal parts and for every divisor of it; 0: the results of the
    parts are terms of the result (`schedule.vmap.spread`).
    """

    outputs: tuple[int, ...]
    inputs: tuple[int | None, ...]
    parts: int


Ties = Callable[[UOperator], Iterator[Tie]]


@dataclass(frozen=True, slots=True)
class AxisRule:
    """The ties of one operator."""

    ties: tuple[Tie, ...]

    def along(self, axes: Sequence[int | None]) -> Tie | None:
        """The tie that cuts the results along these axes."""
        return next((tie for tie in self.ties if tie.outputs == tuple(axes)), None)


@once
def rule(operator: UOperator) -> AxisRule:
    """The ties of `operator`; axes of at most one element are in no tie."""
    found = RULES.get(operator.kind)
    if found is None or any(0 in v.type.shape for v in (*operator.inputs, *operator.outputs)):
        return AxisRule(())
    return AxisRule(tuple(tie for tie in found(operator) if tie.parts > 1))


def consumed(operator: UOperator) -> tuple[tuple[int, int], ...]:
    """(operand, axis) of every axis of more than one element that is in no tie."""
    tied = {(k, d) for tie in rule(operator).ties for k, d in enumerate(tie.inputs)}
    axes = ((k, d) for k, v in enumerate(operator.inputs) for d, n in enumerate(v.type.shape) if n > 1)
    return tuple(place for place in axes if place not in tied)


def made_whole(operator: UOperator) -> tuple[tuple[int, int], ...]:
    """(result, axis) of every axis of more than one element that cannot be computed by parts."""
    tied = {(k, d) for tie in rule(operator).ties for k, d in enumerate(tie.outputs)}
    axes = ((k, d) for k, v in enumerate(operator.outputs) for d, n in enumerate(v.type.shape) if n > 1)
    return tuple(place for place in axes if place not in tied)


def _shape(operator: UOperator) -> Shape:
    return operator.outputs[0].type.shape


# -- operators whose results keep the axes of their operands -------------------------------------------------
def _same_axes(operator: UOperator, axes: Sequence[int], whole: int = 0) -> Iterator[Tie]:
    """Every operand and result is cut along the same axis; the last `whole` operands are read whole."""
    count = len(operator.inputs) - whole
    for d in axes:
        inputs = (*[d] * count, *[None] * whole)
        yield Tie((d,) * len(operator.outputs), inputs, _shape(operator)[d])


def _alike(operator: UOperator) -> Iterator[Tie]:
    """Ties every axis; without operands, any part of the result can be computed alone."""
    return _same_axes(operator, range(len(_shape(operator))))


def _axes_of(operator: UOperator, name: str) -> tuple[object, ...]:
    """The axes, or the one axis, that an attribute names."""
    found = operator[name]
    return found if isinstance(found, tuple) else (found,)


def _except(name: str) -> Ties:
    """All axes but those that the attribute names."""

    def ties(operator: UOperator) -> Iterator[Tie]:
        taken = _axes_of(operator, name)
        return _same_axes(operator, [d for d in range(len(_shape(operator))) if d not in taken])

    return ties


def _pad(operator: UOperator) -> Iterator[Tie]:
    config = zip(
        operator.inputs[0].type.shape,
        _shape(operator),
        operator.ints("low"),
        operator.ints("interior"),
        strict=True,
    )
    kept = [d for d, (n, total, low, inner) in enumerate(config) if (n, 0, 0) == (total, low, inner)]
    return _same_axes(operator, kept, whole=1)


def _where_equal(operand: int, whole: int) -> Ties:
    """Axes along which an operand is as long as the result; all operands from `whole` on are read whole.

    An axis that is taken or written whole starts at 0, whatever its start operand is.
    """

    def ties(operator: UOperator) -> Iterator[Tie]:
        sizes = zip(operator.inputs[operand].type.shape, _shape(operator), strict=True)
        kept = [d for d, (n, m) in enumerate(sizes) if n == m]
        return _same_axes(operator, kept, whole=len(operator.inputs) - whole)

    return ties


# -- operators that move axes --------------------------------------------------------------------------------
def _moved(operator: UOperator) -> Iterator[Tie]:
    """Axes of the operand that the result has whole. A result axis along which one element repeats needs the
    whole operand."""
    places = positions(operator)
    read = {p.axis: d for d, p in enumerate(places)}
    for d, n in enumerate(_shape(operator)):
        source = read.get(d)
        if source is None or (places[source] == Position(d) and operator.inputs[0].type.shape[source] == n):
            yield Tie((d,), (source,), n)


def _reshape(operator: UOperator) -> Iterator[Tie]:
    """Only the major axes of a group are tied: a part of one is the same run of elements on both sides."""
    source, target = operator.inputs[0].type.shape, _shape(operator)
    for (major, *_), (out, *_) in axis_groups(source, target):
        yield Tie((out,), (major,), gcd(source[major], target[out]))


def _gather(operator: UOperator) -> Iterator[Tie]:
    """Batch axes follow the indices; a window axis that takes its operand axis whole follows the operand."""
    x, indices = (v.type for v in operator.inputs)
    offsets = operator.ints("offset_dims")
    batching = operator.ints("operand_batching_dims")
    dropped = {*batching, *operator.ints("collapsed_slice_dims")}
    kept = [d for d in range(x.rank) if d not in dropped]
    sizes = operator.ints("slice_sizes")
    for out, d in zip(offsets, kept, strict=True):
        if sizes[d] == x.shape[d]:
            yield Tie((out,), (d, None), x.shape[d])
    batch = [d for d in range(len(_shape(operator))) if d not in offsets]
    pairs = dict(zip(operator.ints("start_indices_batching_dims"), batching, strict=True))
    for axis, out in enumerate(batch):
        yield Tie((out,), (pairs.get(axis), axis), indices.shape[axis])


def _scatter(operator: UOperator) -> Iterator[Tie]:
    """Batching dimensions, and window axes that cover their operand axis. All else may hit anything."""
    x, _, updates = (v.type for v in operator.inputs)
    window = operator.ints("update_window_dims")
    batching = operator.ints("operand_batching_dims")
    dropped = {*batching, *operator.ints("inserted_window_dims")}
    kept = [d for d in range(x.rank) if d not in dropped]
    for d, place in zip(kept, window, strict=True):
        if updates.shape[place] == x.shape[d]:
            yield Tie((d,), (d, None, place), x.shape[d])
    batch = [d for d in range(updates.rank) if d not in window]
    for d, axis in zip(batching, operator.ints("scatter_indices_batching_dims"), strict=True):
        yield Tie((d,), (d, axis, batch[axis]), x.shape[d])


# -- anchors -------------------------------------------------------------------------------------------------
def _dot(operator: UOperator) -> Iterator[Tie]:
    left, right = (v.type for v in operator.inputs[:2])
    lb, rb = operator.ints("lhs_batch"), operator.ints("rhs_batch")
    lc, rc = operator.ints("lhs_contract"), operator.ints("rhs_contract")
    sources: list[tuple[int | None, int | None]] = list(zip(lb, rb, strict=True))
    sources += [(d, None) for d in range(left.rank) if d not in (*lb, *lc)]
    sources += [(None, d) for d in range(right.rank) if d not in (*rb, *rc)]
    for d, inputs in enumerate(sources):
        yield Tie((d,), inputs * (len(operator.inputs) // 2), _shape(operator)[d])


def _conv(operator: UOperator) -> Iterator[Tie]:
    """Batch and output features; with feature groups, the groups. Spatial axes are windows."""
    lhs, rhs, out = (operator.ints(f"{side}_spec") for side in ("lhs", "rhs", "out"))
    groups, batch_groups = operator["feature_group_count"], operator["batch_group_count"]
    assert isinstance(groups, int)
    if batch_groups == 1:
        yield Tie((out[0],), (lhs[0], None), _shape(operator)[out[0]])
        if groups == 1:
            yield Tie((out[1],), (None, rhs[0]), _shape(operator)[out[1]])
        else:
            yield Tie((out[1],), (lhs[1], rhs[0]), groups)


def _reduced(name: str) -> Ties:
    """The result lacks the axes that the attribute names."""

    def ties(operator: UOperator) -> Iterator[Tie]:
        taken = _axes_of(operator, name)
        kept = [d for d in range(operator.inputs[0].type.rank) if d not in taken]
        for out, d in enumerate(kept):
            yield Tie((out,), (d,), _shape(operator)[out])

    return ties


def _windows(operator: UOperator) -> Iterator[Tie]:
    """Axes whose windows have one element and lie side by side."""
    window, strides = operator.ints("window"), operator.ints("strides")
    padding = operator.pairs("padding")
    plain = [(w, s, p) == (1, 1, (0, 0)) for w, s, p in zip(window, strides, padding, strict=True)]
    spread = dict(operator.attributes).get("base_dilation", (1,) * len(window))
    assert isinstance(spread, tuple)
    return _same_axes(operator, [d for d, ok in enumerate(plain) if ok and spread[d] == 1])


def _leading(count: int) -> Ties:
    """All axes but the last `count` of the first operand."""
    return lambda operator: _same_axes(operator, range(operator.inputs[0].type.rank - count))


def _triangular_solve(operator: UOperator) -> Iterator[Tie]:
    """The columns of the right-hand side are systems of their own."""
    last = len(_shape(operator)) - 1
    yield from _leading(2)(operator)
    yield Tie((last,), (None, last), _shape(operator)[last])


OWN: dict[str, Ties] = {
    "reshape": _reshape,
    "pad": _pad,
    "dynamic_slice": _where_equal(0, whole=1),
    "dynamic_update_slice": _where_equal(1, whole=2),
    "gather": _gather,
    "scatter": _scatter,
    "dot": _dot,
    "conv": _conv,
    "cholesky": _leading(2),
    "eigh": _leading(2),
    "geqrf": _leading(2),
    "householder_product": _leading(2),
    "lu": _leading(2),
    "singular_values": _leading(2),
    "svd": _leading(2),
    "triangular_solve": _triangular_solve,
}


def _named(kind: OperatorKind) -> Ties:
    """The rule that the table names."""
    if kind.ties == "own":
        return OWN[kind.name]
    if kind.ties in ("map", "windows"):
        return _moved if kind.ties == "map" else _windows
    form, _, attribute = kind.ties.rpartition(" ")
    return {"": _alike, "alike but": _except(attribute), "reduced": _reduced(attribute)}[form]


RULES: dict[str, Ties] = {name: _named(kind) for name, kind in KINDS.items() if kind.ties}
