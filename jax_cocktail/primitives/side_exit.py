"""Side exits: the side of a branch that cannot be translated ends the program, and stock XLA runs it again.

`with_exits` replaces such a side by one equation `side_exit`, which gives zeros. `threaded` then gives the
program one more result, the *exit flag*: true if the program came to a side exit. What it computes after that
is never used, and it always ends: with the flag set, no loop with an unknown trip count begins an iteration,
and no check fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from jax_cocktail.errors import UnsupportedError
from jax_cocktail.primitives.carried import carried
from jax_cocktail.primitives.control import CONTROL_FLOW
from jax_cocktail.primitives.equation import Atom, Equation, Literal, Program, Variable, primitives_in
from jax_cocktail.primitives.messages import LOG_MIB, Log, silent
from jax_cocktail.primitives.rule import physical_type, rule
from jax_cocktail.primitives.translate import why_unsupported
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.types import Value

SIDE_EXIT = "side_exit"
ALONE = "it has no loop, and one of its sides cannot be compiled"  # this reason causes no warning
_FALSE, _TRUE = Literal(np.asarray(False)), Literal(np.asarray(True))
_CHECK = "failure"


@dataclass(frozen=True, slots=True)
class Exit:
    """A side exit: the reason for it, and the user's source line. `check`: it calls Python without a side
    effect, as checks do that raise an error. `full`: the program leaves if its log of messages is full."""

    reason: str
    where: str
    check: bool = False
    full: bool = False


@rule(SIDE_EXIT)
def _zeros(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Sequence[Value]:
    types = map(physical_type, equation.outputs)
    return [builder.full(np.asarray(0), t.dtype, t.shape) for t in types]


def with_exits(equation: Equation) -> tuple[Equation, tuple[Exit, ...]]:
    """Replaces the sides of branches that cannot be translated by side exits. Messages can be translated.

    Raises:
      UnsupportedError: the equation cannot be translated even so. What cannot be translated stands outside of
        all branches, or in every side of one, or the equation has no loop that is worth it.
    """
    equation = silent(equation)
    if why_unsupported(equation) is None:
        return equation, ()
    result, exits = _with_exits(equation)
    reason = why_unsupported(result)
    if reason is not None:
        raise reason
    if exits and not {"while", "scan"} & set(primitives_in([result])):
        raise UnsupportedError(f"{ALONE}: {exits[0].reason}", exits[0].where)
    return result, exits


def _with_exits(equation: Equation) -> tuple[Equation, tuple[Exit, ...]]:
    if equation.primitive not in CONTROL_FLOW:
        reason = why_unsupported(equation)
        if reason is not None:
            raise reason
        return equation, ()
    params = dict(equation.params)
    if equation.primitive == "cond":
        params["branches"], exits = _sides(equation)
    else:
        name = "jaxpr" if equation.primitive == "scan" else "body_jaxpr"
        params[name], exits = _inside(params[name])
    if equation.primitive == "while":
        _, tests = _inside(params["cond_jaxpr"])
        if tests:  # a condition has no result but the predicate
            raise UnsupportedError(tests[0].reason, tests[0].where)
    return replace(equation, params=params, effects=False), exits


def _inside(program: Program) -> tuple[Program, tuple[Exit, ...]]:
    pairs = [_with_exits(equation) for equation in program.equations]
    exits = tuple(item for _, found in pairs for item in found)
    return replace(program, equations=tuple(equation for equation, _ in pairs)), exits


def _sides(equation: Equation) -> tuple[tuple[Program, ...], tuple[Exit, ...]]:
    sides: list[Program] = []
    exits: list[Exit] = []
    refused: list[UnsupportedError] = []
    for side in equation.params["branches"]:
        try:
            done, found = _inside(side)
        except UnsupportedError as error:
            refused.append(error)
            effects = any(inner.effects for inner in side.equations)
            check = not effects and "pure_callback" in primitives_in(side.equations)
            done, found = _leaving(side, equation), (Exit(error.reason, error.where, check),)
        sides.append(done)
        exits += found
    if len(refused) == len(sides):
        raise refused[0]
    return tuple(sides), tuple(exits)


def _leaving(side: Program, equation: Equation) -> Program:
    outputs = tuple(Variable(v.dtype, v.shape, v.key_impl) for v in equation.outputs)
    return Program(side.inputs, (Equation(SIDE_EXIT, (), outputs, source=equation.source),), outputs)


def threaded(program: Program) -> Program:
    """The program with the exit flag as its last result."""
    equations, flag = _thread(program.equations, _FALSE)
    return Program(program.inputs, equations, (*program.outputs, flag))


def leaving_if_full(program: Program, log: Log, has_flag: bool) -> tuple[Program, Exit]:
    """A program with a log, which leaves if its messages do not fit: all of them are made in the second run.
    `has_flag`: it has the exit flag already, before the words in use and the log."""
    *results, used, words = program.outputs
    full = Variable("bool", ())
    more = [Equation("gt", (used, Literal(np.asarray(log.words, np.int32))), (full,))]
    if has_flag:
        left, full = results.pop(), Variable("bool", ())
        more.append(Equation("or", (left, more[0].outputs[0]), (full,)))
    reason = f"its prints and debug callbacks may fill more than {LOG_MIB} MiB"
    outputs = (*results, full, used, words)
    leaving = Exit(reason, str(log.messages[0].source), full=True)
    return Program(program.inputs, (*program.equations, *more), outputs), leaving


def _thread(equations: Sequence[Equation], flag: Atom) -> tuple[tuple[Equation, ...], Atom]:
    """The equations, given the exit flag before them, and the exit flag after them."""
    result: list[Equation] = []
    for equation in equations:
        if equation.primitive == _CHECK and flag is not _FALSE:
            result += _masked(equation, flag)
        elif _concerned(equation, flag):
            more, flag = _carried(equation, flag)
            result += more
        else:
            result.append(equation)
            flag = _TRUE if equation.primitive == SIDE_EXIT else flag
    return tuple(result), flag


def _concerned(equation: Equation, flag: Atom) -> bool:
    if equation.primitive not in CONTROL_FLOW:
        return False
    inside = set(primitives_in([equation]))
    return SIDE_EXIT in inside or (flag is not _FALSE and bool({"while", _CHECK} & inside))


def _masked(check: Equation, flag: Atom) -> list[Equation]:
    """A check that succeeds if the flag is set."""
    (status,) = check.inputs
    fine, masked = (Variable(status.dtype, status.shape) for _ in range(2))
    return [
        Equation(SIDE_EXIT, (), (fine,), source=check.source),
        Equation("select_n", (flag, status, fine), (masked,), source=check.source),
        replace(check, inputs=(masked,)),
    ]


def _carried(equation: Equation, flag: Atom) -> tuple[list[Equation], Atom]:
    """Control flow with the exit flag as a further operand and as its first result."""
    if equation.primitive != "scan" or equation.params["num_carry"]:
        result, (after,) = carried(equation, (flag,), _with_flag, _stopping)
        return [result], after
    # the iterations are independent and stay so
    params, at = dict(equation.params), equation.params["num_consts"]
    params["jaxpr"] = _with_flag(params["jaxpr"], at)
    params["num_consts"] += 1
    inputs = (*equation.inputs[:at], flag, *equation.inputs[at:])
    flags, found, after = Variable("bool", (params["length"],)), Variable("bool", ()), Variable("bool", ())
    return [
        replace(equation, inputs=inputs, outputs=(flags, *equation.outputs), params=params),
        Equation("reduce_or", (flags,), (found,), {"axes": (0,)}, equation.source),
        Equation("or", (found, flag), (after,), source=equation.source),
    ], after


def _with_flag(program: Program, at: int) -> Program:
    """The program with the exit flag as its input at position `at` and as its first result."""
    flag = Variable("bool", ())
    equations, after = _thread(program.equations, flag)
    return Program((*program.inputs[:at], flag, *program.inputs[at:]), equations, (after, *program.outputs))


def _stopping(condition: Program, at: int) -> Program:
    """The condition of a loop that also stops if the exit flag is set."""
    program = _with_flag(condition, at)
    flag, (_, predicate) = program.inputs[at], program.outputs
    stay, both = Variable("bool", ()), Variable("bool", predicate.shape)
    more = Equation("not", (flag,), (stay,)), Equation("and", (predicate, stay), (both,))
    return Program(program.inputs, (*program.equations, *more), (both,))
