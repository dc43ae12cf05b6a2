"""The kernel IR: the C text of a program as nodes, and their printer.

Emitters build nodes (`codegen.writer`), passes (`codegen.passes`, `codegen.outline`) read and rewrite them,
`printed` and `text` print them. Function-wide names and loads are nodes wherever they occur, even in a
template call. Passes learn about a node from its construction alone; nobody reads the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from jax_cocktail.utask.sizes import Atom, Parameter, Quotient, Size

_MOST_NARROW = (1 << 31) - 1  # what 32 bits hold


class _Printed:
    """Rejects text in place of a node: passes could not read it. `_line` caches the pieces of its line."""

    __slots__ = ("_line",)
    _line: Pieces

    def __format__(self, form: str) -> str:
        raise TypeError(f"{self!r} is a node: only the printer makes text of it")


# -- expressions ---------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, order=True)
class Name(_Printed):
    """An identifier. `outer`: a register, pointer or loop index of a whole function, which a function made of
    the statements that use it gets as a parameter; else it is declared beside its uses."""

    text: str
    outer: bool = False

    def __hash__(self) -> int:
        return hash(self.text)  # which is kept: tables are full of names


@dataclass(frozen=True, slots=True)
class SizeName(Name):
    """A launch parameter. Its text is numbered when the program is complete."""

    parameter: Parameter = Parameter(0)

    __hash__ = Name.__hash__


def spelled(number: int) -> Expression:
    """A number as C text; a size by its launch parameters, in 64 bits if 32 bits are too few."""
    return _size(number) if isinstance(number, Size) else str(number)


def _size(size: Size) -> Expression:
    pieces = list[Expression]()
    wide = sum(abs(n) * prod(map(int, product)) for product, n in size.terms) > _MOST_NARROW
    for product, n in sorted(size.terms, key=lambda term: not term[0]):
        sign = (" - " if pieces else "-") if n < 0 else " + " if pieces else ""
        atoms = [Spelled(("i64(", _atom(each), ")")) if wide else _atom(each) for each in product]
        factors = [*atoms, *([str(abs(n))] if abs(n) != 1 or not product else [])]
        pieces += [sign, *_between(" * ", factors[::-1])]
    alone = len(pieces) == 2 and pieces[0] == "" and isinstance(pieces[1], SizeName)
    return pieces[1] if alone else Spelled(("(", *pieces, ")"))


def _atom(atom: Atom) -> Expression:
    if isinstance(atom, Quotient):
        return Spelled(("(", spelled(atom.dividend), f" / {atom.divisor})"))
    return SizeName(f"{atom.role} size {atom.value}", True, atom)


@dataclass(frozen=True, slots=True)
class Index(_Printed):
    """constant + sum(coefficient * term), in elements. Terms are C integers, mostly loop variables."""

    constant: int = 0
    terms: tuple[tuple[Name | Spelled, int], ...] = ()

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.constant + other, self.terms) if other else self
        if not other.terms:
            return self + other.constant
        if not self.terms:
            return other + self.constant
        merged = dict(self.terms)
        for name, coefficient in other.terms:
            merged[name] = merged.get(name, 0) + coefficient
        kept = tuple((n, c) for n, c in merged.items() if c)
        return Index(self.constant + other.constant, kept)

    def __mul__(self, factor: int) -> Index:
        if factor == 0:
            return Index()
        if factor == 1:
            return self
        return Index(self.constant * factor, tuple((n, c * factor) for n, c in self.terms))

    def along(self, indices: Sequence[Index], strides: Sequence[int]) -> Index:
        """The index moved by other indices, each times its stride."""
        for index, stride in zip(indices, strides, strict=True):
            self += index * stride
        return self

    def without(self, names: frozenset[Name]) -> Index:
        """The index after the loops over these variables were merged into others."""
        kept = tuple((n, c) for n, c in self.terms if n not in names)
        return self if len(kept) == len(self.terms) else Index(self.constant, kept)


@dataclass(frozen=True, slots=True)
class Pointer(_Printed):
    """A pointer to elements of a C type. `space`: see `utask.plan.Slot`; "local" for arrays of a function."""

    base: Expression
    type: str
    space: str = "local"

    def __add__(self, place: Expression) -> Pointer:
        return Pointer(Spelled(("(", self.base, " + ", place, ")")), self.type, self.space)


@dataclass(frozen=True, slots=True)
class Load(_Printed):
    """An element of memory."""

    pointer: Pointer
    place: Expression


@dataclass(frozen=True, slots=True)
class Call(_Printed):
    """A call of a function of the runtime headers, without side effects."""

    function: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Select(_Printed):
    """One of two expressions; both may be computed."""

    condition: Expression
    value: Expression
    other: Expression


@dataclass(frozen=True, slots=True)
class Spelled(_Printed):
    """Any other expression or statement: text, and the nodes in it. Such a statement, the call of a template
    for example, may read and write whatever its names lead to."""

    pieces: tuple[Expression, ...]


# str: text without names
Expression: TypeAlias = Name | Index | Pointer | Load | Call | Select | Spelled | str


LEFT = Name("left")  # what a function returns when its unit leaves the program


# -- statements ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Declaration(_Printed):
    """A new variable, with its initial value if it has one."""

    type: str
    name: Name
    value: Expression = ""
    const: bool = True


@dataclass(frozen=True, slots=True)
class Assign(_Printed):
    """Sets a variable, under a condition if there is one."""

    name: Expression
    value: Expression
    condition: Expression = ""


@dataclass(frozen=True, slots=True)
class Store(_Printed):
    """Sets an element of memory, under a condition if there is one."""

    element: Load
    value: Expression
    condition: Expression = ""


@dataclass(frozen=True, slots=True)
class Barrier(_Printed):
    """The threads of a unit wait for each other: neither loads nor stores may cross it."""

    text: str


@dataclass(frozen=True, slots=True)
class Comment(_Printed):
    """A line for readers of the text."""

    text: str


@dataclass(frozen=True, slots=True)
class Compound(_Printed):
    """Statements in braces, under a head such as `if (...)`, or none. `template`: the kind of the operator
    whose template they call, if compilers take long for that."""

    head: Expression
    body: tuple[Node, ...]
    template: str = ""


@dataclass(frozen=True, slots=True)
class Loop(_Printed):
    """for (name = start; name < stop; name += step). `type`: "" if the variable is declared before.
    `pragma`: a line before the loop."""

    type: str
    name: Name
    start: Expression
    stop: Expression
    body: tuple[Node, ...]
    step: Expression = ""
    pragma: Expression = ""


Node: TypeAlias = Declaration | Assign | Store | Barrier | Comment | Compound | Loop | Spelled
Pieces: TypeAlias = tuple[str | Name, ...]
Line = list[str | Name]
COMMENT = "// "
_PIECES = str, Name  # a tuple: `isinstance` is much faster with it than with a union
_NESTS = Compound, Loop


# -- the printer ---------------------------------------------------------------------------------------------
def _parts(node: Expression | Node) -> tuple[Expression, ...]:
    """A node as text and nodes in print order; for a loop or block, its head only."""
    match node:
        case Spelled(pieces):
            return pieces
        case str():
            return (node,)
        case Name(text) | Barrier(text):
            return (text,)
        case Index(constant, terms):
            scaled = [n if c == 1 else Spelled((spelled(c), " * ", n)) for n, c in terms]
            return _between(" + ", [*scaled, spelled(constant)] if constant or not terms else scaled)
        case Pointer(base):
            return (base,)
        case Load(pointer, place):
            return (pointer, "[", place, "]")
        case Call(function, arguments):
            return (function, "(", *_between(", ", arguments), ")")
        case Select(condition, value, other):
            return ("(", condition, ") ? ", value, " : ", other)
        case Declaration(type_, name, value, const):
            begin = ("const " * const, type_, " ", name)
            return (*begin, ";") if value == "" else (*begin, " = ", value, ";")
        case Assign(target, value, condition) | Store(target, value, condition):
            guard = () if condition == "" else ("if (", condition, ") ")
            stored = _parts(target) if isinstance(node, Store) else (target,)  # a store does not load it
            return (*guard, *stored, " = ", value, ";")
        case Comment(text):
            return (COMMENT, text)
        case Compound(head):
            return (head, " " if head != "" else "")
        case Loop(type_, name, start, stop, _, step):
            first = (type_, " ", name, " = ", start) if type_ else ()
            by = ("++", name) if step == "" else (name, " += ", step)
            return ("for (", *first, "; ", name, " < ", stop, "; ", *by, ") ")


def _between(separator: str, items: Sequence[Expression]) -> tuple[Expression, ...]:
    return tuple(piece for item in items for piece in (separator, item))[1:]


def _line(node: Expression | Node) -> Pieces:
    """The pieces of an expression or of one line, found once: passes and the printer ask again and again."""
    if isinstance(node, str):
        return (node,)
    try:
        return node._line
    except AttributeError:
        found = Line()
        for part in _parts(node):
            if isinstance(part, _PIECES):
                found.append(part)
            else:
                found += _line(part)
        pieces = tuple(found)
        object.__setattr__(node, "_line", pieces)
        return pieces


def printed(nodes: Sequence[Node], indent: int = 1) -> list[Line]:
    """Statements as lines of C text in which the names may still be chosen."""
    margin, found = "  " * indent, list[Line]()
    for node in nodes:
        if isinstance(node, Loop) and node.pragma != "":
            found.append([margin, *_line(node.pragma)])
        found.append([margin, *_line(node)])
        if isinstance(node, _NESTS):
            found[-1].append("{")
            found += [*printed(node.body, indent + 1), [margin, "}"]]
    return found


def text(lines: Sequence[Line], names: Mapping[Name, str]) -> str:
    """The C text of lines. `names`: what stands in the place of some names."""
    spelled = (
        [piece if isinstance(piece, str) else names.get(piece, piece.text) for piece in line]
        for line in lines
    )
    return "\n".join(map("".join, spelled))


# -- what passes ask -----------------------------------------------------------------------------------------
def nodes_in(*nodes: Expression | Node) -> Iterator[Expression | Node]:
    """All nodes in print order, each before its operands."""
    pending = list(nodes[::-1])
    while pending:
        node = pending.pop()
        if isinstance(node, str):
            continue
        yield node
        if isinstance(node, _NESTS):
            pending += node.body[::-1]
        if not isinstance(node, Name):
            pending += _parts(node)[::-1]
        if isinstance(node, Loop):
            pending.append(node.pragma)


def statements_in(*nodes: Node) -> Iterator[Node]:
    """All statements in print order, each before those in its body."""
    for node in nodes:
        yield node
        if isinstance(node, _NESTS):
            yield from statements_in(*node.body)


def names_in(*nodes: Expression | Node) -> list[Name]:
    """All names in print order, with repetitions."""
    found = list[Name]()
    for node in nodes:
        if isinstance(node, Name):
            found.append(node)
            continue
        if isinstance(node, Loop):
            found += names_in(node.pragma)
        found += [piece for piece in _line(node) if not isinstance(piece, str)]
        if isinstance(node, _NESTS):
            found += names_in(*node.body)
    return found


def declared_in(nodes: Sequence[Node]) -> set[Name]:
    """The variables that statements declare."""
    found = {node.name for node in nodes if isinstance(node, Declaration | Loop)}
    return found.union(*(declared_in(node.body) for node in nodes if isinstance(node, Compound | Loop)))


def length(*nodes: Node) -> int:
    """The number of lines."""
    lines = len(nodes)
    for node in nodes:
        if isinstance(node, Loop) and node.pragma != "":
            lines += 1
        if isinstance(node, _NESTS):
            lines += length(*node.body) + 1
    return lines


def is_comment(line: Line) -> bool:
    """True for a printed line that is a comment."""
    return line[1] == COMMENT  # after the margin
