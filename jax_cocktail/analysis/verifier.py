"""Whole-program rules of the uTask IR: scoping, single definition, types of every operator, regions, groups.

The verifier runs before the first pass and after the last one, under test after every pass; a fault is always
a fault of a pass, under test of the one that made the program. The legal contents of a program depend on its
form: see `LEGAL`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NoReturn

from jax_cocktail.analysis.parallel import parallel_fault, scalar_constants
from jax_cocktail.errors import VerificationError
from jax_cocktail.utask.guard import asks_for
from jax_cocktail.utask.infer.infer import fault
from jax_cocktail.utask.ir import (
    BranchUTask,
    LoopUTask,
    Region,
    Statement,
    StitchedUTask,
    UOperator,
    UProgram,
    by_threads,
    is_a,
    is_parallel,
    once,
    operators_in,
)
from jax_cocktail.utask.layout import core, reduced_axes
from jax_cocktail.utask.operators import BARRIERS, HALVES, NO_RESULTS
from jax_cocktail.utask.printer import print_statement
from jax_cocktail.utask.sizes import is_integer
from jax_cocktail.utask.types import TensorType, Value

Form = Literal["translated", "placed", "planned"]


@dataclass(frozen=True, slots=True)
class Legal:
    """The rules of a form: `refused` operator kinds; `groups`, `parallel`: True if stitched groups and
    parallel loops are legal."""

    refused: frozenset[str]
    groups: bool
    parallel: bool


LEGAL: Mapping[Form, Legal] = {
    # from the front end on: one unit runs everything
    "translated": Legal(BARRIERS | NO_RESULTS, False, False),
    # units share the work, but barriers are not placed yet
    "placed": Legal(NO_RESULTS, False, True),
    # work is in lane loops; only memory and barriers follow
    "planned": Legal(frozenset(), True, True),
}

_INDEX = TensorType("int64")
_PREDICATE = TensorType("bool")
_SELECTOR = TensorType("int32")
_OF_ONE_THREAD = ("constant", "dynamic_update_slice", "empty")  # the operators with arrays as results there


def verify(program: UProgram, form: Form | None = None) -> None:
    """Raises VerificationError if `program` breaks a rule of the IR. `form`: how far the program has
    come; None: contents that any form allows are legal."""
    _Verifier(program, form).run()


@once
def _sound_forms(entry: Region) -> set[Form | None]:
    """The forms whose rules an entry is known to keep: candidates begin with the same program."""
    return set()


class _Verifier:
    def __init__(self, program: UProgram, form: Form | None) -> None:
        self._program = program
        self._form = form
        self._types: dict[int, TensorType] = {}
        self._made: set[int] = set()  # values with one definition, anywhere in the program
        self._recomputed: dict[int, UOperator] = {}  # values that members of groups define
        self._operators: dict[int, UOperator] = {}
        self._visible: set[int] = set()  # at the current statement
        self._where: Statement | None = None

    def run(self) -> None:
        program = self._program
        count = len(program.entry.parameters)
        if len(set(program.donated)) != len(program.donated):
            self._fail("a parameter is donated twice")
        if any(type(index) is not int or not 0 <= index < count for index in program.donated):
            self._fail(f"donated indices {program.donated} of {count} parameters")
        if self._form not in _sound_forms(program.entry):
            self._check_entry()
            _sound_forms(program.entry).add(self._form)

    def _check_entry(self) -> None:
        self._region(self._program.entry)
        for id_, member in self._recomputed.items():
            origin = self._operators.get(id_, member)
            if origin != member or (id_ in self._made and id_ not in self._operators):
                self._where = member
                self._fail(f"%{id_} is recomputed by another operator than its own")

    def _fail(self, message: str) -> NoReturn:
        where = ""
        if self._where is not None:
            source = str(self._where.source)
            where = f" in\n{print_statement(self._where)}" + (f"\nfrom {source}" if source else "")
        raise VerificationError(
            f"program {self._program.name}: {message}{where}\ntry: print the program before and after"
            " the pass that made it"
        )

    # -- values ------------------------------------------------------------------------------------------
    def _typed(self, value: Value) -> None:
        known = self._types.setdefault(value.id, value.type)
        if known is not value.type and known != value.type:
            self._fail(f"{value} is {value.type} here and {self._types[value.id]} elsewhere")

    def _define(self, values: Iterable[Value]) -> None:
        """Records new values, which are visible from here on."""
        for value in values:
            self._typed(value)
            if value.id in self._made:
                self._fail(f"{value} is defined twice")
            self._made.add(value.id)
            self._visible.add(value.id)

    def _use(self, values: Iterable[Value]) -> None:
        visible, types = self._visible, self._types
        for value in values:
            if value.id not in visible:
                elsewhere = "outside its scope" if value.id in self._made else "before its definition"
                self._fail(f"{value} is used {elsewhere}")
            if types[value.id] is not value.type:
                self._typed(value)

    # -- regions -----------------------------------------------------------------------------------------
    def _region(self, region: Region) -> None:
        owner = self._where
        self._define(region.parameters)
        counts = {s.stage.count for s in region.body if isinstance(s, BranchUTask) and s.stage is not None}
        if len(counts) > 1:
            self._fail(f"stages of wavefronts of different length, {sorted(counts)}, in one region")
        arrived = False
        for statement in region.body:
            self._where = statement
            self._legal(statement)
            self._statement(statement)
            arrived = self._arrived(statement, arrived)
        self._where = owner
        if arrived:
            self._fail("units arrive at a barrier and do not wait at it")
        self._use(region.results)
        inside = (*region.parameters, *(v for statement in region.body for v in statement.outputs))
        self._visible.difference_update(value.id for value in inside)

    def _legal(self, statement: Statement) -> None:
        """The rules of the program's form."""
        if self._form is None:
            return
        legal, what = LEGAL[self._form], ""
        if isinstance(statement, UOperator) and statement.kind in legal.refused:
            what = statement.kind
        elif isinstance(statement, StitchedUTask) and not legal.groups:
            what = "a stitched group"
        elif is_parallel(statement) and not legal.parallel:
            what = "a parallel loop"
        if what:
            self._fail(f"{what} is not legal in a program that is {self._form}")

    def _arrived(self, statement: Statement, before: bool) -> bool:
        """True if units have arrived at a barrier and still have to wait at it."""
        if not is_a(statement, *HALVES):
            return before
        if before == (statement.kind == "arrive"):
            self._fail("arrive and wait follow one another, in one region")
        return not before

    def _statement(self, statement: Statement) -> None:
        self._use(statement.inputs)
        if isinstance(statement, UOperator):
            self._operator(statement)
            for value in statement.outputs:
                self._operators[value.id] = statement
        elif isinstance(statement, LoopUTask):
            self._loop(statement)
        elif isinstance(statement, BranchUTask):
            if statement.selector.type != _SELECTOR:
                self._fail(f"selector is {statement.selector.type}, not {_SELECTOR}")
            for region in statement.branches:
                self._region(region)
        else:
            self._stitched(statement)
        self._where = statement
        self._define(statement.outputs)

    def _operator(self, operator: UOperator) -> None:
        message = fault(operator)
        if message:
            self._where = operator
            self._fail(f"{operator.kind}: {message}")

    def _loop(self, loop: LoopUTask) -> None:
        extra = 1 if loop.condition is None else 0
        if len(loop.body.parameters) != len(loop.initial) + extra:
            self._fail("body parameters are not the index (of a counted loop) and the carried values")
        if loop.index is not None and loop.index.type != _INDEX:
            self._fail(f"loop index is {loop.index.type}, not {_INDEX}")
        if loop.trip_count is not None and (not is_integer(loop.trip_count) or loop.trip_count < 0):
            self._fail(f"trip count {loop.trip_count!r} is no count")
        if loop.condition is not None:
            if tuple(value.type for value in loop.condition.results) != (_PREDICATE,):
                self._fail(f"condition gives not one {_PREDICATE}")
            self._region(loop.condition)
            if loop.stops_by is not None and not asks_for(loop.condition, loop.stops_by):
                self._fail(f"stops by carry {loop.stops_by}, which its condition does not ask for")
        self._region(loop.body)
        if loop.parallel:
            message = parallel_fault(loop, scalar_constants(self._program.entry))
            if message:
                self._where = loop
                self._fail(message)
        if by_threads(loop):
            self._alone(loop)

    def _alone(self, loop: LoopUTask) -> None:
        """Constraint 1 of COCKTAILER: what a thread runs alone asks for no other thread."""
        for operator in operators_in(loop.body):
            arrays = [v for v in operator.outputs if not v.type.is_scalar]
            if operator.facts.together or (arrays and operator.kind not in _OF_ONE_THREAD):
                self._where = operator
                self._fail(f"{operator.kind} in what one thread runs: it takes a block")

    # -- groups ------------------------------------------------------------------------------------------
    def _stitched(self, group: StitchedUTask) -> None:
        if not group.members:
            self._fail("a group without members")
        made: dict[int, UOperator] = {}
        for member in group.members:
            self._operator(member)
            for value in member.outputs:
                self._typed(value)
                if value.id in made:
                    self._fail(f"{value} is defined twice")
                made[value.id] = member
        self._member_order(group)
        self._closers(group)
        outputs = {value.id for value in group.outputs}
        if not outputs <= made.keys():
            self._fail("an output of a group is made by none of its members")
        for id_, member in made.items():
            if id_ in outputs:
                self._operators[id_] = member
            elif self._recomputed.setdefault(id_, member) != member:
                self._fail(f"%{id_} is recomputed by another operator than its own")

    def _member_order(self, group: StitchedUTask) -> None:
        known = {value.id for value in group.inputs}
        own = {value.id for member in group.members for value in member.outputs}
        if known & own:
            self._fail("a value is input and member of one group")
        for member in group.members:
            for value in member.inputs:
                self._typed(value)
                if value.id not in known:
                    self._fail(f"{value} is neither an input of its group nor made by an earlier member")
            known |= {value.id for value in member.outputs}
        if len({value.id for value in group.inputs}) != len(group.inputs):
            self._fail("a group lists an input twice")

    def _closers(self, group: StitchedUTask) -> None:
        """In-place updates may be at any position; any other anchor, or reductions of one shape, close their
        group; barriers are statements. A matrix product may open the group that writes it into an array."""
        members, reductions = group.members, group.reductions
        into = members[0].kind == "dot" and members[-1].kind == "dynamic_update_slice"
        if reductions:
            self._reductions(group)
        for member in members[into : len(members) - max(len(reductions), 1)]:
            if not member.is_element and member.kind != "dynamic_update_slice":
                self._where = member
                self._fail(f"anchor {member.kind} does not close its group")
        if members[-1].kind in BARRIERS:
            self._where = members[-1]
            self._fail(f"{members[-1].kind} is a member of a group")

    def _reductions(self, group: StitchedUTask) -> None:
        """One loop over elements serves all of them, and what it stores."""
        first, made = group.reductions[0], {value for r in group.reductions for value in r.outputs}
        shape = core(first.inputs[0].type.shape)
        for member in group.members:
            self._where = member
            if not made.isdisjoint(member.inputs):
                self._fail("a member reads a reduction of its own group")
            if member.kind == "reduce":
                same = core(member.inputs[0].type.shape) == shape
                if not same or reduced_axes(member) != reduced_axes(first):
                    self._fail("reductions of one group differ in shape or axes")
            elif member.outputs[0] in group.outputs:
                stored = member.inputs[1] if member.kind == "dynamic_update_slice" else member.outputs[0]
                if core(stored.type.shape) != shape:
                    self._fail("a group that reduces stores elements of another shape")
