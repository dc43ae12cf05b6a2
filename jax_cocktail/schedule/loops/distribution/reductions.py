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
from operator import or_

from jax_cocktail.cost.work import work
from jax_cocktail.schedule.loops.distribution.step_rows import Rows
from jax_cocktail.schedule.simplify.peephole import splat
from jax_cocktail.utask.ir import LoopUTask, Statement, UOperator, is_a, positions_of, reads
from jax_cocktail.utask.operators import STATIC_VIEWS
from jax_cocktail.utask.types import FLOATS, INTEGERS, Value

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
        self.made = positions_of(loop.body)
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
            return is_zero(operator.inputs[1], self.operators)
        return operator.kind in _LINEAR


def is_zero(value: Value, definitions: Mapping[Value, UOperator]) -> bool:
    """True if all elements of a value are known to be 0."""
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
    if sum(int(v.type.nbytes) for v in stored) > sum(int(loop.carried[s.carry].type.nbytes) for s in large):
        large = []
    kept.update(v for s in large for v in s.operands)
    return tuple(s for s in found if s in large or (not _multiplies(loop, s) and kept.issuperset(s.operands)))


def _multiplies(loop: LoopUTask, total: Sum) -> bool:
    return any(_dot(loop.body.body[n]) is not None for n in total.leaves)


def _flops(loop: LoopUTask, total: Sum) -> float:
    """The flops of one step's products."""
    return sum(work(loop.body.body[n]).flops for n in total.leaves if _dot(loop.body.body[n]) is not None)


def _dot(statement: Statement) -> UOperator | None:
    return statement if is_a(statement, "dot") else None
