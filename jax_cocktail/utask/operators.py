"""The operator kinds of the uTask IR: the one table that rules, interpreter, passes and emitters share.

Sorts:
  elementwise: operands and result have the same shape; element i of the result is a function of element i
    of every operand.
  movement: one result element is a function of *some* operand elements (broadcast, slice, gather ...).
  anchor: needs a template of its own per target (dot, reduce, sort ...).
The first two are *element* operators: they fuse by composing element functions.

Semantics are those of the XLA operation of the same name unless said otherwise. Each fact about a kind that
more than one module uses is a field of `OperatorKind`; the sets at the end are derived from these fields.

A new kind needs a row here, a type rule (`utask.infer`), an emitter (`codegen`), a function or template in
the headers of each target, and an evaluator (`tests.oracle.interpreter`); `primitives` translates to it.
`tests/null/test_operators.py` names what is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any


@dataclass(frozen=True, slots=True)
class OperatorKind:
    """The facts about one kind.

    Form:
      arity: number of operands; None: any.
      attributes: sorted names, all required; `optional`: those that may be there.
      results: number of results; None: one for each operand.
      takes: dtypes of the operands, which have one type: "floats", "integers", "numbers" (both), "bits"
        (integers and bool) or "any"; "": the kind has a type rule of its own.
      gives: dtype of the result, if it is not that of the operands.
      ties: axes along which it falls into independent parts (see `analysis.axes`). "alike": every axis, the
        same one of each operand and result. "alike but x": all axes except those that attribute x names.
        "reduced x": the same, and the result lacks these axes. "windows": the axes that no window slides
        along. "map": those of its index map (see `utask.maps`). "own": a rule of its own. "": none.
    Memory:
      view: the result can be the first operand's memory with other strides.
      partial: reads only as many elements of its first operand as it returns.
      updates: the operand that it writes into its first one, in place; 0: none.
      block_scratch: its GPU templates use the scratch memory of a thread block.
      orders: the attribute that names the axis along which it sorts indices in scratch memory.
      largest: of operators on matrices, the most rows and columns for its template. A CPU calls LAPACK, with
        scratch memory, for larger matrices; a GPU cannot.
    Work:
      cost: flops of one element.
      divides: GPU code for floats contains a division.
      cubic: that, times the columns of the first operand's matrices.
      free: cost models charge nothing for it; the operator that reads the result does the work.
      product: sums of products along contracted axes.
      kernels: kernels that stock XLA launches for an anchor; 0: it is part of a fusion.
    Values:
      needs_width: depends on the width of a float, so a 16-bit operand must not be widened first.
      linear: of which operands its result is a linear function. "first": the first one; "sum": that, if it
        sums; "each": any, if the others are fixed; "together": all; "together 0 1": these.
      distinct: two results are two arrays even if everything else is equal, so operators never become one.
    Execution:
      total: False if it can fail the call; it then runs exactly where the program has it.
      together: the executors that must run it together: all "units", or all "threads" of one unit.
    """

    name: str
    sort: str
    arity: int | None
    attributes: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    results: int | None = 1
    takes: str = ""
    gives: str = ""
    ties: str = ""
    view: bool = False
    partial: bool = False
    updates: int = 0
    block_scratch: bool = False
    orders: str = ""
    largest: int | None = None
    cost: int = 1
    divides: bool = False
    cubic: bool = False
    free: bool = False
    product: bool = False
    kernels: int = 1
    needs_width: bool = False
    linear: str = ""
    distinct: bool = False
    total: bool = True
    together: str = ""


class _Table:
    """Collects the kinds; `names`, `attributes` and `optional` are words separated by spaces."""

    def __init__(self) -> None:
        self.kinds: dict[str, OperatorKind] = {}

    def __call__(
        self,
        sort: str,
        arity: int | None,
        names: str,
        attributes: str = "",
        optional: str = "",
        **facts: Any,
    ) -> None:
        required = tuple(sorted(attributes.split()))
        for name in names.split():
            self.kinds[name] = OperatorKind(name, sort, arity, required, tuple(optional.split()), **facts)


def _elementwise(table: _Table) -> None:
    add = partial(table, "elementwise", ties="alike")
    # one operand. Result dtype = operand dtype unless `gives` says otherwise
    add(1, "neg", takes="numbers", linear="first")
    add(1, "abs", takes="numbers")
    add(1, "sign", takes="numbers")
    add(1, "floor ceil round_away", takes="floats")
    add(1, "round_even", takes="floats", needs_width=True)
    add(1, "is_finite", takes="floats", gives="bool", needs_width=True)
    add(1, "not", takes="bits")
    add(1, "population_count clz", takes="integers", cost=2)
    add(1, "sqrt rsqrt", takes="floats", cost=8)
    add(1, "exp exp2 expm1 log log1p sin cos erf cbrt", takes="floats", cost=20)
    add(1, "tanh logistic", takes="floats", cost=20, divides=True)
    add(1, "tan asin acos atan sinh cosh asinh acosh atanh", takes="floats", cost=30)
    add(1, "erfc erf_inv lgamma digamma bessel_i0e bessel_i1e", takes="floats", cost=60)
    add(1, "integer_pow", "exponent", cost=4)  # exponent: int, may be negative
    add(1, "convert", linear="first")  # float -> int saturates, NaN -> 0; to bool: != 0; ints wrap
    add(1, "bitcast", needs_width=True)  # same width
    add(1, "reduce_precision", "exponent_bits mantissa_bits", cost=4, needs_width=True)
    # two operands of one dtype. Shifts >= width: 0 (or sign fill). div/rem of integers: truncating,
    # x/0 = -1 (all ones), x%0 = x, MIN/-1 = MIN, MIN%-1 = 0. max/min propagate NaN.
    add(2, "add sub", takes="numbers", linear="together")
    add(2, "mul", takes="numbers", linear="each")
    add(2, "max min", takes="numbers")
    add(2, "and or xor", takes="bits")
    add(2, "eq ne lt le gt ge", takes="any", gives="bool")
    add(2, "shift_left shift_right_logical shift_right_arithmetic", takes="integers")
    add(2, "div", takes="numbers", cost=8, divides=True, linear="first")  # of floats
    add(2, "rem", takes="numbers", cost=8, divides=True)
    add(2, "pow atan2", takes="floats", cost=40)
    add(2, "nextafter", takes="floats", cost=40, needs_width=True)
    add(3, "select", linear="together 1 2")  # (pred bool, on_true, on_false)
    add(3, "clamp", takes="numbers", cost=2)  # (low, x, high): min(max(x, low), high)
    # Threefry-2x32 (Random123): (key0, key1, counter0, counter1) uint32 -> word 0 or 1 of the block
    add(4, "threefry2x32", "word", cost=60)


def _movement(table: _Table) -> None:
    add = partial(table, "movement")
    add(0, "constant", "data", ties="alike", free=True)  # bytes, row-major, little-endian; bool is one byte
    # unspecified content; reading it before writing is a fault
    add(0, "empty", ties="alike", free=True, distinct=True)
    add(0, "iota", "dimension", ties="alike")
    # operand axis d -> result axis dimensions[d]; size 1 spreads
    add(1, "broadcast", "dimensions", ties="map", view=True, free=True, linear="first")
    add(1, "reshape", ties="own", view=True, free=True, linear="first")
    # result axis i = operand axis permutation[i]
    add(1, "transpose", "permutation", ties="map", view=True, free=True, linear="first")
    # sizes: the result's shape
    add(1, "slice", "starts strides", ties="map", view=True, partial=True, free=True, linear="first")
    add(1, "reverse", "dimensions", ties="map", view=True, linear="first")
    # (operand, scalar); low may be negative; high: result's shape
    add(2, "pad", "low interior", ties="own", linear="together")
    add(None, "concatenate", "dimension", ties="alike but dimension", linear="together")
    # (operand, start per axis: integer scalars); starts clamped
    add(None, "dynamic_slice", ties="own", view=True, partial=True, free=True, linear="first")
    # (operand, indices: index vector in the LAST axis). mode: clip | fill | promise_in_bounds;
    # fill_value: bytes of one element. Other names as in jax.lax.GatherDimensionNumbers.
    names = (
        "collapsed_slice_dims fill_value mode offset_dims operand_batching_dims slice_sizes"
        " start_index_map start_indices_batching_dims"
    )
    add(2, "gather", names, ties="own", partial=True, cost=4)


def _products(table: _Table) -> None:
    add = partial(table, "anchor", optional="precision", ties="own", product=True, block_scratch=True)
    # precision: "default" if f32 operands may be rounded to what tensor cores take (TF32), as in XLA
    # dot: result axes = batch, lhs free, rhs free. Result dtype may be wider than the operands'. Operands are
    # lhs and rhs, or those of several products of the same types, which are added up.
    add(None, "dot", "lhs_batch lhs_contract rhs_batch rhs_contract", linear="each")
    # conv: *_spec as in jax ConvDimensionNumbers: (batch|out feature, feature|in feature, spatial ...)
    names = (
        "batch_group_count feature_group_count lhs_dilation lhs_spec out_spec padding rhs_dilation rhs_spec"
        " window_strides"
    )
    add(2, "conv", names)


def _matrices(table: _Table) -> None:
    """Operands are matrices in the last two axes, of float32 or float64."""
    add = partial(table, "anchor", ties="own", cost=8, cubic=True, largest=128)
    # the lower factor, with zeros above; reads the lower triangle. All NaN if a pivot is not positive
    add(1, "cholesky")
    # results: both factors in one matrix, the lower one with a diagonal of ones; int32 pivots
    add(1, "lu", results=2, largest=64)
    # results: R, with the vectors of the reflections below its diagonal; their factors
    add(1, "geqrf", results=2)
    # (vectors, factors of reflections): the first columns of their product
    add(2, "householder_product")
    # (triangular matrix, right-hand sides in columns)
    add(2, "triangular_solve", "lower unit_diagonal")
    add = partial(add, 1, cost=20, largest=0)
    # of a symmetric matrix. Results: eigenvectors in columns; ascending eigenvalues. lower: reads that half
    add("eigh", "lower", results=2)
    # results: descending singular values; left vectors in columns, right ones in rows
    add("svd", results=3)
    add("singular_values")


def _reductions(table: _Table) -> None:
    add = partial(table, "anchor")
    # op: sum prod max min and or xor
    add(1, "reduce", "axes op", ties="reduced axes", block_scratch=True, linear="sum")
    # op: max min; ties -> first, NaN wins; result: int dtype
    add(1, "arg_reduce", "axis op", ties="reduced axis", block_scratch=True)
    # op: sum prod max min logsumexp
    add(1, "cumulative", "axis op reverse", ties="alike but axis", block_scratch=True, kernels=2)
    # padding: ((low, high), ...); op: sum prod max min (identity element pads)
    add(1, "reduce_window", "base_dilation op padding strides window window_dilation", ties="windows")
    # (source, operand); select: ge | le
    add(2, "select_and_scatter_add", "padding select strides window", ties="windows")


def _sorting(table: _Table) -> None:
    add = partial(table, "anchor", block_scratch=True, kernels=3)
    # stable, ascending on the first num_keys operands; -0 == 0, all NaN equal and last
    add(None, "sort", "dimension num_keys", results=None, ties="alike but dimension", orders="dimension")
    # results: values (descending), int32 indices; ties -> first
    add(1, "top_k", "axis k", results=2, ties="alike but axis", orders="axis")


def _updates(table: _Table) -> None:
    add = partial(table, "anchor")
    # (operand, indices: index vector in the LAST axis, updates). op: set add sub mul min max.
    # mode: clip | fill_or_drop | promise_in_bounds. Names as in jax.lax.ScatterDimensionNumbers.
    names = (
        "inserted_window_dims mode op operand_batching_dims scatter_dims_to_operand_dims"
        " scatter_indices_batching_dims update_window_dims"
    )
    add(3, "scatter", names, ties="own", updates=2, kernels=2)
    # (operand, update, start per axis); starts clamped
    add(None, "dynamic_update_slice", ties="own", updates=1, kernels=0, linear="together 0 1")
    # the same value in memory of its own
    add(1, "copy", ties="alike", kernels=0, linear="first")


def _barriers(table: _Table) -> None:
    add = partial(table, "anchor", kernels=0)
    # the halves of the units' barrier: after `wait`, a unit sees all writes that precede an `arrive`
    add(0, "arrive wait", results=0, together="units")
    # every unit gets all of each operand in its own memory, as soon as the writers have sent its blocks.
    # blocks: (axis, size, parts, first) of each operand: unit (first + p) mod n of n has written part p
    add(None, "exchange", "blocks", results=None, together="units")
    # the barrier of the threads of one unit, where it has several
    add(0, "block_barrier", results=0, together="threads")


def _others(table: _Table) -> None:
    add = partial(table, "anchor")
    # (status: int32 scalar). If it is not 0, the call fails with that line of `text`, counted from 1
    add(1, "fail", "text", kernels=0, total=False)
    # int32 scalar: the number of units of the plan; a constant before any other pass runs
    add(0, "units")


def _table() -> dict[str, OperatorKind]:
    table = _Table()
    families = (_elementwise, _movement, _products, _matrices, _reductions, _sorting, _updates)
    for rows in (*families, _barriers, _others):
        rows(table)
    return table.kinds


KINDS: dict[str, OperatorKind] = _table()


def _where(fact: Callable[[OperatorKind], object]) -> frozenset[str]:
    return frozenset(name for name, kind in KINDS.items() if fact(kind))


ELEMENTWISE = _where(lambda kind: kind.sort == "elementwise")
MOVEMENT = _where(lambda kind: kind.sort == "movement")
ANCHORS = _where(lambda kind: kind.sort == "anchor")
LEAVES = _where(lambda kind: kind.sort == "movement" and kind.arity == 0)
UNWRITTEN = _where(lambda kind: kind.free and kind.arity == 0)  # their memory is there; no code writes it

VIEWS = _where(lambda kind: kind.view)
STATIC_VIEWS = _where(lambda kind: kind.view and kind.arity == 1)  # their positions are static
MAPPED = _where(lambda kind: kind.ties == "map")  # an element is one of the operand's, at a static position
RESHAPES = STATIC_VIEWS - {"slice", "reverse"}  # they have the operand's elements, and may keep their order
PARTIAL = _where(lambda kind: kind.partial)
UPDATES = _where(lambda kind: kind.updates)
COPIES = MOVEMENT - VIEWS - LEAVES | UPDATES | {"copy"}  # they write memory and compute nothing

FREE = _where(lambda kind: kind.free)
PRODUCTS = _where(lambda kind: kind.product)
BLOCK_SCRATCH = _where(lambda kind: kind.block_scratch)
NEEDS_WIDTH = _where(lambda kind: kind.needs_width)

BARRIERS = _where(lambda kind: kind.together == "units")  # all units execute them together
NO_RESULTS = _where(lambda kind: kind.results == 0)  # they only synchronise
HALVES = BARRIERS & NO_RESULTS  # of a split barrier
