"""Loads that need not wait for the statements before them.

A block waits for a load from global memory as long as for a small product. So the threads do the loads of a
brief statement (one element a thread at most) behind an earlier block barrier, if nobody writes that memory
in between. The statements in between hide the wait. The compiler cannot do so: no load may cross a block
barrier.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from jax_cocktail.analysis.contraction import contraction
from jax_cocktail.codegen.context import Context
from jax_cocktail.codegen.gpu import is_tiled
from jax_cocktail.codegen.kernel import Declaration, Name, names_in
from jax_cocktail.codegen.passes import divided
from jax_cocktail.cost.footprint import written
from jax_cocktail.device.tuning import BLOCK
from jax_cocktail.utask.ir import Statement, StitchedUTask, UOperator, is_a, operators_of
from jax_cocktail.utask.layout import row_major
from jax_cocktail.utask.operators import BARRIERS
from jax_cocktail.utask.plan import Slot
from jax_cocktail.utask.tensor_order import PACKED


@dataclass(slots=True)
class _TextPlace:
    """A place in the text behind a block barrier, and what changes from there on: memory and registers.

    most: loads that may be done there.
    """

    at: int
    most: int = BLOCK.early_loads
    written: set[Slot] = field(default_factory=set)
    changed: set[Name] = field(default_factory=set)


class EarlyLoads:
    """Advances the loads of a region while it is emitted."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._places = deque[_TextPlace](maxlen=BLOCK.early_barriers)

    def after(self, statement: Statement) -> None:
        """Advances the loads of the statement that was emitted last, and notes what it changed."""
        straight = isinstance(statement, UOperator | StitchedUTask)
        if not straight or is_a(statement, *BARRIERS):  # then others write as well
            self._places.clear()
        if is_a(statement, "wait", "block_barrier"):
            self._places.append(_TextPlace(len(self._context.writer.nodes)))
        elif straight and self._places:
            if isinstance(statement, StitchedUTask) and self._is_brief(statement):
                self._advance(statement)
            self._note(statement)

    def _is_brief(self, group: StitchedUTask) -> bool:
        """True for element operators of which a thread computes at most one element."""
        closer = group.members[-1]
        elementwise = closer.kind != "reduce" and group.members[0].kind != "dot"
        return elementwise and 1 < written(closer).type.size <= self._context.target.threads

    def _note(self, statement: Statement) -> None:
        view = isinstance(statement, UOperator) and statement.is_element
        full = any(map(self._fills_registers, operators_of(statement)))
        for place in self._places:
            place.most = min(place.most, BLOCK.early_beside_tiles) if full else place.most
            for value in statement.outputs:
                if value.type.is_scalar:
                    place.changed.update(names_in(self._context.register(value)))
                elif value.type.size and not view:
                    place.written.add(self._context.slot(value))

    def _fills_registers(self, operator: UOperator) -> bool:
        """True for products by tiles that copy both operands."""
        if operator.kind != "dot" or not is_tiled(operator):
            return False
        left, right = (self._context.array(v).strides for v in operator.inputs[:2])
        result = row_major(operator.output.type.shape)
        return PACKED not in contraction(operator, (left, right, result)).read

    def _advance(self, group: StitchedUTask) -> None:
        context, nodes = self._context, self._context.writer.nodes
        arrays = [v for v in group.inputs if not v.type.is_scalar and v.type.size]
        slots = {context.pointer(v): context.slot(v) for v in arrays}
        for number, place in enumerate(self._places):
            kept = {p for p, s in slots.items() if s not in place.written and not context.is_near(s)}
            since = {node.name for node in nodes[place.at :] if isinstance(node, Declaration)}
            if len(since) == len(nodes) - 1 - place.at:
                continue  # nothing in between hides a wait
            found = divided(nodes[-1], kept, place.changed | since, partial(context.writer.fresh, "e"))
            if found is not None and len(found.results) <= place.most:
                nodes[-1] = found.late
                nodes[place.at : place.at] = [*found.results, found.early]
                for later in islice(self._places, number + 1, None):
                    later.at += len(found.results) + 1
