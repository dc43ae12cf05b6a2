"""Data movement: each result element is a copy of an operand element (jax.lax, shape operators).

Typed keys move in their physical form, whose trailing word axis remains last.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from jax_cocktail.errors import UnsupportedError
from jax_cocktail.primitives.equation import Equation
from jax_cocktail.primitives.rule import ints, output_type, physical_type, rule
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.types import Value


@rule(
    "copy",
    "copy_p",
    "stop_gradient",
    "optimization_barrier",
    "pvary",
    "pcast",
    "name",
    "sharding_constraint",
    "layout_constraint",
    "reshard",
    "mesh_cast",
    "reduced_vary_cast",
    "reduced_vary_cast_p",
    "random_clone",
    "random_wrap",
    "random_unwrap",
)
def identity(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Sequence[Value]:
    return inputs


@rule("dce_sink")
def dce_sink(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Sequence[Value]:
    """A mark for passes of JAX: its operand is not dead. Nothing is computed."""
    return ()


@rule("device_put")
def device_put(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Sequence[Value]:
    if equation.params["moves"]:
        raise UnsupportedError("device_put to another memory")
    return inputs


@rule("tie")
def tie(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Sequence[Value]:
    return inputs[1:]


def _key_axes(equation: Equation) -> int:
    """The number of word axes: 1 if the first operand is a typed key array, else 0."""
    return 1 if equation.inputs[0].key_impl else 0


@rule("broadcast_in_dim")
def broadcast_in_dim(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    shape = output_type(equation).shape
    dimensions = ints(equation.params["broadcast_dimensions"])
    if _key_axes(equation):
        dimensions = (*dimensions, len(shape) - 1)
    return builder.broadcast(inputs[0], shape, dimensions)


@rule("reshape")
def reshape(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    (x,) = inputs
    dimensions = equation.params.get("dimensions")
    if dimensions is not None:
        x = builder.transpose(x, (*ints(dimensions), *range(x.type.rank - _key_axes(equation), x.type.rank)))
    return builder.reshape(x, output_type(equation).shape)


@rule("squeeze", "expand_dims")
def squeeze(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    return builder.reshape(inputs[0], output_type(equation).shape)


@rule("transpose")
def transpose(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    permutation = ints(equation.params["permutation"])
    if _key_axes(equation):
        permutation = (*permutation, len(permutation))
    return builder.transpose(inputs[0], permutation)


@rule("slice")
def slice_(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    starts = ints(equation.params["start_indices"])
    strides = equation.params["strides"]
    steps = ints(strides) if strides is not None else ()
    return builder.slice(inputs[0], starts, output_type(equation).shape, steps)


@rule("pad")
def pad(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    if _key_axes(equation):
        raise UnsupportedError("pad of a typed key array")
    x, fill = inputs
    config = [ints(axis) for axis in equation.params["padding_config"]]
    if all(axis == (0, 0, 0) for axis in config):
        return x
    low, interior = tuple(c[0] for c in config), tuple(c[2] for c in config)
    shape = output_type(equation).shape
    return builder.emit("pad", (x, fill), x.type.dtype, shape, low=low, interior=interior)


def join(builder: Builder, parts: Sequence[Value], shape: Sequence[int], dimension: int) -> Value:
    if len(parts) == 1:
        return parts[0]
    return builder.emit("concatenate", parts, parts[0].type.dtype, shape, dimension=dimension)


@rule("concatenate")
def concatenate(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    return join(builder, inputs, output_type(equation).shape, int(equation.params["dimension"]))


@rule("stack")
def stack(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    axis, shape = int(equation.params["axis"]), output_type(equation).shape
    part = (*shape[:axis], 1, *shape[axis + 1 :])
    return join(builder, [builder.reshape(x, part) for x in inputs], shape, axis)


@rule("unstack")
def unstack(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Sequence[Value]:
    (x,) = inputs
    axis, shape = int(equation.params["axis"]), x.type.shape
    part = (*shape[:axis], 1, *shape[axis + 1 :])
    slices = (builder.slice(x, (*(0,) * axis, i), part) for i in range(shape[axis]))
    rest = (*shape[:axis], *shape[axis + 1 :])
    return [builder.reshape(piece, rest) for piece in slices]


@rule("split")
def split(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Sequence[Value]:
    (x,) = inputs
    axis, sizes = int(equation.params["axis"]), ints(equation.params["sizes"])
    starts = (0, *accumulate(sizes))
    shapes = [physical_type(output).shape for output in equation.outputs]
    return [
        builder.slice(x, (*(0,) * axis, start), shape) for start, shape in zip(starts, shapes, strict=False)
    ]


@rule("tile")
def tile(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    (x,) = inputs
    reps = ints(equation.params["reps"]) + (1,) * _key_axes(equation)
    spread = tuple(n for pair in zip(reps, x.type.shape, strict=True) for n in pair)
    axes = tuple(range(1, len(spread), 2))
    return builder.reshape(builder.broadcast(x, spread, axes), output_type(equation).shape)


@rule("rev")
def rev(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    (x,) = inputs
    dimensions = ints(equation.params["dimensions"])
    return builder.emit("reverse", (x,), x.type, dimensions=dimensions) if dimensions else x


@rule("iota")
def iota(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    result = output_type(equation)
    return builder.emit("iota", (), result.dtype, result.shape, dimension=int(equation.params["dimension"]))


@rule("dim_as_value")
def size(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    """A symbolic size as a number, of which the sample is compiled (`lowering.edge.symbolic`)."""
    result = output_type(equation)
    return builder.full(int(equation.params["dim"]), result.dtype, result.shape)


@rule("empty", "empty2", "zeros_like")
def zeros(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    """Fills `empty` with zeros. JAX leaves it unspecified but does the same on the CPU; users may read it."""
    result = output_type(equation)
    return builder.full(0, result.dtype, result.shape)
