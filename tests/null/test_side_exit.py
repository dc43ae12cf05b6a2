"""Side exits of hand-made programs: neither JAX nor a compiler is needed."""

from __future__ import annotations

import numpy as np
import pytest

from jax_cocktail.errors import UnsupportedError
from jax_cocktail.primitives import translate
from jax_cocktail.primitives.equation import Equation, Literal, Program, Variable
from jax_cocktail.primitives.side_exit import threaded, with_exits
from jax_cocktail.utask.types import Source
from tests.oracle.interpreter.run import run

HERE = Source("model.py", 7, "step")
ONE = Literal(np.float32(1))


def var(dtype: str = "float32", *shape: int) -> Variable:
    return Variable(dtype, shape)


def side(primitive: str, effects: bool = False) -> Program:
    """x -> x + 1, or an operator without a rule."""
    x, y = var(), var()
    inputs = (x, ONE) if primitive == "add" else (x,)
    return Program((x,), (Equation(primitive, inputs, (y,), source=HERE, effects=effects),), (y,))


def branch(x: Variable, limit: Variable, *sides: Program) -> tuple[Equation, ...]:
    above, index, y = var("bool"), var("int32"), var()
    return (
        Equation("gt", (x, limit), (above,)),
        Equation("convert_element_type", (above,), (index,)),
        Equation("cond", (index, x), (y,), {"branches": sides}, HERE, effects=True),
    )


def loop(stop: Variable, limit: Variable, start: Variable, *sides: Program) -> Equation:
    """while x < stop: x = a branch on x > limit."""
    end, bound, x, more, y = var(), var(), var(), var("bool"), var()
    condition = Program((end, y), (Equation("lt", (y, end), (more,)),), (more,))
    equations = branch(x, bound, *sides)
    body = Program((bound, x), equations, equations[-1].outputs)
    params = {"cond_jaxpr": condition, "body_jaxpr": body, "cond_nconsts": 1, "body_nconsts": 1}
    return Equation("while", (stop, limit, start), (var(),), params, HERE, effects=True)


def results(limit: float, *sides: Program) -> tuple[float, bool]:
    """The result of two loops, one after the other, and the exit flag."""
    stop, bound, start = var(), var(), var()
    first, exits = with_exits(loop(stop, bound, start, *sides))
    second, none = with_exits(loop(stop, bound, first.outputs[0], side("add"), side("add")))
    assert not none
    assert [(item.where, item.check) for item in exits] == [("model.py:7 (step)", False)]
    program = threaded(Program((stop, bound, start), (first, second), second.outputs))
    operands = [np.asarray(number, np.float32) for number in (5, limit, 0)]
    value, flag = run(translate(program, "p"), operands)
    return float(value), bool(flag)


def test_a_loop_that_leaves_ends() -> None:
    """The result of the exit is zero: with it the loop would begin again for ever."""
    assert results(9, side("add"), side("fft")) == (5, False)
    assert results(2, side("add"), side("fft")) == (0, True)


def test_a_side_effect_leaves() -> None:
    assert results(2, side("add"), side("add", effects=True))[1]


def test_what_always_leaves_is_refused() -> None:
    numbers = var(), var(), var()
    with pytest.raises(UnsupportedError, match="fft"):
        with_exits(loop(*numbers, side("fft"), side("fft")))
    with pytest.raises(UnsupportedError, match="fft"):
        with_exits(branch(var(), var(), side("add"), side("fft"))[-1])


def test_independent_iterations_stay_independent() -> None:
    xs, limit, x, bound = var("float32", 4), var(), var(), var()
    equations = branch(x, bound, side("add"), side("fft"))
    body = Program((bound, x), equations, equations[-1].outputs)
    params = {"jaxpr": body, "num_consts": 1, "num_carry": 0, "length": 4, "reverse": False}
    scan, _ = with_exits(Equation("scan", (limit, xs), (var("float32", 4),), params, HERE))
    program = threaded(Program((xs, limit), (scan,), scan.outputs))
    assert program.equations[0].params["num_carry"] == 0
    for bound_now, left in ((9, False), (2.5, True), (3.5, False)):
        values, flag = run(translate(program, "p"), [np.arange(4, dtype=np.float32), np.float32(bound_now)])
        assert bool(flag) == left
        assert left or list(values) == [1, 2, 3, 4]
