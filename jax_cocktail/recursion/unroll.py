"""Recursion unrolling: replaces calls by the callees' bodies, so that a frame holds several levels of calls.

A call of the stack machine costs a jump through its branch over labels, and a frame to write and read: as
much as ten scalar operations. Small bodies run faster with fewer calls.

Errors do not change. With `levels` of calls inlined, the first body of a frame is at a depth divisible by
`levels + 1`. The remaining calls are made by the last inlined bodies, `levels` deeper, so their callees are
again at such a depth, and each frame holds exactly `levels + 1` active calls. If `max_depth` is divisible by
`levels + 1` too, a call is too deep exactly if its frame is, and inlined calls are never too deep. This holds
as long as

- every call is inlined except those in tail position, which remain in the first body of a frame and reuse the
  frame at the same depth;
- no inlined body has calls in tail position, which would leave a frame and continue at another depth;
- no call moves into tail position because the code after it was inlined elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from jax_cocktail.recursion.structure import Atom, Call, Cond, Item, Op, Structure, Var, calls_in, items_in
from jax_cocktail.recursion.task import Numbering, Task

LEVELS = 1  # inlined levels of calls
MOST_ITEMS = 256  # in all unrolled functions, to bound the time of the C++ compiler
MOST_CALLS = 16  # likewise: each call adds a resume point
MOST_FRAME_BYTES = 1024  # larger frames take longer to write than calls take to jump


@dataclass(frozen=True, eq=False, slots=True)
class Unrolled:
    """Unrolled bodies. `tails`: all calls in tail position."""

    bodies: tuple[Structure, ...]
    tails: frozenset[Call]


def unroll(task: Task, bodies: Sequence[Structure], tails: Collection[Call], levels: int) -> Unrolled | str:
    """Inlines `levels` of calls, or returns the reason against it. `tails`: the calls in tail position."""
    if task.numbering is not Numbering.NONE or task.accumulated or task.rows or task.row_results:
        return "calls have numbers"
    if task.max_depth % (levels + 1):
        return f"max_depth={task.max_depth} is not divisible by {levels + 1}"
    inlined = {call.function for body in bodies for call in calls_in(body) if call not in tails}
    if not inlined:
        return "all calls are in tail position"
    if any(call in tails for k in inlined for call in calls_in(bodies[k])):
        return "a function that would be inlined has calls in tail position"
    kept: set[Call] = set()
    made = []
    for body in bodies:
        environment = body.parameters[1 : 1 + len(task.environment)]
        copy = _Copy(bodies, tails, kept, environment, levels, {v: v for v in body.parameters})
        made.append(copy.structure(body, body.parameters))
    items, calls = sum(len(list(items_in(body))) for body in made), sum(len(calls_in(body)) for body in made)
    if items > MOST_ITEMS or calls > MOST_CALLS:
        return "its code would be too long"
    return Unrolled(tuple(made), frozenset(kept))


@dataclass(eq=False, slots=True)
class _Copy:
    """One copy of a body with `levels` of calls inlined. `kept`: collects copies of calls in tail position;
    `environment`: the parameters that all bodies share; `names`: the body's variables -> those of the copy.
    """

    bodies: Sequence[Structure]
    tails: Collection[Call]
    kept: set[Call]
    environment: tuple[Atom, ...]
    levels: int
    names: dict[Var, Atom]

    def structure(self, body: Structure, parameters: tuple[Var, ...]) -> Structure:
        items = tuple(self.items(body))
        return Structure(parameters, items, self.read(body.results))

    def items(self, body: Structure) -> Iterator[Item]:
        for item in body.items:
            if isinstance(item, Call) and self.levels and item not in self.tails:
                yield from self.inlined(item)
            else:
                yield self.item(item)

    def inlined(self, call: Call) -> Iterator[Item]:
        """The callee's items in place of a call."""
        body = self.bodies[call.function]
        token, *arguments = self.read(call.inputs)
        given = zip(body.parameters, (token, *self.environment, *arguments), strict=True)
        copy = replace(self, levels=self.levels - 1, names=dict(given))
        yield from copy.items(body)
        self.names |= zip(call.outputs, copy.read(body.results), strict=True)

    def item(self, item: Item) -> Item:
        if isinstance(item, Op):
            return replace(item, inputs=self.read(item.inputs), outputs=self.new(item.outputs))
        if isinstance(item, Call):
            call = replace(item, inputs=self.read(item.inputs), outputs=self.new(item.outputs))
            self.kept.update([call] if item in self.tails else [])
            return call
        if isinstance(item, Cond):
            (index,) = self.read((item.index,))
            sides = tuple(self.structure(side, ()) for side in item.sides)
            return Cond(index, sides, self.new(item.outputs))
        carried, stacked = self.read(item.carried), self.read(item.stacked)
        body, condition = self.loop(item.body), item.condition and self.loop(item.condition)
        return replace(
            item,
            carried=carried,
            stacked=stacked,
            body=body,
            condition=condition,
            outputs=self.new(item.outputs),
        )

    def loop(self, body: Structure) -> Structure:
        return self.structure(body, self.new(body.parameters))

    def new(self, variables: Sequence[Var]) -> tuple[Var, ...]:
        """Fresh variables that replace these."""
        made = tuple(Var(v.aval) for v in variables)
        self.names |= zip(variables, made, strict=True)
        return made

    def read(self, atoms: Sequence[Atom]) -> tuple[Atom, ...]:
        return tuple(self.names[a] if isinstance(a, Var) else a for a in atoms)
