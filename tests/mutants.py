"""Breaks the compiler in many small ways, and counts how many of them the random programs notice.

    python -m tests.mutants                                60 mutants, at most 2000 programs for each
    python -m tests.mutants --mutants 200 --seed 7 --jobs 2 --corpus ../corpus.pickle
    python -m tests.mutants --match liveness --mutants 9   drawn from those whose line has this text

A mutant is one small edit of a function: another comparison, a number that is one more, `or` for `and`, a
condition that always holds or never does, a `not` less, minus for plus. The seed draws the edits. A pass is
checked by interpreters, as `python -m tests.fuzz passes` does; what prints text is checked by building the
text and running it. A mutant is found if a program fails, or does not end. Programs that do not call the
function cannot notice, and are only counted. Survivors are printed; many of them change nothing, or only the
choice between two correct plans, which somebody has to judge.

--corpus keeps the translated programs for the next run.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import inspect
import multiprocessing
import os
import pickle
import pkgutil
import random
import signal
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import jax_cocktail
from jax_cocktail.compiler import build, emit
from tests.cpu.runner import run_artifact
from tests.generator.passes import Task, Variant, check_variant, interpret, variants

PACKAGE = Path(jax_cocktail.__file__).parent
PASSES = ("schedule", "placement", "analysis", "stitch")
TEXT = ("codegen",)
# What chooses among correct plans, prices them or talks about them: any outcome is a right one. The verifier
# and the scopes only refuse; the text of GPUs has the emulation.
LEFT_OUT = (
    *("schedule.policy", "schedule.partition", "placement.limits", "placement.explain", "placement.bound"),
    *("schedule.vmap.choose", "analysis.verifier", "analysis.scopes", "analysis.graph"),
    *("codegen.gpu", "codegen.cuda", "codegen.exchange", "codegen.outline", "codegen.machines"),
)
MOST_BUILDS = 12  # texts of a mutant that are built
SECONDS = 60  # for one program under a mutant
_SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq},
    **{ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In},
}
_FORK = multiprocessing.get_context("fork")
Function = tuple[str, str]  # module, qualified name


# ---- mutants -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mutant:
    """An edit of the node at a position in a walk over a function. `text`: before and after."""

    function: Function
    position: int
    way: int
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.function[0]}:{self.line} {self.function[1]}: {self.text}"

    @property
    def of_text(self) -> bool:
        return self.function[0].split(".")[1] in TEXT


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


def functions(module: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions and methods of a module, with qualified names."""
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    for node in tree.body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for each in inner:
            if isinstance(each, ast.FunctionDef):
                yield prefix + each.name, each


def mutants(packages: Sequence[str] = (*PASSES, *TEXT)) -> list[Mutant]:
    """All that there are, in order."""
    found = []
    for info in pkgutil.walk_packages([str(PACKAGE)], "jax_cocktail."):
        short = info.name.partition(".")[2]
        if info.ispkg or short.split(".")[0] not in packages or short in LEFT_OUT:
            continue
        for name, function in functions(info.name):
            for position, node in enumerate(ast.walk(function)):
                for way, changed in enumerate(edits(node)):
                    before, after = (ast.unparse(n).partition("\n")[0][:70] for n in (node, changed))
                    line = getattr(node, "lineno", function.lineno)
                    place = (info.name, name)
                    found.append(Mutant(place, position, way, line, f"{before}  ->  {after}"))
    return found


def install(mutant: Mutant) -> None:
    """Changes the function in this process, for everybody who has imported it."""
    module = importlib.import_module(mutant.function[0])
    path = str(module.__file__)
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    *outer, name = mutant.function[1].split(".")
    body = (
        next(n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == outer[0])
        if outer
        else tree.body
    )
    function = next(n for n in body if isinstance(n, ast.FunctionDef) and n.name == name)
    node = list(ast.walk(function))[mutant.position]
    changed = list(edits(node))[mutant.way]

    class Swap(ast.NodeTransformer):
        def visit(self, other: ast.AST) -> ast.AST:
            return ast.copy_location(changed, node) if other is node else self.generic_visit(other)

    code = compile(ast.fix_missing_locations(Swap().visit(tree)), path, "exec")
    for part in mutant.function[1].split("."):
        code = next(c for c in code.co_consts if isinstance(c, types.CodeType) and c.co_name == part)
    target: Any = module
    for part in mutant.function[1].split("."):
        target = inspect.getattr_static(target, part)
    _plain(target).__code__ = code


def _plain(target: Any) -> Any:
    """The function below decorators."""
    while not isinstance(target, types.FunctionType):
        target = getattr(target, "fget", None) or getattr(target, "__wrapped__", None) or target.__func__
    return inspect.unwrap(target)


# ---- programs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """A program: what it computes, its text for one unit, and the functions that every variant calls."""

    task: Task
    expected: tuple[np.ndarray, ...]
    source: str
    called: tuple[frozenset[Function], ...]


def called_by(run: Callable[[], object]) -> frozenset[Function]:
    """The functions of the package that a call enters."""
    codes = set()

    def watch(frame: types.FrameType, event: str, _: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(None)
    found = set()
    for code in codes:
        if code.co_filename.startswith(str(PACKAGE)):
            path = Path(code.co_filename).relative_to(PACKAGE.parent).with_suffix("")
            found.add((".".join(path.parts), code.co_qualname.partition(".<locals>")[0]))
    return frozenset(found)


def entry(seed: int) -> Entry | None:
    """The program of a seed; None if it fails without any mutant."""
    from tests.generator.tasks import task

    made = task(seed)
    expected = tuple(interpret(made.program, made.arguments))
    messages: list[str] = []

    def check(variant: Variant) -> None:
        messages.append(check_variant(made, variant, expected))

    called = [called_by(lambda v=variant: check(v)) for variant in variants(seed)]
    called.append(called_by(lambda: emit(made.program)))
    if any(messages):
        return None
    return Entry(made, expected, emit(made.program).source, tuple(called))


def corpus(programs: int, jobs: int, file: Path | None) -> list[Entry]:
    """Programs, from the file as far as it has them."""
    found: list[Entry | None] = []
    if file is not None and file.exists():
        found = pickle.loads(file.read_bytes())
    if len(found) < programs:
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
            found += pool.map(entry, range(len(found), programs))
        if file is not None:
            file.write_bytes(pickle.dumps(found))
    return [e for e in found[:programs] if e is not None]


# ---- the hunt ----------------------------------------------------------------------------------------------


def notice(mutant: Mutant, programs: Sequence[Entry]) -> Iterator[str]:
    """What every program in turn says of an installed mutant."""
    builds = 0
    for each in programs:
        *ways, text = (mutant.function in called for called in each.called)
        if not mutant.of_text:
            chosen = (v for v, way in zip(variants(each.task.seed), ways, strict=True) if way)
            messages = (check_variant(each.task, variant, each.expected) for variant in chosen)
            yield next((m for m in messages if m), "")
        elif text and builds < MOST_BUILDS:
            message, built = _text_notices(each)
            builds += built
            yield message
        else:
            yield ""


def _text_notices(each: Entry) -> tuple[str, bool]:
    """What the program's text does now, if it is another one; and whether it was built."""
    try:
        emitted = emit(each.task.program)
        if emitted.source == each.source:
            return "", False
        results = run_artifact(build(emitted), each.task.program, each.task.arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}", True
    unbroken = build(replace(emitted, source=each.source))
    same = run_artifact(unbroken, each.task.program, each.task.arguments)
    differs = any(x.tobytes() != y.tobytes() for x, y in zip(results, same, strict=True))
    return ("other results" if differs else ""), True


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of a mutant: the message of the program that noticed, or ""; and how many programs had run by then."""

    mutant: Mutant
    message: str
    programs: int


def hunt(mutant: Mutant, programs: Sequence[Entry]) -> Verdict:
    """Runs the programs under a mutant in a process of its own, until one notices."""
    here, there = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_hunted, args=(there, mutant, programs))
    process.start()
    there.close()
    count, message = 0, ""
    try:
        while not message:
            message = here.recv()
            count += 1
    except EOFError:
        process.join()
        if process.exitcode:
            count, message = count + 1, f"the process died with exit code {process.exitcode}"
    process.join()
    return Verdict(mutant, message, count)


def _hunted(connection: Connection, mutant: Mutant, programs: Sequence[Entry]) -> None:
    install(mutant)
    messages = notice(mutant, programs)
    while True:
        signal.alarm(SECONDS)  # ends the process
        message = next(messages, None)
        if message is None:
            break
        connection.send(message)
        if message:
            break
    os._exit(0)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--mutants", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--programs", type=int, default=2000, help="at most, for a mutant")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--corpus", type=Path, help="a file to keep the programs in")
    parser.add_argument("--match", default="", help="only mutants whose line has this text")
    chosen = parser.parse_args(arguments)
    possible = [mutant for mutant in mutants() if chosen.match in str(mutant)]
    drawn = random.Random(chosen.seed).sample(possible, min(chosen.mutants, len(possible)))
    programs = corpus(chosen.programs, chosen.jobs, chosen.corpus)
    found = 0
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for verdict in pool.map(lambda mutant: hunt(mutant, programs), drawn):
            said = verdict.message.partition("\n")[0][:100]
            outcome = f"found by program {verdict.programs}: {said}"
            if not verdict.message:
                called = sum(any(verdict.mutant.function in c for c in e.called) for e in programs)
                outcome = f"survives; {called} programs call the function"
            found += bool(verdict.message)
            print(f"{verdict.mutant}: {outcome}", flush=True)
    print(f"{found} of {len(drawn)} mutants found within {len(programs)} programs")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
