"""Messages of hand-made programs: neither JAX nor a compiler is needed."""

from __future__ import annotations

import numpy as np
import pytest

from jax_cocktail.errors import UnsupportedError
from jax_cocktail.primitives import messages, translate, why_unsupported
from jax_cocktail.primitives.equation import Equation, Literal, Program, Variable
from jax_cocktail.primitives.messages import logged, silent
from jax_cocktail.primitives.side_exit import leaving_if_full, with_exits
from jax_cocktail.utask.types import Source
from tests.oracle.interpreter.run import run

HERE = Source("model.py", 7, "step")


def var(dtype: str = "int32", *shape: int) -> Variable:
    return Variable(dtype, shape)


def number(value: int) -> Literal:
    return Literal(np.asarray(value, np.int32))


def message(*operands: Variable | Literal) -> Equation:
    params = {"deliver": lambda *values: None, "ordered": False, "partitioned": False}
    return Equation("debug_print", operands, (), params, HERE, effects=True)


def counting(stop: Variable, start: Variable, in_test: bool, in_body: bool) -> Equation:
    """while x < stop: x += 1, with a message about x in the condition and in the body."""
    end, x, more, y, z = var(), var(), var("bool"), var(), var()
    test = Program((end, y), (*[message(y)] * in_test, Equation("lt", (y, end), (more,))), (more,))
    body = Program((x,), (*[message(x, number(-1))] * in_body, Equation("add", (x, number(1)), (z,))), (z,))
    params = {"cond_jaxpr": test, "body_jaxpr": body, "cond_nconsts": 1, "body_nconsts": 0}
    return Equation("while", (stop, start), (var(),), params, HERE, effects=True)


def told(*equations: Equation, inputs: tuple[Variable, ...], operands: list[np.ndarray]):
    """The results, and the operands of every message in order."""
    plain = tuple(map(silent, equations))
    assert all(why_unsupported(each) is None for each in plain)
    program, log = logged(Program(inputs, plain, plain[-1].outputs))
    *results, used, words = run(translate(program, "p"), operands)
    found = [[value.tolist() for value in values] for _, values in log.read(words[: int(used)])]
    return [x.tolist() for x in results], found, log


@pytest.mark.parametrize("in_test, in_body", [(True, False), (False, True), (True, True)])
def test_a_while(in_test, in_body):
    stop, start = var(), var()
    first = counting(stop, start, in_test, in_body)
    second = counting(stop, start, False, True)
    operands = [np.asarray(value, np.int32) for value in (3, 1)]
    results, found, log = told(first, second, inputs=(stop, start), operands=operands)
    expected = [[*[[1]] * in_test, *[[1, -1]] * in_body], [*[[2]] * in_test, *[[2, -1]] * in_body]]
    assert found == [*sum(expected, []), *[[3]] * in_test, [1, -1], [2, -1]]
    assert results == [3] and log.overflows and len(log.messages) == 1 + in_test + in_body
    assert log.words == 2 * messages.LOG_WORDS


def repeated(length: int, *inside: Equation) -> Equation:
    """A counted loop without results."""
    body = Program((), inside, ())
    params = {"jaxpr": body, "num_consts": 0, "num_carry": 0, "length": length, "reverse": False}
    return Equation("scan", (), (), params, HERE, effects=True)


def test_a_counted_loop_needs_no_more_than_it_can_fill():
    inner = repeated(3, message(number(5), Literal(np.asarray([1, 2], np.int64))))
    results, found, log = told(repeated(2, inner, message()), inputs=(), operands=[])
    assert results == [] and found == [*[[5, [1, 2]]] * 3, [], *[[5, [1, 2]]] * 3, []]
    assert log.words == 2 * (3 * (1 + 1 + 4) + 1) and not log.overflows


@pytest.mark.parametrize("stop, full", [(4, False), (5, True)])
def test_a_full_log(stop, full, monkeypatch):
    monkeypatch.setattr(messages, "LOG_WORDS", 4 * 3)
    end, start = var(), var()
    loop = silent(counting(end, start, False, True))
    program, log = logged(Program((end, start), (loop,), loop.outputs))
    program, leaving = leaving_if_full(program, log, has_flag=False)
    operands = [np.asarray(value, np.int32) for value in (stop, 0)]
    result, flag, used, words = run(translate(program, "p"), operands)
    assert (int(result), bool(flag)) == (stop, full) and leaving.full and "model.py:7" in leaving.where
    assert len(words) == 12 and int(used) == (13 if full else 12)


def test_what_cannot_be_kept(monkeypatch):
    key = Variable("key<fry>", (), "fry")
    assert silent(repeated(2, message(key))).effects
    with pytest.raises(UnsupportedError, match=r"'debug_print' has side effects"):
        with_exits(repeated(2, message(key)))
    monkeypatch.setattr(messages, "LOG_WORDS", 5)
    with pytest.raises(UnsupportedError, match="fill more than"):
        silent(repeated(6, message()))
    assert not silent(repeated(5, message())).effects


def test_a_condition_per_batch_element_is_left():
    x, more, y, z = (var("int32", 2), var("bool", 2), var("int32", 2), var("int32", 2))
    test = Program((y,), (message(y), Equation("lt", (y, y), (more,))), (more,))
    body = Program((z,), (message(z),), (z,))
    params = {"cond_jaxpr": test, "body_jaxpr": body, "cond_nconsts": 0, "body_nconsts": 0}
    loop = silent(Equation("while", (x,), (var("int32", 2),), params, HERE, effects=True))
    assert loop.effects and not loop.params["body_jaxpr"].equations[0].effects


def test_without_messages_nothing_changes():
    x, y = var(), var()
    program = Program((x,), (Equation("add", (x, x), (y,)),), (y,))
    assert logged(program) == (program, None)


def test_a_scan_without_iterations():
    """A loop inside of it that could print without end does not."""
    stop, start, x = var(), var(), var()
    body = Program((stop, x), (loop := counting(stop, x, False, True),), loop.outputs)
    params = {"jaxpr": body, "num_consts": 1, "num_carry": 1, "length": 0, "reverse": False}
    scan = Equation("scan", (stop, start), (var(),), params, HERE, effects=True)
    results, found, log = told(
        scan,
        counting(stop, start, False, True),
        inputs=(stop, start),
        operands=[np.asarray(value, np.int32) for value in (3, 1)],
    )
    assert found == [[1, -1], [2, -1]] and results == [3] and log.overflows
