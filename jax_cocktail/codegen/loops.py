"""Sequential loop nests around templates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from jax_cocktail.codegen.kernel import Index, Name
from jax_cocktail.codegen.writer import Writer, variable


def loop_over(
    writer: Writer, shape: Sequence[int], body: Callable[[tuple[Index, ...]], None], prefix: str = "i"
) -> None:
    """A sequential loop nest; `body` gets the indices. Unit axes get index 0 and no loop."""
    names = [Name(f"{prefix}{d}") for d in range(len(shape))]
    with ExitStack() as stack:
        for name, n in zip(names, shape, strict=True):
            if n != 1:
                stack.enter_context(writer.loop(name, n))
        body(loop_indices(names, shape))


def loop_indices(names: Sequence[Name], shape: Sequence[int]) -> tuple[Index, ...]:
    """The loop variables as indices; 0 along unit axes."""
    return tuple(variable(name) if n != 1 else Index() for name, n in zip(names, shape, strict=True))
