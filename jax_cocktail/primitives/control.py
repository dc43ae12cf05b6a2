"""Control flow: while, scan and cond become nested uTasks (COCKTAILER, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence

from jax_cocktail.errors import UnsupportedError
from jax_cocktail.primitives.builder import Builder
from jax_cocktail.primitives.equation import Equation, Program
from jax_cocktail.primitives.reduction import reduce_value
from jax_cocktail.primitives.rule import binary, physical_type, rule, select, spread
from jax_cocktail.primitives.translate import inline
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region
from jax_cocktail.utask.types import Value

CONTROL_FLOW = frozenset({"while", "scan", "cond"})


def _like(builder: Builder, values: Sequence[Value]) -> tuple[Value, ...]:
    return tuple(builder.value(v.type.dtype, v.type.shape) for v in values)


@rule("while")
def while_(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Sequence[Value]:
    params = equation.params
    first, second = int(params["cond_nconsts"]), int(params["body_nconsts"])
    condition_constants, rest = inputs[:first], inputs[first:]
    body_constants, initial = rest[:second], rest[second:]
    condition: Program = params["cond_jaxpr"]
    test = _like(builder, initial)
    with builder.region() as test_body:
        (predicate,) = inline(builder, condition, (*condition_constants, *test))
        # vmap makes a predicate per batch element: the loop runs until all are false
        any_lane = reduce_value(builder, predicate, range(predicate.type.rank), "or")
    carried = _like(builder, initial)
    with builder.region() as body:
        following = inline(builder, params["body_jaxpr"], (*body_constants, *carried))
        if predicate.type.rank:
            (active,) = inline(builder, condition, (*condition_constants, *carried))
            following = [
                select(builder, spread(builder, active, new.type.shape), new, old)
                for new, old in zip(following, carried, strict=True)
            ]
    outputs = _like(builder, initial)
    builder.append(
        LoopUTask(
            initial=initial,
            outputs=outputs,
            body=Region(carried, tuple(body), tuple(following)),
            condition=Region(test, tuple(test_body), (any_lane,)),
            source=equation.source,
        )
    )
    return outputs


@rule("scan")
def scan(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Sequence[Value]:
    params = equation.params
    num_consts, num_carry = int(params["num_consts"]), int(params["num_carry"])
    length = int(params["length"])
    constants, rest = inputs[:num_consts], inputs[num_consts:]
    start, xs = rest[:num_carry], rest[num_carry:]
    stacked = [physical_type(output) for output in equation.outputs[num_carry:]]
    initial = (*start, *(builder.emit("empty", (), t.dtype, t.shape) for t in stacked))
    if length == 0:
        return initial
    index = builder.value("int64")
    carried = _like(builder, initial)
    with builder.region() as body:
        position = _position(builder, index, length, bool(params["reverse"]))
        zero = builder.constant(0, "int64")
        slices = [_read_step(builder, x, position, zero) for x in xs]
        results = inline(builder, params["jaxpr"], (*constants, *carried[:num_carry], *slices))
        written = [
            _write_step(builder, whole, y, position, zero)
            for whole, y in zip(carried[num_carry:], results[num_carry:], strict=True)
        ]
    outputs = _like(builder, initial)
    region = Region((index, *carried), tuple(body), (*results[:num_carry], *written))
    builder.append(
        LoopUTask(initial=initial, outputs=outputs, body=region, trip_count=length, source=equation.source)
    )
    return outputs


def _position(builder: Builder, index: Value, length: int, reverse: bool) -> Value:
    if not reverse:
        return index
    return binary(builder, "sub", builder.constant(length - 1, "int64"), index)


def _read_step(builder: Builder, whole: Value, position: Value, zero: Value) -> Value:
    step = whole.type.shape[1:]
    starts = (position, *(zero for _ in step))
    part = builder.emit("dynamic_slice", (whole, *starts), whole.type.dtype, (1, *step))
    return builder.reshape(part, step)


def _write_step(builder: Builder, whole: Value, step: Value, position: Value, zero: Value) -> Value:
    part = builder.reshape(step, (1, *step.type.shape))
    starts = (position, *(zero for _ in step.type.shape))
    return builder.emit("dynamic_update_slice", (whole, part, *starts), whole.type.dtype, whole.type.shape)


@rule("cond")
def cond(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Sequence[Value]:
    selector, *operands = inputs
    branches: Sequence[Program] = equation.params["branches"]
    if selector.type.rank:
        raise UnsupportedError("cond with an index per batch element")
    if len(branches) == 1:
        return inline(builder, branches[0], operands)
    selector = builder.convert(selector, "int32")
    regions = []
    for branch in branches:
        with builder.region() as body:
            results = inline(builder, branch, operands)
        regions.append(Region((), tuple(body), tuple(results)))
    types = [physical_type(output) for output in equation.outputs]
    outputs = tuple(builder.value(t.dtype, t.shape) for t in types)
    builder.append(BranchUTask(selector, tuple(regions), outputs, equation.source))
    return outputs
