"""The kernel IR: the C text of a program as nodes, their printer, and the writer that collects them.

Emitters build nodes, passes (`codegen.passes`, `codegen.stages`) read and rewrite them, `lines` prints them.
Names, loads and calls are nodes wherever they occur, also in the call of a template. What a pass knows about
a node it knows from its construction; nobody reads the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from string import Formatter
from typing import TypeAlias

from jax_cocktail.codegen.text import MOST_ELEMENTS, NARROW, STORAGE


class _Printed:
    """Guards against text in the place of a node, which no pass could read."""

    __slots__ = ()

    def __format__(self, form: str) -> str:
        raise TypeError(f"{self} is a node: only the printer makes text of it")


# -- expressions ---------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, order=True)
class Name(_Printed):
    """An identifier. `outer`: a register, pointer or loop index of a whole function, which a function made of
    the statements that use it gets as a parameter; else it is declared beside its uses."""

    text: str
    outer: bool = False


@dataclass(frozen=True, slots=True)
class Index(_Printed):
    """constant + sum(coefficient * term), in elements. Terms are C integers, mostly loop variables."""

    constant: int = 0
    terms: tuple[tuple[Name | Spelled, int], ...] = ()

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.constant + other, self.terms)
        merged = dict(self.terms)
        for name, coefficient in other.terms:
            merged[name] = merged.get(name, 0) + coefficient
        kept = tuple((n, c) for n, c in merged.items() if c)
        return Index(self.constant + other.constant, kept)

    def __mul__(self, factor: int) -> Index:
        if factor == 0:
            return Index()
        return Index(self.constant * factor, tuple((n, c * factor) for n, c in self.terms))

    def without(self, names: frozenset[Name]) -> Index:
        """The index as it is where loops over these variables were merged into others."""
        return Index(self.constant, tuple((n, c) for n, c in self.terms if n not in names))


@dataclass(frozen=True, slots=True)
class Pointer(_Printed):
    """Where elements of a C type begin. `space`: see `utask.plan.Slot`; "local" for arrays of a function."""

    base: Expression
    type: str
    space: str = "local"

    def __add__(self, place: Expression) -> Pointer:
        return Pointer(code("({} + {})", self, place), self.type, self.space)


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
class Spelled(_Printed):
    """Any other expression or statement: text, and the nodes in it. A statement of it, such as a template's
    call, may read and write whatever its names lead to."""

    pieces: tuple[Expression, ...]


# -- statements ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Declaration(_Printed):
    """A new variable, and its value if it has one already."""

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

    pointer: Pointer
    place: Expression
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
class Block(_Printed):
    """Statements in braces, under a head such as `if (...)`, or none."""

    head: Expression
    body: tuple[Node, ...]


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


Expression: TypeAlias = Name | Index | Pointer | Load | Call | Spelled | str  # str: text without names
Node: TypeAlias = Declaration | Assign | Store | Barrier | Comment | Block | Loop | Spelled


# -- construction --------------------------------------------------------------------------------------------
def code(template: str, *operands: Expression | int, **named: Expression | int) -> Spelled:
    """A format string of C text, with operands in the place of its fields."""
    rest = iter(operands)
    pieces: list[Expression] = []
    for text, field in _fields(template):
        operand = "" if field is None else named[field] if field else next(rest)
        pieces += [text, str(operand) if isinstance(operand, int) else operand]
    return Spelled(tuple(piece for piece in pieces if piece != ""))


@cache
def _fields(template: str) -> list[tuple[str, str | None]]:
    return [(text, field) for text, field, _, _ in Formatter().parse(template)]


def call(function: str, *arguments: Expression) -> Call:
    """A call of a function of the runtime headers."""
    return Call(function, arguments)


def up(value: Expression, dtype: str) -> Expression:
    """A stored element as a value of the compute type."""
    return call("ck_up", value) if dtype in NARROW else value


def down(value: Expression, dtype: str) -> Expression:
    """A value of the compute type as it is stored."""
    return call(f"ck_down<{STORAGE[dtype]}>", value) if dtype in NARROW else value


def joined(separator: str, items: Sequence[Expression]) -> Spelled:
    """Expressions with text between each two."""
    return Spelled(tuple(piece for item in items for piece in (separator, item))[1:])


def variable(name: str) -> Index:
    """A loop variable as an index."""
    return Index(0, ((Name(name), 1),))


# -- the printer ---------------------------------------------------------------------------------------------
def _parts(node: Expression | Node) -> tuple[Expression, ...]:
    """A node as text and nodes, in the order of print; of a loop or block the head only."""
    match node:
        case str():
            return (node,)
        case Name(text) | Barrier(text):
            return (text,)
        case Comment(text):
            return (f"// {text}",)
        case Index():
            return _affine(node)
        case Pointer(base):
            return (base,)
        case Load(pointer, place):
            return (pointer, "[", place, "]")
        case Call(function, arguments):
            return (function, "(", joined(", ", arguments), ")")
        case Spelled(pieces):
            return pieces
        case Declaration(type_, name, value, const):
            head = (f"{'const ' * const}{type_} ", name)
            return (*head, ";") if value == "" else (*head, " = ", value, ";")
        case Assign(name, value, condition):
            return (*_guard(condition), name, " = ", value, ";")
        case Store(pointer, place, value, condition):
            return (*_guard(condition), pointer, "[", place, "] = ", value, ";")
        case Block(head):
            return (head,) if head == "" else (head, " ")
        case Loop(type_, name, start, stop, _, step):
            begin = (f"{type_} ", name, " = ", start) if type_ else ()
            by = ("++", name) if step == "" else (name, " += ", step)
            return ("for (", *begin, "; ", name, " < ", stop, "; ", *by, ") ")


def _guard(condition: Expression) -> tuple[Expression, ...]:
    return () if condition == "" else ("if (", condition, ") ")


def _affine(index: Index) -> tuple[Expression, ...]:
    terms = [n if c == 1 else Spelled((f"{c} * ", n)) for n, c in index.terms]
    constant = [str(index.constant)] if index.constant or not terms else []
    return joined(" + ", [*terms, *constant]).pieces


def text(node: Expression | Node, names: Mapping[Name, Expression]) -> str:
    """The C text of an expression or of one line. `names`: what stands in the place of some names."""
    if isinstance(node, str):
        return node
    if isinstance(node, Name) and node in names:
        return text(names[node], {})
    return "".join(text(part, names) for part in _parts(node))


def lines(nodes: Sequence[Node], names: Mapping[Name, Expression], indent: int = 1) -> list[str]:
    """The C text of statements."""
    margin, found = "  " * indent, list[str]()
    for node in nodes:
        if isinstance(node, Loop) and node.pragma != "":
            found.append(margin + text(node.pragma, names))
        if isinstance(node, Loop | Block):
            inner = lines(node.body, names, indent + 1)
            found += [f"{margin}{text(node, names)}{{", *inner, f"{margin}}}"]
        else:
            found.append(margin + text(node, names))
    return found


# -- what passes ask -----------------------------------------------------------------------------------------
def nodes_in(*nodes: Expression | Node) -> Iterator[Expression | Node]:
    """All nodes in the order of print, each before what it is made of."""
    for node in nodes:
        if isinstance(node, str):
            continue
        yield node
        yield from nodes_in(*((node.pragma,) if isinstance(node, Loop) else ()), *_parts(node))
        yield from nodes_in(*(node.body if isinstance(node, Loop | Block) else ()))


def names_in(*nodes: Expression | Node) -> list[Name]:
    """All names in the order of print, each as often as it occurs."""
    return [node for node in nodes_in(*nodes) if isinstance(node, Name)]


def length(*nodes: Node) -> int:
    """How many lines they are."""
    inner = (1 + length(*node.body) for node in nodes if isinstance(node, Loop | Block))
    return len(nodes) + sum(inner) + sum(isinstance(node, Loop) and node.pragma != "" for node in nodes)


class Writer:
    """Collects the statements of a function. `index`: the type of loop variables."""

    def __init__(self, index: str = "i64") -> None:
        self.nodes: list[Node] = []
        self.index = index
        self._fresh = 0

    def add(self, *nodes: Node) -> None:
        self.nodes += nodes

    def line(self, template: str, *operands: Expression | int) -> None:
        """A statement that is no more than its text."""
        self.add(code(template, *operands))

    def fresh(self, prefix: str) -> Name:
        self._fresh += 1
        return Name(f"{prefix}{self._fresh}")

    @contextmanager
    def block(self, head: Expression = "") -> Iterator[None]:
        with self._inside() as body:
            yield
        self.add(Block(head, tuple(body)))

    @contextmanager
    def loop(
        self,
        name: Name,
        stop: Expression | int,
        pragma: Expression = "",
        *,
        start: Expression = "0",
        step: Expression | int = "",
        declared: bool = False,
        finish: Callable[[Loop], Sequence[Node]] = lambda loop: [loop],
    ) -> Iterator[None]:
        """A counted loop, see `Loop`. `declared`: its variable is there already. `finish`: a pass over it."""
        index = "i64" if isinstance(stop, int) and stop > MOST_ELEMENTS else self.index
        with self._inside() as body:
            yield
        stop, step = (str(n) if isinstance(n, int) else n for n in (stop, step))
        self.add(*finish(Loop("" if declared else index, name, start, stop, tuple(body), step, pragma)))

    @contextmanager
    def _inside(self) -> Iterator[list[Node]]:
        outer, self.nodes = self.nodes, []
        yield self.nodes
        self.nodes = outer
