"""Emits dot and conv as calls of the target's templates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import cast

from jax_cocktail.analysis.contraction import PANELS, Contraction, contraction
from jax_cocktail.codegen.context import ArrayView, Context, Emitter
from jax_cocktail.codegen.kernel import Expression, Index, Spelled, spelled
from jax_cocktail.codegen.text import STORAGE
from jax_cocktail.codegen.writer import code, joined
from jax_cocktail.cost.conv_plan import ConvPlan, conv_case, conv_plan
from jax_cocktail.cost.cpu_products import core_product
from jax_cocktail.cost.dot_plan import DotPlan, dot_form, dot_plan, is_rounded
from jax_cocktail.device.tuning import BLOCK, PROGRAM
from jax_cocktail.utask.ir import UOperator
from jax_cocktail.utask.layout import row_major
from jax_cocktail.utask.sizes import Size, is_general, least_of
from jax_cocktail.utask.tensor_order import PACKED
from jax_cocktail.utask.types import ITEM_SIZE, Value

_SPELLED = {PACKED: "kCkDotPacked", PANELS: "kCkPanels"}


def _number(number: int) -> str:
    """A size or stride as an argument of a template."""
    return _SPELLED.get(number) or str(number)


@dataclass(frozen=True, slots=True)
class Holdable:
    """A product that can keep a matrix in registers.

    Attributes:
      left: the matrix is the left operand.
      few: rows (or columns) of the other operand.
      text: the arguments of `CkDotHeld`.
      bytes: of registers, in all threads of a block.
    """

    left: bool
    few: int
    text: str
    bytes: int


def holdable(context: Context, operator: UOperator, result: ArrayView | None = None) -> Holdable | None:
    """None for a product of many rows and columns, or of several matrices, or too small to be worth it.

    `result`: the memory of the result; without it, a dense array.
    """
    if len(operator.inputs) > 2 or any(v.type.is_scalar for v in (*operator.inputs, operator.output)):
        return None
    a, b = (context.array(v) for v in operator.inputs)
    dense = row_major(operator.output.type.shape)
    o = result or ArrayView(a.pointer, dense, operator.output.type.dtype)
    product = contraction(operator, (a.strides, b.strides, o.strides))
    rows, columns, k = product.rows.size, product.columns.size, product.depth.size
    left = columns < rows
    few, many = sorted((rows, columns))
    block = context.block
    threads, warp = block.threads, block.warp
    if product.outer or product.batch.size > 1 or few > BLOCK.held_rows or PACKED in product.read:
        return None
    if few * k > BLOCK.held_row_elements or many * k < threads:
        return None
    padded = -(-many // (threads // warp)) * -(-k // warp) * threads
    matrix = operator.inputs[0 if left else 1].type
    types = ", ".join(STORAGE[x.dtype] for x in (a, b, o))
    text = f"{types}, {', '.join(map(str, product.read))}"
    return Holdable(left, few, text, padded * matrix.nbytes // matrix.size)


_Views = tuple[ArrayView, ArrayView, ArrayView]  # operands and result
Made = tuple[UOperator, ArrayView]  # a product and the memory of its result


def emit_held(context: Context, products: Sequence[Made]) -> bool:
    """Calls ck_dot_held, which keeps matrices in registers. False if one of the products cannot."""
    calls, others = list[Expression](), list[Value]()
    for operator, o in products:
        kept = context.held.get(operator.output)
        held = None if kept is None else holdable(context, operator, o)
        if kept is None or held is None or held.text != kept.text:
            return False
        matrix, other = operator.inputs if held.left else operator.inputs[::-1]
        a, b = (context.array(v) for v in operator.inputs)
        written = map(str, contraction(operator, (a.strides, b.strides, o.strides)).written)
        pointers = (context.array(other).pointer, context.array(matrix).pointer, o.pointer)
        calls.append(code("ck_held<{}, {}>({}, {}, {}, {})", *written, kept.name, *pointers))
        others.append(other)
    context.needs.add("dot")
    aligned = "<true>" if _are_aligned(context, *others) else ""
    context.writer.line("ck_dot_held{}({});", aligned, joined(", ", calls))
    return True


def emit_dot(context: Context, operator: UOperator, destination: ArrayView | None = None) -> None:
    """Calls ck_dot_fixed on (batch, m, k) x (batch, k, n), inside loops over the axes that do not fit; or
    ck_dot_held; or ck_dot_sum, which adds two products up.

    `destination`: the memory of the result, if not its own buffer.
    """
    context.needs.add("dot")
    lhs, rhs = operator.inputs[:2]
    a, b = context.array(lhs), context.array(rhs)
    with nullcontext(destination) if destination else context.result(operator.output) as o:
        if len(operator.inputs) > 2:
            _emit_sum(context, operator, o)
            return
        product = contraction(operator, (a.strides, b.strides, o.strides))
        if not context.target.has_threads:
            product = core_product(product, (view.dtype for view in (a, b, o)))
        outer = product.outer
        if emit_held(context, [(operator, o)]):
            return
        few = min(int(product.rows.size), int(product.columns.size))
        slim = context.target.holds and not outer and few <= BLOCK.few_rows
        with context.writer.nest([axis.size for axis in outer]) as indices:
            pointers = _pointers((a, b, o), product, indices)
            steps = zip(pointers, product.batch.strides, strict=True)
            arrays = [code("{}, {}", pointer, step) for pointer, step in steps]
            aligned = "true" if slim and _are_aligned(context, lhs, rhs) else ""
            context.writer.add(_called(context, operator, (a, b, o), product, arrays, aligned))
            if outer:  # the next call uses the same scratch memory
                context.fence()


def _called(
    context: Context,
    operator: UOperator,
    views: _Views,
    product: Contraction,
    arrays: Sequence[Expression],
    aligned: str,
) -> Spelled:
    """The call of the template. `arrays`: pointers to operands and result, each with its step in a batch;
    `aligned`: the argument of the template that says so, or none."""
    batch, numbers = product.batch.size, (*product.read, *product.written)
    general = [n for n in numbers if is_general(n)]
    if not context.target.has_threads and any(least_of(n) < PROGRAM.some_rows for n in general):
        types, shape = joined(", ", [STORAGE[x.dtype] for x in views]), joined(", ", [*map(spelled, numbers)])
        return code("ck_dot_any<{}>({{{}}}, {}, {});", types, shape, batch, joined(", ", arrays))
    if not context.target.has_threads and any(map(_is_run_time, numbers)):
        known, shape = _known(views, product, _class_of), joined(", ", [*map(spelled, numbers)])
        return code("ck_dot_sized<{}>({{{}}}, {}, {});", known, shape, batch, joined(", ", arrays))
    if context.target.has_threads and sum(map(_is_run_time, numbers)) == 1:
        if _is_run_time(product.columns.size) and PACKED not in product.read:  # only a right matrix is packed
            product, views, arrays = product.turned, (views[1], views[0], views[2]), _turned(arrays)
        rows = product.rows.size
        if _is_run_time(rows):  # a block takes as many at a time as the text says, whatever their number
            together = next(n for n in BLOCK.rows_together if n <= rows)
            product = replace(product, rows=replace(product.rows, size=together))
            known = _known(views, product) + _how(context, operator, views, product, aligned)
            return code("ck_dot_rows<{}>({}, {}, {});", known, rows, batch, joined(", ", arrays))
    known = _known(views, product) + _how(context, operator, views, product, aligned)
    return code("ck_dot_fixed<{}>({}, {});", known, batch, joined(", ", arrays))


def _turned(arrays: Sequence[Expression]) -> list[Expression]:
    left, right, result = arrays
    return [right, left, result]


def _emit_sum(context: Context, operator: UOperator, o: ArrayView) -> None:
    a, b, c, d = map(context.array, operator.inputs)
    first, second = (contraction(operator, (x.strides, y.strides, o.strides)) for x, y in ((a, b), (c, d)))
    rows = replace(first.rows, strides=second.rows.strides)
    assert (rows, first.columns, first.depth) == (second.rows, second.columns, second.depth), "products alike"
    assert PACKED in first.read, "of packed matrices"
    with context.writer.nest([axis.size for axis in first.outer]) as indices:
        left, right, result = _pointers((a, b, o), first, indices)
        others = _pointers((c, d, o), second, indices)[:2]
        step = str(second.rows.strides[0])
        known = _known((a, b, o), first) + _how(context, operator, (a, b, o), first, step)
        arrays = joined(", ", (left, right, *others, result))
        context.writer.line("ck_dot_sum<{}>({});", known, arrays)
        if first.outer:
            context.fence()


def _how(
    context: Context, operator: UOperator, views: _Views, product: Contraction, last: str = ""
) -> str:
    """The arguments of a template for blocks of threads behind those of `_known`: the plan, the rounding and
    the last one."""
    if not context.target.has_threads:
        return ""
    a, b, o = (view.dtype for view in views)
    form = dot_form(product, (a, b, o), is_rounded(operator), len(operator.inputs) // 2)
    plan = dot_plan(form, context.block, context.plan.template_bytes)
    rounding = "CK_TF32" if is_rounded(operator) else "CK_EXACT" if last else ""
    return "".join(f", {text}" for text in (dot_text(plan), rounding, last) if text)


def dot_text(plan: DotPlan) -> str:
    """A plan as an argument of a template, see `gpu_src/cocktail_dot_plan.h`."""
    p = plan
    tiles = p.bm, p.bn, p.bk, p.tm, p.tn, p.slices, p.stages
    text = {
        "serial": "CkDotSerial",
        "columns": f"CkDotColumns<{p.v}, {p.kv}, {p.lanes}, {p.parts}>",
        "lanes": f"CkDotLanes<{p.v}, {p.lanes}, {p.columns}, {p.parts}>",
    }.get(p.path) or f"CkDotTiles<CK_DOT_{p.path.upper()}, {', '.join(map(str, tiles))}>"
    return f"CkDotTurned<{text}>" if p.turned else text


def _pointers(arrays: _Views, product: Contraction, indices: Sequence[Index]) -> list[Expression]:
    """The places where the operands and the result of a call begin, inside the loops over outer axes."""
    found: list[Expression] = []
    for side, array in enumerate(arrays):
        place = Index().along(indices, [axis.strides[side] for axis in product.outer])
        found.append(array.pointer if place == Index() else code("{} + {}", array.pointer, place))
    return found


def _known(arrays: Sequence[ArrayView], product: Contraction, spell: Callable[[int], str] = _number) -> str:
    """The types, sizes and strides of a call."""
    types = (STORAGE[x.dtype] for x in arrays)
    return ", ".join((*types, *map(spell, (*product.read, *product.written))))


def _class_of(number: int) -> str:
    """A size or stride as an argument of a template that takes launch parameters."""
    if _is_run_time(number):
        return "kCkMany" if least_of(number) >= PROGRAM.many_rows else "kCkSome"
    return _number(number)


def _is_run_time(number: int) -> bool:
    """True for a launch parameter so large that the choice of a kernel does not depend on it."""
    return isinstance(number, Size) and least_of(number) >= PROGRAM.some_rows


def _are_aligned(context: Context, *values: Value) -> bool:
    """True if arrays surely begin at multiples of the bytes of a thread's widest load."""
    places = []
    for value in values:
        if value.type.is_scalar:
            return False
        layout, slot = context.layout(value), context.slot(value)
        if layout.base != layout.root or slot.space not in ("own", "workspace") or slot in context.plan.parts:
            return False
        places.append(slot.index + layout.offset * ITEM_SIZE[value.type.dtype])
    return all(place % BLOCK.load_bytes == 0 for place in places)


def emit_conv(context: Context, operator: UOperator) -> None:
    """ck_conv_fixed on canonical layouts: x (N, spatial, C), w (spatial, I, O), result (N, spatial, O)."""
    context.needs.add("conv")
    x, w = operator.inputs
    out = operator.output
    rank = x.type.rank - 2
    name = context.writer.fresh("g")
    lows = tuple(low for low, _ in cast(tuple[tuple[int, int], ...], operator["padding"]))
    spatial = [x.type.shape[1:-1], out.type.shape[1:-1], w.type.shape[:-2], operator.ints("window_strides")]
    spatial += [lows, operator.ints("lhs_dilation"), operator.ints("rhs_dilation")]
    features = x.type.shape[-1], out.type.shape[-1], operator["feature_group_count"]
    geometry = ", ".join([str(x.type.shape[0]), *map(_braces, spatial), *map(str, features)])
    context.writer.line("struct {} {{ CkConv<{}> value = {{{}}}; }};", name, rank, geometry)
    a, b = context.array(x), context.array(w)
    with context.result(out) as o:
        types = f"{STORAGE[x.type.dtype]}, {STORAGE[out.type.dtype]}"
        known = code("{}, {}", rank, name)
        if context.target.has_threads:
            plan = conv_plan(conv_case(operator), context.block, context.plan.template_bytes)
            rounding = ", CK_TF32" if is_rounded(operator) else ""
            known = code("{}, {}{}", known, conv_text(plan), rounding)
        call = "ck_conv_fixed<{}, {}>({}, {}, {});"
        context.writer.line(call, types, known, a.pointer, b.pointer, o.pointer)


def conv_text(plan: ConvPlan) -> str:
    """A plan as an argument of a template, see `gpu_src/cocktail_conv_plan.h`."""
    p = plan
    if p.kind == "simple":
        return "CkConvElements"
    if p.kind == "few":
        return f"CkConvBoxes<{p.depth}, {p.column_parts}, {p.height}, {p.width}>"
    parts = p.depth, p.stages, p.slices, p.row_parts, p.column_parts, p.height, p.width
    return f"CkConvTiles<CK_CONV_{p.kind.upper()}, {', '.join(map(str, parts))}>"


def _braces(numbers: Sequence[int]) -> str:
    return "{" + ", ".join(map(str, numbers)) + "}"


EMITTERS: dict[str, Emitter] = {"dot": emit_dot, "conv": emit_conv}
