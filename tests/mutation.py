"""Small edits of the compiler's functions ("mutants"), and where in a run one of them would matter.

A mutant is one edit of a function: another comparison, a number that is one more, `or` for `and`, a condition
that always holds or never does, a `not` less, minus for plus.

`install` makes one of them. `watch` makes none, but notes which of them would take effect: a mutant matters
only where the edited expression is computed, and, of a condition, only where it would come out otherwise.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import importlib
import inspect
import operator
import pkgutil
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax_cocktail
from tests.mutants_alike import is_alike

PACKAGE = Path(jax_cocktail.__file__).parent
PASSES = ("schedule", "placement", "analysis", "stitch")
TEXT = ("codegen",)
# What chooses among correct plans, prices them or talks about them: any outcome is a right one. The verifier
# and the scopes only refuse; the text of GPUs has the emulation.
LEFT_OUT = (
    *("schedule.policy", "stitch.partition", "placement.limits", "placement.explain", "placement.bound"),
    *("schedule.vmap.choose", "analysis.verifier", "analysis.scopes", "analysis.graph"),
    *("codegen.gpu", "codegen.cuda", "codegen.exchange", "codegen.outline", "codegen.machines"),
    "codegen.stamps",
)
_SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq},
    **{ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In},
}
_ORDERS: dict[type[ast.cmpop], str] = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge"}
_NOTE, _NOTE_ORDER = "_mutation_note", "_mutation_note_order"
Function = tuple[str, str]  # module, qualified name


@dataclass(frozen=True, slots=True)
class Mutant:
    """An edit of the node at a position in a walk over a function. `text`: before and after; `rank`: how many
    edits of the function with the same text come earlier."""

    function: Function
    position: int
    way: int
    line: int
    text: str
    rank: int = 0

    def __str__(self) -> str:
        return f"{self.function[0]}:{self.line} {self.function[1]}: {self.text}"

    @property
    def name(self) -> str:
        """What it is called in tables: without a line, which moves."""
        again = f" (number {self.rank + 1})" if self.rank else ""
        return f"{self._short}{again}"

    @property
    def order(self) -> str:
        """By which a seed draws it."""
        return f"{self._short} {self.position}"

    @property
    def _short(self) -> str:
        return f"{self.function[0].partition('.')[2]} {self.function[1]}: {self.text}"

    @property
    def of_text(self) -> bool:
        return self.function[0].split(".")[1] in TEXT


# ---- which there are ---------------------------------------------------------------------------------------


def edits(node: ast.AST) -> Iterator[ast.AST]:
    """What a node may become."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield ast.Compare(node.left, [_SWAPPED[type(node.ops[0])]()], node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        yield ast.BoolOp(node.op, node.values[1:]) if len(node.values) > 2 else node.values[1]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        yield ast.BinOp(node.left, ast.Sub() if isinstance(node.op, ast.Add) else ast.Add(), node.right)
    elif isinstance(node, ast.If | ast.IfExp):
        for value in (True, False):
            changed = copy.copy(node)
            changed.test = ast.Constant(value)
            yield changed


def nodes(function: ast.FunctionDef) -> list[ast.AST]:
    """What can be edited: the body, but for patterns."""
    walked = [node for statement in function.body for node in ast.walk(statement)]
    patterns = {id(n) for node in walked if isinstance(node, ast.pattern) for n in ast.walk(node)}
    return [node for node in walked if id(node) not in patterns]


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions and methods of a module, with qualified names."""
    for node in tree.body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for each in inner:
            if isinstance(each, ast.FunctionDef):
                yield prefix + each.name, each


def _parsed(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(importlib.import_module(module)))


def mutants() -> list[Mutant]:
    """All that there are, in order."""
    found = []
    for info in pkgutil.walk_packages([str(PACKAGE)], "jax_cocktail."):
        short = info.name.partition(".")[2]
        if info.ispkg or short.split(".")[0] not in (*PASSES, *TEXT) or short in LEFT_OUT:
            continue
        for name, function in functions(_parsed(info.name)):
            ranks: Counter[str] = Counter()
            for position, node in enumerate(nodes(function)):
                for way, changed in enumerate(edits(node)):
                    before, after = (ast.unparse(n).partition("\n")[0][:70] for n in (node, changed))
                    line = getattr(node, "lineno", function.lineno)
                    text = f"{before}  ->  {after}"
                    found.append(Mutant((info.name, name), position, way, line, text, ranks[text]))
                    ranks[text] += 1
    return found


def drawn(count: int, seed: int, match: str = "") -> list[Mutant]:
    """Mutants that could be noticed, in an order that depends on the seed and on each of them alone."""

    def rank(mutant: Mutant) -> str:
        return hashlib.sha256(f"{seed} {mutant.order}".encode()).hexdigest()

    possible = [m for m in mutants() if match in str(m) and not is_alike(m.name)]
    return sorted(possible, key=rank)[:count]


# ---- in this process ---------------------------------------------------------------------------------------


def install(mutant: Mutant) -> None:
    """Changes the function in this process, for everybody who has imported it."""

    def changed(tree: ast.Module, function: ast.FunctionDef) -> ast.Module:
        node = nodes(function)[mutant.position]
        return _Swap({id(node): list(edits(node))[mutant.way]}).visit(tree)

    _recompile(mutant.function, changed)


class _Swap(ast.NodeTransformer):
    def __init__(self, others: Mapping[int, ast.AST]) -> None:
        self.others = others

    def visit(self, node: ast.AST) -> ast.AST:
        if id(node) in self.others:
            return ast.copy_location(self.others[id(node)], node)
        return self.generic_visit(node)


def _recompile(place: Function, change: Callable[[ast.Module, ast.FunctionDef], ast.Module]) -> None:
    module = importlib.import_module(place[0])
    tree = _parsed(place[0])
    tree = ast.fix_missing_locations(change(tree, dict(functions(tree))[place[1]]))
    code = compile(tree, str(module.__file__), "exec")
    target: Any = module
    for part in place[1].split("."):
        code = next(c for c in code.co_consts if isinstance(c, types.CodeType) and c.co_name == part)
        target = inspect.getattr_static(target, part)
    _plain(target).__code__ = code


def _plain(target: Any) -> Any:
    """The function below decorators."""
    while not isinstance(target, types.FunctionType):
        target = getattr(target, "fget", None) or getattr(target, "__wrapped__", None) or target.__func__
    return inspect.unwrap(target)


def watch(chosen: Sequence[Mutant]) -> set[int]:
    """The numbers of those that would have taken effect in this process, from now on; kept up to date."""
    seen: set[int] = set()

    def note(number: int, value: Any, unless: bool | None) -> Any:
        if number not in seen and (unless is None or value is not unless):
            seen.add(number)
        return value

    def note_order(number: int, name: str, x: Any, y: Any) -> Any:
        if number not in seen and x == y:
            seen.add(number)
        return getattr(operator, name)(x, y)

    for place in dict.fromkeys(mutant.function for mutant in chosen):
        vars(importlib.import_module(place[0])).update({_NOTE: note, _NOTE_ORDER: note_order})
        here = [(number, mutant) for number, mutant in enumerate(chosen) if mutant.function == place]
        _recompile(place, lambda tree, function, here=here: _Watching(function, here).visit(tree))
    return seen


class _Watching(ast.NodeTransformer):
    """Wraps what decides whether a mutant takes effect."""

    def __init__(self, function: ast.FunctionDef, chosen: Sequence[tuple[int, Mutant]]) -> None:
        found = nodes(function)
        self.wanted: dict[int, list[tuple[int, int]]] = {}
        for number, mutant in chosen:
            self.wanted.setdefault(id(found[mutant.position]), []).append((number, mutant.way))

    def visit(self, node: ast.AST) -> ast.AST:
        chosen = self.wanted.get(id(node), ())
        node = self.generic_visit(node)
        for number, way in chosen:
            node = _watched(node, number, way)
        return node


def _watched(node: Any, number: int, way: int) -> ast.AST:
    if isinstance(node, ast.If | ast.IfExp):
        holds = ast.UnaryOp(ast.Not(), ast.UnaryOp(ast.Not(), node.test))
        node.test = _noting(holds, number, unless=not way)  # the first way is a condition that holds
    elif isinstance(node, ast.BoolOp):
        unless, decisive = isinstance(node.op, ast.And), 1 if way else len(node.values)
        node.values = [_noting(v, number, unless) if n < decisive else v for n, v in enumerate(node.values)]
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in _ORDERS:
        name = ast.Constant(_ORDERS[type(node.ops[0])])
        return _calling(_NOTE_ORDER, ast.Constant(number), name, node.left, *node.comparators)
    else:
        return _noting(node, number, None)
    return node


def _noting(node: ast.expr, number: int, unless: bool | None) -> ast.Call:
    return _calling(_NOTE, ast.Constant(number), node, ast.Constant(unless))


def _calling(name: str, *operands: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(operands), [])
