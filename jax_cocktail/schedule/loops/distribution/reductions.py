"""Reduction hoisting: a sum over the steps of a loop becomes one product over all steps, after the loop.

    C = C + transpose(g_t @ x_t)      ->      C = C + transpose(g @ x), contracted over the steps too

The gradient of a loop's weights is such a sum: every step reads and writes all of it to add a product of few
rows. A sum can leave if nothing else reads its carry and each step adds a linear function of products (or of
reductions). It should leave if the operands of all steps are arrays already, or cheaper to keep than the sum
is to read and write in every step (`distribute` bounds the kept bytes by strips).

Rounding: a sum is kept in at least float32 until it is complete, and rounded once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from operator import or_
from typing import TYPE_CHECKING

from jax_cocktail.schedule.simplify.peephole import splat
from jax_cocktail.utask.ir import Attribute, LoopUTask, Statement, UOperator, is_a, reads
from jax_cocktail.utask.operators import STATIC_VIEWS
from jax_cocktail.utask.types import FLOATS, INTEGERS, ITEM_SIZE, Value

if TYPE_CHECKING:
    from jax_cocktail.schedule.loops.distribution.rebuild import Regrouper
    from jax_cocktail.schedule.loops.distribution.step_rows import Rows

# f(x) + f(y) = f(x + y), for the first operand
_LINEAR = STATIC_VIEWS | {"neg"}


@dataclass(frozen=True, slots=True)
class Sum:
    """A carry whose only reader is the addition of a step's term.

    `carry`: its number; `nodes`: the statements to run once, for all steps, by index in the body; `leaves`:
    the products and reductions among them, which read the `operands`, values of every step.
    """

    carry: int
    nodes: frozenset[int]
    leaves: frozenset[int]
    operands: tuple[Value, ...]


# ---- finding sums ------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Term:
    """Nodes of statements that are linear in the leaves among them."""

    nodes: frozenset[int] = frozenset()
    leaves: frozenset[int] = frozenset()

    def __or__(self, other: _Term) -> _Term:
        return _Term(self.nodes | other.nodes, self.leaves | other.leaves)


class _Finder:
    def __init__(self, loop: LoopUTask, outside: Mapping[Value, UOperator]) -> None:
        self.loop, self.body = loop, loop.body.body
        self.operators = {v: s for s in self.body if isinstance(s, UOperator) for v in s.outputs}
        self.operators.update(outside)
        self.made = {v: n for n, s in enumerate(self.body) for v in s.outputs}
        self.varying = {*self.made, *loop.body.parameters}
        self.readers = Counter(v for s in self.body for v in _uses(s))
        self.readers.update(loop.body.results)

    def sum(self, carry: int) -> Sum | None:
        start, end = self.loop.carried[carry], self.loop.body.results[carry]
        dtype = start.type.dtype
        if self.readers[start] != 1 or dtype not in FLOATS | INTEGERS:
            return None
        found = self._gain(end, start)
        if found is None or not found.leaves:
            return None
        leaves = [self.body[n] for n in sorted(found.leaves)]
        operands = tuple(dict.fromkeys(v for s in leaves for v in s.inputs))
        return Sum(carry, found.nodes, found.leaves, operands)

    def _made_once(self, value: Value) -> tuple[int, UOperator] | None:
        """The operator that computes a value, and its node, if the value has one reader."""
        node = self.made.get(value)
        made = None if node is None else self.body[node]
        if node is None or not isinstance(made, UOperator) or self.readers[value] != 1:
            return None
        return node, made

    def _gain(self, value: Value, start: Value) -> _Term | None:
        """The terms added to `start` on the path to `value`."""
        if value == start:
            return _Term()
        found = self._made_once(value)
        if found is None or found[1].kind != "add":
            return None
        node, add = found
        for before, term in (add.inputs, add.inputs[::-1]):
            gained, added = self._gain(before, start), self._term(term)
            if gained is not None and added is not None:
                return gained | added | _Term(frozenset({node}))
        return None

    def _term(self, value: Value) -> _Term | None:
        """The term of one step, if it is linear in products or reductions."""
        found = self._made_once(value)
        if found is None:
            return None
        node, made = found
        here = _Term(frozenset({node}))
        if made.kind == "add":
            terms = [self._term(v) for v in made.inputs]
            return None if None in terms else reduce(or_, (t for t in terms if t is not None), here)
        sums = made.kind == "reduce" and made["op"] == "sum"
        inner = self._term(made.inputs[0]) if sums or self._is_linear(made) else None
        if inner is not None:
            return here | inner
        product = made.kind == "dot" and self.varying.issuperset(made.inputs)
        return _Term(here.nodes, here.nodes) if product or sums else None

    def _is_linear(self, operator: UOperator) -> bool:
        """Integers wrap around, so they must be summed before a conversion."""
        if operator.kind == "convert":
            return FLOATS.issuperset((operator.inputs[0].type.dtype, operator.output.type.dtype))
        if operator.kind == "pad":
            return _is_zero(operator.inputs[1], self.operators)
        return operator.kind in _LINEAR


def _is_zero(value: Value, definitions: Mapping[Value, UOperator]) -> bool:
    element = splat(value, definitions)
    return element is not None and not any(element)


def _uses(statement: Statement) -> Sequence[Value]:
    return statement.inputs if isinstance(statement, UOperator) else reads(statement)


def sums_of(loop: LoopUTask, rows: Rows, products: Iterable[int], minimum_flops: int) -> tuple[Sum, ...]:
    """The sums that are worth taking out of the loop.

    A sum of products is, if each step has enough flops and the values kept per step are no larger than the
    sum itself, which every step would read and write. A sum of reductions is, if its operands are kept
    anyway: for these products, or for those of `products`, which leave the loop in any case.
    """
    finder = _Finder(loop, rows.steps.outside)
    found = [s for s in map(finder.sum, range(len(loop.carried))) if s is not None]
    kept = {v for n in products for v in loop.body.body[n].inputs}
    large = [s for s in found if _flops(loop, s) >= minimum_flops and _multiplies(loop, s)]
    stored = {v for s in large for v in s.operands if v not in kept and rows.array(v) is None}
    if sum(v.type.nbytes for v in stored) > sum(loop.carried[s.carry].type.nbytes for s in large):
        large = []
    kept.update(v for s in large for v in s.operands)
    return tuple(s for s in found if s in large or (not _multiplies(loop, s) and kept.issuperset(s.operands)))


def _multiplies(loop: LoopUTask, total: Sum) -> bool:
    return any(_dot(loop.body.body[n]) is not None for n in total.leaves)


def _flops(loop: LoopUTask, total: Sum) -> int:
    """The flops of one step's products."""
    dots = (dot for n in total.leaves if (dot := _dot(loop.body.body[n])) is not None)
    return sum(
        2 * dot.output.type.size * prod(dot.inputs[0].type.shape[d] for d in dot.ints("lhs_contract"))
        for dot in dots
    )


def _dot(statement: Statement) -> UOperator | None:
    return statement if is_a(statement, "dot") else None


# ---- sums over all steps -----------------------------------------------------------------------------------
class Total:
    """Appends one sum over all steps, after the loops of a division."""

    def __init__(self, regrouper: Regrouper, total: Sum) -> None:
        self.regrouper, self.total = regrouper, total
        self.loop = regrouper.loop
        body = self.loop.body.body
        self.made = {s.outputs[0]: s for s in (body[n] for n in total.nodes) if isinstance(s, UOperator)}
        self.leaves = {body[n].outputs[0] for n in total.leaves}
        self.dtype = _widest([v.type.dtype for v in self.made])

    def append(self) -> None:
        """Defines the loop's output."""
        carry = self.total.carry
        found = self._value(self.loop.body.results[carry])
        assert found is not None
        output = self.loop.outputs[carry]
        kind = "reshape" if found.type == output.type else "convert"
        self.regrouper.b.define((output,), kind, (found,))

    def _value(self, value: Value) -> Value | None:
        """The sum of a value over all steps, in `dtype`; None for zeros that are added to another value."""
        made = self.made.get(value)
        if made is None:
            return self._initial()
        if value in self.leaves:
            return self._product(made) if made.kind == "dot" else self._reduction(made)
        if made.kind == "add":
            x, y = (self._value(v) for v in made.inputs)
            return self._emit("add", (x, y), value.type.shape) if x is not None and y is not None else x or y
        if made.kind == "transpose" and _swaps(made, self.made.get(made.inputs[0])):
            return self._product(self.made[made.inputs[0]], swapped=True)
        x = self._value(made.inputs[0])
        if made.kind == "convert" or x is None:
            return x
        zeros = (self._zero(),) if made.kind == "pad" else ()
        return self._emit(made.kind, (x, *zeros), value.type.shape, **dict(made.attributes))

    def _zero(self) -> Value:
        return self._emit("constant", (), (), data=bytes(ITEM_SIZE[self.dtype]))

    def _emit(
        self, kind: str, inputs: Sequence[Value], shape: Sequence[int], /, **attributes: Attribute
    ) -> Value:
        return self.regrouper.b.emit(kind, inputs, self.dtype, shape, **attributes)

    def _wide(self, value: Value) -> Value:
        return value if value.type.dtype == self.dtype else self._emit("convert", (value,), value.type.shape)

    def _initial(self) -> Value | None:
        initial = self.loop.initial[self.total.carry]
        return None if _is_zero(initial, self.regrouper.division.steps.outside) else self._wide(initial)

    def _product(self, dot: UOperator, swapped: bool = False) -> Value:
        """The product, contracted over the steps first. `swapped`: with its operands exchanged."""
        sides = [
            self._side(v, dot.ints(f"{name}_batch"), dot.ints(f"{name}_contract"))
            for v, name in zip(dot.inputs, _SIDES, strict=True)
        ]
        attributes: dict[str, Attribute] = {n: v for n, v in dot.attributes if n == "precision"}
        shape = [sides[0].array.type.shape[d] for d in sides[0].batch]
        for name, side in zip(_SIDES, sides[::-1] if swapped else sides, strict=True):
            attributes |= {f"{name}_batch": side.batch, f"{name}_contract": (0, *side.summed)}
            shape += side.free
        found = self._emit("dot", [s.array for s in (sides[::-1] if swapped else sides)], shape, **attributes)
        wanted = dot.output.type.shape
        return self._reshaped(found, [wanted[d] for d in _swapped(dot)] if swapped else wanted)

    def _reduction(self, operator: UOperator) -> Value:
        """Reduces each step first: one long sum would round worse."""
        side = self._side(operator.inputs[0], (), operator.ints("axes"))
        shape = (self.regrouper.trips, *side.free)
        steps = self._emit("reduce", (self._wide(side.array),), shape, axes=side.summed, op="sum")
        found = self._emit("reduce", (steps,), side.free, axes=(0,), op="sum")
        return self._reshaped(found, operator.output.type.shape)

    def _reshaped(self, value: Value, shape: Sequence[int]) -> Value:
        return value if value.type.shape == tuple(shape) else self._emit("reshape", (value,), shape)

    def _side(self, value: Value, batch: Sequence[int], summed: Sequence[int]) -> _Side:
        """All steps of an operand, on the axes of its kept form if batch and summed axes are among them."""
        array, base = self.regrouper.all_steps(value), self.regrouper.bases.get(value)
        runs: list[tuple[int, ...]] = [(d,) for d in range(value.type.rank)]
        if base is not None:
            finer = _runs(value.type.shape, base.type.shape)
            if finer and all(len(finer[d]) == 1 for d in (*batch, *summed)):
                array, runs = self.regrouper.stacked[base], finer
        return _Side(array, tuple(runs[d][0] + 1 for d in batch), tuple(runs[d][0] + 1 for d in summed))


@dataclass(frozen=True, slots=True)
class _Side:
    """An operand of a sum: all steps, on axis 0; its batch axes; the other axes summed over."""

    array: Value
    batch: tuple[int, ...]
    summed: tuple[int, ...]

    @property
    def free(self) -> list[int]:
        """The lengths of its remaining axes."""
        taken = {0, *self.batch, *self.summed}
        return [n for d, n in enumerate(self.array.type.shape) if d not in taken]


_SIDES = ("lhs", "rhs")


def _widest(dtypes: Iterable[str]) -> str:
    """The type in which sums of these types are kept."""
    widest = max(dtypes, key=lambda dtype: ITEM_SIZE[dtype])
    return "float32" if widest in FLOATS and ITEM_SIZE[widest] < 4 else widest


def _swapped(dot: UOperator) -> tuple[int, ...]:
    """The permutation that turns a product into the product of its exchanged operands."""
    batch, rank = len(dot.ints("lhs_batch")), dot.output.type.rank
    middle = dot.inputs[0].type.rank - len(dot.ints("lhs_contract"))
    return (*range(batch), *range(middle, rank), *range(batch, middle))


def _swaps(transpose: UOperator, dot: UOperator | None) -> bool:
    return dot is not None and dot.kind == "dot" and transpose.ints("permutation") == _swapped(dot)


def _runs(shape: Sequence[int], finer: Sequence[int]) -> list[tuple[int, ...]] | None:
    """For every axis the axes of a finer shape that form it; None if there are none for some axis."""
    found: list[tuple[int, ...]] = []
    place = 0
    for n in shape:
        begin, size = place, 1
        while place < len(finer) and (size < n or place == begin):
            size *= finer[place]
            place += 1
        if size != n:
            return None
        found.append((*range(begin, place),))
    return found if place == len(finer) else None
