"""The first half of stitching decides where each value resides (AStitch, ASPLOS'22, section 4.3, step 1).

One walk over the program gives every value a residence:

  constant   part of the program text (scalars) or a static table (arrays)
  register   a scalar variable: one element
  memory     a buffer of its own: region parameters, anchor results, stitched roots
  view       another value's buffer with other strides: no cost
  inline     the consumer's lane loop, which computes the value where it uses it (Local scheme)
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from jax_cocktail.device.tuning import PROGRAM
from jax_cocktail.utask.ir import Statement, UOperator, UProgram, is_a, regions_in
from jax_cocktail.utask.layout import Layout, dense, divided_axes, is_unit_change, view
from jax_cocktail.utask.operators import MOVEMENT
from jax_cocktail.utask.types import Value


@dataclass(frozen=True, slots=True)
class Obstacle:
    """The reason why a value is not computed where it is used. `what`: "reader": a consumer reads it from
    memory, namely `reader`, or None if that is what ends the region or stands in another one; "deep": one
    lane loop cannot hold all that computes it; "flops": an element would cost so many `flops` again."""

    what: str
    reader: Statement | None = None
    flops: int = 0


@dataclass(slots=True)
class Residences:
    """Facts about a program that stitching reads. It fills `mode` and `layout` as it proceeds."""

    definition: dict[Value, Statement] = field(default_factory=dict)
    home: dict[Value, int] = field(default_factory=dict)  # value -> id of the defining region
    uses: dict[Value, list[tuple[Statement | None, int]]] = field(default_factory=lambda: defaultdict(list))
    mode: dict[Value, str] = field(default_factory=dict)
    layout: dict[Value, Layout] = field(default_factory=dict)
    cost: dict[Value, int] = field(default_factory=dict)  # flops to compute one element inline
    depth: dict[Value, int] = field(default_factory=dict)  # nested operators to compute one element inline

    def operator(self, value: Value) -> UOperator | None:
        statement = self.definition.get(value)
        return statement if isinstance(statement, UOperator) else None

    def place_in_memory(self, value: Value) -> None:
        if value.type.is_scalar:
            self.mode[value] = "register"
        else:
            self.mode[value] = "memory"
            self.layout[value] = dense(value)

    def decide(self, operator: UOperator) -> str:
        """Sets and returns the residence of an element operator's result."""
        value = operator.output
        mode = self._decide(operator)
        self.mode[value] = mode
        if mode == "memory":
            self.layout[value] = dense(value)
        if mode == "inline":
            spent = sum(self.cost.get(x, 0) for x in operator.inputs if self.mode.get(x) == "inline")
            self.depth[value] = self._depth(operator)
            self.cost[value] = spent + (operator.facts.cost if operator.kind not in MOVEMENT else 0)
        return mode

    def _decide(self, operator: UOperator) -> str:
        value = operator.output
        if operator.kind == "constant":
            self.layout[value] = dense(value)
            return "constant"
        if value.type.is_scalar:
            return "register"
        if value.type.size == 0 or operator.kind in ("empty", "concatenate"):
            return "memory"
        seen = self._seen(operator)
        if seen is not None and not self._must_copy(value, seen):
            self.layout[value] = seen
            return "view"
        return "inline" if self.obstacle(operator) is None else "memory"

    def obstacle(self, operator: UOperator) -> Obstacle | None:
        """The first reason why the consumers cannot, or should not, compute the value where they use it."""
        value = operator.output
        for use, where in self.uses[value]:
            if not self._fuses(value, use, where):
                return Obstacle("reader", use if where == self.home[value] else None)
        if self._depth(operator) >= PROGRAM.lane_loop:
            return Obstacle("deep")
        flops = self._repeated(operator)
        return None if flops is None else Obstacle("flops", flops=flops)

    def _depth(self, operator: UOperator) -> int:
        """The number of nested operators that compute one element of the result."""
        return 1 + max((self.depth.get(x, 0) for x in operator.inputs), default=0)

    def _seen(self, operator: UOperator) -> Layout | None:
        if not operator.inputs:
            return None
        operand = operator.inputs[0]
        if self.mode.get(operand) in ("memory", "view", "constant") and not operand.type.is_scalar:
            return view(operator, self.layout[operand])
        return None

    def _must_copy(self, value: Value, seen: Layout) -> bool:
        """True if some consumer could read the view only slowly, or not at all."""
        for use, _ in self.uses[value]:
            if use is None and not seen.is_whole:
                return True  # the memory of a region's result may be overwritten
            if not isinstance(use, UOperator):
                continue
            if use.kind == "reshape" and view(use, seen) is None:
                return True
            if use.kind == "dot" and value in use.inputs[1::2]:
                free = [d for d in _free(use, 1) if seen.shape[d] != 1]
                along_k = any(seen.strides[k] == 1 for k in _axes(use, "rhs_contract"))
                if not along_k and free and seen.strides[free[-1]] != 1:
                    return True
            if use.kind == "dot" and len(use.inputs) > 2 and value in use.inputs[::2]:
                last = _axes(use, "lhs_contract")[-1]
                if seen.strides[last] != 1:  # one call adds products up whose rows run along k
                    return True
            if use.kind == "conv" and not seen.is_dense:
                return True
        return False

    def _fuses(self, value: Value, use: Statement | None, where: int) -> bool:
        """True if this use can compute the value on the fly."""
        if not isinstance(use, UOperator) or where != self.home[value]:
            return False
        if any(result.type.size == 0 for result in use.outputs):  # it is in no group
            return False
        if use.kind == "reshape":
            return (
                is_unit_change(use)
                or divided_axes(use.inputs[0].type.shape, use.output.type.shape) is not None
            )
        if use.kind == "dynamic_update_slice":
            return value == use.inputs[1] and value != use.inputs[0]
        if use.kind == "gather":  # it computes the elements that it takes, if these are few
            few = use.output.type.size <= PROGRAM.gathered_share * value.type.size
            return few and value not in use.inputs[1:]
        return use.kind == "reduce" or use.is_element

    def _repeated(self, operator: UOperator) -> int | None:
        """The flops of an element if they are too many to spend more than once, and consumers would."""
        value = operator.output
        inputs = sum(self.cost.get(x, 0) for x in operator.inputs)
        cost = inputs + operator.facts.cost
        if cost < PROGRAM.recomputed_flops or (operator.kind in MOVEMENT and not inputs):
            return None
        uses = self.uses[value]
        again = len(uses) > 1 or any(use is not None and _spreads(use, value) for use, _ in uses)
        return cost if again else None


def survey(program: UProgram) -> Residences:
    """Finds the definitions and uses of the whole program, and the residences of parameters."""
    facts = Residences()
    for here, region in enumerate(regions_in(program.entry)):
        for value in region.parameters:
            facts.home[value] = here
            facts.place_in_memory(value)
        for statement in region.body:
            for value in statement.outputs:
                facts.definition[value] = statement
                facts.home[value] = here
            for value in statement.inputs:
                facts.uses[value].append((statement, here))
        for value in region.results:
            facts.uses[value].append((None, here))
    return facts


def _axes(operator: UOperator, name: str) -> tuple[int, ...]:
    return operator.ints(name) or (0,)


def _free(operator: UOperator, side: int) -> list[int]:
    names = ("lhs_batch", "lhs_contract") if side == 0 else ("rhs_batch", "rhs_contract")
    taken = {d for name in names for d in operator.ints(name)}
    return [d for d in range(operator.inputs[side].type.rank) if d not in taken]


def _spreads(use: Statement, value: Value) -> bool:
    """True if the use reads some element of the value more than once."""
    return is_a(use, "broadcast", "gather") and use.output.type.size > value.type.size
