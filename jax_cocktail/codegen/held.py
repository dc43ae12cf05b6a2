"""Products whose matrix no iteration of a loop changes: the threads of a block keep it in registers.

A thread reads its part of the matrix when the product first runs, and again if the product gets another
matrix: where a unit has several parts of a parallel loop (`cocktail_gemv_held.h`). Neighbouring products of
one form are one call, which waits once for their other operands, reads a shared one once, and shuffles the
sums of all of them together.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from jax_cocktail.codegen.context import Context, HeldMatrix
from jax_cocktail.codegen.contraction import Holdable, Made, emit_held, holdable
from jax_cocktail.codegen.gpu import is_tiled
from jax_cocktail.codegen.kernel import Declaration, Name
from jax_cocktail.codegen.lanes import product_place
from jax_cocktail.codegen.writer import Writer
from jax_cocktail.device.tuning import BLOCK
from jax_cocktail.utask.ir import (
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
    defined_in,
    is_a,
    is_parallel,
    operators_in,
    operators_of,
    regions_in,
    regions_of,
)
from jax_cocktail.utask.types import Value


@contextmanager
def holding(context: Context, loop: LoopUTask) -> Iterator[None]:
    """Around a loop: declares what its products keep. Registers stay in the function that has them, so a
    program with outlined functions keeps nothing outside of roles."""
    before, bytes_before = dict(context.held), context.held_bytes
    brief = loop.trip_count is not None and loop.trip_count < BLOCK.held_trips
    in_line = context.outlines is None or (context.in_part and not context.part_depth)
    if context.target.holds and in_line and not loop.parallel and not brief:
        _declare(context, loop)
    yield
    context.held, context.held_bytes = before, bytes_before


def _declare(context: Context, loop: LoopUTask) -> None:
    numbers = _Numbers(context, loop)
    found = dict[Value, tuple[Holdable, int]]()  # results -> how, and the number of the matrix
    for operator in operators_in(loop.body):
        if operator.kind != "dot" or operator.output in context.held:
            continue
        product = holdable(context, operator)
        operand = operator.inputs[0 if product is not None and product.left else 1]
        matrix = numbers.of(operand)
        if product is not None and matrix is not None and not numbers.may_be_replaced(operand):
            found[operator.output] = product, matrix
    held = {output: product for output, (product, _) in found.items()}
    tiled = any(is_tiled(operator) for operator in operators_in(loop.body))
    most = BLOCK.held_bytes(context.block, tiled)
    names = dict[Hashable, Name]()  # of what is kept: two copies of one product share it
    for region in regions_in(loop.body):
        runs = _runs(context, region, held)
        for output, run, sharing in ((v, outputs, count) for outputs, count in runs for v in outputs):
            product, matrix = found[output]
            key = matrix, product.text, sharing
            if key not in names:
                if context.held_bytes + product.bytes > most:
                    continue
                context.held_bytes += product.bytes
                names[key] = Name(f"k{output.id}", outer=True)
                number = f", {sharing}" if sharing > 1 else ""
                type_ = f"CkDotHeld<{product.text}{number}>"
                context.writer.add(Declaration(type_, names[key], const=False))
            context.held[output] = HeldMatrix(names[key], product.text, run)


# -- products that one call makes ----------------------------------------------------------------------------
def _product(statement: Statement) -> UOperator | None:
    """The product that a statement makes, into an array or into a part of one."""
    first = operators_of(statement)[:1]
    return first[0] if first and first[0].kind == "dot" else None


def _runs(
    context: Context, region: Region, held: Mapping[Value, Holdable]
) -> Iterator[tuple[tuple[Value, ...], int]]:
    """The results of products that one call makes: neighbours, at most with block barriers in between. And
    how many share the operand that is not kept: all of them, or each has its own."""
    run = list[Statement]()
    for statement in region.body:
        product = _product(statement)
        kept = product is not None and product.output in held
        goes_on = is_a(statement, "block_barrier") or (
            kept and _go_together(context, [*run, statement], held)
        )
        if run and not goes_on:
            yield _run(run, held)
            run = []
        if kept:
            run.append(statement)
    if run:
        yield _run(run, held)


def _run(run: Sequence[Statement], held: Mapping[Value, Holdable]) -> tuple[tuple[Value, ...], int]:
    outputs = tuple(product.output for product in map(_product, run) if product is not None)
    return outputs, len(run) if len(_others(run, held)) == 1 else 1


def _others(run: Sequence[Statement], held: Mapping[Value, Holdable]) -> set[Value]:
    """The operands of products that are not kept."""
    return {p.inputs[1 if held[p.output].left else 0] for p in map(_product, run) if p is not None}


def _go_together(context: Context, run: Sequence[Statement], held: Mapping[Value, Holdable]) -> bool:
    """True if one call may make the products: they have one form, none reads what another one makes, and no
    result lies in the memory of an operand that other threads may still read."""
    forms = [held[product.output] for product in map(_product, run) if product is not None]
    few = sum(form.few for form in forms)
    made = {value for statement in run[:-1] for value in statement.outputs}
    if len({form.text for form in forms}) > 1 or few > BLOCK.held_rows_together:
        return False
    if not made.isdisjoint(run[-1].inputs):
        return False
    others = _others(run, held)
    if len(others) == 1:
        return True
    results = {context.slot(value).space for statement in run for value in statement.outputs}
    apart = results.isdisjoint(context.slot(value).space for value in others)
    return apart and sum(value.type.size for value in others) <= BLOCK.held_row_elements


def run_at(context: Context, region: Region, position: int) -> range:
    """The positions of the products that one call makes, from this one on; empty if it is no such call."""
    product = _product(region.body[position])
    kept = None if product is None else context.held.get(product.output)
    if product is None or kept is None or len(kept.together) < 2 or kept.together[0] != product.output:
        return range(0)
    end, left = position, list(kept.together)
    while left:
        product = _product(region.body[end])
        if product is not None:
            left.remove(product.output)
        end += 1
    return range(position, end)


def emit_run(context: Context, region: Region, run: range) -> bool:
    """Emits products with one call; False if that cannot be. What the barriers between them keep apart is
    kept apart before and after the call."""
    products = [s for s in region.body[run.start : run.stop] if not is_a(s, "block_barrier")]
    outputs = [v for s in products for v in s.outputs]
    if len(set(map(context.is_shared, outputs))) > 1:
        return False
    outer, context.writer = context.writer, Writer(context.target.index)
    with context.writer.block(), context.alone(*outputs):
        emitted = emit_held(context, [_made(context, s) for s in products])
    inner, context.writer = context.writer.nodes, outer
    if emitted:
        apart = len(products) < len(run)
        if apart and not is_a(region.body[max(run.start - 1, 0)], "block_barrier"):
            context.fence()
        context.writer.add(*inner)
        works = (s for s in region.body[run.stop :] if not (isinstance(s, UOperator) and s.is_element))
        if apart and not is_a(next(works, None), "block_barrier"):
            context.fence()
    return emitted


def _made(context: Context, statement: Statement) -> Made:
    if isinstance(statement, StitchedUTask):
        return statement.members[0], product_place(context, statement)
    assert isinstance(statement, UOperator)
    return statement, context.array(statement.output)


class _Numbers:
    """Numbers of the values that no iteration of a loop changes; equal values have equal numbers."""

    def __init__(self, context: Context, loop: LoopUTask) -> None:
        self._context = context
        self._inside = set(defined_in(loop))
        self._numbers = dict[Value, int]()
        self._known = dict[Hashable, int]()
        self._most_units = context.plan.most_units if context.has_units else 0
        self._visit(loop.body, in_part=context.part_depth > 0)

    def of(self, value: Value) -> int | None:
        """None: it may change."""
        return self._numbers.get(value) if value in self._inside else self._number(value)

    def may_be_replaced(self, value: Value) -> bool:
        """True if a unit with several parts computes the value of each in the same memory."""
        return value in self._inside and self._context.slot(value).space in ("own", "private")

    def _number(self, key: Hashable) -> int:
        return self._known.setdefault(key, len(self._known))

    def _visit(self, region: Region, *, in_part: bool) -> None:
        for statement in region.body:
            if is_parallel(statement) and not in_part:
                trips, index = statement.trip_count, statement.index
                if trips is not None and index is not None and trips <= self._most_units:
                    self._numbers[index] = self._number(("part", trips, statement.first))
            for nested in regions_of(statement):
                self._visit(nested, in_part=in_part or is_parallel(statement))
            for operator in operators_of(statement):
                operands = tuple(self.of(v) for v in operator.inputs)
                if None not in operands:
                    for position, output in enumerate(operator.outputs):
                        key = operator.kind, operator.attributes, operands, position
                        self._numbers[output] = self._number(key)
