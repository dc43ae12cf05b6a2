"""Divides a long function into pieces, functions of their own, so that big programs compile in linear time.

A piece is a run of statements. Of the registers that it shares with the rest, those that it only reads are
parameters. Those that it sets come back: the piece works on a copy, whose address nobody has, so that the
compiler keeps it in a register on both sides of the call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from jax_cocktail.codegen.kernel import (
    LEFT,
    Assign,
    Compound,
    Declaration,
    Expression,
    Loop,
    Name,
    Node,
    SizeName,
    Spelled,
    declared_in,
    length,
    names_in,
    printed,
    statements_in,
)
from jax_cocktail.codegen.outline import Outer, OutlineTable, declarations
from jax_cocktail.codegen.writer import code

Names = frozenset[Name]


@dataclass(frozen=True, slots=True)
class Length:
    """Lines of text [M]. `most`: of a function that stays whole; `piece`: from which on a piece is complete;
    `least`: fewer lines stay where they are."""

    most: int = 1000
    piece: int = 250
    least: int = 40


LENGTH = Length()


@dataclass(frozen=True, slots=True)
class _Run:
    """Statements that stay together. `lines`: of their text; `uses`: how often each name occurs in them."""

    nodes: tuple[Node, ...]
    lines: int
    uses: Counter[Name]


def divide(
    nodes: Sequence[Node],
    about: Callable[[Name], Outer],
    outlines: OutlineTable,
    long: Length,
) -> tuple[list[Node], Names]:
    """The statements of a function, with calls of pieces if they are long, and the registers that calls may
    read before they are set, which thus need a value. `about`: what a register or pointer stands for. On a
    GPU the function stays whole: its threads would keep their registers in memory around every call."""
    if not outlines.has_pieces or length(*nodes) <= long.most:
        return list(nodes), frozenset()
    division = _Division(nodes, about, outlines, long)
    return division.statements(), frozenset(division.given)


class _Division:
    def __init__(
        self, nodes: Sequence[Node], about: Callable[[Name], Outer], outlines: OutlineTable, long: Length
    ) -> None:
        self._nodes, self._about, self._outlines, self._long = nodes, about, outlines, long
        self._uses = Counter(names_in(*nodes))  # in the function as it is now
        self._types = {n.name: n.type for n in statements_in(*nodes) if isinstance(n, Loop) and n.type}
        self.given = set[Name]()  # what calls get by reference

    def statements(self) -> list[Node]:
        return [node for run in self._level(self._nodes, frozenset()) for node in run.nodes]

    def _level(self, nodes: Sequence[Node], tied: Names) -> list[_Run]:
        """The statements of a block. `tied`: the local names of the blocks around it."""
        flat = [node for node in nodes if not isinstance(node, Compound | Loop)]
        local = frozenset(name for name in names_in(*flat) if _is_local(name))
        runs = list[_Run]()
        for node in nodes:
            run = self._run(node, tied | local)
            runs[-1:] = [_joined([runs[-1], run])] if _continues(node) else [*runs[-1:], run]
        runs = [self._by_side(run, tied | local) for run in runs]
        if sum(run.lines for run in runs) <= self._long.piece:
            return runs
        return [self._called(run) for run in self._gathered(runs, local, tied)]

    def _run(self, node: Node, tied: Names) -> _Run:
        """One statement, divided inside. What a statement of the program became, in braces of its own or in
        the loop over its lanes, stays whole."""
        if not isinstance(node, Compound | Loop):
            return _Run((node,), 1, Counter(names_in(node)))
        whole = node.head == "" if isinstance(node, Compound) else not node.name.outer or node.pragma != ""
        if whole:
            return _Run((node,), length(node), Counter(names_in(node)))
        inside = _joined(self._level(node.body, tied))
        uses = Counter(names_in(replace(node, body=()))) + inside.uses
        return _Run((replace(node, body=inside.nodes),), inside.lines + 2, uses)

    def _by_side(self, run: _Run, tied: Names) -> _Run:
        """A branch with many sides: together they are long, so that each becomes a piece."""
        if len(run.nodes) < 2 or run.lines <= self._long.piece:
            return run
        sides = list[_Run]()
        for node in run.nodes:
            assert isinstance(node, Compound)
            inside = _Run(node.body, length(*node.body), Counter(names_in(*node.body)))
            if tied.isdisjoint(inside.uses):
                inside = self._called(inside)
            uses = Counter(names_in(node.head)) + inside.uses
            sides.append(_Run((replace(node, body=inside.nodes),), inside.lines + 2, uses))
        return _joined(sides)

    def _gathered(self, runs: Sequence[_Run], local: Names, tied: Names) -> Iterator[_Run]:
        """Neighbours together, up to the length of a piece. The last use of a local name is in the piece that
        declares it."""
        last = {name: at for at, run in enumerate(runs) for name in run.uses.keys() & local}
        held, group, end = set(tied), list[_Run](), 0
        for position, run in enumerate(runs):
            if any(map(_ends_loop, run.nodes)) or not held.isdisjoint(run.uses):
                if group and position <= end:  # the names of the group are in use here
                    held |= {name for each in group for name in each.uses.keys() & local}
                held |= run.uses.keys() & local
                yield from self._closed(group, position > end)
                yield run
                group = []
                continue
            group.append(run)
            end = max([end, *(last[name] for name in run.uses.keys() & local)])
            if sum(each.lines for each in group) >= self._long.piece and position >= end:
                yield _joined(group)
                group = []
        yield from self._closed(group, True)

    def _closed(self, group: Sequence[_Run], is_free: bool) -> Sequence[_Run]:
        """A group as one run if it can become a piece, else as it is."""
        return [_joined(group)] if group and is_free else group

    def _called(self, run: _Run) -> _Run:
        """The call of a piece that executes these statements, if they are long enough."""
        if run.lines < self._long.least or any(map(_ends_loop, run.nodes)) or len(run.nodes) < 2:
            return run
        piece = _Piece(run, self._uses, self._of)
        self.given |= set(piece.changed)
        call = piece.call(self._outlines, self.given, leaves=LEFT in run.uses)
        uses = Counter(names_in(call))
        self._uses.subtract(run.uses)
        self._uses.update(uses)
        return _Run((call,), length(call), uses)

    def _of(self, name: Name) -> Outer:
        return Outer(self._types[name]) if name in self._types else self._about(name)


class _Piece:
    """A run as a function. `uses`: how often names occur in the function around it."""

    def __init__(self, run: _Run, uses: Counter[Name], about: Callable[[Name], Outer]) -> None:
        outer = {name: about(name) for name in run.uses if name.outer}
        shared = {n for n in outer if uses[n] > run.uses[n] and not outer[n].address or _moves(outer[n])}
        shared |= {name for name in outer if isinstance(name, SizeName)}  # set once, at the start
        self._nodes = [_assigned(node, shared) for node in run.nodes]
        blocks = (node for node in statements_in(*run.nodes) if isinstance(node, Compound))
        self._template = next((block.template for block in blocks if block.template), "")
        self._about = outer
        declared, set_ = declared_in(self._nodes), _set_in(self._nodes)
        self._taken = [name for name in outer if name in shared - set_ - declared]
        self.changed = [name for name in outer if name in shared & set_]
        known = {*declared, *self._taken, *self.changed}
        self._own = {name: outer[name] for name in outer if name not in known}
        places = (each for found in self._own.values() for each in names_in(found.address))
        for size in dict.fromkeys(each for each in places if isinstance(each, SizeName)):
            if size not in outer:
                outer[size] = about(size)
                self._taken.append(size)

    def call(self, outlines: OutlineTable, given: Collection[Name], *, leaves: bool) -> Node:
        """Makes the function; its call. `given`: registers that it may give away before it sets them;
        `leaves`: it says whether the unit leaves the program."""
        places = {name: Name(f"{name.text}_at", outer=True) for name in self.changed}
        body: list[Node] = [Declaration(self._about[n].type, n, at, const=False) for n, at in places.items()]
        body += [*self._nodes, *(Assign(at, name) for name, at in places.items())]
        body += [code("return false;")] if leaves else []
        parameters = {name: self._about[name] for name in self._taken}
        parameters |= {at: Outer(f"{self._about[name].type}&") for name, at in places.items()}
        copies = {name: Name(f"k{number}") for number, name in enumerate(self.changed)}
        references: dict[Name, Expression] = {places[name]: copy for name, copy in copies.items()}
        lines = [*declarations(self._own, given), *printed(body)]
        called = outlines.piece(lines, parameters, references, leaves=leaves, template=self._template)
        if not copies:
            return called
        before = [Declaration(self._about[n].type, copy, n, const=False) for n, copy in copies.items()]
        return Compound("", (*before, called, *(Assign(name, copy) for name, copy in copies.items())))


def _joined(runs: Sequence[_Run]) -> _Run:
    uses = Counter[Name]()
    for run in runs:
        uses.update(run.uses)
    return _Run(tuple(n for run in runs for n in run.nodes), sum(run.lines for run in runs), uses)


def _moves(about: Outer) -> bool:
    """True for memory whose address depends on the unit's index at the beginning, which barriers change."""
    return about.slot is not None and about.slot.space == "private"


def _is_local(name: Name) -> bool:
    return not name.outer and name != LEFT


def _continues(node: Node) -> bool:
    """True for the other side of the branch before it."""
    return isinstance(node, Compound) and _begins(node.head, "else")


def _ends_loop(node: Node) -> bool:
    return isinstance(node, Spelled) and "break;" in str(node.pieces[-1])


def _begins(head: Expression, word: str) -> bool:
    first = head.pieces[0] if isinstance(head, Spelled) else head
    return isinstance(first, str) and first.startswith(word)


def _set_in(nodes: Sequence[Node]) -> Names:
    """The registers that statements set."""
    statements = statements_in(*nodes)
    found = (n for n in statements if isinstance(n, Assign) or (isinstance(n, Loop) and not n.type))
    return frozenset(node.name for node in found if isinstance(node.name, Name))


def _assigned(node: Node, shared: set[Name]) -> Node:
    """A declaration of what others use as well sets a variable instead, which they declare."""
    if isinstance(node, Declaration) and node.name in shared:
        return Assign(node.name, node.value)
    return node
