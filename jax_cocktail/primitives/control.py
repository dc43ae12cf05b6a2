"""Control flow: while, scan and cond become nested uTasks (COCKTAILER, section 3.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jax_cocktail.errors import UnsupportedError
from jax_cocktail.primitives.equation import Equation, Program
from jax_cocktail.primitives.reduction import reduce_value
from jax_cocktail.primitives.rule import physical_type, rule, spread
from jax_cocktail.primitives.translate import inline
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.ir import BranchUTask, LoopUTask, Region
from jax_cocktail.utask.types import TensorType, Value

CONTROL_FLOW = frozenset({"while", "scan", "cond"})


@rule("while")
def while_(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Sequence[Value]:
    params = equation.params
    first, second = int(params["cond_nconsts"]), int(params["body_nconsts"])
    condition_constants, rest = inputs[:first], inputs[first:]
    body_constants, initial = rest[:second], rest[second:]
    condition: Program = params["cond_jaxpr"]
    test = builder.like(initial)
    with builder.region() as test_body:
        (predicate,) = inline(builder, condition, (*condition_constants, *test))
        # vmap makes a predicate per batch element: the loop runs until all are false
        any_element = reduce_value(builder, predicate, range(predicate.type.rank), "or")
    carried = builder.like(initial)
    with builder.region() as body:
        following = inline(builder, params["body_jaxpr"], (*body_constants, *carried))
        if predicate.type.rank:
            (active,) = inline(builder, condition, (*condition_constants, *carried))
            whole = int(params.get("whole", 0))
            following[whole:] = (
                builder.select(spread(builder, active, new.type.shape), new, old)
                for new, old in zip(following[whole:], carried[whole:], strict=True)
            )
    outputs = builder.like(initial)
    builder.out.append(
        LoopUTask(
            initial=initial,
            outputs=outputs,
            body=Region(carried, tuple(body), tuple(following)),
            condition=Region(test, tuple(test_body), (any_element,)),
            source=equation.source,
        )
    )
    return outputs


@rule("scan")
def scan(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Sequence[Value]:
    params = equation.params
    num_consts, num_carry = int(params["num_consts"]), int(params["num_carry"])
    constants, rest = inputs[:num_consts], inputs[num_consts:]

    def step(carried: Sequence[Value], rows: Sequence[Value]) -> Sequence[Value]:
        return inline(builder, params["jaxpr"], (*constants, *carried, *rows))

    stacked = [physical_type(output) for output in equation.outputs[num_carry:]]
    loop = Scan(int(params["length"]), bool(params["reverse"]), stacked, int(params.get("unroll", 1)))
    return loop.emit(builder, rest[:num_carry], rest[num_carry:], step)


@dataclass(frozen=True, slots=True)
class Scan:
    """A counted loop over the leading axis of arrays. `stacked`: the types of the arrays that it makes;
    `unroll`: so many iterations are to become one."""

    length: int
    reverse: bool
    stacked: Sequence[TensorType]
    unroll: int = 1

    def emit(
        self,
        builder: Builder,
        start: Sequence[Value],
        xs: Sequence[Value],
        step: Callable[[Sequence[Value], Sequence[Value]], Sequence[Value]],
    ) -> Sequence[Value]:
        """Emits the loop, and returns the last carries and the arrays. `step`: from carries and rows of `xs`
        to the next carries and rows of the arrays."""
        count = len(start)
        initial = (*start, *(builder.emit("empty", (), t.dtype, t.shape) for t in self.stacked))
        if self.length == 0:
            return initial
        index = builder.value("int64")
        carried = builder.like(initial)
        with builder.region() as body:
            position = index
            if self.reverse:
                position = builder.binary("sub", builder.constant(self.length - 1, "int64"), index)
            zero = builder.constant(0, "int64")
            results = step(carried[:count], [builder.row(x, position, zero) for x in xs])
            written = [
                builder.put_row(whole, y, position, zero)
                for whole, y in zip(carried[count:], results[count:], strict=True)
            ]
        outputs = builder.like(initial)
        region = Region((index, *carried), tuple(body), (*results[:count], *written))
        builder.out.append(
            LoopUTask(
                initial=initial,
                outputs=outputs,
                body=region,
                trip_count=self.length,
                source=builder.source,
                unroll=min(max(self.unroll, 1), self.length),
            )
        )
        return outputs


@rule("platform_index")
def platform_index(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    index = equation.params["index"]
    if index is None:
        raise UnsupportedError("lax.platform_dependent has no branch for this platform")
    return builder.constant(index, "int32")


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
    builder.out.append(BranchUTask(selector, tuple(regions), outputs, equation.source))
    return outputs
