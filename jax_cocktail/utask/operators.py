"""The operator kinds of the uTask IR: the one table that rules, interpreter, passes and emitters share.

Sorts:
  elementwise: operands and result have the same shape; element i of the result is a function of element i
    of every operand.
  movement: one result element is a function of *some* operand elements (broadcast, slice, gather ...).
  anchor: needs a template of its own per target (dot, reduce, sort ...).
The first two are *element* operators: they fuse by composing element functions.

Semantics are those of the XLA operation of the same name unless said otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OperatorKind:
    """`arity` None: variadic. `attributes`: sorted names, all required; `optional`: those that may be there.
    `cost`: flops of one element."""

    name: str
    sort: str
    arity: int | None
    attributes: tuple[str, ...] = ()
    cost: int = 1
    optional: tuple[str, ...] = ()


class _Table:
    """Collects the kinds; `names` and `attributes` are words separated by spaces."""

    def __init__(self) -> None:
        self.kinds: dict[str, OperatorKind] = {}

    def __call__(
        self,
        sort: str,
        arity: int | None,
        names: str,
        attributes: str = "",
        cost: int = 1,
        optional: str = "",
    ) -> None:
        fields = tuple(sorted(attributes.split()))
        for name in names.split():
            self.kinds[name] = OperatorKind(name, sort, arity, fields, cost, tuple(optional.split()))


def _elementwise(add: _Table) -> None:
    # elementwise, one operand. Result dtype = operand dtype, except is_finite -> bool.
    add("elementwise", 1, "neg abs sign floor ceil round_away round_even is_finite not")
    add("elementwise", 1, "population_count clz", cost=2)
    add("elementwise", 1, "sqrt rsqrt", cost=8)
    add("elementwise", 1, "exp exp2 expm1 log log1p tanh logistic sin cos erf cbrt", cost=20)
    add("elementwise", 1, "tan asin acos atan sinh cosh asinh acosh atanh", cost=30)
    add("elementwise", 1, "erfc erf_inv lgamma digamma bessel_i0e bessel_i1e", cost=60)
    add("elementwise", 1, "integer_pow", "exponent", cost=4)  # exponent: int, may be negative
    add("elementwise", 1, "convert")  # float -> int saturates, NaN -> 0; to bool: != 0; ints wrap
    add("elementwise", 1, "bitcast")  # same width
    add("elementwise", 1, "reduce_precision", "exponent_bits mantissa_bits", cost=4)
    # elementwise, two operands of one dtype. Comparisons -> bool. Shifts >= width: 0 (or sign fill).
    # div/rem of integers: truncating, x/0 = -1 (all ones), x%0 = x, MIN/-1 = MIN, MIN%-1 = 0.
    # max/min propagate NaN. and/or/xor/not work on bool and integers.
    add("elementwise", 2, "add sub mul max min and or xor eq ne lt le gt ge")
    add("elementwise", 2, "shift_left shift_right_logical shift_right_arithmetic")
    add("elementwise", 2, "div rem", cost=8)
    add("elementwise", 2, "pow atan2 nextafter", cost=40)
    add("elementwise", 3, "select")  # (pred bool, on_true, on_false)
    add("elementwise", 3, "clamp", cost=2)  # (low, x, high): min(max(x, low), high)
    # Threefry-2x32 (Random123): (key0, key1, counter0, counter1) uint32 -> word 0 or 1 of the block
    add("elementwise", 4, "threefry2x32", "word", cost=60)


def _movement(add: _Table) -> None:
    add("movement", 0, "constant", "data")  # data: bytes, row-major, little-endian; bool is one byte
    add("movement", 0, "empty")  # unspecified content; reading it before writing is a fault
    add("movement", 0, "iota", "dimension")
    add(
        "movement", 1, "broadcast", "dimensions"
    )  # operand axis d -> result axis dimensions[d]; size 1 spreads
    add("movement", 1, "reshape")
    add("movement", 1, "transpose", "permutation")  # result axis i = operand axis permutation[i]
    add("movement", 1, "slice", "starts strides")  # sizes: the result's shape
    add("movement", 1, "reverse", "dimensions")
    add("movement", 2, "pad", "low interior")  # (operand, scalar); low may be negative; high: result's shape
    add("movement", None, "concatenate", "dimension")
    add("movement", None, "dynamic_slice")  # (operand, start per axis: integer scalars); starts clamped
    # (operand, indices: index vector in the LAST axis). mode: clip | fill | promise_in_bounds;
    # fill_value: bytes of one element. Other names as in jax.lax.GatherDimensionNumbers.
    add(
        "movement",
        2,
        "gather",
        "collapsed_slice_dims fill_value mode offset_dims operand_batching_dims slice_sizes"
        " start_index_map start_indices_batching_dims",
        cost=4,
    )


def _anchors(add: _Table) -> None:
    # dot: result axes = batch, lhs free, rhs free. Result dtype may be wider than the operands'.
    # precision: "default" if f32 operands may be rounded to what tensor cores take (TF32), as in XLA
    add("anchor", 2, "dot", "lhs_batch lhs_contract rhs_batch rhs_contract", optional="precision")
    # conv: *_spec as in jax ConvDimensionNumbers: (batch|out feature, feature|in feature, spatial ...)
    add(
        "anchor",
        2,
        "conv",
        "batch_group_count feature_group_count lhs_dilation lhs_spec out_spec padding rhs_dilation rhs_spec"
        " window_strides",
        optional="precision",
    )
    add("anchor", 1, "reduce", "axes op")  # op: sum prod max min and or xor
    add("anchor", 1, "arg_reduce", "axis op")  # op: max min; ties -> first, NaN wins; result: int dtype
    add("anchor", 1, "cumulative", "axis op reverse")  # op: sum prod max min logsumexp
    # stable, ascending on the first num_keys operands; -0 == 0, all NaN equal and last
    add("anchor", None, "sort", "dimension num_keys")
    add("anchor", 1, "top_k", "axis k")  # results: values (descending), int32 indices; ties -> first
    # (operand, indices: index vector in the LAST axis, updates). op: set add sub mul min max.
    # mode: clip | fill_or_drop | promise_in_bounds. Names as in jax.lax.ScatterDimensionNumbers.
    add(
        "anchor",
        3,
        "scatter",
        "inserted_window_dims mode op operand_batching_dims scatter_dims_to_operand_dims"
        " scatter_indices_batching_dims update_window_dims",
    )
    add("anchor", None, "dynamic_update_slice")  # (operand, update, start per axis); starts clamped
    # padding: ((low, high), ...); op: sum prod max min (identity element pads)
    add("anchor", 1, "reduce_window", "base_dilation op padding strides window window_dilation")
    add("anchor", 1, "copy")  # the same value in memory of its own
    # the two halves of a domain barrier: what a unit wrote before `arrive` is seen by all after their `wait`
    add("anchor", 0, "arrive wait")
    # every unit gets all of each operand in memory of its own, as soon as the units that wrote its blocks
    # have sent them. blocks: of each operand (axis, size, parts, first): unit (first + p) mod n of n has
    # written part p
    add("anchor", None, "exchange", "blocks")
    # the barrier of the threads of one unit, where it has several
    add("anchor", 0, "meet")
    # the operand, an int32 scalar. Not 0: the call fails, and says that line of `text`, counted from 1. Runs
    # where the program says and nowhere else: every other operator is total
    add("anchor", 1, "fail", "text")
    # int32 scalar: how many units the program is planned for; a constant before any other pass runs
    add("anchor", 0, "units")
    # (source, operand); select: ge | le
    add("anchor", 2, "select_and_scatter_add", "padding select strides window")


def _table() -> dict[str, OperatorKind]:
    table = _Table()
    for family in (_elementwise, _movement, _anchors):
        family(table)
    return table.kinds


KINDS: dict[str, OperatorKind] = _table()
