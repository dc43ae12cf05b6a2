"""Undoes broadcasts by `jax.vmap` of values that all batch elements share.

    compare(broadcast(a), broadcast(b))   ->   broadcast(compare(a, b))
    batched dot(x, broadcast(w))          ->   dot(x, w)

`jax.vmap` broadcasts a branch index to the shape of the results before it compares it. It also broadcasts the
unbatched operands of a branch, which turns a product with shared weights into one product per batch element.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field, replace
from typing import cast

from jax_cocktail.utask.ir import Statement, UOperator, is_a
from jax_cocktail.utask.operators import ELEMENTWISE
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import TensorType, Value


@dataclass(slots=True)
class Narrowing:
    """Narrows one region, statement by statement.

    `indexed`: predicates that compare a branch index, as in a `cond` or `switch`.
    """

    fresh: FreshValues
    made: MutableMapping[Value, UOperator]  # operators in scope, by result
    indexed: set[Value]
    out: list[Statement] = field(default_factory=list)
    known: dict[object, Value] = field(default_factory=dict)

    def changed(self, statement: Statement) -> list[Statement]:
        """The narrowed statement, after its new operands."""
        self.out = []
        if isinstance(statement, UOperator):
            if statement.kind == "dot":
                statement = self._dot(statement)
            elif statement.kind in ELEMENTWISE and statement.output.type.dtype == "bool":
                statement = self._predicate(statement)
            self.made.update((v, statement) for v in statement.outputs)
        return [*self.out, statement]

    def _broadcast(self, value: Value) -> UOperator | None:
        operator = self.made.get(value)
        return operator if is_a(operator, "broadcast") else None

    # -- predicates --------------------------------------------------------------------------------------
    def _predicate(self, operator: UOperator) -> UOperator:
        """Turns a comparison of broadcasts into the broadcast of a comparison."""
        sources = [self._broadcast(v) for v in operator.inputs]
        wide = [s for s in sources if s is not None and s.inputs[0].type.shape]
        if not wide or None in sources or wide[0].inputs[0].type.size == operator.output.type.size:
            return operator
        shape, dimensions = wide[0].inputs[0].type.shape, wide[0]["dimensions"]
        operands = []
        for source in cast(list[UOperator], sources):
            (x,) = source.inputs
            if not x.type.shape:
                type_ = TensorType(x.type.dtype, shape)
                x = self._emit(UOperator("broadcast", (x,), (x,), (("dimensions", ()),)), (x,), type_)
            elif x.type.shape != shape or source["dimensions"] != dimensions:
                return operator
            operands.append(x)
        small = self._emit(operator, tuple(operands), TensorType("bool", shape))
        if operands[0].type.dtype != "bool":
            self.indexed.add(small)
        return UOperator(
            "broadcast", (small,), operator.outputs, (("dimensions", dimensions),), operator.source
        )

    def _emit(self, like: UOperator, inputs: tuple[Value, ...], type_: TensorType) -> Value:
        key = (like.kind, like.attributes, inputs, type_)
        if key not in self.known:
            value = self.known[key] = self.fresh.make(type_)
            operator = replace(like, inputs=inputs, outputs=(value,))
            self.made[value] = operator
            self.out.append(operator)
        return self.known[key]

    # -- products ----------------------------------------------------------------------------------------
    def _dot(self, dot: UOperator) -> UOperator:
        """Turns the batch axes into rows of one side, if the other one is broadcast along them."""
        found = self._rows(dot)
        if found is dot and (swapped := _swapped(dot)) is not None:
            other = self._rows(swapped)
            found = dot if other is swapped else other
        return found

    def _rows(self, dot: UOperator) -> UOperator:
        """The product with the batch axes as rows of the left side, if they can be."""
        left, right = dot.inputs
        source = self._broadcast(right)
        names = ("lhs_batch", "lhs_contract", "rhs_batch", "rhs_contract")
        lhs_batch, lhs_contract, rhs_batch, rhs_contract = map(dot.ints, names)
        if source is None or not lhs_batch:
            return dot
        (x,) = source.inputs
        dimensions = source.ints("dimensions")
        rows = tuple(d for d in range(left.type.rank) if d not in lhs_contract)
        spread = {d for d, t in enumerate(dimensions) if x.type.shape[d] != right.type.shape[t]}
        if (
            spread
            or list(dimensions) != sorted(dimensions)
            or any(d in dimensions for d in rhs_batch)
            or rows[: len(lhs_batch)] != lhs_batch
            or len(dimensions) + len(rhs_batch) != right.type.rank
        ):
            return dot
        contracted = tuple(dimensions.index(d) for d in rhs_contract)
        axes = {"lhs_batch": (), "rhs_batch": (), "rhs_contract": contracted}
        attributes = tuple((name, axes.get(name, given)) for name, given in dot.attributes)
        return replace(dot, inputs=(left, x), attributes=attributes)


def _swapped(dot: UOperator) -> UOperator | None:
    """The product with its sides exchanged, if the result is the same: the right one has no columns."""
    left, right = dot.inputs
    names = ("lhs_batch", "lhs_contract", "rhs_batch", "rhs_contract")
    lhs_batch, lhs_contract, rhs_batch, rhs_contract = (dot[name] for name in names)
    if right.type.rank != len(dot.ints("rhs_batch")) + len(dot.ints("rhs_contract")):
        return None
    exchanged = dict(zip(names, (rhs_batch, rhs_contract, lhs_batch, lhs_contract), strict=True))
    attributes = tuple((name, exchanged.get(name, given)) for name, given in dot.attributes)
    return replace(dot, inputs=(right, left), attributes=attributes)
