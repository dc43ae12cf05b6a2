"""Gives each batch element of a vmapped branch a thread of its own, on a GPU.

    a = one side(all elements)              parallel loop by threads, over elements i:
    b = other side(all elements)     ->         branch on predicate i:
    select(predicate, a, b)                         one side(element i), or the other side

`jax.vmap` turns a branch into a select between both sides. Outside of loops that run element by element,
both sides are then computed for the whole batch. If nothing mixes batch elements, and one of them is a few
numbers, a thread computes the side that its element takes, in its registers (`recover.branches_inside`).
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field

from jax_cocktail.cost.work import has_loop, total
from jax_cocktail.device.tuning import BATCH, ElementTuning
from jax_cocktail.schedule.vmap.by_thread import Batch, ByThread, check_count
from jax_cocktail.schedule.vmap.cut import Cut, Uncuttable
from jax_cocktail.schedule.vmap.emit import Emitter
from jax_cocktail.schedule.vmap.selects import Choices, Group, in_order
from jax_cocktail.utask.ir import Region, Statement, UOperator, is_a, reads
from jax_cocktail.utask.operators import ELEMENTWISE
from jax_cocktail.utask.remarks import Listener, Remark
from jax_cocktail.utask.rewrite import with_body
from jax_cocktail.utask.substitute import FreshValues
from jax_cocktail.utask.types import Source, Value


@dataclass(slots=True)
class ThreadBranches:
    """`remark` takes remarks; `taken`: the number of branches that threads compute by now."""

    fresh: FreshValues
    limits: ElementTuning
    remark: Listener
    taken: int = 0
    #: selects that stay
    _left: set[Value] = field(default_factory=set)

    def region(self, region: Region, made: MutableMapping[Value, UOperator]) -> Region:
        """The region with a loop by threads in the place of each group of selects that is worth one. `made`:
        operators in scope."""
        body = region.body
        while (found := self._next(Choices(body, region.results, made, masks=True))) is not None:
            body = tuple(found)
        return with_body(region, body)

    def _next(self, choices: Choices) -> Sequence[Statement] | None:
        """The statements after the outermost group that is worth it; None if none is left."""
        for group in choices.groups(self.limits.branch_flops):
            select = choices.body[group.positions[-1]]
            if select.outputs[0] in self._left or not self._is_worth(choices, group):
                continue
            try:
                found = self._by_threads(choices, group)
            except Uncuttable as why:
                self._left.add(select.outputs[0])
                self._say(False, f"both sides run for all batch elements: {why}", select.source)
                continue
            if found is not None:
                return found
            self._left.add(select.outputs[0])
        return None

    def _is_worth(self, choices: Choices, group: Group) -> bool:
        """True if a side has a loop, or so much work that it pays to leave the loops over whole arrays."""
        if group.root.type.size == 1:
            return False
        least, enough = (n * group.root.type.size for n in (self.limits.branch_flops, self.limits.side_flops))
        return any(
            side.flops >= enough
            or (side.flops >= least and any(has_loop(choices.body[p]) for p in side.positions))
            for side in group.sides
        )

    def _by_threads(self, choices: Choices, group: Group) -> Sequence[Statement] | None:
        """None if the elements share weights, or if their own work is too small."""
        body, shape = choices.body, group.root.type.shape
        wide = [d for d, n in enumerate(shape) if n != 1]
        selects = [body[p].outputs[0] for p in group.positions]
        places = zip(selects, group.places, strict=True)
        batch = Batch(tuple(shape[d] for d in wide), {v: tuple(p[d] for d in wide) for v, p in places})
        check_count(batch.count, self.limits)
        own = self._own(choices, group, batch)
        if own is None:
            return None
        statements = _before([body[p] for p in sorted(own)], choices, group)
        statements = (*_spreads(statements, choices.made, self.limits.numbers), *statements)
        out = Emitter(self.fresh, body[group.positions[-1]].source)
        most = BATCH.most_repeated * total(statements).flops
        ByThread(statements, batch, out, self.limits, most_flops=most).emit()
        self.taken += 1
        text = f"each of {batch.count} batch elements computes the side that it takes, on a thread"
        self._say(True, text, out.source)
        last = group.positions[-1]
        return in_order(
            [out.out if p == last else (s,) for p, s in enumerate(body) if p == last or p not in own]
        )

    def _own(self, choices: Choices, group: Group, batch: Batch) -> frozenset[int] | None:
        """The positions of the statements that batch elements compute each for itself: those of both sides,
        and what the predicate needs alone."""
        body = choices.body
        positions = _positions(choices, group)
        statements = _before([body[p] for p in positions], choices, group)
        before, common = len(statements) - len(positions), set(positions)
        for number, size in enumerate(batch.sizes):
            cut = Cut(statements, ((v, axes[number]) for v, axes in batch.axes.items()), size, 1)
            if cut.has_shared_weights:
                return None
            common &= {positions[k - before] for k in cut.common if k >= before}
        own = frozenset(positions) - common
        sides = (total(body[p] for p in own & side.positions).flops for side in group.sides)
        return own if max(sides) >= self.limits.branch_flops * batch.count else None

    def _say(self, fired: bool, text: str, source: Source) -> None:
        self.remark(Remark("batch elements", fired, text, source))


def _positions(choices: Choices, group: Group) -> list[int]:
    """The positions of the selects of a group, of their sides, and of elementwise operators that only these
    need: a thread computes its elements sooner than it loads them."""
    found = {*group.sides[0].positions, *group.sides[1].positions, *group.positions}
    for position in range(group.positions[-1], -1, -1):
        operator = choices.body[position]
        if not isinstance(operator, UOperator) or position in found:
            continue
        readers = choices.readers.get(operator.outputs[0], ()) if operator.outputs else ()
        moves = operator.kind in ELEMENTWISE or operator.kind == "broadcast"
        if moves and readers and found.issuperset(readers):
            found.add(position)
    return sorted(found)


def _before(own: Sequence[Statement], choices: Choices, group: Group) -> tuple[Statement, ...]:
    """The statements, after the broadcasts between predicate and selects that are not among them."""
    return (*(operator for operator in choices.chain(group) if operator not in own), *own)


def _spreads(
    statements: Sequence[Statement], made: MutableMapping[Value, UOperator], most: int
) -> Sequence[UOperator]:
    """Small constants, and broadcasts of scalars, which the statements read: nothing is to store them."""
    inside, found = {v for s in statements for v in s.outputs}, list[UOperator]()

    def take(value: Value) -> None:
        operator = made.get(value)
        if operator is None or value in inside:
            return
        is_small = is_a(operator, "constant") and operator.output.type.size <= most
        if is_small or (is_a(operator, "broadcast") and operator.inputs[0].type.is_scalar):
            inside.add(value)
            for operand in operator.inputs:
                take(operand)
            found.append(operator)

    for statement in statements:
        for value in reads(statement):
            take(value)
    return found
