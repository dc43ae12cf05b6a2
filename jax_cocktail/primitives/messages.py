"""Messages: the prints and debug callbacks inside of loops and branches. They are made after the call.

`silent` takes their side effects away, so that what contains them can be translated. `logged` then gives the
program two more results: a *log*, which is an array of words, and the number of words in use. Each message
that the program comes to appends a record, its number and its operands, and `Log.read` reads them in order.
The log is carried by all control flow that has a message inside, and is updated in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jax_cocktail.errors import UnsupportedError
from jax_cocktail.primitives.carried import carried
from jax_cocktail.primitives.control import CONTROL_FLOW
from jax_cocktail.primitives.equation import Atom, Equation, Literal, Program, Variable, primitives_in
from jax_cocktail.primitives.rule import physical_type, rule
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.types import ITEM_SIZE, Source, TensorType, Value

MESSAGES = frozenset({"debug_print", "debug_callback"})
LOG_MIB = 1  # an outermost loop that may fill more than this leaves by a side exit if it does
LOG_WORDS = LOG_MIB << 18  # of 4 bytes
_LOG = "message_log"
_WORD = "uint32"
_BITS = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}  # unsigned types by their size in bytes

State = tuple[Atom, Atom]  # the log, and the number of its words in use


@dataclass(frozen=True, eq=False, slots=True)
class Message:
    """A place in a program that prints or calls Python.

    Attributes:
      what: its primitive.
      source: the user's line.
      operands: the types of its operands.
      deliver: makes the message, given the operands as arrays.
      ordered: it must follow other ordered side effects.
      partitioned: under `shard_map`, JAX's parameter of this name.
    """

    what: str
    source: Source
    operands: tuple[TensorType, ...]
    deliver: Callable[..., Any]
    ordered: bool
    partitioned: bool

    def __str__(self) -> str:
        return f"{self.what} at {self.source}" if self.source.file else self.what

    @property
    def words(self) -> int:
        """The length of a record."""
        return 1 + sum(map(_words, self.operands))


@dataclass(frozen=True, eq=False, slots=True)
class Log:
    """The log of a program: messages by the first word of their records, and the length of the log in words.
    A program with `overflows` may come to more than that; then the words in use are too many."""

    messages: tuple[Message, ...]
    words: int
    overflows: bool

    @property
    def ordered(self) -> bool:
        return any(message.ordered for message in self.messages)

    @property
    def partitioned(self) -> bool:
        return any(message.partitioned for message in self.messages)

    def read(self, words: np.ndarray[Any, Any]) -> Iterator[tuple[Message, list[np.ndarray[Any, Any]]]]:
        """The messages in order, with their operands. `words`: those in use, of type uint32."""
        at = 0
        while at < len(words):
            message = self.messages[words[at]]
            rest, at = words[at + 1 : at + message.words], at + message.words
            values = []
            for each in message.operands:
                values.append(_value(rest[: _words(each)], each))
                rest = rest[_words(each) :]
            yield message, values


def _words(operand: TensorType) -> int:
    return operand.size * (2 if ITEM_SIZE[operand.dtype] == 8 else 1)


def _value(words: np.ndarray[Any, Any], type_: TensorType) -> np.ndarray[Any, Any]:
    """The array in a record. It has a word for each element, or the low words and then the high ones."""
    if ITEM_SIZE[type_.dtype] == 8:
        low, high = np.split(words.astype(np.uint64), 2)
        bits: np.ndarray[Any, Any] = low | high << np.uint64(32)
    else:
        bits = words.astype(_BITS[ITEM_SIZE[type_.dtype]])
    return bits.view(np.dtype(type_.dtype)).reshape(type_.shape)


# ---- which messages are logged -----------------------------------------------------------------------------


@rule(*MESSAGES)
def _message(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Sequence[Value]:
    return ()  # what it becomes is up to `logged`


@rule(_LOG)
def _log(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    """Not initialised: nobody reads words that are not in use."""
    result = physical_type(equation.outputs[0])
    return builder.emit("empty", (), result.dtype, result.shape)


def silent(equation: Equation) -> Equation:
    """A loop or branch without the side effects of the messages inside of it that can be logged.

    Raises:
      UnsupportedError: its messages fill more than a log in any case.
    """
    result = _silent(equation)
    if _bounds(result)[0] > LOG_WORDS:
        raise UnsupportedError(
            f"its prints and debug callbacks fill more than the {LOG_MIB} MiB that are kept for one loop;"
            " print less often"
        )
    return result


def _silent(equation: Equation) -> Equation:
    if equation.primitive not in CONTROL_FLOW or not equation.effects:
        return equation
    params = dict(equation.params)
    if equation.primitive == "cond":
        params["branches"] = tuple(map(_silent_inside, params["branches"]))
    elif equation.primitive == "scan":
        params["jaxpr"] = _silent_inside(params["jaxpr"])
    else:
        params["body_jaxpr"] = _silent_inside(params["body_jaxpr"])
        if not params["cond_jaxpr"].outputs[0].shape:  # JAX computes a condition per batch element twice
            params["cond_jaxpr"] = _silent_inside(params["cond_jaxpr"])
    inside = (inner for program in _programs(params) for inner in program.equations)
    return replace(equation, params=params, effects=any(inner.effects for inner in inside))


def _silent_inside(program: Program) -> Program:
    equations = (
        replace(inner, effects=False) if _can_be_logged(inner) else _silent(inner)
        for inner in program.equations
    )
    return replace(program, equations=tuple(equations))


def _programs(params: Mapping[str, Any]) -> Iterator[Program]:
    for value in params.values():
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, Program):
                yield item


def _can_be_logged(equation: Equation) -> bool:
    if equation.primitive not in MESSAGES:
        return False
    plain = all(atom.dtype in ITEM_SIZE and not atom.key_impl for atom in equation.inputs)
    return plain and _message_of(equation).words <= LOG_WORDS


def _message_of(equation: Equation) -> Message:
    """`deliver`, `ordered`, `partitioned`: see `primitives.equation`."""
    facts = (equation.params[name] for name in ("deliver", "ordered", "partitioned"))
    return Message(equation.primitive, equation.source, tuple(map(physical_type, equation.inputs)), *facts)


def _bounds(equation: Equation) -> tuple[float, float]:
    """The least and the largest number of words that an equation logs."""
    params = equation.params
    if equation.primitive in MESSAGES:
        words = 0 if equation.effects else _message_of(equation).words
        return words, words
    if equation.primitive == "cond":
        least, most = zip(*map(_bounds_inside, params["branches"]), strict=True)
        return min(least), max(most)
    if equation.primitive == "scan":
        low, high = _bounds_inside(params["jaxpr"])
        length = params["length"]
        return length * low, length * high if length and high else 0
    if equation.primitive == "while":
        test, body = _bounds_inside(params["cond_jaxpr"]), _bounds_inside(params["body_jaxpr"])
        return test[0], math.inf if test[1] or body[1] else 0
    return 0, 0


def _bounds_inside(program: Program) -> tuple[float, float]:
    bounds = [_bounds(equation) for equation in program.equations]
    return sum(low for low, _ in bounds), sum(high for _, high in bounds)


# ---- the log -----------------------------------------------------------------------------------------------


def logged(program: Program) -> tuple[Program, Log | None]:
    """The program with the number of words in use and the log as its last results, if it has messages."""
    bounds = [_bounds(equation)[1] for equation in program.equations]
    if not any(bounds):
        return program, None
    words = int(sum(min(most, LOG_WORDS) for most in bounds))
    writer = _Writer(words, overflows=sum(bounds) > words)
    log = Variable(_WORD, (words,))
    equations, (last, used) = writer.thread(program.equations, (log, _int32(0)))
    outputs = (*program.outputs, used, last)
    full = Log(tuple(writer.messages.values()), words, writer.overflows)
    return Program(program.inputs, (Equation(_LOG, (), (log,)), *equations), outputs), full


class _Writer:
    """Threads a log of so many words through equations, and numbers the messages that write to it."""

    def __init__(self, words: int, overflows: bool) -> None:
        self.words, self.overflows = words, overflows
        self.messages: dict[int, Message] = {}  # by the identity of the parameters, which copies share

    def thread(self, equations: Sequence[Equation], state: State) -> tuple[tuple[Equation, ...], State]:
        """The equations, given the log before them, and the log after them."""
        result: list[Equation] = []
        for equation in equations:
            if equation.primitive in MESSAGES:
                more, state = self._written(equation, state)
                result += more
            elif equation.primitive in CONTROL_FLOW and _has_message([equation]):
                *before, loop = _tested_in_the_body(equation)
                start, state = self.thread(before, state)
                loop, (log, used) = carried(loop, state, self._with_log, self._without_log)
                state = log, used
                result += (*start, loop)
            else:
                result.append(equation)
        return tuple(result), state

    def _with_log(self, program: Program, at: int) -> Program:
        """The program with the log as its inputs from position `at` on, and as its first results."""
        before = Variable(_WORD, (self.words,)), Variable("int32", ())
        equations, after = self.thread(program.equations, before)
        inputs = (*program.inputs[:at], *before, *program.inputs[at:])
        return Program(inputs, equations, (*after, *program.outputs))

    def _without_log(self, condition: Program, at: int) -> Program:
        """A condition that ignores the log."""
        ignored = Variable(_WORD, (self.words,)), Variable("int32", ())
        return replace(condition, inputs=(*condition.inputs[:at], *ignored, *condition.inputs[at:]))

    def _written(self, equation: Equation, state: State) -> tuple[list[Equation], State]:
        """The equations that append a record, and the log after them."""
        key = id(equation.params)
        message = self.messages.setdefault(key, _message_of(equation))
        number = list(self.messages).index(key)
        made, (log, used) = _Made(equation.source), state
        at, offset = used, 0
        for words in (
            Literal(np.asarray(number, np.uint32)),
            *(w for x in equation.inputs for w in _split(made, x)),
        ):
            count = math.prod(words.shape)
            if count:
                log = made.add("dynamic_update_slice", (log, made.flat(words), at), _WORD, (self.words,))
                offset += count
                at = made.add("add", (used, _int32(offset)), "int32")
        if self.overflows:
            at = made.add("min", (at, _int32(self.words + 1)), "int32")
        assert offset == message.words
        return made.equations, (log, at)


def _int32(number: int) -> Literal:
    return Literal(np.asarray(number, np.int32))


class _Made:
    """Equations that are made one by one, for one line of the user's."""

    def __init__(self, source: Source) -> None:
        self.equations: list[Equation] = []
        self._source = source

    def add(
        self, primitive: str, inputs: tuple[Atom, ...], dtype: str, shape: tuple[int, ...] = (), **params: Any
    ) -> Variable:
        """The result of a further equation."""
        output = Variable(dtype, shape)
        self.equations.append(Equation(primitive, inputs, (output,), params, self._source))
        return output

    def flat(self, words: Atom) -> Variable:
        return self.add("reshape", (words,), words.dtype, (math.prod(words.shape),))


def _split(made: _Made, operand: Atom) -> tuple[Atom, ...]:
    """The words of an operand: one array, or two if its elements have 8 bytes."""
    bits = _BITS[ITEM_SIZE[operand.dtype]]
    if operand.dtype not in ("bool", bits):
        operand = made.add("bitcast_convert_type", (operand,), bits, operand.shape)
    low = operand
    if operand.dtype != _WORD:
        low = made.add("convert_element_type", (operand,), _WORD, operand.shape)
    if bits != "uint64":
        return (low,)
    width = Literal(np.full(operand.shape, 32, np.uint64))
    high = made.add("shift_right_logical", (operand, width), bits, operand.shape)
    return low, made.add("convert_element_type", (high,), _WORD, operand.shape)


def _has_message(equations: Sequence[Equation]) -> bool:
    return not MESSAGES.isdisjoint(primitives_in(equations))


def _tested_in_the_body(loop: Equation) -> tuple[Equation, ...]:
    """A `while` that computes its condition before the loop and at the end of each iteration, if it has
    messages; anything else unchanged. The predicate is its first result then."""
    if loop.primitive != "while" or not _has_message(loop.params["cond_jaxpr"].equations):
        return (loop,)
    first, second = loop.params["cond_nconsts"], loop.params["body_nconsts"]
    test, body = loop.params["cond_jaxpr"], loop.params["body_jaxpr"]
    start, (active,) = _copied(test, (*loop.inputs[:first], *loop.inputs[first + second :]))
    constants, before = tuple(map(_like, test.inputs[:first])), Variable("bool", ())
    again, (after,) = _copied(test, (*constants, *body.outputs))
    inputs = (*constants, *body.inputs[:second], before, *body.inputs[second:])
    predicate = Variable("bool", ())
    params = {
        "cond_jaxpr": Program((predicate, *map(_like, test.inputs[first:])), (), (predicate,)),
        "body_jaxpr": Program(inputs, (*body.equations, *again), (after, *body.outputs)),
        "cond_nconsts": 0,
        "body_nconsts": first + second,
    }
    operands = (*loop.inputs[: first + second], active, *loop.inputs[first + second :])
    outputs = (Variable("bool", ()), *loop.outputs)
    return (*start, replace(loop, inputs=operands, outputs=outputs, params=params))


def _like(variable: Variable) -> Variable:
    return Variable(variable.dtype, variable.shape, variable.key_impl)


def _copied(program: Program, operands: Sequence[Atom]) -> tuple[list[Equation], tuple[Atom, ...]]:
    """The equations of a program on these operands, with variables of their own, and its results."""
    names: dict[Atom, Atom] = dict(zip(program.inputs, operands, strict=True))
    equations = []
    for equation in program.equations:
        outputs = tuple(map(_like, equation.outputs))
        inputs = tuple(names.get(atom, atom) for atom in equation.inputs)
        names |= zip(equation.outputs, outputs, strict=True)
        equations.append(replace(equation, inputs=inputs, outputs=outputs))
    return equations, tuple(names.get(atom, atom) for atom in program.outputs)
