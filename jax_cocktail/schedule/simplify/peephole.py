"""Local rewrites: removes operators without effect, merges pairs of operators, folds integer constants.

A rewrite looks at one operator and at the operators that define its operands. It returns a value equal to the
operator's, a cheaper operator for the same outputs, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from jax_cocktail.schedule.simplify.slices import fixed_slice, slice_of_broadcast, slice_of_update
from jax_cocktail.utask.fold import fold
from jax_cocktail.utask.ir import Attribute, UOperator
from jax_cocktail.utask.types import FLOATS, ITEM_SIZE, SIGNED, UNSIGNED, Value

Definitions = Mapping[Value, UOperator]
Outcome = Value | UOperator | None

# bits of the integers that a float represents exactly
_EXACT_BITS = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}
_WIDER = {
    "bfloat16": frozenset({"float32", "float64"}),
    "float16": frozenset({"float32", "float64"}),
    "float32": frozenset({"float64"}),
}


def peephole(operator: UOperator, definitions: Definitions) -> Outcome:
    """The first rewrite that applies to `operator`."""
    rewrite = _REWRITES.get(operator.kind)
    found = rewrite(operator, definitions) if rewrite is not None else None
    return found if found is not None else _fold(operator, definitions)


def splat(value: Value, definitions: Definitions) -> bytes | None:
    """The one element that a constant repeats, also through broadcasts and reshapes."""
    operator = definitions.get(value)
    while operator is not None and operator.kind in ("broadcast", "reshape"):
        operator = definitions.get(operator.inputs[0])
    if operator is None or operator.kind != "constant" or not operator.output.type.size:
        return None
    data, size = operator.data, ITEM_SIZE[operator.output.type.dtype]
    element = data[:size]
    return element if data == element * operator.output.type.size else None


def is_lossless(source: str, target: str) -> bool:
    """True if `target` represents every value of `source`."""
    if source == target or source == "bool":
        return True
    if source in FLOATS:
        return target in _WIDER.get(source, ())
    bits = 8 * ITEM_SIZE[source] - (source in SIGNED)
    if target in FLOATS:
        return bits <= _EXACT_BITS[target]
    if target in SIGNED:
        return bits <= 8 * ITEM_SIZE[target] - 1
    return target in UNSIGNED and source in UNSIGNED and bits <= 8 * ITEM_SIZE[target]


def _rebuilt(operator: UOperator, inputs: tuple[Value, ...], **attributes: Attribute) -> UOperator:
    """An operator with these outputs and other operands or attributes."""
    merged = dict(operator.attributes) | attributes
    return replace(operator, inputs=inputs, attributes=tuple(sorted(merged.items())))


def _source(value: Value, kind: str, definitions: Definitions) -> UOperator | None:
    operator = definitions.get(value)
    return operator if operator is not None and operator.kind == kind else None


# -- movement ------------------------------------------------------------------------------------------------
def _broadcast(operator: UOperator, definitions: Definitions) -> Outcome:
    (x,) = operator.inputs
    dimensions = operator.ints("dimensions")
    if x.type == operator.output.type and dimensions == tuple(range(x.type.rank)):
        return x
    inner = _source(x, "broadcast", definitions)
    if inner is None:
        return None
    through = tuple(dimensions[d] for d in inner.ints("dimensions"))
    return _rebuilt(operator, inner.inputs, dimensions=through)


def _reshape(operator: UOperator, definitions: Definitions) -> Outcome:
    (x,) = operator.inputs
    if x.type == operator.output.type:
        return x
    constant = _source(x, "constant", definitions)
    if constant is not None:
        return replace(constant, outputs=operator.outputs, source=operator.source)
    inner = _source(x, "reshape", definitions)
    return None if inner is None else _rebuilt(operator, inner.inputs)


def _transpose(operator: UOperator, definitions: Definitions) -> Outcome:
    (x,) = operator.inputs
    permutation = operator.ints("permutation")
    if permutation == tuple(range(x.type.rank)):
        return x
    inner = _source(x, "transpose", definitions)
    if inner is None:
        return None
    before = inner.ints("permutation")
    return _rebuilt(operator, inner.inputs, permutation=tuple(before[d] for d in permutation))


def _slice(operator: UOperator, definitions: Definitions) -> Outcome:
    (x,) = operator.inputs
    if x.type == operator.output.type:
        return x
    starts, strides = operator.ints("starts"), operator.ints("strides")
    inner = _source(x, "slice", definitions)
    if inner is not None:
        first, steps = inner.ints("starts"), inner.ints("strides")
        return _rebuilt(
            operator,
            inner.inputs,
            starts=tuple(b + s * t for b, s, t in zip(first, starts, steps, strict=True)),
            strides=tuple(s * t for s, t in zip(strides, steps, strict=True)),
        )
    joined = _source(x, "concatenate", definitions)
    if joined is not None:
        return _slice_of_concatenate(operator, joined)
    smaller = slice_of_broadcast(operator, definitions)
    return slice_of_update(operator, definitions) if smaller is None else smaller


def _slice_of_concatenate(operator: UOperator, joined: UOperator) -> Outcome:
    """A slice within one operand of a concatenation is a slice of that operand."""
    axis = joined.number("dimension")
    starts, size = operator.ints("starts"), operator.output.type.shape[axis]
    last = starts[axis] + (size - 1) * operator.ints("strides")[axis]
    begin = 0
    for part in joined.inputs:
        end = begin + part.type.shape[axis]
        if size and begin <= starts[axis] and last < end:
            moved = (*starts[:axis], starts[axis] - begin, *starts[axis + 1 :])
            return _rebuilt(operator, (part,), starts=moved)
        begin = end
    return None


def _reverse(operator: UOperator, definitions: Definitions) -> Outcome:
    (x,) = operator.inputs
    return x if all(x.type.shape[d] <= 1 for d in operator.ints("dimensions")) else None


def _pad(operator: UOperator, definitions: Definitions) -> Outcome:
    x = operator.inputs[0]
    plain = not any(operator.ints("low")) and not any(operator.ints("interior"))
    return x if plain and x.type == operator.output.type else None


def _concatenate(operator: UOperator, definitions: Definitions) -> Outcome:
    axis = operator.number("dimension")
    kept = tuple(x for x in operator.inputs if x.type.shape[axis])
    if len(kept) == 1:
        return kept[0]
    return _rebuilt(operator, kept) if kept and kept != operator.inputs else None


def _dynamic_slice(operator: UOperator, definitions: Definitions) -> Outcome:
    """A start is clamped, so a slice of everything starts at zero."""
    x = operator.inputs[0]
    if x.type == operator.output.type:
        return x
    return _spread_part(operator, definitions) or fixed_slice(operator, definitions)


def _dynamic_update_slice(operator: UOperator, definitions: Definitions) -> Outcome:
    x, update = operator.inputs[:2]
    return update if x.type == update.type else x if not update.type.size else None


def _gather(operator: UOperator, definitions: Definitions) -> Outcome:
    """A place outside of the operand may have another value."""
    return None if operator["mode"] == "fill" else _spread_part(operator, definitions)


def _spread_part(operator: UOperator, definitions: Definitions) -> Outcome:
    """Every element of a broadcast array of one element is this element."""
    spread = _source(operator.inputs[0], "broadcast", definitions)
    if spread is None or not spread.inputs[0].type.is_scalar:
        return None
    dimensions = tuple(range(spread.inputs[0].type.rank))
    if len(dimensions) > operator.output.type.rank:
        return None
    attributes = (("dimensions", dimensions),)
    return UOperator("broadcast", spread.inputs, operator.outputs, attributes, operator.source)


# -- elementwise ---------------------------------------------------------------------------------------------
def _bitcast(operator: UOperator, definitions: Definitions) -> Outcome:
    """Bits read as one type and then as another: the first reading drops out, NaN payloads survive."""
    (x,) = operator.inputs
    inner = _source(x, "bitcast", definitions)
    if inner is None:
        return x if x.type == operator.output.type else None
    origin = inner.inputs[0]
    return origin if origin.type == operator.output.type else replace(operator, inputs=(origin,))


def _convert(operator: UOperator, definitions: Definitions) -> Outcome:
    (x,) = operator.inputs
    target = operator.output.type.dtype
    if x.type.dtype == target:
        return x
    inner = _source(x, "convert", definitions)
    if inner is None:
        return None
    source, middle = inner.inputs[0].type.dtype, x.type.dtype
    if not is_lossless(source, middle):
        return None
    # integers wrap but floats saturate: an integer may not skip a float on its way to a narrower integer
    same_sort = (source in FLOATS) == (middle in FLOATS)
    if same_sort or target in FLOATS or target == "bool" or is_lossless(source, target):
        return _rebuilt(operator, inner.inputs)
    return None


def _select(operator: UOperator, definitions: Definitions) -> Outcome:
    predicate, on_true, on_false = operator.inputs
    if on_true == on_false:
        return on_true
    known = splat(predicate, definitions)
    return None if known is None else on_true if known != b"\0" else on_false


def _sum(operator: UOperator, definitions: Definitions) -> Outcome:
    """x + 0 and x - 0 are x, as in XLA: a negative zero stays one."""
    x, y = operator.inputs
    if _is_zero(y, definitions):
        return x
    return y if operator.kind == "add" and _is_zero(x, definitions) else None


def _not_equal(operator: UOperator, definitions: Definitions) -> Outcome:
    """A bool that is not false is true."""
    x, y = operator.inputs
    return x if x.type.dtype == "bool" and _is_zero(y, definitions) else None


def _is_zero(value: Value, definitions: Definitions) -> bool:
    element = splat(value, definitions)
    return element is not None and not any(element)


def _fold(operator: UOperator, definitions: Definitions) -> Outcome:
    """Folds scalar integers and bools, which are never rounded."""
    constants = [_source(x, "constant", definitions) for x in operator.inputs]
    operands = [constant.data for constant in constants if constant is not None]
    data = fold(operator, operands) if len(operands) == len(constants) else None
    if data is None:
        return None
    return UOperator("constant", (), operator.outputs, (("data", data),), operator.source)


_REWRITES: dict[str, Callable[[UOperator, Definitions], Outcome]] = {
    "broadcast": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "reverse": _reverse,
    "pad": _pad,
    "concatenate": _concatenate,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "add": _sum,
    "sub": _sum,
    "ne": _not_equal,
    "bitcast": _bitcast,
    "convert": _convert,
    "select": _select,
}
