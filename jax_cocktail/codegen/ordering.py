"""Emits operators that order elements: sort, top_k."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from jax_cocktail.codegen.context import ArrayView, Context, Emitter
from jax_cocktail.codegen.kernel import Expression, Index, Load, Name
from jax_cocktail.codegen.mapping import lane_loop
from jax_cocktail.codegen.text import COMPUTE, MOST_ELEMENTS
from jax_cocktail.codegen.writer import call, code, replaced, variable
from jax_cocktail.device.tuning import PROGRAM
from jax_cocktail.errors import UnsupportedError
from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.types import FLOATS

Indices = Sequence[Index]
_X, _K, _FROM = Name("x"), Name("k"), Name("from")


def emit_sort(context: Context, operator: UOperator) -> None:
    """Sorts an index array, then permutes every operand by it."""
    context.needs.add("sort")
    axis, shape = cast(int, operator["dimension"]), operator.inputs[0].type.shape
    length, most = shape[axis], MOST_ELEMENTS // 2
    if context.target.has_threads and length > most:
        raise UnsupportedError(f"a sort of {length} elements: a GPU program sorts up to {most}")
    sources = [context.array(x) for x in operator.inputs]
    if operator.outputs[0].type.is_scalar:
        for x, y in zip(operator.inputs, operator.outputs, strict=True):
            context.set(y, context.register(x))
        return
    targets = [context.array(y) for y in operator.outputs]

    def compare(p: Indices, q: Indices) -> None:
        for key in sources[: cast(int, operator["num_keys"])]:
            _compare(context, key.dtype, key.read(p), key.read(q))
        context.writer.line("return false;")

    moves = list(zip(targets, sources, strict=True))
    _emit_ordered(context, shape, axis, length, _sorts(context, length), compare, moves)


def _compare(context: Context, dtype: str, p: Expression, q: Expression) -> None:
    """Returns from the comparator unless the keys are equal. NaN is last; zeros are equal."""
    with context.writer.block():
        context.writer.line("const {} x = {}, y = {};", COMPUTE[dtype], p, q)
        if dtype in FLOATS:
            context.writer.line("if (x < y || (x == x && y != y)) return true;")
            context.writer.line("if (y < x || (y == y && x != x)) return false;")
        else:
            context.writer.line("if (x < y) return true;")
            context.writer.line("if (y < x) return false;")


def emit_top_k(context: Context, operator: UOperator) -> None:
    """The k largest along an axis, ties by position."""
    context.needs.add("sort")
    (x,), (values, positions) = operator.inputs, operator.outputs
    axis, k = cast(int, operator["axis"]), cast(int, operator["k"])
    source = context.array(x)

    def compare(p: Indices, q: Indices) -> None:
        pair = [source.read(p), source.read(q)]
        if x.type.dtype in FLOATS:
            pair = [call("ck_total_order", each) for each in pair]
        context.writer.line("return {} > {};", *pair)

    length = x.type.shape[axis]
    head = _sorts(context, length)
    if k <= PROGRAM.select_share * length:
        head = code("ck_select_index({}, {}, {}", length, k, context.scratch("int32"))
    with context.result(values) as best, context.result(positions) as where:
        _emit_ordered(context, x.type.shape, axis, k, head, compare, [(best, source), (where, None)])


def _sorts(context: Context, length: int) -> Expression:
    """The beginning of a call that sorts positions, up to its comparator."""
    order, spare = context.scratch("int32"), context.scratch("int32", 4 * length)
    return code("ck_sort_index({}, {}, {}", length, order, spare)


def _emit_ordered(
    context: Context,
    shape: Sequence[int],
    axis: int,
    count: int,
    head: Expression,
    compare: Callable[[Indices, Indices], None],
    moves: Sequence[tuple[ArrayView, ArrayView | None]],
) -> None:
    """Orders the positions of each row by a comparator, the last argument of the call `head`, and stores the
    first `count` elements. `moves`: (target, source); without a source, the positions are stored."""
    writer = context.writer
    with writer.nest(replaced(shape, axis, 1)) as indices:

        def at(name: str) -> Indices:
            return replaced(indices, axis, variable(Name(name)))

        with writer.block(code("{}, [&](i32 p, i32 q)", head)):
            compare(at("p"), at("q"))
        writer.line(");")
        context.fence()
        with lane_loop(context, _K, count):
            writer.let("i64", _FROM, Load(context.scratch("int32"), _K))
            for target, source in moves:
                element = source.read(at("from")) if source else code("i32({})", _FROM)
                writer.add(target.store(at("k"), element))
        context.fence()


EMITTERS: dict[str, Emitter] = {"sort": emit_sort, "top_k": emit_top_k}
