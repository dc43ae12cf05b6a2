"""Stitching: groups element operators into lane loops (AStitch, ASPLOS'22, section 4.3).

Roots are values that must reach memory or a scalar register. In program order, each root joins the latest
lane loop of its iteration shape that may hold it: on a core, one that has some of its arrays, or few of other
roots. That loop also computes the inline operands of the root (Local scheme); they never reach memory.
In-place updates and concatenations close a group and compute their operands on the fly.

    t = exp(x)                { t = exp(x)
    y = t * 2         ->        y = t * 2 }     one lane loop; t stays in a register

So do reductions, several of equal operand shape and axes together (dominant merging in AStitch, ASPLOS'22,
section 4.3; FusionStitching, 2020). Roots of that shape that read or make the same arrays join them.

    e = exp(x - m)            { e = exp(x - m)
    s = sum(e, 1)     ->        s = sum(e, 1)
    t = max(e, 1)               t = max(e, 1) }   one pass; e is stored on the way
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

from jax_cocktail.device.tuning import BLOCK, PROGRAM
from jax_cocktail.stitch.residence import Residences, survey
from jax_cocktail.utask.ir import Region, Statement, StitchedUTask, UOperator, UProgram, is_a, reads
from jax_cocktail.utask.layout import core, is_unit_change, keeps_elements, reduced_axes
from jax_cocktail.utask.rewrite import map_regions, operands_of, with_body
from jax_cocktail.utask.types import ITEM_SIZE, Shape, Value


@dataclass(slots=True)
class _Item:
    """A statement, or a group that is still growing.

    Attributes:
      key: its iteration shape.
      axes: those that its reductions combine, unit axes aside; none if it has no reduction.
      arrays: of its iteration shape, which it reads or makes, and its results.
      barred: no root may join.
    """

    statement: Statement | None = None
    key: Shape | None = None
    axes: tuple[int, ...] = ()
    members: dict[UOperator, None] = field(default_factory=dict)
    roots: list[Value] = field(default_factory=list)
    arrays: set[Value] = field(default_factory=set)
    barred: bool = False


def fuse(program: UProgram, threads: int = 1) -> UProgram:
    """Forms the StitchedUTasks of every region. Expects canonical, simplified IR. `threads`: those of a unit,
    which share its lane loops."""
    facts = survey(program)
    return map_regions(program, lambda region: _stitch_region(region, facts, threads))


def _stitch_region(region: Region, facts: Residences, threads: int) -> Region:
    state = _RegionState(facts, threads)
    for statement in region.body:
        if isinstance(statement, UOperator):
            state.operator(statement)
        else:
            state.plain(map_regions(statement, lambda inner: _stitch_region(inner, facts, threads)))
    return with_body(region, state.finish(region.results))


class _RegionState:
    """Forms the items of one region."""

    def __init__(self, facts: Residences, threads: int) -> None:
        self.facts, self.threads = facts, threads
        self.constants: list[UOperator] = []  # they come first, so that they stand between no two groups
        self.items: list[_Item] = []
        self.item_of: dict[Value, int] = {}
        self.last_read: dict[Value, int] = {}  # memory root -> last item that reads it

    # -- one statement at a time -------------------------------------------------------------------------
    def plain(self, statement: Statement) -> None:
        """An anchor, a nested uTask or a view: an item of its own."""
        index = len(self.items)
        self.items.append(_Item(statement=statement))
        for value in statement.outputs:
            if value not in self.facts.mode:
                self.facts.place_in_memory(value)
            self.item_of[value] = index
        for value in reads(statement):
            self._note_read(value, index)

    def operator(self, operator: UOperator) -> None:
        if operator.kind == "dynamic_update_slice":
            self._update(operator)
        elif operator.kind == "reduce":
            self.facts.place_in_memory(operator.output)
            self._reduce(operator)
        elif not operator.is_element:
            self.plain(operator)
        else:
            self._element(operator)

    def _element(self, operator: UOperator) -> None:
        value = operator.output
        mode = self.facts.decide(operator)
        if mode == "constant":
            self.constants.append(operator)
        elif mode == "view" or operator.kind == "empty" or value.type.size == 0:
            self.plain(operator)
        elif mode == "register":
            self._place(operator, ())
        elif mode == "memory" and operator.kind == "concatenate":
            self._close(operator, operator.inputs)
        elif mode == "memory":
            self._place(operator, core(value.type.shape))

    def _reduce(self, operator: UOperator) -> None:
        """Lanes hold no bool, so its reductions are by themselves."""
        (operand,) = operator.inputs
        axes = reduced_axes(operator)
        if axes and operand.type.size and operand.type.dtype != "bool":
            self._place(operator, core(operand.type.shape), axes=axes)
        else:
            self._close(operator, operator.inputs)

    def _update(self, operator: UOperator) -> None:
        """Adds an in-place update; its value is computed directly in the destination where that is safe."""
        facts, (target, update) = self.facts, operator.inputs[:2]
        facts.place_in_memory(operator.output)
        if facts.mode[target] == "inline":
            self._force(target)
        if self._into_place(operator):
            return
        if facts.mode[update] == "inline" and self._reads_elsewhere(update, operator):
            self._force(update)
        if update.type.size == 0 or operator.output.type.is_scalar:
            self.plain(operator)
            return
        key = core(update.type.shape)
        reader = self.last_read.get(self._memory_of(target), -1)
        joins = reader >= 0 and self._reads_own_slice(self.items[reader], operator)
        earliest = reader if joins else reader + 1
        self._place(operator, key, earliest=earliest, needed=(target, update, *operator.inputs[2:]))

    def _into_place(self, update: UOperator) -> bool:
        """Fuses a matrix product with the update that is its only use; returns False if there is none."""
        facts, chain = self.facts, [update]
        while True:
            value = chain[0].inputs[1 if chain[0] is update else 0]
            maker = facts.operator(value)
            alone = len(facts.uses[value]) == 1 and not value.type.is_scalar
            if maker is None or not alone or value not in self.item_of and not is_unit_change(maker):
                return False
            chain.insert(0, maker)
            if maker.kind == "dot":
                break
            if not is_unit_change(maker):
                return False
        product, target = chain[0], self._memory_of(update.inputs[0])
        item = self.items[self.item_of[product.output]] if product.output in self.item_of else None
        if item is None or item.statement is not product:
            return False
        if target in (self._memory_of(leaf) for x in product.inputs for leaf, _ in self._leaves(x)):
            return False
        for made in chain[:-1]:
            if made.output in self.item_of:
                self.items[self.item_of[made.output]] = _Item(barred=True)
        fused = _Item(key=core(update.inputs[1].type.shape), barred=True, roots=[update.output])
        fused.members.update(dict.fromkeys(chain))
        self.items.append(fused)
        index = self.item_of[update.output] = len(self.items) - 1
        for value in (*product.inputs, update.inputs[0], *update.inputs[2:]):
            for leaf, _ in self._leaves(value):
                self._note_read(leaf, index)
        return True

    def _reads_own_slice(self, item: _Item, update: UOperator) -> bool:
        """True if a growing group reads the updated array only at the elements that it would overwrite."""
        if item.key != core(update.inputs[1].type.shape) or item.barred:
            return False
        for member in item.members:
            first = 1 if _is_update(member) else 0
            if first and member.inputs[0] == update.inputs[0]:
                return False
            aligned = bool(first) or member.kind == "reduce" or keeps_elements(member)
            if any(self._reads_elsewhere(x, update, aligned) for x in member.inputs[first:]):
                return False
        return True

    def _reads_elsewhere(self, value: Value, update: UOperator, aligned: bool = True) -> bool:
        """True if computing `value` reads an element of the updated array other than the one written."""
        facts, target = self.facts, update.inputs[0]
        root = self._memory_of(target)
        for leaf, identical in self._leaves(value, aligned):
            if leaf not in facts.layout or facts.layout[leaf].root != root:
                continue
            reader = facts.operator(leaf)
            same = (
                identical
                and is_a(reader, "dynamic_slice")
                and reader.inputs == (target, *update.inputs[2:])
                and facts.layout[target].is_whole
            )
            if not same:
                return True
        return False

    def _force(self, value: Value) -> None:
        """Moves an inline value to memory."""
        operator = self.facts.operator(value)
        assert operator is not None
        self.facts.place_in_memory(value)
        self._place(operator, core(value.type.shape))

    # -- placing -----------------------------------------------------------------------------------------
    def _close(self, anchor: UOperator, operands: tuple[Value, ...]) -> None:
        """Makes a separate group that ends with an anchor."""
        item = _Item(key=core(anchor.output.type.shape), barred=True)
        self.items.append(item)
        self._fill(item, len(self.items) - 1, anchor, operands)

    def _place(
        self,
        operator: UOperator,
        key: Shape,
        earliest: int = 0,
        needed: tuple[Value, ...] | None = None,
        axes: tuple[int, ...] = (),
    ) -> None:
        needed = operator.inputs if needed is None else needed
        lowest = max([earliest, *(self._bound(x, key, operator) for x in needed)])
        limit = PROGRAM.lane_loop if key else PROGRAM.scalar_group
        fitting = [
            index
            for index in range(len(self.items) - 1, lowest - 1, -1)
            if (item := self.items[index]).key == key and not item.barred and len(item.members) < limit
        ]
        index = self._chosen(fitting, operator, key, axes)
        if index is None:
            index = len(self.items)
            self.items.append(_Item(key=key))
        self._fill(self.items[index], index, operator, needed)
        self.items[index].axes = axes or self.items[index].axes

    def _chosen(
        self, fitting: Iterable[int], operator: UOperator, key: Shape, axes: tuple[int, ...]
    ) -> int | None:
        """The latest item that the root may join: one with some of its arrays, or else one that a core then
        still runs through at full speed. Threads have other warps meanwhile."""
        beside, arrays = None, self._arrays(operator, key)
        for index in fitting:
            item = self.items[index]
            if not self._admits(item, operator, axes):
                continue
            if self.threads > 1 or not key or not arrays.isdisjoint(item.arrays):
                return index
            if beside is None and len(arrays | item.arrays) <= PROGRAM.streams:
                beside = index
        return beside

    def _admits(self, item: _Item, operator: UOperator, axes: tuple[int, ...]) -> bool:
        """True if a group of this shape may also hold the root. A loop that reduces has vectors of as many
        elements as its narrowest array allows: if those of a sum changed with what joins it, so would the
        order of its terms. A product that others read, too, may be rounded before it is added."""
        if not axes and not item.axes:
            return True
        assert item.key is not None
        arrays = self._arrays(operator, item.key)
        narrow, narrowest = _narrowest(arrays), _narrowest(item.arrays)
        if axes and item.axes:
            return axes == item.axes and narrow == narrowest
        alike = narrow <= narrowest if axes else narrow >= narrowest
        updates = _is_update(operator) or any(map(_is_update, item.members))
        return (
            alike
            and not arrays.isdisjoint(item.arrays)
            and self._stores_beside(item.key, axes or item.axes, updates)
        )

    def _stores_beside(self, shape: Shape, axes: tuple[int, ...], updates: bool) -> bool:
        """True if a loop that reduces these axes may store elements. Each unit computes scalars itself, so it
        may change no array meanwhile. Neighbouring threads must store neighbouring elements."""
        if len(axes) == len(shape):
            return not updates
        rows = prod(n for d, n in enumerate(shape) if d not in axes)
        return self.threads == 1 or (len(shape) - 1 in axes and rows * BLOCK.stored_row <= self.threads)

    def _arrays(self, operator: UOperator, key: Shape) -> set[Value]:
        """The results of an operator, and the arrays of a shape from which it is computed."""
        leaves = {leaf for operand in operator.inputs for leaf, _ in self._leaves(operand)}
        return {leaf for leaf in leaves if core(leaf.type.shape) == key}.union(operator.outputs)

    def _bound(self, operand: Value, key: Shape, user: UOperator) -> int:
        """The first item that may hold a root which reads `operand`."""
        elementwise = keeps_elements(user) or user.kind == "reduce"
        elementwise = elementwise or (user.kind == "dynamic_update_slice" and operand == user.inputs[1])
        lowest = 0
        for leaf, identical in self._leaves(operand):
            index = self.item_of.get(leaf, -1)
            if index < 0:
                continue
            item = self.items[index]
            joins = item.key == key and not item.barred and leaf in item.roots and identical and elementwise
            joins = joins and not _is_update(self.facts.operator(leaf))
            lowest = max(lowest, index if joins else index + 1)
        return lowest

    def _leaves(self, value: Value, identical: bool = True) -> Sequence[tuple[Value, bool]]:
        """Values that computing `value` reads; with each, True if it reads them element by element."""
        mode = self.facts.mode.get(value)
        if mode in ("inline", "view"):
            operator = self.facts.operator(value)
            if operator is not None and (mode == "inline" or is_unit_change(operator)):
                same = identical and keeps_elements(operator)
                return [leaf for operand in operator.inputs for leaf in self._leaves(operand, same)]
        return [(value, identical)]

    def _fill(self, item: _Item, index: int, root: UOperator, needed: tuple[Value, ...]) -> None:
        for operand in needed:
            self._pull(item, index, operand)
            for leaf, _ in self._leaves(operand):
                self._note_read(leaf, index)
        item.members[root] = None
        item.arrays |= self._arrays(root, item.key or ())
        item.roots.extend(root.outputs)
        for value in root.outputs:
            self.item_of[value] = index

    def _pull(self, item: _Item, index: int, value: Value) -> None:
        """Adds the inline operators that compute `value`, operands first. Unit changes count as inline if the
        item computes their operand, or if a later item defines them."""
        facts = self.facts
        operator = facts.operator(value)
        if operator is None or operator in item.members:
            return
        mode = facts.mode.get(value)
        unit = mode == "view" and is_unit_change(operator)
        unit = unit and (self.item_of.get(value, -1) > index or self._within(item, operator.inputs[0]))
        if mode == "inline" or unit:
            for operand in operator.inputs:
                self._pull(item, index, operand)
            item.members[operator] = None

    def _within(self, item: _Item, value: Value) -> bool:
        """True if `value`, or its operand before unit changes, is computed in this item."""
        if value in item.roots:
            return True
        operator = self.facts.operator(value)
        if operator is None or self.facts.mode.get(value) != "view" or not is_unit_change(operator):
            return False
        return self._within(item, operator.inputs[0])

    def _note_read(self, value: Value, index: int) -> None:
        root = self._memory_of(value)
        self.last_read[root] = max(index, self.last_read.get(root, -1))

    # -- the result --------------------------------------------------------------------------------------
    def finish(self, results: tuple[Value, ...]) -> tuple[Statement, ...]:
        needed = {self._memory_of(v) for v in results}
        for item in self.items:
            if item.statement is not None:
                needed.update(self._memory_of(v) for v in reads(item.statement))
            else:
                needed.update(map(self._memory_of, operands_of(item.members)))
        alive = (item for item in self.items if item.statement is not None or item.members)
        statements = (self._statement(item, needed) for item in alive)
        return (*self.constants, *(s for s in statements if s.outputs))

    def _memory_of(self, value: Value) -> Value:
        layout = self.facts.layout.get(value)
        return layout.root if layout is not None else value

    def _statement(self, item: _Item, needed: set[Value]) -> Statement:
        if item.statement is not None:
            return item.statement
        members = tuple(sorted(item.members, key=lambda member: member.kind == "reduce"))
        outputs = tuple(v for v in item.roots if v in needed)
        return StitchedUTask(members, operands_of(members), outputs, members[-1].source)


def _is_update(operator: UOperator | None) -> bool:
    return is_a(operator, "dynamic_update_slice")


def _narrowest(arrays: Iterable[Value]) -> int:
    """The bytes of an element of the narrowest array."""
    return min(ITEM_SIZE[value.type.dtype] for value in arrays)
