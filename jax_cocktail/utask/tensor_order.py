"""The order in which tensor cores read a right factor of shape (k, n).

Words are 32 bits along k: one element, or two. A block is 8 columns by 16 words of k, with a line for each
column: each lane of a warp loads four words at once, and a warp loads a block. Blocks of the same columns
follow each other in the order of k (kCkDotPacked in gpu_src/cocktail_dot_plan.h).
"""

from __future__ import annotations

from jax_cocktail.utask.types import ITEM_SIZE, Shape

COLUMNS = 8  # of a block
PACKED = 1 << 62  # says so in place of a stride (kCkDotPacked)
_WORDS = 16
DTYPES = ("float32", "bfloat16", "float16")


def line_length(dtype: str) -> int:
    """Elements of a line: of one column in a block."""
    return _WORDS * 4 // ITEM_SIZE[dtype]


def depth_shape(depth: int, dtype: str) -> Shape:
    """The axis of k divided into (block, element of a line)."""
    return (depth // line_length(dtype), line_length(dtype))


def depth_strides(dtype: str) -> tuple[int, ...]:
    """The strides of these axes in an ordered factor, in elements."""
    return (COLUMNS * line_length(dtype), 1)
