"""Emits operators that compare elements: argmax, argmin, sort, top_k."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import cast

from jax_cocktail.codegen.context import ArrayView, Context, Emitter
from jax_cocktail.codegen.kernel import Expression, Index, Load, Name
from jax_cocktail.codegen.loops import loop_indices, loop_over
from jax_cocktail.codegen.mapping import group_elements, group_rows, groups_for, lane_loop
from jax_cocktail.codegen.reduction import identity
from jax_cocktail.codegen.text import COMPUTE, MOST_ELEMENTS
from jax_cocktail.codegen.writer import call, code, variable
from jax_cocktail.errors import UnsupportedError
from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.types import FLOATS

_X, _K, _FROM = Name("x"), Name("k"), Name("from")
SELECT_SHARE = 1 / 8  # of the elements: up to here selection is cheaper than sorting


def emit_arg_reduce(context: Context, operator: UOperator) -> None:
    """First position of the largest (smallest) element along an axis; NaN wins."""
    (x,) = operator.inputs
    axis, shape, dtype = cast(int, operator["axis"]), x.type.shape, x.type.dtype
    source, writer = context.array(x), context.writer
    compare = ">" if operator["op"] == "max" else "<"
    outer = [n for d, n in enumerate(shape) if d != axis]
    index_type = COMPUTE[operator.output.type.dtype]
    if context.target.has_threads:
        _emit_group_arg(context, operator)
        return
    with context.result(operator.output) as target:

        def row(indices: tuple[Index, ...]) -> None:
            first = (*indices[:axis], Index(), *indices[axis:])
            best, at = writer.fresh("a"), writer.fresh("n")
            writer.var(COMPUTE[dtype], best, source.read(first))
            writer.var("i64", at, "0")
            with writer.loop(_K, shape[axis]):
                here = (*indices[:axis], variable(_K), *indices[axis:])
                writer.let(COMPUTE[dtype], _X, source.read(here))
                wins = code("{} {} {}", _X, compare, best)
                if dtype in FLOATS:
                    wins = code("({}) | (({} != {}) & ({} == {}))", wins, _X, _X, best, best)
                with writer.block(code("if ({})", wins)):
                    writer.line("{} = {}; {} = {};", best, _X, at, _K)
            writer.add(target.store(indices, code("{}({})", index_type, at)))

        loop_over(writer, outer, row)


def _emit_group_arg(context: Context, operator: UOperator) -> None:
    """The same with a group of threads for each row."""
    (x,) = operator.inputs
    axis, shape, dtype = cast(int, operator["axis"]), x.type.shape, x.type.dtype
    source, writer, index = context.array(x), context.writer, context.target.index
    context.needs.add("block")
    names = [Name(f"i{d}") for d in range(len(shape))]
    indices = loop_indices(names, shape)
    kept = [(names[d], n) for d, n in enumerate(shape) if d != axis and n != 1]
    groups = groups_for(prod(n for _, n in kept), shape[axis], *context.block)
    is_max = operator["op"] == "max"
    out = tuple(i for d, i in enumerate(indices) if d != axis)
    integer = COMPUTE[operator.output.type.dtype]
    with context.result(operator.output) as target, group_rows(context, groups, kept) as stores:
        best, at = writer.fresh("a"), writer.fresh("n")
        start = identity("max" if is_max else "min", dtype)
        writer.var(COMPUTE[dtype], best, start)
        writer.var(index, at, "0x7fffffff")
        with group_elements(context, groups, [(names[axis], shape[axis])]):
            writer.let(COMPUTE[dtype], _X, source.read(indices))
            wins = code("{} {} {} || {} == 0x7fffffff", _X, ">" if is_max else "<", best, at)
            if dtype in FLOATS:
                number = code("{} == {}", best, best)
                wins = code("(({}) && {}) || ({} != {} && {})", wins, number, _X, _X, number)
            writer.line("if ({}) {{ {} = {}; {} = {}; }}", wins, best, _X, at, indices[axis])
        if groups.size > 1:
            combine = "ck_group_arg<{}, {}>({}, {});"
            writer.line(combine, groups.size, "true" if is_max else "false", best, at)
        writer.add(target.store(out, code("{}({})", integer, at), stores))


def emit_sort(context: Context, operator: UOperator) -> None:
    """Sorts an index array, then permutes every operand by it."""
    context.needs.add("sort")
    axis, shape = cast(int, operator["dimension"]), operator.inputs[0].type.shape
    writer, length = context.writer, operator.inputs[0].type.shape[axis]
    if context.target.has_threads and length > MOST_ELEMENTS // 2:
        raise UnsupportedError(f"a sort of {length} elements: a GPU program sorts up to {MOST_ELEMENTS // 2}")
    sources = [context.array(x) for x in operator.inputs]
    keys = range(cast(int, operator["num_keys"]))
    outer = [1 if d == axis else n for d, n in enumerate(shape)]
    if operator.outputs[0].type.is_scalar:
        for x, y in zip(operator.inputs, operator.outputs, strict=True):
            context.set(y, context.register(x))
        return
    order = context.scratch("int32")
    spare = context.scratch("int32", 4 * length)
    targets = [context.array(y) for y in operator.outputs]

    def row(indices: tuple[Index, ...]) -> None:
        def at(array: ArrayView, name: str) -> Expression:
            return array.read((*indices[:axis], variable(Name(name)), *indices[axis + 1 :]))

        with writer.block(code("ck_sort_index({}, {}, {}, [&](i32 p, i32 q)", length, order, spare)):
            for key in keys:
                _compare(
                    context, operator.inputs[key].type.dtype, at(sources[key], "p"), at(sources[key], "q")
                )
            writer.line("return false;")
        writer.line(");")
        context.fence()
        with lane_loop(context, _K, length):
            writer.let("i64", _FROM, Load(order, _K))
            for source, target in zip(sources, targets, strict=True):
                place = (*indices[:axis], variable(_K), *indices[axis + 1 :])
                writer.add(target.store(place, at(source, "from")))
        context.fence()

    loop_over(writer, outer, row)


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
    axis, shape, k = cast(int, operator["axis"]), x.type.shape, cast(int, operator["k"])
    writer, length, dtype = context.writer, x.type.shape[axis], x.type.dtype
    source = context.array(x)
    order, spare = context.scratch("int32"), context.scratch("int32", 4 * length)
    outer = [1 if d == axis else n for d, n in enumerate(shape)]
    head = code("ck_sort_index({}, {}, {}, [&](i32 p, i32 q)", length, order, spare)
    if k <= SELECT_SHARE * length:
        head = code("ck_select_index({}, {}, {}, [&](i32 p, i32 q)", length, k, order)
    with context.result(values) as best, context.result(positions) as where:

        def row(indices: tuple[Index, ...]) -> None:
            def place(name: str) -> Sequence[Index]:
                return (*indices[:axis], variable(Name(name)), *indices[axis + 1 :])

            with writer.block(head):
                first, second = source.read(place("p")), source.read(place("q"))
                if dtype in FLOATS:
                    first, second = call("ck_total_order", first), call("ck_total_order", second)
                writer.line("return {} > {};", first, second)
            writer.line(");")
            context.fence()
            with lane_loop(context, _K, k):
                writer.let("i64", _FROM, Load(order, _K))
                writer.add(best.store(place("k"), source.read(place("from"))))
                writer.add(where.store(place("k"), code("i32({})", _FROM)))
            context.fence()

        loop_over(writer, outer, row)


EMITTERS: dict[str, Emitter] = {"arg_reduce": emit_arg_reduce, "sort": emit_sort, "top_k": emit_top_k}
