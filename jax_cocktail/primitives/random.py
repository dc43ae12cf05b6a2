"""Random numbers: the threefry generator, bit for bit (Salmon et al., SC'11; JAX's partitionable layout).

Element i of a draw encrypts the 64-bit counter i, so each element is a pure function of the key and its
position. Draws are element-wise operators and fuse like arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from jax_cocktail.errors import UnsupportedError
from jax_cocktail.primitives.equation import Equation
from jax_cocktail.primitives.rule import constant_like, ints, output_type, rule, spread
from jax_cocktail.utask.builder import Builder
from jax_cocktail.utask.types import ITEM_SIZE, Value

_Words = tuple[Value, Value]


def _require_partitionable() -> None:
    import jax

    if not jax.config.jax_threefry_partitionable:
        raise UnsupportedError("random draws with jax_threefry_partitionable=False")


def _key_words(builder: Builder, key: Value) -> _Words:
    shape = key.type.shape[:-1]
    lead = (0,) * len(shape)
    first, second = (
        builder.reshape(builder.slice(key, (*lead, word), (*shape, 1)), shape) for word in (0, 1)
    )
    return first, second


def _to_key(builder: Builder, words: _Words) -> Value:
    shape = words[0].type.shape
    parts = [builder.reshape(word, (*shape, 1)) for word in words]
    return builder.emit("concatenate", parts, "uint32", (*shape, 2), dimension=len(shape))


def _block(builder: Builder, key: _Words, counter: _Words) -> _Words:
    shape = counter[0].type.shape
    operands = (*key, *counter)
    first, second = (builder.emit("threefry2x32", operands, "uint32", shape, word=word) for word in (0, 1))
    return first, second


def _counter(builder: Builder, shape: Sequence[int]) -> _Words:
    """The row-major position of each element as two words, the high one first."""
    size = prod(shape)
    if size > 2**32:
        raise UnsupportedError("a random draw of more than 2**32 elements")
    low = builder.reshape(builder.emit("iota", (), "uint32", (size,), dimension=0), shape)
    return builder.full(0, "uint32", shape), low


def _draw(builder: Builder, keys: Value, shape: Sequence[int]) -> _Words:
    """Draws one block per key and position of `shape`. Result axes: those of the keys, then `shape`."""
    lead = keys.type.shape[:-1]
    full = (*lead, *shape)
    first, second = (spread(builder, word, full) for word in _key_words(builder, keys))
    axes = tuple(range(len(lead), len(full)))
    high, low = (builder.broadcast(word, full, axes) for word in _counter(builder, shape))
    return _block(builder, (first, second), (high, low))


@rule("random_bits")
def random_bits(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    _require_partitionable()
    high, low = _draw(builder, inputs[0], ints(equation.params["shape"]))
    dtype = output_type(equation).dtype
    if ITEM_SIZE[dtype] < 8:
        return builder.convert(builder.binary("xor", high, low), dtype)
    wide = builder.convert(high, dtype)
    shifted = builder.binary("shift_left", wide, constant_like(builder, wide, 32))
    return builder.binary("or", shifted, builder.convert(low, dtype))


@rule("random_split")
def random_split(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    _require_partitionable()
    return _to_key(builder, _draw(builder, inputs[0], ints(equation.params["shape"])))


@rule("random_fold_in")
def random_fold_in(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    keys, data = inputs
    shape = output_type(equation).shape[:-1]
    first, second = (spread(builder, word, shape) for word in _key_words(builder, keys))
    low = spread(builder, builder.convert(data, "uint32"), shape)
    return _to_key(builder, _block(builder, (first, second), (constant_like(builder, low, 0), low)))


@rule("random_seed")
def random_seed(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Value:
    """The seed as two words, high word first. Narrower seeds are sign- or zero-extended by type."""
    (seed,) = inputs
    low = builder.convert(seed, "uint32")
    if ITEM_SIZE[seed.type.dtype] < 8:
        return _to_key(builder, (constant_like(builder, low, 0), low))
    high = builder.binary("shift_right_logical", seed, constant_like(builder, seed, 32))
    return _to_key(builder, (builder.convert(high, "uint32"), low))


@rule("threefry2x32")
def threefry2x32(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Sequence[Value]:
    shape = output_type(equation).shape
    key0, key1, counter0, counter1 = (spread(builder, v, shape) for v in inputs)
    return _block(builder, (key0, key1), (counter0, counter1))


@rule("iota_2x32_shape")
def iota_2x32_shape(builder: Builder, equation: Equation, inputs: tuple[Value, ...]) -> Sequence[Value]:
    return _counter(builder, output_type(equation).shape)
